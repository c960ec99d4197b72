//! The running host: what everything above bring-up starts from.

use super::percpu::PerCpu;
use crate::boot::cmdline::HvOptions;
use crate::boot::fast_memory::FastError;
use crate::boot::memory::Ranges;
use crate::firmware::acpi::Acpi;
use crate::firmware::info::BootInfo;
use crate::hw::lapic::LocalApic;
use crate::hw::timer::Timer;
use crate::hw::tsc;

/// The host machine as bring-up found it.
pub struct Host {
    /// What the boot loader told us.
    pub boot: BootInfo,
    /// The hypervisor's command line, parsed.
    pub options: HvOptions,
    /// What the ACPI tables say.
    pub acpi: Acpi,
    /// The PCPU that booted.
    pub cpu: &'static PerCpu,
    /// What the local APICs offer.
    pub lapic: LocalApic,
    /// Frequency of the time-stamp counter in kHz.
    pub tsc_khz: u64,
    /// How to arm the timers of the PCPUs; that of the first one is installed.
    pub timer: Timer,
    /// Where the TSC's frequency comes from.
    pub tsc_source: tsc::Source,
    /// Fast memory that the frame allocator does not have, or why there cannot be what the command line names.
    pub fast: Result<Ranges, FastError>,
    /// Bytes of fast memory that the hypervisor has for itself.
    pub fast_own: u64,
    /// XSAVEC loses nothing.
    pub sound_xsavec: bool,
}

impl Host {
    /// The bytes of a module, as long as it has not been released.
    ///
    /// # Panics
    /// If there is no such module.
    pub fn module(&self, index: usize) -> &'static [u8] {
        let range = self.boot.modules[index].range.clone();
        // SAFETY: the loader's map and the module were checked; its pages are never handed out.
        unsafe { core::slice::from_raw_parts(range.start as *const u8, (range.end - range.start) as usize) }
    }
}
