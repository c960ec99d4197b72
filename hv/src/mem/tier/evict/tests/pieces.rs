//! A policy beside pieces of 2 MiB: which of a VM's pages the policy has, and that none leaves for pages that come with their piece.

use std::collections::BTreeSet;

use super::*;
use crate::mem::tier::migration::PIECE;
use crate::mem::tier::task::Task;

/// A VM of 16 MiB, with fast memory for six pieces, of which four find a run.
fn machine(name: Name) -> (Arc<FastPool>, Tiers) {
    let ranges = [
        Hfn((1 << 20) + 100)..Hfn((1 << 20) + 4 * PIECE),
        Hfn(1 << 21)..Hfn((1 << 21) + PIECE + 90),
        Hfn((1 << 22) + 1)..Hfn((1 << 22) + 500),
        Hfn((1 << 23) + 1)..Hfn((1 << 23) + 500),
    ];
    let pool = Arc::new(FastPool::new(ranges, Sharing::Shares).unwrap());
    let span = Span { low: 8 * PIECE as u32, high_start: Gfn(1 << 20), high: 0 };
    let tiers =
        Tiers::new(pool.clone(), 0, Demand::new(1, None), span, HotPolicy::Threshold, Box::new(NoBytes))
            .unwrap();
    (pool, tiers.evict_by(name).unwrap())
}

/// The policy has what is in fast memory page by page, without what is to leave, and with what is to come.
fn check(tiers: &Tiers) -> Result<(), TestCaseError> {
    let state = tiers.state.lock();
    let residents = state.residents.as_ref().unwrap();
    let mut expected: BTreeSet<u32> = state.list.fast().map(|(page, _)| page).collect();
    for page in &state.pending {
        match state.list.side(*page) {
            Some(Side::Fast) => prop_assert!(expected.remove(page), "{} is to leave twice", page),
            Some(Side::Slow) => prop_assert!(expected.insert(*page), "{} is to come twice", page),
            // It has come with its piece, or is in one again.
            None => {}
        }
    }
    let pages: BTreeSet<u32> = residents.pages().collect();
    prop_assert_eq!(residents.count() as usize, pages.len());
    prop_assert_eq!(pages, expected);
    Ok(())
}

/// After a pass: no more leave than lack room, if those that come with pieces need theirs. A pass that ended early is not judged.
fn check_leaving(tiers: &Tiers) -> Result<(), TestCaseError> {
    let state = tiers.state.lock();
    let of = |side| state.pending.iter().filter(|page| state.list.side(**page) == Some(side)).count() as u32;
    let (outs, ins) = (of(Side::Fast), of(Side::Slow));
    let planned = state.share - state.pieces.left_of(state.share).min(state.share);
    let beside = planned.saturating_sub(state.pieces.pages());
    let lacking = (state.fast() + ins + beside).saturating_sub(state.share);
    prop_assert!(
        outs <= lacking || outs + ins + 3 > MAX_MOVES as u32,
        "{} leave, {} come, {} of {} are there, {} come with pieces",
        outs,
        ins,
        state.fast(),
        state.share,
        beside
    );
    Ok(())
}

fn set(table: &mut Table, piece: u64, pages: u64, history: u32) {
    (piece * PIECE..piece * PIECE + pages).for_each(|page| table.set(page, history));
}

/// Does some of what is due: `moves` pieces and batches.
fn perform(tiers: &Tiers, table: &mut Table, random: &mut Random, moves: u64) -> Result<(), TestCaseError> {
    let failed = |random: &mut Random| match random.draw() % 8 {
        0 => Some(Outcome::Busy),
        1 => Some(Outcome::Pinned),
        _ => None,
    };
    for _ in 0..moves {
        if let Some(wish) = tiers.next_piece() {
            let outcome = match wish.task {
                // A run of pages is joined where it is aligned.
                Task::Join if random.once_in(3) => Outcome::Pinned,
                _ => failed(random).unwrap_or(Outcome::Moved(home(wish.page))),
            };
            let is_whole = outcome == Outcome::Moved(home(wish.page)) && !random.once_in(4);
            if is_whole {
                table.large.insert(wish.page.0 / PIECE);
            }
            tiers.settle_piece(&wish, outcome, is_whole);
        } else if tiers.has_moves() {
            for wish in tiers.batch(BATCH) {
                let outcome = failed(random).unwrap_or(Outcome::Moved(home(wish.page)));
                tiers.settle(&wish, outcome);
            }
        } else {
            break;
        }
    }
    check(tiers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1))]

    /// Pieces that come, go, are split and joined, moves that fail or are not tried, and shares that change.
    #[test]
    fn a_policy_has_the_pages_that_are_in_no_piece(seed in any::<u64>()) {
        let (mut evicted, mut pieces_in, mut pieces_out, mut splits, mut joins) = (0, 0, 0, 0, 0);
        let mut random = Random(seed);
        for name in Name::ALL {
            let (pool, tiers) = machine(*name);
            let mut table = Table::default();
            for _ in 0..30 {
                for _ in 0..2 {
                    let (piece, pages) = (random.draw() % 8, [512, 490, 300, 40][random.draw() as usize % 4]);
                    set(&mut table, piece, pages, [0, 3, 0xff, u32::MAX, u32::MAX][random.draw() as usize % 5]);
                    if random.once_in(3) {
                        table.large.insert(piece);
                    }
                }
                if random.once_in(4) {
                    tiers.set_state(EState::new((random.draw() % 9) as u8)).unwrap();
                }
                for first in tiers.pass(&table, &table.histogram(), 0) {
                    table.large.remove(&(first.0 / PIECE));
                }
                check(&tiers)?;
                check_leaving(&tiers)?;
                let moves = [0, 1, 3, 12, 99][random.draw() as usize % 5];
                perform(&tiers, &mut table, &mut random, moves)?;
            }
            let counts = tiers.view().counts;
            prop_assert_eq!(tiers.view().fast, pool.total() - pool.free());
            (evicted, splits, joins) = (evicted + counts.evicted, splits + counts.splits, joins + counts.joins);
            (pieces_in, pieces_out) = (pieces_in + counts.pieces_in, pieces_out + counts.pieces_out);
            drop(tiers);
            prop_assert_eq!(pool.free(), pool.total());
        }
        let all = [evicted, splits, joins, pieces_in, pieces_out];
        prop_assert!(all.iter().all(|count| *count > 0), "{:?}", all);
    }
}

