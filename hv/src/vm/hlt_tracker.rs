//! Which VCPUs of a VM sleep so that only mail wakes them, and whether all of them do for ever.
//!
//! A VCPU that begins to run says so ([`HltTracker::awake`]) before it reads its mailbox; the last one that falls asleep checks
//! all mailboxes. During this check a sleeping VCPU may wake, take its mail, and be about to act on it; or it may have sent mail
//! to a VCPU whose mailbox was checked already, and sleep again. So wake-ups are counted, and if there was one during the check,
//! the VM has not ended: the VCPU that woke makes the same check when it falls asleep.
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
        // After the bit: a VCPU that has still read the bit as set will see the counter change.
        self.awakenings.fetch_add(1, Ordering::SeqCst);
    }

    /// VCPU `id` of `vcpus` falls asleep. True if none will ever wake: all are asleep, and no mailbox has mail.
    pub fn falls_asleep(&self, id: u32, vcpus: usize, has_mail: impl FnOnce() -> bool) -> bool {
        let all = u64::MAX >> (u64::BITS as usize - vcpus);
        let before = self.awakenings.load(Ordering::SeqCst);
        let asleep = self.asleep.fetch_or(1 << id, Ordering::SeqCst) | 1 << id;
        asleep == all && !has_mail() && self.awakenings.load(Ordering::SeqCst) == before
    }

    /// The VM restarts.
    pub fn reset(&self) {
        self.asleep.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_ends_the_vm_unless_there_is_mail() {
        let tracker = HltTracker::default();
        assert!(!tracker.falls_asleep(0, 2, || false));
        assert!(!tracker.falls_asleep(1, 2, || true));
        // It has looked, and found nothing that lets it go on.
        tracker.awake(1);
        assert!(tracker.falls_asleep(1, 2, || false));
        tracker.reset();
        assert!(!tracker.falls_asleep(1, 2, || false));
        assert!(HltTracker::default().falls_asleep(0, 1, || false));
    }
}
