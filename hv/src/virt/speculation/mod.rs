//! What must be done so that guests learn nothing of each other by speculative execution, and what guests can do themselves.
//!
//! [`needs`] decides once, from what the processor says of itself: no hardware is touched. [`Plan`] is its answer, with a
//! reason for each mitigation, for the log and the hardware report. It is carried out by [`Turn`] when a PCPU takes another
//! VCPU (barrier, SPEC_CTRL); `virt::vmx` before entries (buffers, level-1 data cache); the builder of VMs (small leaves).
//! What guests get is decided by CPUID's policy (`guest::cpuid`) and kept by `guest::msr`.
//!
//! Manuals: Intel SDM 4 table 2-2 (ARCH_CAPABILITIES, SPEC_CTRL, PRED_CMD, FLUSH_CMD); SDM 3, 27.2 (entries); AMD APM 2, 3.2.9
//! and 15.37 (SPEC_CTRL and its virtualization). Affected processors: the vendors' public guidance ([`models`]). Why it is done
//! this way: `docs/design/0014-speculation.md`.

mod models;
mod needs;
#[cfg(test)]
mod tests;
mod turn;

use core::fmt;

pub use abi::config::Mitigations;
pub use needs::{Model, Offers, Vendor, needs};
pub use turn::{Load, Turn, Writes};

/// Bits of SPEC_CTRL.
pub mod spec_ctrl {
    /// Indirect branches are restricted.
    pub const IBRS: u64 = 1 << 0;
    /// Indirect branches do not go by those of the sibling thread.
    pub const STIBP: u64 = 1 << 1;
    /// Loads do not pass stores; in VIRT_SPEC_CTRL, too.
    pub const SSBD: u64 = 1 << 2;
    /// Stores are not forwarded by prediction (AMD).
    pub const PSFD: u64 = 1 << 7;
}

/// PRED_CMD: the indirect branch predictor forgets. FLUSH_CMD: so does the level-1 data cache.
pub const COMMAND: u64 = 1;

/// Bits of ARCH_CAPABILITIES.
#[allow(missing_docs)]
pub mod arch {
    pub const RDCL_NO: u64 = 1 << 0;
    pub const IBRS_ALL: u64 = 1 << 1;
    pub const SKIP_L1DFL_VMENTRY: u64 = 1 << 3;
    pub const SSB_NO: u64 = 1 << 4;
    pub const MDS_NO: u64 = 1 << 5;
    pub const PSCHANGE_MC_NO: u64 = 1 << 6;
    pub const TAA_NO: u64 = 1 << 8;
    /// What guests may know of the processor: RSBA, SBDR_SSDP_NO, FBSDP_NO, PSDP_NO, FB_CLEAR, RRSBA, BHI_NO, PBRSB_NO, GDS_NO,
    /// RFDS_NO and RFDS_CLEAR beside those above. Not what promises MSRs that guests do not have.
    pub const FOR_GUESTS: u64 = RDCL_NO
        | IBRS_ALL
        | SKIP_L1DFL_VMENTRY
        | SSB_NO
        | MDS_NO
        | PSCHANGE_MC_NO
        | TAA_NO
        | 1 << 2
        | 1 << 13
        | 1 << 14
        | 1 << 15
        | 1 << 17
        | 1 << 19
        | 1 << 20
        | 1 << 24
        | 1 << 26
        | 1 << 27
        | 1 << 28;
}

/// What is done about a weakness of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The processor does not have it: how that is known.
    NotNeeded(&'static str),
    /// This is done.
    On(&'static str),
    /// The processor lacks what it takes.
    Unavailable(&'static str),
    /// It would be needed, but is turned off by `mitigations=off`.
    Off,
}

/// A weakness of processors, and what is done about it on this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mitigation {
    /// The usual name of the weakness.
    pub name: &'static str,
    /// What is done.
    pub state: State,
}

impl fmt::Display for Mitigation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        match self.state {
            State::NotNeeded(why) => write!(f, "nothing needed ({why})"),
            State::On(how) => write!(f, "on: {how}"),
            State::Unavailable(what) => write!(f, "needed, but {what}; update the firmware or the microcode"),
            State::Off => f.write_str("needed, but off (mitigations=off)"),
        }
    }
}

/// What is done, in the form that entries and switches use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// IBPB when a PCPU changes VMs.
    pub barrier: bool,
    /// Buffers are cleared before each entry.
    pub clear_buffers: bool,
    /// The level-1 data cache is flushed before entries that follow something else than the guest's own exits.
    pub flush_l1d: bool,
    /// Nested leaves are of 4 KiB.
    pub small_leaves: bool,
    /// The processor has SPEC_CTRL.
    pub has_spec_ctrl: bool,
    /// What SPEC_CTRL holds at least.
    pub required: u64,
}

/// What is done on this machine, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What.
    pub measures: Measures,
    /// For people.
    pub list: [Mitigation; 4],
}

impl Measures {
    /// The measures for a guest: nothing is done before entries of one that is trusted.
    #[must_use]
    pub fn for_guest(self, mitigations: Mitigations) -> Measures {
        match mitigations {
            Mitigations::Auto => self,
            Mitigations::Off => {
                Measures { has_spec_ctrl: self.has_spec_ctrl, required: self.required, ..Measures::default() }
            }
        }
    }

    /// Whether anything is done when a PCPU takes another VCPU.
    #[inline]
    pub fn has_turns(&self) -> bool {
        self.barrier || self.has_spec_ctrl
    }

    /// What a guest reads from ARCH_CAPABILITIES on a processor that says `host`: what is done here it need not do again.
    pub fn arch_capabilities(&self, host: u64) -> u64 {
        let done = |done: bool, bit: u64| if done { bit } else { 0 };
        host & arch::FOR_GUESTS
            | done(self.flush_l1d, arch::SKIP_L1DFL_VMENTRY)
            | done(self.small_leaves, arch::PSCHANGE_MC_NO)
    }
}
