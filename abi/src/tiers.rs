//! Fast memory beside the machine's other memory: where it is, and how it is used.

use core::fmt;
use core::str::FromStr;

use crate::config::Replacement;

words! {
    /// How the fast memory is divided among the VMs.
    #[derive(Default)]
    Sharing {
        /// What each VM's `fast_mib` says.
        Static = "static",
        /// By the VMs' weights.
        #[default]
        Shares = "shares",
        /// By their working sets.
        Wss = "wss",
        /// In eight steps, up as soon as a VM misses fast memory.
        EstateQos = "estate-qos",
        /// In eight steps, down as soon as a VM can do with less.
        EstateResource = "estate-resource",
    }
}

impl Sharing {
    /// Whether VMs have E-states by it.
    pub const fn has_states(self) -> bool {
        matches!(self, Sharing::EstateQos | Sharing::EstateResource)
    }
}

words! {
    /// Which pages are worth fast memory.
    #[derive(Default)]
    HotPolicy {
        /// Those that were accessed in 22 of the last 32 samples.
        #[default]
        Threshold = "threshold",
        /// As many of the most accessed as there is room for.
        Histogram = "histogram",
        /// All that are accessed, and those that are there leave for them: for tests, in which pages move all the time.
        Rotate = "rotate",
    }
}

/// Which pages leave fast memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Those without an access in 30 samples, as many as others need room: `lazy`.
    #[default]
    Lazy,
    /// Those that this policy of page replacement evicts for others; its own word.
    By(Replacement),
}

impl Eviction {
    /// All words for it.
    pub const WORDS: [&'static str; Replacement::WORDS.len() + 1] = {
        let mut words = ["lazy"; Replacement::WORDS.len() + 1];
        let mut at = 0;
        while at < Replacement::WORDS.len() {
            words[at + 1] = Replacement::WORDS[at];
            at += 1;
        }
        words
    };

    /// The policy; `None`: none.
    pub const fn policy(self) -> Option<Replacement> {
        match self {
            Eviction::Lazy => None,
            Eviction::By(policy) => Some(policy),
        }
    }
}

impl FromStr for Eviction {
    type Err = crate::UnknownWord;

    fn from_str(word: &str) -> Result<Eviction, crate::UnknownWord> {
        match word {
            "lazy" => Ok(Eviction::Lazy),
            _ => {
                word.parse().map(Eviction::By).map_err(|_| crate::UnknownWord { expected: &Eviction::WORDS })
            }
        }
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.policy().map_or("lazy", Replacement::name))
    }
}

/// What the monitor's answer to `tiers all` and `tiers NAME STATE` begins with, unless it says why it cannot be.
pub const ANSWER: &str = "fast memory:";

/// Ranges of fast memory that a machine may have.
pub const MAX_FAST_RANGES: usize = 8;

/// A range of fast memory, written `MIB@MIB`: how much, and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRange {
    /// The first MiB of the machine's physical addresses.
    pub start_mib: u64,
    /// MiB, 1 or more.
    pub mib: u64,
}

impl FastRange {
    /// MiB up to which addresses go: 128 TiB.
    const END: u64 = 1 << 27;

    /// The first MiB behind it.
    pub const fn end_mib(&self) -> u64 {
        self.start_mib + self.mib
    }

    /// Whether both have memory in common.
    pub const fn overlaps(&self, other: &FastRange) -> bool {
        self.start_mib < other.end_mib() && other.start_mib < self.end_mib()
    }
}

impl fmt::Display for FastRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.mib, self.start_mib)
    }
}

/// The text is no range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotARange;

impl fmt::Display for NotARange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fast memory is MIB@MIB: how much, and where it begins, as in 64@768")
    }
}

impl core::error::Error for NotARange {}

impl FromStr for FastRange {
    type Err = NotARange;

    fn from_str(text: &str) -> Result<FastRange, NotARange> {
        let (mib, start) = text.split_once('@').ok_or(NotARange)?;
        let number = |text: &str| text.parse().ok().filter(|mib: &u64| *mib < FastRange::END);
        let (mib, start_mib) = number(mib).zip(number(start)).ok_or(NotARange)?;
        let range = FastRange { start_mib, mib };
        if mib == 0 || range.end_mib() > FastRange::END { Err(NotARange) } else { Ok(range) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn policies_have_the_same_names_everywhere() {
        for policy in Replacement::ALL {
            let eviction: Eviction = policy.name().parse().unwrap();
            assert_eq!((eviction.policy(), Eviction::By(*policy)), (Some(*policy), eviction));
        }
        assert_eq!(Eviction::WORDS.len(), Replacement::ALL.len() + 1);
        for word in Eviction::WORDS {
            assert_eq!(word.parse::<Eviction>().unwrap().to_string(), word);
        }
        let refused = "fifo".parse::<Eviction>().unwrap_err().to_string();
        assert_eq!(refused, "use lazy, clock, clock-pro, seq, apr, lru, s3-fifo or sieve");
    }

    #[test]
    fn ranges() {
        let range: FastRange = "64@768".parse().unwrap();
        assert_eq!((range.start_mib, range.end_mib(), range.to_string()), (768, 832, "64@768".to_string()));
        assert!(range.overlaps(&"1@831".parse().unwrap()) && !range.overlaps(&"9@832".parse().unwrap()));
        for bad in
            ["", "64", "0@1", "@", "-1@4", "1@134217728", "134217727@2", "1 @2", "99999999999999999999@1"]
        {
            assert!(bad.parse::<FastRange>().is_err(), "{bad}");
        }
    }
}
