//! The names by which people ask for a way of virtualizing memory: `--mode`, `mode = "…"`, and the monitor's `mode`.

use core::fmt;
use core::num::NonZeroU32;
use core::str::FromStr;

use crate::macros::List;
use crate::policy;
use crate::schedule::Oracle;

/// What a person asks for: which policy chooses the engine of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nested page tables.
    #[default]
    Nested,
    /// Shadow page tables.
    Shadow,
    /// Agile paging: shadow page tables with nested parts.
    Agile(policy::Agile),
    /// Nested or shadow page tables for each address space.
    Commodity(policy::Commodity),
    /// Nested and shadow tables in turn, changing every N exits of the VM.
    Switch(NonZeroU32),
    /// Nested tables, shadow tables and agile paging in turn, changing every N exits of the VM.
    SwitchAll(NonZeroU32),
    /// Either, by chance.
    Random(policy::Random),
    /// By fixed thresholds.
    Threshold(policy::Threshold),
    /// DSP-SAMPLE.
    DspSample(policy::DspSample),
    /// DAV²M.
    Dav2m(policy::Dav2m),
    /// DSP-OFFSET.
    DspOffset(policy::DspOffset),
    /// ASP-SVM.
    AspSvm(policy::AspSvm),
    /// A contextual bandit.
    Bandit(policy::Bandit),
    /// By a schedule.
    Oracle(Oracle),
}

impl Mode {
    /// Whether its policy decides by what is counted in periods of samples.
    pub const fn needs_samples(self) -> bool {
        !matches!(
            self,
            Mode::Nested
                | Mode::Shadow
                | Mode::Agile(_)
                | Mode::Commodity(_)
                | Mode::Switch(_)
                | Mode::SwitchAll(_)
        )
    }

    /// Whether its policy compares performance counters.
    pub const fn needs_counters(self) -> bool {
        self.needs_samples() && !matches!(self, Mode::Random(_))
    }

    /// Whether its policy compares the guest's page faults.
    pub const fn needs_page_faults(self) -> bool {
        matches!(self, Mode::Threshold(_) | Mode::DspOffset(_) | Mode::AspSvm(_))
    }
}

