//! Each part beside a naive model, and a whole VM whose pages must be where the list says.

use std::collections::{BTreeMap, BTreeSet};

use abi::tiers::Sharing;
use proptest::prelude::*;

use super::*;
use crate::arch::addr::PAGE_SIZE;
use crate::mem::tier::list::Placed;
use crate::mem::tier::migration::{Move, Way};
use crate::mem::tier::sharing::STEPS;

const PAGES: u32 = 1024;

/// Copies nothing: contents are the model's.
#[derive(Debug)]
pub(crate) struct NoBytes;

impl CopyFrame for NoBytes {
    fn copy(&self, _: Hfn, _: Hfn) {}
    fn wipe(&self, _: Hfn) {}
}

/// Histories by page; all leaves of the pages in `large` are large.
#[derive(Default)]
pub(crate) struct Table {
    histories: BTreeMap<u64, u32>,
    pub(crate) large: BTreeSet<u64>,
}

impl Heat for Table {
    fn history(&self, page: Gfn) -> u32 {
        self.histories.get(&page.0).copied().unwrap_or(0)
    }

    fn hot(&self, first: Gfn, least: u8) -> u64 {
        let is_hot = |n: &u64| self.history(Gfn(first.0 + n)).count_ones() >= least.into();
        (0..64).filter(is_hot).fold(0, |mask, n| mask | 1 << n)
    }

    fn recent(&self, first: Gfn) -> [u64; WINDOWS] {
        let is_recent = |page, samples| self.history(page).leading_zeros() < samples;
        let pages = |samples| {
            (0..64u64).fold(0, |mask, n| mask | u64::from(is_recent(Gfn(first.0 + n), samples)) << n)
        };
        [1, 2, 4, 8, 16, 32].map(pages)
    }

    fn grain(&self, page: Gfn) -> Grain {
        let is_large = self.large.contains(&(page.0 / 512));
        if is_large { Grain::Large } else { Grain::Page }
    }
}

impl Table {
    pub(crate) fn set(&mut self, page: u64, history: u32) {
        self.histories.insert(page, history);
    }

    pub(crate) fn histogram(&self) -> Histogram {
        let mut histogram = [0; 32];
        for history in self.histories.values().filter(|history| **history != 0) {
            histogram[history.count_ones().min(31) as usize] += 1;
        }
        histogram
    }
}

pub(crate) fn pool(frames: u64, sharing: Sharing) -> Arc<FastPool> {
    let half = frames / 2;
    let ranges = [Hfn(1 << 20)..Hfn((1 << 20) + half), Hfn(1 << 21)..Hfn((1 << 21) + frames - half)];
    Arc::new(FastPool::new(ranges, sharing).unwrap())
}

pub(crate) fn tiers(pool: &Arc<FastPool>, vm: usize, policy: HotPolicy) -> Tiers {
    let span = Span { low: PAGES - 256, high_start: Gfn(1 << 20), high: 256 };
    let demand = Demand::new(1, None);
    Tiers::new(pool.clone(), vm, demand, span, policy, Box::new(NoBytes)).unwrap()
}

pub(crate) fn home(page: Gfn) -> Hfn {
    Hfn(page.0 + 10 * 512)
}

/// Moves all that is due; where each page is follows in `places`.
fn perform(tiers: &Tiers, places: &mut BTreeMap<u64, Hfn>, mut outcome: impl FnMut() -> Option<Outcome>) {
    while tiers.has_moves() {
        // `large::tests` has pieces: here no run is large enough, and all that is joined is so already.
        while let Some(wish) = tiers.next_piece() {
            tiers.settle_piece(&wish, Outcome::Pinned, false);
        }
        for wish in tiers.batch(BATCH) {
            let from = places.get(&wish.page.0).copied().unwrap_or(home(wish.page));
            if let Some(other) = outcome() {
                tiers.settle(&wish, other);
                continue;
            }
            match wish.home {
                Some(back) => {
                    assert_eq!((back, from), (home(wish.page), wish.fast));
                    places.remove(&wish.page.0);
                    let is_clean = wish.page.0 % 3 == 0;
                    tiers.settle(&wish, if is_clean { Outcome::Discarded } else { Outcome::Moved(back) });
                }
                None => {
                    assert_eq!(from, home(wish.page));
                    assert!(!places.values().any(|other| *other == wish.fast), "two pages in one frame");
                    places.insert(wish.page.0, wish.fast);
                    tiers.settle(&wish, Outcome::Moved(from));
                }
            }
        }
    }
}

