//! Operations on VCPUs from any PCPU: wake, pause, move; adding and removing VMs and VCPUs.
//!
//! Each takes the lock of the queue that the VCPU is in (its *home*), and none holds two queues' locks but a move
//! ([`Scheduler::lock_both`], in the order of their numbers). None sends an interrupt: it returns a [`Kick`], the PCPU that has to
//! look at its queue, if one has, and the caller sends it when no lock is held. A PCPU that changes something in a queue
//! publishes what others may read without its lock (whether something waits, where it may run) before it lets the lock go.
//!
//! Devices, timers and other VCPUs call [`Scheduler::wake`]; `vmm` calls the rest, to begin, stop and end VMs. What must hold after
//! each: a VCPU is in exactly one queue, and a PCPU that halts while one waits that it may run has been kicked.

use alloc::boxed::Box;

use super::heap::before;
use super::policy::{Arrival, Policy};
use super::queue::Queue;
use super::sync::{Guard, Ordering};
use super::topology::{PcpuId, PcpuSet};
use super::types::{Kick, Kicks, PcpuStats, Refused, State, VcpuId, VcpuStats, VcpuStatus, VmId};
use super::vcpu::{Place, Vcpu};
use super::vm::{MAX_WEIGHT, MIN_WEIGHT};
use super::{NOWHERE, Scheduler};

impl<P: Policy> Scheduler<P> {
    /// There is work for a VCPU. If it runs, the kick makes its PCPU look at the work; it need not reschedule. If the
    /// VCPU does not exist (any more), nothing happens.
    pub fn wake(&self, id: VcpuId, now: u64) -> Kick {
        let Some(mut queue) = self.lock_home(id) else { return Kick::NONE };
        let vcpu = queue.get_mut(id);
        match vcpu.place {
            Place::Running | Place::Leaving => {
                // It may be about to halt, and have looked for work before this came. It looks at this flag when it does.
                vcpu.woken = true;
                let runs = vcpu.place == Place::Running;
                return Kick(runs.then_some(queue.pcpu));
            }
            Place::Waiting | Place::Capped => return Kick::NONE,
            Place::Resting => {}
        }
        if !core::mem::take(&mut vcpu.blocked) {
            return Kick::NONE;
        }
        vcpu.stats.wakes += 1;
        // The wake-up is not lost: it is not blocked any more, so that `resume` lets it run.
        if vcpu.paused {
            return Kick::NONE;
        }
        self.admit(queue, id, Arrival::Woken, now)
    }

    /// Stops a VCPU from running until it is resumed. It has stopped once [`Scheduler::runs_on`] says so.
    pub fn pause(&self, id: VcpuId, now: u64) -> Result<Kick, Refused> {
        let mut queue = self.lock_home(id).ok_or(Refused::Unknown)?;
        let vcpu = queue.get_mut(id);
        vcpu.paused = true;
        match vcpu.place {
            Place::Running => return Ok(self.want(queue.pcpu)),
            Place::Leaving | Place::Resting => {}
            Place::Waiting | Place::Capped => {
                queue.withdraw(&self.common, id, now);
                self.publish(&mut queue);
            }
        }
        Ok(Kick::NONE)
    }

    /// Ends a pause.
    pub fn resume(&self, id: VcpuId, now: u64) -> Result<Kick, Refused> {
        let mut queue = self.lock_home(id).ok_or(Refused::Unknown)?;
        let vcpu = queue.get_mut(id);
        let was_paused = core::mem::take(&mut vcpu.paused);
        if !was_paused || vcpu.blocked || vcpu.place != Place::Resting {
            return Ok(Kick::NONE);
        }
        Ok(self.admit(queue, id, Arrival::Resumed, now))
    }

    /// Makes a resting VCPU wait, and finds a PCPU for it.
    fn admit(&self, mut queue: Guard<'_, Queue<P>>, id: VcpuId, how: Arrival, now: u64) -> Kick {
        queue.admit(&self.common, id, how, now);
        let boosted = self.common.policy.is_boosted(&queue.get(id).account);
        queue.get_mut(id).stats.boosts += u64::from(boosted);
        self.publish(&mut queue);
        self.find_pcpu(&queue, id, now)
    }

