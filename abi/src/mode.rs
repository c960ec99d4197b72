//! The names by which people ask for a way of virtualizing memory: `--mode`, `mode = "…"`, and the monitor's `mode`.

use core::fmt;
use core::num::NonZeroU32;
use core::str::FromStr;

/// What a person asks for: which policy chooses the engine of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nested page tables.
    #[default]
    Nested,
    /// Shadow page tables.
    Shadow,
    /// Nested and shadow tables in turn, changing every N exits of the VM.
    Switch(NonZeroU32),
}

/// A word that is no mode; it is shown as what would be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownMode;

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("use nested, shadow, or switch=N with N from 1 on, such as switch=50")
    }
}

impl core::error::Error for UnknownMode {}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Mode, UnknownMode> {
        match word {
            "nested" => Ok(Mode::Nested),
            "shadow" => Ok(Mode::Shadow),
            _ => word
                .strip_prefix("switch=")
                .and_then(|exits| exits.parse().ok())
                .map(Mode::Switch)
                .ok_or(UnknownMode),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Nested => f.write_str("nested"),
            Mode::Shadow => f.write_str("shadow"),
            Mode::Switch(exits) => write!(f, "switch={exits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_mode() {
        for word in
            ["", "Nested", "switch", "switch=", "switch=0", "switch=-1", "switch=4294967296", "nested "]
        {
            assert_eq!(word.parse::<Mode>(), Err(UnknownMode), "{word}");
        }
    }

    proptest! {
        #[test]
        fn names_come_back(exits in 1..=u32::MAX) {
            for mode in [Mode::Nested, Mode::Shadow, Mode::Switch(NonZeroU32::new(exits).unwrap())] {
                prop_assert_eq!(mode.to_string().parse(), Ok(mode));
            }
        }
    }
}
