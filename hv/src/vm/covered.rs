//! Pages of a VM that the registers of local APICs cover.
//!
//! Each VCPU chooses by APIC_BASE where its local APIC appears, and other VCPUs still see there what was there before. The P2m,
//! which all share, sends such a page to the device bus; what it held is kept here, for the bus to reach it on behalf of the
//! others, and for the time after. `vcpu::apic_base` calls this, under the lock of the VM's memory.
//!
//! Device DMA and instruction fetches do not find the memory under such a page: no system puts either there.

use alloc::vec::Vec;

use crate::arch::addr::{Gpa, PAGE_SIZE};
use crate::mem::table_memory::TableMemory;
use crate::paging::range::{Changed, GpaRange};
use crate::paging::{MapError, P2m, P2mEntry};

/// A page with what it held.
#[derive(Debug)]
struct Page {
    at: Gpa,
    was: P2mEntry,
    /// VCPUs whose registers are there. None: it could not be given back for want of memory.
    by: u64,
}

/// The covered pages of a VM: at most one for each VCPU, and those that could not be given back.
#[derive(Debug, Default)]
pub struct Covered(Vec<Page>);

impl Covered {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What this page held before registers covered it.
    pub fn beneath(&self, gpa: Gpa) -> Option<P2mEntry> {
        self.0.iter().find(|page| page.at.frame() == gpa.frame()).map(|page| page.was)
    }

    /// The registers of VCPU `id` appear at `page`. Returns what changed in the P2m.
    ///
    /// # Errors
    /// No frames for its tables: nothing has changed.
    pub fn cover<M: TableMemory>(
        &mut self,
        p2m: &mut P2m<M>,
        page: Gpa,
        id: u32,
    ) -> Result<Option<Changed>, MapError> {
        if let Some(known) = self.0.iter_mut().find(|known| known.at == page) {
            known.by |= 1 << id;
            return Ok(None);
        }
        // A write to what is beneath does not come here again.
        let was = p2m.translate_to_write(page);
        if was == P2mEntry::Mmio {
            return Ok(None);
        }
        let changed = p2m.map_mmio(GpaRange::new(page, PAGE_SIZE).ok_or(MapError::Address)?)?;
        self.0.push(Page { at: page, was, by: 1 << id });
        Ok(Some(changed))
    }

    /// The registers of VCPU `id` appear no more at `page`. Returns what changed in the P2m.
    pub fn uncover<M: TableMemory>(&mut self, p2m: &mut P2m<M>, page: Gpa, id: u32) -> Option<Changed> {
        let known = self.0.iter_mut().find(|known| known.at == page)?;
        known.by &= !(1 << id);
        if known.by != 0 {
            return None;
        }
        self.give_back(p2m, page)
    }

    /// The RAM under the covered pages of `range` is mapped to the cache of domain `home`, or (`None`) open in all, once it is back.
    pub fn set_home(&mut self, range: GpaRange, home: Option<u8>) {
        for page in self.0.iter_mut().filter(|page| range.contains(page.at)) {
            page.was = page.was.at_home(home);
        }
    }

    /// All registers are where they are after RESET. Returns what changed in the P2m.
    pub fn uncover_all<M: TableMemory>(&mut self, p2m: &mut P2m<M>) -> Vec<Changed> {
        let pages: Vec<_> = self.0.iter().map(|page| page.at).collect();
        pages.into_iter().filter_map(|page| self.give_back(p2m, page)).collect()
    }

    /// Large leaves that were split stay so: to split and merge them again and again would cost tables each time.
    fn give_back<M: TableMemory>(&mut self, p2m: &mut P2m<M>, page: Gpa) -> Option<Changed> {
        let number = self.0.iter().position(|known| known.at == page)?;
        let range = GpaRange::new(page, PAGE_SIZE)?;
        let changed = match self.0[number].was {
            P2mEntry::Ram { hpa, writable } => p2m.map_ram(range, hpa, writable),
            P2mEntry::Local { hpa, writable, home } => p2m.map_local(range, hpa, writable, Some(home)),
            P2mEntry::Rom { hpa } => p2m.map_rom(range, hpa),
            P2mEntry::Mmio | P2mEntry::Absent { .. } | P2mEntry::Hole => p2m.unmap(range),
        };
        let changed = changed.ok()?;
        self.0.swap_remove(number);
        Some(changed)
    }
}
