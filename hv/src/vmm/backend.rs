//! The two vendors' backends as the machine starts them. Everything above is generic over [`Backend`] and compiled once for each.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Display;

use super::machine::cpuid;
use crate::guest::msr::PASS_THROUGH;
use crate::hw::msr;
use crate::paging::addr::PageSize;
use crate::paging::guest_walk::PagingFeatures;
use crate::virt::feature::Feature;
use crate::virt::svm::{self, Svm, SvmCpu};
use crate::virt::vmx::{self, Vmx, VmxCpu};
use crate::virt::{VcpuState, Virt};

/// A vendor's virtualization hardware, switched on.
pub trait Backend: Sized {
    /// One VCPU.
    type Virt: Virt + VcpuState;

    /// Switches it on, or says in one line why it cannot be used.
    ///
    /// # Safety
    /// On the PCPU that will run guests, with the host's final tables loaded.
    unsafe fn start(tsc_khz: u64) -> Result<(Self, <Self::Virt as Virt>::Cpu), Box<dyn Display>>;

    /// The vendor's name in telemetry.
    fn vendor(&self) -> &'static str;

    /// What it offers.
    fn features(&self) -> Vec<Feature>;

    /// How guests' page tables are walked, and the largest leaf of nested tables.
    fn paging(&self) -> (PagingFeatures, PageSize);

    /// A VCPU after RESET.
    fn vcpu(&self) -> Self::Virt;
}

/// CPUID 8000_0001h EDX: 1 GiB pages.
fn has_gib_pages() -> bool {
    cpuid(0x8000_0001, 0)[3] & 1 << 26 != 0
}

fn physical_bits() -> u8 {
    cpuid(0x8000_0008, 0)[0] as u8
}

/// AMD-V.
pub struct Amd {
    features: svm::Features,
    io_map: Arc<svm::IoMap>,
    msr_map: Arc<svm::MsrMap>,
}

impl Backend for Amd {
    type Virt = Svm;

    unsafe fn start(_: u64) -> Result<(Amd, SvmCpu), Box<dyn Display>> {
        // SAFETY: processors with SVM have VM_CR.
        let features = match svm::Features::detect(cpuid, || unsafe { msr::read(msr::VM_CR) }) {
            Ok(features) if features.nested_paging => features,
            Ok(_) => {
                return Err(Box::new(
                    "this processor's AMD-V has no nested paging; use a later one (in QEMU: -cpu EPYC,+svm,+npt)",
                ));
            }
            Err(obstacle) => return Err(Box::new(obstacle)),
        };
        log::info!("AMD-V: {features}");
        let io_map = Arc::new(svm::IoMap::intercept_all());
        let msr_map = Arc::new(svm::MsrMap::opening(&PASS_THROUGH));
        // SAFETY: the caller's promise, and the features are this PCPU's own.
        Ok((Amd { features, io_map, msr_map }, unsafe { SvmCpu::enable(features) }))
    }

    fn vendor(&self) -> &'static str {
        "amd"
    }

    fn features(&self) -> Vec<Feature> {
        self.features.list().into()
    }

    fn paging(&self) -> (PagingFeatures, PageSize) {
        let gib_pages = has_gib_pages();
        let paging = PagingFeatures {
            physical_bits: physical_bits(),
            gib_pages,
            // QEMU's emulation, again.
            upper_global_reserved: !self.features.ignores_interrupt_shadow,
            pointer_bits_reserved: !self.features.ignores_interrupt_shadow,
        };
        (paging, if gib_pages { PageSize::Size1G } else { PageSize::Size2M })
    }

    fn vcpu(&self) -> Svm {
        Svm::new(self.features, self.io_map.clone(), self.msr_map.clone())
    }
}

/// Intel VT-x.
pub struct Intel {
    features: vmx::Features,
    io_bitmaps: Arc<vmx::IoBitmaps>,
    msr_bitmap: Arc<vmx::MsrBitmap>,
    tsc_khz: u64,
}

impl Backend for Intel {
    type Virt = Vmx;

    unsafe fn start(tsc_khz: u64) -> Result<(Intel, VmxCpu), Box<dyn Display>> {
        // SAFETY: only MSRs that the processor's VT-x has are read.
        let detected = vmx::Features::detect(cpuid, |index| unsafe { msr::read(index) });
        let (features, unlock) = match detected {
            Ok(found) => found,
            Err(obstacle) => return Err(Box::new(obstacle)),
        };
        log::info!("VT-x: {features}");
        if !features.ept {
            log::warn!("without EPT all guests run on shadow tables");
        }
        // SAFETY: the caller's promise, and the features are this PCPU's own.
        let cpu = match unsafe { VmxCpu::enable(&features, unlock) } {
            Ok(cpu) => cpu,
            Err(obstacle) => return Err(Box::new(obstacle)),
        };
        let io_bitmaps = Arc::new(vmx::IoBitmaps::exit_on_all());
        let msr_bitmap = Arc::new(vmx::MsrBitmap::opening(&PASS_THROUGH));
        Ok((Intel { features, io_bitmaps, msr_bitmap, tsc_khz }, cpu))
    }

    fn vendor(&self) -> &'static str {
        "intel"
    }

    fn features(&self) -> Vec<Feature> {
        self.features.list().into()
    }

    fn paging(&self) -> (PagingFeatures, PageSize) {
        let paging = PagingFeatures {
            physical_bits: physical_bits(),
            gib_pages: has_gib_pages(),
            upper_global_reserved: false,
            pointer_bits_reserved: true,
        };
        let leaf = match self.features {
            vmx::Features { ept_1g: true, .. } => PageSize::Size1G,
            vmx::Features { ept_2m: true, .. } => PageSize::Size2M,
            _ => PageSize::Size4K,
        };
        (paging, leaf)
    }

    fn vcpu(&self) -> Vmx {
        Vmx::new(self.features, self.io_bitmaps.clone(), self.msr_bitmap.clone(), self.tsc_khz)
    }
}
