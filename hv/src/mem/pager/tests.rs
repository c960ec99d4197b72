use proptest::prelude::*;

use super::fuzz::{SharedFrames, fuzz_pager, fuzz_store};
use super::*;
use crate::arch::addr::PAGE_SIZE;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_page_is_lost(data in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz_pager(&data);
    }

    #[test]
    fn the_store_is_a_map(data in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz_store(&data);
    }
}

/// All pages can be evicted, and none was accessed.
struct Idle;

impl Pages for Idle {
    fn is_evictable(&mut self, _: Resident) -> bool {
        true
    }

    fn take_accessed(&mut self, _: Resident) -> bool {
        false
    }
}

const SPAN: Span = Span { low: 64, high_start: Gfn(1 << 20), high: 0 };

fn pager(resident: u32, store: u32, frames: &SharedFrames) -> Pager {
    let budget = Budget { resident, reserve: 4, store };
    Pager::new(SPAN, budget, PolicyName::Clock, Box::new(frames.clone())).unwrap()
}

fn touch(pager: &Pager, page: u64) -> Option<Hfn> {
    let mut at = None;
    pager.bring_in(Gfn(page), &mut |frame| at = Some(frame));
    at
}

#[test]
fn a_page_of_zeroes_takes_no_room() {
    let frames = SharedFrames::new(1, 32);
    let pager = pager(2, 1, &frames);
    (0..3).for_each(|page| assert!(touch(&pager, page).is_some()));
    assert_eq!(pager.choose(&mut Idle).len(), 1);
    while pager.store(&mut |_| panic!("there is room")) {}
    let counts = pager.counts();
    assert_eq!((counts.went_out, counts.zero_pages, counts.stored, counts.store_frames), (1, 1, 0, 0));
    assert!(touch(&pager, 0).is_some());
    assert_eq!(pager.counts().refaults, 1);
}

#[test]
fn a_page_that_is_accessed_on_its_way_out_stays_where_it_is() {
    let frames = SharedFrames::new(1, 32);
    let pager = pager(2, 1, &frames);
    let first = touch(&pager, 0);
    (1..3).for_each(|page| assert!(touch(&pager, page).is_some()));
    assert_eq!(pager.choose(&mut Idle)[0].page, Gfn(0));
    assert_eq!(touch(&pager, 0), first);
    assert!(!pager.store(&mut |_| panic!("nothing is leaving")));
    assert_eq!((pager.counts().rescued, pager.counts().went_out), (1, 0));
    pager.check();
}

#[test]
fn what_finds_no_room_stays_and_the_pager_says_why() {
    let frames = SharedFrames::new(1, 32);
    let pager = pager(2, 1, &frames);
    for page in 0..4 {
        let frame = touch(&pager, page).unwrap();
        // Noise: each takes more than a frame of the store.
        let mut word = page + 1;
        let noise: Vec<u8> = (0..PAGE_SIZE)
            .map(|_| {
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (word >> 56) as u8
            })
            .collect();
        frames.write(frame.base(), &noise);
    }
    let leaving = pager.choose(&mut Idle);
    let mut back = Vec::new();
    while pager.store(&mut |page| back.push(page)) {}
    assert_eq!((leaving.len(), back.len()), (2, 2));
    assert_eq!(pager.failure(), Some(Failure::StoreFull));
    assert!(pager.wants_service());
    pager.check();
    pager.reset();
    assert_eq!((pager.failure(), frames.free()), (None, 32));
}

#[test]
fn without_a_frame_the_page_stays_absent() {
    let frames = SharedFrames::new(1, 2);
    let pager = pager(4, 1, &frames);
    assert!(touch(&pager, 0).is_some() && touch(&pager, 1).is_some());
    assert_eq!((touch(&pager, 2), pager.failure()), (None, Some(Failure::NoFrame)));
    drop(pager);
    assert_eq!(frames.free(), 2);
}

/// Compression and its opposite are another crate's: what is kept is what was there, of every kind of page.
#[test]
fn pages_come_back_as_they_went() {
    let frames = SharedFrames::new(1, 80);
    let pager = pager(2, 40, &frames);
    let bytes = |page: u64| -> Vec<u8> { (0..PAGE_SIZE).map(|n| (n * page / 7 % 251) as u8).collect() };
    let mut at = std::collections::BTreeMap::new();
    for round in 0..2 {
        for page in 0..40 {
            if let Some(frame) = touch(&pager, page) {
                at.insert(page, frame);
            }
            let mut found = vec![0; PAGE_SIZE as usize];
            frames.read(at[&page].base(), &mut found);
            assert!(round == 0 || found == bytes(page), "page {page}");
            frames.write(at[&page].base(), &bytes(page));
            pager.choose(&mut Idle).iter().for_each(|gone| assert!(at.remove(&gone.page.0).is_some()));
            while pager.store(&mut |_| panic!("there is room")) {}
        }
    }
    let counts = pager.counts();
    assert!(counts.compressed_to < counts.compressed_from && counts.refaults >= 38, "{counts:?}");
}

