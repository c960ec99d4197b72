//! A radix tree from guest-physical addresses to leaves of a [`PteFormat`].
//!
//! What it owns: its table frames. Users: the P2m (a software format) and the nested engine (the
//! processors' formats). One writer at a time (`&mut self`), while processors walk the tables and set
//! accessed and dirty bits.
//!
//! What holds at every instant, after each single store: an address outside the range of an update translates
//! as before; an address inside translates as before, as afterwards, or not at all. A leaf is split by
//! filling a table first and publishing it by one compare-exchange; tables are replaced by one store. Tables
//! that processors may still walk are *retired*: they stay allocated until [`Table::reclaim`], which the
//! owner calls after the flush that the update named.

mod cursor;
mod edit;
#[cfg(test)]
mod examples;
mod joined;
mod piece;
mod scan;
#[cfg(test)]
mod tests;

pub use cursor::Cursor;
pub use scan::{AccessBits, AccessedGroup, AccessedLarge, Touched};

use super::format::{Entry, PteFormat};
use super::range::GpaRange;
use crate::arch::addr::{Gpa, Hfn, Hpa, PAGE_SHIFT, PAGE_SIZE, PageSize};
use crate::mem::table_memory::{ENTRIES, TableMemory};
use core::marker::PhantomData;

/// The level of the root table.
const ROOT_LEVEL: u8 = 4;

/// Why a table was not changed, or not completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// An address or a length is not a multiple of 4 KiB, or the host address is wider than 52 bits.
    Address,
    /// No memory for a table. The part of the range before some address is changed: flush everything
    /// ([`Flush::All`](super::range::Flush::All)) before going on.
    OutOfFrames,
}

/// What a walk finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<A> {
    /// A leaf.
    Leaf(Leaf<A>),
    /// Nothing, from one address up to another.
    Hole(GpaRange),
}

/// A leaf of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf<A> {
    /// The first address that it maps.
    pub gpa: Gpa,
    /// How much it maps.
    pub size: PageSize,
    /// Where the first byte is.
    pub to: Hpa,
    /// What is allowed there.
    pub attr: A,
    /// The processor used it.
    pub accessed: bool,
    /// The processor wrote through it.
    pub dirty: bool,
}

impl<A> Leaf<A> {
    /// The addresses that it maps.
    pub fn range(&self) -> GpaRange {
        GpaRange { start: self.gpa, end: Gpa(self.gpa.0 + self.size.bytes()) }
    }
}

/// The tree.
#[derive(Debug)]
pub struct Table<F: PteFormat, M: TableMemory> {
    memory: M,
    root: Hfn,
    largest: PageSize,
    /// Frames in the tree.
    frames: u64,
    /// The first of the retired frames; entry 0 of each holds the address of the next (not present in any
    /// format).
    retired: Option<Hfn>,
    format: PhantomData<F>,
}

impl<F: PteFormat, M: TableMemory> Table<F, M> {
    /// An empty tree that uses leaves up to `largest`.
    pub fn new(memory: M, largest: PageSize) -> Result<Self, MapError> {
        let root = Self::allocate(&memory).ok_or(MapError::OutOfFrames)?;
        Ok(Table { memory, root, largest, frames: 1, retired: None, format: PhantomData })
    }

    /// A frame for a table of this format.
    fn allocate(memory: &M) -> Option<Hfn> {
        if F::HARDWARE { memory.allocate() } else { memory.allocate_unwalked() }
    }

    /// The root table.
    pub fn root(&self) -> Hfn {
        self.root
    }

    /// The largest leaf that it uses.
    pub fn largest(&self) -> PageSize {
        self.largest
    }

    /// How many frames its tables take, the retired ones not counted.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Looks an address up, without effects. Addresses beyond [`GpaRange::ALL`] are a hole.
    #[inline(always)]
    pub fn walk(&self, gpa: Gpa) -> Found<F::Attr> {
        if !GpaRange::ALL.contains(gpa) {
            return Found::Hole(GpaRange { start: GpaRange::ALL.end, end: Gpa(u64::MAX) });
        }
        let mut table = self.root;
        // By constants the compiler unrolls the loop, which is most of what a lookup costs.
        const { assert!(ROOT_LEVEL == 4) }
        for level in [4, 3, 2, 1] {
            let raw = self.memory.load(table, index(gpa, level));
            match F::decode(raw, level) {
                Entry::Table(frame) => table = frame,
                Entry::Empty => return Found::Hole(entry_range(gpa, level)),
                Entry::Leaf { to, attr } => return Found::Leaf(leaf::<F>(gpa, level, raw, to, attr)),
            }
        }
        // No entry of level 1 is a table's.
        Found::Hole(entry_range(gpa, 1))
    }

