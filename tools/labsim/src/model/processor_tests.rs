//! A processor as a plugin drives it: contexts, flushes, costs, and what the presets reach.

use std::collections::HashMap;

use super::super::{
    context::{TlbControl, Vmcb},
    memory::Split,
};
use super::*;
use crate::machine;

const GIB: u64 = 1 << 30;

/// Memory of 2 GiB, of which a few words are not zero.
#[derive(Clone, Default)]
struct Words(std::rc::Rc<std::cell::RefCell<HashMap<u64, u64>>>);

impl Memory for Words {
    fn read_u64(&self, pa: u64) -> Option<u64> {
        (pa < 2 * GIB).then(|| self.0.borrow().get(&pa).copied().unwrap_or(0))
    }
}

impl Words {
    fn set(&self, pa: u64, word: u64) {
        self.0.borrow_mut().insert(pa, word);
    }

    /// 4-level tables at `root` that map the first 1 GiB to `offset` with pages of 4 KiB, or 2 MiB.
    fn map(&self, root: u64, offset: u64, small: bool) {
        self.set(root, (root + 0x1000) | 0x67);
        self.set(root + 0x1000, (root + 0x2000) | 0x67);
        for directory in 0..512u64 {
            let at = root + 0x2000 + directory * 8;
            if !small {
                self.set(at, (offset + (directory << 21)) | 0xe7);
                continue;
            }
            let table = root + 0x3000 + directory * 0x1000;
            self.set(at, table | 0x67);
            (0..512).for_each(|page| {
                self.set(table + page * 8, (offset + (directory << 21) + (page << 12)) | 0x67)
            });
        }
        // Devices in the fourth GiB, by a 1 GiB page.
        self.set(root + 0x1018, (3 * GIB) | 0xe7);
    }
}

const LONG: Control = Control { cr0: 1 << 31, cr3: GIB, cr4: 0xa0, efer: 0x500 };
const DOORBELL: u64 = 3 * GIB;

fn processor(preset: &str, caches: bool) -> (Processor<Words>, Words) {
    one_of(1, preset, caches, Checking::Misses)
}

fn one_of(pcpus: u32, preset: &str, caches: bool, checking: Checking) -> (Processor<Words>, Words) {
    let machine = machine::read(machine::preset(preset).unwrap(), preset).unwrap();
    let words = Words::default();
    words.map(GIB, 0, true);
    let doorbell = DOORBELL..DOORBELL + 0x1000;
    let mut shared = Shared::new(
        machine,
        Split::q35(2 * GIB),
        Pcpus { count: pcpus, has_spare: false },
        caches,
        checking,
        doorbell,
    );
    let record = Box::leak(Box::new(Record::default()));
    let mut processor = shared.processor(0, words.clone(), record);
    processor.set_control(LONG);
    (processor, words)
}

/// An identity check: everything here is mapped to itself.
fn same(va: u64) -> Truth {
    Truth::At(va)
}

fn load(processor: &mut Processor<Words>, va: u64) {
    if processor.quick::<true>(va) == Quick::Unknown {
        processor.access(Request { va, len: 8, write: false, user: false }, &same);
    }
}

fn counters(processor: &mut Processor<Words>) -> Counters {
    processor.sync(processor.instructions);
    let record = processor.record();
    record.sides[processor.side() as usize]
}

/// L1 misses and walks of a second round through `pages` pages of 4 KiB.
fn round(preset: &str, pages: u64) -> (u64, u64) {
    let (mut processor, _) = processor(preset, false);
    let go = |processor: &mut Processor<Words>| (0..pages).for_each(|page| load(processor, page << 12));
    go(&mut processor);
    let before = counters(&mut processor);
    go(&mut processor);
    let after = counters(&mut processor);
    assert_eq!(after.checks_differ, 0);
    (after.dtlb_l1_misses - before.dtlb_l1_misses, after.dtlb_misses - before.dtlb_misses)
}

