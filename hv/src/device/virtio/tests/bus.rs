//! The devices on the chipset's PCI bus: capabilities, BARs, the window, lines.

use super::*;
use crate::arch::addr::Gpa;
use crate::device::Nanos;
use crate::device::chipset::{Chipset, Options};
use crate::device::layout::{ECAM, PCI_WINDOW_32};

const NOW: Nanos = Nanos(0);

struct Board {
    chipset: Chipset,
    messages: Messages,
}

impl Board {
    /// Two disks.
    fn new() -> Board {
        let mut devices = Builder::new(0);
        for id in ["disk0", "disk1"] {
            devices.block(Block::new(disk(8), id));
        }
        let mut chipset = Chipset::new(&Options::default());
        chipset.attach(devices.build()).unwrap();
        Board { chipset, messages: Messages::new() }
    }

    fn config(slot: u8, register: u64) -> Gpa {
        Gpa(ECAM.start + (u64::from(Virtio::devfn(slot)) << 12) + register)
    }

    fn read(&mut self, gpa: Gpa, size: u8) -> u64 {
        self.chipset.mmio_read(gpa, size, NOW, &mut self.messages)
    }

    fn write(&mut self, gpa: Gpa, size: u8, value: u64) -> Effect {
        self.chipset.mmio_write(gpa, size, value, NOW, &mut self.messages)
    }

    fn set(&mut self, gpa: Gpa, size: u8, value: u64) {
        assert_eq!(self.write(gpa, size, value), Effect::None);
    }
}

#[test]
fn capabilities_lead_to_the_parts_of_the_bar() {
    let mut board = Board::new();
    assert_eq!(board.read(Board::config(1, 0), 4), 0x1042_1af4);
    assert_eq!(board.read(Board::config(1, 6), 2) & 0x10, 0x10);
    assert_eq!(board.read(Board::config(1, 8), 1), 1, "revision: no legacy interface");
    let mut at = board.read(Board::config(1, 0x34), 1);
    let mut found = vec![];
    while at != 0 {
        let head = board.read(Board::config(1, at), 4);
        let (offset, length) =
            (board.read(Board::config(1, at + 8), 4), board.read(Board::config(1, at + 12), 4));
        found.push((head as u8, (head >> 24) as u8, offset, length));
        at = head >> 8 & 0xff;
    }
    let parts = [(1, function::COMMON), (2, function::NOTIFY), (3, function::ISR), (4, function::CONFIG)];
    for ((kind, part), found) in parts.into_iter().zip(&found) {
        assert_eq!(*found, (9, kind, part.start, part.end - part.start));
    }
    assert_eq!((found[4].0, found[4].1), (9, 5));
    assert_eq!(found[5].0, 0x11);
    assert_eq!(found.len(), 6);
}

#[test]
fn bars_are_placed_at_power_on_and_move() {
    let mut board = Board::new();
    let first = Gpa(PCI_WINDOW_32.start);
    let second = first.wrapping_add(BAR_BYTES);
    // Number of queues, and no vector yet.
    assert_eq!(
        (board.read(first.wrapping_add(16), 4), board.read(second.wrapping_add(16), 4)),
        (0x1_ffff, 0x1_ffff)
    );
    assert_eq!(board.read(second.wrapping_add(BAR_BYTES), 4), 0xffff_ffff, "no device there any more");
    let moved = Gpa(0x12_3400_0000);
    board.set(Board::config(1, 0x14), 4, moved.0 >> 32);
    board.set(Board::config(1, 0x10), 4, moved.0 & 0xffff_ffff);
    assert_eq!(board.read(second.wrapping_add(16), 4), 0xffff_ffff);
    assert_eq!(board.read(moved.wrapping_add(16), 4), 0x1_ffff);
    board.set(Board::config(1, 4), 2, 0);
    assert_eq!(board.read(moved.wrapping_add(16), 4), 0xffff_ffff, "it does not decode");
    board.chipset.reset();
    assert_eq!(board.read(second.wrapping_add(16), 4), 0x1_ffff);
    // The end of the address space is no place for one.
    board.set(Board::config(1, 0x10), 8, u64::MAX);
    board.read(Gpa(u64::MAX - 3), 4);
    board.read(Gpa(0), 4);
}

#[test]
fn the_doorbell_is_an_effect() {
    let mut board = Board::new();
    let bar = PCI_WINDOW_32.start + BAR_BYTES;
    assert_eq!(board.write(Gpa(bar + NOTIFY.start), 2, 0), Effect::Notify { slot: 1, queue: 0 });
    assert_eq!(board.write(Gpa(bar + NOTIFY.start + 4), 4, 1), Effect::Notify { slot: 1, queue: 1 });
}

#[test]
fn the_window_in_configuration_space_reaches_the_bar() {
    let mut board = Board::new();
    let window = |board: &mut Board, offset: u64, length: u64| {
        board.set(Board::config(0, function::WINDOW_BAR.into()), 1, 0);
        board.set(Board::config(0, function::WINDOW_OFFSET.into()), 4, offset);
        board.set(Board::config(0, function::WINDOW_LENGTH.into()), 4, length);
    };
    let data = Board::config(0, function::WINDOW_DATA.into());
    window(&mut board, 18, 2);
    assert_eq!(board.read(data, 2), 1, "the number of queues");
    window(&mut board, driver::STATUS, 1);
    board.set(data, 1, 3);
    assert_eq!(board.read(Gpa(PCI_WINDOW_32.start + driver::STATUS), 1), 3);
    assert_eq!(board.read(data, 1), 3);
    window(&mut board, NOTIFY.start, 4);
    assert_eq!(board.write(data, 4, 0), Effect::Notify { slot: 0, queue: 0 });
    // Nowhere: what was last there stays.
    for (offset, length) in [(BAR_BYTES, 4), (18, 4), (0, 3), (0, 0), (u64::from(u32::MAX), 1)] {
        window(&mut board, offset, length);
        board.set(data, 4, 0x1234_5678);
        assert_eq!(board.read(data, 4), 0x1234_5678);
    }
}

#[test]
fn a_line_reaches_its_pin() {
    let mut board = Board::new();
    let gsi = pci_interrupt_gsi(1, 0);
    // The pin of the I/O APIC: vector 0x61, level-triggered.
    for (register, value) in [(0x10 + 2 * u64::from(gsi), 0x8061), (0x11 + 2 * u64::from(gsi), 0)] {
        board.set(Gpa(0xfec0_0000), 4, register);
        board.set(Gpa(0xfec0_0010), 4, value);
    }
    board.set(Board::config(0, 4), 2, 6);
    // A driver that goes on without agreement makes the device ask for a reset, by an interrupt.
    let status = Gpa(PCI_WINDOW_32.start + driver::STATUS);
    board.set(status, 1, 4);
    assert_eq!(board.messages.drain().map(|message| message.vector).collect::<Vec<_>>(), [0x61]);
    let isr = Gpa(PCI_WINDOW_32.start + function::ISR.start);
    assert_eq!(board.read(isr, 1), 2);
    board.chipset.eoi(0x61, &mut board.messages);
    assert!(board.messages.is_empty(), "the line has fallen");
}
