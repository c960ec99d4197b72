//! Operations that exist to leave the guest: CPUID, and a PCI configuration access.

use std::{arch::asm, fs::File, io, os::unix::fs::FileExt};

use super::must;
use crate::sample::Samples;

/// CPUID leaf 0 in a loop of six instructions, the unit in which the row's figures are understood.
pub fn cpuid(samples: &mut Samples) -> io::Result<()> {
    const BATCH: u64 = 200;
    samples.take(51, BATCH, || {
        // SAFETY: CPUID has no effect but on the four registers, of which RBX, which LLVM reserves, is restored; the
        // loop counter is an operand.
        unsafe {
            asm!(
                "mov {rbx}, rbx",
                "2:",
                "xor eax, eax",
                "xor ecx, ecx",
                "cpuid",
                "inc {index}",
                "cmp {index}, {batch}",
                "jne 2b",
                "mov rbx, {rbx}",
                rbx = out(reg) _,
                index = inout(reg) 0_u64 => _,
                batch = in(reg) BATCH,
                out("eax") _,
                out("ecx") _,
                out("edx") _,
                options(nomem, nostack),
            );
        }
    });
    Ok(())
}

/// The first dword of the host bridge's configuration space through sysfs: a system call, an OUTL and an INL.
pub fn pci_read(samples: &mut Samples) -> io::Result<()> {
    let config = File::open("/sys/bus/pci/devices/0000:00:00.0/config")?;
    samples.take(51, 100, || {
        for _ in 0..100 {
            let mut dword = [0; 4];
            must(config.read_exact_at(&mut dword, 0));
        }
    });
    Ok(())
}
