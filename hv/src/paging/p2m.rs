//! The P2m: where each guest-physical page of a VM is. The one truth; nested and shadow tables are caches of
//! it.
//!
//! Users: the builder of a VM fills it; the paging engines fill their tables from it; the emulator,
//! loaders and devices look addresses up (through [`VmMemory`](crate::paging::vm_memory::VmMemory)). What must hold:
//! RAM and ROM leaves lead only to host frames that belong to this VM (the caller that maps them ensures that), and
//! every [`Changed`] value reaches every engine of the VM before the guest runs again or the frames change
//! hands.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;

use super::directory::Directory;
use super::range::{Changed, Flush, GpaRange, OldFrames};
use super::table::{Found, MapError, Table};
use crate::arch::addr::{Gpa, Hfn, Hpa, PAGE_SHIFT, PAGE_SIZE, PageSize};
use crate::mem::pager::Pager;
use crate::mem::table_memory::TableMemory;
use crate::mem::tier::migration::Migration;

mod absent;
mod clean;
mod peek;
mod piece;

pub use super::format::p2m::{P2mFormat, P2mKind};

/// Bits of the host-physical addresses that a P2m leads to: 256 TiB. The keys of shadow pages have room for the frames of no more.
pub const HPA_BITS: u32 = 48;

/// What is at a guest-physical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum P2mEntry {
    /// RAM: the byte's place; `writable` as in [`P2mKind::Ram`].
    Ram {
        /// Where the byte is.
        hpa: Hpa,
        /// If not, the hypervisor wants to see the next write before it happens.
        writable: bool,
    },
    /// Memory that the guest cannot write.
    Rom {
        /// Where the byte is.
        hpa: Hpa,
    },
    /// Registers of a device on the bus.
    Mmio,
    /// RAM that is mapped to a cache ([`P2mKind::Local`]). For the hypervisor's own accesses it is like any other.
    Local {
        /// Where the byte is.
        hpa: Hpa,
        /// As in [`P2mEntry::Ram`].
        writable: bool,
        /// The cache domain in whose tables it is open.
        home: u8,
    },
    /// RAM whose contents the pager holds, or that is moving to another frame. [`P2m::translate`] brings it in; what only looks
    /// sees it.
    Absent {
        /// The cache domain in whose tables it will be open, if not in all.
        home: Option<u8>,
    },
    /// Nothing.
    Hole,
}

impl P2mEntry {
    fn new(kind: P2mKind, hpa: Hpa) -> P2mEntry {
        match kind {
            P2mKind::Ram { writable } => P2mEntry::Ram { hpa, writable },
            P2mKind::Rom => P2mEntry::Rom { hpa },
            P2mKind::Mmio => P2mEntry::Mmio,
            P2mKind::Local { writable, home } => P2mEntry::Local { hpa, writable, home },
            P2mKind::Clean { home } => P2mEntry::Ram { hpa, writable: false }.at_home(home),
            P2mKind::Absent { home } => P2mEntry::Absent { home },
        }
    }

    /// What is `bytes` further on in a contiguous run.
    fn after(self, bytes: u64) -> P2mEntry {
        match self {
            P2mEntry::Ram { hpa, writable } => P2mEntry::Ram { hpa: Hpa(hpa.0 + bytes), writable },
            P2mEntry::Rom { hpa } => P2mEntry::Rom { hpa: Hpa(hpa.0 + bytes) },
            P2mEntry::Local { hpa, writable, home } => {
                P2mEntry::Local { hpa: Hpa(hpa.0 + bytes), writable, home }
            }
            other => other,
        }
    }

    /// Where the byte is, if it can be read as memory.
    pub fn readable(self) -> Option<Hpa> {
        match self {
            P2mEntry::Ram { hpa, .. } | P2mEntry::Rom { hpa } | P2mEntry::Local { hpa, .. } => Some(hpa),
            P2mEntry::Mmio | P2mEntry::Absent { .. } | P2mEntry::Hole => None,
        }
    }

