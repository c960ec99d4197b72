//! What a pager knows of each page, under its lock.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::config::Replacement as PolicyName;
use lz4_flex::block::CompressTable;

use super::arrivals::Arrivals;
use super::counts::Counts;
use super::disk::Disk;
use super::place::{Packed, Place};
use super::store::Store;
use super::{BATCH, Budget, Failure, FrameMemory, Pages, Resident, Span};
use crate::arch::addr::{Gfn, Hfn, PAGE_SIZE};
use crate::mem::objects::Objects;
use crate::mem::pieces::{OutOfMemory, Pieces};
use crate::mem::replace::{AccessBits, NONE, Object, Page, Slot};
use crate::mem::replacement::Replacement;

pub(super) const PAGE: usize = PAGE_SIZE as usize;
/// What compression may write: lz4 makes a page that does not compress a little longer.
const PACKED: usize = PAGE + PAGE / 8;

/// A page in a frame. Frame numbers of 32 bits are 16 TiB; [`NONE`] is none, as a page's number too.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InFrame {
    pub(super) number: u32,
    pub(super) frame: u32,
}

/// See the module.
pub(super) struct State {
    pub(super) span: Span,
    pub(super) budget: Budget,
    pub(super) memory: Box<dyn FrameMemory>,
    pub(super) places: Pieces<Packed>,
    /// By the policy's slots, of which the first `resident` are in use.
    pub(super) slots: Pieces<InFrame>,
    pub(super) resident: u32,
    policy: Replacement,
    /// Which object each page is of, for a policy that asks.
    pub(super) objects: Option<Arc<Objects>>,
    pub(super) arrivals: Arrivals,
    /// Places in slots and among the arrivals without a frame.
    pub(super) vacant: u32,
    /// Pages on their way out, and frames that are no page's any more.
    pub(super) leaving: Vec<InFrame>,
    /// Frames for pages, of nothing.
    pub(super) free: Vec<u32>,
    pub(super) store: Store,
    pub(super) stored: u64,
    pub(super) disk: Option<Disk>,
    /// The page after which the next ones go from the store to the disk.
    pub(super) spilled: u32,
    /// Where the scan for policies that count accesses goes on.
    scanned: u32,
    pub(super) counts: Counts,
    pub(super) table: CompressTable,
    pub(super) plain: [u8; PAGE],
    pub(super) packed: [u8; PACKED],
}

/// Access bits by slot.
struct Bits<'a, P> {
    pages: &'a mut P,
    slots: &'a Pieces<InFrame>,
    span: Span,
}

impl<P: Pages> AccessBits for Bits<'_, P> {
    fn take(&mut self, slot: Slot) -> bool {
        let page = self.slots[slot as usize];
        if page.is_vacant() {
            return false;
        }
        let page = resident(self.span, page);
        !self.pages.is_evictable(page) || self.pages.take_accessed(page)
    }
}

/// While slots are free no page is evicted, and bits stay where they are: a policy that asks for some finds them when it evicts.
struct NoBits;

impl AccessBits for NoBits {
    fn take(&mut self, _: Slot) -> bool {
        false
    }
}

fn resident(span: Span, page: InFrame) -> Resident {
    Resident { page: span.page(page.number), frame: Hfn(page.frame.into()) }
}

impl State {
    pub(super) fn new(
        span: Span,
        budget: Budget,
        policy: PolicyName,
        memory: Box<dyn FrameMemory>,
    ) -> Result<State, OutOfMemory> {
        let slots = budget.resident.max(1);
        let mut arrivals = Arrivals::default();
        arrivals.reserve(budget.reserve as usize)?;
        let mut free = Vec::new();
        free.try_reserve(budget.reserve as usize).map_err(|_| OutOfMemory)?;
        let mut leaving = Vec::new();
        leaving.try_reserve(BATCH).map_err(|_| OutOfMemory)?;
        Ok(State {
            span,
            budget: Budget { resident: slots, ..budget },
            memory,
            places: Pieces::new(span.pages() as usize, Packed::default)?,
            slots: Pieces::new(slots as usize, InFrame::default)?,
            resident: 0,
            policy: Replacement::new(policy, slots)?,
            objects: Objects::for_policy(policy, span)?,
            arrivals,
            vacant: 0,
            leaving,
            free,
            store: Store::new(budget.store)?,
            stored: 0,
            disk: None,
            spilled: 0,
            scanned: 0,
            counts: Counts::default(),
            table: CompressTable::small(),
            plain: [0; PAGE],
            packed: [0; PACKED],
        })
    }

