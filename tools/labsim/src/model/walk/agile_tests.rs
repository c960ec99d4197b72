//! Agile walks against known answers, and against a translation that knows no caches.

use proptest::prelude::*;

use super::super::super::{bank::Bank, memory::Memory};
use super::super::tests::{TABLE, Words, bank, tags};
use super::*;

const MIB: u64 = 1 << 20;
const SHADOW: u64 = 512 * MIB;
const NESTED: u64 = 64 * MIB;
const GUEST: u64 = 16 * MIB;
/// Guest-physical memory is this far above in the machine's.
const OFFSET: u64 = 1 << 30;
const PAGE: u64 = 64 * MIB;
const VA: u64 = 0x7f12_4000_0000;
const DIRTY: u64 = 1 << 6;

/// The three trees, and where the next tables of each come from.
struct Machine {
    memory: Words,
    regime: Regime,
    agile: Agile,
    next: [u64; 2],
}

impl Machine {
    fn new(nested_shift: u32) -> Machine {
        let (mut memory, mut next) = (Words::default(), NESTED + 4096);
        for gpa in (0..72 * MIB).step_by(1 << nested_shift) {
            memory.map(Format::Long, NESTED, (gpa, gpa + OFFSET, nested_shift), &mut next, &|at| at);
        }
        let regime = Regime { format: Format::Long, cr3: SHADOW, global_pages: true, nested: None };
        let agile = Agile { guest_cr3: GUEST, nested_root: NESTED, root: Root::Shadow, write_protect: true };
        Machine { memory, regime, agile, next: [GUEST + 4096, SHADOW + 4096] }
    }

    /// Maps a guest's page, and shadows it in pieces of this size.
    fn map(&mut self, va: u64, gpa: u64, guest_shift: u32, shadow_shift: u32) {
        let [guest, shadow] = &mut self.next;
        self.memory.map(Format::Long, GUEST, (va, gpa, guest_shift), guest, &|at| at + OFFSET);
        for piece in (0..1u64 << guest_shift).step_by(1 << shadow_shift) {
            let page = (va + piece, gpa + OFFSET + piece, shadow_shift);
            self.memory.map(Format::Long, SHADOW, page, shadow, &|at| at);
        }
    }

    /// The guest's table of this level is nested: the shadow entry above has the bit, or a root.
    fn nest(&mut self, va: u64, level: usize) {
        match level {
            0 => {}
            4 => self.agile.root = Root::Switching,
            NESTED_FROM_CR3 => self.agile.root = Root::Nested,
            _ => {
                let at = self.entry(SHADOW, va, level as u32 + 1, 0);
                *self.memory.words.get_mut(&at).unwrap() |= SWITCHING;
            }
        }
    }

    /// The address of the entry of this level for an address.
    fn entry(&self, root: u64, va: u64, level: u32, offset: u64) -> u64 {
        let mut table = root;
        for above in (level + 1..=4).rev() {
            let at = table + offset + (va >> (3 + 9 * above) & 511) * 8;
            table = self.memory.read_u64(at).unwrap() & ADDRESS;
        }
        table + offset + (va >> (3 + 9 * level) & 511) * 8
    }

    fn guest_entry(&self, va: u64, level: u32) -> u64 {
        self.entry(GUEST, va, level, OFFSET)
    }

    fn walk(&mut self, walker: &mut Walker, va: u64, write: bool) -> AgileWalk {
        let spaces = Spaces::default();
        self.memory.references.clear();
        (self.memory.accessed, self.memory.dirtied) = (0, 0);
        let access = Access { va, write };
        walker.walk_agile(&self.regime, &self.agile, access, (tags(&spaces), &spaces), &mut self.memory)
    }

    fn cold(&mut self, va: u64) -> AgileWalk {
        self.walk(&mut Walker::default(), va, false)
    }
}

