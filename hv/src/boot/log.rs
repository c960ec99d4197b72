//! The hypervisor's log: lines on the console's serial port, each with the prefix `[hv]` and its level.

use core::fmt::Write;

use log::{LevelFilter, Log, Metadata, Record};
use spin::Mutex;

use crate::hw::uart::{COM1, Uart};

static PORT: Mutex<()> = Mutex::new(());

/// The serial port that the log shares with the guest's console.
pub fn port() -> Uart {
    // SAFETY: on a PC these ports belong to a 16550 or to nothing.
    unsafe { Uart::new(COM1) }
}

struct Serial;

impl Log for Serial {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let _one_line = PORT.lock();
            let mut port = port();
            let level = match record.level() {
                log::Level::Error => "error: ",
                log::Level::Warn => "warning: ",
                log::Level::Info => "",
                log::Level::Debug => "debug: ",
                log::Level::Trace => "trace: ",
            };
            let _ = writeln!(port, "[hv] {level}{}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Prepares the serial port and starts logging at level info.
pub fn init() {
    port().init();
    if log::set_logger(&Serial).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}
