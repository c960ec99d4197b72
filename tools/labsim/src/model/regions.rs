//! Regions: what a program on the machine marks, to learn what just that part of it took. Marks are no-ops of
//! [`abi::lab::MARKS`] with a number in RAX, so that they cost the program nothing, need no privilege, leave no guest, and mean
//! the same with and without a hypervisor.
//!
//! A processor has its own regions. The counters of all its sides are taken: a guest's region holds what the hypervisor
//! did for it meanwhile.

use abi::lab::{REGIONS, Record};

/// What is known of one region.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// How often it was begun and ended.
    pub times: u64,
    /// What was counted meanwhile, in all.
    pub counted: Record,
}

/// The regions of one processor.
#[derive(Default)]
pub struct Regions {
    /// The number of the one that was begun, and the counters of that moment.
    open: Option<(usize, Record)>,
    all: Vec<Region>,
}

impl Regions {
    /// A region begins; `record` is up to date. Another one that has not ended is forgotten, and so is a number that there is not.
    pub fn begin(&mut self, number: u64, record: &Record) {
        self.open =
            usize::try_from(number).ok().filter(|number| *number < REGIONS).map(|number| (number, *record));
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
        let counted = &mut region.counted;
        for ((sum, now), before) in counted.sides.iter_mut().zip(&record.sides).zip(&before.sides) {
            sum.add(&now.since(before));
        }
        counted.stand_ins.add(&record.stand_ins.since(&before.stand_ins));
        counted.agile.add(record.agile.since(before.agile));
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
        let mut record = Record::default();
        record.sides[Side::Host as usize].cycles = host;
        record.sides[Side::Nested as usize].walk_refs = nested;
        record.stand_ins.cycles = host / 2;
        record.agile.refs[1] = nested;
        record
    }

    #[test]
    fn differences_are_added_by_side() {
        let mut regions = Regions::default();
        for (number, [from, to]) in [(2, [(10, 100), (15, 130)]), (2, [(20, 130), (21, 131)])] {
            regions.begin(number, &record(from.0, from.1));
            regions.end(number, &record(to.0, to.1));
        }
        let [first, _, region] = regions.all() else { panic!("three regions") };
        assert_eq!((first.times, region.times), (0, 2));
        let counted = &region.counted;
        assert_eq!(counted.sides, record(6, 31).sides);
        // 5 to 7, and 10 to 10.
        assert_eq!((counted.stand_ins.cycles, counted.agile.refs[1]), (2, 31));
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
        let [region] = regions.all() else { panic!("one region") };
        assert_eq!((region.times, region.counted.sides), (1, at(1).sides));
    }
}
