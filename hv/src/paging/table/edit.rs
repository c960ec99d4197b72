//! Changes of a [`Table`]: map, unmap, change attributes, split, merge.
//!
//! All but merging are one recursion over the entries that a range touches ([`Table::edit`]); an [`Edit`]
//! decides entry by entry. The P2m, the nested tables and the hypervisor's own are such tables.
//!
//! Processors walk all but the P2m while they change, and set accessed and dirty bits. So an entry that holds something changes by
//! one compare-and-exchange, which is tried again if a bit came meanwhile, and a new table is complete before an entry leads to it.

use super::{
    ENTRIES, MapError, ROOT_LEVEL, Table, TableMemory, entry_range, index, is_page_aligned, parts, span,
};
use crate::arch::addr::{Gpa, Hfn, Hpa, PAGE_SIZE, PageSize};
use crate::paging::format::{Entry, LeafAttr, PteFormat};
use crate::paging::range::{Flush, GpaRange};

/// What to do with an entry.
enum Action<A> {
    Keep,
    /// Make it this leaf, or empty.
    Set(Option<(Hpa, A)>),
    /// Look at the entries below, which are created if there are none.
    Descend,
}

/// A change to all entries of a range.
trait Edit<A> {
    /// What to do with an entry of a table of `level`, of which `part` is in the range (`whole`: all).
    fn action(&self, old: Entry<A>, level: u8, part: GpaRange, whole: bool) -> Action<A>;

    /// What all entries of a table of level 1 become, which is in the range as a whole: leaves to neighbours, from here on.
    fn fills(&self, _part: GpaRange) -> Option<(Hpa, A)> {
        None
    }
}

struct Map<A> {
    from: Gpa,
    to: Hpa,
    attr: A,
    largest: u8,
}

impl<A: Copy + PartialEq> Edit<A> for Map<A> {
    fn action(&self, old: Entry<A>, level: u8, part: GpaRange, whole: bool) -> Action<A> {
        let to = Hpa(self.to.0 + (part.start.0 - self.from.0));
        // Also a part of a larger leaf that says the same already: it need not be split.
        if let Entry::Leaf { to: old_to, attr } = old {
            let offset = part.start.0 & (span(level) - 1);
            if old_to.0 + offset == to.0 && attr == self.attr {
                return Action::Keep;
            }
        }
        if whole && level <= self.largest && to.is_aligned(span(level)) {
            Action::Set(Some((to, self.attr)))
        } else {
            Action::Descend
        }
    }

    fn fills(&self, part: GpaRange) -> Option<(Hpa, A)> {
        Some((Hpa(self.to.0 + (part.start.0 - self.from.0)), self.attr))
    }
}

struct Unmap;

impl<A> Edit<A> for Unmap {
    fn action(&self, old: Entry<A>, _: u8, _: GpaRange, whole: bool) -> Action<A> {
        match old {
            Entry::Empty => Action::Keep,
            // A table goes as a whole, without a look at what is in it.
            _ if whole => Action::Set(None),
            _ => Action::Descend,
        }
    }
}

struct Protect<P>(P);

impl<A: Copy + PartialEq, P: Fn(A) -> A> Edit<A> for Protect<P> {
    fn action(&self, old: Entry<A>, _: u8, _: GpaRange, whole: bool) -> Action<A> {
        match old {
            Entry::Empty => Action::Keep,
            Entry::Table(_) => Action::Descend,
            Entry::Leaf { to, attr } => match (self.0)(attr) {
                new if new == attr => Action::Keep,
                new if whole => Action::Set(Some((to, new))),
                _ => Action::Descend,
            },
        }
    }
}

/// Turns leaves above this level into tables.
struct Split(u8);

impl<A> Edit<A> for Split {
    fn action(&self, old: Entry<A>, level: u8, _: GpaRange, _: bool) -> Action<A> {
        match old {
            Entry::Empty => Action::Keep,
            _ if level <= self.0 => Action::Keep,
            _ => Action::Descend,
        }
    }
}

impl<F: PteFormat, M: TableMemory> Table<F, M> {
    /// Maps `range` to the memory from `to` on with the largest leaves that fit, whatever was there before.
    /// Leaves that already say so stay as they are; where only the attributes change, accessed and dirty bits
    /// stay.
    pub fn map(&mut self, range: GpaRange, to: Hpa, attr: F::Attr) -> Result<Flush, MapError> {
        let fits = to.checked_add(range.len()).is_some_and(|end| end.0 <= 1 << 52);
        if !fits || !to.is_aligned(PAGE_SIZE) {
            return Err(MapError::Address);
        }
        self.run(range, &Map { from: range.start, to, attr, largest: self.largest.level() })
    }

    /// Makes the entry of one page a leaf, if the table that has it is there. `None`: there is no such table.
    pub fn set_page(&mut self, page: Gpa, to: Hpa, attr: F::Attr) -> Option<Flush> {
        let table = self.find_leaf_table(page)?;
        Some(self.set(table, index(page, 1), 1, entry_range(page, 1), Some((to, attr))))
    }

