//! Agile paging as a hypervisor drives it: walks by where they switch, stand-ins that are not charged, and what is compared.

use abi::{agile, lab::SWITCHES};

use super::{
    super::super::{context::EXIT_WRITE_CR3, witness::GuestFlush},
    *,
};

const MIB: u64 = 1 << 20;
/// Guest-physical memory and the machine's are the same here. The guest's tables are in the first GiB, whose pages have 4 KiB.
const NESTED: u64 = GIB + 16 * MIB;
const GUEST: u64 = 32 * MIB;
const SHADOW: u64 = GIB + 48 * MIB;
/// A control block, and the entries of the page 5 in the tables of level 1.
const BLOCK: u64 = GIB + 64 * MIB;
const STAND_IN: u64 = SHADOW + 0x3000 + 5 * 8;
const ENTRY: u64 = GUEST + 0x3000 + 5 * 8;
const REQUEST: Request = Request { va: 0x5000, len: 8, write: false, user: false };

/// A machine whose first table of level 1 is nested.
fn machine(pcpus: u32, checking: Checking) -> (Processor<Words>, Words) {
    prepared(one_of(pcpus, "westmere-x5660", false, checking))
}

/// The same with caches.
fn caching() -> (Processor<Words>, Words) {
    prepared(one_of(1, "westmere-x5660", true, Checking::Off))
}

fn prepared((processor, words): (Processor<Words>, Words)) -> (Processor<Words>, Words) {
    [NESTED, GUEST, SHADOW].iter().for_each(|root| words.map(*root, 0, true));
    // The second GiB, where the other tables are, is mapped to itself everywhere.
    [GIB, NESTED, GUEST, SHADOW].iter().for_each(|root| words.set(root + 0x1008, GIB | 0xe7));
    words.set(SHADOW + 0x2000, (SHADOW + 0x3000) | 0x67 | agile::SWITCHING);
    (processor, words)
}

/// VMRUN with these words.
fn enter(processor: &mut Processor<Words>, words: &Words, agile: agile::Words, exit: u64, instructions: u64) {
    for (offset, word) in [
        (0x58, 7),
        (0x70, exit),
        (0x3e0, agile.state),
        (0x3e8, agile.guest_cr3),
        (0x3f0, agile.nested_root),
        (0x4d0, LONG.efer),
        (0x548, LONG.cr4),
        (0x550, SHADOW),
        (0x558, LONG.cr0 | 1 << 16),
    ] {
        words.set(BLOCK + offset, word);
    }
    let vmcb = Vmcb::read(words, BLOCK).unwrap();
    processor.vmrun(&vmcb, LONG, instructions);
}

fn context(stand_in: bool, root_nested: bool) -> agile::Words {
    agile::Words::new(stand_in, root_nested, GUEST, NESTED)
}

/// The counters of agile paging, differences and equal checks.
fn checks(processor: &mut Processor<Words>) -> (u64, u64, u64) {
    processor.settle(true);
    let counters = counters(processor);
    (counters.checks_equal, processor.record().agile.checks_stale, counters.checks_differ)
}

#[test]
fn walks_are_counted_by_where_they_switch() {
    let (mut processor, words) = machine(1, Checking::Misses);
    let mut walks = |root_nested, root_switching: bool, va| {
        let mut context = context(false, root_nested);
        context.state |= if root_switching { agile::ROOT_SWITCHING } else { 0 };
        enter(&mut processor, &words, context, 0, 0);
        processor.flush_all();
        let before = processor.record().agile;
        processor.access(Request { va, ..REQUEST }, &same);
        let counted = processor.record().agile.since(before);
        processor.vmexit(0);
        let at = counted.walks.iter().position(|walks| *walks > 0).unwrap();
        (at, counted.walks.iter().sum::<u64>(), counted.refs_uncached[at])
    };
    assert_eq!(walks(false, false, 0x20_0000), (0, 1, 4));
    assert_eq!(walks(false, false, 0x5000), (1, 1, 8));
    assert_eq!(walks(false, true, 0x5000), (4, 1, 20));
    assert_eq!(walks(true, false, 0x5000), (5, 1, 24));
    words.set(SHADOW + 0x1000, (SHADOW + 0x2000) | 0x67 | agile::SWITCHING);
    assert_eq!(walks(false, false, 0x5000), (2, 1, 12));
    words.set(SHADOW, (SHADOW + 0x1000) | 0x67 | agile::SWITCHING);
    assert_eq!(walks(false, false, 0x5000), (3, 1, 16));
    let shadow = processor.record().sides[Side::Shadow as usize];
    assert_eq!((shadow.dtlb_misses, shadow.walk_refs_uncached), (6, 4 + 8 + 20 + 24 + 12 + 16));
    assert_eq!((shadow.checks_equal, shadow.checks_differ), (6, 0));
}

