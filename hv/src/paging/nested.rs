//! Nested paging: tables that the processor walks for every guest-physical address.
//!
//! [`Nested`] owns one set of tables, built eagerly from the [`P2m`] and kept for the VM's life, whatever
//! paging mode runs. All truth is in the P2m, so that a VM can keep several of these (one per cache domain)
//! that differ only in which memory they leave closed. Changes return the [`Flush`] that the caller owes
//! before the guest goes on; the tables that the flush makes unreachable are freed then ([`Nested::take_retired`]).
//!
//! On AMD the guest's own table walks count as user writes: a guest table in ROM faults as
//! [`NestedOutcome::RomWrite`].

use super::format::{NestedAttr, PteFormat, Rights};
use super::p2m::{P2m, P2mEntry};
use super::range::{Changed, Flush, GpaRange};
use super::table::{
    AccessBits, AccessedGroup, AccessedLarge, Found, Leaf, MapError, Retired, Table, Touched,
};
use crate::arch::Access;
use crate::arch::addr::{Gfn, Gpa, Hpa, PageSize};
use crate::mem::table_memory::TableMemory;

/// What became of a nested fault.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestedOutcome {
    /// The tables now allow the access.
    Filled(Flush),
    /// The address belongs to the device bus.
    Mmio,
    /// A write to ROM.
    RomWrite,
    /// A write to RAM that the hypervisor wants to see first ([`P2mEntry::Ram`] that is not writable).
    WriteProtected,
    /// There is nothing at this address.
    NotMapped,
    /// RAM that is mapped to the cache of this domain, which is not that of the tables.
    Closed(u8),
    /// RAM that is not open in the tables of a phase: what becomes of it is decided by [`region::regioning`](crate::region::regioning).
    Touched,
    /// The tables allow the access already: the processor used an older translation, or another VCPU was
    /// first.
    Spurious,
}

/// One set of nested tables.
#[derive(Debug)]
pub struct Nested<F: PteFormat<Attr = NestedAttr>, M: TableMemory> {
    table: Table<F, M>,
    /// Leaves have gone although the P2m has not changed there, and their dirty bits with them.
    lost_bits: bool,
    shows: Shows,
}

/// Which memory tables lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    /// What is open in this cache domain, whose processors walk them: all of it, from the start.
    Domain(u8),
    /// The RAM pages that were opened one by one ([`PhasePages::open`]), whatever cache they are mapped to.
    Opened,
}

