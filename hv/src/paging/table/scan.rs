//! Reading a [`Table`]: its leaves in order, and their accessed and dirty bits.

use super::{Found, Leaf, MapError, ROOT_LEVEL, Table, TableMemory, index, is_page_aligned, leaf, parts};
use crate::arch::addr::{Gpa, Hfn, Hpa, PageSize};
use crate::mem::table_memory::{ENTRIES, which_have};
use crate::paging::format::{Entry, PteFormat};
use crate::paging::range::{Flush, GpaRange};

bitflags::bitflags! {
    /// Bits that the processor sets in leaves.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AccessBits: u8 {
        /// Accessed.
        const ACCESSED = 1;
        /// Dirty.
        const DIRTY = 2;
    }
}

/// Pages of a group: an eighth of a table of leaves.
pub const GROUP: usize = 64;

/// What [`Table::take_accessed_group`] has found of a group of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessedGroup {
    /// A bit for each page.
    Small(AccessedSmall),
    /// All are in a large leaf.
    Large(AccessedLarge),
}

/// What [`Table::take_touched`] has found of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// It may have been accessed.
    pub is_touched: bool,
    /// A bit was cleared.
    pub owes: bool,
}

impl Touched {
    const NO: Touched = Touched { is_touched: false, owes: false };
}

/// Small leaves whose accessed bits were read and cleared. Bit n: page n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessedSmall {
    /// These were accessed.
    pub accessed: u64,
    /// These, or others that had one leaf with them until it was split ([`Table::split_joined`]).
    pub inherited: u64,
}

impl AccessedSmall {
    /// Whether any bit was cleared.
    pub fn any(&self) -> bool {
        self.accessed | self.inherited != 0
    }

    /// Which pages count as accessed, if those of `last` were the time before.
    pub fn pages(&self, last: u64) -> u64 {
        self.accessed | self.inherited & last
    }
}

/// A large leaf whose accessed bit was read and cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessedLarge {
    /// What it maps.
    pub range: GpaRange,
    /// It was accessed.
    pub is_accessed: bool,
    /// It stands for small leaves ([`Table::join_pieces`]), and was accessed each time since it does.
    pub is_joined: bool,
}

impl AccessedLarge {
    /// Which of the pages of `wanted`, all of them in the leaf, count as accessed, if those of `last` were the time before: of joined leaves
    /// the same ones.
    pub fn pages(&self, wanted: u64, last: u64) -> u64 {
        match (self.is_accessed, self.is_joined) {
            (false, _) => 0,
            (true, false) => wanted,
            (true, true) => wanted & last,
        }
    }
}

impl<F: PteFormat, M: TableMemory> Table<F, M> {
    /// Reads and clears the accessed bits of the pages among the 64 from `first` on (a multiple of 64 pages) whose bits are set in
    /// `wanted`. A large leaf is cleared as a whole. One walk for all of them; of the last table only the entries that are asked for
    /// are read.
    ///
    /// Entries change as processors change them, one by one, so that no table moves meanwhile. Until a flush of everything that
    /// the caller owes if anything was found, processors may go on without setting the bits again.
    pub fn take_accessed_group(&self, first: Gpa, wanted: u64) -> AccessedGroup {
        if !GpaRange::ALL.contains(first) {
            return AccessedGroup::Small(AccessedSmall::default());
        }
        let (mut table, mut level) = (self.root, ROOT_LEVEL);
        loop {
            let at = index(first, level);
            if level == 1 {
                // A group is an eighth of a table.
                return AccessedGroup::Small(self.take_accessed_small(table, at & !(GROUP - 1), wanted));
            }
            match F::decode(self.memory.load(table, at), level) {
                Entry::Table(child) => (table, level) = (child, level - 1),
                Entry::Empty => return AccessedGroup::Small(AccessedSmall::default()),
                Entry::Leaf { .. } => {
                    let range = super::entry_range(first, level);
                    let marks = self.memory.load(table, at) & (F::JOINED | F::JOINED_IDLE);
                    let is_joined = marks != 0 && marks == F::JOINED;
                    let is_accessed = self.take_accessed_of(table, at, 0) != 0;
                    if is_joined && !is_accessed {
                        self.mark_idle(table, at);
                    }
                    return AccessedGroup::Large(AccessedLarge { range, is_accessed, is_joined });
                }
            }
        }
    }