#[test]
fn pages_that_come_with_their_piece_take_no_place_of_others() {
    for name in Name::ALL {
        let (_, tiers) = machine(*name);
        let (mut table, mut fast) = (Table::default(), BTreeSet::new());
        // Three of eight parts are full, and some pages wait.
        tiers.set_state(EState::new(5)).unwrap();
        (0..3).for_each(|piece| set(&mut table, piece, 450, u32::MAX));
        (0..8).for_each(|_| {
            pass(&tiers, &table);
            super::perform(&tiers, &mut fast, &[]);
        });
        let full = tiers.view();
        assert_eq!((full.fast, full.share), (1330, 1330), "{name}");
        // A piece is hot for which there is no room; its pages are to come in the place of others.
        set(&mut table, 4, PIECE, u32::MAX);
        pass(&tiers, &table);
        let outs = tiers.view().counts.evicted - full.counts.evicted;
        assert!(outs > 0, "{name}");
        // Before they do there is room for it and for those that wait, and for no more than some others.
        tiers.set_state(EState::new(3)).unwrap();
        pass(&tiers, &table);
        while let Some(wish) = tiers.next_piece() {
            let is_in = matches!(wish.task, Task::In(_));
            let outcome = if is_in { Outcome::Moved(home(wish.page)) } else { Outcome::Pinned };
            tiers.settle_piece(&wish, outcome, is_in);
        }
        super::perform(&tiers, &mut fast, &[]);
        let view = tiers.view();
        assert_eq!((view.pieces, view.fast, view.waiting), (1, 1350 + 512, 0), "{name}");
        assert_eq!(view.counts.evicted - full.counts.evicted, outs, "{name}: none more is to leave");
        assert_eq!(view.counts.moved_out, full.counts.moved_out, "{name}: none leaves");
    }
}

#[test]
fn what_could_not_come_has_no_more_pieces_split() {
    let (_, tiers) = machine(Name::Clock);
    let (mut table, mut fast) = (Table::default(), BTreeSet::new());
    tiers.set_state(EState::new(3)).unwrap();
    // Four pieces, and pages that are not in use any more: no room is left.
    table.large.extend(0..4);
    (0..4).for_each(|piece| set(&mut table, piece, PIECE, u32::MAX));
    pass(&tiers, &table);
    while let Some(wish) = tiers.next_piece() {
        let is_in = matches!(wish.task, Task::In(_));
        tiers.settle_piece(
            &wish,
            if is_in { Outcome::Moved(home(wish.page)) } else { Outcome::Pinned },
            is_in,
        );
    }
    set(&mut table, 5, 169, u32::MAX);
    pass(&tiers, &table);
    super::perform(&tiers, &mut fast, &[]);
    set(&mut table, 5, 169, 3);
    assert_eq!((tiers.view().pieces, tiers.view().fast, tiers.view().share), (4, 2217, 2217));
    // A page that cannot move.
    set(&mut table, 6, 1, u32::MAX);
    for _ in 0..10 {
        for first in tiers.pass(&table, &table.histogram(), 0) {
            table.large.remove(&(first.0 / PIECE));
            set(&mut table, first.0 / PIECE, PIECE, 0);
        }
        super::perform(&tiers, &mut (0..4 * PIECE).chain(fast.clone()).collect(), &[6 * PIECE]);
    }
    let view = tiers.view();
    assert_eq!((view.pieces, view.counts.pinned % PIECE), (3, 1), "{:?}", view.counts);
}