#[test]
fn without_the_words_a_bit_in_the_tables_means_nothing() {
    let (mut processor, words) = machine(1, Checking::Misses);
    enter(&mut processor, &words, agile::Words::default(), 0, 0);
    processor.access(REQUEST, &same);
    assert_eq!(counters(&mut processor).walk_refs_uncached, 4);
    assert_eq!(processor.record().agile, Default::default());
    processor.vmexit(0);
    enter(&mut processor, &words, context(false, false), 0, 0);
    // The host's own tables, after the exit, are the host's.
    processor.vmexit(0);
    processor.flush_all();
    processor.access(REQUEST, &same);
    assert_eq!(processor.record().agile.walks, [0; SWITCHES]);
}

#[test]
fn stand_ins_are_the_hosts_and_counted_a_second_time() {
    let (mut processor, words) = machine(1, Checking::Off);
    enter(&mut processor, &words, context(false, false), 0, 100);
    let costs = processor.costs;
    for (stand_in, at) in [(true, 200), (false, 300), (true, 400)] {
        let before = *processor.record();
        processor.vmexit(at);
        load(&mut processor, 0x9000);
        enter(&mut processor, &words, context(stand_in, false), 0x4e, at + 30);
        let record = processor.record();
        let host = record.sides[0].since(&before.sides[0]);
        let stood = record.stand_ins.since(&before.stand_ins);
        assert!(host.instructions == 30 && host.cycles >= 30 + costs.vmrun + costs.vmexit);
        assert_eq!((host.vmruns, host.vmexits), (1, 1));
        assert_eq!(stood, if stand_in { host } else { Counters::default() });
        assert_eq!(record.agile.stand_ins - before.agile.stand_ins, u64::from(stand_in));
        assert_eq!(
            record.sides[2].since(&before.sides[2]).instructions,
            at - before.sides[2].instructions - 100 - 30 * ((at - 200) / 100)
        );
    }
}

#[test]
fn what_a_stand_in_uses_stays_out_of_the_caches() {
    let misses = |stand_in| {
        let (mut processor, words) = caching();
        enter(&mut processor, &words, context(false, false), 0, 0);
        // Half of a set: the walks need room, too.
        let lines = (0..4).map(|page| 0x20_0000 + 0x1000 * page);
        let touch = |processor: &mut Processor<Words>| {
            lines.clone().for_each(|va| _ = processor.access(Request { va, ..REQUEST }, &same));
        };
        touch(&mut processor);
        processor.vmexit(0);
        (0..512).for_each(|line| load(&mut processor, 0x10_0000 + 0x1000 * line));
        enter(&mut processor, &words, context(stand_in, false), 0x4e, 0);
        let before = processor.record().sides[2];
        touch(&mut processor);
        let missed = processor.record().sides[2].since(&before);
        (missed.l1d_misses, missed.l2_misses)
    };
    assert_eq!(misses(true), (0, 0));
    let (first, second) = misses(false);
    assert!(first >= 4 && second >= 4, "{first} {second}");
}

#[test]
fn what_the_guest_executes_itself_costs_what_it_costs_there() {
    let (mut processor, words) = machine(1, Checking::Off);
    enter(&mut processor, &words, context(false, false), 0, 0);
    let mut after = |stand_in, code| {
        let before = processor.record().sides[Side::Shadow as usize];
        processor.vmexit(0);
        enter(&mut processor, &words, context(stand_in, false), code, 0);
        let guest = processor.record().sides[Side::Shadow as usize].since(&before);
        (guest.cr3_writes, guest.invlpgs, guest.stall_cycles)
    };
    assert_eq!(after(false, EXIT_WRITE_CR3), (0, 0, 0));
    assert_eq!(after(true, 0x4e), (0, 0, 0));
    let (cr3, invlpg) = (after(true, EXIT_WRITE_CR3), after(true, 0x79));
    let Costs { cr3_write, invlpg: page, .. } = processor.costs;
    assert_eq!((cr3, invlpg), ((1, 0, cr3_write), (0, 1, page)));
}

#[test]
fn nested_translations_stay_where_a_guests_own_flush_is_stood_in_for() {
    let (mut processor, words) = machine(1, Checking::Off);
    let mut refs = |stand_in, asid: u64, flush: u64| {
        enter(&mut processor, &words, context(stand_in, false), EXIT_WRITE_CR3, 0);
        words.set(BLOCK + 0x58, flush << 32 | asid);
        let vmcb = Vmcb::read(&words, BLOCK).unwrap();
        processor.vmexit(0);
        processor.vmrun(&vmcb, LONG, 0);
        let before = processor.record().agile.refs;
        processor.access(REQUEST, &|_| Truth::Unknown);
        let refs = processor.record().agile.refs[1] - before[1];
        processor.vmexit(0);
        refs
    };
    let cold = refs(false, 7, 0);
    // By TLB control, and by another ASID: the page's nested translation is known.
    assert_eq!((cold, refs(true, 7, 3), refs(true, 8, 0)), (8, 4, 4));
    assert_eq!((refs(false, 9, 0), refs(false, 9, 3)), (8, 8));
    assert_eq!(refs(true, 9, 1), 8, "a flush of all is one");
}

