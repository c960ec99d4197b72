//! The parameters of the policies that choose a VM's engine while it runs, and how people write them: `NAME[,key=value]…`.
//!
//! The algorithms are `hv/src/paging/policy`, docs/policies.md explains them. All parameters are integers, because the
//! hypervisor computes without floating point; a fraction is in thousandths ([`MILLI`]) or in 65536ths ([`ONE`]).

use core::fmt;

use crate::mode::UnknownMode;

/// 1 in parameters that end in `_milli`.
pub const MILLI: u32 = 1000;
/// 1 in weights of a linear model and in logarithms: 16 bits behind the point.
pub const ONE: i64 = 1 << 16;

/// Declares the parameters of a policy: fields with their keys, ranges and defaults.
macro_rules! parameters {
    ($(#[$meta:meta])* $type:ident $name:literal {
        $($(#[$doc:meta])* $key:ident: $int:ty = $default:expr, $least:expr, $most:expr;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $type { $($(#[$doc])* pub $key: $int,)* }

        impl Default for $type {
            fn default() -> $type {
                $type { $($key: $default,)* }
            }
        }

        impl $type {
            /// The policy's name.
            pub const NAME: &'static str = $name;
            /// The keys of its parameters.
            pub const KEYS: &'static [&'static str] = &[$(stringify!($key),)*];

            /// The parameters by their keys.
            pub fn values(&self) -> [(&'static str, i64); Self::KEYS.len()] {
                [$((stringify!($key), self.$key as i64),)*]
            }

            /// From what stands behind the name: empty, or `,key=value` for each parameter that is not the default. The
            /// last one wins where a key stands twice.
            ///
            /// # Errors
            /// [`UnknownMode`]: a key that the policy lacks, or a value out of its range.
            pub fn parse(parameters: &str) -> Result<$type, UnknownMode> {
                let mut made = $type::default();
                for parameter in parameters.split(',').skip(1) {
                    let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
                    match key {
                        $(stringify!($key) => {
                            const RANGE: Range = Range { least: $least as i64, most: $most as i64 };
                            let range = UnknownMode::Value { key: stringify!($key), range: RANGE };
                            let value: i64 = value.parse().map_err(|_| range)?;
                            if !(RANGE.least..=RANGE.most).contains(&value) {
                                return Err(range);
                            }
                            made.$key = value as $int;
                        })*
                        _ => return Err(UnknownMode::Key { policy: $name, keys: $type::KEYS }),
                    }
                }
                Ok(made)
            }
        }

        impl fmt::Display for $type {
            /// The name, and the parameters that are not the default.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let default = $type::default();
                f.write_str($name)?;
                $(if self.$key != default.$key {
                    write!(f, ",{}={}", stringify!($key), self.$key)?;
                })*
                Ok(())
            }
        }
    };
}

/// What a parameter may be, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The least value.
    pub least: i64,
    /// The largest.
    pub most: i64,
}

/// Instructions of a window at most: some minutes of a fast processor.
const MOST_INSTRUCTIONS: i64 = 1_000_000_000_000;
/// Milliseconds of a window at most.
const LONGEST_MS: i64 = 60_000;

parameters! {
    /// `agile`: the engine of that name, and when it moves tables between the shadow and the nested part of an address space.
    Agile "agile" {
        /// Milliseconds within which a second write to a table moves it to the nested part.
        window_ms: u32 = 1000, 1, LONGEST_MS;
        /// Milliseconds without a change after which a table moves to the shadow part.
        timeout_ms: u32 = 1000, 1, LONGEST_MS;
        /// Milliseconds of its own time for which an address space is nested from the root. 0: it begins in the shadow part.
        start_ms: u32 = 1000, 0, LONGEST_MS;
    }
}

parameters! {
    /// `agile,machine=commodity`: each address space is nested or shadow as a whole, on processors as they are.
    Commodity "agile,machine=commodity" {
        /// Milliseconds of its own time for which an address space is nested at first; two windows are enough where the guest kit
        /// counts few page faults. 0: it begins shadow.
        start_ms: u32 = 1000, 0, LONGEST_MS;
        /// Milliseconds of its own time after which the cost of shadow tables is judged.
        window_ms: u32 = 5, 1, LONGEST_MS;
        /// What shadow tables may cost of an address space's time, in thousandths. Two windows above this make it nested, beside up to
        /// four while the guest kit counts few page faults.
        cost_milli: u32 = 20, 1, MILLI;
        /// Milliseconds of its own time after which shadow tables are tried again; doubled each time that they cost too much.
        retry_ms: u32 = 1000, 1, LONGEST_MS;
        /// Milliseconds within which eight writes to a table of level 2 or 3 leave it unsync, in a shadow address space; without a
        /// change for as long it is write-protected again. 0: all are write-protected.
        upper_ms: u32 = 0, 0, LONGEST_MS;
    }
}

parameters! {
    /// `random`: either engine with the same chance for each interval. Its logs train the other policies.
    Random "random" {
        /// What the sequence starts from.
        seed: u64 = 1, 0, i64::MAX;
        /// Milliseconds of an interval.
        interval_ms: u32 = 1000, 1, LONGEST_MS;
    }
}

parameters! {
    /// `threshold`: fixed thresholds, after Wang et al. (VEE 2011). Nested paging while the guest's page faults are many, shadow
    /// paging while they are few and misses of the TLB many.
    Threshold "threshold" {
        /// Page faults of the guest in a million of its instructions, above which nested paging is used.
        faults: u32 = 100, 0, u32::MAX;
        /// Misses of the data TLB in a million instructions of the guest, above which shadow paging is used.
        misses: u32 = 2000, 0, u32::MAX;
        /// Milliseconds of an interval.
        interval_ms: u32 = 1000, 1, LONGEST_MS;
    }
}

parameters! {
    /// `dsp-sample`: tries both engines by turns, then uses the better one for some time (Bae et al., ICPP 2018, 3.1 and 4.2).
    DspSample "dsp-sample" {
        /// Milliseconds of an interval.
        interval_ms: u32 = 100, 1, LONGEST_MS;
        /// Intervals that each engine gets while both are tried.
        explore: u32 = 3, 1, 1000;
        /// Intervals for which the better engine is used then.
        exploit: u32 = 50, 1, 1_000_000;
    }
}

parameters! {
    /// `dav2m`: adaptive thresholds and probes that compare cycles per instruction (Bae, Lange, Dinda, ICAC 2011, section 6).
    /// The paper's windows are fifty times these: they are for a processor of 2 GHz, and a lab machine runs at some
    /// hundred million instructions a second.
    Dav2m "dav2m" {
        /// By how much the cycles per instruction of one engine must exceed the other's to be worse, in thousandths.
        factor_milli: u32 = 1100, MILLI, 100 * MILLI;
        /// Instructions between two looks at the counters: a step of the moving averages.
        window_inst: u64 = 20_000_000, 1000, MOST_INSTRUCTIONS;
        /// Steps of the moving averages. Fewer forget sooner what was before a phase, and what a change has cost.
        steps: u32 = 10, 1, 10;
        /// Instructions in which exits for shadow paging are counted, and of a probe of nested paging.
        window_vexit: u64 = 20_000_000, 1000, MOST_INSTRUCTIONS;
        /// Instructions in which misses of the TLB are counted, and of a probe of shadow paging.
        window_tmiss: u64 = 200_000_000, 1000, MOST_INSTRUCTIONS;
        /// Two changes in the same direction within this many instructions raise both thresholds.
        window_trans: u64 = 2_000_000_000, 1000, MOST_INSTRUCTIONS;
        /// Instructions after a probe of nested paging in which misses of the TLB do not count.
        window_prepaging: u64 = 40_000_000, 1000, MOST_INSTRUCTIONS;
        /// Exits for shadow paging in a window, above which nested paging is tried; at first.
        threshold_vexit: u64 = 200, 1, MOST_INSTRUCTIONS;
        /// Misses of the data TLB in a window, above which shadow paging is tried; at first.
        threshold_tmiss: u64 = 2000, 1, MOST_INSTRUCTIONS;
        /// What a threshold is multiplied with after a probe that failed, in thousandths.
        raise_milli: u32 = 2000, MILLI, 1000 * MILLI;
        /// What a threshold is divided by after a probe that succeeded, in thousandths.
        lower_milli: u32 = 1250, MILLI, 1000 * MILLI;
    }
}

/// Largest weight of a linear model: beyond it one miss would outweigh all else.
pub const LARGEST_WEIGHT: i64 = 1000 * ONE;

parameters! {
    /// `dsp-offset`: a linear model of page faults and misses of the TLB (Bae et al., ICPP 2018, 3.2), as `pal` reads it from a
    /// model file.
    DspOffset "dsp-offset" {
        /// Weight of log2(1 + page faults of the guest), in 65536ths.
        faults: i64 = -ONE, -LARGEST_WEIGHT, LARGEST_WEIGHT;
        /// Weight of log2(1 + misses of the data TLB), in 65536ths.
        misses: i64 = ONE, -LARGEST_WEIGHT, LARGEST_WEIGHT;
        /// What is added, in 65536ths.
        bias: i64 = 0, -100 * LARGEST_WEIGHT, 100 * LARGEST_WEIGHT;
        /// The engine stays as it is while the sum is not farther from 0 than this, in 65536ths.
        margin: i64 = ONE / 4, 0, LARGEST_WEIGHT;
        /// Milliseconds of an interval.
        interval_ms: u32 = 1000, 1, LONGEST_MS;
    }
}

parameters! {
    /// `asp-svm`: a linear model with labels from runs of every choice (Kuang et al.); it has no margin.
    AspSvm "asp-svm" {
        /// Weight of log2(1 + page faults of the guest), in 65536ths.
        faults: i64 = -ONE, -LARGEST_WEIGHT, LARGEST_WEIGHT;
        /// Weight of log2(1 + misses of the data TLB), in 65536ths.
        misses: i64 = ONE, -LARGEST_WEIGHT, LARGEST_WEIGHT;
        /// What is added, in 65536ths.
        bias: i64 = 0, -100 * LARGEST_WEIGHT, 100 * LARGEST_WEIGHT;
        /// Milliseconds of an interval.
        interval_ms: u32 = 1000, 1, LONGEST_MS;
    }
}

parameters! {
    /// `bandit`: learns while the guest runs what either engine gains for each rate of page faults and of misses of the TLB.
    Bandit "bandit" {
        /// Milliseconds of an interval.
        interval_ms: u32 = 50, 1, LONGEST_MS;
        /// What trials of the other engine may lose in the long run, in thousandths of the guest's time; with 0 there are none.
        explore_milli: u32 = 5, 0, MILLI;
        /// By how much a gain may change in a minute, as a logarithm to the base of 2, in thousandths; less where it is seen not to.
        drift_milli: u32 = 1000, 0, 10 * MILLI;
        /// Gains below this are not worth a change, in thousandths.
        margin_milli: u32 = 10, 0, MILLI;
        /// Intervals of a trial at most, while the speed after a change still rises.
        settle: u32 = 8, 2, 1000;
    }
}

impl From<AspSvm> for DspOffset {
    /// The same model with no margin.
    fn from(model: AspSvm) -> DspOffset {
        let AspSvm { faults, misses, bias, interval_ms } = model;
        DspOffset { faults, misses, bias, margin: 0, interval_ms }
    }
}

impl Dav2m {
    /// What [`Dav2m::parse`] makes, if the windows fit together.
    ///
    /// # Errors
    /// [`UnknownMode`] also for windows that are not in the order that the paper demands.
    pub fn checked(parameters: &str) -> Result<Dav2m, UnknownMode> {
        let made = Dav2m::parse(parameters)?;
        let windows = [made.window_vexit, made.window_tmiss, made.window_trans];
        if made.window_inst > made.window_vexit || !windows.is_sorted_by(|a, b| a < b) {
            return Err(UnknownMode::Contradiction(
                "dav2m needs window_inst <= window_vexit < window_tmiss < window_trans",
            ));
        }
        Ok(made)
    }
}
