//! Pieces beside single pages: which move as one, which are split, which are joined.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abi::tiers::{HotPolicy, Sharing};
use proptest::prelude::*;

use super::*;
use crate::arch::addr::Hfn;
use crate::mem::tier::pool::FastPool;
use crate::mem::tier::sharing::{Demand, EState};
use crate::mem::tier::task::{PieceWish, Task};
use crate::mem::tier::tests::{NoBytes, Table, home};
use crate::mem::tier::{BATCH, Outcome, Tiers};

/// A VM of 16 MiB, with fast memory for six pieces, of which five find a run.
fn machine(policy: HotPolicy) -> (Arc<FastPool>, Tiers) {
    let ranges = [
        Hfn((1 << 20) + 100)..Hfn((1 << 20) + 4 * 512),
        Hfn(1 << 21)..Hfn((1 << 21) + 2 * 512 + 90),
        Hfn((1 << 22) + 1)..Hfn((1 << 22) + 500),
    ];
    let pool = Arc::new(FastPool::new(ranges, Sharing::Shares).unwrap());
    let span = Span { low: 8 * PAGES, high_start: Gfn(1 << 20), high: 0 };
    let tiers = Tiers::new(pool.clone(), 0, Demand::new(1, None), span, policy, Box::new(NoBytes)).unwrap();
    (pool, tiers)
}

fn pass(tiers: &Tiers, table: &Table) -> Vec<Gfn> {
    tiers.pass(table, &table.histogram(), 0).to_vec()
}

/// A pass whose leaves are split, with the histories that their pages had; which.
fn split(tiers: &Tiers, table: &mut Table) -> Vec<u64> {
    let pieces: Vec<u64> = pass(tiers, table).iter().map(|first| first.0 / PIECE).collect();
    table.large.retain(|piece| !pieces.contains(piece));
    pieces
}

fn set(table: &mut Table, piece: u64, pages: u64, history: u32) {
    (piece * PIECE..piece * PIECE + pages).for_each(|page| table.set(page, history));
}

/// Does all that is due; `places` has where pages are that are not at home. The wishes.
fn perform(
    tiers: &Tiers,
    table: &mut Table,
    places: &mut BTreeMap<u64, Hfn>,
    mut other: impl FnMut() -> Option<Outcome>,
) -> Vec<PieceWish> {
    let mut all = Vec::new();
    while tiers.has_moves() {
        while let Some(wish) = tiers.next_piece() {
            all.push(wish);
            let pages = wish.page.0..wish.page.0 + PIECE;
            match (wish.task, other()) {
                (Task::In(_) | Task::Back { .. }, Some(other)) => tiers.settle_piece(&wish, other, false),
                (Task::In(fast), None) => {
                    assert!(fast.0 % PIECE == 0, "an aligned run");
                    for page in pages {
                        let to = Hfn(fast.0 + page - wish.page.0);
                        assert!(!places.values().any(|other| *other == to), "two pages in one frame");
                        assert_eq!(places.insert(page, to), None, "all were at home");
                    }
                    table.large.insert(wish.page.0 / PIECE);
                    tiers.settle_piece(&wish, Outcome::Moved(home(wish.page)), true);
                }
                (Task::Back { fast, home: back }, None) => {
                    assert_eq!(back, home(wish.page));
                    for page in pages {
                        assert_eq!(places.remove(&page), Some(Hfn(fast.0 + page - wish.page.0)));
                    }
                    tiers.settle_piece(&wish, Outcome::Discarded, true);
                }
                (Task::Join, other) => {
                    // The P2m refuses what is in no aligned run.
                    let first = places.get(&pages.start).copied().unwrap_or(Hfn(0));
                    let is_run = pages.clone().all(|page| {
                        places
                            .get(&page)
                            .is_none_or(|at| at.0 == first.0 + page - pages.start && first.0 % PIECE == 0)
                    });
                    if !is_run {
                        tiers.settle_piece(&wish, Outcome::Pinned, false);
                        continue;
                    }
                    table.large.insert(wish.page.0 / PIECE);
                    tiers.settle_piece(&wish, other.unwrap_or(Outcome::Moved(home(wish.page))), true);
                }
            }
        }
        for wish in tiers.batch(BATCH) {
            match wish.home {
                Some(_) => {
                    assert_eq!(places.remove(&wish.page.0), Some(wish.fast));
                    tiers.settle(&wish, Outcome::Discarded);
                }
                None => {
                    assert_eq!(places.insert(wish.page.0, wish.fast), None);
                    tiers.settle(&wish, Outcome::Moved(home(wish.page)));
                }
            }
        }
    }
    all
}

