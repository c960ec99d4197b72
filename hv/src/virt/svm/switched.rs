//! MSRs that the processor switches with the guest, by their place in the VMCB (AMD APM 2, 15.5 and 15.14).

use super::vmcb::Vmcb;
use crate::arch::msr;

/// The VMCB's field of an MSR that VMRUN, VMLOAD and VMSAVE switch.
macro_rules! switched {
    ($name:ident, $($mutable:tt)?) => {
        pub(super) fn $name(index: u32, vmcb: &$($mutable)? Vmcb) -> Option<&$($mutable)? u64> {
            Some(match index {
                msr::SYSENTER_CS => &$($mutable)? vmcb.sysenter_cs,
                msr::SYSENTER_ESP => &$($mutable)? vmcb.sysenter_esp,
                msr::SYSENTER_EIP => &$($mutable)? vmcb.sysenter_eip,
                msr::PAT => &$($mutable)? vmcb.g_pat,
                msr::STAR => &$($mutable)? vmcb.star,
                msr::LSTAR => &$($mutable)? vmcb.lstar,
                msr::CSTAR => &$($mutable)? vmcb.cstar,
                msr::SFMASK => &$($mutable)? vmcb.sfmask,
                msr::FS_BASE => &$($mutable)? vmcb.fs.base,
                msr::GS_BASE => &$($mutable)? vmcb.gs.base,
                msr::KERNEL_GS_BASE => &$($mutable)? vmcb.kernel_gs_base,
                _ => return None,
            })
        }
    };
}

switched!(switched,);
switched!(switched_mut, mut);
