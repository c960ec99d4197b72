//! Where people see what the hypervisor and its guest say: a serial port, and the screen.
//!
//! The log and panics go to both. A guest's console is the serial port; where there is none, the screen shows its
//! output, and it gets no input. PCPUs take turns at the serial port; a panic does not wait for its turn.

use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};

use spin::{Mutex, MutexGuard};

use super::screen;
use crate::hw::uart::SerialPort;
use crate::hw::uart::Uart;

/// Ports that were set up, one bit each.
static KNOWN: AtomicU8 = AtomicU8::new(0);
/// Those of them that have no UART.
static MISSING: AtomicU8 = AtomicU8::new(0);

const fn bit(port: SerialPort) -> u8 {
    1 << port as u8
}

fn at(port: SerialPort) -> Uart {
    // SAFETY: on a PC the four standard ranges belong to a 16550 or to nothing.
    unsafe { Uart::new(port.base()) }
}

/// Sets a port up; from then on [`uart`] knows whether there is one.
pub fn open(port: SerialPort) {
    KNOWN.fetch_or(bit(port), Ordering::Relaxed);
    if at(port).init() {
        MISSING.fetch_and(!bit(port), Ordering::Relaxed);
    } else {
        MISSING.fetch_or(bit(port), Ordering::Relaxed);
    }
}

/// The UART of a port, unless it was found missing.
pub fn uart(port: SerialPort) -> Option<Uart> {
    (MISSING.load(Ordering::Relaxed) & bit(port) == 0).then(|| at(port))
}

/// Whether there is a UART, for which a port is set up unless it was.
pub fn is_there(port: SerialPort) -> bool {
    if KNOWN.load(Ordering::Relaxed) & bit(port) == 0 {
        open(port);
    }
    uart(port).is_some()
}

/// Held by the PCPU that writes to the console's port: two that find room in its FIFO would fill it twice.
static TURN: Mutex<()> = Mutex::new(());
/// How often a PCPU looks whether it is its turn: far longer than any other's turn lasts.
const PATIENCE: u32 = 1_000_000;

/// Writes when no other PCPU does, or when one takes too long.
fn in_turn<R>(write: impl FnOnce() -> R) -> R {
    // A PCPU may have been stopped while it held the turn: mixed output is better than none.
    let turn = TURN.try_lock().or_else(|| wait_for_turn());
    let result = write();
    drop(turn);
    result
}

#[cold]
fn wait_for_turn() -> Option<MutexGuard<'static, ()>> {
    (0..PATIENCE).find_map(|_| {
        core::hint::spin_loop();
        TURN.try_lock()
    })
}

/// Releases the lock of the console by force, so that a panic can write.
///
/// # Safety
/// The holder of the lock, if there is one, does not continue.
pub unsafe fn seize() {
    // SAFETY: the caller's promise; the lock guards a port and no data.
    unsafe { TURN.force_unlock() }
}

/// The console that the guest and the log share.
#[derive(Clone, Copy)]
pub struct Console(Option<Uart>);

impl Console {
    /// The console on this port, or on the screen if there is none or it has no UART.
    pub fn on(port: Option<SerialPort>) -> Console {
        Console(port.and_then(uart))
    }

    /// Writes a guest's bytes as they are; waits for the transmitter a bounded time.
    pub fn write_bytes(self, bytes: &[u8]) {
        match self.0 {
            Some(uart) => in_turn(|| uart.write_bytes(bytes)),
            None => screen::write(bytes),
        }
    }

    /// Writes one byte of a guest's. False: the line does not move, see [`Uart::try_write`].
    #[inline]
    pub fn try_write(self, byte: u8) -> bool {
        match self.0 {
            Some(uart) => in_turn(|| uart.try_write(byte)),
            None => {
                screen::write(&[byte]);
                true
            }
        }
    }

    /// A received byte, if there is one.
    pub fn try_read(self) -> Option<u8> {
        self.0?.try_read()
    }

    /// Turns the interrupt for received data on or off.
    pub fn set_receive_interrupt(self, on: bool) {
        if let Some(uart) = self.0 {
            uart.set_receive_interrupt(on);
        }
    }

    /// Waits a bounded time until everything has left the port.
    pub fn drain(self) {
        if let Some(uart) = self.0 {
            uart.drain();
        }
    }
}

/// The screen alone.
pub struct Screen;

impl fmt::Write for Screen {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        screen::write(text.as_bytes());
        Ok(())
    }
}

/// Text for people: to the port and to the screen.
impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The port first: a screen that breaks takes nothing from it.
        self.0.as_mut().map_or(Ok(()), |uart| in_turn(|| uart.write_str(text)))?;
        Screen.write_str(text)
    }
}