impl Shows {
    /// Whether RAM that is mapped to the cache of domain `home` is closed.
    fn closes(self, home: u8) -> bool {
        matches!(self, Shows::Domain(domain) if domain != home)
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: TableMemory> Nested<F, M> {
    /// Tables of everything in `p2m`, with leaves up to `largest`, for domain 0.
    pub fn new(memory: M, largest: PageSize, p2m: &P2m<impl TableMemory>) -> Result<Self, MapError> {
        Nested::for_domain(memory, largest, p2m, 0)
    }

    /// The same for the processors of a cache domain: memory that is mapped to the caches of others is closed.
    pub fn for_domain(
        memory: M,
        largest: PageSize,
        p2m: &P2m<impl TableMemory>,
        domain: u8,
    ) -> Result<Self, MapError> {
        let shows = Shows::Domain(domain);
        let mut nested = Nested { table: Table::new(memory, largest)?, lost_bits: false, shows };
        let _no_processor_uses_them_yet = nested.follow(p2m, GpaRange::ALL)?;
        nested.table.reclaim();
        Ok(nested)
    }

    /// The root table, as the processor wants it in nCR3 or (with attributes) in the EPT pointer.
    pub fn root(&self) -> Hpa {
        self.table.root().base()
    }

    /// Takes over a change of the P2m. On an error the tables hold part of the change: flush everything.
    pub fn apply(&mut self, p2m: &P2m<impl TableMemory>, changed: Changed) -> Result<Flush, MapError> {
        // In the tables of a phase what has changed is opened again by the next touch.
        let flush = match self.shows {
            Shows::Domain(_) => self.follow(p2m, changed.range),
            Shows::Opened => self.table.unmap(changed.range),
        };
        self.lost_bits |= flush.is_err();
        flush
    }

    /// Has the tables say of `range` what the P2m says.
    fn follow(&mut self, p2m: &P2m<impl TableMemory>, range: GpaRange) -> Result<Flush, MapError> {
        let mut flush = Flush::None;
        let mut rest = range;
        while !rest.is_empty() {
            let (entry, len) = p2m.run(rest.start, rest.len());
            let (run, after) = rest.split_at(len);
            let done = match attr(entry, self.shows) {
                Some((to, attr)) => self.table.map(run, to, attr)?,
                None => self.table.unmap(run)?,
            };
            flush = flush.and(done);
            rest = after;
        }
        Ok(flush)
    }

    /// What the fault of `access` at `gpa` means, if that changes nothing here; `None`: [`Nested::fault`] fills something in.
    pub fn look(&self, gpa: Gpa, access: Access, p2m: &P2m<impl TableMemory>) -> Option<NestedOutcome> {
        let entry = if access.write { p2m.translate_to_write(gpa) } else { p2m.translate(gpa) };
        let Some((to, attr)) = attr(entry, self.shows) else {
            return Some(if entry == P2mEntry::Mmio {
                NestedOutcome::Mmio
            } else {
                NestedOutcome::NotMapped
            });
        };
        let needed = needed(access);
        if !attr.rights.contains(needed) {
            return Some(match entry {
                P2mEntry::Local { home, .. } if self.shows.closes(home) => NestedOutcome::Closed(home),
                P2mEntry::Ram { .. } | P2mEntry::Local { .. } => NestedOutcome::WriteProtected,
                _ => NestedOutcome::RomWrite,
            });
        }
        if let Found::Leaf(leaf) = self.table.walk(gpa)
            && leaf.attr.rights.contains(needed)
            && leaf.to.0 + (gpa.0 - leaf.gpa.0) == to.0
        {
            return Some(NestedOutcome::Spurious);
        }
        let is_ram = matches!(entry, P2mEntry::Ram { .. } | P2mEntry::Local { .. });
        (is_ram && self.is_for_phase()).then_some(NestedOutcome::Touched)
    }

    /// Handles the fault of `access` at `gpa`.
    pub fn fault(
        &mut self,
        gpa: Gpa,
        access: Access,
        p2m: &P2m<impl TableMemory>,
    ) -> Result<NestedOutcome, MapError> {
        if let Some(outcome) = self.look(gpa, access, p2m) {
            return Ok(outcome);
        }
        let flush = self.follow(p2m, p2m.leaf_range(gpa))?;
        Ok(NestedOutcome::Filled(flush))
    }

    /// Drops the translations of `range`; accesses fault, and [`Nested::fault`] fills them in again. Leaves that reach beyond
    /// the range are split. To be able to refill no more than that, the P2m must be split there too.
    pub fn forget(&mut self, range: GpaRange) -> Result<Flush, MapError> {
        self.lost_bits = true;
        self.table.unmap(range)
    }

    /// Reads and clears accessed bits of 64 pages: see [`Table::take_accessed_group`].
    pub fn take_accessed_group(&self, first: Gpa, wanted: u64) -> AccessedGroup {
        self.table.take_accessed_group(first, wanted)
    }

    /// Whether a piece of 2 MiB may have been accessed: see [`Table::take_touched`].
    pub fn take_touched(&self, gpa: Gpa) -> Touched {
        self.table.take_touched(gpa)
    }

    /// Whether some pieces were not: see [`Table::is_idle`].
    pub fn is_idle(&self, first: Gpa, pieces: u64) -> bool {
        self.table.is_idle(first, pieces)
    }

    /// What a joined leaf tells without a change: see [`Table::joined_leaf`].
    pub fn joined_leaf(&self, gpa: Gpa) -> Option<AccessedLarge> {
        self.table.joined_leaf(gpa)
    }

    /// Joins small leaves for a time: see [`Table::join_pieces`].
    pub fn join_pieces(&mut self, range: GpaRange, may: impl Fn(GpaRange) -> bool) -> Flush {
        self.table.join_pieces(range, may)
    }

    /// Ends that: see [`Table::split_joined`].
    pub fn split_joined(&mut self, range: GpaRange) {
        self.table.split_joined(range);
    }

    /// Takes over what is no longer open or there. Where there is no memory for tables more goes than must, and faults bring it back.
    pub fn apply_or_drop(&mut self, p2m: &P2m<impl TableMemory>, changed: Changed) -> Flush {
        self.apply(p2m, changed).unwrap_or_else(|_| self.drop_around(changed.range))
    }

    /// Drops what the tables say of `range`, where the P2m has changed: faults bring it back.
    pub fn drop_changed(&mut self, range: GpaRange) -> Flush {
        self.table.unmap(range).unwrap_or_else(|_| self.drop_around(range))
    }

    /// Drops all leaves that touch `range`, as wholes: this needs no memory.
    fn drop_around(&mut self, range: GpaRange) -> Flush {
        self.lost_bits = true;
        let size = self.table.largest().bytes();
        let start = range.start.align_down(size);
        let end = range.end.align_up(size).unwrap_or(GpaRange::ALL.end);
        let _dropped = self.table.unmap(GpaRange { start, end }.intersect(GpaRange::ALL));
        Flush::All
    }

    /// Calls `f` for every leaf that touches `range` and in which a bit of `which` is set, and clears those
    /// bits. `f` sees the bits as they were. Processors without such bits in nested tables never set any.
    pub fn harvest(
        &mut self,
        range: GpaRange,
        which: AccessBits,
        f: impl FnMut(Leaf<NestedAttr>),
    ) -> Result<Flush, MapError> {
        self.table.harvest(range, which, f)
    }

    /// From now on [`is_written`](Self::is_written) tells which of these pages of guest memory are written, where processors set
    /// dirty bits; from when they have flushed everything. A large leaf tells of all its pages; one is split each time, so that no
    /// call takes long and the next ones tell more.
    pub fn start_dirty_log(&mut self, pages: impl Iterator<Item = Gfn>) {
        let mut may_split = true;
        // Pages of a phase are closed without a look at their bits.
        self.lost_bits = self.is_for_phase();
        for page in pages {
            let size = self.table.clear_dirty(page.base());
            if may_split && size.is_some_and(|size| size != PageSize::Size4K) {
                may_split = false;
                // Without memory it stays large. Every VCPU that comes to these tables flushes.
                let _split = self.table.split(GpaRange::page(page.base()), PageSize::Size4K);
            }
        }
    }

    /// Dirty bits have gone with other tables of the VM: all pages count as written until the next log.
    pub(super) fn lose_dirty_log(&mut self) {
        self.lost_bits = true;
    }

    /// Whether a page may have been written since [`start_dirty_log`](Self::start_dirty_log) was called for it.
    pub fn is_written(&self, page: Gfn) -> bool {
        match self.table.walk(page.base()) {
            Found::Leaf(leaf) => leaf.dirty || self.lost_bits,
            Found::Hole(_) => true,
        }
    }

    /// Calls `f` for every leaf that touches `range`, changing nothing.
    pub fn for_each_leaf(&self, range: GpaRange, f: impl FnMut(Leaf<NestedAttr>)) {
        self.table.for_each_leaf(range, f);
    }

    /// Makes leaves that touch `range` no larger than `size`, so that accessed and dirty bits tell more.
    pub fn split(&mut self, range: GpaRange, size: PageSize) -> Result<Flush, MapError> {
        self.table.split(range, size)
    }

    /// What the tables say about `gpa`.
    pub fn find(&self, gpa: Gpa) -> Found<NestedAttr> {
        self.table.walk(gpa)
    }

    /// The tables that earlier changes replaced, to be freed when their flushes are done.
    pub fn take_retired(&mut self) -> Retired {
        self.table.take_retired()
    }

    /// The same, in one list with those of another set of tables in the same memory.
    pub fn take_retired_with(&mut self, others: Retired) -> Retired {
        self.table.take_retired_with(others)
    }

    /// Whether a page was accessed since the last time, where processors set accessed bits: see [`Table::take_accessed`].
    pub fn take_accessed(&self, page: Gpa) -> bool {
        self.table.take_accessed(page)
    }

    /// How many frames its tables take.
    pub fn table_frames(&self) -> u64 {
        self.table.frames()
    }
}

/// Where and how memory is mapped in tables; `None` for what is not memory.
fn attr(entry: P2mEntry, shows: Shows) -> Option<(Hpa, NestedAttr)> {
    match entry {
        P2mEntry::Local { hpa, home, .. } if shows.closes(home) => Some((hpa, NestedAttr::CLOSED)),
        P2mEntry::Ram { hpa, writable: true } | P2mEntry::Local { hpa, writable: true, .. } => {
            Some((hpa, NestedAttr::RAM))
        }
        P2mEntry::Ram { hpa, writable: false }
        | P2mEntry::Local { hpa, writable: false, .. }
        | P2mEntry::Rom { hpa } => Some((hpa, NestedAttr::ROM)),
        P2mEntry::Mmio | P2mEntry::Absent { .. } | P2mEntry::Hole => None,
    }
}

fn needed(access: Access) -> Rights {
    let mut rights = Rights::READ;
    rights.set(Rights::WRITE, access.write);
    rights.set(Rights::EXECUTE, access.execute);
    rights
}

mod phase;

pub use phase::PhasePages;

#[cfg(test)]
mod moves;
#[cfg(test)]
mod tests;
