//! A VM whose pages leave by a policy, beside a model, and what must hold of all policies.

mod model;
mod pieces;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::vec::Vec;

use abi::config::Replacement as Name;
use abi::tiers::{HotPolicy, Sharing};
use proptest::prelude::*;
use records::tiers::WINDOWS;

use self::model::Model;
use super::*;
use crate::arch::addr::{Gfn, Hfn};
use crate::mem::tier::pool::FastPool;
use crate::mem::tier::residents::MAX_STEPS;
use crate::mem::tier::sharing::{Demand, EState};
use crate::mem::tier::tests::{NoBytes, Table, home, pool, tiers};
use crate::mem::tier::{BATCH, Grain, Outcome};
use crate::paging::random::Random;

const FRAMES: u32 = 200;
/// Pages that are ever accessed.
const PAGES: u32 = 500;

/// One more sample.
fn sample(table: &mut Table, is_accessed: impl Fn(u32) -> bool) {
    for page in 0..PAGES {
        let history = table.history(page.into()) >> 1 | u32::from(is_accessed(page)) << 31;
        table.set(page.into(), history);
    }
}

impl Table {
    fn history(&self, page: u64) -> u32 {
        Heat::history(self, Gfn(page))
    }
}

fn machine(name: Name, sharing: Sharing) -> (Arc<FastPool>, Tiers) {
    let pool = pool(FRAMES.into(), sharing);
    let tiers = tiers(&pool, 0, HotPolicy::Threshold).evict_by(name).unwrap();
    let objects = tiers.objects();
    assert_eq!(objects.is_some(), name == Name::Apr);
    if let Some(objects) = objects {
        (0..PAGES).for_each(|page| objects.set(Gfn(page.into()), model::region(page)));
    }
    (pool, tiers)
}

fn residents(tiers: &Tiers) -> BTreeSet<u32> {
    let state = tiers.state.lock();
    state.residents.as_ref().unwrap().pages().collect()
}

/// Settles all that is due; pages of `pinned` cannot move. The pages in fast memory follow in `fast`.
fn perform(tiers: &Tiers, fast: &mut BTreeSet<u64>, pinned: &[u64]) {
    while tiers.has_moves() {
        while let Some(wish) = tiers.next_piece() {
            tiers.settle_piece(&wish, Outcome::Pinned, false);
        }
        for wish in tiers.batch(BATCH) {
            if pinned.contains(&wish.page.0) {
                tiers.settle(&wish, Outcome::Pinned);
            } else if wish.home.is_some() {
                assert!(fast.remove(&wish.page.0));
                tiers.settle(&wish, Outcome::Discarded);
            } else {
                assert!(fast.insert(wish.page.0));
                tiers.settle(&wish, Outcome::Moved(home(wish.page)));
            }
        }
    }
}

