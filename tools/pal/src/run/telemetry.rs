//! The hypervisor's records on its second serial port: one JSON object per line. `docs/telemetry.md` is the schema;
//! unknown records and unknown fields are ignored.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the schema that is read here.
pub const VERSION: u64 = 1;
/// Longer lines are not records.
pub const LONGEST_LINE: usize = 1 << 20;

/// A record that pal acts upon.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "t", rename_all = "kebab-case")]
pub enum Record {
    /// A line of the hypervisor's log.
    Log {
        /// "error", "warn", "info", "debug" or "trace".
        level: String,
        /// The text.
        msg: String,
    },
    /// The host machine as the hypervisor found it.
    Host(Value),
    /// The hypervisor has restarted a guest.
    Reset {
        /// The guest.
        vm: String,
        /// On whose request.
        #[serde(default)]
        by: ResetBy,
    },
    /// A guest starts, perhaps not for the first time.
    Start {
        /// The guest.
        vm: String,
    },
    /// A piece of a guest's console output.
    Console {
        /// The guest.
        vm: String,
        /// Bytes as the characters with these numbers.
        text: String,
    },
    /// A guest has ended.
    End(End),
    /// A guest's statistics.
    Stats(Value),
    /// The hypervisor panicked.
    Panic {
        /// Message, place and registers.
        msg: String,
    },
    /// The machine cannot run the hypervisor.
    Unsuitable {
        /// Why, in one line.
        detail: String,
    },
    /// A record of a later version.
    #[serde(other)]
    Unknown,
}

/// How a guest ended.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct End {
    /// The guest.
    pub vm: String,
    /// Why.
    pub reason: Reason,
    /// The value written to the test device, otherwise absent or 0.
    #[serde(default)]
    pub value: u64,
    /// Text for a person, of several lines: RIP and registers where that helps.
    #[serde(default)]
    pub detail: String,
}

impl End {
    /// A guest that restarted although it should run once.
    pub fn reset(vm: String) -> Self {
        Self { vm, reason: Reason::Reset, value: 0, detail: String::new() }
    }
}

/// On whose request a guest was restarted.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ResetBy {
    /// The guest asked for a reset.
    #[default]
    Guest,
    /// The guest died and has `restart`.
    Death,
    /// A person at the monitor.
    Monitor,
    /// Something of a later version.
    #[serde(other)]
    Other,
}

/// Why a guest ended.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// ACPI S5.
    PowerOff,
    /// There was none: the hypervisor has reported on the machine.
    Probe,
    /// The guest asked for a reset and is not restarted.
    Reset,
    /// A person took it away in the monitor.
    Destroyed,
    /// It wrote the test device's port 0xf4.
    TestDevice,
    /// SHUTDOWN.
    TripleFault,
    /// An exit that the hypervisor does not know.
    UnknownExit,
    /// The processor refused the guest's state.
    InvalidState,
    /// An instruction on a device that cannot be emulated.
    EmulationFailure,
    /// The guest's files could not be loaded.
    LoadError,
    /// The hypervisor does not accept palimpsest.toml.
    ConfigError,
    /// A reason of a later version.
    #[serde(other)]
    Other,
}

/// Reads one line.
///
/// # Errors
/// It is not a record; the text says why.
pub fn parse(line: &[u8]) -> Result<Record, String> {
    let mut value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match value.get("v").and_then(Value::as_u64) {
        Some(VERSION) => {}
        Some(version) => {
            return Err(format!("version {version} of the telemetry schema; this pal reads {VERSION}"));
        }
        None => return Err("no version".into()),
    }
    // `value` keeps the version for records that are passed on whole.
    match value.get("t").and_then(Value::as_str) {
        Some("stats") => Ok(Record::Stats(value.take())),
        Some("host") => Ok(Record::Host(value.take())),
        _ => serde_json::from_value(value).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records() {
        let end = parse(br#"{"v":1,"t":"end","vm":"guest","reason":"test-device","value":7,"later":[]}"#);
        let expected =
            End { vm: "guest".into(), reason: Reason::TestDevice, value: 7, detail: String::new() };
        assert_eq!(end, Ok(Record::End(expected)));
        let Ok(Record::End(end)) = parse(br#"{"v":1,"t":"end","vm":"g","reason":"melted"}"#) else {
            panic!()
        };
        assert_eq!(end.reason, Reason::Other);
        assert_eq!(parse(br#"{"v":1,"t":"fanfare","loud":true}"#), Ok(Record::Unknown));
        let Ok(Record::Stats(stats)) = parse(br#"{"v":1,"t":"stats","tsc":5}"#) else { panic!() };
        assert_eq!(stats["tsc"], 5);
        assert!(parse(br#"{"v":2,"t":"end"}"#).unwrap_err().contains("version 2"));
        assert!(parse(br#"{"t":"end"}"#).is_err());
        assert!(parse(br#"{"v":1,"t":"end","vm":"g"}"#).unwrap_err().contains("reason"));
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "[{}\\[\\]\"vt:,1a-e]{0,60}") {
            let _ = parse(line.as_bytes());
        }
    }
}