    /// Empties `range`.
    pub fn unmap(&mut self, range: GpaRange) -> Result<Flush, MapError> {
        self.run(range, &Unmap)
    }

    /// Gives every leaf of `range` the attributes that `change` makes of its own.
    pub fn protect(
        &mut self,
        range: GpaRange,
        change: impl Fn(F::Attr) -> F::Attr,
    ) -> Result<Flush, MapError> {
        self.run(range, &Protect(change))
    }

    /// Makes the leaves that touch `range` no larger than `size`. Nothing else changes: new leaves inherit
    /// accessed and dirty bits.
    pub fn split(&mut self, range: GpaRange, size: PageSize) -> Result<Flush, MapError> {
        self.run(range, &Split(size.level()))
    }

    /// Joins leaves of `range` that are neighbours on both sides and have equal attributes into larger ones,
    /// as far as [`Table::largest`]; only tables that lie completely in `range` go away. Because processors
    /// may still set bits in the old tables, a merged leaf counts as accessed and dirty.
    pub fn merge(&mut self, range: GpaRange) -> Flush {
        self.merge_below(self.root, ROOT_LEVEL, range)
    }

    fn run(&mut self, range: GpaRange, edit: &impl Edit<F::Attr>) -> Result<Flush, MapError> {
        if range.end > GpaRange::ALL.end || !is_page_aligned(range) {
            return Err(MapError::Address);
        }
        self.edit(self.root, ROOT_LEVEL, range, edit)
    }

    fn edit(
        &mut self,
        table: Hfn,
        level: u8,
        range: GpaRange,
        edit: &impl Edit<F::Attr>,
    ) -> Result<Flush, MapError> {
        let mut flush = Flush::None;
        for (index, part) in parts(range, level) {
            let old = F::decode(self.memory.load(table, index), level);
            match edit.action(old, level, part, part.len() == span(level)) {
                Action::Keep => {}
                Action::Set(new) => flush = flush.and(self.set(table, index, level, part, new)),
                Action::Descend => {
                    let child = match old {
                        Entry::Table(child) => child,
                        Entry::Empty => self.add_table(table, index)?,
                        Entry::Leaf { .. } => self.split_leaf(table, index, level)?,
                    };
                    if level == 2
                        && part.len() == span(level)
                        && let Some((to, attr)) = edit.fills(part)
                    {
                        flush = flush.and(self.fill(child, part, to, attr));
                        continue;
                    }
                    flush = flush.and(self.edit(child, level - 1, part, edit)?);
                    // The last one below has gone: a table that leads nowhere would only cost memory and steps of walks.
                    if self.is_empty(child) {
                        let whole = entry_range(part.start, level);
                        flush = flush.and(self.set(table, index, level, whole, None));
                    }
                }
            }
        }
        Ok(flush)
    }

    /// Makes an entry a leaf or empty; `part` is what it spans.
    pub(super) fn set(
        &mut self,
        table: Hfn,
        index: usize,
        level: u8,
        part: GpaRange,
        new: Option<(Hpa, F::Attr)>,
    ) -> Flush {
        let leaf = new.map_or(0, |(to, attr)| F::leaf(to, level, attr));
        let mut raw = self.memory.load(table, index);
        loop {
            let (kept, flush) = match (F::decode(raw, level), new) {
                (Entry::Empty, _) => (0, false),
                // The same memory with other attributes: what the processor noted about it still holds. Where only rights were
                // added, a processor that remembers the old ones faults and looks again, so nothing is flushed.
                (Entry::Leaf { to, attr }, Some((new_to, new_attr))) if to == new_to => {
                    (raw & (F::ACCESSED | F::DIRTY | F::JOINED | F::JOINED_IDLE), attr.must_flush(new_attr))
                }
                // Processors do not remember what was not present.
                (Entry::Leaf { attr, .. }, _) => (0, attr.is_present()),
                // Pages below may lead to the same memory already, and be written until the flush.
                (Entry::Table(_), Some(_)) if F::HARDWARE => (F::ACCESSED | F::DIRTY, true),
                (Entry::Table(_), _) => (0, true),
            };
            match self.memory.compare_exchange(table, index, raw, leaf | kept) {
                Ok(()) => {
                    if let Entry::Table(child) = F::decode(raw, level) {
                        self.retire(child, level - 1);
                    }
                    return if flush && F::HARDWARE { Flush::Range(part) } else { Flush::None };
                }
                // The processor set an accessed or dirty bit meanwhile; there are only two.
                Err(now) => raw = now,
            }
        }
    }

