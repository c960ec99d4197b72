//! The bus: finds the device for a port or an address, and carries its interrupt lines to PICs and IOAPIC.
//!
//! The VM owns one [`Chipset`]. The exit dispatcher calls [`Chipset::io_read`] and its three siblings; the run loop
//! compares the time with [`Chipset::deadline`] before each entry and calls [`Chipset::tick`] when it has come, routes
//! the [`Messages`] to local APICs, and takes interrupts of the PICs by [`Chipset::intr_output`] and
//! [`Chipset::pic_acknowledge`]. After an access only the lines and the deadline of the device that was touched are
//! looked at again. Nothing here allocates, and the path of
//! a polling console (an LSR read, a THR write) does not even look a port up.

mod firmware;
mod lines;
mod mmio;
mod pio;
mod ports;
#[cfg(test)]
mod tests;
mod virtio;

use core::cell::Cell;

use super::Nanos;
use super::effect::Line;
use super::hpet::Hpet;
use super::i8042::I8042;
use super::ioapic::IoApic;
use super::layout::*;
use super::message::Messages;
use super::pci::Pci;
use super::pic::Pic;
use super::pit::Pit;
use super::pm::Pm;
use super::rtc::Rtc;
use super::testdev::TestDevice;
use super::uart::Uart;
use lines::{Controllers, Lines};
pub use mmio::MmioDevice;

/// The IOAPIC's ID, for the ACPI tables.
pub const IOAPIC_ID: u8 = 0;

/// What a machine is built with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Offer the test device.
    pub test_device: bool,
    /// What the clock reads at time 0: seconds since 1970, UTC.
    pub epoch_s: i64,
    /// Bytes of RAM below 4 GiB, for the clock's memory.
    pub low_bytes: u64,
    /// Bytes of RAM above 4 GiB.
    pub high_bytes: u64,
}

/// Accesses that no device answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unclaimed {
    /// Bytes at ports of the system board, 0 to 0xff (POST codes, DMA controllers).
    pub board: u64,
    /// Bytes at ISA cards' ports, 0x100 to 0x3ff (probing for disks, displays, serial ports).
    pub card: u64,
    /// Bytes at ports from 0x400 on.
    pub extended: u64,
    /// Accesses to memory-mapped addresses.
    pub mmio: u64,
}

/// Devices that want to be called at a time.
#[derive(Clone, Copy)]
enum Timed {
    Pit,
    Hpet,
    Rtc,
    Pm,
    Uart,
}

impl Timed {
    const ALL: [Timed; 5] = [Timed::Pit, Timed::Hpet, Timed::Rtc, Timed::Pm, Timed::Uart];
}

/// No deadline.
const NEVER: Nanos = Nanos(u64::MAX);

/// All devices of a VM but the local APICs.
#[derive(Clone, Debug)]
pub struct Chipset {
    uart: Uart,
    lines: Lines,
    /// The earliest of `deadlines`.
    deadline: Nanos,
    deadline_moved: Cell<bool>,
    deadlines: [Nanos; Timed::ALL.len()],
    pic: Pic,
    ioapic: IoApic,
    pit: Pit,
    hpet: Hpet,
    rtc: Rtc,
    pm: Pm,
    i8042: I8042,
    test: Option<TestDevice>,
    unclaimed: Unclaimed,
    pci: Pci,
    virtio: virtio::Slots,
}

impl Chipset {
    /// The devices at power-on, which is time 0.
    pub fn new(options: &Options) -> Chipset {
        Chipset {
            uart: Uart::new(),
            lines: Lines::default(),
            deadline: NEVER,
            deadline_moved: Cell::new(true),
            deadlines: [NEVER; Timed::ALL.len()],
            pic: Pic::new(),
            ioapic: IoApic::new(IOAPIC_ID),
            pit: Pit::new(),
            hpet: Hpet::new(),
            rtc: Rtc::new(options.epoch_s, options.low_bytes, options.high_bytes),
            pm: Pm::new(),
            i8042: I8042::new(),
            test: options.test_device.then(TestDevice::new),
            unclaimed: Unclaimed::default(),
            pci: Pci::new(),
            virtio: virtio::Slots::default(),
        }
    }

