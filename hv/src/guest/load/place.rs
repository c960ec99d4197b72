//! Finds room in guest RAM, refuses overlaps, and writes.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::ops::Range;

use super::{File, LoadError, Problem};
use crate::arch::addr::{Gpa, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::vm::layout::{EBDA, MIB, MemoryLayout};

/// Something that was placed in guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What it is.
    pub what: &'static str,
    /// Where it lies.
    pub range: Range<Gpa>,
}

/// Guest memory with a record of what is in use. Errors are about [`Placer::file`].
pub struct Placer<'a, M> {
    memory: &'a M,
    layout: MemoryLayout,
    placed: Vec<Placed>,
}

impl<'a, M: GuestMemory> Placer<'a, M> {
    /// All RAM free but the first page (interrupt vectors, BIOS data) and the legacy hole.
    pub fn new(memory: &'a M, layout: MemoryLayout) -> Self {
        let used = |what, range: Range<u64>| Placed { what, range: Gpa(range.start)..Gpa(range.end) };
        let placed = alloc::vec![
            used("the BIOS data area", 0..PAGE_SIZE),
            used("the legacy hole and the ACPI tables", EBDA..MIB)
        ];
        Placer { memory, layout, placed }
    }

    /// The record without the areas that were in use from the start.
    pub fn finish(mut self) -> Vec<Placed> {
        self.placed.drain(..2);
        self.placed
    }

    /// Claims exactly `at .. at + size`.
    pub fn claim(
        &mut self,
        file: &File<'_>,
        what: &'static str,
        at: u64,
        size: u64,
    ) -> Result<(), LoadError> {
        let error = |problem| LoadError { file: file.name.to_string(), problem };
        let ram = self.layout.ram_bytes();
        let no_room = Problem::DoesNotFit { what, size, min: at, max: at.saturating_add(size), ram };
        let Some(end) = at.checked_add(size) else { return Err(error(no_room)) };
        if !self.layout.ram().iter().any(|r| r.start.0 <= at && end <= r.end.0) {
            return Err(error(no_room));
        }
        match self.overlap(at, end) {
            Some(other) => Err(error(Problem::Overlap { what, at, size, other: other.what })),
            None => {
                self.placed.push(Placed { what, range: Gpa(at)..Gpa(end) });
                Ok(())
            }
        }
    }

    /// Claims the lowest free range of `size` bytes at a multiple of `align` within `window`.
    pub fn claim_lowest(
        &mut self,
        file: &File<'_>,
        what: &'static str,
        size: u64,
        align: u64,
        window: Range<u64>,
    ) -> Result<u64, LoadError> {
        let mut best = None;
        for start in self.starts(window.start) {
            best = start
                .checked_next_multiple_of(align.max(1))
                .filter(|&at| self.is_free(at, size, &window))
                .into_iter()
                .chain(best)
                .min();
        }
        self.claim_found(file, what, size, best, &window)
    }

    /// Claims the highest free range of `size` bytes at a multiple of `align` within `window`.
    pub fn claim_highest(
        &mut self,
        file: &File<'_>,
        what: &'static str,
        size: u64,
        align: u64,
        window: Range<u64>,
    ) -> Result<u64, LoadError> {
        let mut best = None;
        for end in self.ends(window.end) {
            let at = end.checked_sub(size).map(|at| at - at % align.max(1));
            best = at.filter(|&at| self.is_free(at, size, &window)).into_iter().chain(best).max();
        }
        self.claim_found(file, what, size, best, &window)
    }

    /// Writes bytes.
    pub fn write(&self, file: &File<'_>, at: u64, bytes: &[u8]) -> Result<(), LoadError> {
        self.memory.write(Gpa(at), bytes).map_err(|e| LoadError::not_ram(file.name, e))
    }

    /// Writes zeros.
    pub fn zero(&self, file: &File<'_>, at: u64, size: u64) -> Result<(), LoadError> {
        self.memory.fill(Gpa(at), size, 0).map_err(|e| LoadError::not_ram(file.name, e))
    }

