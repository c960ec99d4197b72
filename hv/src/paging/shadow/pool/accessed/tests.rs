//! Places of pieces: growth, and what there is no room for.

use super::*;
use crate::mem::table_memory::ENTRIES;
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::format::x86::PRESENT;
use crate::paging::guest_walk::PagingKind;
use crate::paging::shadow::role::{Allowed, Controls, Key, Role, Source};
use crate::paging::tree_key::TreeKey;

const FULL: [u64; FRAME_WORDS] = [u64::MAX; FRAME_WORDS];

fn begun(places: usize) -> UsedFrames {
    let mut used = UsedFrames::default();
    assert!(used.begin(1, true, places).is_some());
    used
}

fn places(used: &UsedFrames) -> usize {
    used.places.as_ref().unwrap().len()
}

/// Whether there was room for all frames of a piece.
fn note(used: &mut UsedFrames, piece: u64) -> bool {
    used.place_after(&mut None, piece * LARGE_FRAMES).map(|place| place.frames = FULL).is_some()
}

fn frames(used: &UsedFrames, piece: u64) -> Option<[u64; FRAME_WORDS]> {
    used.of(Hfn(piece * LARGE_FRAMES)).filter(|place| place.piece != 0).map(|place| place.frames)
}

#[test]
fn places_grow_and_keep_what_is_still_to_be_told() {
    // Pieces far from another, as where the host's memory is in fragments.
    let piece = |n: u64| n * n * 37 + 5;
    let mut used = begun(PROBES);
    for n in 0..500 {
        assert!(note(&mut used, piece(n)));
        // Of each third all was asked for.
        if n % 3 == 0 {
            used.of_mut(Hfn(piece(n) * LARGE_FRAMES)).unwrap().frames = [0; FRAME_WORDS];
        }
    }
    for n in 0..500 {
        let found = frames(&used, piece(n));
        if n % 3 == 0 {
            assert_eq!(found.unwrap_or_default(), [0; FRAME_WORDS]);
        } else {
            assert_eq!(found, Some(FULL), "piece {n}");
            assert_eq!(used.of(Hfn(piece(n) * LARGE_FRAMES)).unwrap().sample, 1);
        }
    }
    assert!(places(&used) <= 4096, "{} places", places(&used));
}

#[test]
fn pieces_with_one_hash_make_no_places_and_are_left_out_for_a_sample() {
    const PLACES: usize = 256;
    let mut used = begun(PLACES);
    let alike: Vec<u64> = (0..).filter(|piece| hash(*piece) % PLACES == 7).take(PROBES + 1).collect();
    let noted = alike.iter().filter(|piece| note(&mut used, **piece)).count();
    assert_eq!((noted, places(&used), used.is_full), (PROBES, PLACES, true));
    assert!(note(&mut used, alike[3]), "it has a place");
    let other = (0..).find(|piece| hash(*piece) % PLACES == 100).unwrap();
    assert!(note(&mut used, other), "there is one free");
    // The next sample tries again: by now there is a reason to grow.
    assert!(used.begin(2, true, PLACES).is_some());
    let more = (0..).filter(|piece| hash(*piece) % PLACES > 100).take(PLACES / 4);
    assert_eq!(more.filter(|piece| !note(&mut used, *piece)).count(), 0);
    assert!(note(&mut used, alike[PROBES]));
    assert_eq!((places(&used), used.is_full), (2 * PLACES, false));
    assert_eq!(frames(&used, alike[0]), Some(FULL));
}

#[test]
fn eight_neighbours_are_noted_at_once() {
    let leaves = |first: u64| core::array::from_fn(|n| (first + n as u64) << 12 | 0x8000_0000_0000_0067);
    for frame in (0..2 * LARGE_FRAMES).chain([ADDRESS >> 12]) {
        let is_in_one = frame % LARGE_FRAMES <= LARGE_FRAMES - 8;
        let mut eight: [u64; 8] = if is_in_one { leaves(frame) } else { leaves(frame & !7) };
        assert_eq!(neighbours(&eight), Some(if is_in_one { frame } else { frame & !7 }));
        let mut place = Place::default();
        place.note(frame, if is_in_one { 0xa5 } else { 1 });
        let noted: Vec<u64> = (0..LARGE_FRAMES)
            .filter(|n| place.frames[(n / 64) as usize] >> (n % 64) & 1 != 0)
            .map(|n| n + frame - frame % LARGE_FRAMES)
            .collect();
        let expected = if is_in_one { vec![0, 2, 5, 7] } else { vec![0] };
        assert_eq!(noted, expected.iter().map(|n| frame + n).collect::<Vec<_>>());
        eight[(frame % 8) as usize] ^= 1 << (12 + frame % 36);
        assert_eq!(neighbours(&eight), None, "one leads elsewhere");
    }
    assert_eq!(neighbours(&leaves(LARGE_FRAMES - 3)), None, "two pieces");
}

