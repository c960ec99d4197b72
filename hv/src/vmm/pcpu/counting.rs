//! Whether a PCPU's counters count, and what the hypervisor executes for a move of a VCPU to another cache (`vcpu::micro`).
//!
//! On the PCPU that the VCPU leaves the count goes from the fault to the interrupt for the other one; there from the last halt, which
//! that interrupt has ended, to the VCPU's entry. One that was not halted counts nothing.

use super::Pcpu;
use crate::arch::counters::{BothSides, Spent, VcpuCounts};
use crate::hw::pmu::{Counters, Pmu as _};
use crate::vcpu::host::Host as _;
use crate::vm::mailbox::Mailbox;
use crate::vmm::backend::Backend;

/// What the hypervisor had executed on this PCPU, as its counters had it.
#[derive(Debug, Default)]
pub struct MoveCounts {
    /// When its last exit began.
    pub exited_at: Option<Spent>,
    /// All counts when it was halted last, and then the hypervisor's own: reading all takes some.
    halted_at: Option<BothSides>,
    halt_began: Option<Spent>,
    /// It was halted since the last turn began; the same when this one began.
    was_halted: bool,
    is_woken: bool,
    /// The same, for a VCPU that comes from another PCPU.
    entry_from: Option<Spent>,
    /// What it took until the entry of that.
    pub entry_took: Option<Spent>,
    /// When the registers of a VCPU were saved that goes to another PCPU.
    pub left_at: Option<Spent>,
}

impl MoveCounts {
    /// The PCPU is about to be halted.
    pub fn halts(&mut self, counts: Option<BothSides>, spent: Option<Spent>) {
        (self.halted_at, self.halt_began, self.was_halted) = (counts, spent, true);
    }

    /// All counts when it was halted, if it was before this turn.
    fn at_wake(&self) -> Option<&BothSides> {
        self.halted_at.as_ref().filter(|_| self.is_woken)
    }

    /// A turn begins.
    pub fn begin(&mut self) {
        self.is_woken = core::mem::take(&mut self.was_halted);
    }

    /// The VCPU that is about to be entered comes from another PCPU: what this one executes until then is to be counted.
    pub fn expect_entry(&mut self) {
        self.entry_from = self.halt_began.filter(|_| self.is_woken);
        self.entry_took = None;
    }

    /// More is executed until that entry than the move takes: it is not counted.
    pub fn expect_none(&mut self) {
        self.entry_from = None;
    }
}

impl<B: Backend, const LAB: bool> Pcpu<B, LAB> {
    /// Whether counters are used: most machines do without.
    #[inline(always)]
    pub fn has_counters(&self) -> bool {
        self.counters.is_some()
    }

    /// An exit of a divided VM begins. Told where time is modelled, by the counters of lab machines.
    #[inline(always)]
    pub(super) fn note_exit(&mut self) {
        self.moves.exited_at = match &mut self.counters {
            // What began before there were cycles is not counted.
            Some(Counters::Lab(lab)) if lab.models() => lab.host_spent(),
            _ => None,
        };
    }

    /// The stay of a VCPU begins, which counts from here on; after a halt from there on, because waking up is done for it.
    pub fn begin_counts(&mut self, counts: &mut VcpuCounts) {
        match self.moves.at_wake() {
            Some(at_wake) => counts.begin(at_wake),
            None => {
                if let Some(now) = self.counters() {
                    counts.begin(&now);
                }
            }
        }
    }

    /// Its stay has ended.
    pub fn end_counts(&mut self, counts: &mut VcpuCounts) {
        if let Some(now) = self.counters() {
            counts.update(&now);
            self.check_counters(&now);
        }
    }

    /// The same of a VCPU that has left already, whose stay began at `begun`.
    pub fn end_counts_late(&mut self, begun: Option<BothSides>, mailbox: &Mailbox) {
        if let (Some(begun), Some(now)) = (begun, self.counters()) {
            mailbox.add_late_counts(&now.since(&begun));
            self.check_counters(&now);
        }
    }

    /// Gives counters up that do not count, after a VCPU's turn in which they ended with these values: what is absent is
    /// better than a zero.
    fn check_counters(&mut self, now: &BothSides) {
        let ran = self.entered.is_some();
        if let Some(counters) = self.counters.as_mut().filter(|counters| counters.are_some())
            && self.stall_detector.look(now, ran)
        {
            log::warn!(
                "PCPU {}: its performance counters ({}) do not advance while guests run: this machine only pretends to have \
                 them. They are left out from now on",
                self.id,
                counters.name()
            );
            *counters = Counters::None;
        }
    }

    /// The first entry of a turn.
    pub(super) fn count_entry(&mut self) {
        if let Some(from) = self.moves.entry_from.take() {
            self.moves.entry_took = self.host_spent().map(|now| now.since(from));
        }
    }
}
