//! Which VCPU runs on which PCPU, and for how long.
//!
//! Pure: time comes as an argument, interrupts to other PCPUs leave as values ([`Kick`]). The run loop of each PCPU
//! calls [`Scheduler::schedule`] and [`Scheduler::context_saved`]; devices and other VCPUs call [`Scheduler::wake`]
//! when there is work for a VCPU. The design is argued in `docs/design/0012-scheduler.md`; `docs/scheduler.md` says
//! what a user sees.
//!
//! | file | what |
//! |---|---|
//! | [`topology`] | PCPUs and what they share |
//! | [`types`] | what goes in and out |
//! | [`policy`] | what a policy decides; [`credit`] (with `account`), [`round_robin`], [`replay`] are such |
//! | `vcpu`, [`vm`], `cap` | the state of a VCPU, of a VM, and of its cap |
//! | `heap`, `queue`, `changes` | one PCPU's queue, without locks; what changes there with a VM's weight or cap |
//! | `binding` | VCPUs that stay in an LLC |
//! | `decide` | decisions, stealing, idling |
//! | `control` | waking, pausing; VMs and VCPUs that come and go |
//! | `moves` | moves on request |
//! | `handover` | the short way of a VCPU to where its memory is |
//!
//! # Locks
//!
//! Each queue has a lock, and there is one more for the list of VMs and VCPUs. Order: the list, then queues by number.
//! At most two queues are locked at once, the one with the smaller number first. No lock is held while another PCPU is
//! waited for, and trap handlers take none. A VCPU belongs to the queue that `homes` says; that word changes only under
//! the locks of both queues, so a VCPU is locked by locking the queue that `homes` names and reading `homes` again.
//!
//! # Waking an idle PCPU
//!
//! One word says which PCPUs halt. A PCPU sets its bit and *then* looks once more at what other queues publish; a PCPU
//! that makes a VCPU wait publishes that and *then* reads and clears a bit. Both are read-modify-writes of the same
//! word: one of the two sees the other. The PCPU that clears a bit sends the interrupt.

mod account;
mod binding;
mod cap;
mod changes;
mod control;
pub mod credit;
mod decide;
mod handover;
mod heap;
mod moves;
pub mod policy;
mod queue;
pub mod replay;
pub mod round_robin;
mod sync;
pub mod topology;
pub mod types;
mod vcpu;
pub mod vm;

#[cfg(all(test, not(loom_model)))]
mod tests;

use alloc::vec::Vec;

pub use self::credit::Credit;
use self::policy::{Policy, PublishedLoad};
use self::queue::{Common, Queue};
pub use self::round_robin::RoundRobin;
use self::sync::{AtomicBool, AtomicU8, AtomicU64, Guard, Lock, Ordering};
pub use self::topology::{LlcId, PcpuId};
use self::topology::{PcpuSet, Topology};
pub use self::types::{
    Decision, Kick, Kicks, PcpuStats, Refused, State, VcpuId, VcpuStats, VcpuStatus, VmId, Why,
};
use self::vm::{MAX_VMS, Vm};

/// No PCPU.
const NOWHERE: u8 = u8::MAX;

/// What is fixed at start.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// TSC cycles per millisecond.
    pub tsc_khz: u64,
    /// How long a VCPU runs when others wait, in microseconds.
    pub slice_us: u64,
    /// A VCPU that has run for less is not preempted by a better one, in microseconds.
    pub min_run_us: u64,
    /// How long a VCPU that has crossed LLCs is not stolen across LLCs again, in microseconds. Explicit moves ignore
    /// it.
    pub settle_us: u64,
    /// Places for VMs, at most [`MAX_VMS`].
    pub vms: usize,
    /// Places for VCPUs of all VMs.
    pub vcpus: usize,
}

impl Config {
    /// The usual times, for a TSC of this frequency.
    pub const fn new(tsc_khz: u64) -> Config {
        Config { tsc_khz, slice_us: 30_000, min_run_us: 1_000, settle_us: 10_000, vms: 64, vcpus: 256 }
    }

