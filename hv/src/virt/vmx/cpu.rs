//! What VT-x needs on each PCPU, and how it is switched on (Intel SDM 3, 23.7 and 31.5).

use alloc::boxed::Box;

use super::features::{Features, Unsuitable};
use super::instr;
use crate::arch::addr::Hpa;
use crate::hw::{cpu, msr};

/// A VMCS or VMXON region. The processor alone knows what is behind the revision.
#[repr(C, align(4096))]
pub(super) struct Region {
    revision: u32,
    _rest: [u32; 1023],
}

impl Region {
    pub(super) fn new_boxed(revision: u32) -> Box<Region> {
        let zeroed = Box::<Region>::new_zeroed();
        // SAFETY: integers, for which zero is valid.
        let mut region = unsafe { zeroed.assume_init() };
        region.revision = revision;
        region
    }
}

/// The physical address of what the processor reaches by it. It is on the heap, which is identity-mapped; code and constants may not be.
pub(super) fn pa<T>(block: &T) -> Hpa {
    Hpa(core::ptr::from_ref(block) as u64)
}

/// What VT-x needs on each PCPU.
pub struct VmxCpu {
    vmxon: Box<Region>,
}

const CR4_VMXE: u64 = 1 << 13;

impl VmxCpu {
    /// A number that no other PCPU has; never 0.
    pub(super) fn id(&self) -> u64 {
        pa(&*self.vmxon).0
    }

    /// One of a modelled processor.
    #[cfg(test)]
    pub(super) fn modelled() -> VmxCpu {
        VmxCpu { vmxon: Region::new_boxed(1) }
    }

    /// Enters VMX operation on this PCPU. `unlock` is the value for a feature control that firmware left open.
    ///
    /// # Safety
    /// Runs on the PCPU that will use the result, with the host's final GDT, TSS, page tables and FS/GS bases loaded; the
    /// features and `unlock` were detected on it.
    pub unsafe fn enable(features: &Features, unlock: Option<u64>) -> Result<VmxCpu, Unsuitable> {
        let vmxon = Region::new_boxed(features.revision);
        // SAFETY: the processor has VT-x and its feature control is open or allows it (detect), so the MSR accepts the
        // value; the CR0 and CR4 bits are those that it demands in VMX operation. The region lives as long as the result,
        // and VMX operation is never left.
        unsafe {
            if let Some(value) = unlock {
                msr::write(msr::IA32_FEATURE_CONTROL, value);
            }
            // VMXON faults if a bit of CR0 or CR4 is not as the fixed-bit MSRs demand (SDM 3, 23.8).
            cpu::set_cr0(cpu::cr0() | features.cr0_ones);
            cpu::set_cr4(cpu::cr4() | features.cr4_ones | CR4_VMXE);
            instr::vmxon(pa(&*vmxon)).map_err(|_| Unsuitable::VmxonFailed)?;
        }
        Ok(VmxCpu { vmxon })
    }
}
