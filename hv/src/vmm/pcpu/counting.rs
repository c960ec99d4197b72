//! Whether a PCPU's counters count, and what a move of a VCPU to another cache (`vcpu::micro`) takes of the hypervisor's instructions.
//!
//! On the PCPU that the VCPU leaves the count goes from the fault to the interrupt for the other one; there from the last halt, which
//! that interrupt has ended, to the VCPU's entry. One that was not halted counts nothing.

use super::Pcpu;
use crate::arch::counters::BothSides;
use crate::hw::pmu::Counters;
use crate::vcpu::host::Host as _;
use crate::vmm::backend::Backend;

/// Instructions of the hypervisor on this PCPU, as its counters had them.
#[derive(Debug, Default)]
pub struct MoveCounts {
    /// When it was halted last.
    pub halted_at: Option<u64>,
    /// The same, at the begin of the turn, if it has run nothing since.
    woken_at: Option<u64>,
    /// The same, for a VCPU that comes from another PCPU.
    entry_from: Option<u64>,
    /// What it took until the entry of that.
    pub entry_took: Option<u64>,
    /// When the registers of a VCPU were saved that goes to another PCPU.
    pub left_at: Option<u64>,
}

impl MoveCounts {
    /// A turn begins.
    pub fn begin(&mut self) {
        self.woken_at = self.halted_at.take();
    }

    /// The VCPU that is about to be entered comes from another PCPU: what this one executes until then is to be counted.
    pub fn expect_entry(&mut self) {
        self.entry_from = self.woken_at.take();
        self.entry_took = None;
    }
}

impl<B: Backend, const LAB: bool> Pcpu<B, LAB> {
    /// Gives counters up that do not count, after a VCPU's turn in which they ended with these values: what is absent is
    /// better than a zero.
    pub fn check_counters(&mut self, now: &BothSides) {
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
            self.moves.entry_took = self.host_instructions().map(|now| now.saturating_sub(from));
        }
    }
}
