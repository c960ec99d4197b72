//! What distinguishes the kinds of guest page tables: entry width, levels, large pages, reserved bits.
//!
//! Intel SDM 3, 4.3 (32-bit), 4.4 (PAE), 4.5 (4-level); AMD APM 2, 5.2 and 5.3.

use super::PagingState;
use crate::arch::addr::{Gpa, Gva};
use crate::arch::state::{cr4, efer};
use crate::paging::format::x86::{ADDRESS, GLOBAL, LARGE, NO_EXECUTE};
use crate::paging::format::{address_mask, reserved_address_bits};

/// One kind of page tables. Levels count down to 1.
pub(super) trait Kind {
    /// The level of the root table.
    const ROOT_LEVEL: u8;
    /// Bytes of an entry, 4 or 8.
    const ENTRY_BYTES: u64;
    /// log2 of the entries of a table.
    const INDEX_BITS: u32;

    /// Where the root table is.
    fn root(state: &PagingState) -> Gpa;

    /// Whether entries of `level` restrict accesses and have an accessed bit.
    fn has_rights(_level: u8) -> bool {
        true
    }

    /// Whether a present entry is a leaf.
    fn is_leaf(state: &PagingState, raw: u64, level: u8) -> bool;

    /// The bits of a present entry that must be zero.
    fn reserved(state: &PagingState, level: u8, leaf: bool) -> u64;

    /// The address in a leaf above level 1.
    fn large_address(raw: u64, level: u8) -> u64 {
        raw & ADDRESS & !((1 << Self::shift(level)) - 1)
    }

    /// log2 of what an entry of `level` spans.
    fn shift(level: u8) -> u32 {
        12 + Self::INDEX_BITS * (u32::from(level) - 1)
    }

    /// The entry of a table of `level` at `table` for `gva`.
    fn entry(table: Gpa, gva: Gva, level: u8) -> Gpa {
        let mask = if Self::ROOT_LEVEL == 3 && level == 3 { 3 } else { (1 << Self::INDEX_BITS) - 1 };
        Gpa(table.0 + (gva.0 >> Self::shift(level) & mask) * Self::ENTRY_BYTES)
    }
}

/// 32-bit paging: two levels of 32-bit entries, 4 MiB pages with CR4.PSE.
pub(super) struct TwoLevel;

impl Kind for TwoLevel {
    const ROOT_LEVEL: u8 = 2;
    const ENTRY_BYTES: u64 = 4;
    const INDEX_BITS: u32 = 10;

    fn root(state: &PagingState) -> Gpa {
        Gpa(state.cr3 & 0xffff_f000)
    }

    fn is_leaf(state: &PagingState, raw: u64, level: u8) -> bool {
        level == 1 || (raw & LARGE != 0 && state.cr4 & cr4::PSE != 0)
    }

    /// PSE-36: bits 20:13 of a large page are address bits 39:32, as far as the processor has them; bit 21 is
    /// zero.
    fn reserved(state: &PagingState, level: u8, leaf: bool) -> u64 {
        if level != 2 || !leaf {
            return 0;
        }
        let high_bits = state.features.physical_bits.clamp(32, 40) - 32;
        1 << 21 | (0xff << high_bits & 0xff) << 13
    }

    fn large_address(raw: u64, _level: u8) -> u64 {
        (raw & 0xffc0_0000) | (raw >> 13 & 0xff) << 32
    }
}

/// Bits of 64-bit entries that must be zero with respect to NX, address width and large-page alignment.
fn reserved_long<K: Kind>(state: &PagingState, level: u8, leaf: bool) -> u64 {
    let mut reserved = reserved_address_bits(state.features.physical_bits);
    if state.efer & efer::NXE == 0 {
        reserved |= NO_EXECUTE;
    }
    if leaf && level > 1 {
        // Address bits below the page's size, but for bit 12, which is PAT.
        reserved |= ((1 << K::shift(level)) - 1) & !0x1fff;
    }
    reserved
}

/// PAE paging: four page-directory pointers, then two levels of 64-bit entries, 2 MiB pages.
pub(super) struct Pae;

impl Kind for Pae {
    const ROOT_LEVEL: u8 = 3;
    const ENTRY_BYTES: u64 = 8;
    const INDEX_BITS: u32 = 9;

    fn root(state: &PagingState) -> Gpa {
        Gpa(state.cr3 & 0xffff_ffe0)
    }

    fn has_rights(level: u8) -> bool {
        level != 3
    }

    fn is_leaf(_: &PagingState, raw: u64, level: u8) -> bool {
        level == 1 || (level == 2 && raw & LARGE != 0)
    }

    fn reserved(state: &PagingState, level: u8, leaf: bool) -> u64 {
        const HIGH: u64 = 0x7ff0_0000_0000_0000;
        if level == 3 {
            // Bits 2:1, 8:5 and everything above the address.
            let low = if state.features.pointer_bits_reserved { 0x1e6 } else { 0 };
            return low | HIGH | NO_EXECUTE | reserved_address_bits(state.features.physical_bits);
        }
        reserved_long::<Pae>(state, level, leaf) | HIGH
    }
}

/// 4-level paging: 64-bit entries, 2 MiB pages, 1 GiB pages where the processor has them.
pub(super) struct FourLevel;

impl Kind for FourLevel {
    const ROOT_LEVEL: u8 = 4;
    const ENTRY_BYTES: u64 = 8;
    const INDEX_BITS: u32 = 9;

    fn root(state: &PagingState) -> Gpa {
        Gpa(state.cr3 & address_mask(state.features.physical_bits))
    }

    fn is_leaf(state: &PagingState, raw: u64, level: u8) -> bool {
        match level {
            1 => true,
            2 => raw & LARGE != 0,
            3 => raw & LARGE != 0 && state.features.gib_pages,
            _ => false,
        }
    }

    fn reserved(state: &PagingState, level: u8, leaf: bool) -> u64 {
        let mut reserved = reserved_long::<FourLevel>(state, level, leaf);
        if level == 4 || (level == 3 && !state.features.gib_pages) {
            reserved |= LARGE;
        }
        if level >= 3 && !leaf && state.features.upper_global_reserved {
            reserved |= GLOBAL;
        }
        reserved
    }
}
