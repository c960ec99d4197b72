//! What changes in a queue with the weight or the cap of a VM.

use super::heap::Item;
use super::policy::{Arrival, Policy};
use super::queue::{Common, Queue};
use super::types::{VcpuId, VmId};
use super::vcpu::{Place, Vcpu};

impl<P: Policy> Queue<P> {
    /// Sorts a VM's waiting VCPUs again after its weight has changed.
    pub(super) fn requeue(&mut self, common: &Common<P>, vm: VmId, now: u64) {
        for index in 0..self.vcpus.len() {
            let waits = |vcpu: &Vcpu<P::Account>| vcpu.vm == vm && vcpu.place == Place::Waiting;
            let id = VcpuId(index as u16);
            if self.vcpus[index].as_deref().is_some_and(waits)
                && let Some(item) = self.waiting.remove_one(id)
            {
                let (policy, sum, vcpu, vm) = self.parts(common, id);
                policy.enter(sum, &mut vcpu.account, vm, Arrival::Preempted, now);
                let key = policy.key(&vcpu.account);
                // The set of allowed PCPUs is the same: no other PCPU needs to hear of it.
                self.waiting.push(Item { key, ..item });
            }
        }
    }

    /// Unthrottles a VM's VCPUs after its cap has changed.
    pub(super) fn release_vm(&mut self, common: &Common<P>, vm: VmId, now: u64) {
        for index in 0..self.vcpus.len() {
            let held = |vcpu: &Vcpu<P::Account>| vcpu.vm == vm && vcpu.place == Place::Capped;
            if self.vcpus[index].as_deref().is_some_and(held) {
                let id = VcpuId(index as u16);
                self.unlink(id);
                self.enqueue(common, id, Arrival::Resumed, now);
            }
        }
    }
}
