//! A VM whose pages leave by a policy, beside a model: queues, access bits that samples set, and the policy alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::vec::Vec;

use abi::config::Replacement as Name;
use abi::tiers::{HotPolicy, Sharing};
use proptest::prelude::*;

use super::*;
use crate::arch::addr::{Gfn, Hfn};
use crate::mem::replace::{AccessBits, Page, ROUNDS, Slot};
use crate::mem::replacement::Replacement;
use crate::mem::tier::pool::FastPool;
use crate::mem::tier::sharing::{Demand, EState};
use crate::mem::tier::tests::{NoBytes, Table, home, pool, tiers};
use crate::mem::tier::{BATCH, Outcome};
use crate::paging::random::Random;

const FRAMES: u32 = 200;
/// Pages that are ever accessed.
const PAGES: u32 = 500;

/// By slot: for how many samples more an access is known. And entries that a policy has gone over.
#[derive(Default)]
struct Bits(Vec<u8>, u32);

impl AccessBits for Bits {
    fn take(&mut self, slot: Slot) -> bool {
        self.1 += 1;
        core::mem::take(&mut self.0[slot as usize]) > 0
    }

    fn search(&mut self, entries: u32) {
        self.1 += entries;
    }
}

/// The tiers of a VM without pieces, in the plainest words.
struct Model {
    policy: Replacement,
    bits: Bits,
    slots: Vec<Option<u32>>,
    residents: BTreeSet<u32>,
    limit: usize,
    /// Pages that could not come, in slow memory.
    refused: BTreeSet<u32>,
    passes: u32,
    /// Hot pages in slow memory, the newest first.
    slow: VecDeque<u32>,
    fast: BTreeSet<u32>,
    /// Moves that are due, the next one last.
    due: Vec<u32>,
    evicted: u64,
}

impl Model {
    fn new(name: Name) -> Model {
        let capacity = FRAMES as usize + MAX_MOVES;
        Model {
            policy: Replacement::new(name, capacity as u32).unwrap(),
            bits: Bits(vec![0; capacity], 0),
            slots: vec![None; capacity],
            residents: BTreeSet::new(),
            limit: 0,
            refused: BTreeSet::new(),
            passes: 0,
            slow: VecDeque::new(),
            fast: BTreeSet::new(),
            due: vec![],
            evicted: 0,
        }
    }

    fn set_limit(&mut self, frames: usize) {
        if frames != self.limit {
            self.limit = frames;
            self.policy.limit(frames as u32);
        }
    }

    fn fault(&mut self, page: u32) -> Option<u32> {
        let placed = self.policy.fault(Page(page.into()), &mut self.bits);
        self.bits.0[placed.slot as usize] = 0;
        let before = self.slots[placed.slot as usize].replace(page);
        assert_eq!(before.is_some(), placed.evicts);
        self.residents.insert(page);
        self.refused.remove(&page);
        before.inspect(|before| assert!(self.residents.remove(before)))
    }

    fn evict(&mut self) -> Option<u32> {
        if self.residents.is_empty() {
            return None;
        }
        let slot = self.policy.evict(&mut self.bits) as usize;
        self.bits.0[slot] = 0;
        self.slots[slot].take().inspect(|page| assert!(self.residents.remove(page)))
    }

    fn release(&mut self, page: u32) {
        self.refused.remove(&page);
        if let Some(slot) = self.slots.iter().position(|other| *other == Some(page)) {
            self.policy.remove(slot as u32);
            self.bits.0[slot] = 0;
            self.slots[slot] = None;
            self.residents.remove(&page);
        }
    }

    fn admit_present(&mut self, page: u32) {
        let count = self.residents.len();
        self.policy.limit(self.limit.max(count + 1) as u32);
        // Nobody looks at samples then.
        let bits = core::mem::replace(&mut self.bits.0, vec![0; self.slots.len()]);
        assert_eq!(self.fault(page), None);
        self.bits.0 = bits;
        let slot = self.slots.iter().position(|other| *other == Some(page)).unwrap();
        self.bits.0[slot] = 0;
        self.policy.limit(self.limit as u32);
    }

