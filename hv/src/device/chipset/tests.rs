use super::super::effect::Effect;
use super::super::message::{DeliveryMode, InterruptMessage};
use super::super::pm::PM_CLOCK;
use super::*;
use crate::arch::addr::Gpa;

const NOW: Nanos = Nanos(0);

struct Machine {
    chipset: Chipset,
    messages: Messages,
    now: Nanos,
}

impl Machine {
    fn new() -> Machine {
        Machine::with(Options::default())
    }

    fn with(options: Options) -> Machine {
        Machine { chipset: Chipset::new(&options), messages: Messages::new(), now: NOW }
    }

    fn input(&mut self, port: u16, size: u8) -> u32 {
        self.chipset.io_read(port, size, self.now, &mut self.messages)
    }

    fn output(&mut self, port: u16, size: u8, value: u32) -> Effect {
        self.chipset.io_write(port, size, value, self.now, &mut self.messages)
    }

    fn set(&mut self, port: u16, size: u8, value: u32) {
        assert_eq!(self.output(port, size, value), Effect::None);
    }

    fn set_memory(&mut self, gpa: u64, size: u8, value: u64) {
        let effect = self.chipset.mmio_write(Gpa(gpa), size, value, self.now, &mut self.messages);
        assert_eq!(effect, Effect::None);
    }

    fn tick(&mut self) {
        self.chipset.tick(self.now, &mut self.messages);
    }

    /// Sleeps until the chipset's deadline, which there must be.
    fn sleep(&mut self) {
        self.now = self.chipset.deadline().expect("a deadline");
        self.tick();
    }

    fn sent(&mut self) -> Vec<InterruptMessage> {
        self.messages.drain().collect()
    }

    fn vectors(&mut self) -> Vec<u8> {
        self.sent().iter().map(|message| message.vector).collect()
    }

    /// As firmware does: vectors from 0x20, everything unmasked.
    fn initialize_pics(&mut self) {
        for (port, value) in [
            (0x20, 0x11),
            (0x21, 0x20),
            (0x21, 4),
            (0x21, 1),
            (0xa0, 0x11),
            (0xa1, 0x28),
            (0xa1, 2),
            (0xa1, 1),
        ] {
            self.set(port, 1, value);
        }
        self.set(0x21, 1, 0);
        self.set(0xa1, 1, 0);
    }

    /// Unmasks an IOAPIC pin with vector 0x30 + pin.
    fn unmask(&mut self, pin: u64, flags: u64) {
        self.set_memory(IOAPIC.start, 4, 0x11 + 2 * pin);
        self.set_memory(IOAPIC.start + 0x10, 4, 0);
        self.set_memory(IOAPIC.start, 4, 0x10 + 2 * pin);
        self.set_memory(IOAPIC.start + 0x10, 4, (0x30 + pin) | flags);
    }
}

const LEVEL: u64 = 1 << 15;

#[test]
fn console_output() {
    let mut machine = Machine::new();
    assert_eq!(machine.input(UART + 5, 1), 0x60);
    assert_eq!(machine.output(UART, 1, 0x41), Effect::ConsoleOutput(b'A'));
    assert_eq!(machine.chipset.deadline(), None);
    assert!(machine.sent().is_empty());
}

#[test]
fn console_input_interrupts_through_pic_and_ioapic() {
    let mut machine = Machine::new();
    machine.initialize_pics();
    machine.unmask(UART_IRQ.into(), 0);
    machine.set(UART + 4, 1, 0x0b);
    machine.set(UART + 1, 1, 1);
    assert!(!machine.chipset.intr_output());
    assert!(machine.chipset.console_input(b'x', NOW, &mut machine.messages));
    assert!(machine.chipset.intr_output());
    assert_eq!(machine.vectors(), [0x34]);
    assert!(!machine.chipset.console_input(b'y', NOW, &mut machine.messages), "no FIFO yet");
    assert_eq!(machine.chipset.pic_acknowledge(), 0x24);
    machine.set(0x20, 1, 0x20);
    assert_eq!(machine.input(UART, 1), u32::from(b'x'));
    assert!(machine.chipset.console_input(b'y', NOW, &mut machine.messages));
    assert_eq!(machine.vectors(), [0x34], "the read made room for another edge");
}