    /// Where the byte is, if it can be written as memory.
    pub fn writable(self) -> Option<Hpa> {
        match self {
            P2mEntry::Ram { hpa, writable: true } | P2mEntry::Local { hpa, writable: true, .. } => Some(hpa),
            _ => None,
        }
    }

    /// The domain to whose cache it is mapped, if it is closed in the tables of this one.
    #[inline]
    pub fn closed_in(self, domain: u8) -> Option<u8> {
        match self {
            P2mEntry::Local { home, .. } if home != domain => Some(home),
            _ => None,
        }
    }

    /// Where the byte is, if it can be written as memory that is open in the tables of this domain.
    #[inline(always)]
    pub fn writable_in(self, domain: u8) -> Option<Hpa> {
        match self {
            P2mEntry::Ram { hpa, writable: true } => Some(hpa),
            P2mEntry::Local { hpa, writable: true, home } if home == domain => Some(hpa),
            _ => None,
        }
    }

    /// The entry as if it were open in all domains.
    #[inline]
    pub fn opened(self) -> P2mEntry {
        match self {
            P2mEntry::Local { hpa, writable, .. } => P2mEntry::Ram { hpa, writable },
            other => other,
        }
    }

    /// The same, mapped to the cache of this domain or open in all.
    pub fn at_home(self, home: Option<u8>) -> P2mEntry {
        match (self.opened(), home) {
            (P2mEntry::Ram { hpa, writable }, Some(home)) => P2mEntry::Local { hpa, writable, home },
            (P2mEntry::Absent { .. }, home) => P2mEntry::Absent { home },
            (other, _) => other,
        }
    }
}

/// The guest-physical address space of one VM.
#[derive(Debug)]
pub struct P2m<M: TableMemory> {
    table: Table<P2mFormat, M>,
    directory: Directory,
    /// Holds the contents of absent pages.
    pager: Option<Arc<Pager>>,
    /// Holds those that are moving, if there is no pager.
    migration: Option<Arc<Migration>>,
    /// While a piece of 2 MiB moves: a frame for the table that its pages have as soon as one is accessed; 0: none.
    spare: AtomicU64,
}

impl<M: TableMemory> P2m<M> {
    /// An address space of holes.
    pub fn new(memory: M) -> Result<Self, MapError> {
        let table = Table::new(memory, PageSize::Size1G)?;
        Ok(P2m {
            table,
            directory: Directory::default(),
            pager: None,
            migration: None,
            spare: AtomicU64::new(0),
        })
    }

    /// Puts the RAM from `hpa` on at `range`.
    pub fn map_ram(&mut self, range: GpaRange, hpa: Hpa, writable: bool) -> Result<Changed, MapError> {
        self.map(range, hpa, P2mKind::Ram { writable })
    }

    /// Puts the memory from `hpa` on at `range`, read-only for the guest.
    pub fn map_rom(&mut self, range: GpaRange, hpa: Hpa) -> Result<Changed, MapError> {
        self.map(range, hpa, P2mKind::Rom)
    }

    /// Sends accesses to `range` to the device bus.
    pub fn map_mmio(&mut self, range: GpaRange) -> Result<Changed, MapError> {
        self.map(range, Hpa(range.start.0), P2mKind::Mmio)
    }

    /// Makes `range` a hole.
    pub fn unmap(&mut self, range: GpaRange) -> Result<Changed, MapError> {
        let was = self.old_frames(range, |_, _| P2mEntry::Hole);
        let result = self.table.unmap(range);
        self.changed(range, was, result)
    }

    /// Lets the hypervisor see writes to the RAM of `range`, or no longer.
    pub fn set_writable(&mut self, range: GpaRange, writable: bool) -> Result<Changed, MapError> {
        let was = self.old_frames(range, |_, old| match old {
            P2mEntry::Ram { hpa, .. } => P2mEntry::Ram { hpa, writable },
            P2mEntry::Local { hpa, home, .. } => P2mEntry::Local { hpa, writable, home },
            other => other,
        });
        let result = self.table.protect(range, |kind| match kind {
            P2mKind::Ram { .. } => P2mKind::Ram { writable },
            P2mKind::Local { home, .. } => P2mKind::Local { writable, home },
            P2mKind::Clean { home } => P2mKind::ram(writable, home),
            other => other,
        });
        self.changed(range, was, result)
    }