    /// The machine's reset: everything back to power-on but the clock, which has a battery.
    pub fn reset(&mut self) {
        self.uart.reset();
        self.lines = Lines::default();
        self.deadline = NEVER;
        self.deadline_moved.set(true);
        self.deadlines = [NEVER; Timed::ALL.len()];
        self.pic = Pic::new();
        self.ioapic = IoApic::new(IOAPIC_ID);
        self.pit.reset();
        self.hpet.reset();
        self.rtc.reset();
        self.pm.reset();
        self.i8042.reset();
        if let Some(test) = &mut self.test {
            test.reset();
        }
        self.pci.reset();
        self.reset_virtio();
    }

    /// Whether the deadline has moved since [`Chipset::deadline`] was last asked for, or the PICs want an interrupt
    /// taken: what the run loop must look at after an access.
    #[inline(always)]
    pub fn wants_service(&self) -> bool {
        self.deadline_moved.get() || self.pic.output()
    }

    /// When [`Chipset::tick`] wants to be called, at the latest.
    pub fn deadline(&self) -> Option<Nanos> {
        self.deadline_moved.set(false);
        (self.deadline != NEVER).then_some(self.deadline)
    }

    /// Time has passed: serves the devices whose deadline has come.
    #[inline]
    pub fn tick(&mut self, now: Nanos, messages: &mut Messages) {
        if self.deadline <= now {
            self.tick_due(now, messages);
        }
    }

    /// A local APIC has ended a level-triggered interrupt.
    pub fn eoi(&mut self, vector: u8, messages: &mut Messages) {
        self.ioapic.eoi(vector, messages);
    }

    /// The INTR output of the PICs.
    #[inline]
    pub fn intr_output(&self) -> bool {
        self.pic.output()
    }

    /// The processor acknowledges INTR: the vector.
    pub fn pic_acknowledge(&mut self) -> u8 {
        self.pic.acknowledge()
    }

    /// A byte of console input; `false` if the port has no room for it now.
    #[must_use]
    pub fn console_input(&mut self, byte: u8, now: Nanos, messages: &mut Messages) -> bool {
        let accepted = self.uart.receive(byte, now);
        self.uart_changed(now, messages);
        accepted
    }

    /// Bytes of console input that there is room for.
    pub fn console_room(&self) -> usize {
        self.uart.room()
    }

    /// Whether the console can take output. While it cannot, the serial port holds up to 16 bytes back and the guest
    /// sees a busy transmitter; afterwards [`Chipset::console_backlog`] gives them out.
    pub fn set_console_ready(&mut self, ready: bool) {
        self.uart.set_host_ready(ready);
    }

    /// What was last said to [`Chipset::set_console_ready`].
    pub fn console_is_ready(&self) -> bool {
        self.uart.host_is_ready()
    }

    /// The next byte that was held back, once the console is ready again.
    pub fn console_backlog(&mut self, now: Nanos, messages: &mut Messages) -> Option<u8> {
        let byte = self.uart.transmitted();
        self.uart_changed(now, messages);
        byte
    }

    /// The user presses the power button.
    pub fn press_power_button(&mut self, now: Nanos, messages: &mut Messages) {
        self.pm.press_power_button();
        self.changed(Timed::Pm, now, messages);
    }

    /// Accesses that no device answered so far.
    pub fn unclaimed(&self) -> Unclaimed {
        self.unclaimed
    }

    #[cold]
    fn tick_due(&mut self, now: Nanos, messages: &mut Messages) {
        for device in Timed::ALL {
            if self.deadlines[device as usize] <= now {
                self.changed(device, now, messages);
            }
        }
    }

    /// A timed device was touched or its time has come: carries its lines and its deadline on.
    fn changed(&mut self, device: Timed, now: Nanos, messages: &mut Messages) {
        let (irq, line, deadline) = match device {
            Timed::Pit => (PIT_IRQ, self.pit.line(now), self.pit.deadline()),
            Timed::Rtc => (RTC_IRQ, self.rtc.line(now), self.rtc.deadline()),
            Timed::Pm => (SCI_IRQ, self.pm.line(now), self.pm.deadline()),
            Timed::Uart => return self.uart_changed(now, messages),
            Timed::Hpet => return self.hpet_changed(now, messages),
        };
        self.set_isa(irq, line, messages);
        self.set_deadline(device, deadline);
    }

