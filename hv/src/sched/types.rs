//! The words in which the scheduler and its callers talk: numbers, reasons, decisions, effects.

use super::topology::{PcpuId, PcpuSet};

/// Number of a VM in the scheduler. Given by it, and given again after the VM is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmId(pub u16);

/// Number of a VCPU in the scheduler, among those of all VMs. Given by it, and given again after the VCPU is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VcpuId(pub u16);

/// Why a PCPU asks what to run. Says what becomes of the VCPU that it ran, if it ran one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its time is up, or another PCPU asks for it: the VCPU would go on.
    Preempt,
    /// The VCPU has nothing to do before it is woken (HLT, wait for SIPI). If it was woken since it began to run, it
    /// goes on instead.
    Block,
    /// The VCPU spins and would rather let another one run (PAUSE loop, hypercall).
    Yield,
    /// The VCPU's memory is in the cache of this PCPU: it is to go on there, if its affinity holds the PCPU, and else where it may.
    /// If that is another LLC it is *bound*: it is not stolen across LLCs until it has run there for a while.
    MoveTo(PcpuId),
}

/// What a PCPU does now.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The VCPU to run; `None`: halt until an interrupt comes.
    pub run: Option<VcpuId>,
    /// When to ask again ([`Why::Preempt`]), in TSC cycles; `u64::MAX`: only when this PCPU is kicked.
    pub until: u64,
    /// Another PCPU has made it before it woke this one, and there is nothing to be done behind it: no
    /// [`Scheduler::context_saved`](super::Scheduler::context_saved) is needed.
    pub is_settled: bool,
}

/// An interrupt to be sent to a PCPU so that it reschedules, or none. If the PCPU is the caller's own, no interrupt is
/// needed: it reschedules before it runs anything.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kick(pub Option<PcpuId>);

impl Kick {
    /// No interrupt.
    pub const NONE: Kick = Kick(None);

    /// The PCPUs to interrupt: one or none.
    pub fn pcpus(self) -> PcpuSet {
        self.0.map_or(PcpuSet::EMPTY, PcpuSet::only)
    }
}

/// Interrupts to be sent to each of these PCPUs: as [`Kick`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kicks(pub PcpuSet);

/// Why something asked of the scheduler was not done. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such VM, VCPU or PCPU (any more).
    Unknown,
    /// All places for VMs or VCPUs are taken.
    Full,
    /// The affinity holds no PCPU of this machine, or not the one that was asked for.
    Affinity,
    /// The VCPU runs, or its state is still in the PCPU that ran it. Pause it and ask again.
    Running,
    /// The VM has VCPUs.
    InUse,
    /// The weight is 0.
    Weight,
}

/// Statistics of a VCPU: times in TSC cycles, and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuStats {
    /// Time that it ran.
    pub ran: u64,
    /// Time that it was runnable and waited for a PCPU.
    pub waited: u64,
    /// Time that it was runnable and throttled by its VM's cap.
    pub capped: u64,
    /// How often it began to run.
    pub dispatched: u64,
    /// How often it was woken.
    pub wakes: u64,
    /// How often it was boosted because it was woken.
    pub boosts: u64,
    /// How often it was stolen.
    pub steals: u64,
    /// How often it was stolen although it was bound to an LLC.
    pub unbound: u64,
    /// How often its memory has drawn it back from where it was stolen to.
    pub drawn_back: u64,
    /// Moves of any kind to a PCPU of the same LLC.
    pub near_moves: u64,
    /// Moves of any kind to a PCPU of another LLC.
    pub far_moves: u64,
}

/// Statistics of a PCPU: times in TSC cycles, and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcpuStats {
    /// Time that it ran VCPUs.
    pub busy: u64,
    /// Time that it halted.
    pub idle: u64,
    /// Decisions.
    pub decisions: u64,
    /// Decisions that ended with another VCPU than before.
    pub switches: u64,
    /// VCPUs that it has stolen.
    pub steals: u64,
    /// Interrupts that other PCPUs were told to send to it.
    pub kicks: u64,
}

/// What a VCPU is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs, or its state is still in the PCPU that ran it.
    Running,
    /// It waits for a PCPU.
    Waiting,
    /// It is throttled by its VM's cap.
    Capped,
    /// It waits to be woken.
    Blocked,
    /// It is paused, whatever else it would do.
    Paused,
}

/// A VCPU at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuStatus {
    /// What it is doing.
    pub state: State,
    /// The PCPU that runs it, ran it last or will run it, as things stand.
    pub pcpu: PcpuId,
    /// Its VM.
    pub vm: VmId,
    /// Where it may run.
    pub affinity: PcpuSet,
    /// Up to this moment.
    pub stats: VcpuStats,
}
