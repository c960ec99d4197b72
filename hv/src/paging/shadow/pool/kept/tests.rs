//! Leaves of a piece keep their places and what they read, together or one by one: against a list of what should be.

use super::*;
use crate::paging::arena::Arena;
use crate::paging::format::ept::Ept;
use crate::paging::format::npt::Npt;
use crate::paging::format::x86::{DIRTY, LARGE, PRESENT};
use crate::paging::random::Random;
use crate::paging::shadow::pool::unmap::tests::page;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The piece begins here.
const FROM: Hfn = Hfn(0x600);

/// Pages with runs of leaves at random. The piece is protected, or it moves.
fn leaves_stay<F: PteFormat>(seed: u64, moves: bool) {
    let mut random = Random(seed);
    let arena = Arena::new(400);
    let mut pool = Pool::<&Arena, F>::new(&arena, Limit::pages(64), 40).unwrap();
    let list = |frame: u64| pool.reverse_map(Hfn(frame).base().0, 1);
    // Leaves that lead there are on the same lists.
    let same = (1..).map(|n| FROM.0 + n * LARGE_FRAMES).find(|&frame| list(frame) == list(FROM.0)).unwrap();
    let to = Hfn(if random.once_in(4) { same } else { 0x1000 });
    let pages: Vec<PageId> = (0..4).map(|n| page(&mut pool, n, 1)).collect();
    let mut leaves = BTreeMap::new();
    for _ in 0..random.draw() % 40 {
        let id = pages[random.draw() as usize % pages.len()];
        let start = if random.once_in(4) { [same, to.0][random.draw() as usize % 2] } else { FROM.0 };
        let (first, count) = (random.draw() % 448, 1 + random.draw() % 64);
        let shift = if random.once_in(3) { random.draw() % 20 } else { 0 };
        for n in first..(first + count).min(LARGE_FRAMES - shift) {
            let index = (n + shift) as usize;
            let bits = if random.once_in(5) { PRESENT } else { PRESENT | DIRTY | WRITE | HOST_WRITABLE };
            let raw = Hfn(start + n).base().0 | bits;
            if leaves.insert((id, index), raw).is_some() {
                pool.zap(id, index);
            }
            pool.map(id, index, raw, n);
        }
    }
    // Large leaves are on the list that small ones to their first frame are on.
    let upper = page(&mut pool, 4, 2);
    for index in 0..random.draw() as usize % 6 {
        let start = [FROM.0, same, to.0][random.draw() as usize % 3];
        let bits = if random.once_in(3) { PRESENT } else { PRESENT | WRITE | HOST_WRITABLE };
        let raw = Hfn(start).base().0 | bits | LARGE;
        leaves.insert((upper, index), raw);
        pool.map(upper, index, raw, 0);
    }
    let is_there = |raw: u64| {
        let frame = Hpa(raw & ADDRESS).frame().0;
        (FROM.0..FROM.0 + LARGE_FRAMES).contains(&frame)
    };
    let are_there: Vec<u64> = leaves.values().copied().filter(|&raw| is_there(raw)).collect();
    pool.stale = 0;
    if moves {
        assert_eq!(pool.lead_to(FROM, to), !are_there.is_empty());
        assert_eq!(pool.stale, are_there.iter().fold(0, |stale, raw| stale | raw), "seed {seed}");
    } else {
        let any = are_there.iter().any(|raw| raw & WRITE != 0);
        assert_eq!(pool.keep_reads(FROM), any, "seed {seed}");
    }
    for raw in leaves.values_mut().filter(|raw| is_there(**raw)) {
        *raw = if moves { *raw - FROM.base().0 + to.base().0 } else { *raw & !LOST };
    }
    pool.check_lists().unwrap_or_else(|broken| panic!("seed {seed}: {broken:?}"));
    let left: BTreeMap<_, _> = pool.leaves().map(|(id, index, raw)| ((id, index), raw)).collect();
    assert_eq!(left, leaves, "seed {seed}");
    // The lists of the new frames know them.
    assert_eq!(
        pool.unmap(if moves { to } else { FROM }, LARGE_FRAMES),
        left.values().any(|raw| {
            let frame = if moves { to } else { FROM };
            (frame.0..frame.0 + LARGE_FRAMES).contains(&Hpa(raw & ADDRESS).frame().0)
        })
    );
}

#[test]
fn leaves_of_a_piece_stay_and_lose_rights_or_lead_elsewhere() {
    for seed in 0..200 {
        for moves in [false, true] {
            leaves_stay::<Npt>(seed, moves);
            leaves_stay::<Ept>(seed, moves);
        }
    }
}
