//! AMD nested page tables (AMD APM 2, 15.25): long-mode entries that are walked as user accesses.
//!
//! So every entry has the user bit; the guest's own table walks count as user writes. The memory type comes
//! from the host's PAT, whose entries 0, 1 and 3 are WB, WT and UC as after reset. A closed leaf has P clear
//! and a bit set that is ignored in entries that are not present.

use super::x86::{
    ACCESSED, ADDRESS, DIRTY, LARGE, NO_EXECUTE, PRESENT, USER, WRITE, bit, leaf_address, pat_bits, pat_index,
};
use super::{Entry, MemoryType, NestedAttr, PteFormat, Rights};
use crate::arch::addr::{Hfn, Hpa};

/// A leaf without rights (software bit).
const CLOSED: u64 = 1 << 9;

/// AMD nested page tables.
#[derive(Debug)]
pub struct Npt;

impl PteFormat for Npt {
    type Attr = NestedAttr;
    const HARDWARE: bool = true;
    const ACCESSED: u64 = ACCESSED;
    const DIRTY: u64 = DIRTY;
    // Bits 58:52 are available to software.
    const JOINED: u64 = 1 << 52;
    const JOINED_IDLE: u64 = 1 << 53;

    fn table(frame: Hfn) -> u64 {
        frame.base().0 | PRESENT | WRITE | USER
    }

    fn leaf(to: Hpa, level: u8, attr: NestedAttr) -> u64 {
        let index = match attr.memory {
            MemoryType::WriteBack => 0,
            MemoryType::WriteThrough => 1,
            MemoryType::Uncacheable => 3,
        };
        let rights = if attr.rights.is_empty() {
            CLOSED
        } else {
            PRESENT
                | bit(WRITE, attr.rights.contains(Rights::WRITE))
                | bit(NO_EXECUTE, !attr.rights.contains(Rights::EXECUTE))
        };
        to.0 | rights | USER | bit(LARGE, level > 1) | pat_bits(index, level)
    }

    fn decode(raw: u64, level: u8) -> Entry<NestedAttr> {
        if raw & (PRESENT | CLOSED) == 0 {
            return Entry::Empty;
        }
        if level > 1 && raw & LARGE == 0 {
            return Entry::Table(Hpa(raw & ADDRESS).frame());
        }
        let mut rights = Rights::empty();
        if raw & PRESENT != 0 {
            rights |= Rights::READ;
            rights.set(Rights::WRITE, raw & WRITE != 0);
            rights.set(Rights::EXECUTE, raw & NO_EXECUTE == 0);
        }
        let memory = match pat_index(raw, level) {
            0 => MemoryType::WriteBack,
            1 => MemoryType::WriteThrough,
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
        assert_eq!(Npt::leaf(Hpa(0x4000_0000), 3, NestedAttr::RAM), 0x4000_0087);
        assert_eq!(Npt::leaf(Hpa(0x5000), 1, NestedAttr::ROM), 0x5005);
        let device = NestedAttr { rights: Rights::READ | Rights::WRITE, memory: MemoryType::Uncacheable };
        assert_eq!(Npt::leaf(Hpa(0x5000), 1, device), 0x8000_0000_0000_501f);
        assert_eq!(Npt::table(Hfn(5)), 0x5007);
        assert_eq!(Npt::leaf(Hpa(0x5000), 1, NestedAttr::CLOSED) & PRESENT, 0);
    }
}
