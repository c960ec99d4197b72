//! The machine under test: guest memory, both engines, and the modelled processor of each.

use super::layout::{HOST, RAM, TABLES};
use super::twins::Omits;
use super::two_dimensional::TwoDimensional;
use super::{Guest, Outcome, Walked, by_p2m, recent};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hfn, Hpa, PAGE_SIZE, PageSize};
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::engine::Engine;
use crate::paging::guest_walk::{PagingKind, PagingState};
use crate::paging::model::Modelled;
use crate::paging::nested::{Nested, NestedOutcome};
use crate::paging::p2m::P2mEntry;
use crate::paging::range::{Changed, Flush};
use crate::paging::shadow::model::ShadowProcessor;
use crate::paging::shadow::{AddressSpace, AgileTimes, Root, Shadow, TlbFlush};

/// The address as the kind of paging sees it.
pub fn linear(kind: PagingKind, gva: Gva) -> Gva {
    if kind == PagingKind::FourLevel { gva } else { Gva(gva.0 & 0xffff_ffff) }
}

/// Why an access stopped, if not by the guest's own tables.
pub struct Stopped {
    pub gpa: Gpa,
    pub access: Access,
}

/// One VCPU's view of memory.
pub struct Machine<'a, F: Modelled> {
    pub(super) arena: &'a Arena,
    /// The guest's memory.
    pub host: VecHost,
    pub(super) nested: Nested<F, &'a Arena>,
    two_dimensional: TwoDimensional,
    pub shadow: Shadow<&'a Arena, F>,
    pub(super) processor: ShadowProcessor,
    pub(super) root: Root,
    /// Shadow tables translate, not nested ones.
    pub is_shadow: bool,
    /// What agile paging takes for the time: the accesses so far.
    pub(super) now: u64,
    /// Its parameters, in accesses.
    pub times: AgileTimes,
    /// Tables above level 1 stay unsync on shadow tables, as on agile paging's machine `commodity`.
    pub keeps_upper: bool,
    /// The processor sets dirty bits in nested tables, so that shadow pages are kept meanwhile.
    pub sets_dirty_bits: bool,
    /// Tables in ROM are walked, by shadow paging.
    pub(super) walks_rom: bool,
    /// Of the processor.
    pub(super) physical_bits: u8,
    /// The last access ended in a page fault that the processor delivered without an exit, maybe by upper entries that it
    /// remembered.
    pub delivered: bool,
    /// What is left out of each change of the P2m.
    pub omits: Omits,
    /// Faults so far. If this counts, the emulator does not know every other of the instructions.
    pub(super) faults: Option<u64>,
    /// Pages that the guest must not write by itself outside of long mode.
    guarded: Vec<Gva>,
}

