//! The escape keys of a console: what a person types is for the guest, or for the hypervisor.

/// Ctrl-a, the escape key.
const ESCAPE: u8 = 0x01;

/// What came of one byte from the person's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing yet.
    None,
    /// A byte as typed.
    Byte(u8),
    /// The person wants the monitor, or to leave it.
    Monitor,
    /// The person wants to know the keys.
    Help,
}

/// The keys, for people.
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
