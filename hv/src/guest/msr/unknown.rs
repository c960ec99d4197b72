//! A bounded count of accesses to MSRs that are not implemented.

use arrayvec::ArrayVec;

/// How many different MSRs are told apart.
const LIMIT: usize = 64;

/// Unknown MSRs and how often each was touched, by its number.
#[derive(Clone, Debug, Default)]
pub struct UnknownMsrs {
    counts: ArrayVec<(u32, u64), LIMIT>,
    others: u64,
}

impl UnknownMsrs {
    /// Counts one access.
    pub fn count(&mut self, msr: u32) {
        match self.counts.iter_mut().find(|(index, _)| *index == msr) {
            Some((_, n)) => *n += 1,
            None => {
                if self.counts.try_push((msr, 1)).is_err() {
                    self.others += 1;
                }
            }
        }
    }

    /// MSR numbers with their counts, in the order of first touch.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.counts.iter().copied()
    }

    /// Accesses to MSRs beyond the first 64 different ones.
    pub fn others(&self) -> u64 {
        self.others
    }
}
