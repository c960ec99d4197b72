//! Leaves go together or one by one: what is left, against a list of what should be.

use super::*;
use crate::paging::arena::Arena;
use crate::paging::format::ept::Ept;
use crate::paging::format::npt::Npt;
use crate::paging::format::x86::{DIRTY, PRESENT, WRITE};
use crate::paging::guest_walk::PagingKind;
use crate::paging::random::Random;
use crate::paging::shadow::role::{Allowed, Controls, Role, Source};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The memory that goes begins here.
const FIRST: u64 = 0x600;

/// A page of this level.
pub(in super::super) fn page<F: PteFormat>(pool: &mut Pool<&Arena, F>, number: u64, level: u8) -> PageId {
    let role = Role {
        level,
        kind: PagingKind::Off,
        quadrant: 0,
        controls: Controls::empty(),
        allowed: Allowed::all(),
        source: Source::Direct(0),
        tree: TreeKey::FIRST,
        guarded: false,
    };
    pool.begin();
    pool.create(Key::new(number, role), Gfn(number))
}

/// Pages with runs of leaves at random; then some frames go.
fn what_goes<F: PteFormat>(seed: u64) {
    let mut random = Random(seed);
    let arena = Arena::new(400);
    let mut pool = Pool::<&Arena, F>::new(&arena, Limit::pages(64), 40).unwrap();
    let list = |frame: u64| pool.reverse_map(Hfn(frame).base().0, 1);
    // The leaves that lead there are on the same lists.
    let other = (1..).map(|n| FIRST + n * LARGE_FRAMES).find(|&frame| list(frame) == list(FIRST)).unwrap();
    let pages: Vec<PageId> = (0..4).map(|n| page(&mut pool, n, 1)).collect();
    let mut leaves = BTreeMap::new();
    for _ in 0..random.draw() % 40 {
        let id = pages[random.draw() as usize % pages.len()];
        let to = if random.once_in(4) { other } else { FIRST };
        let (first, count) = (random.draw() % 64, 1 + random.draw() % 24);
        // Most have the place in their page that they have in memory.
        let shift = if random.once_in(3) { random.draw() % 20 } else { 0 };
        for n in first..first + count {
            let index = (n + shift) as usize;
            let bits = if random.once_in(50) { PRESENT | WRITE | DIRTY } else { PRESENT };
            let raw = Hfn(to + n).base().0 | bits;
            if leaves.insert((id, index), raw).is_some() {
                pool.zap(id, index);
            }
            pool.map(id, index, raw, n);
        }
    }
    pool.stale = 0;
    let frames = FIRST + random.draw() % 16..FIRST + 17 + random.draw() % 80;
    let goes = |raw: &u64| frames.contains(&Hpa(raw & ADDRESS).frame().0);
    let stale = leaves.values().filter(|raw| goes(raw)).fold(0, |stale, raw| stale | raw);
    assert_eq!(pool.unmap(Hfn(frames.start), frames.end - frames.start), stale != 0);
    assert_eq!(pool.stale, stale, "seed {seed}");
    leaves.retain(|_, raw| !goes(raw));
    pool.check_lists().unwrap_or_else(|broken| panic!("seed {seed}: {broken:?}"));
    let left: BTreeMap<_, _> = pool.leaves().map(|(id, index, raw)| ((id, index), raw)).collect();
    assert_eq!(left, leaves, "seed {seed}");
}

#[test]
fn leaves_to_frames_that_go_go_and_no_others() {
    for seed in 0..300 {
        what_goes::<Npt>(seed);
        what_goes::<Ept>(seed);
    }
}
