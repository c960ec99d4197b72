//! Agile paging: shadow tables some of whose parts are *nested*.
//!
//! A guest table is *shadowed* (write-protected; its shadow pages are in step) or *nested*: the guest writes it without exits, at
//! any level, and its shadow pages are what a TLB and paging-structure caches would be. Faults fill them, by walks of the
//! guest's tables from the root; the guest's own flushes drop what does not hold any more ([`sync`]). A link from a
//! shadowed page to a nested one carries the switching bit ([`abi::agile::SWITCHING`]), at which the proposed processor would go on
//! in the guest's table, with nested translation.
//!
//! All shadow pages of a guest table are nested, or none is. A table below a nested one is nested, too, unless it is reached
//! from a shadowed one as well. Tables become nested at their second write within a window, those above level 1 later ([`moves`]), or with an address space
//! that has just begun, and shadowed again when they have not been written for a while ([`time`]).
//!
//! A nested page is on the list of unsync pages, and is never the reason for a write-protection; so all that holds of unsync pages
//! holds of it. Only tables of four levels become nested: in the entries of other kinds of paging bit 58 is reserved.
//!
//! On the machine `commodity` only some tables above level 1 do, in address spaces on shadow tables ([`upper`]).

mod list;
mod moves;
mod sync;
mod time;
mod upper;

use super::fault::AddressSpace;
use super::pool::PageId;
use super::root::Recent;
use super::shootdown::View;
use super::slow_path::index;
use super::{Reload, Shadow, TlbFlush, Tuning};
use crate::arch::addr::{Gpa, Gva, Hfn};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::p2m::P2m;
use abi::telemetry::key;
use alloc::vec::Vec;
pub use list::AgileSpace;
use time::Space;
pub use upper::UpperCounts;

/// Nested pages at a time at most. A table that would exceed this stays shadowed.
const MAX_NESTED: usize = 4096;
/// Tables whose first write is remembered.
const MAX_WRITES: usize = 256;

/// The policy's parameters, in nanoseconds of the VM's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgileTimes {
    /// A second write to a table within this makes it nested; one above level 1 takes more of them.
    pub window: u64,
    /// A nested table that has not changed for this long becomes shadowed.
    pub timeout: u64,
    /// An address space is nested from the root until it has run for this long. 0: it begins shadowed.
    pub start: u64,
}

impl From<abi::policy::Agile> for AgileTimes {
    fn from(milliseconds: abi::policy::Agile) -> AgileTimes {
        let nanos = |ms: u32| u64::from(ms) * 1_000_000;
        AgileTimes {
            window: nanos(milliseconds.window_ms),
            timeout: nanos(milliseconds.timeout_ms),
            start: nanos(milliseconds.start_ms),
        }
    }
}

/// What agile paging has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AgileCounts {
    /// Tables that became nested by their writes, those below them included.
    pub to_nested: u64,
    /// Tables that became shadowed again.
    pub to_shadow: u64,
    /// Address spaces that began nested from the root.
    pub roots_nested: u64,
    /// Of these: those that became shadowed after their first time.
    pub roots_to_shadow: u64,
    /// Writes that have exited and made nothing nested.
    pub first_writes: u64,
    /// Shadow pages of guest tables now, by kind.
    pub nested: u64,
    pub shadowed: u64,
}

impl AgileCounts {
    /// All counters with their names in statistics and telemetry.
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            (key::NESTED_TABLES, self.nested),
            (key::SHADOWED_TABLES, self.shadowed),
            (key::FIRST_WRITES, self.first_writes),
            (key::TABLES_TO_NESTED, self.to_nested),
            (key::TABLES_TO_SHADOW, self.to_shadow),
            (key::ROOTS_NESTED, self.roots_nested),
            (key::ROOTS_TO_SHADOW, self.roots_to_shadow),
        ]
    }
}

/// The state of the policy.
#[derive(Debug)]
pub(super) struct Agile {
    times: AgileTimes,
    /// Of the processor's physical addresses.
    physical_bits: u8,
    /// Only tables of levels 2 and 3 become nested: see [`upper`].
    upper_only: bool,
    /// The oldest goes first.
    writes: Vec<moves::Writes>,
    spaces: Vec<Space>,
    /// When tables are compared next; 0: that is not known yet.
    next_look: u64,
    /// They have been, and are to be moved.
    is_compared: bool,
    /// The page about to be made is reached from a nested one.
    below_nested: bool,
    /// What was in force before.
    tuning: Tuning,
}

impl Agile {
    fn new(times: AgileTimes, physical_bits: u8, upper_only: bool, tuning: Tuning) -> Agile {
        Agile {
            times,
            physical_bits,
            upper_only,
            writes: Vec::with_capacity(MAX_WRITES),
            spaces: Vec::with_capacity(if upper_only { 0 } else { time::MAX_SPACES }),
            next_look: 0,
            is_compared: false,
            below_nested: false,
            tuning,
        }
    }
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Agile paging is in force from now on, with all tables shadowed at first; if it is already, it has these parameters now.
    /// `physical_bits`: of the processor.
    pub fn begin_agile(
        &mut self,
        times: AgileTimes,
        physical_bits: u8,
        memory: &impl GuestMemory,
    ) -> TlbFlush {
        self.begin();
        self.end_upper(memory);
        if let Some(agile) = &mut self.agile {
            agile.times = times;
            (agile.next_look, agile.is_compared) = (0, false);
            agile.spaces.iter_mut().for_each(|space| space.may_be_nested = true);
            return TlbFlush::None;
        }
        self.agile = Some(Agile::new(times, physical_bits, false, self.tuning));
        // What the guest writes is decided by the policy alone.
        self.tuning.unsync_after = u8::MAX;
        self.unsync.reserve(MAX_NESTED + super::sync::MAX_UNSYNC);
        while let Some(page) = self.unsync.first() {
            self.write_protect(memory, Hfn(page.number));
        }
        self.pool.upper_unsync = false;
        self.pool.take_owed_and(TlbFlush::None)
    }

