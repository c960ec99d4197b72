//! Registers, features, status, interrupts.

use super::driver::{
    CONFIG_VECTOR, DRIVER_FEATURE, QUEUE_ENABLE, QUEUE_SELECT, QUEUE_SIZE, QUEUE_VECTOR, STATUS,
};
use super::*;

#[test]
fn features_are_offered_and_agreed_on() {
    let mut driver = with_disk(8, true);
    let offered = |driver: &mut Driver, half| {
        driver.write(0, 4, half);
        driver.read(4, 4)
    };
    assert_eq!(offered(&mut driver, 0), 1 << 28 | 1 << 29 | 1 << 9 | 1 << 6 | 1 << 5 | 1 << 2 | 1 << 1);
    assert_eq!(offered(&mut driver, 1), 1);
    assert_eq!(offered(&mut driver, 2), 0);
    // Fixed once agreed on.
    driver.write(8, 4, 0);
    driver.write(DRIVER_FEATURE, 4, 0xffff_ffff);
    assert_eq!(driver.read(DRIVER_FEATURE, 4), 1 << 28);
    for (low, high) in [(0, 0), (1 << 28, 0), (1 << 0, 1), (0, 3)] {
        driver.write(STATUS, 1, 0);
        for (half, bits) in [(0, low), (1, high)] {
            driver.write(8, 4, half);
            driver.write(DRIVER_FEATURE, 4, bits);
        }
        driver.write(STATUS, 1, 0xb);
        assert_eq!(driver.read(STATUS, 1), 3, "{low:#x} {high:#x}");
        driver.write(STATUS, 1, 0xf);
        assert!(driver.needs_reset(), "a driver that goes on");
    }
}

#[test]
fn reset_takes_everything_back() {
    let mut driver = with_disk(8, false);
    driver.write(QUEUE_SELECT, 2, 0);
    assert_eq!(driver.read(QUEUE_SIZE, 8), 0x0000_0001_0002_0008);
    driver.write(STATUS, 1, 0);
    assert_eq!(driver.read(QUEUE_SIZE, 8), 0x0000_0000_ffff_0100);
    assert_eq!(driver.read(CONFIG_VECTOR, 4), 0x0001_ffff);
    assert_eq!(driver.read(0x20, 8) | driver.read(0x28, 8) | driver.read(0x30, 8), 0);
    assert_eq!(driver.read(DRIVER_FEATURE, 4), 0);
}

#[test]
fn queues_that_do_not_exist_have_size_0() {
    let mut driver = with_disk(8, false);
    driver.write(QUEUE_SELECT, 2, 1);
    assert_eq!((driver.read(QUEUE_SIZE, 2), driver.read(QUEUE_ENABLE, 2)), (0, 0));
    driver.write(QUEUE_SIZE, 2, 4);
    driver.write(QUEUE_ENABLE, 2, 1);
    assert_eq!((driver.read(QUEUE_SIZE, 2), driver.read(QUEUE_ENABLE, 2)), (0, 0));
    driver.notify(1);
    assert!(!driver.needs_reset());
}

#[test]
fn vectors_that_do_not_exist_read_as_none() {
    let mut driver = with_disk(8, false);
    driver.write(QUEUE_SELECT, 2, 0);
    for (written, read) in [(3, 3), (4, 0xffff), (0xffff, 0xffff), (0, 0)] {
        driver.write(QUEUE_VECTOR, 2, written);
        driver.write(CONFIG_VECTOR, 2, written);
        assert_eq!((driver.read(QUEUE_VECTOR, 2), driver.read(CONFIG_VECTOR, 2)), (read, read));
    }
}

