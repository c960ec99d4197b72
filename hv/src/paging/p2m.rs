//! The P2m: where each guest-physical page of a VM is. The one truth; nested and shadow tables are caches of it.
//!
//! Who uses it: the builder of a VM fills it; the paging engines fill their tables from it; the emulator, loaders and
//! devices look addresses up (through [`VmMemory`](crate::guest::ram::VmMemory)). What must hold: RAM and ROM
//! leaves lead only to host frames that belong to this VM (whoever maps them owes that), and every [`Changed`] value
//! reaches every engine of the VM before the guest runs again or the frames change hands.

use super::addr::{Gpa, Hfn, Hpa, PageSize};
use super::range::{Changed, GpaRange};
use super::table::{Found, MapError, Piece, Pieces, Table, TableMemory};

pub use super::format::p2m::{P2mFormat, P2mKind};

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
    /// Nothing.
    Hole,
}

impl P2mEntry {
    fn new(leaf: Option<(Hpa, P2mKind)>) -> P2mEntry {
        match leaf {
            Some((hpa, P2mKind::Ram { writable })) => P2mEntry::Ram { hpa, writable },
            Some((hpa, P2mKind::Rom)) => P2mEntry::Rom { hpa },
            Some((_, P2mKind::Mmio)) => P2mEntry::Mmio,
            None => P2mEntry::Hole,
        }
    }

    /// Where the byte is, if it can be read as memory.
    pub fn readable(self) -> Option<Hpa> {
        match self {
            P2mEntry::Ram { hpa, .. } | P2mEntry::Rom { hpa } => Some(hpa),
            P2mEntry::Mmio | P2mEntry::Hole => None,
        }
    }

    /// Where the byte is, if it can be written as memory.
    pub fn writable(self) -> Option<Hpa> {
        match self {
            P2mEntry::Ram { hpa, writable: true } => Some(hpa),
            _ => None,
        }
    }
}

/// The guest-physical address space of one VM.
#[derive(Debug)]
pub struct P2m<M: TableMemory> {
    table: Table<P2mFormat, M>,
}

impl<M: TableMemory> P2m<M> {
    /// An address space of holes.
    pub fn new(memory: M) -> Result<Self, MapError> {
        Ok(P2m { table: Table::new(memory, PageSize::Size1G)? })
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

    /// Fills `range` with RAM from pieces of host memory `(start, bytes)` in order; returns what was filled, which is
    /// less than `range` if the pieces run out.
    pub fn populate(
        &mut self,
        range: GpaRange,
        chunks: impl IntoIterator<Item = (Hpa, u64)>,
    ) -> Result<(Changed, u64), MapError> {
        let mut filled = 0;
        for (hpa, bytes) in chunks {
            let bytes = bytes.min(range.len() - filled);
            let part = GpaRange::new(Gpa(range.start.0 + filled), bytes).ok_or(MapError::Address)?;
            let _whole_range_is_named_below = self.map_ram(part, hpa, true)?;
            filled += bytes;
            if filled == range.len() {
                break;
            }
        }
        Ok((Changed(GpaRange { end: Gpa(range.start.0 + filled), ..range }), filled))
    }

    /// Makes `range` a hole.
    pub fn unmap(&mut self, range: GpaRange) -> Result<Changed, MapError> {
        let _software_tables_need_none = self.table.unmap(range)?;
        Ok(Changed(range))
    }

    /// Lets the hypervisor see writes to the RAM of `range`, or no longer.
    pub fn set_writable(&mut self, range: GpaRange, writable: bool) -> Result<Changed, MapError> {
        let _software_tables_need_none = self.table.protect(range, |kind| match kind {
            P2mKind::Ram { .. } => P2mKind::Ram { writable },
            other => other,
        })?;
        Ok(Changed(range))
    }

    /// Makes leaves that touch `range` no larger than `size`. Translations stay the same; the engines may keep theirs.
    pub fn split(&mut self, range: GpaRange, size: PageSize) -> Result<(), MapError> {
        let _software_tables_need_none = self.table.split(range, size)?;
        Ok(())
    }

    /// Joins neighbouring leaves in `range` (grown to 2 MiB bounds) where larger ones say the same. Translations
    /// stay the same; engines that are told can use larger leaves too.
    pub fn merge(&mut self, range: GpaRange) -> Changed {
        let grown = GpaRange {
            start: range.start.align_down(PageSize::Size2M.bytes()),
            end: range.end.align_up(PageSize::Size2M.bytes()).unwrap_or(GpaRange::ALL.end),
        };
        let grown = grown.intersect(GpaRange::ALL);
        let _software_tables_need_none = self.table.merge(grown);
        Changed(grown)
    }

    /// What is at `gpa`.
    #[inline]
    pub fn translate(&self, gpa: Gpa) -> P2mEntry {
        match self.table.walk(gpa) {
            Found::Hole(_) => P2mEntry::Hole,
            Found::Leaf(leaf) => P2mEntry::new(Some((Hpa(leaf.to.0 + (gpa.0 - leaf.gpa.0)), leaf.attr))),
        }
    }

    /// What is at `gpa`, and for how many bytes (at least 1 and at most `max`, which is not 0) the following addresses
    /// are the same kind and, for memory, contiguous.
    pub fn run(&self, gpa: Gpa, max: u64) -> (P2mEntry, u64) {
        let end = gpa.0.saturating_add(max.max(1));
        if !GpaRange::ALL.contains(gpa) {
            return (P2mEntry::Hole, end - gpa.0);
        }
        let range = GpaRange { start: gpa, end: Gpa(end.min(GpaRange::ALL.end.0)) };
        let mut pieces = self.table.pieces(range);
        let Some(first) = pieces.next() else {
            return (P2mEntry::Hole, 1);
        };
        let mut len = first.range.len();
        for piece in pieces {
            let follows = match (first.leaf, piece.leaf) {
                (None, None) => true,
                (Some((a, kind)), Some((b, other))) => kind == other && a.0 + len == b.0,
                _ => false,
            };
            if !follows {
                break;
            }
            len += piece.range.len();
        }
        (P2mEntry::new(first.leaf), len)
    }

    /// The leaf or hole that `gpa` lies in.
    pub fn find(&self, gpa: Gpa) -> Found<P2mKind> {
        self.table.walk(gpa)
    }

    /// The pieces of `range` in order: leaves and holes, cut to the range.
    pub fn pieces(&self, range: GpaRange) -> Pieces<'_, P2mFormat, M> {
        self.table.pieces(range)
    }

    /// Stretches of equal kind and contiguous memory, as the monitor lists them. Holes are left out.
    pub fn regions(&self) -> impl Iterator<Item = Piece<P2mKind>> {
        let mut at = GpaRange::ALL.start;
        core::iter::from_fn(move || {
            while at < GpaRange::ALL.end {
                let (entry, len) = self.run(at, u64::MAX);
                let range = GpaRange { start: at, end: Gpa(at.0 + len) };
                at = range.end;
                if entry != P2mEntry::Hole {
                    let leaf = self.table.pieces(range).next().and_then(|piece| piece.leaf);
                    return Some(Piece { range, leaf });
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

    fn map(&mut self, range: GpaRange, to: Hpa, kind: P2mKind) -> Result<Changed, MapError> {
        let _software_tables_need_none = self.table.map(range, to, kind)?;
        Ok(Changed(range))
    }
}
