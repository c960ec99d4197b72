//! What the thesis shows of the loads of two caches, what came out here, and whether the claim's shape holds: pure.

use serde_json::{Value, json};

use super::super::super::verdict::{Claim, claim};
use crate::compare::table::percent;

/// The part of all load with which a cache has more or less all of it.
const ALL: f64 = 0.9;
/// The part of the fuller of two caches that is even.
const EVEN: f64 = 0.55;
/// Our goal for the gain of what is spread.
const GAIN: f64 = 0.5;

/// What the caches had at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// Milliseconds since the first sample.
    pub ms: u64,
    /// Nanoseconds since the last moment.
    pub span_ns: u64,
    /// Bytes of the working sets that are mapped to each cache.
    pub loads: Vec<u64>,
    /// Moves of the VCPU since the last moment.
    pub moves: u64,
}

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Half {
    /// Modelled time of an access.
    pub ns_per_access: f64,
    /// The moments of the part that was measured.
    pub moments: Vec<Moment>,
}

/// Both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Size of each region.
    pub kib: u64,
    /// With `balance`.
    pub before: Half,
    /// With `unify`.
    pub after: Half,
}

impl Moment {
    fn load(&self) -> u64 {
        self.loads.iter().fold(0, |sum, load| sum.saturating_add(*load))
    }

    fn fullest(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }

    fn document(&self) -> Value {
        json!({ "ms": self.ms, "span_ns": self.span_ns, "loads": self.loads, "moves": self.moves })
    }

    fn of(value: &Value) -> Option<Moment> {
        let number = |key: &str| value[key].as_u64();
        let loads = value["loads"].as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
        Some(Moment { ms: number("ms")?, span_ns: number("span_ns")?, loads, moves: number("moves")? })
    }
}

impl Half {
    /// The part of all load that the fuller cache has, in the median of moments: while a phase builds a region again, it is mapped to no
    /// cache. `None`: no cache has any.
    fn share(&self) -> Option<f64> {
        let loaded = self.moments.iter().filter(|moment| moment.load() > 0);
        let mut shares: Vec<_> =
            loaded.map(|moment| moment.fullest() as f64 / moment.load() as f64).collect();
        shares.sort_by(f64::total_cmp);
        shares.get(shares.len().saturating_sub(1) / 2).copied()
    }

    fn moves_per_second(&self) -> f64 {
        let sum = |of: fn(&Moment) -> u64| self.moments.iter().map(of).fold(0, u64::saturating_add);
        sum(|moment| moment.moves) as f64 * 1e9 / sum(|moment| moment.span_ns).max(1) as f64
    }

    /// For the file.
    pub fn document(&self, lab: &str, policy: &str) -> Value {
        let moments: Vec<_> = self.moments.iter().map(Moment::document).collect();
        json!({ "figure": super::NAME, "lab": lab, "policy": policy, "ns_per_access": self.ns_per_access, "moments": moments })
    }

    /// From the file.
    pub fn of(value: &Value) -> Option<Half> {
        let moments = value["moments"].as_array()?.iter().map(Moment::of).collect::<Option<_>>()?;
        Some(Half { ns_per_access: value["ns_per_access"].as_f64()?, moments })
    }
}

/// Titles of the columns.
pub const HEAD: [&str; 6] = ["policy", "at", "cache 0", "cache 1", "moves/s", "access"];

/// What the columns are.
pub const EXPLAINED: &str = "\
*cache 0* and *cache 1* are the working sets of the regions that are mapped to them, at that moment
of the run's modelled time; *moves/s* those of the VCPU between caches since the moment before;
*access* is the mean of the part of the run that is measured.
";