#[test]
fn known_numbers_of_references() {
    let count = |guest_shift, nested_shift: u32, switch| {
        let mut machine = Machine::new(nested_shift);
        machine.map(VA, PAGE, guest_shift, guest_shift.min(nested_shift));
        machine.nest(VA, switch);
        let walk = machine.cold(VA + 0x123);
        let found = walk.found.unwrap();
        assert_eq!((found.pa, walk.switch, walk.disagrees), (PAGE + OFFSET, switch, false));
        let shifts =
            if switch == 0 { [guest_shift.min(nested_shift); 2] } else { [guest_shift, nested_shift] };
        assert_eq!([found.guest_shift, found.nested_shift], shifts);
        assert_eq!(walk.uncached, machine.memory.references.len() as u64);
        walk.uncached
    };
    assert_eq!([0, 1, 2, 3, 4, 5].map(|switch| count(12, 12, switch)), abi::lab::SWITCH_REFS);
    assert_eq!([0, 1, 2, 3, 4, 5].map(|switch| count(12, 21, switch)), [4, 7, 10, 13, 16, 19]);
    // The guest's table of level 1 is none.
    assert_eq!([0, 2, 3, 4, 5].map(|switch| count(21, 12, switch)), [4, 7, 11, 15, 19]);
    assert_eq!([0, 2, 3, 4, 5].map(|switch| count(21, 21, switch)), [3, 6, 9, 12, 15]);
}

#[test]
fn only_the_switched_part_reads_the_guests_tables() {
    let mut machine = Machine::new(12);
    machine.map(VA, PAGE, 12, 12);
    machine.nest(VA, 2);
    machine.cold(VA);
    let at = |index: usize| machine.memory.references[index];
    let shadow = [4, 3].map(|level| machine.entry(SHADOW, VA, level, 0));
    let guest = [2, 1].map(|level| machine.guest_entry(VA, level));
    assert_eq!(([at(0), at(1)], [at(2), at(7)]), (shadow, guest));
    assert!((3..7).chain(8..12).all(|index| (NESTED..NESTED + 64 * MIB).contains(&at(index))));
}

#[test]
fn a_bit_above_a_large_page_means_nothing() {
    let mut machine = Machine::new(21);
    machine.map(VA, PAGE, 21, 21);
    let at = machine.entry(SHADOW, VA, 2, 0);
    *machine.memory.words.get_mut(&at).unwrap() |= SWITCHING;
    assert_eq!((machine.cold(VA).switch, machine.memory.references.len()), (0, 3));
}

fn caches() -> Walker {
    Walker { guest: bank(8, 7), nested: bank(8, 7), nested_tlb: bank(8, 7) }
}

#[test]
fn walk_caches_hold_both_parts() {
    let mut machine = Machine::new(21);
    machine.map(VA, PAGE, 12, 12);
    machine.map(VA + 0x1000, PAGE + 0x1000, 12, 12);
    // Shadow only: the last entry remains.
    let mut walker = caches();
    machine.walk(&mut walker, VA, false);
    let walk = machine.walk(&mut walker, VA + 0x1000, false);
    assert_eq!((machine.memory.references.len(), walk.uncached), (1, 4));
    // Switched: the guest's last table is known, and the page is in a nested page that was seen.
    machine.nest(VA, 2);
    let mut walker = caches();
    machine.walk(&mut walker, VA, false);
    let walk = machine.walk(&mut walker, VA + 0x1000, false);
    assert_eq!((machine.memory.references.len(), walk.uncached, walk.switch), (1, 10, 2));
    assert_eq!(machine.memory.references[0], machine.guest_entry(VA + 0x1000, 1));
}

