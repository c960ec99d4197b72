//! Random histories, beside a model that counts everything in maps; and what each transition must do.

mod history;

use super::*;
use crate::region::{DOMAINS, Domain};

const RAM: [Range<Gfn>; 2] = [Gfn(0)..Gfn(16), Gfn(32)..Gfn(56)];

fn new() -> Partition {
    let partition = Partition::new(RAM).unwrap();
    partition.check().unwrap();
    partition
}

fn domain(number: u8) -> Domain {
    Domain::new(number).unwrap()
}

/// Effects, as a list.
fn all(effects: &Effects) -> Vec<Effect> {
    effects.iter().collect()
}

/// A partition with two address spaces, and a regular region of the first with these frames.
fn with_region(frames: &[u64]) -> (Partition, Space, Space, Rid) {
    let mut partition = new();
    let (a, b) = (partition.add_space().unwrap(), partition.add_space().unwrap());
    let mut region = None;
    for &frame in frames {
        let _open = partition.map(Gfn(frame), a).unwrap();
        let (rid, _open) = partition.split(Gfn(frame)).unwrap();
        region = Some(match region {
            None => rid,
            Some(other) => partition.merge(other, rid).unwrap().0,
        });
    }
    (partition, a, b, region.expect("frames"))
}

#[test]
fn a_frame_is_born_into_a_seed_and_dies_back_into_the_pool() {
    let mut partition = new();
    let space = partition.add_space().unwrap();
    let seed = Rid::seed(space);
    assert_eq!(all(&partition.map(Gfn(33), space).unwrap()), [Effect::Born(seed)]);
    assert_eq!(all(&partition.map(Gfn(34), space).unwrap()), []);
    assert_eq!(partition.info(seed).unwrap().entries, 2);
    assert_eq!(all(&partition.unmap(Gfn(33), space).unwrap()), []);
    assert_eq!(partition.region_of(Gfn(33)), Ok(Rid::POOL));
    assert_eq!(all(&partition.unmap(Gfn(34), space).unwrap()), [Effect::Died(seed)]);
    assert_eq!(partition.unmap(Gfn(34), space), Err(Refused::NotMapped));
    assert_eq!(partition.map(Gfn(20), space), Err(Refused::NotRam(Gfn(20))));
    assert_eq!(partition.remove_space(space), Ok(()));
    assert_eq!(partition.map(Gfn(33), space), Err(Refused::NoSpace(space)));
    partition.check().unwrap();
}

#[test]
fn a_frame_of_a_local_region_opens_when_it_is_shared_and_is_private_again_afterwards() {
    let (mut partition, a, b, rid) = with_region(&[1, 2]);
    let local = partition.localise(rid, domain(1)).unwrap();
    let others = Domains::ALL.without(Domains::only(domain(1)));
    assert_eq!(all(&local), [Effect::Close(Target::Region(rid), others)]);
    let shared = partition.map(Gfn(1), b).unwrap();
    assert_eq!(all(&shared), [Effect::Born(Rid::SHARED), Effect::Open(Target::Frame(Gfn(1)), others)]);
    assert_eq!(partition.mappers(Gfn(1)).collect::<Vec<_>>(), [(a, 1), (b, 1)]);
    // Of the one that stays.
    let private = partition.unmap(Gfn(1), a).unwrap();
    assert_eq!(all(&private), [Effect::Born(Rid::seed(b)), Effect::Died(Rid::SHARED)]);
    assert_eq!(partition.open_in(Gfn(2)), Ok(Domains::only(domain(1))));
    partition.check().unwrap();
}

#[test]
fn a_merge_keeps_the_larger_regions_number_and_a_cache() {
    let (mut partition, a, b, large) = with_region(&[1, 2, 3]);
    let _open = partition.map(Gfn(40), a).unwrap();
    let (small, _open) = partition.split(Gfn(40)).unwrap();
    assert!(!partition.localise(small, domain(2)).unwrap().iter().any(|e| matches!(e, Effect::Open(..))));
    assert_eq!(partition.merge(large, large), Err(Refused::Itself));
    let (rid, effects) = partition.merge(small, large).unwrap();
    assert_eq!(rid, large);
    let others = Domains::ALL.without(Domains::only(domain(2)));
    assert_eq!(all(&effects), [Effect::Died(small), Effect::Close(Target::Region(large), others)]);
    assert_eq!(partition.info(large).unwrap().kind, Kind::Local(domain(2)));
    assert_eq!(partition.frames_of(large).count(), 4);
    assert_eq!(partition.merge(large, small), Err(Refused::NoRegion));
    let _open = partition.map(Gfn(50), b).unwrap();
    let (other, _open) = partition.split(Gfn(50)).unwrap();
    assert_eq!(partition.merge(large, other), Err(Refused::Owner));
    assert_eq!(partition.merge(large, Rid::POOL), Err(Refused::Owner));
    partition.check().unwrap();
}