    /// Agile paging is not in force any more; the machine `commodity` is left alone. No VCPU runs on these tables; each loads its
    /// root before it does.
    pub fn end_agile(&mut self) -> (Reload, TlbFlush) {
        self.begin();
        if self.is_modelled()
            && let Some(agile) = self.agile.take()
        {
            self.tuning = agile.tuning;
            self.recent = Recent::default();
            self.views.iter_mut().for_each(View::forget_roots);
            self.pool.forget_roots();
            self.dying = None;
            for at in 0..self.unsync.len() {
                let id = self.unsync[at].id;
                if self.pool.page(id).nested {
                    self.pool.release(id);
                }
            }
            self.forget_evicted();
            self.pool.forget_nested_below();
            self.note_upper_unsync();
            self.pool.forget_paths();
        }
        (Reload, self.pool.take_owed_and(TlbFlush::None))
    }

    /// A write of the guest's to a write-protected table, which has exited: whether the guest may write there by itself from now
    /// on, and what is to be flushed first. Otherwise the write is to be emulated; where it `must` not be, a first write is enough.
    pub fn agile_write(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        gpa: Gpa,
        now: u64,
        must: bool,
    ) -> Option<TlbFlush> {
        self.agile.as_ref()?;
        self.begin();
        let frame = p2m.translate_to_write(gpa).writable()?.frame();
        // What the machine `commodity` leaves as it is, it does not count.
        if !self.pool.is_write_protected(frame)
            || !self.is_modelled() && !self.can_nest(frame)
            || !self.is_enough_writes(frame, now) && !must
        {
            return None;
        }
        if !self.nest(frame) {
            return None;
        }
        // The fault has been counted as one, and the guest makes the write by itself.
        self.statistics.emulated_writes = self.statistics.emulated_writes.saturating_sub(1);
        Some(self.pool.take_owed_and(TlbFlush::None))
    }

    /// Whether the walk of an address comes to a nested table by links that are there: the proposed processor does
    /// by itself what has to be done for the address there.
    pub fn is_in_nested_part(&self, gva: Gva) -> bool {
        let mut next = self.pool.root();
        while let Some(id) = next {
            let page = self.pool.page(id);
            if page.nested {
                return true;
            }
            next =
                if page.key.level() > 1 { self.pool.child(id, index(gva, page.key.level())) } else { None };
        }
        false
    }

    /// Where the guest's root table is, with four levels.
    pub fn root_table(&self) -> Option<Hfn> {
        let key = self.pool.page(self.pool.root()?).key;
        key.is_table().then(|| Hfn(key.number()))
    }

    /// Whether the address space in use is walked nested from its root.
    pub fn is_root_nested(&self) -> bool {
        self.pool.root().is_some_and(|root| self.pool.page(root).nested)
    }

    /// Whether agile paging is in force, as the modelled processor would walk it.
    #[inline(always)]
    pub(super) fn is_modelled(&self) -> bool {
        self.agile.as_ref().is_some_and(|agile| !agile.upper_only)
    }

    /// Where what is done here is counted.
    fn counts(&mut self) -> &mut AgileCounts {
        if self.is_modelled() { &mut self.agile_counts } else { &mut self.upper_counts }
    }

    /// The same without the tables that there are now, which takes no look at all pages.
    pub fn agile_moves(&self) -> AgileCounts {
        self.agile_counts
    }

    /// What agile paging has done.
    pub fn agile_counts(&self) -> AgileCounts {
        let (mut nested, mut shadowed) = (0, 0);
        for id in 0..self.pool.end() {
            let page = self.pool.page(id);
            if page.is_in_use() && page.key.is_table() {
                *(if page.nested { &mut nested } else { &mut shadowed }) += 1;
            }
        }
        AgileCounts { nested, shadowed, ..self.agile_counts }
    }

    /// Whether all tables above level 1 on the path of an address are write-protected, as far as they are linked.
    #[cold]
    pub(super) fn is_path_protected(&self, gva: Gva) -> bool {
        if self.agile.is_none() {
            return false;
        }
        let mut next = self.pool.root();
        while let Some(id) = next {
            let page = self.pool.page(id);
            let level = page.key.level();
            if level == 1 || page.unsync {
                return level == 1;
            }
            next = self.pool.child(id, index(gva, level));
        }
        true
    }

    /// The page that is about to be made is reached from this one.
    #[inline(always)]
    pub(super) fn note_parent(&mut self, parent: PageId) {
        if let Some(agile) = &mut self.agile {
            agile.below_nested = self.pool.page(parent).nested;
        }
    }

    /// The root for these registers, if there is a page for it already.
    pub(super) fn existing_root(
        &self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
    ) -> Option<PageId> {
        let (key, _) = super::root::root_key(space.p2m, space.state, self.current_vcpu, self.tree);
        self.pool.find(key)
    }
}
