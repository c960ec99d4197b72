//! Memory-type range registers, which must be the same on every PCPU.
//!
//! Firmware sets them on each processor; where it forgot one, that one gets the boot processor's. Intel SDM 3, 12.11; AMD APM 2,
//! 7.7 and 7.8.

use arrayvec::ArrayVec;

use super::{cpu, msr};
use crate::arch::state::{cr0, cr4};

const CAP: u32 = 0xfe;
const DEF_TYPE: u32 = 0x2ff;
const DEF_TYPE_ENABLE: u64 = 1 << 11;
const CAP_FIXED: u64 = 1 << 8;
const VARIABLE: u32 = 0x200;
/// One register of 64 KiB pieces, two of 16 KiB, eight of 4 KiB: all below 1 MiB.
const FIXED: [u32; 11] = [0x250, 0x258, 0x259, 0x268, 0x269, 0x26a, 0x26b, 0x26c, 0x26d, 0x26e, 0x26f];
/// Pairs of variable-range registers at most; processors have about ten.
const MAX_VARIABLE: usize = 32;

/// All registers of a processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mtrrs {
    default: u64,
    /// Numbers and values.
    registers: ArrayVec<(u32, u64), { FIXED.len() + 2 * MAX_VARIABLE }>,
}

impl Mtrrs {
    /// Those of the PCPU that executes this; `None` if it has none.
    pub fn read() -> Option<Mtrrs> {
        if cpu::cpuid(1, 0).edx & 1 << 12 == 0 {
            return None;
        }
        // SAFETY: the processor has MTRRs, and of the others only those that the capabilities name are read.
        unsafe {
            let capabilities = msr::read(CAP);
            let fixed = if capabilities & CAP_FIXED != 0 { FIXED.as_slice() } else { &[] };
            let pairs = (capabilities as u32 & 0xff).min(MAX_VARIABLE as u32);
            let all = fixed.iter().copied().chain(VARIABLE..VARIABLE + 2 * pairs);
            let registers = all.map(|register| (register, msr::read(register))).collect();
            Some(Mtrrs { default: msr::read(DEF_TYPE), registers })
        }
    }

    /// Makes them those of the PCPU that executes this, with caches off meanwhile (SDM 3, 12.11.8).
    ///
    /// # Safety
    /// They were read on a processor of the same kind, interrupts are closed, and no other code runs on this PCPU.
    pub unsafe fn write(&self) {
        let (old_cr0, old_cr4) = (cpu::cr0(), cpu::cr4());
        // SAFETY: caches off and the same tables again change no meaning of running code; the registers exist.
        unsafe {
            cpu::set_cr0(old_cr0 & !cr0::NW | cr0::CD);
            cpu::wbinvd();
            cpu::set_cr4(old_cr4 & !cr4::PGE);
            // Flushes the TLB, which caches memory types; the global entries fell with CR4.PGE.
            cpu::set_cr3(cpu::cr3());
            msr::write(DEF_TYPE, self.default & !DEF_TYPE_ENABLE);
            for (register, value) in &self.registers {
                msr::write(*register, *value);
            }
            msr::write(DEF_TYPE, self.default);
            cpu::wbinvd();
            cpu::set_cr3(cpu::cr3());
            cpu::set_cr0(old_cr0);
            cpu::set_cr4(old_cr4);
        }
    }
}
