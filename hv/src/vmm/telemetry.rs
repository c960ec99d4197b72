//! Telemetry records (docs/telemetry.md), for `pal` or another program at the telemetry port.

use core::fmt::{self, Write};

use crate::boot::log;
use crate::trace::record::Json;

/// Version of the schema.
const VERSION: u32 = 1;

/// Sends one record of this type; `fill` writes its fields. Without a telemetry port nothing happens.
pub fn record(kind: &str, fill: impl Fn(&mut Json<'_>) -> fmt::Result) {
    if log::telemetry().is_some() {
        // Written first: `fill` may take locks, and the log's comes after all of them.
        let text = alloc::format!("{}", Shown(kind, fill));
        log::record(format_args!("{text}"));
    }
}

/// Sends a piece of a guest's console output: bytes as the characters with these numbers.
pub fn console(vm: &str, bytes: &[u8]) {
    record("console", |json| {
        json.text("vm", vm)?;
        json.text("text", Latin1(bytes))
    });
}

struct Latin1<'a>(&'a [u8]);

impl fmt::Display for Latin1<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| f.write_char(char::from(*byte)))
    }
}

struct Shown<'a, F>(&'a str, F);

impl<F: Fn(&mut Json<'_>) -> fmt::Result> fmt::Display for Shown<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut json = Json::object(f)?;
        json.number("v", VERSION)?;
        json.text("t", self.0)?;
        (self.1)(&mut json)?;
        json.end()
    }
}