#[test]
fn every_preset_reaches_as_far_as_its_tlbs() {
    for (name, text) in machine::PRESETS {
        let machine = machine::read(text, name).unwrap();
        let arrays = || machine.tlb.iter().map(|tlb| tlb.get_ref()).filter(|tlb| tlb.classes() & 1 != 0);
        let entries = |level, ports: [machine::Port; 2]| {
            let mut found = arrays().filter(move |tlb| tlb.level == level && ports.contains(&tlb.port));
            found.next().unwrap().entries as u64
        };
        let first = entries(1, [machine::Port::Data; 2]);
        let second = entries(2, [machine::Port::Data, machine::Port::Both]);
        assert_eq!(round(name, first), (0, 0), "{name}: the first level");
        assert_eq!(round(name, second).1, 0, "{name}: the second level");
        let beyond = 2 * second.max(first);
        assert_eq!(round(name, beyond), (beyond, beyond), "{name}: beyond");
    }
}

#[test]
fn guests_have_address_spaces_of_their_own() {
    let (mut processor, words) = processor("westmere-x5660", false);
    load(&mut processor, 0x5000);
    words.map(GIB + (16 << 20), 0, false);
    let vmcb = Vmcb {
        asid: 5,
        tlb_control: TlbControl::Nothing,
        nested: Some(GIB + (16 << 20)),
        control: Control { cr3: 0x10_0000, ..LONG },
        agile: None,
    };
    // The guest's tables, at guest-physical 1 MiB, which is the same physical address.
    words.map(0x10_0000, 0, true);
    processor.vmrun(&vmcb, LONG, 100);
    assert!(processor.in_guest());
    load(&mut processor, 0x5000);
    let guest = counters(&mut processor);
    assert_eq!((guest.dtlb_misses, guest.walk_refs_uncached, guest.walks_4k_2m), (1, 19, 1));
    processor.vmexit(300);
    assert!(!processor.in_guest() && processor.side() == Side::Host);
    load(&mut processor, 0x5000);
    processor.sync(350);
    let record = processor.record();
    assert_eq!(record.sides[Side::Host as usize].dtlb_misses, 1, "the host's entry is still there");
    assert_eq!(record.sides[Side::Nested as usize].instructions, 200);
    assert_eq!(record.sides[Side::Host as usize].instructions, 150);
    assert_eq!(record.sides[Side::Host as usize].vmexits, 1);
    // Again: the guest's entry is there, too, unless VMRUN flushes it.
    for (tlb_control, walks) in [(TlbControl::Nothing, 1), (TlbControl::Asid, 2), (TlbControl::All, 3)] {
        processor.vmrun(&Vmcb { tlb_control, ..vmcb }, LONG, 350);
        load(&mut processor, 0x5000);
        assert_eq!(counters(&mut processor).dtlb_misses, walks, "{tlb_control:?}");
        processor.vmexit(350);
    }
    load(&mut processor, 0x5000);
    assert_eq!(
        processor.record().sides[Side::Host as usize].dtlb_misses,
        2,
        "the flush of all was the host's, too"
    );
}

#[test]
fn flushes_are_those_of_the_hardware() {
    let (mut processor, _) = processor("westmere-x5660", false);
    let walks = |processor: &mut Processor<Words>| {
        let before = counters(processor).dtlb_misses;
        load(processor, 0x5000);
        load(processor, 0x6000);
        counters(processor).dtlb_misses - before
    };
    assert_eq!([walks(&mut processor), walks(&mut processor)], [2, 0]);
    processor.invlpg(0x5123);
    assert_eq!([walks(&mut processor), walks(&mut processor)], [1, 0]);
    processor.write_cr3();
    assert_eq!([walks(&mut processor), walks(&mut processor)], [2, 0]);
    processor.set_control(Control { cr4: 0xa0 | 1 << 20, ..LONG });
    assert_eq!(walks(&mut processor), 0, "SMEP flushes nothing");
    processor.set_control(Control { cr4: 0x20, ..LONG });
    assert_eq!(walks(&mut processor), 2, "PGE flushes all");
    processor.invlpga(0x5000, 9);
    assert_eq!(walks(&mut processor), 0, "another address space");
    processor.invlpga(0x5000, 0);
    assert_eq!(walks(&mut processor), 1);
    let before = counters(&mut processor).invlpgs;
    assert_eq!(before, 3);
}