    /// Cycles of a time in microseconds.
    pub const fn cycles(&self, us: u64) -> u64 {
        us.saturating_mul(self.tsc_khz) / 1000
    }

    /// The credit policy with these times.
    pub const fn credit(&self) -> Credit {
        Credit { slice: self.cycles(self.slice_us), min_run: self.cycles(self.min_run_us) }
    }

    /// The round-robin policy with these times.
    pub const fn round_robin(&self) -> RoundRobin {
        RoundRobin { slice: self.cycles(self.slice_us) }
    }
}

/// A queue, and what other PCPUs may read of it without its lock. No cache line belongs to two PCPUs.
#[repr(align(128))]
struct Pcpu<P: Policy> {
    queue: Lock<Queue<P>>,
    /// Itself in sets.
    bit: u64,
    /// The key of the first waiting VCPU, comparable between queues.
    first: AtomicU64,
    /// What the policy publishes beside it.
    clock: AtomicU64,
    share: AtomicU64,
    /// The PCPUs that may steal a VCPU from here.
    allowed: AtomicU64,
    /// This PCPU is asked to reschedule.
    wanted: AtomicBool,
    /// Interrupts that other PCPUs were told to send to it.
    kicks: AtomicU64,
    /// When the first of the VCPUs that are bound to it may have waited for long enough to be offered.
    bound_due: AtomicU64,
}

/// Which numbers are in use.
struct Places {
    vms: Vec<Option<usize>>,
    vcpus: Vec<bool>,
}

/// The scheduler of all PCPUs. Shared by them; see the module for its locks.
pub struct Scheduler<P: Policy> {
    topology: Topology,
    common: Common<P>,
    pcpus: Vec<Pcpu<P>>,
    /// The number of the PCPU to whose queue each VCPU belongs.
    homes: Vec<AtomicU8>,
    /// The PCPUs that halt and have not been kicked.
    idle: AtomicU64,
    /// The queues with waiting VCPUs.
    loaded: AtomicU64,
    /// The queues to which VCPUs are bound, and some to which none is any more.
    bound: AtomicU64,
    places: Lock<Places>,
}

impl<P: Policy> Scheduler<P> {
    /// A scheduler for these PCPUs, without VMs. Allocates everything that it will ever need but the VCPUs.
    pub fn new(topology: Topology, config: Config, policy: P) -> Scheduler<P> {
        let llc = |pcpu| topology.llc_of(pcpu).map_or(PcpuSet::EMPTY, |llc| topology.llc(llc));
        let pcpu = |pcpu| Pcpu {
            queue: Lock::new(Queue::new(pcpu, llc(pcpu), config.vcpus)),
            bit: PcpuSet::only(pcpu).bits(),
            first: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            share: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            kicks: AtomicU64::new(0),
            bound_due: AtomicU64::new(0),
        };
        let slice = config.cycles(config.slice_us).max(1);
        let min_run = config.cycles(config.min_run_us).max(1);
        let common = Common {
            policy,
            vms: (0..config.vms.min(MAX_VMS)).map(|index| Vm::new(index, slice, min_run)).collect(),
            min_run,
            settle: config.cycles(config.settle_us),
        };
        Scheduler {
            common,
            pcpus: (0..topology.len() as u8).map(PcpuId).map(pcpu).collect(),
            homes: (0..config.vcpus).map(|_| AtomicU8::new(NOWHERE)).collect(),
            idle: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
            bound: AtomicU64::new(0),
            places: Lock::new(Places {
                vms: (0..config.vms.min(MAX_VMS)).map(|_| None).collect(),
                vcpus: (0..config.vcpus).map(|_| false).collect(),
            }),
            topology,
        }
    }