    /// Puts RAM at `range`, mapped to the cache of domain `home`, or open in all.
    pub fn map_local(
        &mut self,
        range: GpaRange,
        hpa: Hpa,
        writable: bool,
        home: Option<u8>,
    ) -> Result<Changed, MapError> {
        self.map(range, hpa, P2mKind::ram(writable, home))
    }

    /// Maps the RAM of `range` to the cache of domain `home`: it is closed in the tables of all other domains. `None`: it is open
    /// in all. Leaves are split as far as that asks for. Where memory is opened only, no engine has anything to forget, and old
    /// frames are not told.
    ///
    /// # Errors
    /// No frames for its tables: a part may have changed, and the engines must be told of all of `range`.
    pub fn set_home(&mut self, range: GpaRange, home: Option<u8>) -> Result<Changed, MapError> {
        let was = match home {
            None => OldFrames::NONE,
            Some(_) => self.old_frames(range, |_, old| old.at_home(home)),
        };
        let result = self.table.protect(range, |kind| match kind {
            P2mKind::Ram { writable } | P2mKind::Local { writable, .. } => P2mKind::ram(writable, home),
            P2mKind::Clean { .. } => P2mKind::Clean { home },
            P2mKind::Absent { .. } => P2mKind::Absent { home },
            other => other,
        });
        self.changed(range, was, result)
    }

    /// Makes leaves that touch `range` no larger than `size`. Translations stay the same; the engines may
    /// keep theirs.
    pub fn split(&mut self, range: GpaRange, size: PageSize) -> Result<(), MapError> {
        let _software_tables_need_none = self.table.split(range, size)?;
        Ok(())
    }

    /// Joins neighbouring leaves in `range` (grown to 2 MiB bounds) where larger ones say the same.
    /// Translations stay the same; engines that are told can use larger leaves too.
    pub fn merge(&mut self, range: GpaRange) -> Changed {
        let grown = GpaRange {
            start: range.start.align_down(PageSize::Size2M.bytes()),
            end: range.end.align_up(PageSize::Size2M.bytes()).unwrap_or(GpaRange::ALL.end),
        };
        let grown = grown.intersect(GpaRange::ALL);
        if self.pager.is_some() || self.migration.is_some() {
            // A page that comes or goes must find its leaf: see `map_absent`, `take_out`.
            return Changed::new(grown, OldFrames::NONE);
        }
        let _software_tables_need_none = self.table.merge(grown);
        Changed::new(grown, OldFrames::NONE)
    }

    /// What is at `gpa`, for an access to it: an absent page is brought in, and stays while the caller holds the VM's memory for
    /// reading. One that cannot be is still absent, and the pager has failed ([`Pager::failure`]).
    // Page faults on shadow tables do this several times, and each of them with a few instructions where the directory knows.
    #[inline(always)]
    pub fn translate(&self, gpa: Gpa) -> P2mEntry {
        match self.directory.get(gpa) {
            Some(hpa) => P2mEntry::Ram { hpa, writable: true },
            None => self.translate_by_tables(gpa),
        }
    }

    #[inline(never)]
    fn translate_by_tables(&self, gpa: Gpa) -> P2mEntry {
        match self.entry(gpa).0 {
            P2mEntry::Absent { .. } => self.bring_in(gpa),
            entry => entry,
        }
    }

    /// What is at `gpa`, and for how many bytes (at least 1 and at most `max`, which is not 0) the following
    /// addresses are the same kind and, for memory, contiguous.
    #[inline]
    pub fn run(&self, gpa: Gpa, max: u64) -> (P2mEntry, u64) {
        let (entry, mut len) = self.entry(gpa);
        while len < max {
            let Some(next) = gpa.checked_add(len) else { break };
            let (follower, more) = self.entry(next);
            if follower != entry.after(len) {
                break;
            }
            len = len.saturating_add(more);
        }
        (entry, len.min(max))
    }

