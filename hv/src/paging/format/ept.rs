//! Intel extended page tables (Intel SDM 3, 29.3.2; A/D bits in 29.3.5; memory types in 29.3.7).
//!
//! An entry is present if any of R, W, X is set; W without R is a misconfiguration, hence the rule that
//! rights include READ. Write-back leaves ignore the guest's PAT: guest memory is coherent whatever the guest
//! says; the other types leave the last word to the combination of both. A closed leaf has R, W, X clear and
//! an ignored bit set.

use super::x86::{ADDRESS, bit, leaf_address};
use super::{Entry, MemoryType, NestedAttr, PteFormat, Rights};
use crate::arch::addr::{Hfn, Hpa};

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
const RIGHTS: u64 = READ | WRITE | EXECUTE;
/// Position of the memory type, bits 5:3.
const MEMORY_TYPE_SHIFT: u32 = 3;
/// Ignore the guest's PAT.
const IGNORE_PAT: u64 = 1 << 6;
/// A leaf above level 1.
const LARGE: u64 = 1 << 7;
/// A leaf without rights (software bit).
const CLOSED: u64 = 1 << 11;

/// Intel extended page tables.
#[derive(Debug)]
pub struct Ept;

impl PteFormat for Ept {
    type Attr = NestedAttr;
    const HARDWARE: bool = true;
    const ACCESSED: u64 = 1 << 8;
    const DIRTY: u64 = 1 << 9;
    // Bits 56:52 are ignored.
    const JOINED: u64 = 1 << 52;
    const JOINED_IDLE: u64 = 1 << 53;
    const FILTERS_FAULTS: bool = true;

    fn table(frame: Hfn) -> u64 {
        frame.base().0 | RIGHTS
    }

    fn leaf(to: Hpa, level: u8, attr: NestedAttr) -> u64 {
        let memory = match attr.memory {
            MemoryType::Uncacheable => 0,
            MemoryType::WriteThrough => 4 << MEMORY_TYPE_SHIFT,
            MemoryType::WriteBack => 6 << MEMORY_TYPE_SHIFT | IGNORE_PAT,
        };
        let rights = if attr.rights.is_empty() {
            CLOSED
        } else {
            READ | bit(WRITE, attr.rights.contains(Rights::WRITE))
                | bit(EXECUTE, attr.rights.contains(Rights::EXECUTE))
        };
        to.0 | rights | memory | bit(LARGE, level > 1)
    }

    fn decode(raw: u64, level: u8) -> Entry<NestedAttr> {
        if raw & (RIGHTS | CLOSED) == 0 {
            return Entry::Empty;
        }
        if level > 1 && raw & LARGE == 0 {
            return Entry::Table(Hpa(raw & ADDRESS).frame());
        }
        let mut rights = Rights::empty();
        rights.set(Rights::READ, raw & READ != 0);
        rights.set(Rights::WRITE, raw & WRITE != 0);
        rights.set(Rights::EXECUTE, raw & EXECUTE != 0);
        let memory = match raw >> MEMORY_TYPE_SHIFT & 7 {
            4 => MemoryType::WriteThrough,
            6 => MemoryType::WriteBack,
            _ => MemoryType::Uncacheable,
        };
        Entry::Leaf { to: Hpa(leaf_address(raw, level)), attr: NestedAttr { rights, memory } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_the_manual_puts_them() {
        assert_eq!(Ept::leaf(Hpa(0x4000_0000), 3, NestedAttr::RAM), 0x4000_00f7);
        assert_eq!(Ept::leaf(Hpa(0x5000), 1, NestedAttr::ROM), 0x5075);
        let device = NestedAttr { rights: Rights::READ | Rights::WRITE, memory: MemoryType::Uncacheable };
        assert_eq!(Ept::leaf(Hpa(0x5000), 1, device), 0x5003);
        assert_eq!(Ept::table(Hfn(5)), 0x5007);
        assert_eq!(Ept::leaf(Hpa(0x5000), 1, NestedAttr::CLOSED) & RIGHTS, 0);
    }
}