    /// Which PCPU must hear that this VCPU waits: its own if that halts, one of its LLC that halts, its own if the VCPU
    /// goes before what runs there, any other that halts.
    pub(super) fn find_pcpu(&self, queue: &Queue<P>, id: VcpuId, now: u64) -> Kick {
        if queue.idle {
            return self.claim(queue.pcpu).unwrap_or(Kick::NONE);
        }
        let Some(current) = queue.current else {
            // It is deciding, and will see this one.
            return Kick::NONE;
        };
        // A halted PCPU that shares the cache is better than a preemption: both VCPUs run, and what this one had cached is near.
        // One behind another cache is worse than that.
        let allowed = queue.get(id).allowed(queue.llc, now);
        if let Some(kick) = self.claim_one(allowed.and(queue.llc), queue.pcpu) {
            return kick;
        }
        if before(queue.key(&self.common, id), queue.key(&self.common, current)) {
            return self.want(queue.pcpu);
        }
        self.claim_one(allowed.without(queue.llc), queue.pcpu).unwrap_or(Kick::NONE)
    }

    /// Says where a VCPU may run. If it is where it may not, it moves.
    pub fn set_affinity(&self, id: VcpuId, affinity: PcpuSet, now: u64) -> Result<Kick, Refused> {
        let affinity = affinity.and(self.topology.all());
        let to = self.emptiest(affinity).ok_or(Refused::Affinity)?;
        let mut queue = self.lock_home(id).ok_or(Refused::Unknown)?;
        let vcpu = queue.get_mut(id);
        vcpu.affinity = affinity;
        vcpu.target = vcpu.target.filter(|target| affinity.contains(*target));
        // The heap keeps the union of affinities of what waits, so the VCPU is taken out and put back at its place.
        if vcpu.place == Place::Waiting
            && let Some(item) = queue.waiting.remove_one(id)
        {
            queue.push(id, item.key, now);
            self.publish(&mut queue);
        }
        if affinity.contains(queue.pcpu) {
            let (pcpu, allowed) = (queue.pcpu, queue.waiting.allowed());
            drop(queue);
            return Ok(self.offer(pcpu, allowed));
        }
        drop(queue);
        self.transfer(id, to, now)
    }

    /// Takes a VCPU to the queue of another PCPU, now or when its state is in memory.
    pub(super) fn transfer(&self, id: VcpuId, to: PcpuId, now: u64) -> Result<Kick, Refused> {
        loop {
            let mut home = self.lock_home(id).ok_or(Refused::Unknown)?;
            let from = home.pcpu;
            let vcpu = home.get_mut(id);
            if !vcpu.affinity.contains(to) {
                return Err(Refused::Affinity);
            }
            match vcpu.place {
                _ if from == to => {
                    vcpu.target = None;
                    return Ok(Kick::NONE);
                }
                // Its registers are in the other processor. That one hands it on when it has stored them.
                Place::Running => {
                    vcpu.target = Some(to);
                    return Ok(self.want(from));
                }
                Place::Leaving => {
                    vcpu.target = Some(to);
                    return Ok(Kick::NONE);
                }
                Place::Waiting | Place::Capped | Place::Resting => drop(home),
            }
            let (mut theirs, mut mine) = self.lock_both(from, to);
            let is_home = self.homes[usize::from(id.0)].load(Ordering::Acquire) == from.0;
            // It may have begun to run, or have gone elsewhere, between the locks.
            if !is_home || matches!(theirs.get(id).place, Place::Running | Place::Leaving) {
                continue;
            }
            if !theirs.get(id).affinity.contains(to) {
                return Err(Refused::Affinity);
            }
            mine.account(&self.common, now);
            let place = self.relocate(&mut theirs, &mut mine, id, Arrival::Moved, now);
            mine.looks_round = true;
            self.publish(&mut theirs);
            self.publish(&mut mine);
            return Ok(match place {
                Place::Waiting => self.find_pcpu(&mine, id, now),
                // It has to know until when to halt.
                Place::Capped if mine.idle => self.claim(to).unwrap_or(Kick::NONE),
                _ => Kick::NONE,
            });
        }
    }

