//! Two levels of TLBs for data and for code. The second level may be one for both, as Intel's is, or one for each.
//!
//! A walk fills both levels; neither needs to hold what the other does. A page larger than what an array holds is kept as
//! the largest piece that it does hold (*splintered*), and so is a guest's large page on smaller nested ones.

use super::{
    bank::Bank,
    filter::Filter,
    space::{Spaces, Tag},
    walk::Translation,
};

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// Loads and stores.
    Data = 0,
    /// Instruction fetches.
    Code = 1,
}

/// What an entry says of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the 4 KiB frame.
    pub frame: u64,
    /// A store must set a dirty bit first.
    pub clean: bool,
}

/// What a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In the first level.
    First(Entry),
    /// In the second level.
    Second(Entry),
    /// Nowhere.
    Miss,
}

/// The tags of the running address space: its own, and its global pages'.
#[derive(Clone, Copy, Debug)]
pub struct Tags {
    /// Pages that are not global.
    pub own: Tag,
    /// Global pages.
    pub global: Tag,
}

const FRAME: u64 = (1 << 40) - 1;
const CLEAN: u64 = 1 << 40;
/// The class of the guest's page, which may be larger than the entry's.
const GUEST_CLASS: u32 = 41;

/// First levels and their filters.
struct First {
    bank: Bank,
    filter: Filter,
    second: usize,
}

/// The TLBs of one processor.
pub struct Tlbs {
    first: [First; 2],
    second: Vec<Bank>,
    splintered: bool,
}

impl Tlbs {
    /// Empty TLBs. `second` is one bank for both ports, or one for each; an empty bank is no second level.
    pub fn new(data: Bank, code: Bank, second: Vec<Bank>) -> Tlbs {
        let last = second.len().saturating_sub(1);
        let first = |bank, port: usize| First { bank, filter: Filter::default(), second: port.min(last) };
        Tlbs { first: [first(data, 0), first(code, 1)], second, splintered: false }
    }

    /// The usual hit: the frame, if the filter knows it.
    #[inline(always)]
    pub fn quick(&mut self, port: Port, va: u64, is_store: impl FnOnce() -> bool) -> Option<u64> {
        let First { bank, filter, .. } = &mut self.first[port as usize];
        filter.get(va, bank, is_store)
    }

    /// Looks an address up in both levels. What the second has goes into the first as well.
    pub fn look(&mut self, port: Port, va: u64, tags: Tags, spaces: &Spaces) -> Found {
        let first = &mut self.first[port as usize];
        if let Some((class, slot, value, _)) = probe(&mut first.bank, va, tags) {
            let entry = entry(class, value, va);
            if !entry.clean {
                first.filter.put(va, entry.frame, slot, &first.bank);
            }
            return Found::First(entry);
        }
        let second = self.second.get_mut(first.second).and_then(|bank| probe(bank, va, tags));
        let Some((class, _, value, tag)) = second else { return Found::Miss };
        self.fill_first(port, va, class, value, tag, spaces);
        Found::Second(entry(class, value, va))
    }

    /// Keeps what a walk found.
    pub fn fill(&mut self, port: Port, va: u64, found: &Translation, tags: Tags, spaces: &Spaces) {
        let tag = if found.global { tags.global } else { tags.own };
        let (guest, class) = (class_of(found.guest_shift), class_of(found.shift()));
        self.splintered |= class < guest;
        let value = |class: u32| {
            let frame = (found.pa >> 12) & !((1 << (9 * class)) - 1);
            (frame & FRAME) | if found.clean { CLEAN } else { 0 } | u64::from(guest) << GUEST_CLASS
        };
        let second = self.first[port as usize].second;
        if let Some(bank) = self.second.get_mut(second)
            && let Some(held) = largest(bank, class)
        {
            self.splintered |= held < class;
            bank.insert(held, va >> (12 + 9 * held), tag, value(held), spaces.lives());
        }
        self.fill_first(port, va, class, value(class), tag, spaces);
    }

