//! A second walker of guest page tables, for tests: slow, written out kind by kind from the figures of the
//! manuals (Intel SDM 3, figures 4-4, 4-7, 4-11; AMD APM 2, 5.2, 5.3), sharing nothing with the first but its
//! types.
//!
//! It changes nothing: it returns the entries that the processor would write.

use super::{PagingState, Translation, WalkError};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva};
use crate::mem::guest_memory::GuestMemory;
use alloc::vec::Vec;

/// An entry that the walk writes: address, size in bytes, value.
pub type EntryWrite = (Gpa, usize, u64);

struct Reference<'a, G> {
    state: &'a PagingState,
    memory: &'a G,
    access: Access,
    writes: Vec<EntryWrite>,
    writable: bool,
    user: bool,
    no_execute: bool,
}

/// What [`translate`](super::translate) must return, and the entries that it must have written, in order.
pub fn reference(
    state: &PagingState,
    memory: &impl GuestMemory,
    gva: Gva,
    access: Access,
) -> (Result<Translation, WalkError>, Vec<EntryWrite>) {
    let mut walk = Reference {
        state,
        memory,
        access,
        writes: Vec::new(),
        writable: true,
        user: true,
        no_execute: false,
    };
    let paging = state.cr0 >> 31 & 1 == 1;
    let pae = state.cr4 >> 5 & 1 == 1;
    let long = state.efer >> 10 & 1 == 1;
    let result = match (paging, pae, long) {
        (false, _, _) => {
            let all = Translation {
                gpa: Gpa(gva.0 % (1 << 32)),
                page_shift: 32,
                writable: true,
                user: true,
                executable: true,
                global: false,
                dirty: true,
                pat: 0,
            };
            Ok(all)
        }
        (true, false, _) => walk.two_level(gva.0 as u32),
        (true, true, false) => walk.pae(gva.0 as u32),
        (true, true, true) => walk.four_level(gva.0),
    };
    (result, walk.writes)
}

fn bits(value: u64, high: u32, low: u32) -> u64 {
    value >> low & ((1 << (high - low + 1)) - 1)
}