    /// The PCPU that runs a VCPU or still has its state.
    pub fn runs_on(&self, id: VcpuId) -> Option<PcpuId> {
        let queue = self.lock_home(id)?;
        matches!(queue.get(id).place, Place::Running | Place::Leaving).then_some(queue.pcpu)
    }

    /// A VCPU at this moment.
    pub fn status(&self, id: VcpuId, now: u64) -> Option<VcpuStatus> {
        let queue = self.lock_home(id)?;
        let vcpu = queue.get(id);
        // Times are added up when something changes. What has passed since then is added here, so that figures grow while a
        // VCPU runs undisturbed.
        let mut stats = vcpu.stats;
        let (here, uncharged) = (now.saturating_sub(vcpu.since), now.saturating_sub(vcpu.charged));
        let state = match vcpu.place {
            Place::Running => {
                stats.ran += uncharged;
                State::Running
            }
            Place::Leaving => State::Running,
            Place::Waiting => {
                stats.waited += here;
                State::Waiting
            }
            Place::Capped => {
                stats.capped += here;
                State::Capped
            }
            Place::Resting if vcpu.paused => State::Paused,
            Place::Resting => State::Blocked,
        };
        Some(VcpuStatus { state, pcpu: queue.pcpu, vm: vcpu.vm, affinity: vcpu.affinity, stats })
    }

    /// What a PCPU has done up to this moment; nothing if there is none.
    pub fn pcpu_stats(&self, pcpu: PcpuId, now: u64) -> PcpuStats {
        let Some(shared) = self.pcpus.get(pcpu.index()) else { return PcpuStats::default() };
        let queue = shared.queue.lock();
        let mut stats = queue.stats;
        stats.kicks = shared.kicks.load(Ordering::Relaxed);
        if queue.idle {
            stats.idle += now.saturating_sub(queue.idle_since);
        }
        let uncharged = queue.current.map(|id| now.saturating_sub(queue.get(id).charged));
        stats.busy += uncharged.unwrap_or(0);
        stats
    }

    /// A new VM without VCPUs. Weight from 1 to 65 535; cap in percent of one PCPU, 0 for none.
    pub fn add_vm(&self, weight: u32, cap: u32) -> Result<VmId, Refused> {
        check_weight(weight)?;
        let mut places = self.places.lock();
        let index = places.vms.iter().position(|place| place.is_none()).ok_or(Refused::Full)?;
        places.vms[index] = Some(0);
        self.common.vms[index].reset(weight, cap);
        Ok(VmId(index as u16))
    }

    /// A new VCPU, paused: it begins to run when it has been resumed and woken. (A wake-up for a removed VCPU of the
    /// same number may still be on its way.)
    pub fn add_vcpu(&self, vm: VmId, affinity: PcpuSet, now: u64) -> Result<VcpuId, Refused> {
        let affinity = affinity.and(self.topology.all());
        let mut places = self.places.lock();
        let index = places.vcpus.iter().position(|taken| !taken).ok_or(Refused::Full)?;
        let count = places.vms.get_mut(usize::from(vm.0)).and_then(|place| place.as_mut());
        let count = count.ok_or(Refused::Unknown)?;
        let owned = |pcpu: &PcpuId| {
            let queue = self.pcpus[pcpu.index()].queue.lock();
            queue.vcpus.iter().filter(|place| place.is_some()).count()
        };
        let home = affinity.into_iter().min_by_key(owned).ok_or(Refused::Affinity)?;
        *count += 1;
        places.vcpus[index] = true;
        let id = VcpuId(index as u16);
        let mut queue = self.pcpus[home.index()].queue.lock();
        queue.vcpus[index] = Some(Box::new(Vcpu::new(vm, affinity, now)));
        self.homes[index].store(home.0, Ordering::Release);
        Ok(id)
    }