#[test]
fn hot_pages_come_in_and_go_out_only_when_others_want_the_room() {
    let pool = pool(100, Sharing::Shares);
    let tiers = tiers(&pool, 0, HotPolicy::Threshold);
    let mut table = Table::default();
    let mut places = BTreeMap::new();
    let pass = |table: &Table| tiers.pass(table, &table.histogram(), 0);
    // 22 ones are hot, 21 are not.
    (0..80).for_each(|page| table.set(page, 0x003f_ffff));
    (80..90).for_each(|page| table.set(page, 0x001f_ffff));
    assert!(pass(&table).is_empty());
    perform(&tiers, &mut places, || None);
    assert_eq!((tiers.view().fast, places.len(), pool.free()), (80, 80, 20));
    // Inactive: nothing in the latest 30 samples. No page wants the room, and they stay.
    (0..80).for_each(|page| table.set(page, 3));
    pass(&table);
    assert!(!tiers.has_moves());
    // 50 others are hot, in the upper part of memory.
    (0..50).for_each(|page| table.set((1 << 20) + page, u32::MAX));
    pass(&table);
    perform(&tiers, &mut places, || None);
    let view = tiers.view();
    assert_eq!((view.counts.moved_out, view.counts.moved_in, view.fast), (30, 130, 100));
    assert_eq!(places.keys().filter(|page| **page >= 1 << 20).count(), 50);
    drop(tiers);
    assert_eq!(pool.free(), 100, "all is given back");
}

#[test]
fn pages_of_large_leaves_are_not_listed_but_split() {
    let pool = pool(100, Sharing::Shares);
    let tiers = tiers(&pool, 0, HotPolicy::Threshold);
    let mut table = Table::default();
    (0..768).for_each(|page| table.set(page, u32::MAX));
    table.large.insert(0);
    assert_eq!(tiers.pass(&table, &table.histogram(), 0)[..], [Gfn(0)]);
    let view = tiers.view();
    assert_eq!((view.counts.splits, view.counts.listed), (1, 256));
    assert!(tiers.has_moves());
}

#[test]
fn an_e_state_moves_pages_also_if_they_are_active() {
    let pool = pool(160, Sharing::EstateQos);
    let tiers = tiers(&pool, 1, HotPolicy::Threshold);
    let mut table = Table::default();
    (0..300).for_each(|page| table.set(page, u32::MAX));
    let mut places = BTreeMap::new();
    for (state, frames) in [(0, 160), (6, 40), (7, 20), (3, 100)] {
        tiers.set_state(EState::new(state)).unwrap();
        for _ in 0..4 {
            tiers.pass(&table, &table.histogram(), 0);
            perform(&tiers, &mut places, || None);
        }
        assert_eq!((tiers.view().fast, places.len()), (frames, frames as usize), "E{state}");
    }
    let other = super::tests::tiers(&pool, 0, HotPolicy::Threshold);
    assert_eq!(other.set_state(EState::new(0)), Err(TooMuch { wanted: 160, left: 60 }));
    other.set_state(EState::new(5)).unwrap();
    assert_eq!(other.view().share, 60);
    assert_eq!((EState::new(STEPS), EState::new(2)), (None, Some(EState::new(2).unwrap())));
}

#[test]
fn the_histogram_policy_takes_as_many_as_there_is_room_for() {
    let pool = pool(100, Sharing::Shares);
    let tiers = tiers(&pool, 0, HotPolicy::Histogram);
    let mut table = Table::default();
    // None reaches the thesis' threshold.
    (0..90).for_each(|page| table.set(page, 0xfff));
    (90..500).for_each(|page| table.set(page, 0xff));
    let mut places = BTreeMap::new();
    tiers.pass(&table, &table.histogram(), 0);
    assert_eq!(tiers.view().hot, 9, "the 410 with eight ones do not fit");
    perform(&tiers, &mut places, || None);
    assert_eq!(places.keys().copied().collect::<Vec<_>>(), (0..90).collect::<Vec<_>>());
}

