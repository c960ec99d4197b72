//! What a shadow page stands for, packed into one number by which it is found again.

use crate::arch::addr::{Hfn, Hpa, PAGE_SHIFT};
use crate::arch::state::cr4;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{
    ACCESSED, DIRTY, GLOBAL, LongMode, NO_EXECUTE, PAT, PCD, PRESENT, PWT, PageAttr, USER, WRITE,
};
use crate::paging::guest_walk::{PagingKind, PagingState, Rights};
use crate::paging::p2m::HPA_BITS;
use crate::paging::tree_key::TreeKey;

/// In a bit of leaves that the processor ignores: the memory can be written, whatever the guest's tables say.
pub(super) const HOST_WRITABLE: u64 = 1 << 9;

bitflags::bitflags! {
    /// Registers that change what a guest entry means.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Controls: u8 {
        const WRITE_PROTECT = 1 << 0;
        const NO_EXECUTE = 1 << 1;
        const SMEP = 1 << 2;
        const SMAP = 1 << 3;
        const GLOBAL = 1 << 4;
        const LARGE = 1 << 5;
    }

    /// What the entries above allow, together.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Allowed: u8 {
        const WRITE = 1;
        const USER = 2;
        const EXECUTE = 4;
    }
}

impl Allowed {
    /// What entries with these rights allow.
    pub(super) fn of(write: bool, user: bool, execute: bool) -> Allowed {
        let mut allowed = Allowed::empty();
        allowed.set(Allowed::WRITE, write);
        allowed.set(Allowed::USER, user);
        allowed.set(Allowed::EXECUTE, execute);
        allowed
    }
}

impl Controls {
    /// The controls of a VCPU that matter with its kind of paging.
    pub(super) fn of(state: &PagingState) -> Controls {
        let mut controls = Controls::empty();
        let kind = state.kind();
        if kind == PagingKind::Off {
            return controls;
        }
        controls.set(Controls::WRITE_PROTECT, state.write_protect());
        controls.set(Controls::NO_EXECUTE, state.no_execute());
        controls.set(Controls::SMEP, state.smep());
        controls.set(Controls::SMAP, state.smap());
        controls.set(Controls::GLOBAL, state.cr4 & cr4::PGE != 0);
        controls.set(Controls::LARGE, kind == PagingKind::TwoLevel && state.cr4 & cr4::PSE != 0);
        controls
    }
}

/// What a shadow page is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A table of the guest: its entries, one by one.
    Table,
    /// Nothing of the guest's: four page-directory pointers that stand above its tables where it has fewer
    /// levels than the shadow, or where (PAE) the processor loads them with CR3.
    Top,
    /// A stretch of guest-physical memory, from the frame that is the number of the page: what lies under a
    /// large guest page, or everything with paging off. Bits 2:0 are the PAT index, bit 3 is G.
    Direct(u8),
}

/// How the source is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Role {
    /// The level of the shadow page, 1 to 4.
    pub level: u8,
    pub kind: PagingKind,
    /// Which quarter (level 2) or half (level 1) of a 1024-entry table.
    pub quadrant: u8,
    pub controls: Controls,
    pub allowed: Allowed,
    pub source: Source,
    /// The set of tables that it belongs to.
    pub tree: TreeKey,
    /// A [guarded](super::guard) address leads through it, so that it serves no other addresses.
    pub guarded: bool,
}

/// A source and a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(u64);

/// Where the set of tables is.
const TREE: u32 = 22;
const ROLE_BITS: u32 = TREE + TreeKey::BITS;
/// Of a table: it is guarded. What stands for memory has other things there, and says it by a kind of paging, which it has not.
const GUARDED: u64 = 1 << 18;
const GUARDED_KIND: u64 = 2;
const _: () = assert!(ROLE_BITS + HPA_BITS - PAGE_SHIFT <= 64, "a key has room for any frame of a P2m");

impl Key {
    /// Of a page that stands for nothing.
    pub(super) const VOID: Key = Key(0);

