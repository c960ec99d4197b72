//! The names by which people ask for a policy: `--mode`, `mode = "…"`, and the monitor's `mode`.

use core::fmt;
use core::num::NonZeroU32;

use crate::paging::engine::{Engine, Engines};

/// What a person asks for: which policy chooses the engine of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nested page tables.
    #[default]
    Nested,
    /// Shadow page tables.
    Shadow,
    /// Nested and shadow tables in turn, for so many exits each.
    Switch(NonZeroU32),
}

impl Mode {
    /// The engines that this mode may use, apart from what the processor forces.
    pub const fn engines(self) -> Engines {
        match self {
            Mode::Nested => Engines::only(Engine::Nested),
            Mode::Shadow => Engines::only(Engine::Shadow),
            Mode::Switch(_) => Engines::ALL,
        }
    }

    /// `nested`, `shadow` or `switch=N`; `None` for anything else.
    pub fn parse(word: &str) -> Option<Mode> {
        match word {
            "nested" => Some(Mode::Nested),
            "shadow" => Some(Mode::Shadow),
            _ => word.strip_prefix("switch=")?.parse().ok().map(Mode::Switch),
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
