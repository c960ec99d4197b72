//! Places of pieces: growth, and what there is no room for.

use super::*;

const FULL: [u64; FRAME_WORDS] = [u64::MAX; FRAME_WORDS];

fn begun(places: usize) -> UsedFrames {
    let mut used = UsedFrames::default();
    assert!(used.begin(1, places));
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
    assert!(used.begin(2, PLACES));
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