    pub(super) fn counts(&self) -> Counts {
        let in_frames = u64::from(self.in_use()) + self.leaving.len() as u64;
        Counts {
            resident: in_frames,
            stored: self.stored,
            store_frames: self.store.frames().into(),
            on_disk: self.disk.as_ref().map_or(0, |disk| disk.pages),
            disk_reads: self.disk.as_ref().map_or(0, |disk| disk.reads),
            disk_writes: self.disk.as_ref().map_or(0, |disk| disk.writes),
            ..self.counts
        }
    }

    /// See [`Pager::bring_in`](super::Pager::bring_in).
    pub(super) fn bring_in(&mut self, page: Gfn, attach: &mut dyn FnMut(Hfn)) -> Result<(), Failure> {
        let Some(number) = self.span.number(page) else { return Ok(()) };
        let place = self.places[number as usize].get();
        match place {
            // Another processor was first.
            Place::Resident(_) | Place::Arrived(_)
                if self.entry(place).is_none_or(|page| !page.is_vacant()) =>
            {
                return Ok(());
            }
            Place::Leaving => {
                self.rescue(number, attach);
                return Ok(());
            }
            Place::Zero { .. }
            | Place::Stored(_)
            | Place::OnDisk(_)
            | Place::Resident(_)
            | Place::Arrived(_) => {}
        }
        let begin = self.memory.ticks();
        self.counts.faults += 1;
        let was_evicted =
            matches!(place, Place::Zero { evicted: true } | Place::Stored(_) | Place::OnDisk(_));
        self.counts.refaults += u64::from(was_evicted);
        // Before a frame is taken: without room in the list it would be lost.
        self.arrivals.reserve(1 + self.leaving.len()).map_err(|_| Failure::NoFrame)?;
        let frame = self.take_frame().ok_or(Failure::NoFrame)?;
        if let Err(failure) = self.fill(place, Hfn(frame.into())) {
            self.release_frame(frame);
            return Err(failure);
        }
        self.forget_stored(place);
        self.counts.from_disk += u64::from(matches!(place, Place::OnDisk(_)));
        attach(Hfn(frame.into()));
        match self.entry(place) {
            Some(page) => {
                page.frame = frame;
                self.vacant -= 1;
            }
            None => self.settle_or_queue(InFrame { number, frame }),
        }
        self.counts.came_in += 1;
        self.counts.in_ticks += self.memory.ticks().wrapping_sub(begin);
        Ok(())
    }

    /// A frame for a page.
    fn take_frame(&mut self) -> Option<u32> {
        if let Some(frame) = self.free.pop() {
            return Some(frame);
        }
        let frame = self.memory.take()?;
        match u32::try_from(frame.0) {
            Ok(number) => Some(number),
            Err(_) => {
                self.memory.give_back(frame);
                None
            }
        }
    }

    /// A frame is no page's any more. Beyond the reserve, which a burst of arrivals may have exceeded, it goes back.
    fn release_frame(&mut self, frame: u32) {
        if self.free.len() < self.budget.reserve as usize {
            self.free.push(frame);
        } else {
            self.memory.give_back(Hfn(frame.into()));
        }
    }

    /// While slots are free, a page gets one at once; otherwise when another has been chosen for eviction.
    fn settle_or_queue(&mut self, page: InFrame) {
        if self.resident < self.budget.resident {
            let placement = self.policy.fault(Page(page.number.into()), self.object(page), &mut NoBits);
            let old = self.put(placement.slot, page, placement.evicts);
            // No policy evicts while slots are free; one that did would lose a page here.
            old.into_iter().for_each(|old| self.queue(old));
        } else {
            self.queue(page);
        }
    }

    fn object(&self, page: InFrame) -> Object {
        Objects::object_of(self.objects.as_ref(), page.number)
    }

    fn queue(&mut self, page: InFrame) {
        let entry = self.arrivals.push(page);
        self.places[page.number as usize] = Packed::new(Place::Arrived(entry));
    }

    /// Puts a page into a slot; the page that was there, if it is evicted.
    fn put(&mut self, slot: Slot, page: InFrame, evicts: bool) -> Option<InFrame> {
        let old = core::mem::replace(&mut self.slots[slot as usize], page);
        self.places[page.number as usize] = Packed::new(Place::Resident(slot));
        self.resident += u32::from(!evicts);
        evicts.then_some(old)
    }

    /// A leaving page is accessed: it stays.
    fn rescue(&mut self, number: u32, attach: &mut dyn FnMut(Hfn)) {
        let Some(at) = self.leaving.iter().position(|page| page.number == number) else { return };
        let page = self.leaving.swap_remove(at);
        self.counts.faults += 1;
        self.counts.rescued += 1;
        attach(Hfn(page.frame.into()));
        self.queue(page);
    }

