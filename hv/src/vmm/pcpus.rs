//! Virtualization on all PCPUs.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering};

use super::backend::{Amd, Backend, Intel};
use super::machine;
use crate::boot::host::Host;
use crate::boot::percpu::PerCpu;
use crate::boot::smp;

/// Switches virtualization on, on every PCPU, for good; says on how many it cannot be. A test of the host.
pub fn enable_everywhere(host: &'static Host) -> u32 {
    if machine::is_intel() { enable::<Intel>(host) } else { enable::<Amd>(host) }
}

fn enable<B: Backend + 'static>(host: &'static Host) -> u32 {
    let backend: &'static B = match B::detect(host.tsc_khz) {
        Ok(backend) => Box::leak(Box::new(backend)),
        Err(obstacle) => {
            log::error!("{obstacle}");
            return u32::MAX;
        }
    };
    static FAILURES: AtomicU32 = AtomicU32::new(0);
    smp::run_everywhere(
        host.cpu,
        Box::leak(Box::new(|pcpu: &'static PerCpu| {
            // SAFETY: the PCPU has started, and nobody else uses the extension.
            match unsafe { backend.enable() } {
                // What the processor goes on using stays where it is.
                Ok(cpu) => core::mem::forget(cpu),
                Err(obstacle) => {
                    log::error!("PCPU {}: {obstacle}", pcpu.index);
                    FAILURES.fetch_add(1, Ordering::SeqCst);
                }
            }
        })),
    );
    FAILURES.load(Ordering::SeqCst)
}
