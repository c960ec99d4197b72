//! What must hold of a pager's state, for tests, and a pager that is broken on purpose.

use alloc::vec::Vec;

use super::place::{Packed, Place};
use super::state::State;

impl State {
    pub(super) fn lose_all(&mut self) {
        self.store.clear(&mut *self.memory);
        self.stored = 0;
        self.places.for_each_mut(|place| {
            if matches!(place.get(), Place::Stored(_)) {
                *place = Packed::new(Place::Zero { evicted: true });
            }
        });
    }

    pub(super) fn check(&self) {
        self.store.check();
        let (mut seen, mut stored) = ([0u32; 2], 0);
        for number in 0..self.places.len() {
            match self.places[number].get() {
                Place::Resident(slot) => {
                    assert!(slot < self.resident && self.slots[slot as usize].number as usize == number);
                    seen[0] += 1;
                }
                Place::Arrived | Place::Leaving => seen[1] += 1,
                Place::Stored(_) => stored += 1,
                Place::Zero { .. } => {}
            }
        }
        assert_eq!(seen, [self.resident, (self.arrived.len() + self.leaving.len()) as u32]);
        assert_eq!(self.stored, stored);
        let arrived = self.arrived.iter().map(|page| (page, Place::Arrived));
        for (page, place) in arrived.chain(self.leaving.iter().map(|page| (page, Place::Leaving))) {
            assert_eq!(self.places[page.number as usize].get(), place);
        }
        let all = (0..self.resident).map(|slot| self.slots[slot as usize].frame);
        let queued = self.arrived.iter().chain(&self.leaving).map(|page| page.frame);
        let mut frames: Vec<u32> = all.chain(queued).chain(self.free.iter().copied()).collect();
        let count = frames.len();
        frames.sort_unstable();
        frames.dedup();
        assert_eq!(frames.len(), count, "a frame is in two places");
    }
}