#[test]
fn what_was_torn_down_or_made_global_is_so() {
    let (mut partition, a, b, rid) = with_region(&[1, 2]);
    assert_eq!(partition.split(Gfn(1)), Err(Refused::Kind(Kind::Regular)));
    let _open = partition.tear_down(rid).unwrap();
    assert_eq!(partition.tear_down(rid), Err(Refused::Kind(Kind::Seed)));
    assert_eq!(partition.localise(rid, domain(0)), Err(Refused::Kind(Kind::Seed)));
    // A seed region, from which frames are split again.
    let (again, _open) = partition.split(Gfn(1)).unwrap();
    let _closed = partition.localise(again, domain(3)).unwrap();
    let _open = partition.globalise(again).unwrap();
    assert_eq!(partition.open_in(Gfn(1)), Ok(Domains::ALL));
    // Another one that maps it leaves it global.
    let _same = partition.map(Gfn(1), b).unwrap();
    assert_eq!(partition.region_of(Gfn(1)), Ok(Rid::GLOBAL));
    let _open = partition.exclude(Gfn(2)).unwrap();
    assert_eq!(partition.region_of(Gfn(2)), Ok(Rid::GLOBAL));
    assert_eq!(partition.exclude(Gfn(3)), Err(Refused::NotMapped));
    assert_eq!(partition.globalise(Rid::GLOBAL), Err(Refused::Kind(Kind::Global)));
    let _open = partition.unmap(Gfn(2), a).unwrap();
    assert_eq!(partition.region_of(Gfn(2)), Ok(Rid::POOL));
    assert_eq!(partition.split(Gfn(2)), Err(Refused::NotMapped));
    partition.check().unwrap();
}

#[test]
fn the_guests_frames_stay_in_its_region_whatever_maps_them() {
    let mut partition = new();
    let (a, b) = (partition.add_space().unwrap(), partition.add_space().unwrap());
    let (rid, _open) = partition.add_guest(1).unwrap();
    let _open = partition.map(Gfn(5), a).unwrap();
    let _open = partition.claim(Gfn(5), rid).unwrap();
    assert_eq!(all(&partition.map(Gfn(5), b).unwrap()), []);
    assert_eq!(partition.region_of(Gfn(5)), Ok(rid));
    assert_eq!(partition.exclude(Gfn(5)), Err(Refused::Taken(Gfn(5))));
    assert_eq!(partition.claim(Gfn(5), rid), Err(Refused::Taken(Gfn(5))));
    assert_eq!(partition.tear_down(rid), Err(Refused::Owner));
    assert_eq!(partition.end_guest(rid), Err(Refused::Busy));
    assert_eq!(partition.end_guest(Rid::SHARED), Err(Refused::NoRegion));
    assert_eq!(partition.release(Gfn(6), rid), Err(Refused::NotThere(Gfn(6))));
    let _open = partition.release(Gfn(5), rid).unwrap();
    assert_eq!(partition.region_of(Gfn(5)), Ok(Rid::SHARED));
    assert_eq!(all(&partition.end_guest(rid).unwrap()), [Effect::Died(rid)]);
    partition.check().unwrap();
}

#[test]
fn records_that_run_out_refuse_and_lose_nothing() {
    let mut partition = new();
    let space = partition.add_space().unwrap();
    let mut guests = vec![];
    while let Ok((rid, _)) = partition.add_guest(1) {
        guests.push(rid);
    }
    assert_eq!(guests.len(), LEAST);
    let _open = partition.map(Gfn(1), space).unwrap();
    assert_eq!(partition.split(Gfn(1)), Err(Refused::Full));
    assert_eq!(partition.region_of(Gfn(1)), Ok(Rid::seed(space)));
    // Numbers of address spaces, of which the VM has one.
    for _ in 2..partition.space_records() {
        partition.add_space().unwrap();
    }
    assert_eq!(partition.add_space(), Err(Refused::Full));
    assert_eq!(partition.remove_space(Space::VM), Err(Refused::Busy));
    assert_eq!(partition.remove_space(space), Err(Refused::Busy));
    partition.check().unwrap();
}

#[test]
fn domains_are_sets() {
    assert_eq!(Domain::new(DOMAINS), None);
    let two = Domains::only(domain(1)).and(Domains::only(domain(15)));
    assert!(two.contains(domain(15)) && !two.contains(domain(0)));
    assert!(two.without(two).is_empty());
}