fn tasks(wishes: &[PieceWish]) -> Vec<(u64, Task)> {
    wishes.iter().map(|wish| (wish.page.0 / PIECE, wish.task)).collect()
}

/// All but the leaves that are joined.
fn moves(wishes: Vec<PieceWish>) -> Vec<(u64, Task)> {
    tasks(&wishes).into_iter().filter(|(_, task)| *task != Task::Join).collect()
}

#[test]
fn large_leaves_move_as_they_are_while_there_is_room() {
    let (pool, tiers) = machine(HotPolicy::Threshold);
    let (mut table, mut places) = (Table::default(), BTreeMap::new());
    let look_hot = |table: &mut Table, pieces: core::ops::Range<u64>| {
        pieces.for_each(|piece| {
            set(table, piece, PIECE, u32::MAX);
            table.large.insert(piece);
        });
    };
    look_hot(&mut table, 0..6);
    // Four in a pass.
    assert!(pass(&tiers, &table).is_empty());
    assert_eq!(moves(perform(&tiers, &mut table, &mut places, || None)).len(), MAX_PIECES);
    // The sixth has room and finds no run.
    assert!(pass(&tiers, &table).is_empty());
    let wishes = moves(perform(&tiers, &mut table, &mut places, || None));
    assert!(matches!(wishes[..], [(4, Task::In(_))]));
    let view = tiers.view();
    assert_eq!((view.pieces, view.fast, view.counts.pieces_in, view.counts.moved_in), (5, 2560, 5, 2560));
    assert_eq!(pool.free(), pool.total() - 2560);
    // From now on it is split.
    assert_eq!(split(&tiers, &mut table), [5]);
    set(&mut table, 5, PIECE, 0);
    // With a seventh not all that looks hot has room: what is there is split, too, and stays for now.
    look_hot(&mut table, 6..7);
    let mut splits = split(&tiers, &mut table);
    splits.sort_unstable();
    assert_eq!(splits, [0, 1, 2, 3, 4, 6]);
    (0..7).for_each(|piece| set(&mut table, piece, PIECE, 0));
    assert!(split(&tiers, &mut table).is_empty(), "once is enough");
    assert_eq!((tiers.view().pieces, tiers.view().fast), (0, 2560));
    drop(tiers);
    assert_eq!(pool.free(), pool.total());
}

#[test]
fn small_leaves_move_as_one_if_nearly_all_pages_are_hot() {
    for (pages, as_one) in [(480, true), (479, false)] {
        let (_, tiers) = machine(HotPolicy::Threshold);
        let (mut table, mut places) = (Table::default(), BTreeMap::new());
        set(&mut table, 2, pages, u32::MAX);
        pass(&tiers, &table);
        let wishes = perform(&tiers, &mut table, &mut places, || None);
        assert_eq!(wishes.iter().any(|wish| matches!(wish.task, Task::In(_))), as_one, "{pages}");
        assert_eq!(places.len() as u64, if as_one { 512 } else { pages });
    }
}

#[test]
fn pages_that_lack_room_have_pieces_leave_or_split() {
    let (_, tiers) = machine(HotPolicy::Threshold);
    let (mut table, mut places) = (Table::default(), BTreeMap::new());
    (0..5).for_each(|piece| {
        set(&mut table, piece, PIECE, u32::MAX);
        table.large.insert(piece);
    });
    (0..2).for_each(|_| {
        split(&tiers, &mut table);
        perform(&tiers, &mut table, &mut places, || None);
    });
    // The third has no access any more. Nothing wants the room, and it stays.
    set(&mut table, 2, PIECE, 0);
    split(&tiers, &mut table);
    assert!(moves(perform(&tiers, &mut table, &mut places, || None)).is_empty());
    // Pages that are hot for sure do: first it leaves, then one that is active is split, and then its pages leave that are cold.
    (5..8).for_each(|piece| {
        table.large.remove(&piece);
        set(&mut table, piece, 470, u32::MAX);
    });
    let mut all = Vec::new();
    for _ in 0..8 {
        split(&tiers, &mut table);
        all.extend(perform(&tiers, &mut table, &mut places, || None));
    }
    assert!(matches!(moves(all.clone())[..], [(2, Task::Back { .. }), ..]), "{all:?}");
    table.large.remove(&2);
    set(&mut table, 2, 470, u32::MAX);
    let mut victims = Vec::new();
    for _ in 0..6 {
        victims.extend(split(&tiers, &mut table));
        perform(&tiers, &mut table, &mut places, || None);
    }
    let victim = victims.into_iter().find(|piece| *piece < 5).expect("an active piece is split");
    assert!(places.contains_key(&(victim * PIECE)), "its pages stay where they are");
    // Of them one in two is cold, as they can have shown after 22 passes.
    (victim * PIECE..(victim + 1) * PIECE).step_by(2).for_each(|page| table.set(page, 0));
    for _ in 0..40 {
        split(&tiers, &mut table);
        perform(&tiers, &mut table, &mut places, || None);
    }
    assert!((victim * PIECE..(victim + 1) * PIECE).any(|page| !places.contains_key(&page)));
}

