//! The serial console that the guest and a person share: escape keys on the way in, bytes on the way out.

use crate::vcpu::host::ConsoleEvent;

/// Ctrl-a, the escape key.
const ESCAPE: u8 = 0x01;

/// What came of one byte from the person's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing yet.
    None,
    /// Something for the run loop.
    Event(ConsoleEvent),
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
            return if self.pending { Input::None } else { Input::Event(ConsoleEvent::Byte(byte)) };
        }
        self.pending = false;
        match byte {
            ESCAPE | b'a' => Input::Event(ConsoleEvent::Byte(ESCAPE)),
            b'p' => Input::Event(ConsoleEvent::Monitor),
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
        let byte = |b| Input::Event(ConsoleEvent::Byte(b));
        let monitor = Input::Event(ConsoleEvent::Monitor);
        let none = Input::None;
        let expected =
            [byte(b'x'), none, byte(1), none, monitor, none, Input::Help, byte(b'y'), none, none, byte(b'z')];
        assert_eq!(seen, expected);
    }
}
