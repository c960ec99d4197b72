//! One processor: its structures tied together, and what an emulator drives.
//!
//! For each access the emulator calls [`Processor::quick`], and where that declines, [`Processor::access`]; for each block
//! of code [`Processor::fetch`]; and the functions of `events` for what changes the context. All counts go straight into
//! the record of [`abi::lab`].

mod access;
mod build;
mod check;
mod events;
mod exits;

use std::sync::Arc;

use abi::lab::{Counters, Record, Side};

use super::{
    context::Control,
    dirty::Tables,
    hierarchy::{Hierarchy, LINE},
    memory::Memory,
    space::{Kind, Spaces},
    tlb::{Port, Tags, Tlbs},
    walk::{Agile, Regime, WalkTags, Walker},
    witness::{Stores, Witness},
};
pub use access::{Place, Request};
pub use build::{Pcpus, Shared};
pub use check::{Check, Truth};

/// Cycles that something costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// VMRUN, to the guest's first instruction.
    pub vmrun: u64,
    /// #VMEXIT, to the host's first instruction.
    pub vmexit: u64,
    /// A hit in the second level of TLBs.
    pub second_tlb: [u64; 2],
    /// INVLPG.
    pub invlpg: u64,
    /// A write of CR3.
    pub cr3_write: u64,
    /// An interrupt command, for its sender.
    pub ipi: u64,
    /// A walk's reference, where no caches are modelled.
    pub walk_reference: u64,
}

/// What is compared with the emulator's own translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checking {
    /// Nothing.
    #[default]
    Off,
    /// What misses the TLBs.
    Misses,
    /// Every access.
    All,
}

/// What became of a [quick](Processor::quick) access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quick {
    /// It is done.
    Done,
    /// It goes to this address, whose line is not the newest of its set.
    Line(u64),
    /// Nothing has happened.
    Unknown,
}

/// One processor, over the machine's memory.
pub struct Processor<M> {
    memory: M,
    tables: Arc<Tables>,
    record: &'static mut Record,
    tlbs: Tlbs,
    walker: Walker,
    hierarchy: Option<Hierarchy>,
    spaces: Spaces,
    costs: Costs,
    checking: Checking,
    /// Of a checked machine with several processors, or where agile paging is in force.
    witness: Option<Witness>,
    /// The machine has no other processor.
    is_alone: bool,
    /// Of a checked machine: what a witness is made of.
    stores: Option<Arc<Stores>>,
    /// What is known of the first differences.
    differences: Vec<String>,
    /// The pages of memory that hold the records, whose accesses bring them up to date.
    doorbell: std::ops::Range<u64>,
    side: Side,
    control: Control,
    /// The host's, while a guest runs.
    host: Option<Control>,
    /// The running guest's nested tables.
    nested: Option<u64>,
    regime: Option<Regime>,
    /// Of the running guest, beside the regime of its shadow tables.
    agile: Option<Agile>,
    exit: exits::LastExit,
    asid: u16,
    /// The ASID itself, if it is one of those that share the last place.
    wide_asid: u32,
    tags: Tags,
    walk_tags: WalkTags,
    /// Accesses that are not in the record yet.
    accesses: u64,
    /// Instructions that are in the record.
    instructions: u64,
    tables_epoch: u64,
}

impl<M: Memory> Processor<M> {
    /// The usual access, of one line: the page is in the first-level TLB and no device's, and is none of page tables.
    ///
    /// It is made of two parts, because most of its calls end before the second: callers go on with [`touch`](Self::touch), or,
    /// where this knows nothing, with [`access`](Self::access).
    #[inline(always)]
    pub fn quick<const CACHES: bool>(&mut self, va: u64) -> Quick {
        let Some(frame) = self.tlbs.quick(Port::Data, va, || true) else { return Quick::Unknown };
        self.accesses += 1;
        let pa = frame << 12 | va & 0xfff;
        if CACHES && self.hierarchy.as_ref().is_some_and(|caches| !caches.is_newest(Port::Data, pa)) {
            return Quick::Line(pa);
        }
        Quick::Done
    }

    /// The rest of a [quick](Self::quick) access.
    #[inline(never)]
    pub fn touch(&mut self, pa: u64) {
        self.touch_line(Port::Data, pa);
    }

    #[inline(always)]
    fn touch_line(&mut self, port: Port, pa: u64) {
        if !self.hierarchy.as_mut().is_some_and(|caches| caches.hit(port, pa)) {
            self.touch_cache(port, pa);
        }
    }