    /// Makes all entries of a table of level 1, which spans `part`, leaves to neighbours. As [`Table::set`] does it one by one; but most
    /// entries were alike, and so what comes of them is known from the one before.
    fn fill(&mut self, table: Hfn, part: GpaRange, to: Hpa, attr: F::Attr) -> Flush {
        let kept_bits = F::ACCESSED | F::DIRTY | F::JOINED | F::JOINED_IDLE;
        let first = F::leaf(to, 1, attr);
        // Of an entry without its number: the bits that stay, and whether processors may remember it.
        let (mut last, mut becomes) = (first, (kept_bits, false));
        let mut changed: Option<(u64, u64)> = None;
        for n in 0..ENTRIES {
            let at = n as u64 * span(1);
            debug_assert_eq!(first + at, F::leaf(Hpa(to.0 + at), 1, attr));
            let mut raw = self.memory.load(table, n);
            loop {
                let old = (raw & !kept_bits).wrapping_sub(at);
                if old == first {
                    break;
                }
                if old != last {
                    last = old;
                    becomes = match F::decode(raw, 1) {
                        Entry::Leaf { to: old_to, attr: old } if old_to.0 == to.0 + at => {
                            (kept_bits, old.must_flush(attr))
                        }
                        Entry::Leaf { attr: old, .. } => (0, old.is_present()),
                        _ => (0, false),
                    };
                }
                let (kept, flush) = becomes;
                match self.memory.compare_exchange(table, n, raw, (first + at) | raw & kept) {
                    Ok(()) if flush => {
                        changed = Some((changed.map_or(at, |(from, _)| from), at + span(1)));
                        break;
                    }
                    Ok(()) => break,
                    // The processor set an accessed or dirty bit meanwhile.
                    Err(now) => raw = now,
                }
            }
        }
        let range = |(from, end)| GpaRange { start: Gpa(part.start.0 + from), end: Gpa(part.start.0 + end) };
        changed.filter(|_| F::HARDWARE).map_or(Flush::None, |changed| Flush::Range(range(changed)))
    }

    fn add_table(&mut self, table: Hfn, index: usize) -> Result<Hfn, MapError> {
        let child = Self::allocate(&self.memory).ok_or(MapError::OutOfFrames)?;
        self.frames += 1;
        self.memory.store(table, index, F::table(child));
        Ok(child)
    }

    /// Replaces a leaf by a table of 512 leaves that say the same.
    pub(super) fn split_leaf(&mut self, table: Hfn, index: usize, level: u8) -> Result<Hfn, MapError> {
        let child = Self::allocate(&self.memory).ok_or(MapError::OutOfFrames)?;
        self.frames += 1;
        let mut raw = self.memory.load(table, index);
        // Again from the start if the processor sets a bit in the old leaf meanwhile: each of the new ones inherits it.
        loop {
            if let Entry::Leaf { to, attr } = F::decode(raw, level) {
                // Which pages of a joined leaf were accessed is not known.
                let mark = if raw & F::ACCESSED == 0 { 0 } else { raw & F::JOINED };
                let bits = raw & (F::ACCESSED | F::DIRTY) | mark;
                let first = F::leaf(to, level - 1, attr) | bits;
                for n in 0..ENTRIES {
                    let at = n as u64 * span(level - 1);
                    debug_assert_eq!(first | at, F::leaf(Hpa(to.0 + at), level - 1, attr) | bits);
                    self.memory.store(child, n, first | at);
                }
            }
            // As the leaves say: where the entry of a table is not accessed, no leaf below is asked ([`Table::take_touched`]).
            match self.memory.compare_exchange(table, index, raw, F::table(child) | raw & F::ACCESSED) {
                Ok(()) => return Ok(child),
                Err(now) => raw = now,
            }
        }
    }

    fn is_empty(&self, table: Hfn) -> bool {
        (0..ENTRIES).all(|index| self.memory.load(table, index) == 0)
    }

    /// The one leaf that could stand for this whole table of `level`.
    pub(super) fn uniform(&self, table: Hfn, level: u8) -> Option<(Hpa, F::Attr)> {
        let Entry::Leaf { to: first, attr } = F::decode(self.memory.load(table, 0), level) else {
            return None;
        };
        let same = |n: usize| match F::decode(self.memory.load(table, n), level) {
            Entry::Leaf { to, attr: a } => a == attr && to.0 == first.0 + n as u64 * span(level),
            _ => false,
        };
        (first.is_aligned(span(level + 1)) && (1..ENTRIES).all(same)).then_some((first, attr))
    }

    fn merge_below(&mut self, table: Hfn, level: u8, range: GpaRange) -> Flush {
        let mut flush = Flush::None;
        for (index, part) in parts(range, level) {
            let Entry::Table(child) = F::decode(self.memory.load(table, index), level) else {
                continue;
            };
            // From below: leaves of 4 KiB that have become 2 MiB may complete 1 GiB.
            if level > 2 {
                flush = flush.and(self.merge_below(child, level - 1, part));
            }
            if part.len() < span(level) || level > self.largest.level() {
                continue;
            }
            if let Some(leaf) = self.uniform(child, level - 1) {
                flush = flush.and(self.set(table, index, level, part, Some(leaf)));
            }
        }
        flush
    }
}
