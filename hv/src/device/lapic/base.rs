//! The APIC_BASE MSR (0x1b): where the registers are, and how they are reached.
//!
//! Intel SDM 3, 11.4.3–4, 11.12.1 and 11.12.5 (state transitions); AMD APM 2, 16.3.1 and 16.9.

use super::{Lapic, LapicEffect};
use crate::arch::addr::Gpa;
use crate::device::Gp;

const BSP: u64 = 1 << 8;
const X2APIC: u64 = 1 << 10;
const ENABLED: u64 = 1 << 11;
const MODE: u64 = ENABLED | X2APIC;
/// Bits 7:0 and 9 must be zero; so must those from the physical address width up.
const RESERVED: u64 = 0x2ff;
const RESET_ADDRESS: u64 = 0xfee0_0000;

/// The MSR's value after reset.
pub(super) const fn reset(bsp: bool) -> u64 {
    RESET_ADDRESS | ENABLED | if bsp { BSP } else { 0 }
}

impl Lapic {
    /// The APIC_BASE MSR.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// WRMSR to APIC_BASE, for a processor with `physical_bits` of physical address. Illegal are: reserved
    /// bits (x2APIC where there is no such mode among them), x2APIC without EN, from disabled straight to x2APIC, and from
    /// x2APIC back to xAPIC. Disabling resets the registers. The BSP flag is read-only on AMD and can be written on Intel
    /// (SDM 4, table 2-2).
    pub fn set_base(&mut self, value: u64, physical_bits: u8) -> Result<LapicEffect, Gp> {
        let too_high = u64::MAX.checked_shl(physical_bits.into()).unwrap_or(0);
        let no_such_mode = if self.abilities.x2apic { 0 } else { X2APIC };
        if value & (RESERVED | too_high | no_such_mode) != 0 {
            return Err(Gp);
        }
        match (self.base & MODE, value & MODE) {
            // The only way out of x2APIC mode is by disabling (SDM 3, 11.12.5).
            (_, X2APIC) | (0, MODE) | (MODE, ENABLED) => return Err(Gp),
            // SDM 3, 11.4.3: disabling by the MSR has the effect of a reset. It does not when it was disabled already.
            (old, 0) if old != 0 => self.reset_registers(),
            // The destination is not in bits 63:56 any more.
            (ENABLED, MODE) => self.icr &= 0xffff_ffff,
            _ => {}
        }
        let old = self.base;
        self.base = if self.abilities.bsp_writable { value } else { value & !BSP | old & BSP };
        Ok(if self.base == old { LapicEffect::None } else { LapicEffect::Readdressed })
    }

    /// The page in which the registers appear: only in xAPIC mode.
    pub fn mmio_page(&self) -> Option<Gpa> {
        (self.base & MODE == ENABLED).then_some(Gpa(self.base & 0x000f_ffff_ffff_f000))
    }

    /// The BSP flag, which decides what INIT leads to.
    pub fn is_bsp(&self) -> bool {
        self.base & BSP != 0
    }

    /// The registers are reached through MSRs.
    pub fn is_x2apic(&self) -> bool {
        self.base & MODE == MODE
    }

    /// APIC_BASE.EN
    pub fn hardware_enabled(&self) -> bool {
        self.base & ENABLED != 0
    }
}