    /// The tables that earlier updates took out of the tree, to be freed when the flushes that those updates named are done. The
    /// tree can be changed again meanwhile.
    pub fn take_retired(&mut self) -> Retired {
        Retired(self.retired.take())
    }

    /// The same, in one list with those of another tree in the same memory.
    pub fn take_retired_with(&mut self, others: Retired) -> Retired {
        let retired = self.take_retired();
        retired.and(others, &self.memory)
    }

    /// Frees the tables that earlier updates took out of the tree: no processor may still walk them.
    pub fn reclaim(&mut self) {
        let retired = self.take_retired();
        retired.free(&self.memory);
    }

    /// Takes a table and those below out of service.
    fn retire(&mut self, table: Hfn, level: u8) {
        if level > 1 {
            for index in 0..ENTRIES {
                if let Entry::Table(child) = F::decode(self.memory.load(table, index), level) {
                    self.retire(child, level - 1);
                }
            }
        }
        self.frames -= 1;
        if F::HARDWARE {
            let next = self.retired.map_or(0, |frame| frame.base().0);
            self.memory.store(table, 0, next);
            self.retired = Some(table);
        } else {
            self.memory.free(table);
        }
    }
}

/// Tables that are out of the tree and that processors may still walk: a list, linked by the first entries.
#[must_use = "the tables stay allocated until they are freed"]
#[derive(Debug)]
pub struct Retired(Option<Hfn>);

impl Retired {
    /// No tables.
    pub const NONE: Retired = Retired(None);

    /// Both, of trees in the same memory.
    fn and(self, others: Retired, memory: &impl TableMemory) -> Retired {
        let Some(mut last) = self.0 else { return others };
        loop {
            match memory.load(last, 0) {
                0 => break,
                link => last = Hpa(link).frame(),
            }
        }
        memory.store(last, 0, others.0.map_or(0, |frame| frame.base().0));
        self
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Frees them. `memory` is that of the tree, and every processor has flushed what the updates named.
    pub fn free(self, memory: &impl TableMemory) {
        let mut next = self.0;
        while let Some(frame) = next {
            let link = memory.load(frame, 0);
            next = (link != 0).then(|| Hpa(link).frame());
            memory.free(frame);
        }
    }
}

/// Frees every frame. No processor may use the tables any more.
impl<F: PteFormat, M: TableMemory> Drop for Table<F, M> {
    fn drop(&mut self) {
        self.retire(self.root, ROOT_LEVEL);
        self.reclaim();
    }
}

/// log2 of what an entry of a table of `level` spans.
const fn shift(level: u8) -> u32 {
    PAGE_SHIFT + 9 * (level as u32 - 1)
}

/// Bytes that an entry of a table of `level` spans.
const fn span(level: u8) -> u64 {
    1 << shift(level)
}

/// Which entry of a table of `level` maps `gpa`.
const fn index(gpa: Gpa, level: u8) -> usize {
    (gpa.0 >> shift(level)) as usize % ENTRIES
}

/// The addresses under the entry of a table of `level` that maps `gpa`.
fn entry_range(gpa: Gpa, level: u8) -> GpaRange {
    let start = gpa.align_down(span(level));
    GpaRange { start, end: Gpa(start.0 + span(level)) }
}

/// The leaf that `raw`, in a table of `level`, is for `gpa`. No format has leaves in the root.
fn leaf<F: PteFormat>(gpa: Gpa, level: u8, raw: u64, to: Hpa, attr: F::Attr) -> Leaf<F::Attr> {
    let size = match level {
        1 => PageSize::Size4K,
        2 => PageSize::Size2M,
        _ => PageSize::Size1G,
    };
    let gpa = gpa.align_down(size.bytes());
    Leaf { gpa, size, to, attr, accessed: raw & F::ACCESSED != 0, dirty: raw & F::DIRTY != 0 }
}

/// The entries of a table of `level` that `range` touches, with the part of the range under each.
fn parts(range: GpaRange, level: u8) -> impl Iterator<Item = (usize, GpaRange)> {
    let mut at = range.start;
    core::iter::from_fn(move || {
        (at < range.end).then(|| {
            let part = entry_range(at, level).intersect(GpaRange { start: at, end: range.end });
            let found = (index(at, level), part);
            at = part.end;
            found
        })
    })
}

fn is_page_aligned(range: GpaRange) -> bool {
    range.start.is_aligned(PAGE_SIZE) && range.end.is_aligned(PAGE_SIZE)
}