    /// The same of the 64 entries from `first` on in a table of level 1. Eight at a time are passed over if none was accessed.
    fn take_accessed_small(&self, table: Hfn, first: usize, wanted: u64) -> AccessedSmall {
        let mut found = AccessedSmall::default();
        for n in (0..GROUP).step_by(8).filter(|n| wanted >> n & 0xff != 0) {
            let eight = self.memory.load_eight(table, first + n);
            let accessed = which_have(&eight, F::ACCESSED) & (wanted >> n) as u8;
            if accessed == 0 {
                continue;
            }
            let inherited = which_have(&eight, F::JOINED) & accessed;
            self.memory.clear_in_eight(table, first + n, accessed, F::ACCESSED | F::JOINED);
            found.accessed |= u64::from(accessed & !inherited) << n;
            found.inherited |= u64::from(inherited) << n;
        }
        found
    }

    /// Whether anything in the piece of 2 MiB at `gpa` may have been accessed since this was asked last: processors set the accessed bit of
    /// each entry that they walk through, and that of the entry for the piece is read, and cleared if it leads to a table. A large leaf keeps
    /// its bit for [`Table::take_accessed_group`], and one that was joined is to be asked until it was found idle.
    ///
    /// It is to be asked before the leaves are: an access in between sets both bits again. Until a flush of everything that is owed if a
    /// bit was cleared, processors may go on without setting it again, as those of leaves.
    pub fn take_touched(&self, gpa: Gpa) -> Touched {
        let Some((table, level)) = self.above_piece(gpa) else { return Touched::NO };
        let at = index(gpa, level);
        let raw = self.memory.load(table, at);
        let is_table = matches!(F::decode(raw, level), Entry::Table(_));
        let is_joined = raw & F::JOINED != 0 && raw & F::JOINED_IDLE == 0;
        Touched {
            is_touched: raw & F::ACCESSED != 0 || !is_table && is_joined,
            owes: is_table && self.take_accessed_of(table, at, 0) != 0,
        }
    }

    /// Whether [`take_touched`](Self::take_touched) would find that none of the `pieces` of 2 MiB from `first` on, whose entries are in one
    /// table, was touched, and clear nothing. `false` where one leaf is larger than a piece.
    pub fn is_idle(&self, first: Gpa, pieces: u64) -> bool {
        match self.above_piece(first) {
            None => false,
            Some((table, level)) => {
                let at = index(first, level);
                let all = at..ENTRIES.min(at + pieces as usize);
                level == 2
                    && all.fold(0, |all, at| all | self.memory.load(table, at)) & (F::ACCESSED | F::JOINED)
                        == 0
            }
        }
    }

    /// Clears the accessed bit of an entry, and `mark` with it; those of them that were set. 0: it was not accessed.
    fn take_accessed_of(&self, table: Hfn, index: usize, mark: u64) -> u64 {
        let taken = F::ACCESSED | mark;
        let mut raw = self.memory.load(table, index);
        while raw & F::ACCESSED != 0 {
            match self.memory.compare_exchange(table, index, raw, raw & !taken) {
                Ok(()) => return raw & taken,
                Err(now) => raw = now,
            }
        }
        0
    }

    /// Calls `f` for every leaf that touches `range` and in which a bit of `which` is set, after clearing
    /// those bits. The leaf tells the bits as they were; a large leaf is reported and cleared as a whole.
    ///
    /// Until the flush is performed, processors may go on without setting the bits again: a *dirty* bit that
    /// was cleared may miss writes until then.
    pub fn harvest(
        &mut self,
        range: GpaRange,
        which: AccessBits,
        mut f: impl FnMut(Leaf<F::Attr>),
    ) -> Result<Flush, MapError> {
        if !is_page_aligned(range) {
            return Err(MapError::Address);
        }
        let mut mask = 0;
        if which.contains(AccessBits::ACCESSED) {
            mask |= F::ACCESSED;
        }
        if which.contains(AccessBits::DIRTY) {
            mask |= F::DIRTY;
        }
        let range = range.intersect(GpaRange::ALL);
        Ok(self.harvest_below(self.root, ROOT_LEVEL, range, mask, &mut f))
    }

    fn harvest_below(
        &mut self,
        table: Hfn,
        level: u8,
        range: GpaRange,
        mask: u64,
        f: &mut impl FnMut(Leaf<F::Attr>),
    ) -> Flush {
        let mut flush = Flush::None;
        for (index, part) in parts(range, level) {
            let mut raw = self.memory.load(table, index);
            match F::decode(raw, level) {
                Entry::Empty => {}
                Entry::Table(child) => {
                    flush = flush.and(self.harvest_below(child, level - 1, part, mask, f));
                }
                Entry::Leaf { .. } if raw & mask == 0 => {}
                Entry::Leaf { to, attr } => {
                    while let Err(now) = self.memory.compare_exchange(table, index, raw, raw & !mask) {
                        raw = now;
                    }
                    let found = leaf::<F>(part.start, level, raw, to, attr);
                    flush = flush.and(Flush::Range(found.range()));
                    f(found);
                }
            }
        }
        flush
    }

