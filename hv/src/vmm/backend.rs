//! The two vendors' backends as the machine starts them. Everything above is generic over [`Backend`] and compiled once for each.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Display;

use super::machine::cpuid;
use crate::arch::addr::PageSize;
use crate::arch::msr::SPEC_CTRL;
use crate::arch::state::VcpuState;
use crate::guest::cpuid::CpuLimits;
use crate::guest::msr::pass_through;
use crate::hw::msr;
use crate::hw::pmu::{self, Counters, RealMsrs};
use crate::paging::guest_walk::PagingFeatures;
use crate::virt::Virt;
use crate::virt::feature::Feature;
use crate::virt::speculation::Measures;
use crate::virt::svm::{self, Svm, SvmCpu};
use crate::virt::vmx::{self, Vmx, VmxCpu};

/// A vendor's virtualization hardware.
pub trait Backend: Sized + Send + Sync + 'static {
    /// One VCPU.
    type Virt: Virt<Cpu: Send> + VcpuState + Send;

    /// Which MSRs a VM accesses without an exit: one page or two that its VCPUs share.
    type MsrMap: Send + Sync;

    /// Finds out what the processor that executes this has, or says in one line why it cannot be used. Once for all PCPUs.
    /// `counters`: performance counters are wanted.
    fn detect(tsc_khz: u64, counters: bool) -> Result<Self, Box<dyn Display>>;

    /// Switches it on, on the PCPU that executes this, or says in one line why that PCPU cannot be used: all have to offer
    /// the same.
    ///
    /// # Safety
    /// The PCPU has the host's final tables, and it is the one that will use the result. Once for each.
    unsafe fn enable(&self) -> Result<<Self::Virt as Virt>::Cpu, Box<dyn Display>>;

    /// Starts the performance counters of the PCPU that executes this, if it has any that can be used. Once for each.
    fn start_counters(&self) -> Counters;

    /// The vendor's name in telemetry.
    fn vendor(&self) -> &'static str;

    /// What it offers.
    fn features(&self) -> Vec<Feature>;

    /// How guests' page tables are walked, and the largest leaf of nested tables.
    fn paging(&self) -> (PagingFeatures, PageSize);

    /// What guests can execute of what CPUID answers.
    fn executable(&self, _leaf: u32, _subleaf: u32, values: [u32; 4]) -> [u32; 4] {
        values
    }

    /// The map for VMs with these limits: opens the MSRs of no feature that is hidden from them.
    fn msr_map(&self, limits: &CpuLimits) -> Arc<Self::MsrMap>;

    /// A VCPU after RESET, of a VM with these measures and this map.
    fn vcpu(&self, measures: &Measures, msr_map: &Arc<Self::MsrMap>) -> Self::Virt;

    /// Whether [`Backend::intercept_tsc`] works: lab machines model one vendor's processors.
    const MODELLED_TIME: bool = false;

    /// Has the guest exit where it reads its TSC.
    fn intercept_tsc(_: &mut Self::Virt) {}
}

/// CPUID 8000_0001h EDX: 1 GiB pages.
fn has_gib_pages() -> bool {
    cpuid(0x8000_0001, 0)[3] & 1 << 26 != 0
}

fn physical_bits() -> u8 {
    cpuid(0x8000_0008, 0)[0] as u8
}

/// Why a PCPU other than the first cannot run guests.
const DIFFERS: &str = "its virtualization features differ from those of PCPU 0";

/// AMD-V.
pub struct Amd {
    features: svm::Features,
    io_map: Arc<svm::IoMap>,
}

impl Amd {
    fn features_here() -> Result<svm::Features, Box<dyn Display>> {
        // SAFETY: processors with SVM have VM_CR.
        match svm::Features::detect(cpuid, || unsafe { msr::read(msr::VM_CR) }) {
            Ok(features) if features.nested_paging => Ok(features),
            Ok(_) => Err(Box::new(
                "this processor's AMD-V has no nested paging; use a later one (in QEMU: -cpu EPYC,+svm,+npt)",
            )),
            Err(obstacle) => Err(Box::new(obstacle)),
        }
    }
}

impl Backend for Amd {
    type Virt = Svm;
    type MsrMap = svm::MsrMap;

    fn detect(_: u64, _: bool) -> Result<Amd, Box<dyn Display>> {
        let features = Amd::features_here()?;
        log::info!("AMD-V: {features}");
        let io_map = Arc::new(svm::IoMap::intercept_all());
        Ok(Amd { features, io_map })
    }

