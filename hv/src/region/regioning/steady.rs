//! Whether rounds still lead to anything new, and how many turns are left out if they do not.
//!
//! The thesis has a phase once a second for ever. Each change of region faults in it, so where regions are large a phase costs several
//! times its length. Once two rounds in a row have ended with the same loads on the same caches, turns are left out: 1 at first, then
//! 2, 4, and [`MOST_LEFT_OUT`] each time. A round that ends otherwise begins again. Samples go on meanwhile (`region::history`), and
//! where they find more or less accessed than after the last round, the next turn is taken.

use crate::region::caches::Loads;

/// Turns that are left out in a row at most: by the defaults a program that changes unseen by samples is judged again after 9 s.
const MOST_LEFT_OUT: u8 = 8;

/// What a round of an address space has led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Working sets of its regions on each cache, in quarters of a frame.
    pub loads: Loads,
    /// Frames that the latest sample has found accessed. Always 0 where processors do not tell.
    pub accessed: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Steady {
    last: Option<Outcome>,
    /// Turns to leave out before the next phase, and how many were left out before the last one.
    left_out: u8,
    last_left_out: u8,
}

impl Steady {
    /// A round has ended so. What differs by less than `least` frames is the same.
    pub fn ended(&mut self, outcome: Outcome, least: u32) {
        let is_same = |last: Outcome| {
            let mut loads = last.loads.iter().zip(&outcome.loads);
            loads.all(|(before, now)| before.abs_diff(*now) / 4 < least)
                && !is_other(last, outcome.accessed, least)
        };
        self.last_left_out = match self.last {
            Some(last) if is_same(last) => (2 * self.last_left_out).clamp(1, MOST_LEFT_OUT),
            _ => 0,
        };
        (self.last, self.left_out) = (Some(outcome), self.last_left_out);
    }

    /// Whether a turn that has come is taken, where the latest sample has found this many frames accessed.
    pub fn takes_turn(&mut self, accessed: u32, least: u32) -> bool {
        if self.left_out > 0 && !self.last.is_some_and(|last| is_other(last, accessed, least)) {
            self.left_out -= 1;
            return false;
        }
        self.left_out = 0;
        true
    }
}

/// Whether this many accessed frames are others than after a round.
fn is_other(last: Outcome, accessed: u32, least: u32) -> bool {
    last.accessed.abs_diff(accessed) >= least.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u32 = 100;

    /// Turns until the next phase, with this many accessed frames in each sample.
    fn turns(steady: &mut Steady, accessed: u32) -> u32 {
        (1..).find(|_| steady.takes_turn(accessed, LEAST)).unwrap()
    }

    fn outcome(load: u32, accessed: u32) -> Outcome {
        let mut outcome = Outcome { accessed, ..Outcome::default() };
        outcome.loads[3] = 4 * load;
        outcome
    }

    #[test]
    fn turns_are_left_out_while_rounds_end_alike() {
        let mut steady = Steady::default();
        for (n, expected) in [1, 2, 3, 5, 9, 9].into_iter().enumerate() {
            // What differs is less than what counts.
            let (load, accessed) = if n % 2 == 0 { (1000, 500) } else { (1099, 599) };
            steady.ended(outcome(load, accessed), LEAST);
            assert_eq!(turns(&mut steady, 550), expected);
        }
    }

    #[test]
    fn a_round_that_ends_otherwise_begins_again() {
        let mut steady = Steady::default();
        let mut after = |outcome: Outcome| {
            steady.ended(outcome, LEAST);
            turns(&mut steady, outcome.accessed)
        };
        assert_eq!([after(outcome(1000, 500)), after(outcome(1000, 500))], [1, 2]);
        assert_eq!([after(outcome(1100, 500)), after(outcome(1100, 500))], [1, 2], "another load");
        assert_eq!([after(outcome(1100, 400)), after(outcome(1100, 400))], [1, 2], "other accesses");
        let mut elsewhere = Outcome { accessed: 400, ..Outcome::default() };
        elsewhere.loads[4] = 4400;
        assert_eq!(after(elsewhere), 1, "another cache");
    }

    #[test]
    fn other_accesses_end_the_wait() {
        let mut steady = Steady::default();
        for _ in 0..4 {
            steady.ended(outcome(1000, 500), LEAST);
        }
        assert!(!steady.takes_turn(500, LEAST) && !steady.takes_turn(401, LEAST));
        assert!(steady.takes_turn(400, LEAST));
        steady.ended(outcome(1000, 400), LEAST);
        assert_eq!(turns(&mut steady, 400), 1, "that round has begun again");
    }
}
