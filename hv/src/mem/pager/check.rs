//! What must hold of a pager's state, for tests, and a pager that is broken on purpose.

use alloc::vec::Vec;

use super::place::{Packed, Place};
use super::state::State;
use crate::mem::replace::NONE;

impl State {
    pub(super) fn lose_all(&mut self) {
        self.store.clear(&mut *self.memory);
        self.stored = 0;
        self.disk.iter_mut().for_each(super::disk::Disk::clear);
        self.places.for_each_mut(|place| {
            if matches!(place.get(), Place::Stored(_) | Place::OnDisk(_)) {
                *place = Packed::new(Place::Zero { evicted: true });
            }
        });
    }

    pub(super) fn check(&self) {
        self.store.check();
        let (mut seen, mut stored, mut on_disk) = ([0; 3], 0, 0);
        let mut places = alloc::collections::BTreeSet::new();
        for number in 0..self.places.len() {
            match self.places[number].get() {
                Place::Resident(slot) => {
                    assert!(slot < self.resident && self.slots[slot as usize].number as usize == number);
                    seen[0] += 1;
                }
                Place::Arrived(entry) => {
                    assert!(self.arrivals.get(entry).is_some_and(|page| page.number as usize == number));
                    seen[1] += 1;
                }
                Place::Leaving => seen[2] += 1,
                Place::Stored(_) => stored += 1,
                Place::OnDisk(place) => {
                    assert!(self.disk.as_ref().is_some_and(|disk| disk.has(place)) && places.insert(place));
                    on_disk += 1;
                }
                Place::Zero { .. } => {}
            }
        }
        let leaving = self.leaving.iter().filter(|page| page.number != NONE);
        for page in leaving.clone() {
            assert_eq!(self.places[page.number as usize].get(), Place::Leaving);
        }
        assert_eq!(seen, [self.resident as usize, self.arrivals.len(), leaving.count()]);
        assert_eq!(self.stored, stored);
        assert_eq!(self.disk.as_ref().map_or(0, |disk| disk.pages), on_disk);
        self.disk.iter().for_each(super::disk::Disk::check);
        let slots: Vec<_> = (0..self.resident).map(|slot| self.slots[slot as usize]).collect();
        let places = slots.iter().chain(self.arrivals.iter());
        assert_eq!(places.clone().filter(|page| page.is_vacant()).count(), self.vacant as usize);
        let with_frames = places.chain(&self.leaving).filter(|page| !page.is_vacant()).map(|page| page.frame);
        let mut frames: Vec<u32> = with_frames.chain(self.free.iter().copied()).collect();
        let count = frames.len();
        frames.sort_unstable();
        frames.dedup();
        assert_eq!(frames.len(), count, "a frame is in two places");
    }
}
