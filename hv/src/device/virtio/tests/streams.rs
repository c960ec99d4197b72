//! Console and entropy.

use super::driver::BUFFERS;
use super::*;

fn with_console() -> Driver {
    let mut devices = Builder::new(0);
    devices.console();
    Driver::new(devices.build())
}

fn shown(driver: &Driver) -> Vec<u8> {
    core::iter::from_fn(|| driver.devices.console_output()).collect()
}

#[test]
fn output_comes_out_in_order_and_waits_for_room() {
    let mut driver = with_console();
    let text: Vec<u8> = (0..5000u32).map(|n| (n % 251) as u8).collect();
    driver.put(BUFFERS, &text);
    driver.add(1, &Chain { readable: vec![(BUFFERS, 3), (BUFFERS + 3, 4000)], ..Chain::default() });
    driver.add(1, &Chain { readable: vec![(BUFFERS + 4003, 997)], ..Chain::default() });
    driver.notify(1);
    assert!(driver.used(1).is_empty(), "not all of it fits");
    let mut out = vec![];
    while driver.devices.has_output() {
        let part = shown(&driver);
        assert!(part.len() <= 1024);
        out.extend(part);
        assert!(driver.devices.wants_service());
        let _nothing_woken = driver.devices.serve_next(&driver.memory, &mut driver.messages);
    }
    assert_eq!(out, text);
    assert_eq!(driver.used(1).len(), 2);
    assert!(!driver.devices.wants_service());
}

#[test]
fn input_waits_for_buffers() {
    let mut driver = with_console();
    assert_eq!(driver.devices.console_room(), Some(256));
    (0..300u32).for_each(|n| driver.devices.console_input(n as u8));
    assert_eq!(driver.devices.console_room(), Some(0));
    let _nothing_woken = driver.devices.serve_next(&driver.memory, &mut driver.messages);
    assert!(!driver.devices.wants_service());
    for (len, expected) in [(100, 100), (200, 156)] {
        let writable = vec![(BUFFERS, 1), (BUFFERS + 1, len - 1)];
        assert_eq!(driver.request(0, &Chain { writable, ..Chain::default() }), expected);
    }
    assert_eq!(driver.bytes(BUFFERS, 156), (100..=255).collect::<Vec<u8>>());
    driver.add(0, &Chain { writable: vec![(BUFFERS, 10)], ..Chain::default() });
    driver.notify(0);
    assert!(driver.used(0).is_empty());
    driver.devices.console_input(b'x');
    let _nothing_woken = driver.devices.serve_next(&driver.memory, &mut driver.messages);
    assert_eq!(driver.used(0)[0].1, 1);
}

#[test]
fn a_console_without_a_driver_takes_no_input() {
    let mut driver = with_console();
    driver.write(driver::STATUS, 1, 0);
    assert_eq!(driver.devices.console_room(), None);
    assert_eq!(with_disk(1, false).devices.console_room(), None);
}

#[test]
fn random_numbers_are_as_many_as_asked_for() {
    let source = |seed| {
        let mut devices = Builder::new(0);
        devices.entropy(Entropy::new([seed; 32]));
        Driver::new(devices.build())
    };
    let bytes = |driver: &mut Driver, len: u32| {
        driver.put(BUFFERS, &[0; 8192]);
        let writable = vec![(BUFFERS, len.min(3)), (BUFFERS + 3, len.saturating_sub(3))];
        (driver.request(0, &Chain { writable, ..Chain::default() }), driver.bytes(BUFFERS, len as usize))
    };
    let mut driver = source(1);
    for len in [1, 64, 65, 1000, 4096] {
        let (written, random) = bytes(&mut driver, len);
        assert_eq!(written, len);
        // A byte in 256 is zero; of many, not a tenth are.
        assert!(len < 1000 || random.iter().filter(|byte| **byte == 0).count() < len as usize / 10);
    }
    assert_eq!(bytes(&mut driver, 8192).0, 4096, "no more at once");
    let first = bytes(&mut source(1), 64);
    assert_eq!(first, bytes(&mut source(1), 64));
    assert_ne!(first, bytes(&mut source(2), 64));
    // RFC 8439, 2.3: the key stream's start for a key of zeroes, from appendix A.1, test vector 1.
    let known =
        [0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90, 0x40, 0x5d, 0x6a, 0xe5, 0x53, 0x86, 0xbd, 0x28];
    assert_eq!(bytes(&mut source(0), 16).1, known);
    driver.add(0, &Chain { readable: vec![(BUFFERS, 4)], ..Chain::default() });
    driver.notify(0);
    assert!(driver.needs_reset(), "nowhere to put them");
}
