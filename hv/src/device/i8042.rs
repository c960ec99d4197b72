//! The 8042 keyboard controller without keyboard or mouse, and system control port A.
//!
//! Owned by [`super::chipset::Chipset`]. What is left of the controller is what software uses it for today: to reset
//! the machine, to open the A20 gate, and to find out that nothing is attached. Bytes sent to the absent devices are
//! answered at once with a resend request marked as a timeout, which is how a controller reports a silent line, so
//! that probing does not wait. The A20 gate is remembered but never closes: all address lines always pass.
//! Reference: IBM PS/2 Technical Reference, "Keyboard and auxiliary device controller".

#[cfg(test)]
mod tests;

use super::effect::Effect;

/// Status register.
const OUTPUT_FULL: u8 = 1 << 0;
const SYSTEM: u8 = 1 << 2;
const LAST_WAS_COMMAND: u8 = 1 << 3;
const NOT_LOCKED: u8 = 1 << 4;
const FROM_AUX: u8 = 1 << 5;
const TIMEOUT: u8 = 1 << 6;
/// Configuration byte, which is byte 0 of the controller's memory.
const KEYBOARD_INTERRUPT: u8 = 1 << 0;
const AUX_INTERRUPT: u8 = 1 << 1;
const KEYBOARD_OFF: u8 = 1 << 4;
const AUX_OFF: u8 = 1 << 5;
const TRANSLATE: u8 = 1 << 6;
/// Output port.
const RESET_INACTIVE: u8 = 1 << 0;
const A20: u8 = 1 << 1;
/// What a keyboard says when it did not understand.
const RESEND: u8 = 0xfe;

/// What the next byte at the data port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The keyboard.
    Keyboard,
    /// This byte of the controller's memory.
    Memory(u8),
    OutputPort,
    /// To be read back as if the keyboard had sent it.
    KeyboardLoop,
    /// The mouse, or to be read back as if it had sent it: there is no mouse port.
    Aux,
}

/// The controller.
#[derive(Clone, Debug)]
pub struct I8042 {
    memory: [u8; 32],
    output_port: u8,
    expected: Expected,
    last_was_command: bool,
    /// A byte for the processor with the status bits that go with it.
    output: Option<(u8, u8)>,
    /// System control port A: bit 1 is a second A20 gate, bit 0 a reset.
    control_a: u8,
}

impl Default for I8042 {
    fn default() -> Self {
        I8042::new()
    }
}

impl I8042 {
    /// The controller as firmware leaves it: tested, both device ports off, A20 open.
    pub const fn new() -> I8042 {
        let mut memory = [0; 32];
        memory[0] = SYSTEM | KEYBOARD_OFF | AUX_OFF | TRANSLATE;
        I8042 {
            memory,
            output_port: RESET_INACTIVE | A20,
            expected: Expected::Keyboard,
            last_was_command: false,
            output: None,
            control_a: A20,
        }
    }

    /// Back to power-on.
    pub fn reset(&mut self) {
        *self = I8042::new();
    }

    /// Reads port 0x60.
    pub fn read_data(&mut self) -> u8 {
        self.output.take().map_or(0, |(byte, _)| byte)
    }

    /// Reads port 0x64, the status.
    pub fn read_status(&self) -> u8 {
        let output = self.output.map_or(0, |(_, status)| OUTPUT_FULL | status);
        let command = if self.last_was_command { LAST_WAS_COMMAND } else { 0 };
        output | command | NOT_LOCKED | self.memory[0] & SYSTEM
    }

    /// Writes port 0x60.
    pub fn write_data(&mut self, value: u8) -> Effect {
        self.last_was_command = false;
        match core::mem::replace(&mut self.expected, Expected::Keyboard) {
            Expected::Keyboard => self.output = Some((RESEND, TIMEOUT)),
            Expected::Aux => self.output = Some((RESEND, FROM_AUX | TIMEOUT)),
            Expected::KeyboardLoop => self.output = Some((value, 0)),
            Expected::Memory(index) => self.memory[usize::from(index & 0x1f)] = value,
            // Bit 0 is the processor's reset line, active low.
            Expected::OutputPort => {
                self.output_port = value | RESET_INACTIVE;
                if value & RESET_INACTIVE == 0 {
                    return Effect::Reset;
                }
            }
        }
        Effect::None
    }

    /// Writes port 0x64, a command.
    pub fn write_command(&mut self, command: u8) -> Effect {
        self.last_was_command = true;
        self.expected = Expected::Keyboard;
        let mut answer = |byte| self.output = Some((byte, 0));
        match command {
            0x20..0x40 => {
                let byte = self.memory[usize::from(command & 0x1f)];
                self.output = Some((byte, 0));
            }
            0x60..0x80 => self.expected = Expected::Memory(command & 0x1f),
            0xa7 => self.memory[0] |= AUX_OFF,
            0xa8 => self.memory[0] &= !AUX_OFF,
            0xa9 => answer(0x01), // test of the mouse port: clock line stuck low
            0xaa => {
                self.memory[0] |= SYSTEM;
                self.output = Some((0x55, 0)); // self-test passed
            }
            0xab => answer(0x00), // test of the keyboard port: no fault
            0xad => self.memory[0] |= KEYBOARD_OFF,
            0xae => self.memory[0] &= !KEYBOARD_OFF,
            0xc0 => answer(0x80), // input port: keyboard not inhibited
            0xd0 => {
                let port = self.output_port;
                self.output = Some((port, 0));
            }
            0xd1 => self.expected = Expected::OutputPort,
            0xd2 => self.expected = Expected::KeyboardLoop,
            0xd3 | 0xd4 => self.expected = Expected::Aux,
            // Pulses the output port's low bits that are zero here; bit 0 is the reset line.
            0xf0..=0xff if command & RESET_INACTIVE == 0 => return Effect::Reset,
            _ => {}
        }
        Effect::None
    }

    /// Reads port 0x92.
    pub fn read_control_a(&self) -> u8 {
        self.control_a
    }

    /// Writes port 0x92: a rising bit 0 resets.
    pub fn write_control_a(&mut self, value: u8) -> Effect {
        let rises = value & !self.control_a & 1 != 0;
        self.control_a = value & (A20 | 1);
        if rises { Effect::Reset } else { Effect::None }
    }

    /// Whether the guest wants address line 20 to pass.
    pub fn is_a20_open(&self) -> bool {
        (self.output_port | self.control_a) & A20 != 0
    }

    /// The keyboard interrupt, IRQ 1.
    pub fn keyboard_line(&self) -> bool {
        self.memory[0] & KEYBOARD_INTERRUPT != 0
            && self.output.is_some_and(|(_, status)| status & FROM_AUX == 0)
    }

    /// The mouse interrupt, IRQ 12.
    pub fn mouse_line(&self) -> bool {
        self.memory[0] & AUX_INTERRUPT != 0 && self.output.is_some_and(|(_, status)| status & FROM_AUX != 0)
    }
}

/// Drives a controller with arbitrary bytes: it must not panic.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let mut input = super::fuzz::Input::new(data);
    let mut controller = I8042::new();
    while let Some(op) = input.byte() {
        let value = input.byte().unwrap_or(0);
        let effect = match op % 6 {
            0 => controller.write_data(value),
            1 => controller.write_command(value),
            2 => controller.write_control_a(value),
            3 => {
                controller.read_data();
                assert_eq!(controller.read_status() & OUTPUT_FULL, 0);
                Effect::None
            }
            _ => Effect::None,
        };
        assert!(matches!(effect, Effect::None | Effect::Reset));
        assert!(!(controller.keyboard_line() && controller.mouse_line()));
    }
}