/// A pool of which all places hold frames of pieces with one hash, and one more such piece: there is no place for that, and none when they
/// have grown. The key of a page of level 1 that maps memory from frame 0 on.
fn full(arena: &Arena) -> (Pool<&Arena, Npt>, Vec<u64>, Key) {
    let mut pool = Pool::new(arena, Limit::pages(40), 40).unwrap();
    pool.used_frames = begun(PROBES);
    let alike: Vec<u64> =
        (0..).filter(|piece| hash(*piece) % (2 * PROBES) == PROBES + 7).take(PROBES + 1).collect();
    assert!(alike[..PROBES].iter().all(|piece| note(&mut pool.used_frames, *piece)));
    assert_eq!(places(&pool.used_frames), PROBES);
    let (controls, allowed, source) = (Controls::empty(), Allowed::all(), Source::Direct(0));
    let (kind, tree) = (PagingKind::Off, TreeKey::FIRST);
    let role = Role { level: 1, kind, quadrant: 0, controls, allowed, source, tree, guarded: false };
    (pool, alike, Key::new(0, role))
}

#[test]
fn a_piece_without_a_place_leaves_no_other_ones_behind() {
    let arena = Arena::new(100);
    let (mut pool, alike, _) = full(&arena);
    let used = &mut pool.used_frames;
    let first = Hfn(alike[3] * LARGE_FRAMES);
    used.of_mut(first).unwrap().frames = [1; FRAME_WORDS];
    let mut latest = None;
    assert!(used.place_after(&mut latest, first.0).is_some());
    // There is none for this one, but all have moved.
    assert!(used.place_after(&mut latest, alike[PROBES] * LARGE_FRAMES).is_none());
    assert_eq!(places(used), 2 * PROBES);
    used.place_after(&mut latest, first.0).unwrap().note(65, 1);
    let mut expected = [1; FRAME_WORDS];
    expected[1] |= 2;
    assert_eq!(frames(used, alike[3]), Some(expected), "its own place");
}

#[test]
fn leaves_that_cannot_be_noted_stay_for_a_later_sample() {
    const LEAF: u64 = PRESENT | ACCESSED;
    let arena = Arena::new(100);
    let (mut pool, alike, key) = full(&arena);
    pool.begin();
    let id = pool.create(key, Gfn(0));
    let [known, other] = [alike[3], alike[PROBES]].map(|piece| piece * LARGE_FRAMES);
    // Of the first eight two have a place and one has none; the next eight are neighbours without one, and the next have one.
    let leaves = [(0, known + 64), (1, other), (2, known + 65)].into_iter();
    let leaves = leaves.chain((0..8).flat_map(|n| [(8 + n, other + 8 + n), (16 + n, known + 72 + n)]));
    for (index, frame) in leaves {
        pool.map(id, index as usize, frame << 12 | LEAF, 0);
    }
    // An entry that is not filled, whatever its bits, is none.
    pool.memory.store(pool.page(id).frame, 3, (known + 100) << 12 | LEAF);
    pool.used_frames.of_mut(Hfn(known)).unwrap().frames = [1; FRAME_WORDS];
    pool.used_frames.of_mut(Hfn(known)).unwrap().frames[1] = 0;
    let accessed = |pool: &Pool<&Arena, Npt>| -> Vec<usize> {
        let is_accessed = |index: &usize| pool.memory.load(pool.page(id).frame, *index) & ACCESSED != 0;
        (0..ENTRIES).filter(|index| *index != 3 && is_accessed(index)).collect()
    };
    let without = [vec![1], (8..16).collect()].concat();
    pool.page_mut(id).touched = true.into();
    assert!(pool.collect_all(2, false));
    assert_eq!(accessed(&pool), without, "what was noted is cleared");
    assert_eq!(pool.take_used(Hfn(known + 64), u64::MAX), 0xff03);
    assert_eq!(pool.take_used(Hfn(other), u64::MAX), 0);
    let mut used = core::mem::take(&mut pool.used_frames);
    assert_eq!(pool.collect_leaves(pool.page(id), &mut used), (false, true), "nothing to flush");
    pool.used_frames = used;
    assert!(pool.collect_all(3, false), "the page counts as used still");
    assert_eq!(accessed(&pool), [0; 0]);
    assert_eq!(pool.take_used(Hfn(known + 64), u64::MAX), 0, "once");
    assert_eq!(pool.take_used(Hfn(other), u64::MAX), 0xff01);
    assert!(!pool.collect_all(4, false));
}

