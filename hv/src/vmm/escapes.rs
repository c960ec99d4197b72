//! The escape keys of a console: they separate input for the guest from input for the hypervisor.

/// Ctrl-a, the escape key.
const ESCAPE: u8 = 0x01;

/// The result of one byte of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing yet.
    None,
    /// A byte as typed.
    Byte(u8),
    /// Enter or quit the monitor.
    Monitor,
    /// Show the keys.
    Help,
}

/// The help text.
pub const HELP: &str = "Ctrl-a p: monitor   Ctrl-a h: this help   Ctrl-a Ctrl-a: send Ctrl-a to the guest";

/// Recognizes escape sequences in console input.
#[derive(Debug, Default)]
pub struct Escapes {
    pending: bool,
}

impl Escapes {
    /// Takes one byte. An escape followed by anything unknown is dropped together with it.
    pub fn feed(&mut self, byte: u8) -> Input {
        if !self.pending {
            self.pending = byte == ESCAPE;
            return if self.pending { Input::None } else { Input::Byte(byte) };
        }
        self.pending = false;
        match byte {
            // As in screen and QEMU: the escape key itself must be typable.
            ESCAPE | b'a' => Input::Byte(ESCAPE),
            b'p' => Input::Monitor,
            b'h' | b'?' => Input::Help,
            _ => Input::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        let mut keys = Escapes::default();
        let seen = b"x\x01\x01\x01p\x01hy\x01qz".map(|b| keys.feed(b));
        let none = Input::None;
        let byte = Input::Byte;
        let expected = [
            byte(b'x'),
            none,
            byte(1),
            none,
            Input::Monitor,
            none,
            Input::Help,
            byte(b'y'),
            none,
            none,
            byte(b'z'),
        ];
        assert_eq!(seen, expected);
    }
}
