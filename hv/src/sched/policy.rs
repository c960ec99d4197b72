//! What a scheduling policy decides: the order of those who wait, how long one runs, and when a PCPU takes a VCPU from another.
//!
//! The rest is the same for all: states, affinity, caps, idle PCPUs, locks. Chosen at compile time; a queue calls it under
//! its own lock, so that a policy's data need none.

use super::topology::PcpuId;
use super::types::VcpuId;
use super::vm::Vm;

/// How a VCPU comes to wait in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was blocked and has been woken.
    Woken,
    /// It was paused, or held back by its VM's cap.
    Resumed,
    /// It ran here and is put back.
    Preempted,
    /// It comes from another queue, on somebody's command.
    Moved,
    /// It comes from another queue that was asked for it.
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

/// What a queue in which somebody waits shows to others.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublishedLoad {
    /// The key of the first that waits, comparable with theirs.
    pub first: u64,
    /// Comparable as well: who is before this has lost touch with those present there.
    pub clock: u64,
    /// The part that those present there usually have, in the policy's own measure.
    pub share: u64,
}

/// A scheduling policy. Keys are compared by their difference, so they may wrap around.
pub trait Policy: Send + Sync {
    /// What it keeps of each VCPU.
    type Account: Default + Send;
    /// What it keeps of each queue: of those who run or wait there.
    type Sum: Default + Send;

    /// A VCPU becomes one of those who run or wait in this queue.
    fn enter(&self, sum: &mut Self::Sum, account: &mut Self::Account, vm: &Vm, how: Arrival, now: u64);

    /// A VCPU ceases to be one of them; it blocks if so said.
    fn leave(&self, sum: &mut Self::Sum, account: &mut Self::Account, vm: &Vm, blocks: bool, now: u64);

    /// A VCPU, on its way from one queue to the next, is in neither.
    fn carry(&self, from: &Self::Sum, to: &Self::Sum, account: &mut Self::Account);

    /// A VCPU begins to run.
    fn dispatch(&self, sum: &mut Self::Sum, account: &mut Self::Account, vm: &Vm, now: u64);

    /// The VCPU that runs has run for `ran` cycles, or for so many more.
    fn charge(&self, sum: &mut Self::Sum, account: &mut Self::Account, vm: &Vm, ran: u64, now: u64);

    /// Others are about to enter its queue while this one, whose accounts are up to date, runs.
    fn show(&self, _sum: &mut Self::Sum, _account: &Self::Account, _vm: &Vm) {}

    /// Its place in the order of its queue: lower ones go first.
    fn key(&self, account: &Self::Account) -> u64;

    /// Whether it goes before its turn because it has just been woken.
    fn is_boosted(&self, account: &Self::Account) -> bool;

    /// What is to be added to a key of this queue to compare it with those of other queues.
    fn offset(&self, sum: &Self::Sum) -> u64;

    /// What is shown to other queues; this is the first key, as it is here.
    fn published_load(&self, sum: &mut Self::Sum, first: u64) -> PublishedLoad;

    /// For how long a VCPU runs beside those present.
    fn slice(&self, sum: &Self::Sum, account: &Self::Account) -> u64;

    /// Whether a PCPU that would run `own` should rather take the first of those who wait in a queue that shows this; `far`: beyond
    /// its LLC. `alone`: `own` is not in a heap, and somebody who waits behind it may go there.
    fn should_steal(
        &self,
        sum: &mut Self::Sum,
        own: &mut Self::Account,
        theirs: PublishedLoad,
        far: bool,
        alone: bool,
    ) -> bool;

    /// A decision that is made already, for policies that repeat a trace.
    #[inline(always)]
    fn forced(&self, _pcpu: PcpuId) -> Option<Forced> {
        None
    }

    /// Whether what was forced could be done.
    #[inline(always)]
    fn repeated(&self, _succeeded: bool) {}
}
