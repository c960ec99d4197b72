//! The interrupt descriptor table, shared by all PCPUs.
//!
//! Vectors that return to interrupted code switch stacks through the IST, because precompiled library code may
//! keep data below RSP (the red zone). The other exceptions are fatal and stay on the current stack: that needs no
//! TSS, so they are reported even while a guest's task register is loaded (between #VMEXIT and VMLOAD). AMD APM 2,
//! 8.9.

use super::gdt::{self, ist};
use crate::arch::vector;

/// First vector for external interrupts.
pub const FIRST_INTERRUPT: u8 = 32;
/// Vector of the local APIC's timer.
pub const TIMER: u8 = 0x40;
/// Vector of the console's serial port.
pub const CONSOLE: u8 = 0x41;
/// Vector by which one PCPU makes another one look what there is to do.
pub const KICK: u8 = 0x42;
/// Vector of the local APIC's spurious interrupt: its low four bits are ones on old processors.
pub const SPURIOUS: u8 = 0xff;

/// One 16-byte gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Gate {
    low: u64,
    high: u64,
}

impl Gate {
    /// An interrupt gate (type 14, DPL 0) to `handler` on interrupt stack `ist`.
    pub const fn new(handler: u64, ist: u8) -> Gate {
        let attributes = 0x8e;
        Gate {
            low: handler & 0xffff
                | (gdt::CODE as u64) << 16
                | (ist as u64) << 32
                | attributes << 40
                | (handler >> 16 & 0xffff) << 48,
            high: handler >> 32,
        }
    }
}

/// The interrupt stack of a vector.
pub const fn stack_of(vector: u8) -> u8 {
    match vector {
        vector::NMI => ist::NMI,
        // An overflow of the stack is a page fault whose delivery fails on the same stack.
        vector::DF => ist::DOUBLE_FAULT,
        vector::MC => ist::MACHINE_CHECK,
        0..FIRST_INTERRUPT => 0,
        _ => ist::INTERRUPT,
    }
}

/// A table whose stubs lie 16 bytes apart from `stubs` on.
pub fn table(stubs: u64) -> [Gate; 256] {
    core::array::from_fn(|n| Gate::new(stubs + 16 * n as u64, stack_of(n as u8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_layout() {
        let gate = Gate::new(0x1122_3344_5566_7788, 3);
        assert_eq!(gate.low, 0x5566_8e03_0008_7788);
        assert_eq!(gate.high, 0x1122_3344);
    }

    #[test]
    fn everything_that_returns_switches_stacks() {
        let table = table(0x20_0000);
        for n in 0..=255u8 {
            let ist = table[n as usize].low >> 32 & 7;
            let returns = n == vector::NMI || n == vector::MC || n >= FIRST_INTERRUPT;
            assert_eq!(ist != 0, returns || n == vector::DF, "vector {n}");
        }
    }
}
