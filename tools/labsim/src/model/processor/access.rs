//! Accesses and fetches: translation, comparison with the emulator's, caches.

use std::cell::RefCell;

use abi::lab::Counters;

use super::{Check, Checking, Costs, Processor};
use crate::model::{
    dirty::Tables,
    hierarchy::{Hierarchy, LINE},
    memory::Memory,
    tlb::{Entry, Found, Port},
    walk::{Access, Environment, Format},
    witness::Witness,
};

/// A load or store.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its linear address.
    pub va: u64,
    /// Its bytes.
    pub len: u64,
    /// A store.
    pub write: bool,
    /// By user mode.
    pub user: bool,
}

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// To memory.
    Memory(u64),
    /// To a device, or nowhere.
    Device(u64),
    /// To the records of [`abi::lab`]: the caller calls [`Processor::sync`].
    Doorbell,
    /// The model does not know.
    Unknown,
}

/// Where the interrupt command register is (APM 2, 16.5), at the local APIC's usual place.
const INTERRUPT_COMMAND: u64 = 0xfee0_0300;
const LINES_OF_TWO_PAGES: u64 = 2 << (12 - LINE);

impl<M: Memory> Processor<M> {
    /// A load or store that [`quick`](Self::quick) declined, or that may cross a line.
    pub fn access(&mut self, request: Request, check: &impl Check) -> Place {
        let Request { va, len, .. } = request;
        let place = self.part(request, check);
        let last = va.wrapping_add(len.max(1) - 1);
        if last >> LINE != va >> LINE {
            self.counters().line_crossings += 1;
            self.counters().page_crossings += u64::from(last >> 12 != va >> 12);
            let second = last & !((1 << LINE) - 1);
            self.part(Request { va: second, len: last - second + 1, ..request }, check);
        }
        if let Some(witness) = &self.witness {
            witness.advance();
        }
        place
    }

    fn part(&mut self, request: Request, check: &impl Check) -> Place {
        let Request { va, write, .. } = request;
        self.accesses += 1;
        let quick = self.tlbs.quick(Port::Data, va, || write);
        let Some(frame) = quick.or_else(|| self.translate(Port::Data, Access { va, write }, check)) else {
            return Place::Unknown;
        };
        let pa = frame << 12 | va & 0xfff;
        if self.checking == Checking::All {
            self.compare(Port::Data, check.truth(va), va, pa);
        }
        if let (Some(witness), true) = (&self.witness, write && self.tables.is_table(pa)) {
            witness.stored(pa, request.len);
        }
        if quick.is_some() {
            // Devices are kept out of the filter, and stores to page tables.
            self.touch_cache(Port::Data, pa);
            return Place::Memory(pa);
        }
        if self.doorbell.contains(&pa) {
            self.tlbs.forget_quick(va);
            return Place::Doorbell;
        }
        if self.memory.read_u64(pa & !7).is_none() {
            self.device(va, pa, write);
            return Place::Device(pa);
        }
        self.watch_tables(request, pa);
        self.touch_cache(Port::Data, pa);
        Place::Memory(pa)
    }

    /// The frame of code that the filter knows.
    pub fn quick_code(&mut self, va: u64) -> Option<u64> {
        self.tlbs.quick(Port::Code, va, || false)
    }

    /// Instructions at `va`, which end before `end`; the lines of the pages are fetched.
    pub fn fetch(&mut self, va: u64, end: u64, check: &impl Check) {
        let first = va >> LINE;
        // A block of QEMU's has at most two pages.
        let last = (end.wrapping_sub(1) >> LINE).clamp(first, first.saturating_add(LINES_OF_TWO_PAGES));
        let mut frame = self.fetch_page(va, check);
        for line in first..=last {
            let at = line << LINE;
            if at & 0xfff == 0 && line != first {
                frame = self.fetch_page(at, check);
            }
            if let Some(frame) = frame {
                self.touch_cache(Port::Code, frame << 12 | at & 0xfff);
            }
        }
    }

    fn fetch_page(&mut self, va: u64, check: &impl Check) -> Option<u64> {
        let frame = match self.tlbs.quick(Port::Code, va, || false) {
            Some(frame) => frame,
            None => self.translate(Port::Code, Access { va, write: false }, check)?,
        };
        if self.checking == Checking::All {
            self.compare(Port::Code, check.truth(va), va, frame << 12 | va & 0xfff);
        }
        Some(frame)
    }

    /// The frame of an address that the filter does not know.
    #[inline(never)]
    fn translate(&mut self, port: Port, access: Access, check: &impl Check) -> Option<u64> {
        let Some(regime) = self.regime else {
            self.counters().unmodelled += 1;
            return None;
        };
        if regime.format == Format::Off && regime.nested.is_none() {
            let frame = (access.va & 0xffff_ffff) >> 12;
            // A guest may turn paging on by a VMRUN that flushes nothing.
            if !self.in_guest() {
                self.tlbs.put_quick(port, access.va, frame);
            }
            return Some(frame);
        }
        let found = self.tlbs.look(port, access.va, self.tags, &self.spaces);
        let known = match found {
            Found::First(entry) => Some(entry),
            Found::Second(entry) => {
                self.miss_first(port);
                Some(entry)
            }
            Found::Miss => None,
        };
        match known {
            Some(Entry { frame, clean }) if !(clean && access.write) => Some(frame),
            // A store through an entry whose dirty bit is clear walks again, to set it.
            Some(_) => self.walk(port, access, &regime, check),
            None => {
                self.miss_first(port);
                self.walk(port, access, &regime, check)
            }
        }
    }

