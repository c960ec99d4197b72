//! Telemetry records (docs/telemetry.md), for `pal` or another program at the telemetry port.

use core::fmt::{self, Write};

use abi::telemetry::{Kind, VERSION, key};

use crate::boot::log;
use crate::trace::record::Json;

/// Sends one record of this type; `fill` writes its fields. Without a telemetry port nothing happens.
pub fn record(kind: Kind, fill: impl Fn(&mut Json<'_>) -> fmt::Result) {
    if log::telemetry().is_some() {
        // Written first: `fill` may take locks, and the log's comes after all of them.
        let text = alloc::format!("{}", Shown(kind, fill));
        log::record(format_args!("{text}"));
    }
}

/// Sends a piece of a guest's console output: bytes as the characters with these numbers.
pub fn console(vm: &str, bytes: &[u8]) {
    record(Kind::Console, |json| {
        json.text(key::VM, vm)?;
        json.text(key::TEXT, Latin1(bytes))
    });
}

struct Latin1<'a>(&'a [u8]);

impl fmt::Display for Latin1<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| f.write_char(char::from(*byte)))
    }
}

struct Shown<F>(Kind, F);

impl<F: Fn(&mut Json<'_>) -> fmt::Result> fmt::Display for Shown<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut json = Json::object(f)?;
        json.number(key::V, VERSION)?;
        json.text(key::T, self.0)?;
        (self.1)(&mut json)?;
        json.end()
    }
}
