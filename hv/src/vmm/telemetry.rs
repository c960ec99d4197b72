//! Records for whoever started the machine (docs/telemetry.md).

use core::fmt;

use crate::boot::log;
use crate::trace::record::Json;

/// Version of the schema.
const VERSION: u32 = 1;

/// Sends one record of this type; `fill` writes its fields. Without a telemetry port nothing happens.
pub fn record(kind: &str, fill: impl Fn(&mut Json<'_>) -> fmt::Result) {
    log::record(format_args!("{}", Shown(kind, fill)));
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