    /// Clears the dirty bit of the leaf for `gpa`, and returns the leaf's size; `None`: there is no leaf. Until they have flushed,
    /// processors may write there without setting it again.
    pub fn clear_dirty(&mut self, gpa: Gpa) -> Option<PageSize> {
        if !GpaRange::ALL.contains(gpa) {
            return None;
        }
        let (mut table, mut level) = (self.root, ROOT_LEVEL);
        loop {
            let index = index(gpa, level);
            let mut raw = self.memory.load(table, index);
            match F::decode(raw, level) {
                Entry::Empty => return None,
                Entry::Table(child) => (table, level) = (child, level - 1),
                Entry::Leaf { to, attr } => {
                    while raw & F::DIRTY != 0
                        && let Err(now) = self.memory.compare_exchange(table, index, raw, raw & !F::DIRTY)
                    {
                        raw = now;
                    }
                    return Some(leaf::<F>(gpa, level, raw, to, attr).size);
                }
            }
        }
    }

    /// Whether the leaf for `gpa` was accessed since the last time; clears the bit, with those of all its pages if it is large.
    /// Without a flush, a processor that remembers the translation may go on without setting it again: enough for a guess at
    /// which pages are in use.
    pub fn take_accessed(&self, gpa: Gpa) -> bool {
        self.leaf_entry(gpa).is_some_and(|(table, index, ..)| self.take_accessed_of(table, index, 0) != 0)
    }

    /// Makes the 4 KiB leaf for `gpa` lead to `to`, with the attributes that `change` makes of its own; `None` keeps it. Without
    /// exclusive access: for software tables, of which two callers may change the same leaf at once.
    pub fn fill_leaf(&self, gpa: Gpa, to: Hpa, change: impl Fn(F::Attr) -> Option<F::Attr>) -> bool {
        let Some((table, index, mut raw, 1)) = self.leaf_entry(gpa) else { return false };
        loop {
            let Entry::Leaf { attr, .. } = F::decode(raw, 1) else { return false };
            let Some(new) = change(attr) else { return false };
            match self.memory.compare_exchange(table, index, raw, F::leaf(to, 1, new)) {
                Ok(()) => return true,
                Err(now) => raw = now,
            }
        }
    }

    /// Gives the leaf for `gpa`, of any size, the attributes that `change` makes of its own; `None` keeps it. As
    /// [`fill_leaf`](Self::fill_leaf).
    pub fn change_leaf(&self, gpa: Gpa, change: impl Fn(F::Attr) -> Option<F::Attr>) -> bool {
        let Some((table, index, mut raw, level)) = self.leaf_entry(gpa) else { return false };
        loop {
            let Entry::Leaf { to, attr } = F::decode(raw, level) else { return false };
            let Some(new) = change(attr) else { return false };
            match self.memory.compare_exchange(table, index, raw, F::leaf(to, level, new)) {
                Ok(()) => return true,
                Err(now) => raw = now,
            }
        }
    }

    /// Where the leaf for `gpa` is: its table, index, value and level.
    fn leaf_entry(&self, gpa: Gpa) -> Option<(Hfn, usize, u64, u8)> {
        if !GpaRange::ALL.contains(gpa) {
            return None;
        }
        let (mut table, mut level) = (self.root, ROOT_LEVEL);
        loop {
            let index = index(gpa, level);
            let raw = self.memory.load(table, index);
            match F::decode(raw, level) {
                Entry::Empty => return None,
                Entry::Table(child) => (table, level) = (child, level - 1),
                Entry::Leaf { .. } => return Some((table, index, raw, level)),
            }
        }
    }

    /// Calls `f` for every leaf that touches `range`, changing nothing.
    pub fn for_each_leaf(&self, range: GpaRange, mut f: impl FnMut(Leaf<F::Attr>)) {
        let mut at = range.start;
        while at < range.end {
            at = match self.walk(at) {
                Found::Hole(hole) => hole.end,
                Found::Leaf(leaf) => {
                    f(leaf);
                    Gpa(leaf.gpa.0 + leaf.size.bytes())
                }
            };
        }
    }
}