    /// The key of what `number` stands for (a host frame for [`Source::Table`], a guest frame for
    /// [`Source::Direct`], any below 2^36 for [`Source::Top`]) in this role.
    pub(super) fn new(number: u64, role: Role) -> Key {
        let kind = match role.kind {
            PagingKind::Off => 0,
            PagingKind::TwoLevel => 1,
            PagingKind::Pae => 2,
            PagingKind::FourLevel => 3,
        };
        let (source, kind) = match role.source {
            Source::Table if role.guarded => (GUARDED >> 16, kind),
            Source::Table => (0, kind),
            Source::Top => (1, kind),
            Source::Direct(leaf) => {
                (2 | u64::from(leaf) << 2, if role.guarded { GUARDED_KIND } else { kind })
            }
        };
        let role = u64::from(role.level & 7)
            | kind << 3
            | u64::from(role.quadrant & 3) << 5
            | u64::from(role.controls.bits()) << 7
            | u64::from(role.allowed.bits()) << 13
            | source << 16
            | u64::from(role.tree.number()) << TREE;
        Key(number << ROLE_BITS | role)
    }

    /// The role.
    pub(super) fn role(self) -> Role {
        let source = match self.0 >> 16 & 3 {
            0 => Source::Table,
            1 => Source::Top,
            _ => Source::Direct((self.0 >> 18 & 15) as u8),
        };
        Role {
            level: self.level(),
            kind: if self.is_direct() { PagingKind::Off } else { self.kind() },
            quadrant: self.quadrant() as u8,
            controls: Controls::from_bits_truncate((self.0 >> 7) as u8 & 0x3f),
            allowed: Allowed::from_bits_truncate((self.0 >> 13) as u8 & 7),
            source,
            tree: self.tree(),
            guarded: self.is_guarded(),
        }
    }

    /// The kind of paging that it is for. Not for what stands for memory.
    pub(super) fn kind(self) -> PagingKind {
        match self.0 >> 3 & 3 {
            0 => PagingKind::Off,
            1 => PagingKind::TwoLevel,
            2 => PagingKind::Pae,
            _ => PagingKind::FourLevel,
        }
    }

    pub(super) fn number(self) -> u64 {
        self.0 >> ROLE_BITS
    }

    /// The set of tables that it belongs to.
    pub(super) fn tree(self) -> TreeKey {
        TreeKey::from_number(self.0 >> TREE)
    }

    /// The level of the shadow page.
    pub(super) fn level(self) -> u8 {
        (self.0 & 7) as u8
    }

    /// What a change of makes the processor's caches worthless.
    pub(super) fn controls_and_kind(self) -> u64 {
        self.0 & (0x3f << 7 | 3 << 3 | ((1 << TreeKey::BITS) - 1) << TREE)
    }

    /// Whether guest entries have the same bits reserved, and addresses the same width, as where [`Key::controls_and_kind`] is
    /// `other`: all that differs decides about rights and global translations, and which set of tables it is.
    #[inline(always)]
    pub(super) fn reads_entries_as(self, other: u64) -> bool {
        let rights = Controls::WRITE_PROTECT | Controls::SMEP | Controls::SMAP | Controls::GLOBAL;
        let beside = u64::from(rights.bits()) << 7 | ((1 << TreeKey::BITS) - 1) << TREE;
        (self.controls_and_kind() ^ other) & !beside == 0
    }

    /// The registers that its entries depend on.
    pub(super) fn controls(self) -> Controls {
        Controls::from_bits_truncate((self.0 >> 7 & 0x3f) as u8)
    }

    /// What the entries above allow, together.
    pub(super) fn allowed(self) -> Allowed {
        Allowed::from_bits_truncate((self.0 >> 13 & 7) as u8)
    }

    /// Whether the entries above allow writes.
    #[inline(always)]
    pub(super) fn allows_writes(self) -> bool {
        self.allowed().contains(Allowed::WRITE)
    }

