//! Scores of the two policies of an object: sums of d^age for each judgement, which decay by d at each replacement in the object.
//!
//! Which sum is larger decides, however small both are: in a loop over more pages than there are frames each judgement is older than
//! there are frames. So numbers are floating ([`Real`]); with a fixed point all of them would be 0 beyond some sixty frames.

use super::real::Real;

/// The two policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// CLOCK on the list of all pages: the default.
    Clock,
    /// LIFO+ on the object's stack: the fallback.
    Lifo,
}

impl Side {
    /// The other one.
    pub const fn other(self) -> Side {
        match self {
            Side::Clock => Side::Lifo,
            Side::Lifo => Side::Clock,
        }
    }
}

/// The powers of the decay factor d.
#[derive(Clone, Debug)]
pub struct Decay {
    /// d^(2^n).
    squares: [Real; 32],
}

impl Decay {
    /// Of d in thousandths, below 1000.
    pub fn new(milli: u32) -> Decay {
        let mut square = Real::ratio(milli.min(999), 1000);
        let squares = core::array::from_fn(|_| {
            let this = square;
            square = square.times(square);
            this
        });
        Decay { squares }
    }

    /// d^age.
    fn power(&self, age: u32) -> Real {
        let bits = self.squares.iter().enumerate().filter(|(n, _)| age >> n & 1 == 1);
        bits.fold(Real::ONE, |power, (_, square)| power.times(*square))
    }
}

/// The scores of an object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score([Real; 2]);

impl Score {
    /// The side whose victim goes: the default unless the fallback is better.
    pub fn better(&self) -> Side {
        let [clock, lifo] = self.0;
        if lifo.is_above(clock) { Side::Lifo } else { Side::Clock }
    }

    /// A replacement in the object: what was judged before it counts less.
    pub fn decay(&mut self, decay: &Decay) {
        self.0 = self.0.map(|score| score.times(decay.squares[0]));
    }

    /// A side named an idle page `age` replacements before the other side did.
    pub fn praise(&mut self, side: Side, age: u32, decay: &Decay) {
        let score = &mut self.0[side as usize];
        *score = score.plus(decay.power(age));
    }

    /// A side named a page `age` replacements ago, which was accessed since.
    pub fn punish(&mut self, side: Side, age: u32, decay: &Decay) {
        let score = &mut self.0[side as usize];
        *score = score.plus(decay.power(age).negative());
    }

    /// A side's score in 2^-32, for people and tests.
    pub fn of(&self, side: Side) -> i64 {
        self.0[side as usize].fixed(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thesis' figure 3.4, with d = 0.5.
    #[test]
    fn scores_as_in_the_papers_example() {
        const ONE: i64 = 1 << 32;
        let decay = Decay::new(500);
        let mut score = Score([6, 4].map(|tenths| Real::ratio(tenths, 10)));
        let is = |score: &Score, clock: i64, lifo: i64| {
            let near = |side, tenths: i64| (score.of(side) - ONE / 10_000 * tenths).abs() < 10_000;
            assert!(near(Side::Clock, clock) && near(Side::Lifo, lifo), "{score:?} {clock} {lifo}");
        };
        score.decay(&decay);
        is(&score, 3000, 2000);
        // Replacement 13: CLOCK names B, which LIFO+ named at 12.
        score.decay(&decay);
        score.praise(Side::Lifo, 1, &decay);
        is(&score, 1500, 6000);
        assert_eq!(score.better(), Side::Lifo);
        // 14; then A comes back, which CLOCK named at 12.
        score.decay(&decay);
        score.punish(Side::Clock, 2, &decay);
        is(&score, -1750, 3000);
        // 15: CLOCK names C, which LIFO+ named at 13.
        score.decay(&decay);
        score.praise(Side::Lifo, 2, &decay);
        is(&score, -875, 4000);
    }

    #[test]
    fn judgements_of_any_age_decide() {
        for (milli, age) in [(700, 100), (700, 300_000), (1, 4_000_000), (999, u32::MAX)] {
            let decay = Decay::new(milli);
            let mut score = Score::default();
            assert_eq!(score.better(), Side::Clock, "the default wins a tie");
            score.praise(Side::Lifo, age, &decay);
            assert_eq!((score.better(), score.of(Side::Lifo)), (Side::Lifo, 0));
            score.decay(&decay);
            assert_eq!(score.better(), Side::Lifo);
            // A younger judgement has more weight.
            score.praise(Side::Clock, age - 1, &decay);
            assert_eq!(score.better(), Side::Clock);
            score.punish(Side::Clock, age - 2, &decay);
            assert_eq!(score.better(), Side::Lifo);
        }
    }

    #[test]
    fn nothing_overflows() {
        let decay = Decay::new(999);
        let mut score = Score::default();
        for _ in 0..100_000 {
            score.praise(Side::Clock, 0, &decay);
            score.punish(Side::Lifo, 0, &decay);
        }
        assert!(score.of(Side::Clock) > 0 && score.of(Side::Lifo) < 0 && score.better() == Side::Clock);
    }
}