    /// The PCPUs.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.common.policy
    }

    /// Whether this PCPU is asked to reschedule: its run loop then calls [`Scheduler::schedule`].
    #[inline]
    pub fn wanted(&self, pcpu: PcpuId) -> bool {
        self.pcpus[pcpu.index()].wanted.load(Ordering::Acquire)
    }

    /// Whether a VCPU waits in the queue of this PCPU, as published.
    #[inline]
    pub fn is_waited_for(&self, pcpu: PcpuId) -> bool {
        self.pcpus[pcpu.index()].allowed.load(Ordering::Acquire) != 0
    }

    /// Locks the queue to which a VCPU belongs.
    fn lock_home(&self, id: VcpuId) -> Option<Guard<'_, Queue<P>>> {
        let home = self.homes.get(usize::from(id.0))?;
        loop {
            let number = home.load(Ordering::Acquire);
            let queue = self.pcpus.get(usize::from(number))?.queue.lock();
            if home.load(Ordering::Acquire) == number {
                return Some(queue);
            }
        }
    }

    /// Locks two different queues.
    fn lock_both(&self, one: PcpuId, other: PcpuId) -> (Guard<'_, Queue<P>>, Guard<'_, Queue<P>>) {
        let lock = |pcpu: PcpuId| self.pcpus[pcpu.index()].queue.lock();
        if one < other {
            let first = lock(one);
            (first, lock(other))
        } else {
            let first = lock(other);
            (lock(one), first)
        }
    }

    /// Publishes what waits in a queue. Called under its lock after every change.
    #[inline]
    fn publish(&self, queue: &mut Queue<P>) {
        let shared = &self.pcpus[queue.pcpu.index()];
        let was_loaded = shared.allowed.load(Ordering::Relaxed) != 0;
        if let Some(first) = queue.waiting.first() {
            let PublishedLoad { first, clock, share } =
                self.common.policy.published_load(&mut queue.sum, first.key);
            shared.first.store(first, Ordering::Relaxed);
            shared.clock.store(clock, Ordering::Relaxed);
            shared.share.store(share, Ordering::Relaxed);
            shared.allowed.store(queue.waiting.allowed().bits(), Ordering::Release);
            if !was_loaded {
                self.loaded.fetch_or(shared.bit, Ordering::AcqRel);
            }
        } else if was_loaded {
            shared.allowed.store(0, Ordering::Release);
            self.loaded.fetch_and(!shared.bit, Ordering::AcqRel);
        }
    }

    /// Whether a VCPU waits in `queue` that `to` may run, as published.
    #[inline]
    fn offers(&self, queue: PcpuId, to: PcpuId) -> bool {
        PcpuSet::from_bits(self.pcpus[queue.index()].allowed.load(Ordering::Acquire)).contains(to)
    }

    /// Asks a PCPU to reschedule.
    fn want(&self, pcpu: PcpuId) -> Kick {
        let shared = &self.pcpus[pcpu.index()];
        if shared.wanted.swap(true, Ordering::AcqRel) {
            return Kick::NONE;
        }
        shared.kicks.fetch_add(1, Ordering::Relaxed);
        Kick(Some(pcpu))
    }

    /// Wakes a PCPU if it halts and has not been woken yet.
    fn claim(&self, pcpu: PcpuId) -> Option<Kick> {
        self.take_idle(pcpu).then(|| self.want(pcpu))
    }

    /// The same in two steps: whether it does. Then it is to be [wanted](Self::want), which it may see before the kick.
    fn take_idle(&self, pcpu: PcpuId) -> bool {
        let bit = PcpuSet::only(pcpu).bits();
        self.idle.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Wakes one of these PCPUs, a neighbour of `near` first, if one of them halts.
    fn claim_one(&self, of: PcpuSet, near: PcpuId) -> Option<Kick> {
        let idle = PcpuSet::from_bits(self.idle.fetch_or(0, Ordering::AcqRel));
        idle.and(of).after(near).find_map(|pcpu| self.claim(pcpu))
    }
}