    /// What a guest entry of level 1 with these bits allows.
    #[inline(always)]
    pub(super) fn rights(self, raw: u64) -> Rights {
        let allowed = self.allowed();
        Rights {
            writable: allowed.contains(Allowed::WRITE) && raw & WRITE != 0,
            user: allowed.contains(Allowed::USER) && raw & USER != 0,
            executable: allowed.contains(Allowed::EXECUTE) && raw & NO_EXECUTE == 0,
        }
    }

    /// The shadow entry of a guest entry of level 1, without reserved bits and with its accessed bit set, that leads to
    /// the memory at `to`; `writable`: that may be written. (Of the same format, but for what 32-bit entries lack.)
    #[inline]
    pub(super) fn leaf(self, raw: u64, to: Hpa, writable: bool) -> u64 {
        const RIGHTS: u64 = WRITE | USER;
        const { assert!(Allowed::WRITE.bits() as u64 * 2 == WRITE && Allowed::USER.bits() as u64 * 2 == USER) };
        let allowed = u64::from(self.allowed().bits());
        let global = if self.controls().contains(Controls::GLOBAL) { GLOBAL } else { 0 };
        let execute = Allowed::EXECUTE.bits();
        let forbidden = if self.allowed().bits() & execute == 0 { NO_EXECUTE } else { 0 };
        // Writable only where the dirty bit is set already.
        let unwritable = if writable && raw & DIRTY != 0 { 0 } else { WRITE };
        let kept = raw & (allowed << 1 & RIGHTS & !unwritable | PWT | PCD | PAT | global | NO_EXECUTE);
        // The processor never needs to set these.
        to.0 | kept | forbidden | PRESENT | ACCESSED | DIRTY
    }

    /// What all leaves of a direct page allow, as far as their memory does.
    pub(super) fn direct_rights(self) -> Rights {
        self.rights(WRITE | USER)
    }

    /// A leaf of a direct page, which leads to the memory at `to`; `writable`: that may be written.
    pub(super) fn direct_leaf(self, to: Hpa, writable: bool) -> u64 {
        let rights = self.direct_rights();
        let leaf = (self.0 >> 18 & 15) as u8;
        let attr = PageAttr {
            write: writable && rights.writable,
            user: rights.user,
            execute: rights.executable,
            global: leaf & 8 != 0,
            pat: leaf & 7,
        };
        LongMode::leaf(to, 1, attr) | ACCESSED | DIRTY
    }

    /// The key of the page for the table in `frame` that the guest's entry `raw` points to, which this page's entry of this
    /// index follows.
    pub(super) fn below(self, raw: u64, index: usize, frame: Hfn) -> Key {
        const ALLOWED: u32 = 13;
        let rights = self.rights(raw);
        let allowed = Allowed::of(rights.writable, rights.user, rights.executable);
        let quadrant = if self.entry_bytes() == 4 { index as u64 & 1 } else { 0 };
        let kept = self.0 & ((1 << ROLE_BITS) - 1) & !(3 << 5 | 7 << ALLOWED);
        Key(frame.0 << ROLE_BITS | (kept - 1) | quadrant << 5 | u64::from(allowed.bits()) << ALLOWED)
    }

    fn quadrant(self) -> u64 {
        self.0 >> 5 & 3
    }

    /// Whether its entries follow those of a guest table.
    pub(super) fn is_table(self) -> bool {
        self.0 >> 16 & 3 == 0
    }

    /// Whether it holds page-directory pointers of PAE paging, which have no rights.
    pub(super) fn is_top(self) -> bool {
        self.0 >> 16 & 3 == 1
    }

    /// Whether its entries follow those of a guest table, and nothing else is to be known of them.
    #[inline(always)]
    pub(super) fn is_plain_table(self) -> bool {
        self.0 & (3 << 16 | GUARDED) == 0
    }

    /// Whether it may become [nested](super::agile): a table of four levels. Entries of other kinds of paging have no bit to spare.
    pub(super) fn is_nestable(self) -> bool {
        self.is_plain_table() && self.kind() == PagingKind::FourLevel
    }

