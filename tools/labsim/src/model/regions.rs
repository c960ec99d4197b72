//! Regions: what a program on the machine marks, to learn what just that part of it took. Marks are no-ops of
//! [`abi::lab::MARKS`] with a number in RAX, so that they cost the program nothing, need no privilege, leave no guest, and mean
//! the same with and without a hypervisor.
//!
//! A processor has its own regions. The counters of all its sides are taken: a guest's region holds what the hypervisor
//! did for it meanwhile.

use abi::lab::{Counters, REGIONS, Record};

/// The counters of the three sides.
type Sides = [Counters; 3];

/// What is known of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// How often it was begun and ended.
    pub times: u64,
    /// What was counted meanwhile, in all.
    pub sides: Sides,
}

/// The regions of one processor.
#[derive(Default)]
pub struct Regions {
    /// The number of the one that was begun, and the counters of that moment.
    open: Option<(usize, Sides)>,
    all: Vec<Region>,
}

impl Regions {
    /// A region begins; `record` is up to date. Another one that has not ended is forgotten, and so is a number that there is not.
    pub fn begin(&mut self, number: u64, record: &Record) {
        self.open = usize::try_from(number)
            .ok()
            .filter(|number| *number < REGIONS)
            .map(|number| (number, record.sides));
    }

    /// It ends, if it is the one that began last.
    pub fn end(&mut self, number: u64, record: &Record) {
        let Some((open, before)) = self.open.take().filter(|(open, _)| *open as u64 == number) else {
            return;
        };
        if self.all.len() <= open {
            self.all.resize(open + 1, Region::default());
        }
        let region = &mut self.all[open];
        region.times += 1;
        for ((sum, now), before) in region.sides.iter_mut().zip(&record.sides).zip(&before) {
            sum.add(&now.since(before));
        }
    }

    /// All, by their numbers; those that never ended have no times.
    pub fn all(&self) -> &[Region] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use abi::lab::Side;

    use super::*;

    fn record(host: u64, nested: u64) -> Record {
        let mut record = Record { sides: Default::default(), doorbell: 0 };
        record.sides[Side::Host as usize].cycles = host;
        record.sides[Side::Nested as usize].walk_refs = nested;
        record
    }

    #[test]
    fn differences_are_added_by_side() {
        let mut regions = Regions::default();
        for (number, [from, to]) in [(2, [(10, 100), (15, 130)]), (2, [(20, 130), (21, 131)])] {
            regions.begin(number, &record(from.0, from.1));
            regions.end(number, &record(to.0, to.1));
        }
        assert_eq!((regions.all().len(), &regions.all()[0]), (3, &Region::default()));
        let expected = Region { times: 2, sides: record(6, 31).sides };
        assert_eq!(regions.all()[2], expected);
    }

    #[test]
    fn marks_that_do_not_fit_together_count_nothing() {
        let mut regions = Regions::default();
        let at = |cycles| record(cycles, 0);
        regions.end(0, &at(1));
        regions.begin(0, &at(2));
        regions.end(1, &at(3));
        regions.end(0, &at(4));
        for number in [REGIONS as u64, u64::MAX] {
            regions.begin(number, &at(5));
            regions.end(number, &at(6));
        }
        assert!(regions.all().is_empty());
        // The later of two begins counts.
        regions.begin(0, &at(7));
        regions.begin(0, &at(9));
        regions.end(0, &at(10));
        assert_eq!(regions.all(), [Region { times: 1, sides: at(1).sides }]);
    }
}