    /// A miss of the first level, which asks the second.
    fn miss_first(&mut self, port: Port) {
        let cycles = self.costs.second_tlb[port as usize];
        let counters = self.counters();
        counters.stall_cycles += cycles;
        match port {
            Port::Data => counters.dtlb_l1_misses += 1,
            Port::Code => counters.itlb_l1_misses += 1,
        }
    }

    fn walk(
        &mut self,
        port: Port,
        access: Access,
        regime: &crate::model::walk::Regime,
        check: &impl Check,
    ) -> Option<u64> {
        let counters = &mut self.record.sides[self.side as usize];
        match port {
            Port::Data => counters.dtlb_misses += 1,
            Port::Code => counters.itlb_misses += 1,
        }
        let now = self.witness.as_ref().map(Witness::now);
        let mut disagrees = false;
        let (memory, tables, costs) = (&self.memory, &*self.tables, &self.costs);
        let hierarchy = self.hierarchy.as_mut();
        let before = counters.walk_refs;
        let mut env =
            Surroundings { memory, tables, costs, hierarchy, counters, cycles: 0, found: RefCell::default() };
        let (found, uncached) = match &self.agile {
            None => self.walker.walk(regime, access, self.walk_tags, &self.spaces, &mut env),
            Some(agile) => {
                let tags = (self.walk_tags, &self.spaces);
                let walk = self.walker.walk_agile(regime, agile, access, tags, &mut env);
                disagrees = walk.disagrees;
                if walk.found.is_ok() {
                    let counted = &mut self.record.agile;
                    counted.walks[walk.switch] += 1;
                    counted.refs[walk.switch] += env.counters.walk_refs - before;
                    counted.refs_uncached[walk.switch] += walk.uncached;
                }
                (walk.found, walk.uncached)
            }
        };
        let (cycles, newly_found) = (env.cycles, env.found.into_inner());
        counters.walk_refs_uncached += uncached;
        counters.walk_cycles += cycles;
        counters.stall_cycles += cycles;
        if let Some(witness) = &self.witness {
            witness.found(&newly_found);
        }
        // Also where the walk comes to nothing: stores to these frames must not take the quick way.
        let epoch = self.tables.epoch();
        if std::mem::replace(&mut self.tables_epoch, epoch) != epoch {
            self.tlbs.forget_all_quick();
        }
        let Ok(found) = found else {
            counters.walk_faults += 1;
            return None;
        };
        counters.count_walk(found.guest_shift, found.nested_shift);
        if let (Some(witness), Some(now)) = (&mut self.witness, now)
            && !self.is_alone
        {
            witness.filled(self.asid, port, access.va, &found, now);
        }
        if disagrees {
            self.stand_in_differs(port, access.va, &found);
        }
        self.tlbs.fill(port, access.va, &found, self.tags, &self.spaces);
        if self.checking == Checking::Misses {
            self.compare(port, check.truth(access.va), access.va, found.pa | access.va & 0xfff);
        }
        Some(found.pa >> 12)
    }

    fn device(&mut self, va: u64, pa: u64, write: bool) {
        self.counters().device_accesses += 1;
        self.tlbs.forget_quick(va);
        if write && pa == INTERRUPT_COMMAND {
            self.ipi();
        }
    }

    /// Tells stores to page tables, which are kept out of the quick way.
    fn watch_tables(&mut self, request: Request, pa: u64) {
        if self.tables.is_table(pa) {
            if request.user {
                self.tables.forget(pa);
                return;
            }
            self.tlbs.only_loads_quick(request.va);
            if request.write {
                self.note_store(pa);
                self.tables.stored(pa, request.len, &self.memory);
            }
        }
    }
}

/// The memory system as the walker sees it.
struct Surroundings<'a, M> {
    memory: &'a M,
    tables: &'a Tables,
    costs: &'a Costs,
    hierarchy: Option<&'a mut Hierarchy>,
    counters: &'a mut Counters,
    cycles: u64,
    /// Frames of which no walk had read an entry before.
    found: RefCell<Vec<u64>>,
}

impl<M: Memory> Surroundings<'_, M> {
    fn pay(&mut self, pa: u64) {
        self.cycles += match &mut self.hierarchy {
            Some(hierarchy) => hierarchy.walk(pa, self.cycles, self.counters),
            None => self.costs.walk_reference,
        };
    }
}

impl<M: Memory> Memory for Surroundings<'_, M> {
    fn read_u64(&self, pa: u64) -> Option<u64> {
        // Before it is read: a store that comes after is seen then.
        if self.tables.watch(pa) {
            self.found.borrow_mut().push(pa >> 12);
        }
        self.memory.read_u64(pa)
    }
}

impl<M: Memory> Environment for Surroundings<'_, M> {
    fn reference(&mut self, pa: u64) {
        self.counters.walk_refs += 1;
        self.pay(pa);
    }

    fn use_entry(&mut self, pa: u64, dirty: bool) -> bool {
        let used = self.tables.use_entry(pa, dirty);
        // One locked write sets both.
        if used.accessed || used.dirtied {
            self.counters.accessed_writes += u64::from(used.accessed);
            self.counters.dirty_writes += u64::from(used.dirtied);
            self.reference(pa);
        }
        used.dirty_due
    }
}