    /// What a leaf of 2 MiB of shadow tables may say of the piece that `gpa` is in. Where pages move to other frames only what is one leaf
    /// here: pages with small ones are to have accessed bits of their own.
    pub fn large(&self, gpa: Gpa) -> Option<P2mEntry> {
        let size = PageSize::Size2M.bytes();
        let start = gpa.align_down(size);
        let (entry, len) = if self.migration.is_some() { self.entry(start) } else { self.run(start, size) };
        (len >= size).then_some(entry)
    }

    /// Where the leaf or hole that `gpa` lies in begins and ends.
    pub fn leaf_range(&self, gpa: Gpa) -> GpaRange {
        match self.table.walk(gpa) {
            Found::Hole(hole) => hole,
            Found::Leaf(leaf) => leaf.range(),
        }
    }

    /// Stretches of equal kind and contiguous memory in ascending order, as the monitor lists them; no holes.
    pub fn regions(&self) -> impl Iterator<Item = (GpaRange, P2mEntry)> {
        let mut rest = GpaRange::ALL;
        core::iter::from_fn(move || {
            while !rest.is_empty() {
                let (entry, len) = self.run(rest.start, rest.len());
                let (region, after) = rest.split_at(len);
                rest = after;
                if entry != P2mEntry::Hole {
                    return Some((region, entry));
                }
            }
            None
        })
    }

    /// How many frames its tables take.
    pub fn table_frames(&self) -> u64 {
        self.table.frames()
    }

    /// The root of its tables, for statistics.
    pub fn root(&self) -> Hfn {
        self.table.root()
    }

    /// What is at `gpa`, and how many bytes are left of its leaf or hole.
    #[inline]
    fn entry(&self, gpa: Gpa) -> (P2mEntry, u64) {
        peek::entry_of(gpa, self.table.walk(gpa))
    }

    /// A change as if all of `range` were unmapped: for callers that remove translations and keep the memory.
    pub fn changed_at(&self, range: GpaRange) -> Changed {
        Changed::new(range, self.old_frames(range, |_, _| P2mEntry::Hole))
    }

    fn map(&mut self, range: GpaRange, to: Hpa, kind: P2mKind) -> Result<Changed, MapError> {
        if to.checked_add(range.len()).is_none_or(|end| end.0 > 1 << HPA_BITS) {
            return Err(MapError::Address);
        }
        let was = self.old_frames(range, |at, _| P2mEntry::new(kind, to).after(at.0 - range.start.0));
        let result = self.table.map(range, to, kind);
        self.changed(range, was, result)
    }

    /// The memory of `range` that is about to change; `new` says what an address translates to afterwards, of what it
    /// translates to now.
    fn old_frames(&self, range: GpaRange, new: impl Fn(Gpa, P2mEntry) -> P2mEntry) -> OldFrames {
        let mut was = OldFrames::NONE;
        let mut rest = range.intersect(GpaRange::ALL);
        while !rest.is_empty() {
            let (entry, len) = self.run(rest.start, rest.len());
            if let Some(hpa) = entry.readable().filter(|_| new(rest.start, entry) != entry) {
                was.add(hpa.frame(), len.div_ceil(PAGE_SIZE));
            }
            rest = rest.split_at(len).1;
        }
        was
    }

    /// Ends a change of `range`, which may have failed half-way.
    fn changed(
        &mut self,
        range: GpaRange,
        was: OldFrames,
        result: Result<Flush, MapError>,
    ) -> Result<Changed, MapError> {
        let mut directory = core::mem::take(&mut self.directory);
        directory.update(range.intersect(GpaRange::ALL), |chunk| {
            let (entry, len) = self.run(chunk.start, chunk.len());
            match entry {
                P2mEntry::Ram { hpa, writable: true } if len == chunk.len() => Some(hpa),
                _ => None,
            }
        });
        self.directory = directory;
        if let Some(migration) = &self.migration {
            migration.changed(range.start.frame(), range.len() >> PAGE_SHIFT);
        }
        let _software_tables_need_none = result?;
        Ok(Changed::new(range, was))
    }
}
