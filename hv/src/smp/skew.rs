//! How far the time-stamp counters of two PCPUs are apart.
//!
//! One PCPU reads its counter, then the other one's is read, then the first reads its own again. If the counters are in step, the
//! second value lies between the other two. Each round bounds the difference from both sides; all rounds together bound it
//! as closely as the fastest ones.

/// What the rounds say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    lowest: i64,
    highest: i64,
}

impl Default for Skew {
    fn default() -> Self {
        Skew { lowest: i64::MIN, highest: i64::MAX }
    }
}

impl Skew {
    /// Adds a round: the first PCPU's counter, then the other's, then the first one's again.
    pub fn add(&mut self, before: u64, other: u64, after: u64) {
        let difference = |mine: u64| other.wrapping_sub(mine) as i64;
        // The other counter was read between the two readings of ours, which bound the difference from both sides.
        self.lowest = self.lowest.max(difference(after));
        self.highest = self.highest.min(difference(before));
    }

    /// By how many ticks the other counter is ahead (or behind, below zero), at least; 0 if they may be in step.
    pub fn ticks(self) -> i64 {
        match self {
            // Two rounds contradict each other: the counters do not run at the same speed.
            Skew { lowest, highest } if lowest > highest => furthest(lowest, highest),
            Skew { lowest, .. } if lowest > 0 => lowest,
            Skew { highest, .. } if highest < 0 => highest,
            _ => 0,
        }
    }

    /// How exactly that is known, in ticks.
    pub fn uncertainty(self) -> u64 {
        self.highest.abs_diff(self.lowest)
    }
}

/// The one that is further from zero.
fn furthest(a: i64, b: i64) -> i64 {
    if a.unsigned_abs() > b.unsigned_abs() { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_known_at_first() {
        assert_eq!(Skew::default().ticks(), 0);
        assert_eq!(Skew::default().uncertainty(), u64::MAX);
    }

    #[test]
    fn counters_that_drift_are_not_in_step() {
        let mut skew = Skew::default();
        skew.add(100, 210, 110);
        skew.add(200, 330, 210);
        assert_eq!(skew.ticks(), 120);
    }

    proptest! {
        /// The bounds hold the true difference whatever the delays are; a difference larger than all delays is found.
        #[test]
        fn rounds_bound_the_difference(truth in -1_000_000i64..1_000_000, start: u64,
                                       delays in prop::collection::vec((1u64..5000, 1u64..5000), 1..20)) {
            let mut skew = Skew::default();
            let mut now = start;
            for (there, back) in &delays {
                let other = now.wrapping_add(*there).wrapping_add_signed(truth);
                skew.add(now, other, now.wrapping_add(there + back));
                now = now.wrapping_add(there + back + 7);
            }
            prop_assert!(skew.lowest <= truth && truth <= skew.highest);
            let fastest = delays.iter().map(|(there, back)| there + back).min().unwrap();
            prop_assert!(skew.uncertainty() <= fastest);
            prop_assert!(skew.ticks().abs() <= truth.abs());
            if truth.unsigned_abs() > 10_000 {
                prop_assert!(skew.ticks().signum() == truth.signum());
            }
        }
    }
}