impl<'a, F: Modelled> Machine<'a, F> {
    /// On shadow tables.
    pub fn new(
        arena: &'a Arena,
        p2m: &Guest,
        state: &PagingState,
        host: VecHost,
        mut shadow: Shadow<&'a Arena, F>,
        walks_rom: bool,
        physical_bits: u8,
    ) -> Machine<'a, F> {
        let nested = Nested::new(arena, PageSize::Size2M, p2m).expect("the arena is large");
        let (root, _the_processor_is_new) =
            shadow.load(AddressSpace::new(p2m, &Walked::new(p2m, &host, !walks_rom), state));
        Machine {
            arena,
            host,
            nested,
            two_dimensional: TwoDimensional::new(F::VENDOR),
            shadow,
            processor: ShadowProcessor::default(),
            root,
            is_shadow: true,
            now: 0,
            times: AgileTimes { window: 50, timeout: 200, start: 100 },
            keeps_upper: false,
            sets_dirty_bits: true,
            walks_rom,
            physical_bits,
            delivered: false,
            omits: Omits::Nothing,
            faults: None,
            guarded: Vec::new(),
        }
    }

    /// The emulator knows only some of the instructions that write to tables.
    pub fn emulate_less(&mut self) {
        self.faults = Some(0);
    }

    /// Guards the page of an address, for another VCPU than those before.
    pub fn guard(&mut self, gva: Gva) {
        let (_loaded_next, flush) = self.shadow.guard(self.guarded.len() as u32, Some(gva));
        self.processor.flush(flush);
        self.guarded.push(gva);
    }

    /// Whether tables that cannot be written are like no memory to walks.
    pub fn is_strict(&self) -> bool {
        !(self.is_shadow && self.walks_rom)
    }

    /// The guest has loaded CR3, or (`everything`) other registers too. Returns whether global translations are gone
    /// too.
    pub fn load(&mut self, p2m: &Guest, state: &PagingState, everything: bool) -> bool {
        if self.is_shadow {
            let memory = Walked::new(p2m, &self.host, !self.walks_rom);
            let (root, flush) = match recent(&mut self.shadow, state) {
                Some(recent) => recent,
                None => self.shadow.load(AddressSpace::new(p2m, &memory, state)),
            };
            self.root = root;
            self.processor.flush(flush);
            flush == TlbFlush::All
        } else {
            let flush = if everything { TlbFlush::All } else { TlbFlush::NonGlobal };
            self.two_dimensional.flush(flush);
            everything
        }
    }

    /// The guest flushes an address.
    pub fn invlpg(&mut self, p2m: &Guest, state: &PagingState, gva: Gva) {
        let broken = self.omits == Omits::Invlpg && F::FILTERS_FAULTS;
        // Without an exit.
        if self.is_shadow && (self.shadow.passes_invlpg() || broken) {
            self.processor.flush(TlbFlush::Page(linear(state.kind(), gva)));
        } else if self.is_shadow {
            let memory = Walked::new(p2m, &self.host, !self.walks_rom);
            let flush = self.shadow.invlpg(&memory, gva);
            self.processor.flush(flush);
        } else {
            self.two_dimensional.flush(TlbFlush::Page(linear(state.kind(), gva)));
        }
    }

    /// The guest flushes everything.
    pub fn flush_all(&mut self, p2m: &Guest) {
        if self.is_shadow {
            let memory = Walked::new(p2m, &self.host, !self.walks_rom);
            let flush = self.shadow.flush_all(&memory);
            self.processor.flush(flush);
        } else {
            self.two_dimensional.flush(TlbFlush::All);
        }
    }

    /// The hypervisor has written to guest memory.
    pub fn written(&mut self, p2m: &Guest, gpa: Gpa, len: u64) {
        // With nested tables writes need not be reported if all pages are dropped afterwards.
        if self.is_shadow || self.sets_dirty_bits || len.is_multiple_of(2) {
            let memory = Walked::new(p2m, &self.host, !self.walks_rom);
            let flush = self.shadow.written(p2m, &memory, gpa, len);
            self.processor.flush(flush);
        }
    }

    /// The P2m has changed; returns whether all that the guest could have cached is flushed, its own changes included.
    pub fn changed(&mut self, p2m: &Guest, state: &PagingState, changes: &[Changed]) -> bool {
        let mut nested_flush = Flush::None;
        for &changed in changes {
            nested_flush = nested_flush.and(self.nested.apply(p2m, changed).expect("the arena is large"));
        }
        let retired = self.nested.take_retired();
        let told: Vec<Changed> = changes.iter().map(|&changed| self.omits.told(changed)).collect();
        let (reload, flush) = self.shadow.apply(&told);
        if self.omits != Omits::Flush {
            self.two_dimensional.flush_nested(nested_flush);
            self.processor.flush(flush);
        }
        retired.free(&self.arena);
        match (self.is_shadow, reload) {
            (false, _) => nested_flush != Flush::None,
            (true, None) => false,
            (true, Some(_loaded_next)) => {
                self.load(p2m, state, true);
                true
            }
        }
    }

    /// Shadow leaves of 2 MiB that lead to this frame are made small.
    pub fn drop_large_leaves(&mut self, frame: Hfn) {
        let flush = self.shadow.drop_large_leaves(core::iter::once(frame));
        self.processor.flush(flush);
    }

    /// Uses the other tables, as a switch in any exit does.
    pub fn switch(&mut self, p2m: &Guest, state: &PagingState, to: Engine) {
        let was_shadow = core::mem::replace(&mut self.is_shadow, to.is_shadow());
        let (_loaded_next, _of_all) = self.shadow.end_agile();
        // As `vcpu::mmu::switch` does: a load of the root alone may leave global translations.
        self.processor.flush(TlbFlush::All);
        if self.is_shadow && was_shadow {
            self.begin_agile(p2m, state, to);
            self.load(p2m, state, true);
        } else if self.is_shadow {
            let (_loaded_next, flush) = if self.sets_dirty_bits {
                let memory = Walked::new(p2m, &self.host, !self.walks_rom);
                let (nested, omits) = (&self.nested, self.omits);
                let is_written = |page| omits != Omits::Compare && nested.is_written(page);
                self.shadow.resume(p2m, &memory, state.features.physical_bits, is_written)
            } else {
                self.shadow.drop_everything()
            };
            self.processor.flush(flush);
            self.begin_agile(p2m, state, to);
            self.load(p2m, state, true);
        } else {
            if self.sets_dirty_bits {
                self.nested.start_dirty_log(self.shadow.tables());
            }
            // The processor comes from other tables.
            self.two_dimensional.flush(TlbFlush::All);
            self.two_dimensional.flush_nested(Flush::All);
        }
    }

    fn begin_agile(&mut self, p2m: &Guest, state: &PagingState, to: Engine) {
        if to == Engine::Agile {
            let memory = Walked::new(p2m, &self.host, !self.walks_rom);
            let flush = self.shadow.begin_agile(self.times, state.features.physical_bits, &memory);
            self.processor.flush(flush);
        } else {
            self.keep_upper(p2m, state, self.keeps_upper);
        }
    }

    /// The VM's mode lets tables above level 1 stay unsync from now on, or not.
    pub fn keep_upper(&mut self, p2m: &Guest, state: &PagingState, keeps: bool) {
        self.keeps_upper = keeps;
        if self.is_shadow {
            let memory = Walked::new(p2m, &self.host, !self.walks_rom);
            let times = keeps.then_some(self.times);
            let flush = self.shadow.set_upper(times, state.features.physical_bits, &memory);
            self.processor.flush(flush);
        }
    }

    /// Time passes, for agile paging.
    fn pass(&mut self, p2m: &Guest) {
        self.now += 1;
        let memory = Walked::new(p2m, &self.host, !self.walks_rom);
        let flush = self.shadow.agile_time(
            &memory,
            self.shadow.root_table(),
            1,
            self.now,
            self.now.is_multiple_of(3),
        );
        self.processor.flush(flush);
    }

    /// An access by the guest: the outcome, and whether the hypervisor is to make it.
    pub fn access(
        &mut self,
        p2m: &Guest,
        state: &PagingState,
        gva: Gva,
        access: Access,
    ) -> Result<(Outcome, bool), String> {
        self.delivered = false;
        if self.is_shadow {
            self.pass(p2m);
            let got = self.shadow_access(p2m, state, gva, access)?;
            let is_open = |gva: &Gva| self.processor.remembered_write(linear(state.kind(), *gva)).is_some();
            if state.kind() != PagingKind::FourLevel && self.guarded.iter().any(is_open) {
                return Err("the processor remembers a guarded page as writable".into());
            }
            return Ok(got);
        }
        let root = self.nested.root().frame();
        let gva = linear(state.kind(), gva);
        match self.two_dimensional.access(self.arena, root, &self.host, state, gva, access) {
            Ok(outcome) => Ok((outcome, false)),
            Err(stopped) => {
                let said =
                    self.nested.fault(stopped.gpa, stopped.access, p2m).map_err(|e| format!("{e:?}"))?;
                if let NestedOutcome::Filled(flush) = said
                    && p2m.may_be_absent()
                {
                    // A page that has come back, or has moved. The tables of all others are complete.
                    self.two_dimensional.flush_nested(flush);
                    self.nested.take_retired().free(&self.arena);
                    return self.access(p2m, state, gva, access);
                }
                let wanted = match p2m.translate(stopped.gpa) {
                    P2mEntry::Mmio => NestedOutcome::Mmio,
                    P2mEntry::Hole | P2mEntry::Absent { .. } => NestedOutcome::NotMapped,
                    P2mEntry::Rom { .. } => NestedOutcome::RomWrite,
                    P2mEntry::Ram { .. } => NestedOutcome::WriteProtected,
                    P2mEntry::Local { .. } => unreachable!("nothing here is mapped to a cache"),
                };
                if said != wanted {
                    return Err(format!("the nested engine says {said:?}, should be {wanted:?}"));
                }
                Ok((by_p2m(p2m, stopped.gpa, stopped.access), false))
            }
        }
    }

    /// Where the hypervisor reads code for an address without a walk of the guest's tables, if it does.
    pub fn code(&self, gva: Gva, access: Access) -> Option<Hpa> {
        let reads = self.is_shadow && access.execute;
        reads.then(|| self.shadow.code(gva, access.user)).flatten()
    }

    /// The engine's own check, and that the processor cannot write to a write-protected table.
    pub fn check(&self, p2m: &Guest, state: &PagingState) -> Result<(), String> {
        if !self.is_shadow || self.omits.is_unchecked() {
            return Ok(());
        }
        let memory = Walked::new(p2m, &self.host, !self.walks_rom);
        self.shadow.check(p2m, &memory, state).map_err(|disagreement| disagreement.to_string())?;
        // Both places of the tables.
        for page in (0..TABLES).chain(RAM / PAGE_SIZE..RAM / PAGE_SIZE + TABLES) {
            let frame = Hfn(HOST.frame().0 + page);
            if self.shadow.pool.is_write_protected(frame) && self.processor.can_write(frame.base()) {
                return Err(format!("{frame:?}, a write-protected table, is remembered as writable"));
            }
        }
        Ok(())
    }
}