#[test]
fn accessed_and_dirty_bits_of_the_walked_tables_are_set() {
    let mut machine = Machine::new(12);
    machine.map(VA, PAGE, 12, 12);
    machine.nest(VA, 1);
    machine.memory.words.values_mut().for_each(|word| *word &= !(0x20 | DIRTY));
    let mut walker = Walker::default();
    let walk = machine.walk(&mut walker, VA, false);
    // Three shadow entries, the guest's, and four nested; nothing of the guest's tables above, and no stand-in.
    assert_eq!((machine.memory.accessed, machine.memory.dirtied, walk.found.unwrap().clean), (8, 0, true));
    let (at, above) = (machine.guest_entry(VA, 1), machine.guest_entry(VA, 2));
    assert_eq!(machine.memory.words[&at] & 0x60, 0x20);
    assert_eq!(machine.memory.words[&above] & 0x60, 0);
    let walk = machine.walk(&mut walker, VA, true);
    // The guest's entry and the page's nested one.
    assert_eq!((machine.memory.accessed, machine.memory.dirtied, walk.found.unwrap().clean), (0, 2, false));
}

#[test]
fn stand_ins_are_compared() {
    let mut machine = Machine::new(12);
    machine.map(VA, PAGE, 12, 12);
    machine.map(VA + 0x1000, PAGE + 0x1000, 12, 12);
    machine.nest(VA, 1);
    let stand_in = machine.entry(SHADOW, VA, 1, 0);
    let guest = machine.guest_entry(VA, 1);
    let agree = |machine: &mut Machine| {
        let walk = machine.cold(VA);
        (walk.found.map(|found| found.pa), !walk.disagrees)
    };
    assert_eq!(agree(&mut machine), (Ok(PAGE + OFFSET), true));
    // A stand-in may allow less, and may be missing.
    *machine.memory.words.get_mut(&stand_in).unwrap() &= !WRITABLE;
    assert_eq!(agree(&mut machine), (Ok(PAGE + OFFSET), true));
    let was = machine.memory.words.insert(stand_in, 0).unwrap();
    assert_eq!(agree(&mut machine), (Ok(PAGE + OFFSET), true));
    // It may not allow more, not even execution.
    for (set, clear) in [(0, WRITABLE), (0, USER), (NO_EXECUTE, 0)] {
        machine.memory.words.insert(stand_in, was | WRITABLE | USER);
        let entry = machine.memory.words[&guest] | USER;
        machine.memory.words.insert(guest, (entry | set) & !clear);
        let upper: Vec<u64> = (2..=4).map(|level| machine.guest_entry(VA, level)).collect();
        upper.iter().for_each(|at| *machine.memory.words.get_mut(at).unwrap() |= USER);
        (2..=4).for_each(|level| {
            let at = machine.entry(SHADOW, VA, level, 0);
            *machine.memory.words.get_mut(&at).unwrap() |= USER;
        });
        assert_eq!(agree(&mut machine), (Ok(PAGE + OFFSET), false), "{set:#x} {clear:#x}");
        machine.memory.words.insert(guest, entry);
        assert_eq!(agree(&mut machine), (Ok(PAGE + OFFSET), true));
        // Rights above the switch come from the guest's tables.
        let entry = machine.memory.words[&upper[1]];
        machine.memory.words.insert(upper[1], (entry | set) & !clear);
        assert!(machine.cold(VA).disagrees);
        machine.memory.words.insert(upper[1], entry);
    }
    // Without CR0.WP a kernel may write where its tables do not allow it.
    *machine.memory.words.get_mut(&guest).unwrap() &= !WRITABLE;
    machine.agile.write_protect = false;
    assert!(!machine.cold(VA).disagrees);
    // The guest's entry leads elsewhere, and then nowhere: the stand-in is what is used.
    machine.memory.words.insert(guest, (PAGE + 0x5000) | TABLE | DIRTY);
    assert_eq!(agree(&mut machine), (Ok(PAGE + OFFSET), false));
    machine.memory.words.insert(guest, 0);
    assert_eq!(agree(&mut machine), (Ok(PAGE + OFFSET), false));
    machine.memory.words.insert(stand_in, 0);
    assert_eq!(agree(&mut machine), (Err(Fault), true));
}