#[test]
fn character_timeout_is_a_deadline() {
    let mut machine = Machine::new();
    machine.unmask(UART_IRQ.into(), 0);
    machine.set(UART + 2, 1, 0xc1);
    machine.set(UART + 4, 1, 0x08);
    machine.set(UART + 1, 1, 1);
    assert!(machine.chipset.console_input(b'x', NOW, &mut machine.messages));
    assert!(machine.sent().is_empty());
    machine.sleep();
    assert_eq!(machine.vectors(), [0x34]);
    assert_eq!(machine.input(UART + 2, 1), 0xcc);
    assert_eq!(machine.chipset.deadline(), None);
}

#[test]
fn output_held_back_by_the_host() {
    let mut machine = Machine::new();
    machine.chipset.set_console_ready(false);
    machine.set(UART, 1, 0x41);
    assert_eq!(machine.input(UART + 5, 1), 0);
    machine.chipset.set_console_ready(true);
    assert_eq!(machine.chipset.console_backlog(NOW, &mut machine.messages), Some(b'A'));
    assert_eq!(machine.chipset.console_backlog(NOW, &mut machine.messages), None);
    assert_eq!(machine.input(UART + 5, 1), 0x60);
}

#[test]
fn pit_ticks_arrive_at_irq_0_and_gsi_2() {
    let mut machine = Machine::new();
    machine.initialize_pics();
    machine.unmask(PIT_GSI.into(), 0);
    machine.set(PIT + 3, 1, 0x34);
    machine.set(PIT, 1, 0xff);
    machine.set(PIT, 1, 0xff);
    assert!(machine.chipset.intr_output(), "setting the mode raises OUT");
    assert_eq!(machine.chipset.pic_acknowledge(), 0x20);
    machine.set(0x20, 1, 0x20);
    machine.sent();
    for _ in 0..100 {
        machine.sleep();
        assert_eq!(machine.vectors(), [0x32]);
        assert!(machine.chipset.intr_output());
        assert_eq!(machine.chipset.pic_acknowledge(), 0x20);
        machine.set(0x20, 1, 0x20);
        assert!(!machine.chipset.intr_output());
    }
}

#[test]
fn hpet_replaces_pit_and_rtc() {
    let mut machine = Machine::new();
    for pin in [2, 8] {
        machine.unmask(pin, 0);
    }
    machine.set(PIT + 3, 1, 0x34);
    machine.set(PIT, 1, 0);
    machine.set(PIT, 1, 0x10);
    machine.sleep();
    assert!(!machine.sent().is_empty());
    machine.set_memory(HPET.start + 0x10, 4, 3);
    let enabled = machine.now.0 / 10 * 10;
    machine.sent();
    for _ in 0..10 {
        machine.sleep();
    }
    assert!(machine.sent().is_empty(), "the PIT is cut off");
    machine.set_memory(HPET.start + 0x100, 8, 1 << 2 | 1 << 3 | 1 << 6);
    machine.set_memory(HPET.start + 0x108, 8, 5_000_000);
    while machine.messages.is_empty() {
        machine.sleep();
    }
    assert_eq!(machine.now.0, enabled + 50_000_000);
    assert_eq!(machine.vectors(), [0x32]);
    machine.set_memory(HPET.start + 0x10, 4, 0);
    assert_eq!(machine.vectors(), [0x32], "the PIT's high output is an edge when it comes back");
}

#[test]
fn hpet_level_interrupt_on_its_own_pin() {
    let mut machine = Machine::new();
    machine.unmask(21, LEVEL);
    machine.set_memory(HPET.start + 0x10, 4, 1);
    machine.set_memory(HPET.start + 0x140, 8, 1 << 1 | 1 << 2 | 21 << 9);
    machine.set_memory(HPET.start + 0x148, 8, 1000);
    machine.sleep();
    assert_eq!(machine.now, Nanos(10_000));
    assert_eq!(machine.vectors(), [0x45]);
    machine.chipset.eoi(0x45, &mut machine.messages);
    assert_eq!(machine.vectors(), [0x45], "still asserted");
    machine.set_memory(HPET.start + 0x20, 4, 4);
    machine.chipset.eoi(0x45, &mut machine.messages);
    assert!(machine.sent().is_empty());
    assert_eq!(machine.chipset.mmio_read(Gpa(HPET.start + 0xf0), 8, machine.now, &mut Messages::new()), 1000);
}

