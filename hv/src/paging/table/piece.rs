//! Pieces of 2 MiB: what a large leaf would say, and one that becomes small leaves without exclusive access.

use super::{ENTRIES, Table, TableMemory, index, span};
use crate::arch::addr::{Gpa, Hfn, Hpa};
use crate::paging::format::{Entry, PteFormat};
use crate::paging::range::GpaRange;

/// The level of leaves of 2 MiB.
const LEVEL: u8 = 2;

impl<F: PteFormat, M: TableMemory> Table<F, M> {
    /// What a leaf of 2 MiB says of the piece that `gpa` is in, or could say: all its leaves are there, neighbours, and alike.
    pub fn whole(&self, gpa: Gpa) -> Option<(Hpa, F::Attr)> {
        let (table, level) = self.above_piece(gpa)?;
        match F::decode(self.memory.load(table, index(gpa, level)), level) {
            Entry::Leaf { to, attr } => {
                let offset = gpa.align_down(span(LEVEL)).0 & (span(level) - 1);
                Some((Hpa(to.0 + offset), attr)).filter(|(to, _)| to.is_aligned(span(LEVEL)))
            }
            Entry::Table(child) => self.uniform(child, LEVEL - 1),
            Entry::Empty => None,
        }
    }

    /// Whether the piece that `gpa` is in has leaves of 4 KiB, and `accepts` takes all of them, with their numbers.
    pub fn all_small(&self, gpa: Gpa, mut accepts: impl FnMut(u64, Hpa, F::Attr) -> bool) -> bool {
        let Some((table, LEVEL)) = self.above_piece(gpa) else { return false };
        let Entry::Table(child) = F::decode(self.memory.load(table, index(gpa, LEVEL)), LEVEL) else {
            return false;
        };
        (0..ENTRIES).all(|n| match F::decode(self.memory.load(child, n), LEVEL - 1) {
            Entry::Leaf { to, attr } => accepts(n as u64, to, attr),
            _ => false,
        })
    }

    /// Whether the `pieces` pieces of 2 MiB from `first` on, whose entries are in one table, are large leaves, and `accepts` says so of where each
    /// begins, and how.
    pub fn all_large(&self, first: Gpa, pieces: u64, mut accepts: impl FnMut(Hpa, F::Attr) -> bool) -> bool {
        let Some((table, level)) = self.above_piece(first) else { return false };
        (0..pieces).all(|n| {
            let piece = Gpa(first.0 + n * span(LEVEL));
            match F::decode(self.memory.load(table, index(piece, level)), level) {
                Entry::Leaf { to, attr } => accepts(Hpa(to.0 + (piece.0 & (span(level) - 1))), attr),
                _ => false,
            }
        })
    }

    /// A table for [`Table::split_shared`], which counts as one of the tree. `None`: no memory.
    pub fn take_spare(&mut self) -> Option<Hfn> {
        let spare = Self::allocate(&self.memory)?;
        self.frames += 1;
        Some(spare)
    }

    /// Gives it back unused.
    pub fn drop_spare(&mut self, spare: Hfn) {
        self.frames -= 1;
        self.memory.free(spare);
    }

    /// Puts 512 leaves that say the same in the place of the leaf of 2 MiB that `gpa` is in, in the table `spare`; false: there is none.
    /// Without exclusive access: for software tables, whose leaves may be changed meanwhile.
    pub fn split_shared(&self, gpa: Gpa, spare: Hfn) -> bool {
        let Some((table, LEVEL)) = self.above_piece(gpa) else { return false };
        let at = index(gpa, LEVEL);
        let mut raw = self.memory.load(table, at);
        loop {
            let Entry::Leaf { to, attr } = F::decode(raw, LEVEL) else { return false };
            for n in 0..ENTRIES {
                let to = Hpa(to.0 + n as u64 * span(LEVEL - 1));
                self.memory.store(spare, n, F::leaf(to, LEVEL - 1, attr));
            }
            match self.memory.compare_exchange(table, at, raw, F::table(spare)) {
                Ok(()) => return true,
                Err(now) => raw = now,
            }
        }
    }

    /// The table that has the entry of the piece, and its level: 2, or more if a larger leaf is there.
    pub(super) fn above_piece(&self, gpa: Gpa) -> Option<(Hfn, u8)> {
        if !GpaRange::ALL.contains(gpa) {
            return None;
        }
        let (mut table, mut level) = (self.root, super::ROOT_LEVEL);
        while level > LEVEL {
            match F::decode(self.memory.load(table, index(gpa, level)), level) {
                Entry::Table(child) => (table, level) = (child, level - 1),
                Entry::Leaf { .. } => break,
                Entry::Empty => return None,
            }
        }
        Some((table, level))
    }
}
