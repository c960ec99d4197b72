//! Where a VCPU should go, moves on request, and the way of a VCPU from one queue to another.

use super::Scheduler;
use super::policy::{Arrival, Policy};
use super::queue::Queue;
use super::sync::Ordering;
use super::topology::{LlcId, PcpuId, PcpuSet};
use super::types::{Kick, Refused, VcpuId};
use super::vcpu::{Place, Vcpu};

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
        idle.into_iter().next().or_else(|| match of.len() {
            // No lock is waited for.
            0 | 1 => of.into_iter().next(),
            _ => of.into_iter().min_by_key(waiting),
        })
    }

    /// Moves a VCPU that is neither running nor leaving between two queues, both of which are locked.
    pub(super) fn relocate(
        &self,
        from: &mut Queue<P>,
        to: &mut Queue<P>,
        id: VcpuId,
        how: Arrival,
        now: u64,
    ) -> Place {
        let place = from.unlink(id);
        self.carry_over(from, to, id, place, how, now)
    }

    /// The same of a VCPU that is in no heap, `place` is where it was, or [`Place::Waiting`] if it begins to wait now.
    pub(super) fn carry_over(
        &self,
        from: &mut Queue<P>,
        to: &mut Queue<P>,
        id: VcpuId,
        place: Place,
        how: Arrival,
        now: u64,
    ) -> Place {
        let common = &self.common;
        let index = usize::from(id.0);
        let Some(mut vcpu) = from.vcpus[index].take() else { return place };
        let vm = &common.vms[usize::from(vcpu.vm.0)];
        if place == Place::Waiting {
            common.policy.leave(&mut from.sum, &mut vcpu.account, vm, false, now);
        }
        self.cross_over(from, to, &mut vcpu, how, now);
        // Who reads the new home then takes the lock of `to`, and finds the VCPU there.
        to.vcpus[index] = Some(vcpu);
        self.homes[index].store(to.pcpu.0, Ordering::Release);
        match (place, vm.cap.throttled_until(now)) {
            (Place::Capped, Some(until)) => {
                to.throttled.push(id, until);
                Place::Capped
            }
            (Place::Waiting | Place::Capped, _) => {
                to.enqueue(common, id, how, now);
                Place::Waiting
            }
            _ => place,
        }
    }

    /// A VCPU that is in no heap and no sum goes to another queue. Each has a clock of its own: the account is carried over.
    #[inline(always)]
    pub(super) fn cross_over(
        &self,
        from: &Queue<P>,
        to: &Queue<P>,
        vcpu: &mut Vcpu<P::Account>,
        how: Arrival,
        now: u64,
    ) {
        self.common.policy.carry(&from.sum, &to.sum, &mut vcpu.account);
        if from.llc == to.llc {
            vcpu.stats.near_moves += 1;
            vcpu.binds = false;
        } else {
            vcpu.stats.far_moves += 1;
            vcpu.cross([from.llc, to.llc], self.common.settle, how == Arrival::Stolen, now);
        }
        if vcpu.is_bound() {
            self.binds(to.pcpu, now);
        }
    }
}