    fn claim_found(
        &mut self,
        file: &File<'_>,
        what: &'static str,
        size: u64,
        found: Option<u64>,
        window: &Range<u64>,
    ) -> Result<u64, LoadError> {
        match found {
            Some(at) => self.claim(file, what, at, size).map(|()| at),
            None => {
                let ram = self.layout.ram_bytes();
                let problem = Problem::DoesNotFit { what, size, min: window.start, max: window.end, ram };
                Err(LoadError { file: file.name.to_string(), problem })
            }
        }
    }

    /// Every address at which free memory can begin: the window, RAM, and the end of each thing placed.
    fn starts(&self, window: u64) -> impl Iterator<Item = u64> {
        let ram = self.layout.ram().into_iter().map(move |r| r.start.0.max(window));
        ram.chain(self.placed.iter().map(move |p| p.range.end.0.max(window)))
    }

    /// Every address at which free memory can end.
    fn ends(&self, window: u64) -> impl Iterator<Item = u64> {
        let ram = self.layout.ram().into_iter().map(move |r| r.end.0.min(window));
        ram.chain(self.placed.iter().map(move |p| p.range.start.0.min(window)))
    }

    fn is_free(&self, at: u64, size: u64, window: &Range<u64>) -> bool {
        let Some(end) = at.checked_add(size) else { return false };
        let in_ram = self.layout.ram().iter().any(|r| r.start.0 <= at && end <= r.end.0);
        in_ram && window.start <= at && end <= window.end && self.overlap(at, end).is_none()
    }

    fn overlap(&self, start: u64, end: u64) -> Option<&Placed> {
        self.placed.iter().find(|p| p.range.start.0 < end && start < p.range.end.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::guest_memory::VecMemory;

    const FILE: File<'static> = File { name: "k", bytes: &[] };

    #[test]
    fn finds_the_ends_of_free_memory() {
        let memory = VecMemory::new(0);
        let mut p = Placer::new(&memory, MemoryLayout::new(4096));
        assert_eq!(p.claim_lowest(&FILE, "a", 0x1800, 0x1000, 0..u64::MAX), Ok(0x1000));
        assert_eq!(p.claim_lowest(&FILE, "b", 0x1000, 0x1000, 0..u64::MAX), Ok(0x3000));
        assert_eq!(p.claim_lowest(&FILE, "c", 0x9f000, 1, 0..u64::MAX), Ok(MIB));
        assert_eq!(p.claim_highest(&FILE, "d", 0x1800, 0x1000, 0..1 << 32), Ok(0xbfff_e000));
        assert_eq!(p.claim_highest(&FILE, "e", 0x1000, 0x1000, 0..1 << 32), Ok(0xbfff_d000));
        assert_eq!(p.claim_highest(&FILE, "f", 1, 1, 0..u64::MAX), Ok(0x1_3fff_ffff));
        assert_eq!(p.claim_lowest(&FILE, "g", 1, 1, 0xc000_0000..u64::MAX), Ok(1 << 32));
        assert_eq!(p.finish().len(), 7);
    }

    #[test]
    fn refuses_overlaps_and_holes() {
        let memory = VecMemory::new(0);
        let mut p = Placer::new(&memory, MemoryLayout::new(64));
        p.claim(&FILE, "a", 0x10_0000, 0x1000).unwrap();
        let overlap = p.claim(&FILE, "b", 0x10_0fff, 2).unwrap_err();
        assert_eq!(overlap.problem, Problem::Overlap { what: "b", at: 0x10_0fff, size: 2, other: "a" });
        for (at, size) in [(64 * MIB, 1), (64 * MIB - 1, 2), (u64::MAX, 1), (5, u64::MAX), (1 << 40, 1)] {
            let e = p.claim(&FILE, "c", at, size).unwrap_err();
            assert!(matches!(e.problem, Problem::DoesNotFit { .. }), "{e}");
        }
        assert!(p.claim_highest(&FILE, "d", 65 * MIB, 1, 0..u64::MAX).is_err());
        assert!(p.claim_lowest(&FILE, "d", u64::MAX, 1 << 63, 0..u64::MAX).is_err());
    }
}
