//! Round robin: the VCPU that has waited longest runs next; weights do not count, caps and affinities do.

use super::policy::{Arrival, Policy, PublishedLoad};
use super::vm::Vm;

/// The round-robin policy.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobin {
    /// How long a VCPU runs when other VCPUs wait, in cycles.
    pub slice: u64,
}

impl Policy for RoundRobin {
    /// When it began to wait.
    type Account = u64;
    type Sum = ();

    fn enter(&self, _: &mut (), account: &mut u64, _: &Vm, how: Arrival, now: u64) {
        if how != Arrival::Stolen {
            *account = now;
        }
    }

    fn leave(&self, _: &mut (), _: &mut u64, _: &Vm, _: bool, _: u64) {}

    fn carry(&self, _: &(), _: &(), _: &mut u64) {}

    fn dispatch(&self, _: &mut (), _: &mut u64, _: &Vm, _: u64) {}

    /// The running VCPU is the last of the queue.
    #[inline]
    fn charge(&self, _: &mut (), account: &mut u64, _: &Vm, _: u64, now: u64) {
        *account = now;
    }

    #[inline]
    fn key(&self, account: &u64) -> u64 {
        *account
    }

    fn is_boosted(&self, _: &u64) -> bool {
        false
    }

    #[inline]
    fn offset(&self, _: &()) -> u64 {
        0
    }

    #[inline]
    fn published_load(&self, _: &mut (), first: u64) -> PublishedLoad {
        PublishedLoad { first, ..PublishedLoad::default() }
    }

    #[inline]
    fn slice(&self, (): &(), _: &u64) -> u64 {
        self.slice
    }

    /// One that waits elsewhere for two slices longer goes first.
    #[inline]
    fn should_steal(&self, _: &mut (), own: &mut u64, theirs: PublishedLoad, _: bool, _: bool) -> bool {
        own.wrapping_sub(theirs.first) as i64 > 2 * self.slice as i64
    }
}
