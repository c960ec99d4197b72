//! Virtualization on all PCPUs, as a test of the host.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering};

use super::backend::{Amd, Backend, Intel};
use super::{selftest_shootdown, start};
use crate::boot::host::Host;
use crate::boot::percpu::PerCpu;
use crate::boot::smp;

/// Enables virtualization on every PCPU and leaves it enabled; runs guests there and kicks them. Returns on how many PCPUs that
/// failed.
// SAFETY: declared with the same signature in `boot::start`, and nothing else has this name.
#[unsafe(no_mangle)]
fn selftest_virtualization(host: &'static Host) -> u32 {
    if start::is_intel() { test::<Intel>(host) } else { test::<Amd>(host) }
}

fn test<B: Backend + 'static>(host: &'static Host) -> u32 {
    let backend: &'static B = match B::detect(host.tsc_khz, false) {
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
            // SAFETY: the PCPU has started, and this is the only user of the extension.
            match unsafe { backend.enable() } {
                Ok(mut cpu) => {
                    let failed = !selftest_shootdown::run(host, backend, pcpu, &mut cpu);
                    FAILURES.fetch_add(failed.into(), Ordering::SeqCst);
                    // The processor goes on using it.
                    core::mem::forget(cpu);
                }
                Err(obstacle) => {
                    log::error!("PCPU {}: {obstacle}", pcpu.index);
                    FAILURES.fetch_add(1, Ordering::SeqCst);
                }
            }
        })),
    );
    FAILURES.load(Ordering::SeqCst)
}