#[test]
fn cold_leaves_are_joined_once_and_hot_ones_where_they_are_in_one_run() {
    let (_, tiers) = machine(HotPolicy::Threshold);
    let (mut table, mut places) = (Table::default(), BTreeMap::new());
    let mut joined = BTreeSet::new();
    (0..8).for_each(|_| {
        pass(&tiers, &table);
        let wishes = perform(&tiers, &mut table, &mut places, || None);
        joined.extend(
            tasks(&wishes).into_iter().filter(|(_, task)| *task == Task::Join).map(|(piece, _)| piece),
        );
    });
    assert_eq!((joined.len(), tiers.view().counts.joins), (8, 8));
    pass(&tiers, &table);
    assert!(perform(&tiers, &mut table, &mut places, || None).is_empty(), "not again");
    // A piece that was split in fast memory, and of which all pages show that they are hot.
    set(&mut table, 1, PIECE, u32::MAX);
    pass(&tiers, &table);
    assert_eq!(perform(&tiers, &mut table, &mut places, || None).len(), 1);
    tiers.state.lock().demote(PAGES);
    table.large.remove(&1);
    assert_eq!((tiers.view().pieces, tiers.view().fast), (0, 512));
    // For 31 passes the histories may be those of the leaf.
    for _ in 0..30 {
        pass(&tiers, &table);
        assert!(moves(perform(&tiers, &mut table, &mut places, || None)).is_empty());
    }
    assert_eq!(tiers.view().pieces, 0);
    tiers.state.lock().pieces.set(PAGES, JOINED, false);
    pass(&tiers, &table);
    assert!(matches!(tasks(&perform(&tiers, &mut table, &mut places, || None))[..], [(1, Task::Join)]));
    assert_eq!((tiers.view().pieces, tiers.view().fast), (1, 512));
}

#[test]
fn which_pages_are_hot_is_found_out_where_not_all_that_look_so_fit() {
    let (_, tiers) = machine(HotPolicy::Threshold);
    // Room for the hot half of all pieces, and for no sixth one beside five.
    tiers.set_state(EState::new(2)).unwrap();
    let (mut table, mut places) = (Table::default(), BTreeMap::new());
    // Half of each piece is accessed in each sample, and the leaf tells of all of it.
    let is_accessed = |page: u64| page % PIECE < PIECE / 2;
    table.large.extend(0..8);
    let mut histories = [0u32; 8 * PIECE as usize];
    let all_there = |places: &BTreeMap<u64, Hfn>| {
        (0..8 * PIECE).all(|page| places.contains_key(&page) || !is_accessed(page))
    };
    let mut passes = 0;
    while !all_there(&places) {
        passes += 1;
        // 22 samples until leaves look hot, 22 until their pages do, and some for the moves.
        assert!(
            passes <= 56,
            "{} of 2048 pages are there",
            places.keys().filter(|page| is_accessed(**page)).count()
        );
        for (page, history) in (0..).zip(&mut histories) {
            let bit = is_accessed(page) || table.large.contains(&(page / PIECE));
            *history = *history >> 1 | u32::from(bit) << 31;
            table.set(page, *history);
        }
        for piece in split(&tiers, &mut table) {
            set(&mut table, piece, PIECE, 0);
            histories[(piece * PIECE) as usize..][..PIECE as usize].fill(0);
        }
        perform(&tiers, &mut table, &mut places, || None);
        if passes == 26 {
            assert_eq!(
                (tiers.view().counts.pieces_in, places.len()),
                (5, 5 * 512),
                "what has room does not wait"
            );
        }
    }
}

