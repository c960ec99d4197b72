//! The hypervisor's log and its records.
//!
//! A log line goes to the telemetry port as a record if there is one apart from the console, else to the console as
//! text with the prefix `[hv]` and its level. In either case the screen shows it, if there is one. `docs/telemetry.md` is the schema of the records.

use core::fmt::{Arguments, Write};

use abi::telemetry::{Kind, VERSION};
use log::{LevelFilter, Log, Metadata, Record};
use spin::{Mutex, Once};

use super::console::{self, Console, Screen};
use crate::boot::cmdline::HvOptions;
use crate::hw::uart::SerialPort;
use crate::hw::uart::Uart;
use crate::trace::json::Quoted;

static OPTIONS: Once<Ports> = Once::new();
/// Keeps lines whole.
static LINE: Mutex<()> = Mutex::new(());

#[derive(Clone, Copy)]
struct Ports {
    /// `None` is the screen.
    console: Option<SerialPort>,
    telemetry: Option<SerialPort>,
}

fn ports() -> Ports {
    OPTIONS.get().copied().unwrap_or(Ports { console: Some(SerialPort::Com1), telemetry: None })
}

/// The guest's console, which the log may share.
pub fn console() -> Console {
    Console::on(ports().console)
}

/// The serial port of the records.
pub fn telemetry() -> Option<Uart> {
    ports().telemetry.and_then(console::uart)
}

/// Writes one record, a JSON object without line feeds, if there is a telemetry port.
pub fn record(object: Arguments<'_>) {
    if let Some(mut port) = telemetry() {
        let _whole = LINE.lock();
        // A serial port accepts every byte, and an error of the log could not be reported anywhere else.
        let _ = writeln!(port, "{object}");
    }
}

/// Waits a bounded time until all has left the serial ports: the machine may end.
pub fn drain() {
    console().drain();
    if let Some(port) = telemetry() {
        port.drain();
    }
}

/// The target of log lines that a record of another type repeats: they are for people without telemetry.
pub const RECORDED: &str = "recorded";

struct Serial;

impl Log for Serial {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, line: &Record<'_>) {
        if !self.enabled(line.metadata()) {
            return;
        }
        let (level, short) = match line.level() {
            log::Level::Error => ("error", "error: "),
            log::Level::Warn => ("warn", "warning: "),
            log::Level::Info => ("info", ""),
            log::Level::Debug => ("debug", "debug: "),
            log::Level::Trace => ("trace", "trace: "),
        };
        let Ports { console: text, telemetry } = ports();
        if telemetry.is_some_and(|port| Some(port) != text && console::uart(port).is_some()) {
            let _ = writeln!(Screen, "[hv] {short}{}", line.args());
            // Another record says the same: with telemetry it would come twice.
            if line.target() != RECORDED {
                record(format_args!(
                    r#"{{"v":{VERSION},"t":"{}","level":"{level}","msg":{}}}"#,
                    Kind::Log,
                    Quoted(line.args())
                ));
            }
        } else {
            let _whole = LINE.lock();
            let _ = writeln!(console(), "[hv] {short}{}", line.args());
        }
    }

    fn flush(&self) {}
}

/// Starts logging at level info on COM1.
pub fn init() {
    console::open(SerialPort::Com1);
    if log::set_logger(&Serial).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Goes on at the level and on the ports of the command line. Once.
pub fn configure(options: &HvOptions) {
    let ports = OPTIONS.call_once(|| Ports { console: options.console, telemetry: options.telemetry });
    for port in ports.telemetry.into_iter().chain(ports.console) {
        if port != SerialPort::Com1 {
            console::open(port);
        }
    }
    log::set_max_level(options.loglevel);
}
