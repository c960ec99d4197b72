//! Random page tables and registers for tests: most walks get somewhere, and every rule is met.

use super::guest_walk::{PagingFeatures, PagingKind, PagingState};
use crate::arch::Access;
use crate::arch::addr::{Gpa, PAGE_SIZE};
use crate::arch::state::{cr0, cr4, efer, rflags};
use crate::mem::guest_memory::GuestMemory;

/// Pages of guest memory, from address 0, in which tables lie.
pub const PAGES: u64 = 8;

/// A small generator of pseudo-random numbers: tables of thousands of entries need not shrink entry by entry.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        super::policy::split_mix(&mut self.0)
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.draw().is_multiple_of(n)
    }

    /// An entry that is usually good for a walk through [`PAGES`] pages.
    pub fn entry(&mut self, wide: bool) -> u64 {
        let mut entry = self.draw() & 0x1178;
        entry |= if self.once_in(16) { 0 } else { 1 };
        entry |= if self.once_in(4) { 0 } else { 2 };
        entry |= if self.once_in(4) { 0 } else { 4 };
        let large = self.once_in(4);
        entry |= if large { 0x80 } else { 0 };
        if large && !self.once_in(4) {
            // Bits 20:13 must be zero but for PSE-36, where few of them may be set.
            let middle = if self.once_in(if wide { 8 } else { 2 }) { 1 << (13 + self.draw() % 8) } else { 0 };
            let no_execute = if wide && self.once_in(4) { 1 << 63 } else { 0 };
            return entry | (self.draw() % 64) << 21 | middle | no_execute;
        }
        entry = entry & 0xfff | (self.draw() % PAGES) << 12;
        if self.once_in(16) {
            entry ^= 1 << (12 + self.draw() % 52);
        }
        if self.once_in(8) {
            entry |= 1 << 63;
        }
        if wide { entry } else { entry & 0xffff_ffff }
    }

    /// Writes entries to all of [`PAGES`] pages of guest memory.
    pub fn fill(&mut self, memory: &impl GuestMemory, wide: bool) {
        let size = if wide { 8 } else { 4 };
        for at in (0..PAGES * PAGE_SIZE).step_by(size) {
            let entry = self.entry_at(at, wide).to_le_bytes();
            memory.write(Gpa(at), &entry[..size]).expect("the tables are in memory");
        }
    }

    /// An entry for this place. The first half page often holds page-directory pointers of PAE paging, of
    /// which more bits must be zero.
    pub fn entry_at(&mut self, at: u64, wide: bool) -> u64 {
        let entry = self.entry(wide);
        if wide && at < PAGE_SIZE / 2 && !self.once_in(4) { entry & 0xffff_f019 } else { entry }
    }

    /// Registers that select this kind of paging, with the root table in one of the pages.
    pub fn state(&mut self, kind: PagingKind) -> PagingState {
        let some = |random: &mut Random, bit: u64| if random.once_in(2) { bit } else { 0 };
        let mut state = PagingState {
            cr0: cr0::PE | cr0::PG | some(self, cr0::WP),
            cr3: self.draw() % (PAGES * PAGE_SIZE),
            cr4: some(self, cr4::SMEP) | some(self, cr4::SMAP) | some(self, cr4::PGE),
            efer: some(self, efer::NXE),
            rflags: some(self, rflags::AC),
            cpl: (self.draw() % 4) as u8,
            pdptes: None,
            features: PagingFeatures {
                physical_bits: [32, 36, 39, 40, 46, 52][(self.draw() % 6) as usize],
                gib_pages: self.once_in(2),
                upper_global_reserved: self.once_in(2),
                pointer_bits_reserved: true,
            },
        };
        match kind {
            PagingKind::Off => state.cr0 &= !cr0::PG,
            PagingKind::TwoLevel => state.cr4 |= some(self, cr4::PSE),
            PagingKind::Pae => {
                state.cr4 |= cr4::PAE;
                state.cr3 &= PAGE_SIZE / 2 - 1;
                state.features.pointer_bits_reserved = self.once_in(2);
                if self.once_in(4) {
                    state.pdptes = Some(core::array::from_fn(|_| self.entry(true) & 0x7019));
                }
            }
            PagingKind::FourLevel => {
                state.cr4 |= cr4::PAE;
                state.efer |= efer::LME | efer::LMA;
            }
        }
        assert_eq!(state.kind(), kind);
        state
    }

    /// An access that code at this privilege level can make.
    pub fn access(&mut self, cpl: u8) -> Access {
        let kind = [Access::READ, Access::WRITE, Access::FETCH][(self.draw() % 3) as usize];
        if cpl == 3 && self.once_in(2) { kind.user() } else { kind }
    }
}