    /// A quick access that ends in the line behind its own, at `last`. False: [`access`](Self::access) has to see to it.
    #[inline(always)]
    pub fn quick_crossing(&mut self, va: u64, last: u64, is_store: bool) -> bool {
        if last >> 12 != va >> 12 || self.witness.is_some() {
            return false;
        }
        let Some(frame) = self.tlbs.quick(Port::Data, va, || is_store) else { return false };
        self.accesses += 2;
        self.counters().line_crossings += 1;
        for at in [va, last & !((1 << LINE) - 1)] {
            self.touch_cache(Port::Data, frame << 12 | at & 0xfff);
        }
        true
    }

    /// The usual block of code: it lies at `pa`, as far as the filter knows, and has these lines of one page. False:
    /// [`fetch`](Self::fetch) has to see to it.
    #[inline]
    pub fn quick_fetch(&mut self, va: u64, pa: u64, lines: u64) -> bool {
        if self.tlbs.quick(Port::Code, va, || false) != Some(pa >> 12) {
            return false;
        }
        for line in 0..lines {
            let pa = pa + (line << LINE);
            if self.hierarchy.as_ref().is_some_and(|caches| !caches.is_newest(Port::Code, pa)) {
                self.touch_line(Port::Code, pa);
            }
        }
        true
    }

    /// An access of memory that is not the newest of its set.
    #[inline(never)]
    fn touch_cache(&mut self, port: Port, pa: u64) {
        if let Some(hierarchy) = &mut self.hierarchy {
            let counters = &mut self.record.sides[self.side as usize];
            counters.stall_cycles += hierarchy.access(port, pa, counters);
        }
    }

    /// Whose instructions run.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Whether a guest runs.
    pub fn in_guest(&self) -> bool {
        self.host.is_some()
    }

    /// The registers that it translates with.
    pub fn control(&self) -> Control {
        self.control
    }

    /// The counters, which are up to date after [`sync`](Self::sync).
    pub fn record(&self) -> &Record {
        self.record
    }

    /// The end of the processor: its record may be another's.
    pub fn into_record(self) -> &'static mut Record {
        self.record
    }

    fn counters(&mut self) -> &mut Counters {
        &mut self.record.sides[self.side as usize]
    }

    /// Brings the record up to date; `instructions` were executed in all.
    pub fn sync(&mut self, instructions: u64) {
        let executed = instructions.wrapping_sub(std::mem::replace(&mut self.instructions, instructions));
        let accesses = std::mem::take(&mut self.accesses);
        let counters = self.counters();
        counters.instructions += executed;
        counters.accesses += accesses;
        counters.cycles = counters.instructions + counters.stall_cycles;
    }

    /// All cycles that it was charged so far; `instructions` were executed in all.
    pub fn cycles(&self, instructions: u64) -> u64 {
        self.record.sides.iter().fold(instructions, |sum, side| sum.wrapping_add(side.stall_cycles))
    }

    /// Channels of memory see this processor's time by `time`, which is asked with its stalls until then.
    pub fn set_clock(&mut self, time: Box<dyn Fn(u64) -> u64 + Send>) {
        if let Some(clock) = self.hierarchy.as_mut().and_then(|hierarchy| hierarchy.clock.as_mut()) {
            clock.time = time;
        }
    }

    /// Another side runs.
    fn take_side(&mut self, side: Side) {
        self.side = side;
        if let Some(clock) = self.hierarchy.as_mut().and_then(|hierarchy| hierarchy.clock.as_mut()) {
            let others = Side::ALL.into_iter().filter(|other| *other != side);
            clock.elsewhere = others.map(|other| self.record.sides[other as usize].stall_cycles).sum();
        }
    }

    fn stall(&mut self, cycles: u64) {
        self.counters().stall_cycles += cycles;
    }

    /// Takes the tags of the running address space, after it or its generation changed.
    fn take_tags(&mut self) {
        let tag = |kind| self.spaces.tag(self.asid, kind);
        self.tags = Tags { own: tag(Kind::Linear), global: tag(Kind::Global) };
        let nested = self.spaces.tag(self.exit.nested_asid(self.asid, &self.agile), Kind::Nested);
        self.walk_tags = WalkTags { linear: self.tags.own, nested };
        self.tlbs.switch(self.asid);
    }
}

#[cfg(test)]
#[path = "processor_tests.rs"]
mod tests;
