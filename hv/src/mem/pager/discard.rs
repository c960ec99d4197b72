//! Pages whose contents the guest does not want any more: its balloon has named them.
//!
//! A page that loses its frame keeps its place, in a slot of the policy or among the arrivals, as a *vacant* one, so that policies need
//! no removal: they choose it soon, as it is never accessed, and a page that is accessed again is in its place at once. While
//! there are vacant places, as many other pages are in frames, and nothing is evicted for them.
//!
//! What must hold: a frame that was taken here goes back only when the caller has had all processors forget it. Until then it
//! is in the list of what is leaving, as no page's.

use super::place::{Packed, Place};
use super::state::{InFrame, State};
use crate::arch::addr::{Gfn, Hfn};
use crate::mem::pieces::OutOfMemory;
use crate::mem::replace::NONE;

/// The place of a page that was never touched.
const UNTOUCHED: Place = Place::Zero { evicted: false };

impl InFrame {
    /// A place without a frame.
    pub(super) fn is_vacant(self) -> bool {
        self.frame == NONE
    }
}

impl State {
    /// Makes room for what may have arrived while places are vacant, so that there is no need later.
    pub(super) fn expect_discards(&mut self) -> Result<(), OutOfMemory> {
        self.arrivals.reserve(self.budget.resident as usize)
    }

    /// Frames of pages that are not leaving.
    pub(super) fn in_use(&self) -> u32 {
        self.resident + self.arrivals.len() as u32 - self.vacant
    }

    /// Whether `by` pages and more are to be evicted. Places without frames among the arrivals count at last: their number is bounded.
    pub(super) fn is_over(&self, by: usize) -> bool {
        let most = self.budget.resident as usize + by;
        self.in_use() as usize >= most || self.arrivals.len() >= most
    }

    /// See [`Pager::discard`](super::Pager::discard).
    pub(super) fn discard(&mut self, page: Gfn, detach: &mut dyn FnMut(Hfn) -> bool) -> bool {
        let Some(number) = self.span.number(page) else { return false };
        let place = self.places[number as usize].get();
        match place {
            Place::Zero { .. } => {}
            Place::Stored(_) | Place::OnDisk(_) => {
                self.forget_stored(place);
                self.counts.discarded += 1;
            }
            Place::Leaving => {
                let Some(page) = self.leaving.iter_mut().find(|page| page.number == number) else {
                    return false;
                };
                page.number = NONE;
                self.counts.discarded += 1;
            }
            Place::Resident(_) | Place::Arrived(_) => return self.vacate(place, detach),
        }
        self.places[number as usize] = Packed::new(UNTOUCHED);
        true
    }

    /// Takes the frame of a place.
    fn vacate(&mut self, place: Place, detach: &mut dyn FnMut(Hfn) -> bool) -> bool {
        if self.leaving.try_reserve(1).is_err() {
            return false;
        }
        let Some(page) = self.entry(place) else { return false };
        if page.is_vacant() {
            return true;
        }
        let frame = page.frame;
        if !detach(Hfn(frame.into())) {
            return false;
        }
        page.frame = NONE;
        self.vacant += 1;
        self.leaving.push(InFrame { number: NONE, frame });
        self.counts.discarded += 1;
        true
    }

    /// The entry of a page that has a place.
    pub(super) fn entry(&mut self, place: Place) -> Option<&mut InFrame> {
        match place {
            Place::Resident(slot) if slot < self.resident => Some(&mut self.slots[slot as usize]),
            Place::Arrived(number) => self.arrivals.get_mut(number),
            _ => None,
        }
    }

    /// A place without a frame is taken for something else: its page is one that was never touched.
    pub(super) fn forget_vacant(&mut self, page: InFrame) {
        self.vacant -= 1;
        self.places[page.number as usize] = Packed::new(UNTOUCHED);
    }
}
