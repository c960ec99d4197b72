//! The hypervisor's log: lines on the console's serial port, each with the prefix `[hv]` and its level.

use core::fmt::Write;
use core::sync::atomic::{AtomicU16, Ordering};

use log::{LevelFilter, Log, Metadata, Record};
use spin::Mutex;

use crate::hw::uart::{COM1, Uart};

/// Base of the console's I/O ports.
static BASE: AtomicU16 = AtomicU16::new(COM1);
/// Keeps lines whole.
static LINE: Mutex<()> = Mutex::new(());

/// The serial port that the log shares with the guest's console.
pub fn port() -> Uart {
    // SAFETY: on a PC the four standard ranges belong to a 16550 or to nothing.
    unsafe { Uart::new(BASE.load(Ordering::Relaxed)) }
}

struct Serial;

impl Log for Serial {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = match record.level() {
                log::Level::Error => "error: ",
                log::Level::Warn => "warning: ",
                log::Level::Info => "",
                log::Level::Debug => "debug: ",
                log::Level::Trace => "trace: ",
            };
            let _whole = LINE.lock();
            // The port takes everything; there is nobody to tell if it does not.
            let _ = writeln!(port(), "[hv] {level}{}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Starts logging at level info on COM1.
pub fn init() {
    port().init();
    if log::set_logger(&Serial).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Goes on at this level on the serial port with this base, one of the four standard ones.
pub fn configure(level: LevelFilter, base: u16) {
    if BASE.swap(base, Ordering::Relaxed) != base {
        port().init();
    }
    log::set_max_level(level);
}