#[test]
fn what_is_pinned_moves_page_by_page() {
    let (pool, tiers) = machine(HotPolicy::Threshold);
    let (mut table, mut places) = (Table::default(), BTreeMap::new());
    set(&mut table, 3, PIECE, u32::MAX);
    table.large.insert(3);
    pass(&tiers, &table);
    assert_eq!(moves(perform(&tiers, &mut table, &mut places, || Some(Outcome::Busy))).len(), 1);
    pass(&tiers, &table);
    assert_eq!(moves(perform(&tiers, &mut table, &mut places, || Some(Outcome::Pinned))).len(), 1);
    assert_eq!((pool.free(), tiers.view().counts.busy, tiers.view().counts.pinned), (pool.total(), 512, 512));
    assert_eq!(pass(&tiers, &table), [Gfn(3 * PIECE)], "its leaf is split");
    table.large.remove(&3);
    pass(&tiers, &table);
    assert!(moves(perform(&tiers, &mut table, &mut places, || None)).is_empty());
    assert_eq!((tiers.view().fast, tiers.view().pieces, places.len()), (512, 0, 512));
}

/// Tables are made as pages come, and then all pages go: the tables are in one run, and all others can be pieces.
#[test]
fn tables_that_stay_leave_runs_whole() {
    let pool = FastPool::new([Hfn(1 << 20)..Hfn((1 << 20) + 8 * PIECE)], Sharing::Shares).unwrap();
    let most = pool.total() / 16;
    let mut pages = vec![];
    for n in 0..most {
        pages.extend((0..7).filter_map(|_| pool.take()));
        assert!(pool.take_for_table(n as usize % 2).is_some());
    }
    pages.into_iter().for_each(|page| pool.give_back(page));
    assert_eq!(core::iter::from_fn(|| pool.take_piece()).count(), 7);
    assert_eq!((pool.tables(), pool.free()), (most, 512 - most));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Random histories, outcomes and shares: frames are never lost nor given twice, and pieces are where they are said to be.
    #[test]
    fn frames_are_where_pieces_and_the_list_say(seeds in prop::collection::vec(any::<u64>(), 1..25), histogram in any::<bool>()) {
        let policy = if histogram { HotPolicy::Histogram } else { HotPolicy::Threshold };
        let (pool, tiers) = machine(policy);
        let (mut table, mut places) = (Table::default(), BTreeMap::new());
        for seed in seeds {
            let mut random = crate::paging::random::Random(seed | 1);
            for _ in 0..3 {
                let (piece, pages) = (random.draw() % 8, [512, 500, 300, 1][random.draw() as usize % 4]);
                set(&mut table, piece, pages, [0, 3, 0xff, u32::MAX][random.draw() as usize % 4]);
                if random.once_in(3) {
                    table.large.insert(piece);
                }
            }
            if random.once_in(4) {
                tiers.set_state(EState::new((random.draw() % 9) as u8)).unwrap();
            }
            for first in pass(&tiers, &table) {
                table.large.remove(&(first.0 / PIECE));
            }
            perform(&tiers, &mut table, &mut places, || match random.draw() % 6 {
                0 => Some(Outcome::Busy),
                1 => Some(Outcome::Pinned),
                _ => None,
            });
            let view = tiers.view();
            prop_assert_eq!(view.fast as usize, places.len());
            prop_assert_eq!(pool.free() as usize, pool.total() as usize - places.len());
            prop_assert_eq!(view.counts.moved_in - view.counts.moved_out, places.len() as u64);
        }
        drop(tiers);
        prop_assert_eq!(pool.free(), pool.total());
    }

    /// Runs of a pool are aligned, and taken once.
    #[test]
    fn runs_of_a_pool_are_disjoint(ops in prop::collection::vec((0u8..6, any::<u16>()), 0..60)) {
        let (pool, _) = machine(HotPolicy::Threshold);
        let (mut pages, mut runs, mut tables): (Vec<u32>, Vec<u32>, Vec<u32>) = Default::default();
        for (op, which) in ops {
            match op {
                0 => {
                    if let Some(run) = pool.take_piece() {
                        prop_assert_eq!(pool.frame(run).unwrap().0 % PIECE, 0);
                        prop_assert!(!runs.contains(&run));
                        runs.push(run);
                    }
                }
                1 => pages.extend((0..which % 200).filter_map(|_| pool.take())),
                2 if !runs.is_empty() => pool.give_back_piece(runs.swap_remove(usize::from(which) % runs.len())),
                3 => tables.extend((0..which % 200).filter_map(|_| pool.number(pool.take_for_table(0)?))),
                4 => tables.drain(..).for_each(|table| pool.give_back_table(0, table)),
                _ => pages.drain(..).for_each(|page| pool.give_back(page)),
            }
            let mut single = pages.iter().chain(&tables);
            prop_assert!(!single.any(|page| runs.iter().any(|run| (*run..run + PAGES).contains(page))));
            let taken = pages.len() + tables.len() + runs.len() * 512;
            prop_assert_eq!(pool.free() as usize, pool.total() as usize - taken);
        }
    }
}
