//! The tiers of a VM without pieces, whose pages leave by a policy, in the plainest words: queues, access bits that samples set, and the
//! policy alone.

use std::collections::{BTreeSet, VecDeque};
use std::vec::Vec;

use abi::config::Replacement as Name;

use super::super::MAX_MOVES;
use super::MAX_STEPS;
use super::{FRAMES, PAGES};
use crate::mem::replace::{AccessBits, Object, Page, Slot};
use crate::mem::replacement::Replacement;
use crate::mem::tier::batch::MOST_TRIES;
use crate::mem::tier::tests::Table;
use crate::mem::tier::{BATCH, Outcome};

/// By slot: for how many samples more an access is known. And entries that a policy has gone over.
#[derive(Default)]
struct Bits(Vec<u8>, u32);

impl AccessBits for Bits {
    fn take(&mut self, slot: Slot) -> bool {
        self.1 += 1;
        self.1 <= MAX_STEPS && core::mem::take(&mut self.0[slot as usize]) > 0
    }

    fn search(&mut self, entries: u32) {
        self.1 += entries;
    }
}

/// The region of the guest's that this page is in.
pub fn region(page: u32) -> Option<u16> {
    (page < 300).then(|| 1 + (page / 100) as u16)
}

/// The tiers of a VM without pieces, in the plainest words.
pub struct Model {
    policy: Replacement,
    bits: Bits,
    slots: Vec<Option<u32>>,
    pub residents: BTreeSet<u32>,
    limit: usize,
    /// Pages that could not come, in slow memory.
    refused: BTreeSet<u32>,
    passes: u32,
    /// Hot pages in slow memory, the newest first.
    pub slow: VecDeque<u32>,
    pub fast: BTreeSet<u32>,
    /// Moves that are due, the next one last.
    due: Vec<u32>,
    pub evicted: u64,
}

impl Model {
    pub fn new(name: Name) -> Model {
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
        let placed =
            self.policy.fault(Page(page.into()), Object(region(page).unwrap_or(0).into()), &mut self.bits);
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
        // No policy looks at samples then.
        let bits = core::mem::replace(&mut self.bits.0, vec![0; self.slots.len()]);
        assert_eq!(self.fault(page), None);
        self.bits.0 = bits;
        let slot = self.slots.iter().position(|other| *other == Some(page)).unwrap();
        self.bits.0[slot] = 0;
        self.policy.limit(self.limit as u32);
    }

    pub fn pass(&mut self, table: &Table, share: usize) {
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
        (self.passes, self.bits.1) = (self.passes + 1, 0);
        let (mut wanted, mut outs) = (vec![], vec![]);
        for page in core::mem::take(&mut self.due).into_iter().rev() {
            match (self.fast.contains(&page), is_active(page)) {
                (true, _) => outs.push(page),
                (false, true) => wanted.push(page),
                (false, false) => self.release(page),
            }
        }
        let lacking = (self.fast.len() + wanted.len()).saturating_sub(share);
        outs.split_off(lacking.min(outs.len())).into_iter().for_each(|page| self.admit_present(page));
        // Each pass looks at all of them, the oldest first.
        for page in self.slow.iter().rev().filter(|page| is_active(**page) && !self.residents.contains(*page))
        {
            if !self.refused.contains(page) || (self.passes + page).is_multiple_of(61) {
                wanted.push(*page);
            }
        }
        self.slow.retain(|page| is_active(*page) || self.residents.contains(page));
        self.refused.retain(|page| self.slow.contains(page));
        if self.policy.counts_touches() {
            for slot in 0..self.slots.len() {
                if self.bits.take(slot as u32) {
                    self.policy.touch(slot as u32);
                }
            }
            self.bits.1 = 0;
        }
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
        if self.bits.1 >= MAX_STEPS {
            // Those stay for which none comes.
            let lacking = (self.fast.len() + ins.len()).saturating_sub(share);
            outs.split_off(lacking.min(outs.len())).into_iter().for_each(|page| self.admit_present(page));
        }
        self.due = ins.into_iter().rev().chain(outs.into_iter().rev()).collect();
    }

    /// The next moves: a page, and whether it leaves.
    pub fn batch(&mut self, share: usize) -> Vec<(u32, bool)> {
        let mut moves: Vec<(u32, bool)> = vec![];
        let mut tries = 0..MOST_TRIES;
        while moves.len() < BATCH
            && tries.next().is_some()
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

    pub fn settle(&mut self, page: u32, leaves: bool, failed: Option<Outcome>) {
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
