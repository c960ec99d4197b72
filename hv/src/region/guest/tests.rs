//! What a guest's kernel asks for, and what it gets.

use proptest::prelude::*;

use super::*;
use crate::region::partition::Info;
use crate::region::{Kind, Owner};

const RAM: [Range<Gfn>; 2] = [Gfn(0)..Gfn(0xa0), Gfn(0x100)..Gfn(0x2000)];

/// Regions of which none is mapped to a cache: nothing has to be closed.
fn open(effect: Effect) {
    assert!(!matches!(effect, Effect::Close(..)), "{effect:?}");
}

fn info(regions: &GuestRegions, number: u16) -> Info {
    let (_, rid) = regions.list().find(|(own, _)| *own == number).expect("a region of the guest's");
    regions.partition().info(rid).expect("a region")
}

#[test]
fn frames_are_in_one_region_until_they_are_taken_out() {
    let mut regions = GuestRegions::new(RAM).unwrap();
    assert_eq!(regions.add(&mut open), Ok(1));
    assert_eq!(regions.add(&mut open), Ok(2));
    regions.add_pages(8, 3, 1, &mut open).unwrap();
    let Info { kind, owner, frames, entries } = info(&regions, 1);
    assert_eq!((kind, owner, frames, entries), (Kind::Regular, Owner::Guest(1), 8, 0));
    // The last of these is in it already, so none joins the other.
    assert_eq!(regions.add_pages(8, 0, 2, &mut open), Err(GuestError::Taken));
    assert_eq!(regions.add_pages(0, 4, 2, &mut open), Err(GuestError::Taken));
    assert_eq!(regions.add_pages(8, 3, 1, &mut open), Err(GuestError::Taken), "twice");
    assert_eq!(info(&regions, 2).frames, 0);
    assert_eq!(regions.remove_pages(8, 0, 2, &mut open), Err(GuestError::NotThere));
    regions.remove_pages(8, 0, 1, &mut open).unwrap();
    assert_eq!(regions.remove_pages(8, 3, 1, &mut open), Err(GuestError::NotThere), "not all of them");
    regions.add_pages(8, 0, 2, &mut open).unwrap();
    assert_eq!((info(&regions, 1).frames, info(&regions, 2).frames), (7, 1));
    regions.remove(1, &mut open).unwrap();
    assert_eq!(regions.remove(1, &mut open), Err(GuestError::NotThere));
    // The number comes again.
    assert_eq!(regions.add(&mut open), Ok(1));
    regions.partition().check().unwrap();
}

#[test]
fn what_is_out_of_range_is_refused() {
    let mut regions = GuestRegions::new(RAM).unwrap();
    let number = u64::from(regions.add(&mut open).unwrap());
    let mut add = |first, order, number| regions.add_pages(first, order, number, &mut open);
    assert_eq!(add(1, 1, number), Err(GuestError::Invalid));
    assert_eq!(add(0, REGION_MAX_ORDER + 1, number), Err(GuestError::Invalid));
    assert_eq!(add(0, 64, number), Err(GuestError::Invalid), "no shift overflows");
    assert_eq!(add(u64::MAX, 0, number), Err(GuestError::NotRam));
    assert_eq!(add(u64::MAX << 10, 10, number), Err(GuestError::NotRam));
    assert_eq!(add(0xa0, 0, number), Err(GuestError::NotRam));
    assert_eq!(add(0x80, 6, number), Err(GuestError::NotRam), "the last of them");
    for unknown in [0, number + 1, REGIONS_MAX, REGIONS_MAX + 1, u64::MAX] {
        assert_eq!(add(0, 0, unknown), Err(GuestError::NotThere));
    }
    assert_eq!(add(0x400, REGION_MAX_ORDER, number), Ok(()));
    let Counts { performed, refused } = regions.counts();
    assert_eq!((performed, refused), (2, 12));
}

#[test]
fn a_flood_of_regions_ends_at_the_quota() {
    let mut regions = GuestRegions::new(RAM).unwrap();
    for number in 1..=REGIONS_MAX {
        assert_eq!(regions.add(&mut open).map(u64::from), Ok(number));
    }
    for _ in 0..1000 {
        assert_eq!(regions.add(&mut open), Err(GuestError::Quota));
    }
    regions.remove(7, &mut open).unwrap();
    assert_eq!(regions.add(&mut open), Ok(7));
    regions.partition().check().unwrap();
}

#[test]
fn a_large_region_ends_in_several_calls() {
    let mut regions = GuestRegions::new(RAM).unwrap();
    let number = u64::from(regions.add(&mut open).unwrap());
    for first in [0x400, 0x800, 0xc00] {
        regions.add_pages(first, 10, number, &mut open).unwrap();
    }
    assert_eq!(regions.remove(number, &mut open), Err(GuestError::Again));
    assert_eq!(regions.remove(number, &mut open), Err(GuestError::Again));
    assert_eq!(info(&regions, 1).frames, 0x400);
    assert_eq!(regions.remove(number, &mut open), Ok(()));
    assert_eq!(regions.partition().regions().count(), 1, "the pool is left");
    regions.partition().check().unwrap();
}

proptest! {
    #[test]
    fn requests_do_what_they_say(data in proptest::collection::vec(any::<u8>(), 0..640)) {
        fuzz_one(&data);
    }
}