#[test]
fn a_change_of_tables_without_a_flush_is_not_seen() {
    let (mut processor, words) = processor("westmere-x5660", false);
    load(&mut processor, 0x5000);
    words.set(GIB + 0x3000 + 5 * 8, 0x9000 | 0x67);
    let request = Request { va: 0x5000, len: 8, write: false, user: false };
    assert_eq!(processor.access(request, &same), Place::Memory(0x5000));
    processor.invlpg(0x5000);
    assert_eq!(processor.access(request, &|_| Truth::At(0x9000)), Place::Memory(0x9000));
    assert_eq!(counters(&mut processor).checks_equal, 2);
    processor.invlpg(0x5000);
    assert_eq!(processor.access(request, &same), Place::Memory(0x9000));
    assert_eq!(counters(&mut processor).checks_differ, 1);
}

#[test]
fn only_what_the_tables_do_not_say_is_a_mistake_beside_others() {
    let (mut processor, words) = one_of(2, "westmere-x5660", false, Checking::All);
    let request = Request { va: 0x5000, len: 8, write: false, user: false };
    words.set(GIB + 0x3000 + 5 * 8, 0x9000 | 0x67);
    // The emulator still has what was there before.
    processor.access(request, &|_| Truth::At(0x5000));
    let counted = |processor: &mut Processor<Words>| {
        let counters = counters(processor);
        (counters.checks_equal, counters.checks_raced, counters.checks_differ)
    };
    assert_eq!(counted(&mut processor), (0, 1, 0));
    // The model still has what was there before, and no other processor has changed it: a flush is missing.
    words.set(GIB + 0x3000 + 5 * 8, 0x8000 | 0x67);
    processor.access(request, &|_| Truth::At(0x8000));
    assert_eq!(counted(&mut processor), (0, 1, 0), "it is not settled yet");
    processor.settle(true);
    assert_eq!(counted(&mut processor), (0, 1, 1));
    assert!(processor.differences()[0].contains("frame 0x9 for page 0x5; met 1 times: no other processor"));
}

#[test]
fn what_another_processor_changed_is_a_race_until_the_flush() {
    let machine = machine::read(machine::preset("zen3").unwrap(), "zen3").unwrap();
    let words = Words::default();
    words.map(GIB, 0, true);
    let mut shared = Shared::new(
        machine,
        Split::q35(2 * GIB),
        Pcpus { count: 2, has_spare: false },
        false,
        Checking::All,
        0..0,
    );
    let mut next = |number| {
        let record = Box::leak(Box::new(Record::default()));
        let mut processor = shared.processor(number, words.clone(), record);
        processor.set_control(LONG);
        processor
    };
    let (mut one, mut other) = (next(0), next(1));
    let load = |one: &mut Processor<Words>, truth| {
        let request = Request { va: 0x5000, len: 8, write: false, user: false };
        one.access(request, &|_| Truth::At(truth));
        one.settle(true);
        let counters = counters(one);
        (counters.checks_raced, counters.checks_differ)
    };
    assert_eq!(load(&mut one, 0x5000), (0, 0));
    // The other changes the entry, through the mapping of memory to itself.
    let entry = GIB + 0x3000 + 5 * 8;
    words.set(entry, 0x8000 | 0x67);
    words.set(GIB + 0x1008, GIB | 0xe7);
    other.access(Request { va: entry, len: 8, write: true, user: false }, &same);
    assert_eq!(load(&mut one, 0x8000), (1, 0));
    // With the flush this is a mistake of the model: it is told to forget, and then remembers.
    one.witness.as_mut().unwrap().flush_page(0, 0x5000);
    assert_eq!(load(&mut one, 0x8000), (1, 1));
}

