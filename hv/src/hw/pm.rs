//! Ends of the host machine: QEMU's isa-debug-exit device, ACPI power off, reset.
//!
//! ACPI 6.5, 4.8.3.2 (PM1 control) and 4.8.3.6 (reset register).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{cpu, port};

/// The hypervisor panicked.
pub const STATUS_PANIC: u32 = 4;
/// The host machine cannot run guests.
pub const STATUS_UNSUITABLE: u32 = 5;

const SLP_EN: u16 = 1 << 13;
const NONE: u32 = u32::MAX;

/// Port of isa-debug-exit.
static DEBUG_EXIT: AtomicU32 = AtomicU32::new(NONE);
/// PM1a control port in bits 15:0, PM1b in 31:16, SLP_TYPa in 39:32, SLP_TYPb in 47:40, known: bit 63.
static SLEEP: AtomicU64 = AtomicU64::new(0);

/// How to enter S5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftOff {
    /// PM1a control port.
    pub pm1a: u16,
    /// PM1b control port, 0 if there is none.
    pub pm1b: u16,
    /// SLP_TYP values for the two ports, from the `\_S5` package.
    pub types: [u8; 2],
}

/// Ends go through QEMU's isa-debug-exit at this port first.
pub fn set_debug_exit(port: u16) {
    DEBUG_EXIT.store(port.into(), Ordering::Relaxed);
}

/// How to power off.
pub fn set_soft_off(off: SoftOff) {
    let word = u64::from(off.pm1a) | u64::from(off.pm1b) << 16;
    let types = u64::from(off.types[0]) << 32 | u64::from(off.types[1]) << 40;
    SLEEP.store(word | types | 1 << 63, Ordering::Relaxed);
}

/// Ends the machine with a status for whoever started it: by the debug-exit device where there is one (QEMU then
/// exits with `status << 1 | 1`), else by power off, else by halting.
pub fn end_machine(status: u32) -> ! {
    let port = DEBUG_EXIT.load(Ordering::Relaxed);
    if let Ok(port) = u16::try_from(port) {
        // SAFETY: the port is the debug-exit device's.
        unsafe { port::out32(port, status) };
    }
    power_off()
}

/// Powers the machine off by ACPI's S5; halts if that is unknown or has no effect.
pub fn power_off() -> ! {
    let word = SLEEP.load(Ordering::Relaxed);
    if word >> 63 != 0 {
        for (port, slp_typ) in [(word as u16, (word >> 32) as u8), ((word >> 16) as u16, (word >> 40) as u8)]
        {
            if port != 0 {
                // SAFETY: the port is the PM1 control register named by the FADT.
                unsafe { port::out16(port, u16::from(slp_typ & 7) << 10 | SLP_EN) };
            }
        }
    }
    cpu::halt_forever()
}
