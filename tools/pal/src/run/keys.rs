//! What the person types on the guest's console: the escape key and everything else.

/// The escape key, Ctrl-a.
const ESCAPE: u8 = 0x01;

/// What the hypervisor takes for the wish to enter its monitor, or to leave it.
pub const MONITOR: &[u8] = &[ESCAPE, b'p'];

/// What `Ctrl-a h` prints.
pub const HELP: &str = "Ctrl-a x  quit: the guest's machine is switched off
Ctrl-a p  the hypervisor's monitor
Ctrl-a a  send Ctrl-a to the guest
Ctrl-a h  this help";

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes to the console port.
    Send(&'static [u8]),
    /// Send the byte that was typed.
    Pass,
    /// End the run.
    Quit,
    /// Print [`HELP`].
    Help,
    /// Send [`MONITOR`] and show what comes.
    Monitor,
    /// Say that there is no monitor on this machine.
    NoMonitor,
    /// Wait for the next key, or ignore an unknown one.
    Nothing,
}

/// Watches for the escape key.
pub struct Keys {
    escaped: bool,
    /// The hypervisor watches the same port for Ctrl-a.
    hypervisor: bool,
}

impl Keys {
    /// `hypervisor`: the port is watched by the hypervisor, which has its own escape sequences.
    pub fn new(hypervisor: bool) -> Self {
        Self { escaped: false, hypervisor }
    }

    /// The meaning of one typed byte.
    pub fn typed(&mut self, byte: u8) -> Action {
        if !self.escaped {
            self.escaped = byte == ESCAPE;
            return if self.escaped { Action::Nothing } else { Action::Pass };
        }
        self.escaped = false;
        match byte {
            b'x' => Action::Quit,
            b'h' | b'?' => Action::Help,
            b'p' if self.hypervisor => Action::Monitor,
            b'p' => Action::NoMonitor,
            b'a' | ESCAPE => self.literal(),
            _ => Action::Nothing,
        }
    }

    /// How a byte from a pipe, where nothing is an escape, reaches the guest.
    pub fn piped(&self, byte: u8) -> Action {
        if byte == ESCAPE { self.literal() } else { Action::Pass }
    }

    fn literal(&self) -> Action {
        Action::Send(if self.hypervisor { &[ESCAPE, ESCAPE] } else { &[ESCAPE] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences() {
        let mut keys = Keys::new(true);
        let mut type_all = |text: &str| text.bytes().map(|byte| keys.typed(byte)).collect::<Vec<_>>();
        assert_eq!(type_all("x\x01x"), [Action::Pass, Action::Nothing, Action::Quit]);
        assert_eq!(type_all("\x01p"), [Action::Nothing, Action::Monitor]);
        assert_eq!(type_all("\x01\x01x"), [Action::Nothing, Action::Send(b"\x01\x01"), Action::Pass]);
        assert_eq!(type_all("\x01zx"), [Action::Nothing, Action::Nothing, Action::Pass]);
        assert_eq!(keys.piped(1), Action::Send(b"\x01\x01"));
        let mut keys = Keys::new(false);
        assert_eq!(keys.piped(1), Action::Send(b"\x01"));
        assert_eq!((keys.typed(1), keys.typed(b'p')), (Action::Nothing, Action::NoMonitor));
    }
}
