//! Ordinary x86 page-table entries (Intel SDM 3, 4.3 to 4.5; AMD APM 2, 5.2 and 5.3).
//!
//! The constants serve the walker of guest tables and the nested format of AMD, which is made of long-mode
//! entries. [`LongMode`] is the format of 64-bit and PAE tables that map guest-virtual addresses: shadow
//! tables.

use super::{Entry, LeafAttr, PteFormat};
use crate::arch::addr::{Hfn, Hpa};

/// Present.
pub const PRESENT: u64 = 1 << 0;
/// Writable.
pub const WRITE: u64 = 1 << 1;
/// User.
pub const USER: u64 = 1 << 2;
/// PWT, bit 0 of the PAT index.
pub const PWT: u64 = 1 << 3;
/// PCD, bit 1 of the PAT index.
pub const PCD: u64 = 1 << 4;
/// Accessed.
pub const ACCESSED: u64 = 1 << 5;
/// Dirty, in leaves.
pub const DIRTY: u64 = 1 << 6;
/// Page size: a leaf, above level 1.
pub const LARGE: u64 = 1 << 7;
/// PAT, bit 2 of the PAT index, in a leaf of level 1.
pub const PAT: u64 = 1 << 7;
/// Global, in leaves.
pub const GLOBAL: u64 = 1 << 8;
/// PAT, bit 2 of the PAT index, in a leaf above level 1.
pub const PAT_LARGE: u64 = 1 << 12;
/// No execute, in 64-bit entries.
pub const NO_EXECUTE: u64 = 1 << 63;
/// All bits that can hold an address in a 64-bit entry.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Attributes of a leaf that maps guest-virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageAttr {
    /// Writable.
    pub write: bool,
    /// Accessible at CPL 3.
    pub user: bool,
    /// Instructions may be fetched.
    pub execute: bool,
    /// Stays in the TLB across address spaces.
    pub global: bool,
    /// The PAT index, 0 to 7.
    pub pat: u8,
}

/// Sets or clears a bit.
pub const fn bit(mask: u64, on: bool) -> u64 {
    if on { mask } else { 0 }
}

/// The bits of a leaf of `level` that name this PAT index.
pub const fn pat_bits(index: u8, level: u8) -> u64 {
    let high = if level == 1 { PAT } else { PAT_LARGE };
    bit(PWT, index & 1 != 0) | bit(PCD, index & 2 != 0) | bit(high, index & 4 != 0)
}

/// The PAT index of a leaf of `level`.
pub const fn pat_index(raw: u64, level: u8) -> u8 {
    let high = if level == 1 { PAT } else { PAT_LARGE };
    (raw >> 3 & 3) as u8 | if raw & high != 0 { 4 } else { 0 }
}

/// The address in a leaf of `level`, without the attribute bits below it.
pub const fn leaf_address(raw: u64, level: u8) -> u64 {
    raw & ADDRESS & !((1 << (12 + 9 * (level as u32 - 1))) - 1)
}

/// Long-mode tables of guest-virtual addresses.
#[derive(Debug)]
pub struct LongMode;

impl PteFormat for LongMode {
    type Attr = PageAttr;
    const HARDWARE: bool = true;
    const ACCESSED: u64 = ACCESSED;
    const DIRTY: u64 = DIRTY;

    fn table(frame: Hfn) -> u64 {
        frame.base().0 | PRESENT | WRITE | USER
    }

    fn leaf(to: Hpa, level: u8, attr: PageAttr) -> u64 {
        to.0 | PRESENT
            | bit(WRITE, attr.write)
            | bit(USER, attr.user)
            | bit(NO_EXECUTE, !attr.execute)
            | bit(GLOBAL, attr.global)
            | bit(LARGE, level > 1)
            | pat_bits(attr.pat, level)
    }

    fn decode(raw: u64, level: u8) -> Entry<PageAttr> {
        if raw & PRESENT == 0 {
            return Entry::Empty;
        }
        if level > 1 && raw & LARGE == 0 {
            return Entry::Table(Hpa(raw & ADDRESS).frame());
        }
        let attr = PageAttr {
            write: raw & WRITE != 0,
            user: raw & USER != 0,
            execute: raw & NO_EXECUTE == 0,
            global: raw & GLOBAL != 0,
            pat: pat_index(raw, level),
        };
        Entry::Leaf { to: Hpa(leaf_address(raw, level)), attr }
    }
}

impl LeafAttr for PageAttr {
    fn must_flush(self, new: PageAttr) -> bool {
        let lost = |old: bool, new: bool| old && !new;
        lost(self.write, new.write)
            || lost(self.execute, new.execute)
            || self.user != new.user
            || self.global != new.global
            || self.pat != new.pat
    }

    fn is_present(self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_the_manuals_put_them() {
        let attr = PageAttr { write: true, user: false, execute: false, global: true, pat: 6 };
        assert_eq!(LongMode::leaf(Hpa(0x20_0000), 2, attr), 0x8000_0000_0020_1193);
        assert_eq!(LongMode::leaf(Hpa(0x1000), 1, attr), 0x8000_0000_0000_1193);
        assert_eq!(LongMode::table(Hfn(0x1)), 0x1007);
    }
}
