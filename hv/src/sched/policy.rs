//! What a scheduling policy decides: the order of waiting VCPUs, how long one runs, and when a PCPU steals from
//! another.
//!
//! The rest is the same for all: states, affinity, caps, idle PCPUs, locks. Chosen at compile time; a queue calls it
//! under its own lock, so that a policy's data need none.

use super::topology::PcpuId;
use super::types::VcpuId;
use super::vm::Vm;

/// How a VCPU comes to wait in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was blocked and has been woken.
    Woken,
    /// It was paused, or throttled by its VM's cap.
    Resumed,
    /// It ran here and is put back.
    Preempted,
    /// It comes from another queue, by an explicit move.
    Moved,
    /// It was stolen from another queue.
    Stolen,
}

/// What a recorded trace says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forced {
    /// The VCPU to run; `None`: idle.
    pub run: Option<VcpuId>,
    /// For how long, in cycles.
    pub slice: u64,
}

/// What a queue with waiting VCPUs publishes to other PCPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublishedLoad {
    /// The key of the first waiting VCPU, comparable between queues.
    pub first: u64,
    /// Lower bound of comparable vruntime; a VCPU below it has drifted too far.
    pub clock: u64,
    /// The typical share of the VCPUs there, in the policy's own unit.
    pub share: u64,
}

/// A scheduling policy. Keys are compared by their difference, so they may wrap around.
pub trait Policy: Send + Sync {
    /// It replays a trace: each decision is its own ([`Policy::forced`]).
    const FORCES: bool = false;

    /// What it keeps for each VCPU.
    type Account: Default + Send;
    /// What it keeps for each queue: sums over the VCPUs that run or wait there.
    type Sum: Default + Send;

    /// A VCPU enters this queue.
    fn enter(&self, sum: &mut Self::Sum, account: &mut Self::Account, vm: &Vm, how: Arrival, now: u64);

    /// A VCPU leaves this queue, because it blocks if `blocks`.
    fn leave(&self, sum: &mut Self::Sum, account: &mut Self::Account, vm: &Vm, blocks: bool, now: u64);

    /// A VCPU moves from one queue to another; it is in neither now.
    fn carry(&self, from: &Self::Sum, to: &Self::Sum, account: &mut Self::Account);

    /// A VCPU begins to run; or it has begun at the same time, and its VM's demand has changed since.
    fn dispatch(&self, sum: &mut Self::Sum, account: &mut Self::Account, vm: &Vm, now: u64);

    /// The running VCPU has run for another `ran` cycles.
    fn charge(&self, sum: &mut Self::Sum, account: &mut Self::Account, vm: &Vm, ran: u64, now: u64);

    /// VCPUs are about to enter the queue while this one runs; its accounts are up to date.
    fn show(&self, _sum: &mut Self::Sum, _account: &Self::Account, _vm: &Vm) {}

    /// Its position in the queue's order: lower keys run first.
    fn key(&self, account: &Self::Account) -> u64;

    /// Whether it was placed earlier because it has just been woken.
    fn is_boosted(&self, account: &Self::Account) -> bool;

    /// What is added to a key of this queue to compare it with keys of other queues.
    fn offset(&self, sum: &Self::Sum) -> u64;

    /// What is published to other queues; `first` is this queue's first key.
    fn published_load(&self, sum: &mut Self::Sum, first: u64) -> PublishedLoad;

    /// How long a VCPU runs, given the queue's other VCPUs, in cycles.
    fn slice(&self, sum: &Self::Sum, account: &Self::Account) -> u64;

    /// Whether a PCPU that would run `own` should rather steal the first VCPU of the queue that published `theirs`;
    /// `far`: that queue is in another LLC domain. `alone`: `own` is not in a heap, and a VCPU that waits behind it may
    /// run there.
    fn should_steal(
        &self,
        sum: &mut Self::Sum,
        own: &mut Self::Account,
        theirs: PublishedLoad,
        far: bool,
        alone: bool,
    ) -> bool;

    /// The next decision of a trace, for policies that replay one.
    #[inline(always)]
    fn forced(&self, _pcpu: PcpuId) -> Option<Forced> {
        None
    }

    /// Whether what was forced could be done.
    #[inline(always)]
    fn repeated(&self, _succeeded: bool) {}
}