#[test]
fn accesses_that_cross_count_twice() {
    let (mut processor, _) = processor("westmere-x5660", true);
    let mut access = |va, len| {
        let before = counters(&mut processor);
        processor.access(Request { va, len, write: false, user: false }, &same);
        let after = counters(&mut processor);
        let difference = |of: fn(&Counters) -> u64| of(&after) - of(&before);
        (
            difference(|c| c.accesses),
            difference(|c| c.line_crossings),
            difference(|c| c.page_crossings),
            difference(|c| c.dtlb_misses),
        )
    };
    assert_eq!(access(0x5038, 8), (1, 0, 0, 1));
    assert_eq!(access(0x503c, 8), (2, 1, 0, 0));
    assert_eq!(access(0x5fff, 2), (2, 1, 1, 1));
    assert_eq!(access(0x7ff8, 16), (2, 1, 1, 2));
}

#[test]
fn devices_and_the_doorbell() {
    let (mut processor, _) = processor("westmere-x5660", true);
    let store = |va| Request { va, len: 4, write: true, user: false };
    assert_eq!(processor.access(store(DOORBELL + 8), &same), Place::Doorbell);
    assert_eq!(processor.access(store(DOORBELL + 8), &same), Place::Doorbell);
    let apic = 0xfee0_0300;
    assert_eq!(processor.access(store(apic), &|_| Truth::Device), Place::Device(apic));
    assert_eq!(processor.access(store(apic), &|_| Truth::Device), Place::Device(apic));
    let counters = counters(&mut processor);
    assert_eq!((counters.ipis, counters.device_accesses, counters.checks_differ), (2, 2, 0));
}

#[test]
fn bits_that_software_left_clear_cost_a_reference() {
    let (mut processor, words) = processor("westmere-x5660", false);
    let entry = GIB + 0x3000 + 7 * 8;
    let access = |processor: &mut Processor<Words>, va, write| {
        processor.access(Request { va, len: 8, write, user: false }, &|va| Truth::At(va));
        let counters = counters(processor);
        (counters.accessed_writes, counters.dirty_writes)
    };
    assert_eq!(access(&mut processor, 0x5000, false), (0, 0));
    // The table is known by now: a store to it through its own mapping is seen.
    words.set(entry, 0x7000 | 0x7);
    words.set(GIB + 0x1008, GIB | 0xe7);
    assert_eq!(access(&mut processor, entry, true), (0, 0));
    assert_eq!(access(&mut processor, 0x7000, false), (1, 0));
    assert_eq!(access(&mut processor, 0x7000, false), (1, 0));
    assert_eq!(access(&mut processor, 0x7000, true), (1, 1));
    assert_eq!(access(&mut processor, 0x7000, true), (1, 1));
}

#[test]
fn fetches_translate_each_page_and_touch_each_line() {
    let (mut processor, _) = processor("westmere-x5660", true);
    processor.fetch(0x5fb0, 0x6050, &same);
    let first = counters(&mut processor);
    assert_eq!((first.itlb_misses, first.l1i_misses, first.checks_equal), (2, 4, 2));
    processor.fetch(0x5fb0, 0x6050, &same);
    assert_eq!(counters(&mut processor), first);
}

#[test]
fn cycles_are_instructions_and_stalls() {
    let (mut processor, _) = processor("westmere-x5660", true);
    load(&mut processor, 0x5000);
    processor.sync(1000);
    let counters = processor.record().sides[0];
    assert!(counters.stall_cycles > 228 && counters.walk_cycles > 0);
    assert_eq!(counters.cycles, 1000 + counters.stall_cycles);
}

#[test]
fn five_levels_are_said_not_to_be_modelled() {
    let (mut processor, _) = processor("zen3", false);
    processor.set_control(Control { cr4: LONG.cr4 | 1 << 12, ..LONG });
    load(&mut processor, 0x5000);
    assert_eq!(counters(&mut processor).unmodelled, 1);
}

#[path = "processor_quick_tests.rs"]
mod quick;

#[path = "processor_agile_tests.rs"]
mod agile;