#[test]
fn bits_that_the_hypervisor_set_in_the_walkers_place_are_the_walkers() {
    let (mut processor, words) = machine(1, Checking::Off);
    let due = |processor: &mut Processor<Words>, stand_in| {
        enter(processor, &words, context(false, false), 0, 0);
        processor.access(REQUEST, &same);
        // The guest clears the bits, and flushes.
        words.set(ENTRY, 0x5007);
        processor.access(Request { va: ENTRY, write: true, ..REQUEST }, &same);
        processor.vmexit(0);
        processor.flush_all();
        words.set(ENTRY, 0x5067);
        processor.access(Request { va: ENTRY, write: true, ..REQUEST }, &same);
        enter(processor, &words, context(stand_in, false), 0x4e, 0);
        let before = counters(processor);
        processor.access(Request { write: true, ..REQUEST }, &same);
        let after = counters(processor).since(&before);
        processor.vmexit(0);
        processor.flush_all();
        (after.accessed_writes, after.dirty_writes)
    };
    assert_eq!(due(&mut processor, true), (1, 1));
    assert_eq!(due(&mut processor, false), (0, 0));
}

#[test]
fn a_stand_in_may_be_older_than_the_guests_entry_until_the_flush() {
    let (mut processor, words) = machine(1, Checking::Misses);
    enter(&mut processor, &words, context(false, false), 0, 0);
    processor.access(REQUEST, &same);
    assert_eq!(checks(&mut processor), (1, 0, 0));
    // The guest's store, and a miss before the guest flushes: the emulator uses the stand-in, and so does the model.
    words.set(ENTRY, 0x9067);
    processor.access(Request { va: ENTRY, write: true, ..REQUEST }, &same);
    processor.tlbs.clear();
    assert_eq!(processor.access(REQUEST, &same), Place::Memory(0x5000));
    assert_eq!(checks(&mut processor), (3, 1, 0));
    // The emulator must not have what neither says.
    processor.tlbs.clear();
    processor.access(REQUEST, &|_| Truth::At(0x9000));
    assert_eq!(checks(&mut processor), (3, 2, 1));
    // The flush, after which the stand-in should be gone.
    processor.invlpg(0x5000);
    processor.access(REQUEST, &same);
    assert_eq!(checks(&mut processor), (4, 2, 2));
    assert!(processor.differences()[1].contains("the stand-in has another"));
    words.set(STAND_IN, 0x9067);
    processor.invlpg(0x5000);
    assert_eq!(processor.access(REQUEST, &|_| Truth::At(0x9000)), Place::Memory(0x9000));
    assert_eq!(checks(&mut processor), (5, 2, 2));
}

#[test]
fn a_flush_of_the_hypervisors_own_leaves_stand_ins() {
    let (mut processor, words) = machine(1, Checking::Misses);
    enter(&mut processor, &words, context(false, false), 0, 0);
    processor.access(REQUEST, &same);
    words.set(ENTRY, 0x9067);
    processor.access(Request { va: ENTRY, write: true, ..REQUEST }, &same);
    // An interrupt, after which the hypervisor flushes: all, its guest, and by another ASID. The guest has flushed nothing yet.
    let mut again = |asid: u64, cr4| {
        processor.vmexit(0);
        words.set(BLOCK + 0x58, asid);
        words.set(BLOCK + 0x70, 0x60);
        words.set(BLOCK + 0x548, cr4);
        processor.vmrun(&Vmcb::read(&words, BLOCK).unwrap(), LONG, 0);
        assert_eq!(processor.access(REQUEST, &same), Place::Memory(0x5000));
        let (_, stale, differ) = checks(&mut processor);
        (stale, differ)
    };
    assert_eq!([1 << 32 | 7, 3 << 32 | 7, 8].map(|asid| again(asid, LONG.cr4)), [(1, 0), (2, 0), (3, 0)]);
    // An intercepted write of CR4 that turns global pages on or off.
    assert_eq!(again(9, LONG.cr4 ^ 0x80), (3, 1));
    // An intercepted flush of its page.
    processor.access(Request { va: ENTRY, write: true, ..REQUEST }, &same);
    processor.guest_flushes(GuestFlush::Page(0x5123));
    processor.vmexit(0);
    enter(&mut processor, &words, context(true, false), 0x79, 0);
    processor.flush_all();
    processor.access(REQUEST, &same);
    assert!(checks(&mut processor).2 > 1);
}

#[test]
fn a_stand_in_without_a_store_is_a_mistake() {
    for pcpus in [1, 2] {
        let (mut processor, words) = machine(pcpus, Checking::All);
        enter(&mut processor, &words, context(false, false), 0, 0);
        processor.access(REQUEST, &same);
        // The table is known to be one from here on.
        processor.invlpg(0x5000);
        words.set(STAND_IN, 0x9067);
        processor.access(REQUEST, &|_| Truth::At(0x9000));
        assert_eq!(checks(&mut processor), (2, 0, 1), "{pcpus}");
        // More rights than the guest's entry has.
        words.set(STAND_IN, 0x5067);
        words.set(ENTRY, 0x5065);
        processor.invlpg(0x5000);
        processor.access(REQUEST, &same);
        assert_eq!(checks(&mut processor), (3, 0, 2), "{pcpus}");
    }
}
