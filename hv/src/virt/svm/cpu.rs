//! What SVM needs on each PCPU, and how it is switched on (AMD APM 2, 15.4 and 15.30).

use alloc::boxed::Box;

use super::asid::AsidPool;
use super::features::Features;
use super::vmcb::Vmcb;
use super::{instr, pa};
use crate::hw;

/// What SVM needs on each PCPU.
pub struct SvmCpu {
    pub(super) asids: AsidPool,
    /// Holds the host's FS, GS, TR and system-call MSRs while a guest's are in the processor.
    pub(super) host: Box<Vmcb>,
    /// Where VMRUN saves the rest of the host's state. Never read here.
    _host_save_area: Box<Vmcb>,
}

impl SvmCpu {
    /// A number that no other PCPU has; never 0.
    pub(super) fn id(&self) -> u64 {
        pa(&*self.host).0
    }

    /// Enables SVM on this PCPU.
    ///
    /// # Safety
    /// Runs on the PCPU that will use the result, with the host's final GDT, TSS and FS/GS bases loaded; `features` were
    /// detected on it.
    pub unsafe fn enable(features: Features) -> SvmCpu {
        let host = Vmcb::new_boxed();
        let host_save_area = Vmcb::new_boxed();
        const EFER_SVME: u64 = 1 << 12;
        const VM_HSAVE_PA: u32 = 0xc001_0117;
        // SAFETY: the processor has SVM and firmware allows it (detect), so EFER.SVME and VM_HSAVE_PA exist; both pages
        // are owned by the result and identity-mapped.
        unsafe {
            hw::msr::write(hw::msr::EFER, hw::msr::read(hw::msr::EFER) | EFER_SVME);
            // VMRUN faults without SVME, and writes the host's state to this page, wherever the MSR points (APM 2,
            // 15.30.4).
            hw::msr::write(VM_HSAVE_PA, pa(&*host_save_area).0);
            // Once is enough: nothing that VMLOAD loads changes in the host afterwards.
            instr::vmsave(pa(&*host));
        }
        SvmCpu { asids: AsidPool::new(features.asids), host, _host_save_area: host_save_area }
    }
}
