use super::*;
use crate::device::fuzz;

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
    assert_eq!(b.line(4, true), []);
    assert_eq!(b.eoi(0x31), []);
    assert_eq!(b.line(4, false), []);
    assert_eq!(b.line(4, true), [0x31]);
}

#[test]
fn an_edge_on_a_masked_pin_is_lost() {
    let mut b = Bench::new();
    b.entry(4, 0x31 | MASKED);
    assert_eq!(b.line(4, true), []);
    assert_eq!(b.entry(4, 0x31), []);
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
    assert_eq!(b.line(9, true), [], "one message is still under way");
    assert_eq!(b.eoi(0x48), []);
    assert_eq!(b.eoi(0x49), [0x49]);
    b.line(9, false);
    assert_eq!(b.eoi(0x49), []);
    assert_eq!(b.read(0x22), 0x49 | LEVEL);
}

#[test]
fn a_masked_level_is_sent_when_unmasked() {
    let mut b = Bench::new();
    b.entry(9, 0x49 | LEVEL | MASKED);
    assert_eq!(b.line(9, true), []);
    assert_eq!(b.entry(9, 0x49 | LEVEL), [0x49]);
    // Masked while under way: the EOI clears remote IRR, but sends nothing until unmasked.
    assert_eq!(b.entry(9, 0x49 | LEVEL | MASKED), []);
    assert_eq!(b.eoi(0x49), []);
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
        assert_eq!(b.line(3, true), []);
    }
}

#[test]
fn pins_that_do_not_exist_are_ignored() {
    let mut b = Bench::new();
    for pin in [24, 31, 32, 255] {
        assert_eq!(b.line(pin, true), []);
    }
}

#[test]
fn survives_random_operations() {
    fuzz::run(3000, 400, fuzz_one);
}
