//! The quick ways change no count: a processor that is driven as the plugin drives it, beside one whose every access and
//! fetch is looked up in full.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Access {
        page: u64,
        offset: u64,
        len: u64,
        write: bool,
    },
    /// Software writes the entry of a page, perhaps to lead to a page of tables, with its A and D bits or without.
    Entry {
        page: u64,
        to_table: bool,
        used: bool,
    },
    /// A load from the tables.
    Table {
        page: u64,
    },
    Fetch {
        page: u64,
        offset: u64,
        len: u64,
    },
    Cr3,
    Invlpg {
        page: u64,
    },
    GlobalPages(bool),
    /// Paging on, or off as it is before a kernel turns it on.
    Paging(bool),
    Vmrun {
        asid: u32,
        flush: bool,
    },
    Vmexit,
}

/// More pages than the first TLB has entries.
const PAGES: u64 = 100;

fn step() -> impl Strategy<Value = Step> {
    let page = || prop_oneof![4 => 0..8u64, 2 => 0..PAGES, 1 => Just(300)];
    let access = (page(), 0..4096u64, 1..17u64, any::<bool>());
    prop_oneof![
        40 => access.prop_map(|(page, offset, len, write)| Step::Access { page, offset, len, write }),
        6 => (page(), prop::bool::weighted(0.1), any::<bool>())
            .prop_map(|(page, to_table, used)| Step::Entry { page, to_table, used }),
        3 => page().prop_map(|page| Step::Table { page }),
        10 => (page(), 0..4096u64, 1..200u64).prop_map(|(page, offset, len)| Step::Fetch { page, offset, len }),
        1 => Just(Step::Cr3),
        2 => page().prop_map(|page| Step::Invlpg { page }),
        1 => any::<bool>().prop_map(Step::GlobalPages),
        2 => prop::bool::weighted(0.7).prop_map(Step::Paging),
        1 => (1..3u32, any::<bool>()).prop_map(|(asid, flush)| Step::Vmrun { asid, flush }),
        1 => Just(Step::Vmexit),
    ]
}

/// Programs have the first half of the pages; the rest is the kernel's.
fn is_user(va: u64) -> bool {
    va < (PAGES / 2) << 12
}

fn access(processor: &mut Processor<Words>, is_quick: bool, va: u64, len: u64, write: bool) {
    let crosses = va & 63 > 48 && (va & 63) + len > 64;
    if !is_quick {
        processor.tlbs.forget_all_quick();
    } else if crosses {
        if processor.quick_crossing(va, va + len - 1, write) {
            return;
        }
    } else {
        match processor.quick::<true>(va) {
            Quick::Done => return,
            Quick::Line(pa) => return processor.touch(pa),
            Quick::Unknown => {}
        }
    }
    let request = Request { va, len, write, user: processor.in_guest() && is_user(va) };
    processor.access(request, &|_| Truth::Unknown);
}

fn fetch(processor: &mut Processor<Words>, is_quick: bool, va: u64, len: u64) {
    let (lines, end) = (((va + len - 1) >> LINE) - (va >> LINE) + 1, va + len);
    let pa = if va >> 12 == (end - 1) >> 12 { va } else { u64::MAX };
    if !is_quick {
        processor.tlbs.forget_all_quick();
    } else if processor.quick_fetch(va, pa, lines) {
        return;
    }
    processor.fetch(va, end, &|_: u64| Truth::Unknown);
}

fn perform(processor: &mut Processor<Words>, is_quick: bool, step: &Step) {
    let entry = |page: u64| GIB + 0x3000 + page * 8;
    match *step {
        Step::Access { page, offset, len, write } => {
            access(processor, is_quick, page << 12 | offset, len, write);
        }
        Step::Entry { page, .. } => access(processor, is_quick, entry(page), 8, true),
        Step::Table { page } => access(processor, is_quick, entry(page), 8, false),
        Step::Fetch { page, offset, len } => fetch(processor, is_quick, page << 12 | offset, len),
        Step::Cr3 => processor.write_cr3(),
        Step::Invlpg { page } => processor.invlpg(page << 12),
        Step::GlobalPages(on) => {
            let control = processor.control();
            processor.set_control(Control { cr4: if on { 0xa0 } else { 0x20 }, ..control });
        }
        Step::Paging(on) => {
            let control = processor.control();
            let cr0 = if on { LONG.cr0 } else { LONG.cr0 & !(1 << 31) };
            processor.set_control(Control { cr0, ..control });
        }
        Step::Vmrun { asid, flush } if !processor.in_guest() => {
            let tlb_control = if flush { TlbControl::Asid } else { TlbControl::Nothing };
            // One with nested tables, which are the same, and one without.
            let nested = (asid == 1).then_some(GIB);
            let host = processor.control();
            processor.vmrun(&Vmcb { asid, tlb_control, nested, control: LONG, agile: None }, host, 0);
        }
        Step::Vmrun { .. } => {}
        Step::Vmexit => processor.vmexit(0),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn quick_ways_change_no_count(
        policy in prop::sample::select(vec!["lru", "plru", "fifo", "random"]),
        steps in prop::collection::vec(step(), 1..1500),
    ) {
        let text = machine::preset("zen3").unwrap().replace("\"lru\"", &format!("\"{policy}\""));
        let words = Words::default();
        words.map(GIB, 0, true);
        // The second GiB, where the tables are, is mapped to itself.
        words.set(GIB + 0x1008, GIB | 0xe7);
        let mut processors = [true, false].map(|is_quick| {
            let machine = machine::read(&text, "zen3").unwrap();
            let mut shared = Shared::new(machine, Split::q35(2 * GIB), Pcpus { count: 1, has_spare: false }, true, Checking::Off, 0..0);
            let record = Box::leak(Box::new(Record::default()));
            let mut processor = shared.processor(0, words.clone(), record);
            processor.set_control(LONG);
            (is_quick, processor)
        });
        for step in &steps {
            if let Step::Entry { page, to_table, used } = *step {
                let to = if to_table { GIB + 0x3000 } else { page << 12 };
                words.set(GIB + 0x3000 + page * 8, to | if used { 0x67 } else { 7 });
            }
            let counts = processors.each_mut().map(|(is_quick, processor)| {
                perform(processor, *is_quick, step);
                processor.sync(0);
                processor.record().sides
            });
            prop_assert_eq!(counts[0], counts[1], "after {:?}", step);
        }
    }
}