impl Measured {
    /// Rows of the table.
    pub fn rows(&self) -> Vec<[String; HEAD.len()]> {
        let rows = |policy: &'static str, half: &Half| {
            let access = format!("{:.1} ns", half.ns_per_access);
            let row = move |moment: &Moment| {
                let load = |cache: usize| moment.loads.get(cache).map_or(0, |bytes| bytes / 1024);
                [
                    policy.to_owned(),
                    format!("{} ms", moment.ms),
                    format!("{} KiB", load(0)),
                    format!("{} KiB", load(1)),
                    format!("{:.0}", moment.moves as f64 * 1e9 / moment.span_ns.max(1) as f64),
                    access.clone(),
                ]
            };
            half.moments.iter().map(row).collect::<Vec<_>>()
        };
        [rows("balance", &self.before), rows("unify", &self.after)].concat()
    }
}

/// The claims of the figure.
pub fn claims(measured: &Measured) -> Vec<Claim> {
    let Measured { before, after, .. } = measured;
    let share = |half: &Half| match half.share() {
        Some(share) => format!("the fuller cache has {:.0} % of the load", 100.0 * share),
        None => "no cache has any load".into(),
    };
    let (gain, moves) =
        (before.ns_per_access / after.ns_per_access, [before, after].map(Half::moves_per_second));
    vec![
        claim(
            "Before unification loads are unbalanced",
            share(before),
            before.share().is_some_and(|share| share >= ALL),
        ),
        claim("With it they are balanced", share(after), after.share().is_some_and(|share| share <= EVEN)),
        claim(
            "What balances them is micro-scheduling",
            format!("{:.0} moves in a second, before that {:.0}", moves[1], moves[0]),
            moves[1] > 100.0 && moves[0] < moves[1] / 10.0,
        ),
        claim("Our goal: what is spread gains more than 50 %", percent(Some(gain)), gain >= 1.0 + GAIN),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(ns_per_access: f64, loads: &[[u64; 2]], moves: u64) -> Half {
        let moment = |(n, loads): (usize, &[u64; 2])| Moment {
            ms: 100 * n as u64,
            span_ns: 100_000_000,
            loads: loads.to_vec(),
            moves,
        };
        Half { ns_per_access, moments: loads.iter().enumerate().map(moment).collect() }
    }

    fn good() -> Measured {
        Measured {
            kib: 3072,
            before: half(100.0, &[[6 << 20, 0], [0, 6 << 20]], 0),
            after: half(12.0, &[[3 << 20, 3 << 20], [3 << 20, 2 << 20]], 400),
        }
    }

    fn holds(measured: &Measured) -> Vec<bool> {
        claims(measured).iter().map(|claim| claim.holds).collect()
    }

    #[test]
    fn claims_hold_where_the_figure_shows_them() {
        let good = good();
        assert_eq!(holds(&good), [true; 4]);
        assert_eq!(
            holds(&Measured { after: good.before.clone(), ..good.clone() }),
            [true, false, false, false]
        );
        assert_eq!(
            holds(&Measured { before: good.after.clone(), ..good.clone() }),
            [false, true, false, false]
        );
        // A region that is built again has no cache meanwhile.
        let in_phase = half(12.0, &[[3 << 20, 3 << 20], [0, 3 << 20], [3 << 20, 3 << 20]], 400);
        assert_eq!(holds(&Measured { after: in_phase, ..good.clone() }), [true; 4]);
        let slow = Measured { after: half(70.0, &[[1, 1]], 400), ..good.clone() };
        assert_eq!(holds(&slow), [true, true, true, false]);
        let empty = Measured { before: half(100.0, &[[0, 0]], 0), ..good };
        assert_eq!(holds(&empty), [false, true, true, true]);
        assert!(claims(&empty)[0].ours.contains("no cache"));
    }

    #[test]
    fn rows_are_moments_and_what_is_kept_comes_back() {
        let good = good();
        let rows = good.rows();
        assert_eq!(rows.len(), 4);
        let expected = ["unify", "100 ms", "3072 KiB", "2048 KiB", "4000", "12.0 ns"];
        assert_eq!(rows[3], expected.map(str::to_owned));
        assert_eq!(Half::of(&good.after.document("zen3", "unify")), Some(good.after));
        assert_eq!(Half::of(&json!({ "ns_per_access": 1 })), None);
    }
}
