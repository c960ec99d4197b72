//! Decisions from a recorded trace: the same again, whatever the policy would have said.
//!
//! A trace is what [`Scheduler::schedule`](super::Scheduler::schedule) returned on each PCPU, one decision after the
//! other. On the same events it leads to the same states, so that a run can be looked at again, or be tried with one
//! decision changed. A decision that cannot be repeated (its VCPU does not wait) is counted, and the PCPU idles
//! instead.

use alloc::vec::Vec;

use super::policy::{Arrival, Forced, Policy, PublishedLoad};
use super::sync::{AtomicU64, Ordering};
use super::topology::PcpuId;
use super::types::Decision;
use super::vm::Vm;

/// Decisions in the order in which each PCPU made them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    steps: Vec<Vec<Forced>>,
}

impl Trace {
    /// Adds what a PCPU has decided at this time.
    pub fn record(&mut self, pcpu: PcpuId, decision: Decision, now: u64) {
        if self.steps.len() <= pcpu.index() {
            self.steps.resize_with(pcpu.index() + 1, Vec::new);
        }
        let slice = decision.until.saturating_sub(now);
        self.steps[pcpu.index()].push(Forced { run: decision.run, slice });
    }
}

/// The policy that repeats a trace. At its end PCPUs take what waits longest.
pub struct Replay {
    steps: Vec<(Vec<Forced>, AtomicU64)>,
    missed: AtomicU64,
}

impl Replay {
    /// Repeats this trace.
    pub fn new(trace: Trace) -> Replay {
        let steps = trace.steps.into_iter().map(|steps| (steps, AtomicU64::new(0)));
        Replay { steps: steps.collect(), missed: AtomicU64::new(0) }
    }

    /// How many decisions could not be repeated.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

impl Policy for Replay {
    const FORCES: bool = true;
    /// When it began to wait.
    type Account = u64;
    type Sum = ();

    fn enter(&self, _: &mut (), account: &mut u64, _: &Vm, _: Arrival, now: u64) {
        *account = now;
    }

    fn leave(&self, _: &mut (), _: &mut u64, _: &Vm, _: bool, _: u64) {}

    fn carry(&self, _: &(), _: &(), _: &mut u64) {}

    fn dispatch(&self, _: &mut (), _: &mut u64, _: &Vm, _: u64) {}

    fn charge(&self, _: &mut (), account: &mut u64, _: &Vm, _: u64, now: u64) {
        *account = now;
    }

    fn key(&self, account: &u64) -> u64 {
        *account
    }

    fn is_boosted(&self, _: &u64) -> bool {
        false
    }

    fn offset(&self, _: &()) -> u64 {
        0
    }

    fn published_load(&self, _: &mut (), first: u64) -> PublishedLoad {
        PublishedLoad { first, ..PublishedLoad::default() }
    }

    fn slice(&self, (): &(), _: &u64) -> u64 {
        u64::MAX
    }

    fn should_steal(&self, _: &mut (), _: &mut u64, _: PublishedLoad, _: bool, _: bool) -> bool {
        false
    }

    fn forced(&self, pcpu: PcpuId) -> Option<Forced> {
        let (steps, next) = self.steps.get(pcpu.index())?;
        let step = steps.get(next.load(Ordering::Relaxed) as usize)?;
        next.fetch_add(1, Ordering::Relaxed);
        Some(*step)
    }

    fn repeated(&self, succeeded: bool) {
        self.missed.fetch_add(u64::from(!succeeded), Ordering::Relaxed);
    }
}
