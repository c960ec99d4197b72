//! The balloon: pages that are named, and when their chains come back.

use super::driver::BUFFERS;
use super::*;
use crate::arch::addr::PAGE_SIZE;

const INFLATE: u8 = 0;
const DEFLATE: u8 = 1;
const REPORT: u8 = 2;

fn with_balloon() -> Driver {
    let mut devices = Builder::new(0);
    devices.balloon();
    Driver::new(devices.build())
}

/// A chain of page numbers in buffers of 300 of them at most.
fn numbers(driver: &Driver, pages: &[u32]) -> Chain {
    let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
    driver.put(BUFFERS, &bytes);
    let parts = bytes.chunks(1200).zip(0..).map(|(part, n)| (BUFFERS + 1200 * n, part.len() as u32));
    Chain { readable: parts.collect(), ..Chain::default() }
}

/// The pages that wait to be discarded.
fn taken(driver: &Driver) -> Vec<u64> {
    let mut pages = vec![];
    driver.devices.take_named(|page| pages.push(page.0));
    pages
}

/// They are gone, and waiting devices are served.
fn discarded(driver: &mut Driver) {
    driver.devices.discarded();
    let _nothing_woken = driver.devices.serve_next(&driver.memory, &mut driver.messages);
}

#[test]
fn a_chain_comes_back_when_all_its_pages_are_gone() {
    let mut driver = with_balloon();
    let pages: Vec<u32> = (0..600).map(|n| n * 7 + 1).collect();
    let chain = numbers(&driver, &pages);
    let head = driver.add(INFLATE, &chain);
    driver.notify(INFLATE);
    let mut all = vec![];
    for batch in [256, 256, 88] {
        assert!(driver.devices.has_named() && driver.used(INFLATE).is_empty());
        let some = taken(&driver);
        assert_eq!(some.len(), batch);
        all.extend(some);
        // Not before processors have forgotten them, whatever the driver does.
        driver.notify(INFLATE);
        assert!(!driver.devices.has_named() && driver.used(INFLATE).is_empty());
        discarded(&mut driver);
    }
    assert_eq!(driver.used(INFLATE), [(head, 0)]);
    assert!(all.iter().eq(pages.iter().map(|page| u64::from(*page)).collect::<Vec<_>>().iter()));
    let counts = driver.devices.balloon_counts().unwrap();
    assert_eq!((counts.inflated, counts.deflated, counts.reported), (600, 0, 0));
    // Out again: nothing to do.
    let chain = numbers(&driver, &pages[..100]);
    assert_eq!(driver.request(DEFLATE, &chain), 0);
    assert_eq!(driver.devices.balloon_counts().unwrap().deflated, 100);
    assert!(!driver.devices.has_named());
}

#[test]
fn free_pages_are_named_as_wholes_and_in_pieces() {
    let mut driver = with_balloon();
    let (block, whole, part) = ((0x60_0000, 2 << 20), (0x5000, 4096), (0x9800, 2 * 4096));
    driver.add(REPORT, &Chain { writable: vec![whole, block, part], ..Chain::default() });
    driver.notify(REPORT);
    let mut all = vec![];
    while driver.devices.has_named() {
        all.extend(taken(&driver));
        discarded(&mut driver);
    }
    let pages = [5].into_iter().chain(0x600..0x800).chain([0xa]);
    assert!(all.into_iter().eq(pages), "the pages that lie in the buffers as wholes");
    assert_eq!(driver.used(REPORT).len(), 1);
    assert_eq!(driver.devices.balloon_counts().unwrap().reported, 514);
}

#[test]
fn the_target_is_told_by_an_interrupt_and_the_driver_tells_its_size() {
    let mut driver = with_balloon();
    assert_eq!(driver.read(function::CONFIG.start, 8), 0);
    assert!(driver.devices.set_balloon(0x1234, &mut driver.messages));
    assert_eq!(driver.interrupts(), [0x51]);
    assert!(driver.devices.set_balloon(0x1234, &mut driver.messages));
    assert!(driver.interrupts().is_empty(), "it is that already");
    driver.write(function::CONFIG.start + 4, 4, 0x1200);
    driver.write(function::CONFIG.start, 4, 7);
    assert_eq!(driver.read(function::CONFIG.start, 8), 0x1200_0000_1234);
    let counts = driver.devices.balloon_counts().unwrap();
    assert_eq!((counts.target, counts.actual), (0x1234, 0x1200));
    // After a reset of the driver the target is the same.
    driver.write(driver::STATUS, 1, 0);
    let counts = driver.devices.balloon_counts().unwrap();
    assert_eq!((counts.target, counts.actual), (0x1234, 0));
    assert!(driver.devices.set_balloon(1, &mut driver.messages) && driver.interrupts().is_empty());
    assert!(!with_disk(1, false).devices.set_balloon(1, &mut Messages::new()), "no balloon");
}

#[test]
fn a_reset_takes_back_what_has_not_gone() {
    let mut driver = with_balloon();
    let chain = numbers(&driver, &[1, 2, 3]);
    driver.add(INFLATE, &chain);
    driver.notify(INFLATE);
    assert!(driver.devices.has_named());
    driver.write(driver::STATUS, 1, 0);
    assert!(!driver.devices.has_named() && taken(&driver).is_empty());
}

#[test]
fn chains_that_cannot_be_right_ask_for_a_reset() {
    for (queue, chain) in [
        (INFLATE, Chain { readable: vec![(BUFFERS, 5 << 20)], ..Chain::default() }),
        (INFLATE, Chain { readable: vec![(1 << 40, 4096)], ..Chain::default() }),
        (REPORT, Chain { writable: vec![(0, u32::MAX), (0, u32::MAX)], ..Chain::default() }),
    ] {
        let mut driver = with_balloon();
        driver.add(queue, &chain);
        driver.notify(queue);
        assert!(driver.needs_reset() && !driver.devices.has_named(), "{chain:?}");
    }
    // The wrong direction, half a number, pieces of pages, the end of the address space: nothing is named.
    for (queue, chain) in [
        (INFLATE, Chain { writable: vec![(BUFFERS, 4096)], ..Chain::default() }),
        (INFLATE, Chain { readable: vec![(BUFFERS, 3)], ..Chain::default() }),
        (REPORT, Chain { readable: vec![(BUFFERS, 4096)], ..Chain::default() }),
        (REPORT, Chain { writable: vec![(0x1001, 4096), (u64::MAX - 7, 4096)], ..Chain::default() }),
    ] {
        let mut driver = with_balloon();
        assert_eq!(driver.request(queue, &chain), 0, "{chain:?}");
        assert!(!driver.needs_reset() && !driver.devices.has_named());
    }
    assert_eq!(PAGE_SIZE, 4096);
}
