//! What a VCPU brings into a PCPU beside the state that its control block has: registers, and what must not be left of the last one.

use super::Pcpu;
use crate::hw::context::Context;
use crate::hw::msr;
use crate::virt::speculation::{Load, Measures};
use crate::vmm::backend::Backend;

impl<B: Backend, const LAB: bool> Pcpu<B, LAB> {
    /// Takes a VCPU's registers out of the processor.
    pub fn save(&self, context: &mut Context) {
        // SAFETY: the worker calls this for the VCPU that it has restored.
        unsafe { context.save() }
    }

    /// A VCPU of a VM with these measures comes in: what the last one has taught the processor is not its business.
    #[inline(always)]
    pub fn part_from_last(&mut self, measures: &Measures, load: Load) {
        if self.machine.plan.measures.has_turns() {
            self.write_turn(measures, load);
        }
    }

    #[cold]
    fn write_turn(&mut self, measures: &Measures, load: Load) {
        for (index, value) in self.turn.load(measures, load) {
            // SAFETY: measures that the processor does not offer are not on, and the values are of bits that it has.
            unsafe { msr::write(index, value) }
        }
    }

    /// Puts them in.
    pub fn restore(&self, context: &mut Context) {
        // SAFETY: what the last VCPU had was saved.
        unsafe { context.restore() }
    }
}
