//! TLB shootdown among the VCPUs of a VM.
//!
//! Each target finds a flush request in its mailbox before its next entry; the PCPUs that run one now are kicked and waited for. A
//! VCPU that is scheduled meanwhile checks its mailbox anyway.

use alloc::sync::{Arc, Weak};

use super::backend::Backend;
use super::guest::Guest;
use super::machine::Machine;
use crate::boot::smp;
use crate::paging::shadow::Shootdown;
use crate::smp::mailbox;
use crate::vm::work;

/// The VCPUs of a guest.
pub struct VcpusOf<B: Backend> {
    machine: &'static Machine<B>,
    guest: Weak<Guest<B>>,
}

impl<B: Backend> VcpusOf<B> {
    /// Those of this one.
    pub fn new(machine: &'static Machine<B>, guest: &Arc<Guest<B>>) -> VcpusOf<B> {
        VcpusOf { machine, guest: Arc::downgrade(guest) }
    }
}

impl<B: Backend> Shootdown for VcpusOf<B> {
    fn request(&self, reload: bool) {
        let Some(guest) = self.guest.upgrade() else { return };
        let bits = work::FLUSH | if reload { work::RELOAD } else { 0 };
        let (sched, here) = (&self.machine.sched, smp::here());
        let vcpus = guest.vm.mailboxes.iter().zip(&guest.handles);
        let targets = mailbox::leave_word(
            // The VCPU that runs here flushes by itself: its engine returns the flush.
            vcpus.filter(|(_, handle)| sched.runs_on(**handle) != Some(here)),
            |(mailbox, _)| mailbox.request(bits),
            |(_, handle)| sched.runs_on(*handle),
        );
        if !targets.is_empty() {
            let numbering = smp::numbering();
            let targets = targets.into_iter().map(|pcpu| numbering.index(pcpu));
            smp::shoot(self.machine.host, targets, smp::answer_here);
        }
    }

    fn service(&self) {
        smp::answer_here();
    }
}
