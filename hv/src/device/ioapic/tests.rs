use proptest::prelude::*;

use super::*;
use crate::device::lapic::{Lapic, LapicEffect, Signal};
use crate::device::{Tsc, fuzz};

const LEVEL: u32 = 1 << 15;
const MASKED: u32 = 1 << 16;
const REMOTE_IRR: u32 = 1 << 14;

struct Bench {
    ioapic: IoApic,
    messages: Messages,
}

impl Bench {
    fn new() -> Bench {
        Bench { ioapic: IoApic::new(0), messages: Messages::new() }
    }

    fn register(&mut self, register: u8, value: u32) -> Vec<u8> {
        self.ioapic.write(0x00, register.into(), &mut self.messages);
        self.ioapic.write(0x10, value, &mut self.messages);
        self.vectors()
    }

    fn read(&mut self, register: u8) -> u32 {
        self.ioapic.write(0x00, register.into(), &mut self.messages);
        self.ioapic.read(0x10)
    }

    fn entry(&mut self, pin: u8, low: u32) -> Vec<u8> {
        self.register(0x10 + 2 * pin, low)
    }

    fn line(&mut self, pin: u8, asserted: bool) -> Vec<u8> {
        self.ioapic.set_line(pin, asserted, &mut self.messages);
        self.vectors()
    }

    fn eoi(&mut self, vector: u8) -> Vec<u8> {
        self.ioapic.eoi(vector, &mut self.messages);
        self.vectors()
    }

    fn vectors(&mut self) -> Vec<u8> {
        self.messages.drain().map(|m| m.vector).collect()
    }
}

#[test]
fn registers_read_as_the_data_sheet_says() {
    let mut b = Bench::new();
    assert_eq!(b.read(1), 0x0017_0020);
    b.register(0, 0xffff_ffff);
    assert_eq!((b.read(0), b.read(2)), (0x0f00_0000, 0x0f00_0000));
    for pin in 0..24 {
        assert_eq!((b.read(0x10 + 2 * pin), b.read(0x11 + 2 * pin)), (MASKED, 0));
    }
    // Delivery status and remote IRR are read-only, 31:17 and 55:32 do not exist.
    b.entry(5, 0xffff_ffff);
    b.register(0x1b, 0xffff_ffff);
    assert_eq!((b.read(0x1a), b.read(0x1b)), (0x0001_afff, 0xff00_0000));
    for absent in [0x03, 0x0f, 0x40, 0xff] {
        b.register(absent, 0xffff_ffff);
        assert_eq!(b.read(absent), 0);
    }
    assert_eq!((b.ioapic.read(0), b.ioapic.read(0x40), b.ioapic.read(0x14)), (0xff, 0, 0));
}

#[test]
fn an_edge_sends_one_message() {
    let mut b = Bench::new();
    b.entry(4, 0x31);
    assert_eq!(b.line(4, true), [0x31]);
    assert_eq!(b.line(4, true), [0u8; 0]);
    assert_eq!(b.eoi(0x31), [0u8; 0]);
    assert_eq!(b.line(4, false), [0u8; 0]);
    assert_eq!(b.line(4, true), [0x31]);
}

#[test]
fn an_edge_on_a_masked_pin_is_lost() {
    let mut b = Bench::new();
    b.entry(4, 0x31 | MASKED);
    assert_eq!(b.line(4, true), [0u8; 0]);
    assert_eq!(b.entry(4, 0x31), [0u8; 0]);
    b.line(4, false);
    assert_eq!(b.line(4, true), [0x31]);
}

#[test]
fn a_level_is_sent_again_after_each_eoi_while_it_lasts() {
    let mut b = Bench::new();
    b.entry(9, 0x49 | LEVEL);
    assert_eq!(b.line(9, true), [0x49]);
    assert_eq!(b.read(0x22), 0x49 | LEVEL | REMOTE_IRR);
    b.line(9, false);
    assert_eq!(b.line(9, true), [0u8; 0], "one message is still under way");
    assert_eq!(b.eoi(0x48), [0u8; 0]);
    assert_eq!(b.eoi(0x49), [0x49]);
    b.line(9, false);
    assert_eq!(b.eoi(0x49), [0u8; 0]);
    assert_eq!(b.read(0x22), 0x49 | LEVEL);
}

#[test]
fn a_masked_level_is_sent_when_unmasked() {
    let mut b = Bench::new();
    b.entry(9, 0x49 | LEVEL | MASKED);
    assert_eq!(b.line(9, true), [0u8; 0]);
    assert_eq!(b.entry(9, 0x49 | LEVEL), [0x49]);
    // Masked while under way: the EOI clears remote IRR, but sends nothing until unmasked.
    assert_eq!(b.entry(9, 0x49 | LEVEL | MASKED), [0u8; 0]);
    assert_eq!(b.eoi(0x49), [0u8; 0]);
    assert_eq!(b.entry(9, 0x49 | LEVEL), [0x49]);
}

#[test]
fn the_eoi_register_ends_every_pin_with_that_vector() {
    let mut b = Bench::new();
    for pin in 0..24 {
        b.entry(pin, 0x55 | LEVEL);
        assert_eq!(b.line(pin, true), [0x55]);
    }
    b.ioapic.write(0x40, 0x55, &mut b.messages);
    assert_eq!(b.vectors(), [0x55; 24]);
}