    unsafe fn enable(&self) -> Result<SvmCpu, Box<dyn Display>> {
        if Amd::features_here()? != self.features {
            // A VCPU moves between PCPUs, with controls and CPUID answers that were made for the first one's features.
            return Err(Box::new(DIFFERS));
        }
        // SAFETY: the caller's promise, and the features are this PCPU's, too.
        Ok(unsafe { SvmCpu::enable(self.features) })
    }

    fn start_counters(&self) -> Counters {
        match pmu::amd::Features::detect(cpuid) {
            // SAFETY: the features are this processor's.
            Some(features) => Counters::Amd(pmu::amd::Amd::start(features, unsafe { RealMsrs::new() })),
            None => Counters::None,
        }
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

    fn msr_map(&self, limits: &CpuLimits) -> Arc<svm::MsrMap> {
        // With V_SPEC_CTRL the processor keeps the guest's value apart from the host's, so that no access needs an exit.
        let spec_ctrl = (self.features.spec_ctrl && limits.spec_ctrl != 0).then_some(SPEC_CTRL);
        let open: Vec<u32> = pass_through(limits).chain(spec_ctrl).collect();
        Arc::new(svm::MsrMap::opening(&open[..]))
    }

    /// No AMD processor needs anything at entries.
    fn vcpu(&self, _: &Measures, msr_map: &Arc<svm::MsrMap>) -> Svm {
        Svm::new(self.features, self.io_map.clone(), msr_map.clone())
    }

    const MODELLED_TIME: bool = true;

    fn intercept_tsc(virt: &mut Svm) {
        virt.intercept_tsc();
    }
}

/// Intel VT-x.
pub struct Intel {
    features: vmx::Features,
    io_bitmaps: Arc<vmx::IoBitmaps>,
    tsc_khz: u64,
    counting: Option<pmu::intel::Features>,
}

impl Intel {
    /// The features, and the value for a feature control that firmware left open.
    fn features_here() -> Result<(vmx::Features, Option<u64>), Box<dyn Display>> {
        // SAFETY: only MSRs that the processor's VT-x has are read.
        let detected = vmx::Features::detect(cpuid, |index| unsafe { msr::read(index) });
        detected.map_err(|obstacle| Box::new(obstacle) as Box<dyn Display>)
    }
}

impl Backend for Intel {
    type Virt = Vmx;
    type MsrMap = vmx::MsrBitmap;

    fn detect(tsc_khz: u64, counters: bool) -> Result<Intel, Box<dyn Display>> {
        let (features, _) = Intel::features_here()?;
        log::info!("VT-x: {features}");
        if !features.ept {
            // No error: shadow paging needs nothing but VT-x.
            log::warn!("without EPT all guests run on shadow tables");
        }
        let io_bitmaps = Arc::new(vmx::IoBitmaps::exit_on_all());
        // Without the switch at entries and exits the counters would mix guests and the host.
        let counting =
            if counters && features.switches_counters { pmu::intel::Features::detect(cpuid) } else { None };
        Ok(Intel { features, io_bitmaps, tsc_khz, counting })
    }

    unsafe fn enable(&self) -> Result<VmxCpu, Box<dyn Display>> {
        let (features, unlock) = Intel::features_here()?;
        if features != self.features {
            return Err(Box::new(DIFFERS));
        }
        if unlock.is_some() {
            log::info!(
                "the firmware left VT-x unlocked: it is enabled, and locked until the next power cycle"
            );
        }
        // SAFETY: the caller's promise, and the features are this PCPU's, too.
        let cpu = unsafe { VmxCpu::enable(&features, unlock) };
        cpu.map_err(|obstacle| Box::new(obstacle) as Box<dyn Display>)
    }

    fn start_counters(&self) -> Counters {
        match &self.counting {
            // SAFETY: the features are this processor's; PCPUs that differ from the first one run no guests.
            Some(features) => Counters::Intel(pmu::intel::Intel::start(features, unsafe { RealMsrs::new() })),
            None => Counters::None,
        }
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

    fn executable(&self, leaf: u32, subleaf: u32, values: [u32; 4]) -> [u32; 4] {
        self.features.executable(leaf, subleaf, values)
    }

    fn msr_map(&self, limits: &CpuLimits) -> Arc<vmx::MsrBitmap> {
        let open: Vec<u32> = pass_through(limits).collect();
        Arc::new(vmx::MsrBitmap::opening(&open[..]))
    }

    fn vcpu(&self, measures: &Measures, msr_map: &Arc<vmx::MsrBitmap>) -> Vmx {
        Vmx::new(self.features, self.io_bitmaps.clone(), msr_map.clone(), self.tsc_khz)
            .guarded(measures)
            .counted(self.counting.as_ref().map(pmu::intel::Features::switch))
    }
}