#[test]
fn rtc_interrupt_until_register_c_is_read() {
    let mut machine = Machine::new();
    machine.unmask(RTC_IRQ.into(), 0);
    machine.set(RTC, 2, 0x120b); // index and data in one word access
    for second in 1..=3 {
        machine.sleep();
        assert_eq!(machine.now, Nanos(second * 1_000_000_000));
        assert_eq!(machine.vectors(), [0x38]);
        assert_eq!(machine.chipset.deadline(), None);
        machine.set(RTC, 1, 0x0c);
        assert_eq!(machine.input(RTC + 1, 1) & 0x90, 0x90);
    }
}

#[test]
fn sci_is_a_level() {
    let mut machine = Machine::new();
    machine.unmask(SCI_IRQ.into(), LEVEL);
    machine.set(PM1A_EVENT + 2, 2, 1 << 8);
    machine.chipset.press_power_button(NOW, &mut machine.messages);
    let sent = machine.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].vector, sent[0].mode, sent[0].level), (0x39, DeliveryMode::Fixed, true));
    machine.set(PM1A_EVENT, 2, 1 << 8);
    machine.chipset.eoi(0x39, &mut machine.messages);
    assert!(machine.sent().is_empty());
    machine.now = PM_CLOCK.when(12345).unwrap();
    assert_eq!(machine.input(PM_TIMER, 4), 12345);
}

#[test]
fn ends_of_a_run() {
    let mut machine = Machine::new();
    assert_eq!(machine.output(RESET_CONTROL, 1, RESET_VALUE.into()), Effect::Reset);
    assert_eq!(machine.output(I8042_COMMAND, 1, 0xfe), Effect::Reset);
    assert_eq!(machine.output(SYSTEM_CONTROL_A, 1, 3), Effect::Reset);
    let s5 = u32::from(SLEEP_TYPE_S5) << 10 | 1 << 13;
    assert_eq!(machine.output(PM1A_CONTROL, 2, s5), Effect::PowerOff);
    machine.set(TEST_EXIT, 4, 0);
    assert_eq!(machine.input(TEST_LATCH, 4), 0xffff_ffff, "no test device unless asked for");
    assert_eq!(machine.chipset.unclaimed().board, 8);
}

#[test]
fn address_register_and_reset_control_share_ports() {
    let mut machine = Machine::new();
    machine.set(PCI_ADDRESS, 4, 0x8000_0000);
    machine.set(PCI_ADDRESS, 1, 0x55);
    machine.set(PCI_ADDRESS, 2, 0x0655);
    machine.set(PCI_ADDRESS + 3, 1, 1);
    assert_eq!(machine.input(PCI_ADDRESS, 4), 0x8000_0000);
    machine.set(RESET_CONTROL, 1, 2);
    assert_eq!(machine.input(RESET_CONTROL, 1), 2);
    assert_eq!(machine.input(PCI_ADDRESS, 1), 0xff);
    assert_eq!(machine.input(PCI_DATA, 4), 0x0d57_8086);
    assert_eq!(machine.input(PCI_DATA + 1, 2), 0x5780);
    assert_eq!(machine.input(PCI_DATA + 2, 4), 0xffff_0d57);
    assert_eq!(machine.chipset.mmio_read(Gpa(ECAM.start), 4, NOW, &mut Messages::new()), 0x0d57_8086);
    assert_eq!(
        machine.chipset.mmio_read(Gpa(ECAM.start + 0x8000), 4, NOW, &mut Messages::new()),
        0xffff_ffff
    );
}

#[test]
fn test_device() {
    let mut machine = Machine::with(Options { test_device: true, ..Options::default() });
    machine.initialize_pics();
    machine.unmask(14, LEVEL);
    machine.set(TEST_LATCH, 4, 0x1234_5678);
    assert_eq!(machine.input(TEST_LATCH + 1, 2), 0x3456);
    assert_eq!(machine.output(TEST_EXIT, 2, 0x1_0007), Effect::TestExit(7));
    assert_eq!(machine.output(TEST_FLUSH, 4, 0x1234), Effect::FlushPage(Gpa(0x1000)));
    assert_eq!(machine.output(TEST_UNMAP, 4, 0x1234), Effect::UnmapPage(Gpa(0x1000)));
    machine.set_memory(TEST_MEMORY.start + 0xfffc, 4, 0x4433_2211);
    assert_eq!(machine.chipset.mmio_read(Gpa(TEST_MEMORY.end - 3), 2, NOW, &mut Messages::new()), 0x3322);
    machine.set_memory(TEST_MEMORY.end, 4, 0);
    assert_eq!(machine.chipset.unclaimed().mmio, 1);
    machine.set(TEST_IRQ + 14, 1, 1);
    assert_eq!(machine.vectors(), [0x3e]);
    assert_eq!(machine.chipset.pic_acknowledge(), 0x2e);
    machine.set(TEST_IRQ + 14, 1, 0);
    machine.chipset.eoi(0x3e, &mut machine.messages);
    assert!(machine.sent().is_empty());
    assert!(!machine.chipset.intr_output());
}