fn pass(tiers: &Tiers, table: &Table) {
    assert!(tiers.pass(table, &table.histogram(), 0).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]

    /// Hot sets that change, moves that fail or are not tried before the next pass, and E-states.
    #[test]
    fn pages_are_where_a_model_has_them(seed in any::<u64>()) {
        for name in Name::ALL {
            let (pool, tiers) = machine(*name, Sharing::EstateQos);
            let (mut model, mut table) = (Model::new(*name), Table::default());
            let mut random = Random(seed | 1);
            let mut places: BTreeMap<u64, Hfn> = BTreeMap::new();
            // Groups of 50 pages, of which some are in use.
            let mut in_use = 0u64;
            tiers.set_state(EState::new(0)).unwrap();
            for n in 0..100 {
                if n % 30 == 0 {
                    in_use = random.draw();
                }
                let seed = random.draw();
                sample(&mut table, |page| {
                    let draw = Random(seed ^ u64::from(page) << 32 | 1).draw() % 100;
                    draw < if in_use >> (page / 50) & 1 != 0 { 92 } else { 2 }
                });
                if random.once_in(25) {
                    tiers.set_state(EState::new((random.draw() % 8) as u8)).unwrap();
                }
                pass(&tiers, &table);
                let share = tiers.view().share as usize;
                model.pass(&table, share);
                for _ in 0..[0, 1, 3, 99][random.draw() as usize % 4] {
                    while let Some(wish) = tiers.next_piece() {
                        tiers.settle_piece(&wish, Outcome::Pinned, false);
                    }
                    let wishes = tiers.batch(BATCH);
                    let moves: Vec<_> = wishes.iter().map(|wish| (wish.page.0 as u32, wish.home.is_some())).collect();
                    prop_assert_eq!(&moves, &model.batch(share), "{}, pass {}", name, n);
                    for wish in &wishes {
                        let failed = match random.draw() % 10 {
                            0 => Some(Outcome::Busy),
                            1 => Some(Outcome::Pinned),
                            _ => None,
                        };
                        model.settle(wish.page.0 as u32, wish.home.is_some(), failed);
                        match (failed, wish.home) {
                            (Some(failed), _) => tiers.settle(wish, failed),
                            (None, Some(back)) => {
                                prop_assert_eq!((places.remove(&wish.page.0), back), (Some(wish.fast), home(wish.page)));
                                tiers.settle(wish, Outcome::Moved(back));
                            }
                            (None, None) => {
                                prop_assert_eq!(places.insert(wish.page.0, wish.fast), None);
                                tiers.settle(wish, Outcome::Moved(home(wish.page)));
                            }
                        }
                    }
                }
                let fast: BTreeSet<u32> = places.keys().map(|page| *page as u32).collect();
                prop_assert_eq!(&fast, &model.fast, "{}, pass {}", name, n);
                prop_assert_eq!(residents(&tiers), model.residents.clone(), "{}, pass {}", name, n);
                let view = tiers.view();
                prop_assert_eq!((view.counts.evicted, view.fast as usize), (model.evicted, fast.len()));
                prop_assert_eq!((pool.free() as usize, view.waiting as usize), (FRAMES as usize - fast.len(), model.slow.len()));
            }
            prop_assert!(tiers.view().counts.evicted > 0, "{} evicts", name);
            drop(tiers);
            prop_assert_eq!(pool.free(), FRAMES);
        }
    }
}

#[test]
fn nothing_leaves_while_there_is_room() {
    for name in Name::ALL {
        let (_, tiers) = machine(*name, Sharing::EstateQos);
        let (mut table, mut fast) = (Table::default(), BTreeSet::new());
        // A share of 100 frames is filled, then 90 pages more than it are hot, of which half find room when it grows.
        for (state, hot, frames, evicted) in [
            (4, 0..100, 100, 0),
            (4, 0..0, 100, 0),
            (2, 200..250, 150, 0),
            (2, 0..0, 150, 0),
            (2, 300..310, 150, 10),
        ] {
            tiers.set_state(EState::new(state)).unwrap();
            for _ in 0..40 {
                sample(&mut table, |page| hot.contains(&page));
                pass(&tiers, &table);
                perform(&tiers, &mut fast, &[]);
            }
            let counts = tiers.view().counts;
            assert_eq!((fast.len(), counts.evicted, counts.moved_out), (frames, evicted, evicted), "{name}");
        }
        assert!((300..310).all(|page| fast.contains(&page)), "{name}: what comes is there");
        // Less for it: what is above the share leaves, and no more.
        tiers.set_state(EState::new(4)).unwrap();
        pass(&tiers, &table);
        perform(&tiers, &mut fast, &[]);
        assert_eq!((fast.len(), tiers.view().counts.evicted), (100, 60), "{name}");
    }
}

#[test]
fn a_page_that_cannot_move_has_others_leave_once() {
    for name in Name::ALL {
        let (_, tiers) = machine(*name, Sharing::Shares);
        let (mut table, mut fast) = (Table::default(), BTreeSet::new());
        for n in 0..100 {
            // All that fits, then one page more.
            sample(&mut table, |page| page < FRAMES || n > 40 && page == FRAMES);
            pass(&tiers, &table);
            perform(&tiers, &mut fast, &[FRAMES.into()]);
        }
        let counts = tiers.view().counts;
        // What left for it is hot, and comes back to the place that is free.
        assert!((1..=3).contains(&counts.pinned) && counts.evicted <= counts.pinned, "{name}: {counts:?}");
        assert_eq!((counts.evicted, fast.len()), (counts.moved_out, FRAMES as usize), "{name}");
    }
}

