//! Table entry formats: these modules know bits, walkers and mappers do not.
//!
//! Every format here has tables of 512 entries of 64 bits. An entry of all zeroes is empty, so that a zeroed
//! frame is an empty table. Levels count from 1 (4 KiB leaves) to 4 (the root).

pub mod ept;
pub mod npt;
pub mod p2m;
pub mod x86;

use crate::arch::addr::{Hfn, Hpa};
use core::fmt::Debug;

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<A> {
    /// Nothing.
    Empty,
    /// Here is the table of the next lower level.
    Table(Hfn),
    /// A translation of everything under this entry.
    Leaf {
        /// The first byte of the memory, aligned to what the entry spans.
        to: Hpa,
        /// What is allowed there, and how it is cached.
        attr: A,
    },
}

/// The bits of one table format.
pub trait PteFormat: Send + Sync + 'static {
    /// What a leaf carries besides an address.
    type Attr: LeafAttr;

    /// Whether processors walk such tables and cache what they find.
    const HARDWARE: bool;
    /// The bits that the processor sets in an entry that it uses (0: none).
    const ACCESSED: u64;
    /// The bits that the processor sets in a leaf that it writes through (0: none).
    const DIRTY: u64;

    /// A bit that processors ignore: a large leaf stands for small ones that were joined for a time
    /// ([`Table::join_pieces`](super::table::Table::join_pieces)), or a small one has the accessed bit of such a leaf. 0: not noted.
    const JOINED: u64 = 0;
    /// A bit that processors ignore: a sample has found a leaf with [`JOINED`](Self::JOINED) idle. 0: not noted.
    const JOINED_IDLE: u64 = 0;

    /// Whether the vendor's processors choose by the error code which page faults of a guest exit.
    const FILTERS_FAULTS: bool = false;

    /// An entry that points to a table and restricts nothing.
    fn table(frame: Hfn) -> u64;

    /// A leaf with accessed and dirty bits clear. `to` is aligned to what an entry of `level` spans, and its bits are the leaf's,
    /// beside those of `level` and `attr`.
    fn leaf(to: Hpa, level: u8, attr: Self::Attr) -> u64;

    /// What an entry of a table of `level` says.
    fn decode(raw: u64, level: u8) -> Entry<Self::Attr>;
}

/// What a leaf carries besides an address, and what that means for TLBs.
pub trait LeafAttr: Copy + PartialEq + Debug {
    /// Whether the processor must forget the leaf when it becomes one with `new` at the same address: something that was
    /// allowed no longer is, or is cached in another way.
    fn must_flush(self, new: Self) -> bool;

    /// Whether a processor can use (and so cache) such a leaf.
    fn is_present(self) -> bool;
}

bitflags::bitflags! {
    /// What the guest may do with memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// Read.
        const READ = 1;
        /// Write.
        const WRITE = 2;
        /// Fetch instructions.
        const EXECUTE = 4;
    }
}

/// How the processor caches memory, as far as the nested tables decide it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryType {
    /// WB
    #[default]
    WriteBack,
    /// WT
    WriteThrough,
    /// UC
    Uncacheable,
}

/// Attributes of a leaf of nested tables.
///
/// Without any right the leaf is *closed*: the processor takes the entry for not present, the mapper still
/// knows where it leads. Any other set of rights includes [`Rights::READ`]; the formats add it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NestedAttr {
    /// What the guest may do.
    pub rights: Rights,
    /// How it is cached.
    pub memory: MemoryType,
}

impl NestedAttr {
    /// RAM.
    pub const RAM: NestedAttr = NestedAttr { rights: Rights::all(), memory: MemoryType::WriteBack };
    /// ROM: RAM that is not written.
    pub const ROM: NestedAttr =
        NestedAttr { rights: Rights::READ.union(Rights::EXECUTE), memory: MemoryType::WriteBack };
    /// RAM that is known but closed to the guest.
    pub const CLOSED: NestedAttr = NestedAttr { rights: Rights::empty(), memory: MemoryType::WriteBack };
}