    fn pass(&mut self, table: &Table, share: usize) {
        let history = |page: u32| table.history(page.into());
        for (slot, page) in self.slots.iter().enumerate() {
            let is_accessed = page.is_some_and(|page| history(page) >> 31 != 0);
            let bit = &mut self.bits.0[slot];
            *bit = if is_accessed { 32 } else { bit.saturating_sub(1) };
        }
        for page in 0..PAGES {
            let is_known = self.fast.contains(&page) || self.slow.contains(&page);
            if history(page).count_ones() >= 22 && !is_known {
                self.slow.push_front(page);
            }
        }
        let is_active = |page: u32| history(page) >> 2 != 0;
        let (mut wanted, mut outs) = (vec![], vec![]);
        for page in core::mem::take(&mut self.due).into_iter().rev() {
            match (self.fast.contains(&page), is_active(page)) {
                (true, _) => outs.push(page),
                (false, true) => wanted.push(page),
                (false, false) => self.release(page),
            }
        }
        for page in self.slow.clone().into_iter().rev().take(512) {
            self.slow.retain(|other| *other != page);
            if self.residents.contains(&page) || is_active(page) {
                self.slow.push_front(page);
            } else {
                self.refused.remove(&page);
            }
            if !self.residents.contains(&page) && is_active(page) {
                wanted.push(page);
            }
        }
        if self.policy.counts_touches() {
            for slot in 0..self.slots.len() {
                if self.bits.take(slot as u32) {
                    self.policy.touch(slot as u32);
                }
            }
        }
        self.bits.1 = 0;
        self.passes += 1;
        self.set_limit(share);
        let excess = self.fast.len().saturating_sub(share).saturating_sub(outs.len());
        let mut ins: Vec<u32> = vec![];
        let has_room = |ins: &Vec<u32>, outs: &Vec<u32>| ins.len() + outs.len() + 3 <= MAX_MOVES;
        if self.fast.len() > share {
            for _ in 0..excess {
                if !has_room(&ins, &outs) || self.bits.1 >= MAX_STEPS {
                    break;
                }
                let Some(page) = self.evict() else { break };
                if self.fast.contains(&page) {
                    (self.evicted, _) = (self.evicted + 1, outs.push(page));
                }
            }
            wanted.iter().for_each(|page| self.release(*page));
            wanted.clear();
        }
        for page in wanted {
            if !has_room(&ins, &outs) || self.bits.1 >= MAX_STEPS {
                if self.residents.contains(&page) {
                    self.release(page);
                }
                continue;
            }
            let is_early = self.refused.contains(&page) && (self.passes + page) % 64 != 0;
            if is_early {
                continue;
            }
            let mut gone = vec![];
            if self.residents.len() > share {
                gone.extend(self.evict());
            }
            if !self.residents.contains(&page) {
                gone.extend(self.fault(page));
            }
            for gone in gone {
                if self.fast.contains(&gone) {
                    (self.evicted, _) = (self.evicted + 1, outs.push(gone));
                } else {
                    ins.retain(|other| *other != gone);
                }
            }
            ins.push(page);
        }
        self.due = ins.into_iter().rev().chain(outs.into_iter().rev()).collect();
    }

    /// The next moves: a page, and whether it leaves.
    fn batch(&mut self, share: usize) -> Vec<(u32, bool)> {
        let mut moves: Vec<(u32, bool)> = vec![];
        while moves.len() < BATCH
            && let Some(page) = self.due.pop()
        {
            let leaves = self.fast.contains(&page);
            if !leaves && self.fast.len() + moves.iter().filter(|(_, leaves)| !leaves).count() >= share {
                if moves.iter().any(|(_, leaves)| *leaves) {
                    self.due.push(page);
                    break;
                }
                self.release(page);
                continue;
            }
            moves.push((page, leaves));
        }
        moves
    }

    fn settle(&mut self, page: u32, leaves: bool, failed: Option<Outcome>) {
        match (leaves, failed.is_none()) {
            (true, true) => drop(self.fast.remove(&page)),
            (true, false) => self.admit_present(page),
            (false, true) => {
                self.slow.retain(|other| *other != page);
                self.fast.insert(page);
            }
            (false, false) => {
                self.release(page);
                if failed == Some(Outcome::Pinned) {
                    self.refused.insert(page);
                }
            }
        }
    }
}

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
        for wish in tiers.batch() {
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
                    let wishes = tiers.batch();
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

/// A pool without a run of 2 MiB.
fn large_machine(name: Name, frames: u32) -> Tiers {
    let ranges =
        (0..u64::from(frames) / 500).map(|n| Hfn((1 << 20) + n * 512 + 1)..Hfn((1 << 20) + n * 512 + 501));
    let pool = Arc::new(FastPool::new(ranges, Sharing::Shares).unwrap());
    let span = Span { low: 2 * frames, high_start: Gfn(1 << 30), high: 0 };
    let tiers = Tiers::new(pool, 0, Demand::new(1, None), span, HotPolicy::Threshold, Box::new(NoBytes));
    tiers.unwrap().evict_by(name).unwrap()
}

#[test]
fn a_pass_ends_when_the_policy_has_gone_over_enough() {
    const LARGE: u32 = 20_000;
    for name in [Name::Clock, Name::ClockPro, Name::Apr, Name::S3Fifo] {
        let tiers = large_machine(name, LARGE);
        let mut fast = BTreeSet::new();
        let mut table = Table::default();
        (0..LARGE).for_each(|page| table.set(page.into(), u32::MAX));
        while tiers.view().fast < LARGE {
            pass(&tiers, &table);
            perform(&tiers, &mut fast, &[]);
        }
        (LARGE..LARGE + 400).for_each(|page| table.set(page.into(), u32::MAX));
        let (mut most, mut passes) = (0, 0);
        while tiers.view().counts.evicted < 400 && passes < 60 {
            pass(&tiers, &table);
            most = most.max(tiers.state.lock().residents.as_ref().unwrap().steps());
            perform(&tiers, &mut fast, &[]);
            passes += 1;
        }
        println!("{name}: {most} entries in a pass, {passes} passes for 400 pages");
        assert!(most <= MAX_STEPS + ROUNDS * LARGE, "{name}: {most}");
        assert!(most > MAX_STEPS || name == Name::S3Fifo, "{name}: {most}, and nothing was to be stopped");
    }
}
