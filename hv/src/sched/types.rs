//! The words in which the scheduler and its callers talk: numbers, reasons, decisions, effects.

use super::topology::PcpuId;

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
    /// The VCPU is to go on at this PCPU, which its affinity must hold; else it goes on where it may.
    MoveTo(PcpuId),
}

/// What a PCPU does now.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The VCPU to run; `None`: halt until an interrupt comes.
    pub run: Option<VcpuId>,
    /// When to ask again ([`Why::Preempt`]), in TSC cycles; `u64::MAX`: not before somebody else says so.
    pub until: u64,
}

/// An interrupt to be sent to a PCPU that shall ask again; none if nobody must be told. If the PCPU is the caller's own, no
/// interrupt is needed: it asks by itself before it runs anything.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kick(pub Option<PcpuId>);

impl Kick {
    /// Nobody must be told.
    pub const NONE: Kick = Kick(None);
}

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
