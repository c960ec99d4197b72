//! VCPUs of a VM that wake, and fall asleep, at once: its end is not seen while one of them has something to do.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use sched_loom::hlt_tracker::HltTracker;

/// VCPUs of a VM, of which all but the first sleep, and which of them have mail.
struct Vm<const N: usize> {
    hlt_tracker: HltTracker,
    mail: [AtomicBool; N],
}

impl<const N: usize> Vm<N> {
    fn new(mail: [bool; N]) -> Arc<Vm<N>> {
        let vm = Vm { hlt_tracker: HltTracker::default(), mail: mail.map(AtomicBool::new) };
        (1..N as u32).for_each(|id| assert!(!vm.ends(id)));
        Arc::new(vm)
    }

    /// A VCPU falls asleep. Whether that is the end.
    fn ends(&self, id: u32) -> bool {
        // The last one's first: another may have put something in after that.
        self.hlt_tracker
            .falls_asleep(id, N, || self.mail.iter().rev().any(|mail| mail.load(Ordering::SeqCst)))
    }

    /// A VCPU begins to run, and takes its mail.
    fn wakes(&self, id: u32) -> bool {
        self.hlt_tracker.awake(id);
        self.mail[id as usize].swap(false, Ordering::SeqCst)
    }
}

/// One takes its mail, and goes on.
#[test]
fn one_that_has_mail_is_not_asleep() {
    loom::model(|| {
        let vm = Vm::new([false, true]);
        let other = {
            let vm = vm.clone();
            thread::spawn(move || assert!(vm.wakes(1)))
        };
        assert!(!vm.ends(0));
        other.join().unwrap();
    });
}

/// One takes its mail, has some for another, and sleeps again.
#[test]
fn a_vcpu_with_mail_is_not_asleep() {
    loom::model(|| {
        let vm = Vm::new([false, true, false]);
        let other = {
            let vm = vm.clone();
            thread::spawn(move || {
                assert!(vm.wakes(1));
                vm.mail[2].store(true, Ordering::SeqCst);
                vm.ends(1)
            })
        };
        let ends = [vm.ends(0), other.join().unwrap()];
        assert_eq!(ends, [false, false]);
        assert!(vm.wakes(2) && vm.ends(2), "no VCPU has anything to do any more");
    });
}
