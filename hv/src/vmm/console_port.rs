//! The host's serial port or screen as the console of guests and monitor.

use super::console::Port;
use crate::boot::console::Console;

/// The serial port of the console.
pub struct ConsolePort(pub Console);

impl Port for ConsolePort {
    fn read(&mut self) -> Option<u8> {
        self.0.try_read()
    }

    #[inline]
    fn write(&mut self, byte: u8) -> bool {
        self.0.try_write(byte)
    }

    fn finish(&mut self, byte: u8) {
        self.0.write_bytes(&[byte]);
    }
}