    /// See [`Pager::choose`](super::Pager::choose).
    pub(super) fn choose(&mut self, pages: &mut impl Pages) -> Vec<Resident> {
        let mut chosen = Vec::new();
        // All of them may come back.
        if self.arrivals.reserve(BATCH).is_err() {
            return chosen;
        }
        // As many as have arrived: one that cannot be evicted queues up behind them.
        for _ in 0..self.arrivals.len().min(BATCH - self.leaving.len().min(BATCH)) {
            if !self.is_over(1) {
                break;
            }
            // Before anything changes: a page without room in a list would be lost.
            if chosen.try_reserve(1).is_err() || self.leaving.try_reserve(1).is_err() {
                break;
            }
            let Some(page) = self.arrivals.pop() else { break };
            if page.is_vacant() {
                self.forget_vacant(page);
                continue;
            }
            let object = self.object(page);
            let mut bits = Bits { pages: &mut *pages, slots: &self.slots, span: self.span };
            let placement = self.policy.fault(Page(page.number.into()), object, &mut bits);
            // The access that brought it in counts no more.
            let _its_own = pages.take_accessed(resident(self.span, page));
            let Some(old) = self.put(placement.slot, page, placement.evicts) else { continue };
            if old.is_vacant() {
                self.forget_vacant(old);
                continue;
            }
            let victim = resident(self.span, old);
            if pages.is_evictable(victim) {
                self.places[old.number as usize] = Packed::new(Place::Leaving);
                self.leaving.push(old);
                chosen.push(victim);
            } else {
                self.queue(old);
            }
        }
        if self.policy.counts_touches() {
            self.scan(pages);
        }
        chosen
    }

    /// Tells a policy that counts accesses of some more of them.
    fn scan(&mut self, pages: &mut impl Pages) {
        for _ in 0..(4 * BATCH as u32).min(self.resident) {
            self.scanned = if self.scanned + 1 < self.resident { self.scanned + 1 } else { 0 };
            let page = self.slots[self.scanned as usize];
            if page.is_vacant() {
                continue;
            }
            let page = resident(self.span, page);
            if pages.is_evictable(page) && pages.take_accessed(page) {
                self.policy.touch(self.scanned);
            }
        }
    }

    /// Stores a page that is leaving; whether there was one. If there is no room it stays, see [`Pager::store`](super::Pager::store).
    pub(super) fn store_one(&mut self, attach: &mut dyn FnMut(Resident)) -> Result<bool, Failure> {
        let Some(page) = self.leaving.pop() else { return Ok(false) };
        if page.number == NONE {
            self.release_frame(page.frame);
            return Ok(true);
        }
        let begin = self.memory.ticks();
        let frame = Hfn(page.frame.into());
        self.memory.read(frame.base(), &mut self.plain);
        let place = if self.plain.iter().all(|byte| *byte == 0) {
            self.counts.zero_pages += 1;
            Ok(Place::Zero { evicted: true })
        } else {
            self.keep(frame).map(Place::Stored)
        };
        let place = match place {
            Ok(place) => place,
            Err(failure) => {
                // Nothing is lost: the page is there as before.
                attach(resident(self.span, page));
                self.queue(page);
                return Err(failure);
            }
        };
        self.stored += u64::from(matches!(place, Place::Stored(_)));
        self.places[page.number as usize] = Packed::new(place);
        self.release_frame(page.frame);
        self.counts.went_out += 1;
        self.counts.out_ticks += self.memory.ticks().wrapping_sub(begin);
        Ok(true)
    }

    /// See [`Pager::reset`](super::Pager::reset).
    pub(super) fn reset(&mut self) {
        // The last first, so that slots are given out from the first on again. What the policy remembers of pages that are gone stays.
        (0..self.resident).rev().for_each(|slot| self.policy.remove(slot));
        self.give_all_back();
        self.places.for_each_mut(|place| *place = Packed::default());
        (self.scanned, self.spilled) = (0, 0);
    }

    fn give_all_back(&mut self) {
        let resident = core::mem::take(&mut self.resident);
        let pages = (0..resident).map(|slot| self.slots[slot as usize]);
        for page in pages.chain(self.arrivals.drain()).chain(self.leaving.drain(..)) {
            if !page.is_vacant() {
                self.memory.give_back(Hfn(page.frame.into()));
            }
        }
        self.vacant = 0;
        for frame in self.free.drain(..) {
            self.memory.give_back(Hfn(frame.into()));
        }
        self.store.clear(&mut *self.memory);
        self.stored = 0;
        self.disk.iter_mut().for_each(Disk::clear);
    }
}

/// All frames go back, wiped.
impl Drop for State {
    fn drop(&mut self) {
        self.give_all_back();
    }
}
