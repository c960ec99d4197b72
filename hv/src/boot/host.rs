//! The running host: what everything above bring-up starts from.

use super::info::BootInfo;
use super::percpu::PerCpu;

/// The host machine as bring-up found it.
pub struct Host {
    /// What the boot loader told us.
    pub boot: BootInfo,
    /// The PCPU that booted.
    pub cpu: &'static PerCpu,
}

impl Host {
    /// The bytes of a module.
    pub fn module(&self, index: usize) -> Option<&'static [u8]> {
        let range = &self.boot.modules.get(index)?.range;
        // SAFETY: the loader's map and the module were checked; its pages are never handed out.
        Some(unsafe {
            core::slice::from_raw_parts(range.start as *const u8, (range.end - range.start) as usize)
        })
    }
}
