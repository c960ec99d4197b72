//! Rings, good and bad.

use super::driver::{BUFFERS, SIZE};
use super::*;

/// A request for the disk's name, in as many parts as there are.
fn get_id(parts: usize, indirect: bool) -> Chain {
    let name = (0..parts).map(|n| (BUFFERS + 32 + n as u64 * (20 / parts as u64), 20 / parts as u32));
    Chain { readable: vec![(BUFFERS, 16)], writable: name.chain([(BUFFERS + 90, 1)]).collect(), indirect }
}

fn with_request() -> Driver {
    let driver = with_disk(8, false);
    driver.put(BUFFERS, &[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    driver.put(BUFFERS + 90, &[0xff]);
    driver
}

#[test]
fn chains_arrive_however_they_are_cut() {
    for (parts, indirect) in [(1, false), (4, false), (1, true), (5, true), (20, true)] {
        let mut driver = with_request();
        // Past the end of the ring, and past the end of indexes of 16 bits by and by.
        for _ in 0..3 * SIZE {
            assert_eq!(driver.request(0, &get_id(parts, indirect)), 21, "{parts} {indirect}");
        }
        assert_eq!(driver.bytes(BUFFERS + 32, 20), *b"disk0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(driver.bytes(BUFFERS + 90, 1), [0]);
    }
}

#[test]
fn indexes_wrap() {
    let mut driver = with_request();
    for _ in 0..70_000 / 4 {
        for _ in 0..4 {
            driver.add(0, &get_id(1, true));
        }
        driver.notify(0);
        assert_eq!(driver.used(0).len(), 4);
        assert_eq!(driver.interrupts(), [0x52]);
    }
}

#[test]
fn no_interrupt_if_the_driver_wants_none() {
    let mut driver = with_request();
    let [_, available, _] = Driver::areas(0);
    driver.put_u16(available, 1);
    driver.request(0, &get_id(1, false));
    assert!(driver.interrupts().is_empty());
    driver.put_u16(available, 0);
    driver.request(0, &get_id(1, false));
    assert_eq!(driver.interrupts(), [0x52]);
}

#[test]
fn interrupts_by_index() {
    let mut devices = Builder::new(0);
    devices.block(Block::new(disk(1), "disk0"));
    let mut driver = Driver::of(devices.build(), 0, VERSION_1 | EVENT_INDEX | INDIRECT);
    driver.put(BUFFERS, &[8]);
    let [_, available, used] = Driver::areas(0);
    let used_event = available + 4 + 2 * u64::from(SIZE);
    let available_event = used + 4 + 8 * u64::from(SIZE);
    for (event, requests, expected) in [
        (0, 1, true),
        (0, 1, false),
        (3, 1, false),
        (3, 1, true),
        (4, 3, true),
        (6, 2, false),
        (9, 1, true),
        (9, 1, false),
    ] {
        driver.put_u16(used_event, event);
        for _ in 0..requests {
            driver.add(0, &get_id(1, true));
        }
        driver.notify(0);
        assert_eq!(driver.used(0).len(), requests);
        assert_eq!(!driver.interrupts().is_empty(), expected, "{event} {requests}");
        assert_eq!(driver.u16_at(available_event), driver.u16_at(available + 2), "asks for the next");
    }
}

/// What a driver gets wrong, and how.
type Mistake = (&'static str, fn(&mut Driver));

const HEAD: (u64, u32) = (BUFFERS, 16);

#[test]
fn mistakes_end_in_needs_reset() {
    let mistakes: &[Mistake] = &[
        ("an index far ahead", |d| {
            let [_, available, _] = Driver::areas(0);
            d.put_u16(available + 2, SIZE + 1);
        }),
        ("a head out of range", |d| d.offer(0, SIZE)),
        ("a next out of range", |d| {
            d.descriptor(0, 0, HEAD, 1, SIZE);
            d.offer(0, 0);
        }),
        ("a loop", |d| {
            d.descriptor(0, 0, HEAD, 1, 1);
            d.descriptor(0, 1, HEAD, 1, 0);
            d.offer(0, 0);
        }),
        ("a loop of empty buffers", |d| {
            d.descriptor(0, 0, (0, 0), 1, 0);
            d.offer(0, 0);
        }),
        ("readable after writable", |d| {
            d.descriptor(0, 0, HEAD, 3, 1);
            d.descriptor(0, 1, HEAD, 0, 0);
            d.offer(0, 0);
        }),
        ("nothing to write the status to", |d| {
            d.descriptor(0, 0, HEAD, 0, 0);
            d.offer(0, 0);
        }),
        ("a short header", |d| {
            d.add(0, &Chain { readable: vec![(BUFFERS, 15)], ..get_id(1, false) });
        }),
        ("an empty chain", |d| {
            d.descriptor(0, 0, (0, 0), 0, 0);
            d.offer(0, 0);
        }),
        ("a buffer outside memory", |d| {
            d.add(0, &Chain { writable: vec![(1 << 40, 20), (BUFFERS, 1)], ..get_id(1, false) });
        }),
        ("a buffer past the end of addresses", |d| {
            d.add(0, &Chain { writable: vec![(u64::MAX - 3, 20), (BUFFERS, 1)], ..get_id(1, false) });
        }),
        ("an empty indirect table", |d| {
            d.descriptor(0, 0, (BUFFERS, 0), 4, 0);
            d.offer(0, 0);
        }),
        ("a broken indirect table", |d| {
            d.descriptor(0, 0, (BUFFERS, 24), 4, 0);
            d.offer(0, 0);
        }),
        ("an indirect table and more", |d| {
            d.descriptor(0, 0, (BUFFERS + 0x100, 16), 5, 1);
            d.offer(0, 0);
        }),
        ("an indirect table in another", |d| {
            d.descriptor(BUFFERS + 0x100, 0, (BUFFERS + 0x100, 16), 4, 0);
            d.descriptor(0, 0, (BUFFERS + 0x100, 16), 4, 0);
            d.offer(0, 0);
        }),
        ("a loop in an indirect table", |d| {
            d.descriptor(BUFFERS + 0x100, 0, HEAD, 1, 1);
            d.descriptor(BUFFERS + 0x100, 1, HEAD, 1, 0);
            d.descriptor(0, 0, (BUFFERS + 0x100, 32), 4, 0);
            d.offer(0, 0);
        }),
        ("an indirect table outside memory", |d| {
            d.descriptor(0, 0, (1 << 50, 32), 4, 0);
            d.offer(0, 0);
        }),
        ("too many buffers", |d| {
            for n in 0..1000 {
                d.descriptor(BUFFERS + 0x100, n, HEAD, 1, n + 1);
            }
            d.descriptor(0, 0, (BUFFERS + 0x100, 16 * 1001), 4, 0);
            d.offer(0, 0);
        }),
    ];
    for (what, make) in mistakes {
        let mut driver = with_request();
        make(&mut driver);
        driver.notify(0);
        assert!(driver.needs_reset(), "{what}");
        assert_eq!(driver.interrupts(), [0x51], "{what}: told by the configuration's vector");
        assert!(driver.used(0).is_empty(), "{what}");
        // Nothing more until it is reset, and then everything.
        driver.notify(0);
        assert!(driver.interrupts().is_empty(), "{what}");
        driver.start(VERSION_1 | INDIRECT);
        driver.put(BUFFERS, &[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(driver.request(0, &get_id(1, false)), 21, "{what}");
    }
}

#[test]
fn indirect_tables_need_agreement() {
    let mut devices = Builder::new(0);
    devices.block(Block::new(disk(1), "disk0"));
    let mut driver = Driver::of(devices.build(), 0, VERSION_1);
    driver.add(0, &get_id(1, true));
    driver.notify(0);
    assert!(driver.needs_reset());
}

#[test]
fn long_queues_are_served_in_parts() {
    let mut devices = Builder::new(0);
    devices.block(Block::new(disk(2048), "disk0"));
    let mut driver = Driver::new(devices.build());
    // Each reads 1 MiB into the same place, as 128 buffers of 8 KiB.
    driver.put(BUFFERS, &[0; 16]);
    let data = vec![(BUFFERS + 0x1000, 8192); 128];
    let chain = Chain {
        readable: vec![(BUFFERS, 16)],
        writable: data.into_iter().chain([(BUFFERS + 90, 1)]).collect(),
        indirect: true,
    };
    for _ in 0..5 {
        driver.add(0, &chain);
    }
    driver.notify(0);
    assert_eq!(driver.used(0).len(), 2, "about 2 MiB");
    for left in [2, 1] {
        assert!(driver.devices.wants_service());
        let _nothing_woken = driver.devices.serve_next(&driver.memory, &mut driver.messages);
        assert_eq!(driver.used(0).len(), left);
    }
    assert!(!driver.devices.wants_service());
}

#[test]
fn a_device_at_work_is_not_waited_for() {
    let mut driver = with_request();
    driver.add(0, &get_id(1, true));
    let devices = driver.devices.clone();
    {
        let _at_work = devices.0.slots[0].lock();
        driver.notify(0);
        for _ in 0..3 {
            assert!(driver.used(0).is_empty() && devices.wants_service());
            let _nothing_woken = devices.serve_next(&driver.memory, &mut driver.messages);
        }
    }
    let _nothing_woken = devices.serve_next(&driver.memory, &mut driver.messages);
    assert_eq!(driver.used(0).len(), 1);
    assert!(!devices.wants_service());
}

#[test]
fn devices_take_turns() {
    let mut builder = Builder::new(0);
    for seed in 0..3 {
        builder.entropy(Entropy::new([seed; 32]));
    }
    let mut driver = Driver::new(builder.build());
    let devices = driver.devices.clone();
    // Two always have something to do.
    let _at_work = [0, 1].map(|slot| devices.0.slots[slot].lock());
    devices.0.waiting.store(7, Ordering::Relaxed);
    for left in [3, 3, 3, 2] {
        assert_eq!(devices.waiting(), left);
        let _nothing_woken = devices.serve_next(&driver.memory, &mut driver.messages);
    }
}