/// A word that is no mode; it is shown as what would be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownMode {
    /// There is no policy of this name.
    Name,
    /// The policy has no parameter of this name.
    Key {
        /// The policy.
        policy: &'static str,
        /// The parameters that it has.
        keys: &'static [&'static str],
    },
    /// The value of a parameter is no number, or out of range.
    Value {
        /// The parameter.
        key: &'static str,
        /// What it may be.
        range: policy::Range,
    },
    /// Parameters that do not fit together.
    Contradiction(&'static str),
}

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnknownMode::Name => f.write_str(
                "use nested, shadow, agile, agile,machine=commodity, switch=N with N from 1 on (such as switch=50), or a policy: random, threshold, \
                 dsp-sample, dav2m, dsp-offset, asp-svm, bandit, oracle, each with its parameters (such as dav2m,window_inst=50000000)",
            ),
            UnknownMode::Key { policy, keys } => {
                let keys = List { words: keys, last: "and" };
                write!(f, "{policy} takes its parameters as key=value; the keys are {keys}")
            }
            UnknownMode::Value { key, range } => {
                write!(f, "{key} is a number from {} to {}", range.least, range.most)
            }
            UnknownMode::Contradiction(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for UnknownMode {}

/// After `switch=N`: all engines, not only nested and shadow tables.
const ALL_ENGINES: &str = ",engines=all";

/// `switch=N`, and what stands behind it.
fn switch(name: &str, parameters: &str) -> Option<Mode> {
    let exits = name.strip_prefix("switch=")?.parse().ok()?;
    match parameters {
        "" => Some(Mode::Switch(exits)),
        ALL_ENGINES => Some(Mode::SwitchAll(exits)),
        _ => None,
    }
}

/// After `agile`: each address space as a whole.
const COMMODITY: &str = ",machine=commodity";

/// `agile`, with what stands behind it.
fn agile(parameters: &str) -> Result<Mode, UnknownMode> {
    match parameters.strip_prefix(COMMODITY) {
        Some(rest) if rest.is_empty() || rest.starts_with(',') => {
            policy::Commodity::parse(rest).map(Mode::Commodity)
        }
        _ => policy::Agile::parse(parameters).map(Mode::Agile),
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Mode, UnknownMode> {
        let (name, parameters) = word.split_at(word.find(',').unwrap_or(word.len()));
        match name {
            "nested" if parameters.is_empty() => Ok(Mode::Nested),
            "shadow" if parameters.is_empty() => Ok(Mode::Shadow),
            policy::Agile::NAME => agile(parameters),
            policy::Random::NAME => policy::Random::parse(parameters).map(Mode::Random),
            policy::Threshold::NAME => policy::Threshold::parse(parameters).map(Mode::Threshold),
            policy::DspSample::NAME => policy::DspSample::parse(parameters).map(Mode::DspSample),
            policy::Dav2m::NAME => policy::Dav2m::checked(parameters).map(Mode::Dav2m),
            policy::DspOffset::NAME => policy::DspOffset::parse(parameters).map(Mode::DspOffset),
            policy::AspSvm::NAME => policy::AspSvm::parse(parameters).map(Mode::AspSvm),
            policy::Bandit::NAME => policy::Bandit::parse(parameters).map(Mode::Bandit),
            Oracle::NAME => Oracle::parse(parameters).map(Mode::Oracle),
            _ => switch(name, parameters).ok_or(UnknownMode::Name),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Nested => f.write_str("nested"),
            Mode::Shadow => f.write_str("shadow"),
            Mode::Agile(agile) => agile.fmt(f),
            Mode::Commodity(commodity) => commodity.fmt(f),
            Mode::Switch(exits) => write!(f, "switch={exits}"),
            Mode::SwitchAll(exits) => write!(f, "switch={exits}{ALL_ENGINES}"),
            Mode::Random(random) => random.fmt(f),
            Mode::Threshold(threshold) => threshold.fmt(f),
            Mode::DspSample(sample) => sample.fmt(f),
            Mode::Dav2m(dav2m) => dav2m.fmt(f),
            Mode::DspOffset(model) => model.fmt(f),
            Mode::AspSvm(model) => model.fmt(f),
            Mode::Bandit(bandit) => bandit.fmt(f),
            Mode::Oracle(schedule) => schedule.fmt(f),
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
        for word in [
            "",
            "Nested",
            "switch",
            "switch=",
            "switch=0",
            "switch=-1",
            "switch=4294967296",
            "nested ",
            "nested,",
            "shadow,seed=1",
            "dav2m=3",
            "agile=3",
            "switch=3,engines=two",
            "switch,engines=all",
            "offset",
        ] {
            assert_eq!(word.parse::<Mode>(), Err(UnknownMode::Name), "{word}");
        }
    }

    #[test]
    fn what_is_wrong_with_parameters_is_said() {
        for (word, why) in [
            (
                "random,period=3",
                "random takes its parameters as key=value; the keys are seed and interval_ms",
            ),
            ("random,", "random takes its parameters as key=value; the keys are seed and interval_ms"),
            (
                "agile,machine=modelled",
                "agile takes its parameters as key=value; the keys are window_ms, timeout_ms and start_ms",
            ),
            (
                "agile,machine=commodity,timeout_ms=1",
                "agile,machine=commodity takes its parameters as key=value; the keys are start_ms, window_ms, cost_milli, \
                 retry_ms and upper_ms",
            ),
            ("random,seed", "seed is a number from 0 to 9223372036854775807"),
            ("random,seed=-1", "seed is a number from 0 to 9223372036854775807"),
            ("dsp-sample,interval_ms=0", "interval_ms is a number from 1 to 60000"),
            ("dsp-sample,interval_ms=60001", "interval_ms is a number from 1 to 60000"),
            ("dsp-offset,faults=99999999999999999999", "faults is a number from -65536000 to 65536000"),
            (
                "dav2m,window_inst=30000000",
                "dav2m needs window_inst <= window_vexit < window_tmiss < window_trans",
            ),
            (
                "dav2m,window_tmiss=20000000",
                "dav2m needs window_inst <= window_vexit < window_tmiss < window_trans",
            ),
        ] {
            assert_eq!(word.parse::<Mode>().unwrap_err().to_string(), why, "{word}");
        }
    }

    #[test]
    fn parameters_are_optional_and_come_back() {
        for word in [
            "agile",
            "agile,window_ms=1,timeout_ms=60000,start_ms=0",
            "agile,machine=commodity",
            "agile,machine=commodity,start_ms=0,cost_milli=1000",
            "agile,machine=commodity,upper_ms=5",
            "random",
            "random,seed=7",
            "threshold,faults=5,interval_ms=10",
            "dsp-sample,exploit=9",
            "dav2m",
            "dav2m,window_inst=1000,threshold_vexit=3",
            "dsp-offset,faults=-65536000,bias=17",
            "asp-svm,misses=-3",
            "bandit,interval_ms=20,explore_milli=0,settle=2",
            "oracle,first=shadow,changes=7:12000",
        ] {
            let mode: Mode = word.parse().unwrap();
            assert_eq!(mode.to_string().parse(), Ok(mode), "{word}");
        }
        assert_eq!(
            "random,seed=3,seed=1".parse::<Mode>().unwrap().to_string(),
            "random",
            "the last one, the default"
        );
    }

    proptest! {
        #[test]
        fn names_come_back(exits in 1..=u32::MAX) {
            let exits = NonZeroU32::new(exits).unwrap();
            for mode in [Mode::Nested, Mode::Shadow, Mode::Switch(exits), Mode::SwitchAll(exits)] {
                prop_assert_eq!(mode.to_string().parse(), Ok(mode));
            }
        }

        #[test]
        fn no_word_panics(word in "(random|threshold|dsp-sample|dav2m|dsp-offset|asp-svm|bandit|oracle)(,(seed|faults|misses|window_inst|margin)?=?-?[0-9]{0,20}){0,4}") {
            if let Ok(mode) = word.parse::<Mode>() {
                prop_assert_eq!(mode.to_string().parse(), Ok(mode));
            }
        }
    }
}
