//! ACPI fixed hardware: PM1a event and control block, PM timer, general-purpose events; and the reset control
//! register (port 0xcf9).
//!
//! Owned by [`super::chipset::Chipset`]; the ports are in [`super::layout`]. The machine has no legacy mode, so
//! SCI_EN always reads 1. The only sleep state is S5. Reference: ACPI specification 6.5, 4.8.

#[cfg(test)]
mod tests;

use super::clock::Clock;
use super::effect::{Effect, Line};
use super::layout::{GPE0, PM_BASE, PM_TIMER, PM1A_CONTROL, SLEEP_TYPE_S5};
use super::{Nanos, lanes};

/// The PM timer's clock; the timer is 32 bits wide.
pub const PM_CLOCK: Clock = Clock::new(3_579_545);
/// The timer's most significant bit; each of its changes is an event.
const TIMER_MSB: u32 = 31;

/// PM1 status and enable bits: the timer's MSB changed; the power button was pressed.
const TIMER: u16 = 1 << 0;
const GLOBAL_LOCK: u16 = 1 << 5;
const POWER_BUTTON: u16 = 1 << 8;
/// The RTC's wake event never comes, but guests enable it and check that the bit sticks.
const RTC: u16 = 1 << 10;
const ENABLES: u16 = TIMER | GLOBAL_LOCK | POWER_BUTTON | RTC;
/// PM1 control bits.
const SCI_ENABLE: u16 = 1 << 0;
const SLEEP_TYPE_SHIFT: u32 = 10;
const SLEEP_TYPE: u16 = 7 << SLEEP_TYPE_SHIFT;
const SLEEP_ENABLE: u16 = 1 << 13;

/// Reset control register: a rising edge of RST_CPU resets; the other two say how, and read back.
const RST_CPU: u8 = 1 << 2;
const RESET_KIND: u8 = 1 << 1 | 1 << 3;

/// Fixed hardware registers.
#[derive(Clone, Debug, Default)]
pub struct Pm {
    status: u16,
    enable: u16,
    control: u16,
    gpe_status: u16,
    gpe_enable: u16,
    reset_control: u8,
    /// The latest time looked at.
    seen: Nanos,
}

impl Pm {
    /// The registers at power-on.
    pub fn new() -> Pm {
        Pm::default()
    }

    /// Back to power-on. The timer runs on.
    pub fn reset(&mut self) {
        *self = Pm { seen: self.seen, ..Pm::new() };
    }

    /// Reads `size` bytes (1, 2 or 4) of the PM ports.
    pub fn read(&mut self, port: u16, size: u8, now: Nanos) -> u32 {
        let register = match port & !3 {
            PM_TIMER => PM_CLOCK.ticks(now) as u32,
            PM_BASE => {
                self.advance(now);
                u32::from(self.enable) << 16 | u32::from(self.status)
            }
            // Guests read it to see whether they must leave legacy mode.
            PM1A_CONTROL => (self.control | SCI_ENABLE).into(),
            GPE0 => u32::from(self.gpe_enable) << 16 | u32::from(self.gpe_status),
            _ => 0,
        };
        lanes::read(register, port.into(), size)
    }

    /// Writes `size` bytes of the PM ports. Status bits are cleared by writing ones.
    pub fn write(&mut self, port: u16, size: u8, value: u32, now: Nanos) -> Effect {
        self.advance(now);
        let (mask, bits) = lanes::write(value, port.into(), size);
        let merge = |register: u16, shift: u32| register & !((mask >> shift) as u16) | (bits >> shift) as u16;
        match port & !3 {
            PM_BASE => {
                // The lanes that were not written are 0 in `bits`, and clear nothing.
                self.status &= !(bits as u16);
                self.enable = merge(self.enable, 16) & ENABLES;
            }
            PM1A_CONTROL => {
                let control = merge(self.control, 0);
                self.control = control & SLEEP_TYPE;
                let kind = (control & SLEEP_TYPE) >> SLEEP_TYPE_SHIFT;
                if control & SLEEP_ENABLE != 0 && kind == u16::from(SLEEP_TYPE_S5) {
                    return Effect::PowerOff;
                }
            }
            GPE0 => {
                self.gpe_status &= !(bits as u16);
                self.gpe_enable = merge(self.gpe_enable, 16);
            }
            _ => {}
        }
        Effect::None
    }

    /// Reads port 0xcf9.
    pub fn read_reset_control(&self) -> u8 {
        self.reset_control
    }

    /// Writes port 0xcf9: software writes how (2 or 0xa) and then the same with RST_CPU (6 or 0xe), or the latter at
    /// once. All kinds of reset are the same here.
    pub fn write_reset_control(&mut self, value: u8) -> Effect {
        let rises = value & !self.reset_control & RST_CPU != 0;
        self.reset_control = value & (RST_CPU | RESET_KIND);
        if rises { Effect::Reset } else { Effect::None }
    }

    /// The user presses the power button: a guest that listens shuts down.
    pub fn press_power_button(&mut self) {
        self.status |= POWER_BUTTON;
    }

    /// General-purpose event `event`, 0 to 15, happens; others do not exist.
    pub fn raise_event(&mut self, event: u8) {
        self.gpe_status |= 1_u16.checked_shl(event.into()).unwrap_or(0);
    }

    /// The system control interrupt, a level.
    pub fn line(&mut self, now: Nanos) -> Line {
        self.advance(now);
        let level = self.status & self.enable != 0 || self.gpe_status & self.gpe_enable != 0;
        Line { level, pulsed: false }
    }

    /// When the timer next raises the interrupt.
    pub fn deadline(&self) -> Option<Nanos> {
        if self.enable & TIMER == 0 || self.status & TIMER != 0 {
            return None;
        }
        PM_CLOCK.when((half_cycles(self.seen) + 1) << TIMER_MSB)
    }

    fn advance(&mut self, now: Nanos) {
        let before = half_cycles(self.seen);
        self.seen = self.seen.max(now);
        if half_cycles(self.seen) != before {
            self.status |= TIMER;
        }
    }
}

/// How often the timer's MSB has changed.
fn half_cycles(now: Nanos) -> u64 {
    PM_CLOCK.ticks(now) >> TIMER_MSB
}

/// Drives the registers with arbitrary bytes: they must not panic, and no deadline may lie in the past.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let mut input = super::fuzz::Input::new(data);
    let mut pm = Pm::new();
    let mut now = Nanos(0);
    while let Some(op) = input.byte() {
        now = input.later(now);
        let port = PM_BASE + u16::from(op & 0x3f);
        let size = 1 << (input.byte().unwrap_or(0) % 3);
        match op >> 6 {
            0 => drop(pm.read(port, size, now)),
            1 => pm.raise_event(op),
            2 => drop(pm.write_reset_control(op << 1)),
            _ => match pm.write(port, size, input.u32(), now) {
                Effect::None => {}
                effect => assert_eq!((effect, port & !3), (Effect::PowerOff, PM1A_CONTROL)),
            },
        }
        pm.line(now);
        assert!(pm.deadline().is_none_or(|deadline| deadline > now));
    }
}