/// A flush, which needs no data.
fn flush(driver: &mut Driver) {
    driver.put(driver::BUFFERS, &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let chain = Chain {
        readable: vec![(driver::BUFFERS, 16)],
        writable: vec![(driver::BUFFERS + 16, 1)],
        indirect: false,
    };
    assert_eq!(driver.request(0, &chain), 1);
}

#[test]
fn messages_wait_behind_masks() {
    let mut driver = with_disk(8, false);
    flush(&mut driver);
    assert_eq!(driver.interrupts(), [0x52]);
    let control = function::TABLE.start + 2 * 16 + 12;
    driver.write(control, 4, 1);
    flush(&mut driver);
    flush(&mut driver);
    assert!(driver.interrupts().is_empty());
    assert_eq!(driver.read(function::PENDING.start, 8), 1 << 2);
    driver.write(control, 4, 0);
    assert_eq!(driver.interrupts(), [0x52], "one for both");
    assert_eq!(driver.read(function::PENDING.start, 4), 0);
    // All masked, by configuration space.
    let setup = Setup { bus_master: true, interrupt_disabled: false, msix: true, msix_masked: true };
    driver.devices.configure(0, setup, &mut driver.messages);
    flush(&mut driver);
    assert!(driver.interrupts().is_empty());
    driver.configure(true, true);
    assert_eq!(driver.interrupts(), [0x52]);
    assert_eq!(driver.devices.lines(), 0);
}

#[test]
fn a_full_sink_of_messages_loses_none() {
    let mut driver = with_disk(8, false);
    let other = crate::device::message::InterruptMessage::from_msi(0xfee0_0000, 0x99).unwrap();
    while driver.messages.push(other) {}
    flush(&mut driver);
    assert!(driver.devices.wants_service());
    driver.interrupts();
    let _nothing_woken = driver.devices.serve_next(&driver.memory, &mut driver.messages);
    assert_eq!(driver.interrupts(), [0x52]);
    assert!(!driver.devices.wants_service());
}

#[test]
fn without_messages_there_is_a_line() {
    let mut driver = with_disk(8, false);
    driver.configure(true, false);
    flush(&mut driver);
    assert!(driver.interrupts().is_empty());
    assert_eq!(driver.devices.lines(), 1 << pci_interrupt_gsi(1, 0));
    assert_eq!(driver.read(function::ISR.start, 1), 1);
    assert_eq!(driver.devices.lines(), 0, "reading lowers it");
    assert_eq!(driver.read(function::ISR.start, 1), 0);
    flush(&mut driver);
    let disabled = Setup { bus_master: true, interrupt_disabled: true, msix: false, msix_masked: false };
    driver.devices.configure(0, disabled, &mut driver.messages);
    assert_eq!(driver.devices.lines(), 0);
    driver.configure(true, false);
    assert_ne!(driver.devices.lines(), 0);
    driver.devices.reset();
    assert_eq!(driver.devices.lines(), 0);
}

#[test]
fn a_device_that_is_no_bus_master_touches_no_memory() {
    let mut driver = with_disk(8, false);
    driver.configure(false, true);
    driver.add(0, &Chain::default());
    driver.notify(0);
    assert!(driver.used(0).is_empty() && !driver.needs_reset());
}

#[test]
fn queues_need_a_layout() {
    for (register, value, why) in [
        (QUEUE_SIZE, 0, "no entries"),
        (QUEUE_SIZE, 6, "no power of two"),
        (0x20, 8, "descriptors"),
        (0x28, 1, "available ring"),
        (0x30, 2, "used ring"),
    ] {
        let mut driver = with_disk(8, false);
        driver.write(STATUS, 1, 0);
        driver.write(8, 4, 1);
        driver.write(DRIVER_FEATURE, 4, 1);
        driver.write(STATUS, 1, 0xb);
        driver.write(register, 2, value);
        driver.write(QUEUE_ENABLE, 2, 1);
        assert!(driver.needs_reset(), "{why}");
        assert_eq!(driver.read(QUEUE_ENABLE, 2), 0);
        driver.start(VERSION_1);
        assert!(!driver.needs_reset());
    }
}
