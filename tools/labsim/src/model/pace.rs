//! Processors that keep in step: none that executes gets ahead of another one that does by more than a window of modelled time.
//!
//! An emulator runs each processor in a thread of its own, at a rate that depends on what it executes and on what else the
//! development machine does. Without this, which of two processors fills a cache that they share, and how much one of them gets done
//! while the other waits for it, would be matters of these rates. The emulator's threads call [`Pace::reached`] after a number of
//! instructions, and [`Pace::halts`] when a processor halts.
//!
//! A processor's time is its cycles plus a base. One that was halted goes on from the latest time that any other one has reached: it
//! has waited. What a thread does not say in time (the development machine runs something else) keeps the others back only as long as
//! their own patience lasts: this is no lock, and nothing depends on its being kept.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// What others see of a processor. Only its own thread writes it.
#[derive(Default)]
#[repr(align(64))]
struct Place {
    executes: AtomicBool,
    /// The time that it has reached, while it executes.
    time: AtomicU64,
    /// Its time minus its cycles, modulo 2^64.
    base: AtomicU64,
}

/// The pace of a machine's processors.
pub struct Pace {
    window: u64,
    places: Box<[Place]>,
}

impl Pace {
    /// For `processors`, none of which executes yet. They may be `window` cycles apart.
    pub fn new(processors: usize, window: u64) -> Pace {
        Pace { window, places: (0..processors).map(|_| Place::default()).collect() }
    }

    /// The time of a processor that executes, and has been charged `cycles` in all.
    pub fn time(&self, processor: usize, cycles: u64) -> u64 {
        let Some(place) = self.places.get(processor) else { return cycles };
        if !place.executes.load(Relaxed) {
            self.begin(processor, place, cycles);
        }
        place.base.load(Relaxed).wrapping_add(cycles)
    }

    /// A processor goes on from the latest time of the others that execute.
    fn begin(&self, processor: usize, place: &Place, cycles: u64) {
        let own = place.base.load(Relaxed).wrapping_add(cycles);
        let time = self.others(processor).max().unwrap_or(own).max(own);
        place.base.store(time.wrapping_sub(cycles), Relaxed);
        place.time.store(time, Relaxed);
        // A processor that sees that it executes sees from when on.
        place.executes.store(true, Release);
    }

    /// A processor executes, and has been charged `cycles` in all. False: another one that executes is farther behind than the
    /// window, and it should ask again a little later.
    pub fn reached(&self, processor: usize, cycles: u64) -> bool {
        let Some(place) = self.places.get(processor) else { return true };
        if !place.executes.load(Relaxed) {
            self.begin(processor, place, cycles);
        }
        let own = place.base.load(Relaxed).wrapping_add(cycles);
        place.time.store(own, Relaxed);
        self.others(processor).min().is_none_or(|least| own.saturating_sub(least) <= self.window)
    }

    /// A processor executes nothing for now.
    pub fn halts(&self, processor: usize) {
        if let Some(place) = self.places.get(processor) {
            place.executes.store(false, Release);
        }
    }

    /// The times of all others that execute.
    fn others(&self, processor: usize) -> impl Iterator<Item = u64> {
        let others = self.places.iter().enumerate().filter(move |(number, _)| *number != processor);
        others.filter(|(_, place)| place.executes.load(Acquire)).map(|(_, place)| place.time.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_is_ahead_waits() {
        let pace = Pace::new(2, 100);
        assert!(pace.reached(0, 5000), "alone");
        // It begins where the other one is, with fewer cycles.
        assert!(pace.reached(1, 7));
        assert!(pace.reached(0, 5100));
        assert!(!pace.reached(0, 5101));
        assert!(pace.reached(1, 8));
        assert!(pace.reached(0, 5101));
        // A halted one holds none back, and has waited.
        pace.halts(1);
        assert!(pace.reached(0, 9000));
        assert!(pace.reached(1, 9));
        assert!(pace.reached(0, 9100) && !pace.reached(0, 9101));
        assert!(pace.reached(1, 210) && !pace.reached(1, 211));
        // There is no such processor: nothing to wait for.
        assert!(pace.reached(2, u64::MAX));
        pace.halts(2);
    }

    #[test]
    fn time_is_the_same_for_all() {
        let pace = Pace::new(3, 100);
        assert!(pace.reached(0, 5000));
        // It begins where the other one is, also where its time is asked for first.
        assert_eq!((pace.time(1, 7), pace.time(1, 9), pace.time(0, 5003)), (5000, 5002, 5003));
        pace.halts(1);
        assert!(pace.reached(0, 9000));
        assert_eq!((pace.time(1, 10), pace.time(3, 8)), (9000, 8));
    }

    #[test]
    fn there_is_always_one_that_may_go_on() {
        let step = (0usize..4, 1u64..400, prop::bool::weighted(0.2));
        proptest!(|(steps in prop::collection::vec(step, 1..200))| {
            let pace = Pace::new(4, 100);
            let (mut cycles, mut executes, mut reached) = ([0u64; 4], [false; 4], [0u64; 4]);
            for (processor, more, halts) in steps {
                if halts {
                    pace.halts(processor);
                    executes[processor] = false;
                    continue;
                }
                cycles[processor] += more;
                let goes_on = pace.reached(processor, cycles[processor]);
                executes[processor] = true;
                let time = pace.places[processor].time.load(Relaxed);
                prop_assert!(time >= reached[processor] + more, "its own time runs with its cycles");
                reached[processor] = time;
                let running = || (0..4).filter(|other| executes[*other]);
                let least = running().map(|other| reached[other]).min().unwrap();
                prop_assert_eq!(goes_on, time <= least + 100);
                // The last one is never told to wait.
                let last = running().min_by_key(|other| reached[*other]).unwrap();
                prop_assert!(pace.reached(last, cycles[last]));
            }
        });
    }
}
