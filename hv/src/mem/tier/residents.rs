//! A VM's pages in fast memory as a policy of [`replace`](crate::mem::replace) has them: in slots, with access bits.
//!
//! [`State::scan_by_policy`](super::state::State::scan_by_policy) calls it in each pass. An access bit is what samples say: it is set if the
//! page was accessed in a sample since the policy has looked at it last, or since it came. All tables are made once, when the VM is
//! built, for all of the fast memory; how many frames the policy may fill follows the VM's share.
//!
//! What must hold when a pass begins: the pages here are those of the list that are in fast memory, without those that are to leave,
//! and with those that are still to come.

use alloc::sync::Arc;

use abi::config::Replacement as Name;
use records::tiers::WINDOWS;

use super::large::PieceList;
use super::{Grain, Heat, MAX_MOVES};
use crate::arch::addr::Gfn;
use crate::mem::objects::Objects;
use crate::mem::pager::Span;
use crate::mem::pieces::{OutOfMemory, Pieces};
use crate::mem::replace::{AccessBits, NONE, Page, Slot};
use crate::mem::replacement::Replacement;

/// Frames of fast memory that a policy orders, at most: 1 GiB. A search may go over all of them where no access bit is asked for, and a
/// pass holds locks meanwhile.
pub const MOST_FRAMES: u32 = 1 << 18;
/// Entries of the policy's tables after which a pass hands it no more pages, and after which it finds no access bit set: a search takes the
/// next page that it looks at, and the bits that are left are for later passes.
pub const MAX_STEPS: u32 = 1 << 14;
/// Slots that a pass looks at for policies that count accesses; the next pass goes on with others.
const MAX_TOUCHES: u32 = 4096;

/// In place of a page's slot: it was to come, and the tables did not allow it.
const REFUSED: u32 = NONE - 1;
/// One that was refused may come in one pass of this many. A prime: a page at which every second pass looks has its turn, too.
const AGAIN: u32 = 61;

/// The page in a slot.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// [`NONE`]: the slot is free.
    page: u32,
    /// The pass in which the policy has taken its access bit, or in which it came.
    looked: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Residents {
    name: Name,
    policy: Replacement,
    /// Which object each page is of, for a policy that asks.
    objects: Option<Arc<Objects>>,
    slots: Pieces<Known>,
    /// The slot of each page of the VM, [`NONE`] or [`REFUSED`].
    places: Pieces<u32>,
    count: u32,
    /// Pages that may be here without an eviction.
    limit: u32,
    /// The slot that is to be looked at next for policies that count accesses.
    cursor: u32,
    /// Passes so far.
    pass: u32,
    /// Entries that the policy has gone over in this pass.
    steps: u32,
}

/// The access bits of one pass.
struct Bits<'a, H> {
    slots: &'a mut Pieces<Known>,
    steps: &'a mut u32,
    pass: u32,
    /// What samples say; `None`: no bit is set, and none is cleared.
    samples: Option<(&'a Span, &'a H, &'a PieceList)>,
}

impl<H: Heat> AccessBits for Bits<'_, H> {
    fn take(&mut self, slot: Slot) -> bool {
        *self.steps = self.steps.saturating_add(1);
        let Some((span, heat, pieces)) = self.samples.filter(|_| *self.steps <= MAX_STEPS) else {
            return false;
        };
        let known = &mut self.slots[slot as usize];
        let samples = self.pass.wrapping_sub(core::mem::replace(&mut known.looked, self.pass)).min(32);
        if known.page == NONE || samples == 0 {
            return false;
        }
        pieces.waits(known.page) || heat.history(span.page(known.page)) >> (32 - samples) != 0
    }

    fn search(&mut self, entries: u32) {
        *self.steps = self.steps.saturating_add(entries);
    }
}

impl Residents {
    /// Pages that the policy has room for: beside those in all of the fast memory, those that are still to come.
    fn capacity(pages: u32, fast: u32) -> u32 {
        fast.min(pages).saturating_add(MAX_MOVES as u32)
    }

    /// Of a VM with its RAM at `span` beside `fast` frames of fast memory.
    ///
    /// # Errors
    /// No memory for its tables: [`Residents::bytes_for`].
    pub fn new(name: Name, span: Span, fast: u32) -> Result<Residents, OutOfMemory> {
        let pages = span.pages();
        let capacity = Self::capacity(pages, fast);
        Ok(Residents {
            name,
            policy: Replacement::new(name, capacity)?,
            objects: Objects::for_policy(name, span)?,
            slots: Pieces::new(capacity as usize, || Known { page: NONE, looked: 0 })?,
            places: Pieces::new(pages as usize, || NONE)?,
            count: 0,
            limit: capacity,
            cursor: 0,
            pass: 0,
            steps: 0,
        })
    }

    /// Bytes of the heap, and of other host memory, that it takes at most.
    pub const fn bytes_for(name: Name, pages: u32, fast: u32) -> (u64, u64) {
        let capacity = if fast < pages { fast } else { pages } as u64 + MAX_MOVES as u64;
        let objects = Objects::bytes_for(name, pages as u64);
        // The policy's tables of fixed size, the largest of them APR's objects.
        (capacity * Replacement::heap_bytes(name) + (64 << 10), capacity * 8 + pages as u64 * 4 + objects)
    }

    /// The objects of pages, if the policy asks for them: who hears of the guest's regions writes there.
    pub fn objects(&self) -> Option<&Arc<Objects>> {
        self.objects.as_ref()
    }

