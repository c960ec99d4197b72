//! VCPUs that went to sleep on a PCPU, which wakes them when their time has come.

use super::Pcpu;
use crate::sched::VcpuId;
use crate::vmm::backend::Backend;

impl<B: Backend, const LAB: bool> Pcpu<B, LAB> {
    /// A VCPU waits for an interrupt, but not longer than this.
    pub fn sleep(&mut self, vcpu: VcpuId, deadline: u64) {
        match self.sleepers.iter_mut().find(|(_, sleeper)| *sleeper == vcpu) {
            Some(sleeper) => sleeper.0 = deadline,
            None => self.sleepers.push((deadline, vcpu)),
        }
    }

    /// Wakes the VCPUs whose time has come.
    pub(super) fn wake_sleepers(&mut self, now: u64) {
        let machine = self.machine;
        self.sleepers.retain(|&(deadline, vcpu)| {
            let due = deadline <= now;
            if due {
                machine.send(machine.sched.wake(vcpu, now));
            }
            !due
        });
    }
}