impl<G: GuestMemory> Reference<'_, G> {
    fn read(&self, at: u64, size: usize) -> Result<u64, WalkError> {
        // The walk's own writes are seen by its later reads.
        if let Some(&(_, _, value)) = self.writes.iter().rev().find(|(gpa, ..)| gpa.0 == at) {
            return Ok(value);
        }
        let mut bytes = [0; 8];
        match self.memory.read(Gpa(at), &mut bytes[..size]) {
            Ok(()) => Ok(u64::from_le_bytes(bytes)),
            Err(_) => Err(WalkError::NotRam { table: Gpa(at) }),
        }
    }

    fn fault(&self, present: bool, reserved: bool) -> WalkError {
        let smep = self.state.cr4 >> 20 & 1 == 1;
        let nx = self.state.cr4 >> 5 & 1 == 1 && self.state.efer >> 11 & 1 == 1;
        WalkError::PageFault(
            u32::from(present)
                | u32::from(self.access.write) << 1
                | u32::from(self.access.user) << 2
                | u32::from(reserved) << 3
                | u32::from(self.access.execute && (smep || nx)) << 4,
        )
    }

    /// Present and without reserved bits, or the fault.
    fn valid(&self, entry: u64, reserved: bool) -> Result<(), WalkError> {
        match (bits(entry, 0, 0), reserved) {
            (0, _) => Err(self.fault(false, false)),
            (_, true) => Err(self.fault(true, true)),
            _ => Ok(()),
        }
    }

    fn combine(&mut self, entry: u64, wide: bool) {
        self.writable = self.writable && bits(entry, 1, 1) == 1;
        self.user = self.user && bits(entry, 2, 2) == 1;
        self.no_execute = self.no_execute || (wide && bits(entry, 63, 63) == 1);
    }

    fn accessed(&mut self, at: u64, size: usize, entry: u64) {
        if bits(entry, 5, 5) == 0 {
            self.writes.push((Gpa(at), size, entry | 0x20));
        }
    }

    fn leaf(
        &mut self,
        at: u64,
        size: usize,
        entry: u64,
        page: u64,
        page_shift: u8,
        offset: u64,
    ) -> Result<Translation, WalkError> {
        let state = self.state;
        let wp = state.cr0 >> 16 & 1 == 1;
        let smep = state.cr4 >> 20 & 1 == 1;
        let smap = state.cr4 >> 21 & 1 == 1;
        let ac = state.rflags >> 18 & 1 == 1 && state.cpl != 3;
        let mut denied = false;
        if self.access.user && !self.user {
            denied = true;
        }
        if self.access.write && !self.writable && (self.access.user || wp) {
            denied = true;
        }
        if self.access.execute && self.no_execute {
            denied = true;
        }
        if !self.access.user && self.user && self.access.execute && smep {
            denied = true;
        }
        if !self.access.user && self.user && !self.access.execute && smap && !ac {
            denied = true;
        }
        if denied {
            return Err(self.fault(true, false));
        }
        let new = entry | 0x20 | if self.access.write { 0x40 } else { 0 };
        if new != entry {
            self.writes.push((Gpa(at), size, new));
        }
        let pat = if page_shift == 12 { bits(entry, 7, 7) } else { bits(entry, 12, 12) };
        Ok(Translation {
            gpa: Gpa(page + offset),
            page_shift,
            writable: self.writable,
            user: self.user,
            executable: !self.no_execute,
            global: bits(entry, 8, 8) == 1 && state.cr4 >> 7 & 1 == 1,
            dirty: bits(new, 6, 6) == 1,
            pat: (pat << 2 | bits(entry, 4, 3)) as u8,
        })
    }

    fn two_level(&mut self, gva: u32) -> Result<Translation, WalkError> {
        let gva = u64::from(gva);
        let pde_at = (bits(self.state.cr3, 31, 12) << 12) + bits(gva, 31, 22) * 4;
        let pde = self.read(pde_at, 4)?;
        let pse = self.state.cr4 >> 4 & 1 == 1;
        if pse && bits(pde, 7, 7) == 1 {
            let width = u32::from(self.state.features.physical_bits.min(40));
            let mut reserved = bits(pde, 21, 21) == 1;
            for bit in 13..21 {
                // Bit 13 is address bit 32.
                reserved |= bits(pde, bit, bit) == 1 && bit + 19 >= width;
            }
            self.valid(pde, reserved)?;
            self.combine(pde, false);
            let page = bits(pde, 31, 22) << 22 | bits(pde, 20, 13) << 32;
            return self.leaf(pde_at, 4, pde, page, 22, bits(gva, 21, 0));
        }
        self.valid(pde, false)?;
        self.combine(pde, false);
        self.accessed(pde_at, 4, pde);
        let pte_at = (bits(pde, 31, 12) << 12) + bits(gva, 21, 12) * 4;
        let pte = self.read(pte_at, 4)?;
        self.valid(pte, false)?;
        self.combine(pte, false);
        self.leaf(pte_at, 4, pte, bits(pte, 31, 12) << 12, 12, bits(gva, 11, 0))
    }

    /// Address bits beyond the processor's, or NX where it is not enabled.
    fn reserved_wide(&self, entry: u64) -> bool {
        let width = u32::from(self.state.features.physical_bits);
        let too_wide = (width..52).any(|bit| bits(entry, bit, bit) == 1);
        let nxe = self.state.efer >> 11 & 1 == 1;
        too_wide || (bits(entry, 63, 63) == 1 && !nxe)
    }

    fn pae(&mut self, gva: u32) -> Result<Translation, WalkError> {
        let gva = u64::from(gva);
        let number = bits(gva, 31, 30);
        let pdpte = match self.state.pdptes {
            Some(loaded) => loaded[number as usize],
            None => self.read((bits(self.state.cr3, 31, 5) << 5) + number * 8, 8)?,
        };
        let width = u32::from(self.state.features.physical_bits);
        let low = bits(pdpte, 2, 1) != 0 || bits(pdpte, 8, 5) != 0;
        let reserved = self.state.features.pointer_bits_reserved && low
            || (width..64).any(|bit| bits(pdpte, bit, bit) == 1);
        self.valid(pdpte, reserved)?;
        let pde_at = (bits(pdpte, 51, 12) << 12) + bits(gva, 29, 21) * 8;
        let pde = self.read(pde_at, 8)?;
        let reserved = self.reserved_wide(pde) || bits(pde, 62, 52) != 0;
        if bits(pde, 7, 7) == 1 {
            self.valid(pde, reserved || bits(pde, 20, 13) != 0)?;
            self.combine(pde, true);
            return self.leaf(pde_at, 8, pde, bits(pde, 51, 21) << 21, 21, bits(gva, 20, 0));
        }
        self.valid(pde, reserved)?;
        self.combine(pde, true);
        self.accessed(pde_at, 8, pde);
        let pte_at = (bits(pde, 51, 12) << 12) + bits(gva, 20, 12) * 8;
        let pte = self.read(pte_at, 8)?;
        self.valid(pte, self.reserved_wide(pte) || bits(pte, 62, 52) != 0)?;
        self.combine(pte, true);
        self.leaf(pte_at, 8, pte, bits(pte, 51, 12) << 12, 12, bits(gva, 11, 0))
    }

    fn four_level(&mut self, gva: u64) -> Result<Translation, WalkError> {
        let features = self.state.features;
        let mut table = bits(self.state.cr3, 51, 12) << 12 & ((1 << features.physical_bits) - 1);

        let at = table + bits(gva, 47, 39) * 8;
        let pml4e = self.read(at, 8)?;
        let bit8 = features.upper_global_reserved && bits(pml4e, 8, 8) == 1;
        self.valid(pml4e, self.reserved_wide(pml4e) || bits(pml4e, 7, 7) == 1 || bit8)?;
        self.combine(pml4e, true);
        self.accessed(at, 8, pml4e);
        table = bits(pml4e, 51, 12) << 12;

        let at = table + bits(gva, 38, 30) * 8;
        let pdpte = self.read(at, 8)?;
        if bits(pdpte, 7, 7) == 1 {
            let reserved = self.reserved_wide(pdpte) || !features.gib_pages || bits(pdpte, 29, 13) != 0;
            self.valid(pdpte, reserved)?;
            self.combine(pdpte, true);
            return self.leaf(at, 8, pdpte, bits(pdpte, 51, 30) << 30, 30, bits(gva, 29, 0));
        }
        let bit8 = features.upper_global_reserved && bits(pdpte, 8, 8) == 1;
        self.valid(pdpte, self.reserved_wide(pdpte) || bit8)?;
        self.combine(pdpte, true);
        self.accessed(at, 8, pdpte);
        table = bits(pdpte, 51, 12) << 12;

        let at = table + bits(gva, 29, 21) * 8;
        let pde = self.read(at, 8)?;
        if bits(pde, 7, 7) == 1 {
            self.valid(pde, self.reserved_wide(pde) || bits(pde, 20, 13) != 0)?;
            self.combine(pde, true);
            return self.leaf(at, 8, pde, bits(pde, 51, 21) << 21, 21, bits(gva, 20, 0));
        }
        self.valid(pde, self.reserved_wide(pde))?;
        self.combine(pde, true);
        self.accessed(at, 8, pde);
        table = bits(pde, 51, 12) << 12;

        let at = table + bits(gva, 20, 12) * 8;
        let pte = self.read(at, 8)?;
        self.valid(pte, self.reserved_wide(pte))?;
        self.combine(pte, true);
        self.leaf(at, 8, pte, bits(pte, 51, 12) << 12, 12, bits(gva, 11, 0))
    }
}