    /// Removes a VCPU that does not run, and returns its statistics. Pause it first.
    pub fn remove_vcpu(&self, id: VcpuId, now: u64) -> Result<VcpuStats, Refused> {
        let mut places = self.places.lock();
        let mut queue = self.lock_home(id).ok_or(Refused::Unknown)?;
        match queue.get(id).place {
            Place::Running | Place::Leaving => return Err(Refused::Running),
            Place::Waiting | Place::Capped => queue.withdraw(&self.common, id, now),
            Place::Resting => {}
        }
        let index = usize::from(id.0);
        let vcpu = queue.vcpus[index].take().ok_or(Refused::Unknown)?;
        self.homes[index].store(NOWHERE, Ordering::Release);
        self.publish(&mut queue);
        places.vcpus[index] = false;
        if let Some(count) = places.vms.get_mut(usize::from(vcpu.vm.0)).and_then(|place| place.as_mut()) {
            *count = count.saturating_sub(1);
        }
        Ok(vcpu.stats)
    }

    /// Removes a VM that has no VCPUs any more.
    pub fn remove_vm(&self, vm: VmId) -> Result<(), Refused> {
        let mut places = self.places.lock();
        let place = places.vms.get_mut(usize::from(vm.0)).ok_or(Refused::Unknown)?;
        match place {
            None => Err(Refused::Unknown),
            Some(0) => {
                *place = None;
                Ok(())
            }
            Some(_) => Err(Refused::InUse),
        }
    }

    /// Changes a VM's weight; the vruntimes of its VCPUs are rescaled as if it had always had it.
    pub fn set_weight(&self, vm: VmId, weight: u32, now: u64) -> Result<(), Refused> {
        check_weight(weight)?;
        // The VCPUs of a VM can be in all queues, and a queue knows only its own. This is rare, so each is looked at.
        self.with_vm(vm, |vm| vm.set_weight(weight))?;
        for shared in &self.pcpus {
            let mut queue = shared.queue.lock();
            queue.account(&self.common, now);
            queue.requeue(&self.common, vm, now);
            self.publish(&mut queue);
        }
        Ok(())
    }

    /// Changes a VM's cap, in percent of one PCPU; 0: none. What was used so far is forgotten: throttled VCPUs wait
    /// again.
    pub fn set_cap(&self, vm: VmId, percent: u32, now: u64) -> Result<Kicks, Refused> {
        self.with_vm(vm, |vm| vm.cap.set(percent))?;
        let mut kicks = PcpuSet::EMPTY;
        for shared in &self.pcpus {
            let mut queue = shared.queue.lock();
            queue.release_vm(&self.common, vm, now);
            self.publish(&mut queue);
            let allowed = queue.waiting.allowed();
            if queue.idle && !allowed.is_empty() {
                kicks = kicks.or(self.claim(queue.pcpu).map_or(PcpuSet::EMPTY, Kick::pcpus));
            }
            for _ in 0..queue.waiting.len() {
                kicks = kicks.or(self.claim_one(allowed, queue.pcpu).map_or(PcpuSet::EMPTY, Kick::pcpus));
            }
        }
        // The cap was changed before each queue was locked: a VCPU that became runnable or blocked afterwards has seen
        // the new cap.
        self.common.vms[usize::from(vm.0)].share_cap();
        Ok(Kicks(kicks))
    }

    fn with_vm(&self, vm: VmId, change: impl FnOnce(&super::vm::Vm)) -> Result<(), Refused> {
        let places = self.places.lock();
        let index = usize::from(vm.0);
        places.vms.get(index).copied().flatten().ok_or(Refused::Unknown)?;
        change(&self.common.vms[index]);
        Ok(())
    }
}

fn check_weight(weight: u32) -> Result<(), Refused> {
    if (MIN_WEIGHT..=MAX_WEIGHT).contains(&weight) { Ok(()) } else { Err(Refused::Weight) }
}
