//! A guest whose memory may be more than the host has for it.

use alloc::format;
use alloc::string::{String, ToString};

use abi::config::{MAX_OVERCOMMIT_MIB, MIN_RESIDENT_MIB, Replacement};

use super::ConfigError;
use super::table::Table;

/// How its pages are evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overcommit {
    /// MiB that are in frames at a time, [`MIN_RESIDENT_MIB`] and more; by default as much as its share of the host allows.
    pub resident_mib: Option<u64>,
    /// The policy.
    pub replacement: Replacement,
}

impl Overcommit {
    /// Takes its keys out of a guest's table; `None`: the guest is not overcommitted.
    pub(super) fn read(table: &mut Table<'_>) -> Result<Option<Overcommit>, ConfigError> {
        let line = Some(table.line());
        let is_on = table.boolean("overcommit")?.unwrap_or(false);
        let resident_mib = table.integer("resident_mib")?;
        let policy: Option<String> = table.string("replacement")?;
        if !is_on {
            let lonely = [("resident_mib", resident_mib.is_some()), ("replacement", policy.is_some())];
            return match lonely.iter().find(|(_, given)| *given) {
                None => Ok(None),
                Some((key, _)) => {
                    let message =
                        format!("`{key}` is for guests with `overcommit = true`; add that, or leave it out");
                    Err(ConfigError { line, message })
                }
            };
        }
        let replacement = match policy {
            None => Replacement::default(),
            Some(word) => word.parse().map_err(|_| {
                let (word, known) = (word.escape_default(), Replacement::WORDS.join(", "));
                ConfigError { line, message: format!("`replacement` is \"{word}\"; use one of {known}") }
            })?,
        };
        Ok(Some(Overcommit { resident_mib, replacement }))
    }

    pub(super) fn validate(&self, memory_mib: u64) -> Result<(), String> {
        if memory_mib > MAX_OVERCOMMIT_MIB {
            return Err(format!(
                "`memory_mib` is {memory_mib}; with `overcommit` the most is {MAX_OVERCOMMIT_MIB}"
            ));
        }
        match self.resident_mib {
            Some(mib) if mib < MIN_RESIDENT_MIB => {
                Err(format!("`resident_mib` is {mib}; the least is {MIN_RESIDENT_MIB}"))
            }
            Some(mib) if mib > memory_mib => {
                Err("`resident_mib` is more than `memory_mib`; lower it or leave it out".to_string())
            }
            _ => Ok(()),
        }
    }
}
