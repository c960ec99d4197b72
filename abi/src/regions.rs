//! Whether the hypervisor finds regions of a VM's memory and maps them to caches, and how: the key `regions` of the configuration.
//!
//! A policy's name with parameters behind it, as in `unify,q_us=50,period_ms=500`. What is not named has its default.

use core::fmt;
use core::str::FromStr;

words! {
    /// How regions are mapped to caches.
    RegionPolicy {
        /// Loads are evened; the regions of an address space stay together.
        Balance = "balance",
        /// The same, but an address space that several caches serve better is spread over them.
        Unify = "unify",
        /// Each VM has a part of the caches by its weight.
        Partition = "partition",
    }
}

words! {
    /// What an address space of a VM is. Regions belong to one, and are mapped to caches together with the others of it.
    Spaces {
        /// The VM as a whole.
        Vm = "vm",
        /// What the guest's programs have one root of page tables for, CR3.
        Cr3 = "cr3",
    }
}

/// Regioning and balance of a VM, with their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regioning {
    /// How regions are mapped to caches.
    pub policy: RegionPolicy,
    /// Regions merge that are idle for less, in microseconds.
    pub q_us: u32,
    /// Virtual time of a VCPU from one phase to the next, in milliseconds.
    pub period_ms: u32,
    /// Virtual time of a phase, in milliseconds.
    pub phase_ms: u32,
    /// What a move of a VCPU to another cache costs, in microseconds.
    pub move_us: u32,
    /// The shortest time of use of a region with which an address space is spread, in microseconds.
    pub least_us: u32,
    /// The longest.
    pub most_us: u32,
    /// Size of each last-level cache in KiB; 0: as the processor says.
    pub cache_kib: u32,
    /// What an address space is.
    pub spaces: Spaces,
}

/// The parameter that is no number.
const SPACES: &str = "spaces";

/// Names, least and greatest values of the parameters.
const KEYS: [(&str, u32, u32); 7] = [
    ("q_us", 1, 1_000_000),
    ("period_ms", 10, 60_000),
    ("phase_ms", 1, 1000),
    ("move_us", 0, 100_000),
    ("least_us", 0, 1_000_000),
    ("most_us", 0, 1_000_000),
    ("cache_kib", 0, 1 << 30),
];

impl Regioning {
    /// A policy with the parameters of the thesis' Clovertown, where it has any.
    pub const fn new(policy: RegionPolicy) -> Regioning {
        Regioning {
            policy,
            q_us: 100,
            period_ms: 1000,
            phase_ms: 10,
            move_us: 16,
            least_us: 100,
            most_us: 5000,
            cache_kib: 0,
            spaces: Spaces::Cr3,
        }
    }

    const fn values(&self) -> [u32; KEYS.len()] {
        [self.q_us, self.period_ms, self.phase_ms, self.move_us, self.least_us, self.most_us, self.cache_kib]
    }

    fn value_mut(&mut self, key: &str) -> Option<&mut u32> {
        Some(match key {
            "q_us" => &mut self.q_us,
            "period_ms" => &mut self.period_ms,
            "phase_ms" => &mut self.phase_ms,
            "move_us" => &mut self.move_us,
            "least_us" => &mut self.least_us,
            "most_us" => &mut self.most_us,
            "cache_kib" => &mut self.cache_kib,
            _ => return None,
        })
    }
}

/// The key's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Regions {
    /// The hypervisor looks for none.
    #[default]
    Off,
    /// It does.
    On(Regioning),
}

/// A word that is no such value; it is shown as what would be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownRegions {
    /// There is no policy of this name.
    Name,
    /// There is no parameter of this name.
    Key,
    /// The value of a parameter is no number, or out of range.
    Value(&'static str, u32, u32),
    /// Address spaces are something else.
    Spaces,
    /// A phase is as long as the time from one to the next.
    Phase,
}