#[test]
fn global_pages_are_those_of_both() {
    for (guest, stand_in) in [(true, true), (true, false), (false, true)] {
        let mut machine = Machine::new(12);
        machine.map(VA, PAGE, 12, 12);
        machine.nest(VA, 1);
        let bit = |is| if is { GLOBAL } else { 0 };
        for (at, is) in [(machine.guest_entry(VA, 1), guest), (machine.entry(SHADOW, VA, 1, 0), stand_in)] {
            *machine.memory.words.get_mut(&at).unwrap() |= bit(is);
        }
        assert_eq!(machine.cold(VA).found.unwrap().global, guest && stand_in);
    }
}

#[test]
fn words_of_control_blocks() {
    let words = Words::default();
    assert_eq!((words.references.len(), Agile::of(&abi::agile::Words::default(), true)), (0, None));
    let root = |words| Agile::of(&words, true).unwrap().root;
    assert_eq!(root(abi::agile::Words::new(true, false, 1, 2)), Root::Shadow);
    assert_eq!(root(abi::agile::Words::new(false, true, 1, 2)), Root::Nested);
    let mut switching = abi::agile::Words::new(false, false, 1, 2);
    switching.state |= abi::agile::ROOT_SWITCHING;
    assert_eq!(root(switching), Root::Switching);
}

/// Pages that differ in the index of one level each, some of them in several.
fn place(page: u64) -> u64 {
    VA + ((page & 1) << 12) + ((page >> 1 & 1) << 21) + ((page >> 2 & 1) << 30) + ((page >> 3 & 1) << 39)
}

proptest! {
    /// Random trees of which random tables are nested: a walk leads where the guest's tables and the offset lead, switches where the
    /// first nested table is, and makes as many references as that comes to, and never more with caches.
    #[test]
    fn random_trees(
        mapped in prop::collection::vec(0u64..16, 1..16),
        nested in prop::collection::vec((0u64..16, 1usize..4), 0..6),
        root in prop::sample::select(vec![0usize, 0, 0, 0, 4, 5]),
        (guest, walks, tlb) in (1usize..6, 1usize..6, 1usize..6),
        trace in prop::collection::vec((0u64..16, any::<bool>()), 1..40),
        large in any::<bool>(),
    ) {
        let mut machine = Machine::new(if large { 21 } else { 12 });
        let per_nested = if large { 3 } else { 4 };
        for page in &mapped {
            machine.map(place(*page), PAGE + (page << 12), 12, 12);
        }
        let nested: Vec<_> = nested.into_iter().filter(|(page, _)| mapped.contains(page)).collect();
        for (page, level) in &nested {
            machine.nest(place(*page), *level);
        }
        machine.nest(0, root);
        let mut walker = Walker { guest: bank(guest, 7), nested: bank(walks, 7), nested_tlb: bank(tlb, 7) };
        for (page, write) in trace {
            let va = place(page);
            let with = machine.walk(&mut walker, va, write);
            let references = machine.memory.references.len();
            let mut plain = Walker { guest: Bank::default(), ..Walker::default() };
            let without = machine.walk(&mut plain, va, write);
            prop_assert_eq!(with, without);
            prop_assert!(references <= machine.memory.references.len());
            if !mapped.contains(&page) {
                prop_assert!(with.found.is_err());
                continue;
            }
            let covers = |of: u64, level: usize| place(of) >> (12 + 9 * level) == va >> (12 + 9 * level);
            let highest = nested.iter().filter(|(of, level)| covers(*of, *level)).map(|(_, level)| *level).max();
            let switch = match machine.agile.root {
                Root::Shadow => highest.unwrap_or(0),
                Root::Switching => 4,
                Root::Nested => 5,
            };
            let expected = match switch {
                0 => 4,
                5 => 4 * (per_nested + 1) + per_nested,
                level => 4 + per_nested * level as u64,
            };
            prop_assert_eq!(with.found.map(|found| found.pa), Ok(PAGE + OFFSET + (page << 12)));
            prop_assert_eq!((with.switch, with.uncached, with.disagrees), (switch, expected, false));
            prop_assert_eq!(machine.memory.references.len() as u64, expected);
        }
    }
}
