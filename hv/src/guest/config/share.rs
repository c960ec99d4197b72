//! A guest's share of the processors.

use alloc::format;
use alloc::string::String;

use abi::config::{DEFAULT_WEIGHT, MAX_PCPUS, MAX_WEIGHT, MIN_WEIGHT, max_cap};

use super::ConfigError;
use super::table::Table;

/// What the scheduler gives a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// While PCPUs are scarce, guests get time in proportion to their weights: [`MIN_WEIGHT`] to [`MAX_WEIGHT`].
    pub weight: u32,
    /// The most that it gets, in percent of one PCPU for all its VCPUs together; 0: no limit.
    pub cap: u32,
    /// The PCPUs that may run it, bit n for number n.
    pub affinity: u64,
}

impl Default for Share {
    fn default() -> Share {
        Share { weight: DEFAULT_WEIGHT, cap: 0, affinity: u64::MAX }
    }
}

impl Share {
    /// Takes its keys out of a guest's table.
    pub(super) fn read(table: &mut Table<'_>) -> Result<Share, ConfigError> {
        let clip = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let weight = table.integer("weight")?.map_or(DEFAULT_WEIGHT, clip);
        let cap = table.integer("cap")?.map_or(0, clip);
        let line = table.line();
        let affinity = match table.integers("affinity")? {
            None => u64::MAX,
            Some(pcpus) => match pcpus.iter().find(|n| **n >= u64::from(MAX_PCPUS)) {
                Some(n) => {
                    let message = format!("`affinity` names processor {n}; they are counted from 0 to 63");
                    return Err(ConfigError { line: Some(line), message });
                }
                None => pcpus.iter().fold(0, |set, n| set | 1 << n),
            },
        };
        Ok(Share { weight, cap, affinity })
    }

    pub(super) fn validate(&self, vcpus: u32) -> Result<(), String> {
        let most = max_cap(vcpus);
        if !(MIN_WEIGHT..=MAX_WEIGHT).contains(&self.weight) {
            return Err(format!("`weight` is {}; it can be {MIN_WEIGHT} to {MAX_WEIGHT}", self.weight));
        }
        if self.cap > most {
            return Err(format!(
                "`cap` is {}; it is percent of one processor, for {vcpus} VCPUs {most} at most",
                self.cap
            ));
        }
        if self.affinity == 0 {
            return Err("`affinity` is empty; name processors, or leave it out for all".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn read(lines: &str) -> Result<Share, String> {
        let text =
            format!("version = 1\n[[vm]]\nname = \"a\"\nkernel = \"k\"\nmemory_mib = 64\nvcpus = 2\n{lines}");
        let config = Config::parse(text.as_bytes()).map_err(|e| format!("{e}"))?;
        Ok(config.vm[0].share.clone())
    }

    #[test]
    fn keys_and_their_limits() {
        assert_eq!(read(""), Ok(Share::default()));
        let all = read("weight = 512\ncap = 150\naffinity = [0, 3]\n");
        assert_eq!(all, Ok(Share { weight: 512, cap: 150, affinity: 0b1001 }));
        for (lines, complaint) in [
            ("weight = 0", "`weight` is 0; it can be 1 to 65535"),
            ("weight = 65536", "`weight` is 65536"),
            ("cap = 201", "`cap` is 201"),
            ("affinity = []", "`affinity` is empty"),
            ("affinity = [64]", "processor 64"),
            ("affinity = 1", "`affinity` must be an array of integers"),
        ] {
            let error = read(lines).unwrap_err();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