#[test]
fn switching_to_edge_and_back_clears_a_stuck_remote_irr() {
    let mut b = Bench::new();
    b.entry(9, 0x49 | LEVEL);
    b.line(9, true);
    b.entry(9, 0x49 | MASKED);
    assert_eq!(b.entry(9, 0x49 | LEVEL), [0x49]);
}

#[test]
fn a_message_that_was_not_taken_is_not_under_way() {
    let mut b = Bench::new();
    b.entry(9, 0x49 | LEVEL);
    while b.messages.push(InterruptMessage::from_msi(0xfee0_0000, 0x20).unwrap()) {}
    b.ioapic.set_line(9, true, &mut b.messages);
    assert!(!b.vectors().contains(&0x49));
    assert_eq!(b.entry(9, 0x49 | LEVEL), [0x49]);
}

#[test]
fn entries_become_messages() {
    let mut b = Bench::new();
    b.register(0x13, 0xff00_0000);
    b.entry(1, 0x4033 | 1 << 11 | 1 << 8 | LEVEL);
    b.ioapic.set_line(1, true, &mut b.messages);
    let message = InterruptMessage {
        vector: 0x33,
        mode: DeliveryMode::LowestPriority,
        dest: u32::MAX,
        logical: true,
        level: true,
        shorthand: Shorthand::None,
    };
    assert_eq!(b.messages.drain().collect::<Vec<_>>(), [message]);
    // NMI has no EOI, so the trigger mode does not matter.
    b.register(0x15, 0x0300_0000);
    b.entry(2, 4 << 8 | LEVEL);
    b.ioapic.set_line(2, true, &mut b.messages);
    let nmi = b.messages.drain().next().unwrap();
    assert_eq!((nmi.mode, nmi.dest, nmi.level), (DeliveryMode::Nmi, 3, false));
    for reserved in [3, 6] {
        b.entry(3, reserved << 8 | 0x40);
        b.line(3, false);
        assert_eq!(b.line(3, true), [0u8; 0]);
    }
}

#[test]
fn pins_that_do_not_exist_are_ignored() {
    let mut b = Bench::new();
    for pin in [24, 31, 32, 255] {
        assert_eq!(b.line(pin, true), [0u8; 0]);
    }
}

/// Three level-triggered pins, two of which share a vector, and the local APIC that serves them.
struct Machine {
    ioapic: IoApic,
    lapic: Lapic,
    messages: Messages,
}

impl Machine {
    const PINS: [(u8, u32); 3] = [(5, 0x55), (6, 0x66), (7, 0x66)];

    fn new() -> Machine {
        let mut machine =
            Machine { ioapic: IoApic::new(0), lapic: Lapic::new(0, true), messages: Messages::new() };
        machine.lapic.set_virtual_wire();
        for (pin, vector) in Machine::PINS {
            machine.ioapic.write(0x00, 0x10 + 2 * u32::from(pin), &mut machine.messages);
            machine.ioapic.write(0x10, vector | LEVEL, &mut machine.messages);
        }
        machine
    }

    fn route(&mut self) {
        for message in self.messages.drain() {
            assert!(self.lapic.address().matches(&message, false));
            assert_eq!(self.lapic.deliver(&message), Signal::Interrupt);
        }
    }

    fn set_line(&mut self, pin: u8, asserted: bool) {
        self.ioapic.set_line(pin, asserted, &mut self.messages);
        self.route();
    }

    fn eoi(&mut self) {
        if let LapicEffect::EoiBroadcast(vector) = self.lapic.eoi() {
            self.ioapic.eoi(vector, &mut self.messages);
            self.route();
        }
    }
}

proptest! {
    /// Whatever the order of lines, acknowledges and EOIs: an asserted line is always on its way to the
    /// processor, and a released one is forgotten after the EOI.
    #[test]
    fn a_level_is_neither_lost_nor_invented(ops in prop::collection::vec(0u8..10, 0..100)) {
        let mut m = Machine::new();
        let mut high = [false; 3];
        let mut serving = Vec::new();
        for op in ops {
            match op {
                0..6 => {
                    let index = usize::from(op / 2);
                    high[index] = op % 2 == 0;
                    m.set_line(Machine::PINS[index].0, high[index]);
                }
                6..8 => if m.lapic.pending().is_some() {
                    serving.push(u32::from(m.lapic.acknowledge()));
                }
                _ => {
                    serving.pop();
                    m.eoi();
                }
            }
            for ((pin, vector), high) in Machine::PINS.into_iter().zip(high) {
                let requested = m.lapic.read(0x200 + 16 * (vector / 32), Tsc(0)) & 1 << (vector % 32) != 0;
                let under_way = m.ioapic.table[usize::from(pin)].has(Redirection::REMOTE_IRR);
                prop_assert!(!high || under_way);
                prop_assert!(!under_way || requested || serving.contains(&vector));
            }
        }
        for (pin, _) in Machine::PINS {
            m.set_line(pin, false);
        }
        for _ in 0..4 {
            while m.lapic.pending().is_some() {
                m.lapic.acknowledge();
            }
            m.eoi();
        }
        prop_assert_eq!((m.lapic.pending(), m.lapic.ppr()), (None, 0));
        prop_assert!(!m.ioapic.table.iter().any(|entry| entry.has(Redirection::REMOTE_IRR)));
    }
}

#[test]
fn survives_random_operations() {
    fuzz::run(3000, 400, fuzz_one);
}