#[test]
fn wide_accesses_to_byte_devices_are_split() {
    let mut machine = Machine::new();
    machine.set(UART + 3, 1, 0x80);
    machine.set(UART, 2, 0x1234);
    assert_eq!(machine.input(UART, 2), 0x1234);
    assert_eq!(machine.input(UART, 4), 0x8001_1234);
    machine.set(UART + 3, 1, 0);
    assert_eq!(machine.output(UART, 2, 0x0041), Effect::ConsoleOutput(0x41));
    assert_eq!(machine.input(0x80, 4), 0xffff_ffff);
    assert_eq!(
        machine.input(0x5e, 4) >> 24,
        machine.input(SYSTEM_CONTROL_B, 1),
        "an unclaimed port, then a device"
    );
    machine.set(0x80, 1, 0);
    machine.set(0x1f0, 2, 0);
    assert_eq!(machine.input(0xffff, 2), 0xffff);
    let unclaimed = Unclaimed { board: 4 + 2 + 1 + 1, card: 2, extended: 1, mmio: 0 };
    assert_eq!(machine.chipset.unclaimed(), unclaimed);
}

#[test]
fn memory_windows() {
    let mut machine = Machine::new();
    let lookup = |chipset: &Chipset, gpa| chipset.mmio_lookup(Gpa(gpa));
    assert_eq!(lookup(&machine.chipset, 0xfec0_0010), Some((MmioDevice::IoApic, 0x10)));
    assert_eq!(lookup(&machine.chipset, 0xfed0_00f0), Some((MmioDevice::Hpet, 0xf0)));
    assert_eq!(lookup(&machine.chipset, 0xe123_4567), Some((MmioDevice::Ecam, 0x123_4567)));
    assert_eq!(lookup(&machine.chipset, 0xfee0_0000), None);
    assert_eq!(lookup(&machine.chipset, 0xf000_0000), None);
    assert_eq!(lookup(&machine.chipset, TEST_MEMORY.start), None, "there is no test device");
    assert_eq!(machine.chipset.mmio_read(Gpa(0xfed0_0400), 2, NOW, &mut Messages::new()), 0xffff);
    machine.set_memory(0xf000_0000, 8, 0);
    assert_eq!(machine.chipset.unclaimed().mmio, 2);
    machine.set_memory(IOAPIC.start, 4, 1);
    assert_eq!(machine.chipset.mmio_read(Gpa(IOAPIC.start), 1, NOW, &mut Messages::new()), 1);
    assert_eq!(machine.chipset.mmio_read(Gpa(IOAPIC.start + 0x12), 1, NOW, &mut Messages::new()), 0x17);
}

#[test]
fn reset_restores_all_but_the_clock() {
    let mut machine = Machine::with(Options { epoch_s: 1_709_164_798, ..Options::default() });
    machine.initialize_pics();
    machine.set(PIT + 3, 1, 0x34);
    machine.set(PIT, 1, 0);
    machine.set(PIT, 1, 4);
    machine.set(UART + 7, 1, 0x5a);
    machine.set(RTC, 2, 0xa57f);
    machine.now = Nanos(1_000_000_000);
    machine.chipset.reset();
    assert_eq!(machine.chipset.deadline(), None);
    assert!(!machine.chipset.intr_output());
    assert_eq!(machine.input(UART + 7, 1), 0);
    machine.set(RTC, 1, 0x7f);
    assert_eq!(machine.input(RTC + 1, 1), 0xa5);
    machine.set(RTC, 1, 0);
    assert_eq!(machine.input(RTC + 1, 1), 0x59);
}

#[test]
fn survives_arbitrary_accesses() {
    crate::device::fuzz::run(3000, 600, fuzz_one);
}