#[test]
fn pages_that_could_not_come_have_their_turn_again() {
    // One pass in two looks at each of 1024 pages.
    let pool = pool(2000, Sharing::Shares);
    let tiers = tiers(&pool, 0, HotPolicy::Threshold).evict_by(Name::Clock).unwrap();
    let mut table = Table::default();
    let all = (0..768).chain((1 << 20)..(1 << 20) + 256);
    all.clone().for_each(|page| table.set(page, u32::MAX));
    let mut tries: BTreeMap<u64, u32> = BTreeMap::new();
    for _ in 0..140 {
        pass(&tiers, &table);
        while tiers.has_moves() {
            while let Some(wish) = tiers.next_piece() {
                tiers.settle_piece(&wish, Outcome::Pinned, false);
            }
            for wish in tiers.batch(BATCH) {
                *tries.entry(wish.page.0).or_default() += 1;
                tiers.settle(&wish, Outcome::Pinned);
            }
        }
    }
    assert!(all.clone().all(|page| (2..=4).contains(&tries[&page])), "{tries:?}");
}

/// A pool without a run of 2 MiB.
fn large_machine(name: Name, frames: u32) -> Tiers {
    let ranges =
        (0..u64::from(frames) / 500).map(|n| Hfn((1 << 20) + n * 512 + 1)..Hfn((1 << 20) + n * 512 + 501));
    let pool = Arc::new(FastPool::new(ranges, Sharing::Shares).unwrap());
    let span = Span { low: 2 * frames, high_start: Gfn(1 << 30), high: 0 };
    let tiers = Tiers::new(pool, 0, Demand::new(1, None), span, HotPolicy::Threshold, Box::new(NoBytes));
    tiers.unwrap().evict_by(name).unwrap()
}

/// The pages below this one are accessed in each sample.
struct Below(u64);

impl Heat for Below {
    fn history(&self, page: Gfn) -> u32 {
        if page.0 < self.0 { u32::MAX } else { 0 }
    }

    fn hot(&self, first: Gfn, _: u8) -> u64 {
        let pages = self.0.saturating_sub(first.0).min(64);
        (1u128 << pages).wrapping_sub(1) as u64
    }

    fn recent(&self, first: Gfn) -> [u64; WINDOWS] {
        [self.hot(first, 1); WINDOWS]
    }

    fn grain(&self, _: Gfn) -> Grain {
        Grain::Page
    }
}

#[test]
fn a_pass_ends_when_the_policy_has_gone_over_enough() {
    const LARGE: u32 = 20_000;
    for name in [Name::Clock, Name::ClockPro, Name::Apr, Name::S3Fifo] {
        let tiers = large_machine(name, LARGE);
        let mut fast = BTreeSet::new();
        while tiers.view().fast < LARGE {
            let _none = tiers.pass(&Below(LARGE.into()), &[0; 32], 0);
            perform(&tiers, &mut fast, &[]);
        }
        let (mut most, mut passes) = (0, 0);
        while tiers.view().counts.evicted < 400 && passes < 60 {
            let _none = tiers.pass(&Below(u64::from(LARGE) + 400), &[0; 32], 0);
            most = most.max(tiers.state.lock().residents.as_ref().unwrap().steps());
            perform(&tiers, &mut fast, &[]);
            passes += 1;
        }
        println!("{name}: {most} entries in a pass, {passes} passes for 400 pages");
        // CLOCK takes the next page; APR passes over those that it has seen, the others over those that are not in question.
        let more = if name == Name::Clock { 1 } else { 2 * LARGE };
        assert!(most <= MAX_STEPS + more, "{name}: {most}");
        assert!(most > MAX_STEPS || name == Name::S3Fifo, "{name}: {most}, and nothing was to be stopped");
    }
}
