//! Pages that were made global because data of several regions share them, and when each is judged again.
//!
//! Such a page is no one's for ever: after some phases it is in its address space's seed region again. Then it merges with the first
//! region that it is used with, and is found again where it is a hub still; after that twice as many phases go by.

use arrayvec::ArrayVec;

use crate::arch::addr::Gfn;
use crate::region::partition::Partition;
use crate::region::{Effects, Space};

/// Pages that are remembered. Older ones stay global until nothing maps them.
const HUBS: usize = 64;
/// Phases until a page is judged again, the first time and at most.
const FIRST: u8 = 8;
const MOST: u8 = 64;

#[derive(Clone, Copy, Debug)]
struct Hub {
    gfn: Gfn,
    space: Space,
    /// Phases that go by, and those that are left; none: it is not global now.
    phases: u8,
    left: u8,
}

/// Of a VM.
#[derive(Clone, Debug, Default)]
pub struct Hubs(ArrayVec<Hub, HUBS>);

impl Hubs {
    /// A page of an address space has become global.
    pub fn add(&mut self, gfn: Gfn, space: Space) {
        let is_it = |hub: &Hub| hub.gfn == gfn && hub.space == space;
        let before = self.0.iter().position(is_it).map(|at| self.0.remove(at));
        let phases = before.map_or(FIRST, |hub| hub.phases.saturating_mul(2).min(MOST));
        if self.0.is_full() {
            self.0.remove(0);
        }
        self.0.push(Hub { gfn, space, phases, left: phases });
    }

    /// A phase of an address space begins: one of its pages may be judged again.
    pub fn begin_phase(&mut self, space: Space, partition: &mut Partition) -> Option<Effects> {
        let mut due = None;
        for hub in self.0.iter_mut().filter(|hub| hub.space == space && hub.left > 0) {
            if hub.left > 1 {
                hub.left -= 1;
            } else if due.is_none() {
                (hub.left, due) = (0, Some(hub.gfn));
            }
        }
        // Refused where it holds something else by now.
        partition.readmit(due?, space).ok()
    }

    /// An address space is gone.
    pub fn forget(&mut self, space: Space) {
        self.0.retain(|hub| hub.space != space);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Rid;

    #[test]
    fn a_page_is_judged_again_after_twice_as_many_phases() {
        let mut partition = Partition::new([Gfn(0)..Gfn(64)]).unwrap();
        let space = partition.add_space().unwrap();
        let _mapped = partition.map(Gfn(7), space).unwrap();
        let mut hubs = Hubs::default();
        let mut phases = || {
            let _opened = partition.exclude(Gfn(7)).unwrap();
            hubs.add(Gfn(7), space);
            let phases = (1..).find(|_| hubs.begin_phase(space, &mut partition).is_some()).unwrap();
            assert_eq!(partition.region_of(Gfn(7)), Ok(Rid::seed(space)));
            assert!((0..200).all(|_| hubs.begin_phase(space, &mut partition).is_none()), "once");
            phases
        };
        assert_eq!([(); 5].map(|()| phases()), [8, 16, 32, 64, 64]);
    }

    #[test]
    fn what_holds_something_else_stays_as_it_is() {
        let mut partition = Partition::new([Gfn(0)..Gfn(64)]).unwrap();
        let spaces = [(); 2].map(|()| partition.add_space().unwrap());
        let mut hubs = Hubs::default();
        for gfn in 0..100 {
            let _mapped = partition.map(Gfn(gfn % 64), spaces[0]).unwrap();
            let _opened = partition.exclude(Gfn(gfn % 64)).unwrap();
            hubs.add(Gfn(gfn % 64), spaces[0]);
        }
        let _mapped = partition.map(Gfn(9), spaces[1]).unwrap();
        // Another one was freed, and is part of a region by now.
        let _freed = partition.unmap(Gfn(40), spaces[0]).unwrap();
        let _mapped = partition.map(Gfn(40), spaces[0]).unwrap();
        let (rid, _effects) = partition.split(Gfn(40)).unwrap();
        let back = (0..64 * 8).filter(|_| hubs.begin_phase(spaces[0], &mut partition).is_some()).count();
        assert_eq!((back, partition.region_of(Gfn(9))), (62, Ok(Rid::GLOBAL)));
        assert_eq!(partition.region_of(Gfn(40)), Ok(rid));
        partition.check().unwrap();
    }
}
