//! What a PCPU writes to MSRs when it takes a VCPU, and what its SPEC_CTRL holds.
//!
//! SPEC_CTRL stays in the processor between the VCPU's exits, as registers do for which the host has no use: what a guest may
//! set only makes the host slower, and bits that the host wants are always set ([`Measures::required`]). So exits cost nothing.

use arrayvec::ArrayVec;

use super::{COMMAND, Measures};
use crate::arch::msr;

/// MSRs and values, in order.
pub type Writes = ArrayVec<(u32, u64), 2>;

/// A VCPU that a PCPU takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Its VM.
    pub vm: u32,
    /// What it wants in SPEC_CTRL.
    pub spec_ctrl: u64,
}

/// What a PCPU remembers from one VCPU to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The VM that ran last.
    vm: Option<u32>,
    spec_ctrl: u64,
}

impl Turn {
    /// The PCPU takes a VCPU. The measures are its VM's.
    pub fn load(&mut self, measures: &Measures, load: Load) -> Writes {
        let mut writes = Writes::new();
        let before = self.vm.replace(load.vm);
        // What the predictor has learnt of the host alone is no other VM's.
        if measures.barrier && before.is_some_and(|before| before != load.vm) {
            writes.push((msr::PRED_CMD, COMMAND));
        }
        if let Some(value) = self.set(measures, load.spec_ctrl) {
            writes.push((msr::SPEC_CTRL, value));
        }
        writes
    }

    /// The VCPU in the PCPU wants this in SPEC_CTRL: what to write, if anything.
    #[must_use]
    pub fn set(&mut self, measures: &Measures, wanted: u64) -> Option<u64> {
        let value = wanted | measures.required;
        let changes = measures.has_spec_ctrl && core::mem::replace(&mut self.spec_ctrl, value) != value;
        changes.then_some(value)
    }
}