    /// Whether a [guarded](super::guard) address leads through it.
    pub(super) fn is_guarded(self) -> bool {
        match self.0 >> 16 & 3 {
            0 => self.0 & GUARDED != 0,
            2 => self.0 >> 3 & 3 != 0,
            _ => false,
        }
    }

    /// Whether it stands for a stretch of guest-physical memory.
    pub(super) fn is_direct(self) -> bool {
        self.0 >> 16 & 3 == 2
    }

    /// Bytes of a guest entry, 4 or 8.
    pub(super) fn entry_bytes(self) -> u64 {
        if self.0 >> 3 & 3 == 1 { 4 } else { 8 }
    }

    /// The offset of the guest entry that this entry of the shadow page follows.
    pub(super) fn entry_offset(self, index: usize) -> u64 {
        let index = index as u64;
        match (self.entry_bytes(), self.level()) {
            (8, _) => index * 8,
            (_, 1) => ((self.quadrant() & 1) * 512 + index) * 4,
            // 4 MiB are two entries of 2 MiB.
            _ => (self.quadrant() * 256 + index / 2) * 4,
        }
    }

    /// The entries of the shadow page that follow guest entries which touch these bytes of the guest's table.
    pub(super) fn entries_at(self, offset: u64, len: u64) -> core::ops::Range<usize> {
        let size = self.entry_bytes();
        let (first, last) = (offset / size, (offset + len).div_ceil(size));
        let (base, scale) = match (size, self.level()) {
            (8, _) => (0, 1),
            (_, 1) => ((self.quadrant() & 1) * 512, 1),
            _ => (self.quadrant() * 256, 2),
        };
        let within = |n: u64| (n.saturating_sub(base) * scale).min(512) as usize;
        within(first)..within(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::format::x86::{ADDRESS, pat_index};
    use crate::paging::random::Random;

    #[test]
    fn a_leaf_is_that_of_the_format_with_the_rights_of_all_levels() {
        let mut random = Random(7);
        for _ in 0..10_000 {
            let key = Key(random.draw() & !(3 << 3) | 3 << 3);
            let (raw, writable) = (random.draw(), random.draw() & 1 != 0);
            let rights = key.rights(raw);
            let attr = PageAttr {
                write: writable && rights.writable && raw & DIRTY != 0,
                user: rights.user,
                execute: rights.executable,
                global: raw & GLOBAL != 0 && key.controls().contains(Controls::GLOBAL),
                pat: pat_index(raw, 1),
            };
            let to = Hpa(random.draw() & ADDRESS);
            assert_eq!(key.leaf(raw, to, writable), LongMode::leaf(to, 1, attr) | ACCESSED | DIRTY);
        }
    }

    #[test]
    fn every_entry_follows_the_guest_entry_at_its_offset() {
        for (kind, level, quadrants) in [
            (PagingKind::FourLevel, 3, 1),
            (PagingKind::Pae, 1, 1),
            (PagingKind::TwoLevel, 1, 2),
            (PagingKind::TwoLevel, 2, 4),
        ] {
            for quadrant in 0..quadrants {
                let role = Role {
                    level,
                    kind,
                    quadrant,
                    controls: Controls::all(),
                    allowed: Allowed::all(),
                    source: Source::Table,
                    tree: TreeKey::new(15, quadrant & 3).unwrap(),
                    guarded: quadrant & 1 != 0,
                };
                let key = Key::new(0xf_ffff_ffff, role);
                assert_eq!((key.number(), key.level(), key.is_table()), (0xf_ffff_ffff, level, true));
                assert_eq!(key.role(), role);
                for offset in 0..4096 {
                    let hit = key.entries_at(offset, 1);
                    for index in 0..512 {
                        let at = key.entry_offset(index);
                        let touched = (at..at + key.entry_bytes()).contains(&offset);
                        assert_eq!(hit.contains(&index), touched, "{kind:?} {level} {offset} {index}");
                    }
                }
            }
        }
    }
}
