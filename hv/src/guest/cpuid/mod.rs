//! What CPUID tells a VCPU, worked out before it runs.
//!
//! [`CpuidTable::new`] applies the policy ([`mask`], [`build`]) to the host's values once per VCPU. An exit
//! is then a lookup of two loads; the few values that depend on control registers are patched by
//! [`CpuidTable::refresh`] when CR4 or XCR0 change, which is rarer than CPUID. The same policy decides which
//! control register bits a guest may set ([`CpuLimits`]), so that the two cannot disagree. Manuals: AMD APM 3
//! appendix E, Intel SDM 2A CPUID.

mod build;
mod mask;
#[cfg(test)]
mod tests;
mod xsave;

pub use abi::feature::FeatureSet;
pub use build::CpuidPolicy;
use xsave::XsaveSizes;

use crate::arch::state::cr4;

/// EAX, EBX, ECX, EDX.
pub type Regs = [u32; 4];

pub use abi::hypercall::{CPUID_BASE as HV_BASE, SIGNATURE};

/// Signature of the KVM-compatible leaves at [`KVM_BASE`].
pub const KVM_SIGNATURE: &[u8; 12] = b"KVMKVMKVM\0\0\0";
/// KVM-compatible leaves, present if the guest has a paravirtual clock.
pub const KVM_BASE: u32 = 0x4000_0100;

/// Leaves that are looked up directly: 64 in each of the four blocks that bits 31:30 tell apart (basic,
/// hypervisor, extended, none).
const LEAVES: usize = 64 * 4;
/// Rows of values; a power of two so that an index needs no check.
const ROWS: usize = 128;

/// Where a leaf's rows are: sub-leaf `n` is row `first + min(n, last)`.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    first: u16,
    last: u16,
}

/// The answers for one VCPU.
#[derive(Clone, Debug)]
pub struct CpuidTable {
    /// By the leaf rotated left by two bits, which brings the block to the end.
    slots: [Slot; LEAVES],
    /// The first two KVM-compatible leaves.
    kvm: [Slot; 2],
    /// Row 0 is all zero: what every leaf without a meaning returns.
    rows: [Regs; ROWS],
    used: usize,
    limits: CpuLimits,
    xsave: XsaveSizes,
}

/// What the CPUID values allow a guest to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLimits {
    /// CR4 bits that are not reserved.
    pub cr4: u64,
    /// EFER bits that are not reserved.
    pub efer: u64,
    /// XCR0 bits that may be set; 0 without XSAVE.
    pub xcr0: u64,
    /// Width of a guest-physical address in bits.
    pub phys_bits: u8,
    /// SYSENTER and SYSEXIT exist, and so do their three MSRs.
    pub sysenter: bool,
    /// RDTSCP or RDPID, hence the MSR TSC_AUX, exist.
    pub tsc_aux: bool,
    /// The processor calls itself AMD or Hygon.
    pub amd: bool,
    /// The local APIC exists, hence APIC_BASE.
    pub apic: bool,
    /// The local APIC has x2APIC mode.
    pub x2apic: bool,
    /// The local APIC's timer has TSC deadlines.
    pub tsc_deadline: bool,
    /// The memory type range registers exist.
    pub mtrr: bool,
    /// The page attribute table exists.
    pub pat: bool,
    /// The machine-check registers exist.
    pub mca: bool,
    /// SPEC_CTRL bits that are not reserved; 0 without the MSR.
    pub spec_ctrl: u64,
    /// PRED_CMD exists.
    pub barrier: bool,
    /// FLUSH_CMD exists.
    pub flush_l1d: bool,
    /// VIRT_SPEC_CTRL exists.
    pub virt_ssbd: bool,
    /// What ARCH_CAPABILITIES holds, if it exists.
    pub arch_capabilities: Option<u64>,
}

impl CpuidTable {
    /// The values of `leaf` and `sub`.
    #[inline]
    pub fn get(&self, leaf: u32, sub: u32) -> &Regs {
        let slot = match self.slots.get(leaf.rotate_left(2) as usize) {
            Some(slot) => slot,
            None => self.kvm_slot(leaf),
        };
        let row = slot.first as usize + sub.min(slot.last as u32) as usize;
        &self.rows[row % ROWS]
    }

    #[cold]
    fn kvm_slot(&self, leaf: u32) -> &Slot {
        const NONE: Slot = Slot { first: 0, last: 0 };
        self.kvm.get(leaf.wrapping_sub(KVM_BASE) as usize).unwrap_or(&NONE)
    }

    /// Eight bytes of the brand string, which leaves 8000_0002h to 8000_0004h hold: these from 0 to 5.
    pub fn brand(&self, part: u8) -> u64 {
        let half = usize::from(part % 2) * 2;
        let words = self.get(0x8000_0002 + u32::from(part / 2), 0);
        u64::from(words[half + 1]) << 32 | u64::from(words[half])
    }

    /// What the guest may set in control registers.
    pub fn limits(&self) -> &CpuLimits {
        &self.limits
    }

    /// Follows APIC_BASE: a disabled local APIC is not reported (AMD APM 2, 16.3.2).
    pub fn set_apic(&mut self, enabled: bool) {
        // AMD repeats the bit in leaf 8000_0001h.
        let leaves: &[u32] = if self.limits.amd { &[1, 0x8000_0001] } else { &[1] };
        for &leaf in leaves {
            if let Some([.., features]) = self.row_mut(leaf, 0) {
                *features =
                    *features & !mask::leaf1_edx::APIC | if enabled { mask::leaf1_edx::APIC } else { 0 };
            }
        }
    }

    /// Brings the values that mirror CR4 and XCR0 up to date.
    pub fn refresh(&mut self, guest_cr4: u64, xcr0: u64) {
        let os_xsave = guest_cr4 & cr4::OSXSAVE != 0;
        if let Some(features) = self.row_mut(1, 0) {
            features[2] =
                features[2] & !mask::leaf1_ecx::OSXSAVE | if os_xsave { mask::leaf1_ecx::OSXSAVE } else { 0 };
        }
        let sizes = self.xsave;
        if let Some(standard) = self.row_mut(0xd, 0) {
            standard[1] = sizes.standard(xcr0);
        }
        if let Some(compact) = self.row_mut(0xd, 1)
            && compact[0] & mask::leaf_d1_eax::XSAVEC != 0
        {
            compact[1] = sizes.compact(xcr0);
        }
    }

    /// The row of a leaf; `None` if it is the shared zero row.
    fn row_mut(&mut self, leaf: u32, sub: u16) -> Option<&mut Regs> {
        let slot = self.slots.get(leaf.rotate_left(2) as usize)?;
        match slot.first + sub.min(slot.last) {
            0 => None,
            row => self.rows.get_mut(row as usize),
        }
    }
}
