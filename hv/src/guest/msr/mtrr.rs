//! Memory type range registers: remembered and validated, without effect, since the nested page tables decide
//! the memory type (APM 2, 7.7; SDM 3A, 12.11).
//!
//! They start as if firmware had made everything write-back: guests then find nothing to repair.

use crate::arch::msr as index;

/// Number of variable ranges.
const VARIABLE: u32 = 8;
/// `MTRRcap`: the variable ranges, fixed ranges, write combining.
const CAP: u64 = VARIABLE as u64 | 1 << 8 | 1 << 10;
const WRITE_BACK: u64 = 6;
/// `MTRRdefType`: enabled, with fixed ranges.
const DEF_TYPE_RESET: u64 = WRITE_BACK | 1 << 10 | 1 << 11;
const FIXED_RESET: u64 = 0x0101_0101_0101_0101 * WRITE_BACK;
const FIRST_VARIABLE: u32 = 0x200;
const LAST_VARIABLE: u32 = FIRST_VARIABLE + 2 * VARIABLE - 1;
/// The fixed ranges: 64 KiB, 16 KiB and 4 KiB per field.
const FIXED: [u32; 11] = [0x250, 0x258, 0x259, 0x268, 0x269, 0x26a, 0x26b, 0x26c, 0x26d, 0x26e, 0x26f];

/// The registers of one VCPU.
#[derive(Clone, Debug)]
pub struct Mtrrs {
    def_type: u64,
    fixed: [u64; FIXED.len()],
    variable: [u64; 2 * VARIABLE as usize],
}

impl Default for Mtrrs {
    fn default() -> Self {
        Mtrrs {
            def_type: DEF_TYPE_RESET,
            fixed: [FIXED_RESET; FIXED.len()],
            variable: [0; 2 * VARIABLE as usize],
        }
    }
}

impl Mtrrs {
    /// The value, `None` if this is no MTRR.
    pub fn read(&self, msr: u32) -> Option<u64> {
        match msr {
            index::MTRR_CAP => Some(CAP),
            index::MTRR_DEF_TYPE => Some(self.def_type),
            FIRST_VARIABLE..=LAST_VARIABLE => Some(self.variable[(msr - FIRST_VARIABLE) as usize]),
            _ => Some(self.fixed[FIXED.iter().position(|&f| f == msr)?]),
        }
    }

    /// Writes; `None` if the value is not allowed or this is no MTRR that can be written.
    pub fn write(&mut self, msr: u32, value: u64, phys_bits: u8) -> Option<()> {
        let addresses = (1u64 << phys_bits.min(52)) - 1;
        match msr {
            index::MTRR_DEF_TYPE => {
                let reserved = !(0xff | 1 << 10 | 1 << 11);
                self.def_type = (value & reserved == 0 && is_type(value as u8)).then_some(value)?;
            }
            FIRST_VARIABLE..=LAST_VARIABLE => {
                let is_base = msr.is_multiple_of(2);
                let reserved = if is_base { 0xf00 } else { 0x7ff } | !addresses;
                let valid = value & reserved == 0 && (!is_base || is_type(value as u8));
                self.variable[(msr - FIRST_VARIABLE) as usize] = valid.then_some(value)?;
            }
            _ => {
                let fixed = FIXED.iter().position(|&f| f == msr)?;
                self.fixed[fixed] = value.to_le_bytes().iter().all(|&t| is_type(t)).then_some(value)?;
            }
        }
        Some(())
    }
}

/// UC, WC, WT, WP, WB.
fn is_type(t: u8) -> bool {
    matches!(t, 0 | 1 | 4 | 5 | 6)
}