    #[inline]
    fn uart_changed(&mut self, now: Nanos, messages: &mut Messages) {
        let line = self.uart.line(now);
        self.set_isa(UART_IRQ, line, messages);
        self.set_deadline(Timed::Uart, self.uart.deadline());
    }

    fn hpet_changed(&mut self, now: Nanos, messages: &mut Messages) {
        let outputs = self.hpet.outputs(now);
        let legacy = self.hpet.is_legacy();
        let to = Controllers { pic: &mut self.pic, ioapic: &mut self.ioapic, messages };
        self.lines.set_hpet(outputs.levels, outputs.pulses, legacy, to);
        self.set_deadline(Timed::Hpet, self.hpet.deadline());
    }

    fn keyboard_changed(&mut self, messages: &mut Messages) {
        let line = |level| Line { level, pulsed: false };
        self.set_isa(KEYBOARD_IRQ, line(self.i8042.keyboard_line()), messages);
        self.set_isa(MOUSE_IRQ, line(self.i8042.mouse_line()), messages);
    }

    #[inline]
    fn set_isa(&mut self, irq: u8, line: Line, messages: &mut Messages) {
        let to = Controllers { pic: &mut self.pic, ioapic: &mut self.ioapic, messages };
        self.lines.set_isa(irq, line, to);
    }

    #[inline]
    fn set_deadline(&mut self, device: Timed, deadline: Option<Nanos>) {
        let deadline = deadline.unwrap_or(NEVER);
        if core::mem::replace(&mut self.deadlines[device as usize], deadline) != deadline {
            let first = self.deadlines.iter().copied().fold(NEVER, Nanos::min);
            self.deadline_moved.set(self.deadline_moved.get() || first != self.deadline);
            self.deadline = first;
        }
    }
}

/// Drives a whole machine with arbitrary bytes: it must not panic, and after a tick no deadline may lie in the past.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    use super::effect::Effect;
    let mut input = super::fuzz::Input::new(data);
    let test_device = input.byte().unwrap_or(0) & 1 != 0;
    let mut chipset = Chipset::new(&Options { test_device, ..Options::default() });
    let mut messages = Messages::new();
    let mut now = Nanos(0);
    while let Some(op) = input.byte() {
        now = input.later(now);
        let size = [1, 2, 4, 1][usize::from(op & 3)];
        let port = input.u32() as u16 & [0xff, 0x7ff, 0xfff, 0xffff][usize::from(op >> 2 & 3)];
        match op >> 4 {
            0..4 => {
                let value = chipset.io_read(port, size, now, &mut messages);
                assert_eq!(value & !super::lanes::size_mask(size), 0);
            }
            4..10 => match chipset.io_write(port, size, input.u32(), now, &mut messages) {
                Effect::Reset => chipset.reset(),
                Effect::TestExit(_) | Effect::FlushPage(_) | Effect::UnmapPage(_) => assert!(test_device),
                Effect::Notify { .. } => unreachable!("there are no virtio devices"),
                Effect::None | Effect::ConsoleOutput(_) | Effect::PowerOff => {}
            },
            kind @ 10..14 => {
                let base = [IOAPIC, HPET, TEST_MEMORY, ECAM][usize::from(kind & 3)].start;
                let gpa = crate::arch::addr::Gpa(base + u64::from(port));
                if op & 8 == 0 {
                    chipset.mmio_read(gpa, size * 2, now, &mut messages);
                } else {
                    let effect = chipset.mmio_write(gpa, size * 2, input.u64(), now, &mut messages);
                    assert_eq!(effect, Effect::None);
                }
            }
            14 => {
                let room = chipset.console_room() > 0;
                assert_eq!(chipset.console_input(op, now, &mut messages), room);
                chipset.eoi(port as u8, &mut messages);
            }
            _ => {
                now = chipset.deadline().unwrap_or(now).max(now);
                if chipset.intr_output() {
                    chipset.pic_acknowledge();
                }
            }
        }
        chipset.tick(now, &mut messages);
        assert!(chipset.deadline().is_none_or(|deadline| deadline > now));
        messages.drain().for_each(drop);
    }
}