/// The frames of leaves of four pages, two of a link each, in parts: a pass serves each sample that begins before its end.
#[test]
fn parts_of_a_pass_find_what_one_pass_finds() {
    let arena = Arena::new(100);
    for most in [1, RECORD, ENTRIES, ENTRIES + 1, usize::MAX] {
        let (mut pool, _, key) = full(&arena);
        pool.used_frames = UsedFrames::default();
        pool.begin();
        let ids: Vec<PageId> = (0..4).map(|n| pool.create(key, Gfn(n))).collect();
        let fill = |pool: &mut Pool<&Arena, Npt>, id: PageId| {
            let entry = (u64::from(id) * LARGE_FRAMES + 7) << 12 | PRESENT | ACCESSED;
            pool.map(id, 7, entry, 0);
            pool.page_mut(id).touched = true.into();
        };
        let used = |pool: &mut Pool<&Arena, Npt>| -> Vec<u64> {
            ids.iter().map(|&id| pool.take_used(Hfn(u64::from(id) * LARGE_FRAMES), 1 << 7) >> 7).collect()
        };
        ids.iter().for_each(|&id| fill(&mut pool, id));
        let mut parts = 1;
        let mut done = pool.collect_accessed(5, true, false, most);
        // Another sample begins meanwhile, and goes on with the same pass.
        let mut is_first = true;
        while !done.is_complete {
            assert!(pool.used_frames.pass.is_some());
            done = pool.collect_accessed(6, core::mem::take(&mut is_first), false, most);
            parts += 1;
            assert!(parts < 1000, "a pass ends");
        }
        assert_eq!(parts > 1, most != usize::MAX, "{most}");
        assert_eq!(used(&mut pool), [1; 4], "{most}");
        // The first one learns that it is over, and forgets nothing.
        fill(&mut pool, ids[2]);
        let after = Collected { owes: false, is_complete: true };
        assert_eq!(pool.collect_accessed(5, false, false, most), after);
        assert!(pool.collect_all(7, false));
        assert_eq!(used(&mut pool), [0, 0, 1, 0], "{most}");
        assert_eq!(pool.used_frames.latest, 7);
        // Tables were out of use before sample 8 has asked for anything, or had even found it.
        fill(&mut pool, ids[1]);
        let _may_be_left_half_done = pool.collect_accessed(8, true, false, most);
        let told = |pool: &Pool<&Arena, Npt>, before| {
            pool.used_groups(Hfn(u64::from(ids[1]) * LARGE_FRAMES), before)
        };
        pool.tell_again();
        let _owes = pool.collect_all(9, false);
        assert_eq!(told(&pool, 8), 1, "{most}");
        assert!(!pool.collect_all(10, false) && told(&pool, 9) == 0, "{most}");
    }
}

/// A sample of a VM that was reset begins again, also in the midst of another's pass.
#[test]
fn a_number_that_was_there_before_begins_again() {
    let arena = Arena::new(100);
    let (mut pool, alike, key) = full(&arena);
    pool.begin();
    let _page = pool.create(key, Gfn(0));
    let part = pool.collect_accessed(9, true, false, 1);
    assert!(!part.is_complete && frames(&pool.used_frames, alike[0]).is_some());
    let part = pool.collect_accessed(3, true, false, 1);
    assert!(!part.is_complete && frames(&pool.used_frames, alike[0]).is_none());
    assert_eq!(pool.used_frames.latest, 3);
}