impl LeafAttr for NestedAttr {
    fn must_flush(self, new: NestedAttr) -> bool {
        self.is_present() && (!new.rights.contains(self.rights) || self.memory != new.memory)
    }

    fn is_present(self) -> bool {
        !self.rights.is_empty()
    }
}

/// The physical-address bits of an entry, on a processor with `bits` of them (MAXPHYADDR).
pub const fn address_mask(bits: u8) -> u64 {
    let bits = if bits > 52 { 52 } else { bits };
    ((1 << bits) - 1) & x86::ADDRESS
}

/// The physical-address bits of an entry that must be zero on a processor with `bits` physical-address bits.
pub const fn reserved_address_bits(bits: u8) -> u64 {
    x86::ADDRESS & !address_mask(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What holds of every format: entries decode to what they were made of, all levels apart.
    fn check<F: PteFormat>(attrs: &[F::Attr]) {
        for level in 1..=4 {
            assert_eq!(F::decode(0, level), Entry::Empty);
        }
        for level in 2..=4 {
            let frame = Hfn(0xf_1234_5678);
            assert_eq!(F::decode(F::table(frame), level), Entry::Table(frame));
            assert_eq!(F::decode(F::table(frame) | F::ACCESSED, level), Entry::Table(frame));
        }
        for level in 1..=3 {
            let to = Hpa(0xd_4000_0000_0000 | 5 << (12 + 9 * (level - 1)));
            for &attr in attrs {
                let raw = F::leaf(to, level, attr);
                assert_ne!(raw, 0);
                assert_eq!(raw & (F::ACCESSED | F::DIRTY), 0);
                for bits in [0, F::ACCESSED, F::DIRTY, F::ACCESSED | F::DIRTY] {
                    assert_eq!(F::decode(raw | bits, level), Entry::Leaf { to, attr }, "level {level}");
                }
                assert!(!attr.must_flush(attr));
            }
        }
    }

    #[test]
    fn entries_decode_to_what_they_were_made_of() {
        let mut attrs = Vec::new();
        for memory in [MemoryType::WriteBack, MemoryType::WriteThrough, MemoryType::Uncacheable] {
            for more in [Rights::empty(), Rights::WRITE, Rights::EXECUTE, Rights::WRITE | Rights::EXECUTE] {
                attrs.push(NestedAttr { rights: Rights::READ | more, memory });
            }
            attrs.push(NestedAttr { rights: Rights::empty(), memory });
        }
        check::<npt::Npt>(&attrs);
        check::<ept::Ept>(&attrs);
        check::<p2m::P2mFormat>(&p2m::P2mKind::ALL);
        let page = x86::PageAttr { write: true, user: true, execute: true, global: false, pat: 0 };
        let mut attrs = vec![page];
        for pat in 0..8 {
            attrs.push(x86::PageAttr { pat, write: false, ..page });
            attrs.push(x86::PageAttr { pat, user: false, global: true, ..page });
            attrs.push(x86::PageAttr { pat, execute: false, ..page });
        }
        check::<x86::LongMode>(&attrs);
    }

    #[test]
    fn losing_a_right_is_flushed_and_gaining_one_is_not() {
        let closed = NestedAttr::CLOSED;
        for (old, new, flush) in [
            (NestedAttr::RAM, NestedAttr::ROM, true),
            (NestedAttr::ROM, NestedAttr::RAM, false),
            (NestedAttr::RAM, closed, true),
            (closed, NestedAttr::RAM, false),
            (NestedAttr::RAM, NestedAttr { memory: MemoryType::Uncacheable, ..NestedAttr::RAM }, true),
        ] {
            assert_eq!(old.must_flush(new), flush, "{old:?} {new:?}");
        }
    }

    #[test]
    fn address_masks_follow_the_width() {
        assert_eq!(address_mask(36), 0xf_ffff_f000);
        assert_eq!(address_mask(52), 0xf_ffff_ffff_f000);
        assert_eq!(address_mask(60), 0xf_ffff_ffff_f000);
        assert_eq!(reserved_address_bits(40), 0xf_ff00_0000_0000);
        assert_eq!(reserved_address_bits(52), 0);
    }
}