impl fmt::Display for UnknownRegions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnknownRegions::Name => f.write_str("use off, balance, unify or partition"),
            UnknownRegions::Key => f.write_str(
                "parameters are key=value; the keys are q_us, period_ms, phase_ms, move_us, least_us, most_us, cache_kib and spaces",
            ),
            UnknownRegions::Value(key, least, most) => write!(f, "{key} is a number from {least} to {most}"),
            UnknownRegions::Spaces => f.write_str("spaces is vm or cr3"),
            UnknownRegions::Phase => f.write_str("phase_ms must be less than period_ms"),
        }
    }
}

impl core::error::Error for UnknownRegions {}

impl FromStr for Regions {
    type Err = UnknownRegions;

    fn from_str(word: &str) -> Result<Regions, UnknownRegions> {
        let mut words = word.split(',');
        let name = words.next().unwrap_or_default();
        if word == "off" {
            return Ok(Regions::Off);
        }
        let mut regioning = Regioning::new(name.parse().map_err(|_| UnknownRegions::Name)?);
        for word in words {
            let (name, value) = word.split_once('=').ok_or(UnknownRegions::Key)?;
            if name == SPACES {
                regioning.spaces = value.parse().map_err(|_| UnknownRegions::Spaces)?;
                continue;
            }
            let (key, least, most) =
                KEYS.into_iter().find(|(key, ..)| *key == name).ok_or(UnknownRegions::Key)?;
            let number = value.parse().ok().filter(|n| (least..=most).contains(n) && !value.starts_with('+'));
            let number = number.ok_or(UnknownRegions::Value(key, least, most))?;
            *regioning.value_mut(key).ok_or(UnknownRegions::Key)? = number;
        }
        if regioning.phase_ms >= regioning.period_ms {
            return Err(UnknownRegions::Phase);
        }
        Ok(Regions::On(regioning))
    }
}

impl fmt::Display for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Regions::On(regioning) = self else { return f.write_str("off") };
        f.write_str(regioning.policy.name())?;
        let defaults = Regioning::new(regioning.policy);
        let values = regioning.values().into_iter().zip(defaults.values()).zip(KEYS);
        values
            .filter(|((own, default), _)| own != default)
            .try_for_each(|((own, _), (key, ..))| write!(f, ",{key}={own}"))?;
        if regioning.spaces == defaults.spaces { Ok(()) } else { write!(f, ",{SPACES}={}", regioning.spaces) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn values_come_back() {
        for word in [
            "off",
            "balance",
            "unify,q_us=50,cache_kib=4096",
            "partition,period_ms=10,phase_ms=9",
            "unify,q_us=7,spaces=vm",
        ] {
            assert_eq!(word.parse::<Regions>().unwrap().to_string(), word);
        }
        assert_eq!("unify,q_us=100".parse::<Regions>().unwrap().to_string(), "unify", "the default");
        assert_eq!("unify,spaces=cr3,q_us=7".parse::<Regions>().unwrap().to_string(), "unify,q_us=7");
    }

    #[test]
    fn each_key_has_its_own_value() {
        for (key, least, most) in KEYS {
            let word = std::format!("balance,{key}={}", if key == "phase_ms" { 9 } else { most });
            assert_eq!(word.parse::<Regions>().unwrap().to_string(), word);
            for bad in [i64::from(least) - 1, i64::from(most) + 1] {
                let word = std::format!("balance,{key}={bad}");
                assert_eq!(word.parse::<Regions>(), Err(UnknownRegions::Value(key, least, most)), "{word}");
            }
        }
    }

    #[test]
    fn what_is_none_is_said() {
        for (word, why) in [
            ("", "use off, balance, unify or partition"),
            ("on", "use off, balance, unify or partition"),
            ("off,q_us=1", "use off, balance, unify or partition"),
            ("unify,q", "parameters are key=value"),
            ("unify,", "parameters are key=value"),
            ("unify,q_ms=1", "the keys are q_us, period_ms"),
            ("unify,q_us=+1", "q_us is a number from 1 to 1000000"),
            ("unify,spaces=", "spaces is vm or cr3"),
            ("unify,spaces=vms", "spaces is vm or cr3"),
            ("unify,phase_ms=10,period_ms=10", "phase_ms must be less than period_ms"),
        ] {
            let said = word.parse::<Regions>().unwrap_err().to_string();
            assert!(said.contains(why), "{word}: {said}");
        }
    }
}
