//! What is wanted of a step, and whether it came.

use super::model::error;
use crate::machine::step::{self, Step};
use crate::machine::trap::vector::PF;

/// What an access comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The page fault's error code.
    pub fault: Option<u32>,
    /// What it returns, if that is to be compared.
    pub value: Option<u64>,
}

/// What is wanted of a step.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    /// That it does not fault.
    Nothing,
    /// That it loads this, except for some bits.
    Value { value: u64, ignore: u64 },
    /// One of these.
    Access(Outcome, [Option<Outcome>; 2]),
    /// That it raises this, or, if the third is set, nothing.
    Raises(u8, u32, bool),
}

impl Want {
    /// What came of a step, against this.
    pub fn judge(&self, step: &Step, tcg: bool) -> Verdict {
        let good = |good| if good { Verdict::Good } else { Verdict::Bad };
        match *self {
            Want::Nothing => good(step.vector == step::NONE),
            Want::Value { value, ignore } => {
                good(step.vector == step::NONE && (step.value ^ value) & !ignore == 0)
            }
            Want::Raises(vector, error, or_nothing) => {
                let raised = (step.vector, step.error) == (vector.into(), error);
                good(raised || (or_nothing && step.vector == step::NONE))
            }
            Want::Access(outcome, others) => {
                let bad = |verdict: &Verdict| matches!(verdict, Verdict::Bad);
                let first = outcome.judge(step, tcg);
                let mut rest = others.into_iter().flatten().map(|other| other.judge(step, tcg));
                if bad(&first) { rest.find(|other| !bad(other)).unwrap_or(first) } else { first }
            }
        }
    }
}

impl Outcome {
    fn judge(&self, step: &Step, tcg: bool) -> Verdict {
        let Some(code) = self.fault else {
            let same = self.value.is_none_or(|value| step.value == value);
            return if step.vector == step::NONE && same { Verdict::Good } else { Verdict::Bad };
        };
        if step.vector != u32::from(PF) || step.cr2 != step.address {
            return Verdict::Bad;
        }
        if step.error == code {
            return Verdict::Good;
        }
        // QEMU's emulation: no P with reserved bits; a read-modify-write reads first.
        let reserved = code & error::RESERVED != 0 && step.error | error::PRESENT == code;
        let modify = step.op & 3 == step::MODIFY;
        let modify = modify && step.error | error::WRITE | (code & error::RESERVED) >> 3 == code;
        if tcg && (reserved || modify) { Verdict::Known } else { Verdict::Bad }
    }
}

/// The answer.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// As wanted.
    Good,
    /// A documented mistake of the emulation.
    Known,
    /// Anything else.
    Bad,
}