    fn fill_first(&mut self, port: Port, va: u64, class: u32, value: u64, tag: Tag, spaces: &Spaces) {
        let First { bank, filter, .. } = &mut self.first[port as usize];
        let Some(held) = largest(bank, class) else { return };
        self.splintered |= held < class;
        let known = entry(class, value, va);
        let frame = known.frame & !((1 << (9 * held)) - 1);
        let value = value & !FRAME | frame;
        let placed = bank.insert(held, va >> (12 + 9 * held), tag, value, spaces.lives());
        let Some((slot, old)) = placed else { return };
        if let Some(old) = old {
            filter.evict(old.class(), old.page());
        }
        if !known.clean {
            filter.put(va, known.frame, slot, bank);
        }
    }

    /// INVLPG: takes out the page, whatever its size, with all its pieces.
    pub fn invalidate(&mut self, va: u64, tags: Tags) {
        let splintered = self.splintered;
        let banks = self.first.iter_mut().map(|first| &mut first.bank).chain(&mut self.second);
        for bank in banks {
            if splintered {
                bank.remove_if(|key, value| {
                    let shift = 9 * (value >> GUEST_CLASS) as u32;
                    let page = key.page() << (9 * key.class());
                    let mask = ((1u64 << 36) - 1) >> shift;
                    [tags.own, tags.global].contains(&key.tag())
                        && (page >> shift) & mask == (va >> 12 >> shift) & mask
                });
            } else {
                for tag in [tags.own, tags.global] {
                    (0..3).for_each(|class| bank.remove(class, va >> (12 + 9 * class), tag));
                }
            }
        }
    }

    /// Keeps what needs no TLB, because there is no paging: only until the address space is flushed, as it is when paging begins.
    pub fn put_quick(&mut self, port: Port, va: u64, frame: u64) {
        self.first[port as usize].filter.put_without_slot(va, frame);
    }

    /// Another address space runs.
    pub fn switch(&mut self, asid: u16) {
        self.first.iter_mut().for_each(|first| first.filter.switch(asid));
    }

    /// Entries of an address space became invalid by their tags: the filters forget it, too.
    pub fn flushed(&mut self, asid: u16) {
        self.first.iter_mut().for_each(|first| first.filter.flush(asid));
    }

    /// Keeps stores to this page out of the filter until they are looked up again.
    pub fn only_loads_quick(&mut self, va: u64) {
        self.first.iter_mut().for_each(|first| first.filter.only_loads(va));
    }

    /// Keeps accesses of this page out of the filter until they are looked up again.
    pub fn forget_quick(&mut self, va: u64) {
        self.first.iter_mut().for_each(|first| first.filter.forget_page(va));
    }

    /// The same for all pages.
    pub fn forget_all_quick(&mut self) {
        self.first.iter_mut().for_each(|first| first.filter.forget_all());
    }

    /// Empties all.
    pub fn clear(&mut self) {
        for first in &mut self.first {
            first.bank.clear();
            first.filter.clear();
        }
        self.second.iter_mut().for_each(Bank::clear);
        self.splintered = false;
    }
}

/// Finds the entry of an address, of whatever class: class, slot, value and tag.
fn probe(bank: &mut Bank, va: u64, tags: Tags) -> Option<(u32, usize, u64, Tag)> {
    for class in 0..3 {
        if bank.holds(class) {
            for tag in [tags.own, tags.global] {
                if let Some((slot, value)) = bank.get(class, va >> (12 + 9 * class), tag) {
                    return Some((class, slot, value, tag));
                }
            }
        }
    }
    None
}

/// The largest class up to this one that the bank holds.
fn largest(bank: &Bank, class: u32) -> Option<u32> {
    (0..=class).rev().find(|class| bank.holds(*class))
}

fn entry(class: u32, value: u64, va: u64) -> Entry {
    let within = (va >> 12) & ((1 << (9 * class)) - 1);
    Entry { frame: (value & FRAME) + within, clean: value & CLEAN != 0 }
}

/// The class of a page of this size. 4 MiB pages count as 2 MiB.
pub fn class_of(shift: u32) -> u32 {
    match shift {
        ..21 => 0,
        21..30 => 1,
        _ => 2,
    }
}

#[cfg(test)]
#[path = "tlb_tests.rs"]
mod tests;
