//! Scores of the two policies of an object, in fixed point: sums of d^age for each judgement, which decay by d at each replacement
//! in the object.

/// Bits behind the point.
const FRACTION: u32 = 32;
/// Ages from here on count nothing: 0.9^256 is below 2^-32.
const AGES: usize = 256;

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
pub struct Decay([u64; AGES]);

impl Decay {
    /// Of d in thousandths, below 1000.
    pub fn new(milli: u32) -> Decay {
        let factor = (u64::from(milli.min(999)) << FRACTION) / 1000;
        let mut powers = [1u64 << FRACTION; AGES];
        for age in 1..AGES {
            powers[age] = (powers[age - 1] * factor) >> FRACTION;
        }
        Decay(powers)
    }

    fn power(&self, age: u32) -> i64 {
        self.0.get(age as usize).map_or(0, |power| *power as i64)
    }
}

/// The scores of an object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score([i64; 2]);

impl Score {
    /// The side whose victim goes: the default unless the fallback is better.
    pub fn better(&self) -> Side {
        if self.0[Side::Lifo as usize] > self.0[Side::Clock as usize] { Side::Lifo } else { Side::Clock }
    }

    /// A replacement in the object: what was judged before it counts less.
    pub fn decay(&mut self, decay: &Decay) {
        for score in &mut self.0 {
            *score = ((i128::from(*score) * i128::from(decay.power(1))) >> FRACTION) as i64;
        }
    }

    /// A side named an idle page `age` replacements before the other side did.
    pub fn praise(&mut self, side: Side, age: u32, decay: &Decay) {
        let score = &mut self.0[side as usize];
        *score = score.saturating_add(decay.power(age));
    }

    /// A side named a page `age` replacements ago, which was accessed since.
    pub fn punish(&mut self, side: Side, age: u32, decay: &Decay) {
        let score = &mut self.0[side as usize];
        *score = score.saturating_sub(decay.power(age));
    }

    /// A side's score in 2^-32.
    pub fn of(&self, side: Side) -> i64 {
        self.0[side as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thesis' figure 3.4, with d = 0.5.
    #[test]
    fn scores_as_in_the_papers_example() {
        const ONE: i64 = 1 << FRACTION;
        let decay = Decay::new(500);
        let mut score = Score([ONE * 6 / 10, ONE * 4 / 10]);
        let is = |score: &Score, clock: i64, lifo: i64| {
            let near = |is: i64, tenths: i64| (is - ONE / 10_000 * tenths).abs() < 10_000;
            assert!(near(score.0[0], clock) && near(score.0[1], lifo), "{score:?} {clock} {lifo}");
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
    fn nothing_overflows() {
        let decay = Decay::new(999);
        let mut score = Score([i64::MAX - 1, i64::MIN + 1]);
        score.praise(Side::Clock, 0, &decay);
        score.punish(Side::Lifo, 0, &decay);
        score.punish(Side::Lifo, u32::MAX, &decay);
        score.decay(&decay);
        assert!(score.of(Side::Clock) > 0 && score.of(Side::Lifo) < 0);
        assert_eq!(Score::default().better(), Side::Clock, "the default wins a tie");
    }
}