fn discard(pager: &Pager, page: u64) -> Option<Hfn> {
    let mut frame = None;
    let done = pager.discard(Gfn(page), &mut |it| frame.replace(it).is_none());
    assert!(done, "page {page}");
    frame
}

fn store_all(pager: &Pager) {
    while pager.store(&mut |_| panic!("there is room")) {}
}

#[test]
fn a_page_that_is_discarded_is_all_zeroes_and_its_frame_goes_back_when_processors_have_forgotten_it() {
    let frames = SharedFrames::new(1, 32);
    let pager = pager(8, 1, &frames);
    let first = touch(&pager, 3).unwrap();
    frames.write(first.base(), &[1; PAGE_SIZE as usize]);
    assert_eq!(discard(&pager, 3), Some(first));
    let second = touch(&pager, 3).unwrap();
    assert_ne!(first, second, "processors may reach it still");
    let mut found = vec![1; PAGE_SIZE as usize];
    frames.read(second.base(), &mut found);
    assert!(found.iter().all(|byte| *byte == 0));
    store_all(&pager);
    let counts = pager.counts();
    assert_eq!((counts.discarded, counts.refaults, counts.resident), (1, 0, 1));
    // What was never touched, or has gone, stays so; what is no memory is none of its pages.
    assert_eq!((discard(&pager, 3), discard(&pager, 3), discard(&pager, 9)), (Some(second), None, None));
    assert!(!pager.discard(Gfn(64), &mut |_| panic!("no page")));
    assert!(!pager.discard(Gfn(u64::MAX), &mut |_| panic!("no page")));
    // One that cannot be taken away stays as it is.
    let third = touch(&pager, 3).unwrap();
    assert!(!pager.discard(Gfn(3), &mut |_| false));
    assert_eq!((touch(&pager, 3), discard(&pager, 3)), (None, Some(third)));
    pager.check();
}

#[test]
fn what_is_discarded_makes_room_before_anything_is_evicted() {
    let frames = SharedFrames::new(1, 200);
    let pager = pager(40, 8, &frames);
    (0..40).for_each(|page| assert!(touch(&pager, page).is_some()));
    (0..20).for_each(|page| assert!(discard(&pager, page).is_some()));
    store_all(&pager);
    assert_eq!(pager.counts().resident, 20);
    // As many as have gone, some of them the same, and a batch less one that arrives.
    let arrive = (0..7).chain(40..64).chain(7..20).take(20 + BATCH - 1);
    arrive.clone().for_each(|page| assert!(touch(&pager, page).is_some()));
    assert!(!pager.wants_service());
    assert!(pager.choose(&mut Idle).len() < BATCH, "an early caller");
    store_all(&pager);
    assert!(pager.counts().resident >= 40);
    pager.check();
    let counts = pager.counts();
    assert_eq!(counts.went_out, arrive.count() as u64 + 20 - 40 - (counts.resident - 40));
}

#[test]
fn what_is_stored_and_not_wanted_leaves_the_store() {
    let frames = SharedFrames::new(1, 32);
    let pager = pager(2, 4, &frames);
    for page in 0..4 {
        let frame = touch(&pager, page).unwrap();
        frames.write(frame.base(), &[page as u8 + 1; PAGE_SIZE as usize]);
    }
    assert_eq!(pager.choose(&mut Idle).len(), 2);
    // One of them on its way out: nothing is compressed.
    assert_eq!(discard(&pager, 0), None);
    store_all(&pager);
    assert_eq!((pager.counts().went_out, pager.counts().stored), (1, 1));
    assert_eq!(discard(&pager, 1), None);
    assert_eq!((pager.counts().stored, pager.counts().store_frames, pager.counts().discarded), (0, 0, 2));
    let (frame, mut found) = (touch(&pager, 1).unwrap(), vec![1; PAGE_SIZE as usize]);
    frames.read(frame.base(), &mut found);
    assert!(found.iter().all(|byte| *byte == 0));
    pager.check();
}

/// A guest that touches and gives back for ever: what the pager remembers of vacant places is bounded.
#[test]
fn vacant_places_are_bounded() {
    let frames = SharedFrames::new(1, 80);
    let pager = pager(2, 1, &frames);
    for round in 0..400 {
        let page = round % 64;
        assert!(touch(&pager, page).is_some());
        discard(&pager, page);
        pager.choose(&mut Idle);
        store_all(&pager);
        pager.check();
    }
    let counts = pager.counts();
    assert_eq!((counts.resident, counts.went_out, counts.discarded, frames.free()), (0, 0, 400, 79));
}

#[test]
fn one_processor_at_a_time_takes_pages_away() {
    let pager = pager(2, 1, &SharedFrames::new(1, 8));
    let turn = pager.turn();
    assert!(turn.is_some() && pager.turn().is_none());
    drop(turn);
    assert!(pager.turn().is_some());
}