    /// The policy's name.
    pub fn name(&self) -> Name {
        self.name
    }

    /// Pages.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Entries that the policy has gone over in this pass.
    #[cfg(test)]
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Whether the policy has gone over [`MAX_STEPS`] entries in this pass.
    pub fn has_searched(&self) -> bool {
        self.steps >= MAX_STEPS
    }

    /// Whether the page is here.
    pub fn has(&self, page: u32) -> bool {
        self.slot(page).is_some()
    }

    fn slot(&self, page: u32) -> Option<Slot> {
        let is_page = (page as usize) < self.places.len();
        is_page.then(|| self.places[page as usize]).filter(|slot| *slot < REFUSED)
    }

    /// Whether the page may come: not if it was refused lately, since another one would leave for nothing.
    pub fn may_come(&self, page: u32) -> bool {
        let is_refused = (page as usize) < self.places.len() && self.places[page as usize] == REFUSED;
        !is_refused || self.pass.wrapping_add(page).is_multiple_of(AGAIN)
    }

    /// The page was to come and could not.
    pub fn refuse(&mut self, page: u32) {
        self.remove(page);
        if (page as usize) < self.places.len() {
            self.places[page as usize] = REFUSED;
        }
    }

    /// A pass begins, after one more sample.
    pub fn begin(&mut self) {
        self.pass = self.pass.wrapping_add(1);
        self.steps = 0;
    }

    /// This many pages may be here from now on; what is above that stays for the time being.
    pub fn limit(&mut self, frames: u32) {
        if frames != self.limit {
            self.limit = frames;
            self.policy.limit(frames);
        }
    }

    fn bits<'a, H: Heat>(
        &'a mut self,
        samples: Option<(&'a Span, &'a H, &'a PieceList)>,
    ) -> (&'a mut Replacement, Bits<'a, H>) {
        let Residents { policy, slots, steps, pass, .. } = self;
        (policy, Bits { slots, steps, pass: *pass, samples })
    }

    /// Tells the policy what was accessed, if it counts accesses.
    pub fn touch(&mut self, span: &Span, heat: &impl Heat, pieces: &PieceList) {
        if !self.policy.counts_touches() {
            return;
        }
        let mut slot = self.cursor;
        let slots = self.slots.len() as u32;
        let (policy, mut bits) = self.bits(Some((span, heat, pieces)));
        for _ in 0..slots.min(MAX_TOUCHES) {
            if bits.take(slot) {
                policy.touch(slot);
            }
            slot = if slot + 1 < slots { slot + 1 } else { 0 };
        }
        self.cursor = slot;
        self.steps = 0;
    }

    /// A page that is not here is to come: the page that is to leave for it, if one is.
    pub fn admit(&mut self, page: u32, span: &Span, heat: &impl Heat, pieces: &PieceList) -> Option<u32> {
        self.place(page, Some((span, heat, pieces)))
    }

    /// A page has come to fast memory otherwise: one of a piece that was split, or one that could not leave. None leaves for it.
    pub fn admit_present(&mut self, page: u32) {
        if self.count as usize >= self.slots.len() {
            debug_assert!(false, "more pages than fast memory and moves have");
            return;
        }
        let limit = self.limit;
        self.policy.limit(limit.max(self.count + 1));
        self.place::<NoHeat>(page, None);
        self.policy.limit(limit);
    }

    fn place<H: Heat>(&mut self, page: u32, samples: Option<(&Span, &H, &PieceList)>) -> Option<u32> {
        if page as usize >= self.places.len() || self.has(page) {
            return None;
        }
        let object = Objects::object_of(self.objects.as_ref(), page);
        let (policy, mut bits) = self.bits(samples);
        let placed = policy.fault(Page(page.into()), object, &mut bits);
        let now = Known { page, looked: self.pass };
        let before = core::mem::replace(&mut self.slots[placed.slot as usize], now);
        self.places[page as usize] = placed.slot;
        if placed.evicts {
            self.places[before.page as usize] = NONE;
            return Some(before.page);
        }
        self.count += 1;
        None
    }

    /// Has the policy name a page that is to leave for no other.
    pub fn evict(&mut self, span: &Span, heat: &impl Heat, pieces: &PieceList) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let (policy, mut bits) = self.bits(Some((span, heat, pieces)));
        let slot = policy.evict(&mut bits);
        Some(self.clear(slot))
    }

    /// The page is not in fast memory any more, or does not come.
    pub fn remove(&mut self, page: u32) {
        if let Some(slot) = self.slot(page) {
            self.policy.remove(slot);
            self.clear(slot);
        } else if (page as usize) < self.places.len() {
            self.places[page as usize] = NONE;
        }
    }

    fn clear(&mut self, slot: Slot) -> u32 {
        self.count -= 1;
        let page = core::mem::replace(&mut self.slots[slot as usize].page, NONE);
        self.places[page as usize] = NONE;
        page
    }

    /// All pages.
    #[cfg(test)]
    pub fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().map(|known| known.page).filter(|page| *page != NONE)
    }
}

/// Where nothing was sampled.
struct NoHeat;

impl Heat for NoHeat {
    fn history(&self, _: Gfn) -> u32 {
        0
    }

    fn hot(&self, _: Gfn, _: u8) -> u64 {
        0
    }

    fn recent(&self, _: Gfn) -> [u64; WINDOWS] {
        [0; WINDOWS]
    }

    fn grain(&self, _: Gfn) -> Grain {
        Grain::Page
    }
}
