//! Where a VCPU should go, and moves on request.

use super::Scheduler;
use super::policy::Policy;
use super::sync::Ordering;
use super::topology::{LlcId, PcpuId, PcpuSet};
use super::types::{Kick, Refused, VcpuId};

impl<P: Policy> Scheduler<P> {
    /// Moves a VCPU to a PCPU. One that runs leaves its PCPU first.
    pub fn move_to(&self, id: VcpuId, to: PcpuId, now: u64) -> Result<Kick, Refused> {
        if to.index() >= self.pcpus.len() {
            return Err(Refused::Unknown);
        }
        self.transfer(id, to, now)
    }

    /// Moves a VCPU to a PCPU of an LLC domain: one that halts, else the one where fewest wait. Nothing happens if it
    /// is there already.
    pub fn move_to_llc(&self, id: VcpuId, llc: LlcId, now: u64) -> Result<Kick, Refused> {
        let domain = self.topology.llc(llc);
        if domain.is_empty() {
            return Err(Refused::Unknown);
        }
        let queue = self.lock_home(id).ok_or(Refused::Unknown)?;
        let allowed = queue.get(id).affinity.and(domain);
        if domain.contains(queue.pcpu) {
            return Ok(Kick::NONE);
        }
        drop(queue);
        let to = self.emptiest(allowed).ok_or(Refused::Affinity)?;
        self.transfer(id, to, now)
    }

    /// The best PCPU of these for a VCPU: one that halts, else the one where fewest wait. `None`: it may run on none
    /// of them.
    pub fn place_in(&self, id: VcpuId, of: PcpuSet) -> Option<PcpuId> {
        let affinity = self.lock_home(id)?.get(id).affinity;
        self.emptiest(affinity.and(of))
    }

    /// Whether a VCPU was stolen across LLCs although it was bound to one, since the last call.
    pub fn was_taken(&self, id: VcpuId) -> bool {
        self.lock_home(id).is_some_and(|mut queue| core::mem::take(&mut queue.get_mut(id).was_taken))
    }

    /// A PCPU of these that halts, else the one where fewest wait.
    pub(super) fn emptiest(&self, of: PcpuSet) -> Option<PcpuId> {
        let idle = PcpuSet::from_bits(self.idle.load(Ordering::Acquire)).and(of);
        let waiting = |pcpu: &PcpuId| {
            let queue = self.pcpus[pcpu.index()].queue.lock();
            queue.waiting.len() + usize::from(queue.current.is_some())
        };
        idle.into_iter().next().or_else(|| of.into_iter().min_by_key(waiting))
    }
}
