//! The hypervisor's records on its second serial port: one JSON object per line. `docs/telemetry.md` is the schema;
//! unknown records and unknown fields are ignored.

use std::str::FromStr;

pub use abi::telemetry::{EndReason, LONGEST_LINE, ResetBy, VERSION};
use abi::telemetry::{Kind, key};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

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
        /// On whose request; `None` for one of a later version.
        #[serde(default = "by_guest", deserialize_with = "known")]
        by: Option<ResetBy>,
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
    /// A sample, or an event of a trace, where the machine shares no memory with pal.
    Records {
        /// `samples` or `trace`.
        ring: String,
        /// Of a trace: the PCPU.
        #[serde(default)]
        pcpu: usize,
        /// Records of this ring that were dropped so far.
        #[serde(default)]
        dropped: u64,
        /// The record's words in hexadecimal.
        words: String,
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
    /// Why; `None` for a reason of a later version.
    #[serde(deserialize_with = "known")]
    pub reason: Option<EndReason>,
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
        Self { vm, reason: Some(EndReason::Reset), value: 0, detail: String::new() }
    }
}

/// A word of the schema; `None` for one of a later version.
fn known<'de, D: Deserializer<'de>, T: FromStr>(from: D) -> Result<Option<T>, D::Error> {
    Ok(String::deserialize(from)?.parse().ok())
}

/// What a reset record means that does not say it.
fn by_guest() -> Option<ResetBy> {
    Some(ResetBy::Guest)
}

/// Reads one line.
///
/// # Errors
/// It is not a record; the text says why.
pub fn parse(line: &[u8]) -> Result<Record, String> {
    let mut value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match value.get(key::V).and_then(Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => {
            return Err(format!("version {version} of the telemetry schema; this pal reads {VERSION}"));
        }
        None => return Err("no version".into()),
    }
    // `value` keeps the version for records that are passed on whole.
    match value.get(key::T).and_then(Value::as_str).map(str::parse) {
        Some(Ok(Kind::Stats)) => Ok(Record::Stats(value.take())),
        Some(Ok(Kind::Host)) => Ok(Record::Host(value.take())),
        _ => serde_json::from_value(value).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records() {
        let end = parse(br#"{"v":2,"t":"end","vm":"guest","reason":"test-device","value":7,"later":[]}"#);
        let expected =
            End { vm: "guest".into(), reason: Some(EndReason::TestDevice), value: 7, detail: String::new() };
        assert_eq!(end, Ok(Record::End(expected)));
        let Ok(Record::End(end)) = parse(br#"{"v":2,"t":"end","vm":"g","reason":"melted"}"#) else {
            panic!()
        };
        assert_eq!(end.reason, None);
        assert_eq!(parse(br#"{"v":2,"t":"fanfare","loud":true}"#), Ok(Record::Unknown));
        let Ok(Record::Stats(stats)) = parse(br#"{"v":2,"t":"stats","tsc":5}"#) else { panic!() };
        assert_eq!(stats["tsc"], 5);
        assert!(parse(br#"{"v":3,"t":"end"}"#).unwrap_err().contains("version 3"));
        assert!(parse(br#"{"t":"end"}"#).is_err());
        assert!(parse(br#"{"v":2,"t":"end","vm":"g"}"#).unwrap_err().contains("reason"));
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "[{}\\[\\]\"vt:,1a-e]{0,60}") {
            let _ = parse(line.as_bytes());
        }
    }
}
