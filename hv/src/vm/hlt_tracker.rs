//! Which VCPUs of a VM sleep so that only mail wakes them, and whether all of them do for ever.
//!
//! A VCPU that begins to run says so ([`HltTracker::awake`]) before it looks into its mailbox; the last one that falls asleep looks
//! whether there is mail for anybody. In between, one that it has seen asleep may wake, take its mail, and be about to act upon it; or have
//! mailed to one whose mailbox was looked into before, and sleep again. So the awakenings are counted, and if there was one
//! meanwhile, it is not the end: whoever has woken comes here again when it falls asleep.
//!
//! `tests/sched-loom` compiles this with `loom_model` set and looks at every order of the steps.

#[cfg(not(loom_model))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom_model)]
use loom::sync::atomic::{AtomicU64, Ordering};

/// The VCPUs of a VM that no device's interrupt will wake.
#[derive(Debug, Default)]
pub struct HltTracker {
    /// A bit for each.
    asleep: AtomicU64,
    /// How often VCPUs have begun to run.
    awakenings: AtomicU64,
}

impl HltTracker {
    /// VCPU `id` begins to run, and has not looked into its mailbox yet.
    pub fn awake(&self, id: u32) {
        self.asleep.fetch_and(!(1 << id), Ordering::SeqCst);
        // Last: it counts for whoever has still seen the bit.
        self.awakenings.fetch_add(1, Ordering::SeqCst);
    }

    /// VCPU `id` of so many falls asleep. Whether nobody will ever wake: all are asleep, and there is no mail for any of them.
    pub fn falls_asleep(&self, id: u32, vcpus: usize, has_mail: impl FnOnce() -> bool) -> bool {
        let all = u64::MAX >> (u64::BITS as usize - vcpus);
        let before = self.awakenings.load(Ordering::SeqCst);
        let asleep = self.asleep.fetch_or(1 << id, Ordering::SeqCst) | 1 << id;
        asleep == all && !has_mail() && self.awakenings.load(Ordering::SeqCst) == before
    }

    /// The VM begins anew.
    pub fn reset(&self) {
        self.asleep.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_ends_the_vm_unless_there_is_mail() {
        let deaf = HltTracker::default();
        assert!(!deaf.falls_asleep(0, 2, || false));
        assert!(!deaf.falls_asleep(1, 2, || true));
        // It has looked, and found nothing that lets it go on.
        deaf.awake(1);
        assert!(deaf.falls_asleep(1, 2, || false));
        deaf.reset();
        assert!(!deaf.falls_asleep(1, 2, || false));
        assert!(HltTracker::default().falls_asleep(0, 1, || false));
    }
}