/// What is there leaves for what is not, though all of it is accessed all the time, and a pass moves as many as it may.
#[test]
fn rotation_moves_all_that_is_accessed() {
    let (pool, pages) = (pool(300, Sharing::Shares), u64::from(PAGES - 256));
    let tiers = tiers(&pool, 0, HotPolicy::Rotate);
    let mut table = Table::default();
    (0..pages).for_each(|page| table.set(page, 1));
    let (mut places, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let mut moves = Vec::new();
    for _ in 0..8 {
        tiers.pass(&table, &table.histogram(), 0);
        perform(&tiers, &mut places, || None);
        seen.extend(places.keys().copied());
        let counts = tiers.view().counts;
        moves.push(counts.moved_in + counts.moved_out);
        assert!(places.len() <= 300);
    }
    assert_eq!(seen.len() as u64, pages, "each was in fast memory once");
    assert!(moves.windows(2).skip(1).all(|pair| pair[1] - pair[0] >= 500), "{moves:?}");
}

#[test]
fn lists_take_few_bytes_for_a_page() {
    for (mib, fast_mib) in [(64u32, 8u32), (512, 64), (4096, 512), (512, 512)] {
        let (pages, fast) = (mib * 256, fast_mib * 256);
        let bytes = Tiers::bytes_for(pages, fast) as f64 / f64::from(pages);
        println!("{mib} MiB with {fast_mib} MiB of fast memory: {bytes:.1} bytes for a page");
        assert!(bytes <= if fast < pages { 9.2 } else { 40.5 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A list beside two vectors.
    #[test]
    fn a_list_is_two_queues(most in 0u32..30, ops in prop::collection::vec((0u8..5, 0u32..40), 0..200)) {
        let mut list = HotList::new(40, most, 64).unwrap();
        let mut model: [Vec<u32>; 2] = Default::default();
        for (op, page) in ops {
            let listed = model.iter().position(|side| side.contains(&page));
            match op {
                0 => {
                    let fits = listed.is_none() && model[0].len() + model[1].len() < most as usize;
                    prop_assert_eq!(list.add(page), fits);
                    if fits {
                        model[0].insert(0, page);
                    }
                }
                1 | 2 => {
                    let side = if op == 1 { Side::Slow } else { Side::Fast };
                    let oldest = model[side as usize].pop();
                    prop_assert_eq!(list.next_oldest(side), oldest);
                    oldest.into_iter().for_each(|page| model[side as usize].insert(0, page));
                }
                3 => {
                    list.remove(page);
                    model[0].retain(|other| *other != page);
                }
                _ => {
                    let to_fast = listed == Some(0);
                    let placed = Placed { fast: page + 1, home: page + 2 };
                    list.place(page, to_fast.then_some(placed));
                    if let Some(from) = listed {
                        model[from].retain(|other| *other != page);
                        model[usize::from(to_fast)].insert(0, page);
                        prop_assert_eq!(list.placed(page), to_fast.then_some(placed));
                    }
                }
            }
            prop_assert_eq!([list.order(Side::Slow), list.order(Side::Fast)], model.clone());
            prop_assert_eq!(list.is_full(), model[0].len() + model[1].len() == most as usize);
        }
    }

    /// Random histories, outcomes and E-states: frames are never lost nor given twice, and no VM has more than its share for long.
    #[test]
    fn frames_are_where_the_list_says(seeds in prop::collection::vec(any::<u64>(), 1..30), policy in 0usize..3) {
        let pool = pool(200, Sharing::EstateResource);
        let tiers = tiers(&pool, 0, [HotPolicy::Threshold, HotPolicy::Histogram, HotPolicy::Rotate][policy]);
        let (mut table, mut places) = (Table::default(), BTreeMap::new());
        for seed in seeds {
            let mut random = crate::paging::random::Random(seed | 1);
            for _ in 0..200 {
                let page = random.draw() % u64::from(PAGES - 256);
                let history = [0, 3, 0xff, u32::MAX][random.draw() as usize % 4];
                table.histories.insert(page, history);
            }
            if random.once_in(4) {
                let state = EState::new((random.draw() % 9) as u8);
                tiers.set_state(state).unwrap();
            }
            tiers.pass(&table, &table.histogram(), 10);
            perform(&tiers, &mut places, || match random.draw() % 8 {
                0 => Some(Outcome::Busy),
                1 => Some(Outcome::Pinned),
                _ => None,
            });
            let view = tiers.view();
            prop_assert_eq!(view.fast as usize, places.len());
            prop_assert_eq!(pool.free() as usize, 200 - places.len());
            prop_assert!(view.counts.moved_in - view.counts.moved_out == places.len() as u64);
            prop_assert!(view.counts.discarded <= view.counts.moved_out);
        }
        drop(tiers);
        prop_assert_eq!(pool.free(), 200);
    }
}

#[test]
fn e_states_are_parts_of_what_tables_leave() {
    let pool = pool(160, Sharing::EstateQos);
    (0..8).for_each(|n| assert!(pool.take_for_table(5 + n % 2).is_some()));
    let [one, other] = [0, 1].map(|vm| tiers(&pool, vm, HotPolicy::Threshold));
    one.set_state(EState::new(4)).unwrap();
    assert_eq!(other.set_state(EState::new(3)), Err(TooMuch { wanted: 95, left: 76 }));
    other.set_state(EState::new(4)).unwrap();
    assert_eq!([one.view().share, other.view().share], [76, 76]);
}

#[test]
fn pages_leave_for_tables_that_are_made_later() {
    let pool = pool(160, Sharing::Shares);
    let tiers = tiers(&pool, 0, HotPolicy::Threshold);
    let (mut table, mut places) = (Table::default(), BTreeMap::new());
    let pass = |table: &Table, places: &mut BTreeMap<u64, Hfn>| {
        tiers.pass(table, &table.histogram(), 0);
        perform(&tiers, places, || None);
    };
    (0..158).for_each(|page| table.set(page, u32::MAX));
    pass(&table, &mut places);
    assert_eq!((tiers.view().fast, tiers.view().share), (158, 160));
    (0..2).for_each(|_| assert!(pool.take_for_table(0).is_some()));
    (158..300).for_each(|page| table.set(page, u32::MAX));
    pass(&table, &mut places);
    assert_eq!((tiers.view().fast, tiers.view().share, pool.free()), (158, 158, 0));
    // One that ends, and one that is begun.
    pool.give_back_table(0, 159);
    pass(&table, &mut places);
    assert_eq!((tiers.view().fast, tiers.view().share, pool.free()), (159, 159, 0));
}

/// Bytes of frames, a number for each.
#[derive(Clone, Debug, Default)]
struct Bytes(Arc<Mutex<BTreeMap<u64, u64>>>);

impl CopyFrame for Bytes {
    fn copy(&self, from: Hfn, to: Hfn) {
        let mut bytes = self.0.lock();
        let value = bytes.get(&from.0).copied().unwrap_or(0);
        bytes.insert(to.0, value);
    }

    fn wipe(&self, frame: Hfn) {
        self.0.lock().remove(&frame.0);
    }
}

#[test]
fn a_page_is_put_back_once_and_where_it_may_be() {
    let bytes = Bytes::default();
    let migration = Migration::new(5, Box::new(bytes.clone())).unwrap();
    let moves: Vec<_> =
        [(9u64, Way::Back), (3, Way::Discard), (7, Way::In), (1, Way::Back), (5, Way::Discard)]
            .map(|(n, way)| Move { page: Gfn(n), from: Hfn(n), to: Hfn(n + 100), way })
            .into();
    for page in &moves {
        bytes.0.lock().insert(page.from.0, page.page.0 * PAGE_SIZE);
    }
    assert!(moves.iter().all(|page| migration.add(*page)));
    assert!(!migration.add(Move { page: Gfn(2), ..moves[0] }), "there is no room");
    let mut at = BTreeMap::new();
    let access = |page: u64, at: &mut BTreeMap<u64, u64>| {
        migration.bring_in(Gfn(page), &mut |frame, is_clean| {
            assert_eq!(at.insert(page, frame.0), None, "once");
            assert_eq!(is_clean, page == 3 || page == 7, "one that stays as it was, one that comes in");
        });
    };
    // Too early: a processor may still write the old frame.
    access(3, &mut at);
    access(3, &mut at);
    bytes.0.lock().insert(3, 333);
    bytes.0.lock().insert(7, 777);
    migration.forgotten();
    access(7, &mut at);
    access(6, &mut at);
    bytes.0.lock().insert(105, 555);
    while migration.copy_one(&mut |page, frame, is_clean| {
        assert_eq!((at.insert(page.0, frame.0), is_clean), (None, false));
    }) {}
    assert_eq!(at, BTreeMap::from([(1, 101), (3, 3), (5, 105), (7, 107), (9, 109)]));
    let mut ends = BTreeMap::new();
    migration.end(|page, moved| assert_eq!(ends.insert(page.page.0, moved), None));
    assert_eq!(ends, BTreeMap::from([(1, true), (3, false), (5, true), (7, true), (9, true)]));
    let value = |frame: u64| bytes.0.lock()[&frame];
    assert_eq!([value(107), value(101)], [777, PAGE_SIZE], "with what was written last");
    assert_eq!(value(105), 555, "what is discarded is not copied");
    assert!(!migration.copy_one(&mut |_, _, _| ()), "the next batch begins empty");
    assert!(migration.add(moves[0]));
}
