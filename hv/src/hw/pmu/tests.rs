//! The drivers on modelled processors: MSRs that count as the manuals say.

use std::collections::BTreeMap;

use super::amd::{self, Amd};
use super::intel::{self, Intel, index};
use super::*;
use crate::arch::counters::{CounterEvent, Counts};

/// What a processor executes: how often each event select with its unit mask happens, and the two fixed counters' events.
type Work<'a> = &'a [(u64, u64)];

/// Instructions and cycles as AMD's selects and Intel's architectural ones have them.
const INSTRUCTIONS: u64 = 0xc0;
const AMD_CYCLES: u64 = 0x76;
const INTEL_CYCLES: u64 = 0x3c;

/// MSRs that exist, and what they hold.
#[derive(Debug, Default)]
struct Model {
    msrs: BTreeMap<u32, u64>,
}

impl Msrs for Model {
    fn read(&self, index: u32) -> u64 {
        *self.msrs.get(&index).unwrap_or_else(|| panic!("#GP: read of MSR {index:#x}"))
    }

    fn write(&mut self, index: u32, value: u64) {
        *self.msrs.get_mut(&index).unwrap_or_else(|| panic!("#GP: write of MSR {index:#x}")) = value;
    }
}

impl Model {
    fn with(msrs: impl IntoIterator<Item = u32>) -> Model {
        Model { msrs: msrs.into_iter().map(|index| (index, 0)).collect() }
    }

    fn count(&mut self, counter: u32, by: u64, width: u32) {
        let value = self.msrs.get_mut(&counter).unwrap();
        *value = value.wrapping_add(by) & ((1 << width) - 1);
    }

    /// An AMD processor executes: in a guest or not.
    fn run_amd(&mut self, registers: &[(u32, u32)], guest: bool, work: Work<'_>) {
        for &(control, counter) in registers {
            let word = self.msrs[&control];
            let (guest_only, host_only) = (word >> 40 & 1 != 0, word >> 41 & 1 != 0);
            let counts = word >> 22 & 1 != 0 && (guest_only == host_only || guest_only == guest);
            let select = word & 0xf_0000_ffff;
            for &(_, by) in work.iter().filter(|(event, _)| counts && *event == select) {
                self.count(counter, by, 48);
            }
        }
    }

    /// An Intel processor executes, with this IA32_PERF_GLOBAL_CTRL.
    fn run_intel(&mut self, global: u64, instructions: u64, cycles: u64, work: Work<'_>) {
        for counter in (0..8).filter(|counter| global >> counter & 1 != 0) {
            let word = self.msrs[&(index::PERFEVTSEL0 + counter)];
            let select = word & 0xffff;
            for &(_, by) in work.iter().filter(|(event, _)| word >> 22 & 1 != 0 && *event == select) {
                self.count(index::PMC0 + counter, by, 48);
            }
        }
        for (counter, by) in [(0, instructions), (1, cycles)] {
            if global >> (32 + counter) & 1 != 0
                && self.msrs[&index::FIXED_CTR_CTRL] >> (4 * counter) & 3 == 3
            {
                self.count(index::FIXED_CTR0 + counter, by, 48);
            }
        }
    }
}

fn counts(of: &[(CounterEvent, u64)]) -> Counts {
    let mut counts = Counts::ABSENT;
    of.iter().for_each(|&(event, value)| counts.set(event, value));
    counts
}

fn amd_cpuid(signature: u32, extended: bool) -> impl Fn(u32, u32) -> [u32; 4] {
    move |leaf, _| match leaf {
        1 => [signature, 0, 0, 0],
        0x8000_0001 => [0, 0, 1 << 2 | u32::from(extended) << 23, 0],
        _ => [0; 4],
    }
}

#[test]
fn six_counters_of_amd_tell_guest_and_host_apart() {
    let features = amd::Features::detect(amd_cpuid(0x0083_0f10, true)).unwrap();
    let registers: Vec<_> = (0..6).map(|n| (0xc001_0200 + 2 * n, 0xc001_0201 + 2 * n)).collect();
    let model = Model::with(registers.iter().flat_map(|&(a, b)| [a, b]));
    let mut pmu = Amd::start(features, model);
    let (dtlb, itlb, l2) = (0xf045, 0x0785, 0x0964);
    let guest = [(INSTRUCTIONS, 1000), (AMD_CYCLES, 1500), (dtlb, 7), (itlb, 3), (l2, 11)];
    pmu.msrs().run_amd(&registers, true, &guest);
    pmu.msrs().run_amd(&registers, false, &[(INSTRUCTIONS, 50), (AMD_CYCLES, 90), (dtlb, 1)]);
    let both = pmu.read();
    let expected = [
        (CounterEvent::Instructions, 1000),
        (CounterEvent::Cycles, 1500),
        (CounterEvent::DtlbMisses, 7),
        (CounterEvent::ItlbMisses, 3),
        (CounterEvent::L2Misses, 11),
    ];
    assert_eq!(both.guest, counts(&expected));
    assert_eq!(both.host, counts(&[(CounterEvent::Cycles, 90)]), "what does not fit is absent");
    assert_eq!(pmu.read(), both, "reading changes nothing");
}

#[test]
fn old_amd_processors_have_four_counters_and_unknown_families_no_misses() {
    let registers: Vec<_> = (0..4).map(|n| (0xc001_0000 + n, 0xc001_0004 + n)).collect();
    let model = || Model::with(registers.iter().flat_map(|&(a, b)| [a, b]));
    let barcelona = amd::Features::detect(amd_cpuid(0x0010_0f23, false)).unwrap();
    let both = Amd::start(barcelona, model()).read();
    let events: Vec<_> = both.guest.iter().map(|(event, _)| event).collect();
    assert_eq!(events, [CounterEvent::Instructions, CounterEvent::Cycles, CounterEvent::DtlbMisses]);
    assert!(both.host.has(CounterEvent::Cycles));
    let unknown = amd::Features::detect(amd_cpuid(0x0060_0f12 & !0xff0_0000 | 0x0070_0000, false)).unwrap();
    assert!(!Amd::start(unknown, model()).read().guest.has(CounterEvent::DtlbMisses));
    assert_eq!(amd::Features::detect(|_, _| [0; 4]), None, "without AMD-V");
}

#[test]
fn a_counter_that_wraps_goes_on() {
    let features = amd::Features::detect(amd_cpuid(0x0010_0f23, false)).unwrap();
    let registers: Vec<_> = (0..4).map(|n| (0xc001_0000 + n, 0xc001_0004 + n)).collect();
    let mut pmu = Amd::start(features, Model::with(registers.iter().flat_map(|&(a, b)| [a, b])));
    for _ in 0..3 {
        pmu.msrs().run_amd(&registers, true, &[(INSTRUCTIONS, (1 << 48) - 5)]);
        pmu.read();
    }
    assert_eq!(pmu.read().guest.get(CounterEvent::Instructions), Some(3 * ((1 << 48) - 5)));
}

#[test]
fn an_overflow_comes_once_and_loses_no_count() {
    let features = amd::Features::detect(amd_cpuid(0x0010_0f23, false)).unwrap();
    let registers: Vec<_> = (0..4).map(|n| (0xc001_0000 + n, 0xc001_0004 + n)).collect();
    let mut pmu = Amd::start(features, Model::with(registers.iter().flat_map(|&(a, b)| [a, b])));
    let run = |pmu: &mut Amd<Model>, n| pmu.msrs().run_amd(&registers, true, &[(INSTRUCTIONS, n)]);
    assert_eq!(pmu.msrs().read(0xc001_0000) >> 20 & 1, 1, "the counter interrupts");
    run(&mut pmu, 100);
    assert!(pmu.arm_overflow(1000));
    run(&mut pmu, 999);
    assert!(!pmu.take_overflow());
    run(&mut pmu, 2);
    assert!(pmu.take_overflow() && !pmu.take_overflow());
    assert_eq!(pmu.read().guest.get(CounterEvent::Instructions), Some(1101));
    assert!(pmu.arm_overflow(0), "the next instruction at the earliest");
    assert!(!pmu.take_overflow());
    run(&mut pmu, 1);
    assert!(pmu.take_overflow());
}

/// Version 4 monitoring with this many counters, on a processor of this signature.
fn intel_cpuid(signature: u32, version: u32, general: u32, missing: u32) -> impl Fn(u32, u32) -> [u32; 4] {
    move |leaf, _| match leaf {
        0 => [22, 0, 0, 0],
        1 => [signature, 0, 0, 0],
        10 => [version | general << 8 | 48 << 16 | 7 << 24, missing, 0, 3 | 48 << 5],
        _ => [0; 4],
    }
}

fn intel_model(general: u32) -> Model {
    let general = (0..general).flat_map(|n| [index::PMC0 + n, index::PERFEVTSEL0 + n]);
    let fixed = (0..3).map(|n| index::FIXED_CTR0 + n);
    let control = [index::FIXED_CTR_CTRL, index::GLOBAL_CTRL, index::GLOBAL_OVF_CTRL];
    Model::with(general.chain(fixed).chain(control))
}

#[test]
fn entries_and_exits_switch_the_counters_of_intel() {
    // Westmere-EP.
    let features = intel::Features::detect(intel_cpuid(0x206c2, 3, 4, 0)).unwrap();
    let mut pmu = Intel::start(&features, intel_model(4));
    let [guest, host] = features.switch();
    assert_eq!((guest & host, pmu.msrs().read(index::GLOBAL_CTRL)), (0, host));
    let (dtlb, walk_cycles, llc) = (0x0249, 0x0449, 0x412e);
    pmu.msrs().run_intel(guest, 500, 800, &[(dtlb, 9), (walk_cycles, 300), (llc, 4), (INTEL_CYCLES, 800)]);
    pmu.msrs().run_intel(host, 70, 90, &[(dtlb, 5), (INTEL_CYCLES, 90)]);
    let expected = [
        (CounterEvent::Instructions, 500),
        (CounterEvent::Cycles, 800),
        (CounterEvent::DtlbMisses, 9),
        (CounterEvent::WalkCycles, 300),
        (CounterEvent::LlcMisses, 4),
    ];
    let both = pmu.read();
    assert_eq!(both.guest, counts(&expected));
    assert_eq!(both.host, counts(&[(CounterEvent::Cycles, 90)]));
}

#[test]
fn loads_and_stores_are_added_where_they_are_counted_apart() {
    // Haswell with eight counters.
    let features = intel::Features::detect(intel_cpuid(0x306f2, 3, 8, 0)).unwrap();
    let mut pmu = Intel::start(&features, intel_model(8));
    let [guest, host] = features.switch();
    pmu.msrs().run_intel(guest, 1, 1, &[(0x0e08, 10), (0x0e49, 3)]);
    pmu.msrs().run_intel(host, 1, 1, &[(INSTRUCTIONS, 40), (INTEL_CYCLES, 60)]);
    let both = pmu.read();
    assert_eq!(both.guest.get(CounterEvent::DtlbMisses), Some(13));
    assert!(!both.guest.has(CounterEvent::MemoryLocal));
    assert_eq!(both.host, counts(&[(CounterEvent::Instructions, 40), (CounterEvent::Cycles, 60)]));
    // With four, an event of two parts that does not fit is absent, not half.
    let features = intel::Features::detect(intel_cpuid(0x306f2, 3, 4, 0)).unwrap();
    let both = Intel::start(&features, intel_model(4)).read();
    assert!(both.guest.has(CounterEvent::DtlbMisses) && !both.guest.has(CounterEvent::WalkCycles));
    assert!(both.guest.has(CounterEvent::LlcMisses));
}

#[test]
fn what_intel_s_cpuid_denies_is_absent() {
    assert_eq!(
        intel::Features::detect(intel_cpuid(0x206c2, 1, 4, 0)),
        None,
        "version 1 has no global control"
    );
    assert_eq!(intel::Features::detect(|_, _| [0; 4]), None, "no such leaf");
    // A model that is not known, without LLC misses and cycles.
    let features = intel::Features::detect(intel_cpuid(0x0f43, 2, 4, 0b10001)).unwrap();
    let both = Intel::start(&features, intel_model(4)).read();
    let events: Vec<_> = both.guest.iter().map(|(event, _)| event).collect();
    assert_eq!(events, [CounterEvent::Instructions, CounterEvent::Cycles]);
    assert_eq!(both.host, counts(&[(CounterEvent::Instructions, 0)]));
}

#[test]
fn an_overflow_of_intel_s_fixed_counter_is_acknowledged() {
    let features = intel::Features::detect(intel_cpuid(0x206c2, 3, 4, 0)).unwrap();
    let mut pmu = Intel::start(&features, intel_model(4));
    let [guest, _] = features.switch();
    assert_eq!(pmu.msrs().read(index::FIXED_CTR_CTRL), 0b0011_1011, "the first one interrupts");
    assert!(pmu.arm_overflow(64));
    pmu.msrs().run_intel(guest, 63, 0, &[]);
    assert!(!pmu.take_overflow());
    pmu.msrs().run_intel(guest, 1, 0, &[]);
    assert!(pmu.take_overflow());
    assert_eq!(pmu.msrs().read(index::GLOBAL_OVF_CTRL), 1 << 32);
    assert_eq!(pmu.read().guest.get(CounterEvent::Instructions), Some(64));
}

#[test]
fn a_lab_machine_s_page_is_checked_and_read() {
    use abi::lab::{Counters as Page, Header, MAGIC, PAGE, Record, VERSION};
    let mut memory = vec![[0u64; PAGE / 8]; super::lab::Lab::BYTES as usize / PAGE];
    // Pages of a vector may begin anywhere.
    let address = memory.as_mut_ptr() as u64;
    let write = |header: Header, record: Record| {
        // SAFETY: both lie within the vector, at multiples of 8.
        unsafe {
            (address as *mut Header).write(header);
            ((address + 2 * PAGE as u64) as *mut Record).write(record);
        }
    };
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        pcpus: 2,
        record_offset: PAGE as u64,
        record_bytes: PAGE as u64,
        khz: 7,
        counts_only: 0,
    };
    let page =
        |n| Page { instructions: n, dtlb_misses: 2 * n, walks_4k_2m: n, walks_2m_2m: n, ..Page::default() };
    write(header, Record { sides: [page(1), page(10), page(100)], ..Record::default() });
    // SAFETY: the vector lives until the end, and is as long as that.
    let lab = |pcpu| unsafe { lab::Lab::new(address, pcpu) }.map(|(lab, khz)| (lab, assert_eq!(khz, 7)).0);
    let both = lab(1).unwrap().read();
    assert_eq!(both.host.get(CounterEvent::Instructions), Some(1));
    assert_eq!(both.guest.get(CounterEvent::Instructions), Some(110), "on nested and on shadow tables");
    assert_eq!(both.guest.get(CounterEvent::DtlbMisses), Some(220));
    assert_eq!(both.guest.get(CounterEvent::Walks), Some(220));
    assert_eq!(lab(2).unwrap_err(), lab::Unusable::Pcpu(2));
    // Before the model begins, of which a reader learns while it reads.
    let record = Record { sides: [page(1), page(10), page(100)], ..Record::default() };
    write(Header { counts_only: 1, ..header }, record);
    let mut early = lab(1).unwrap();
    let both = early.read();
    assert_eq!(both.guest.get(CounterEvent::Instructions), Some(110));
    assert_eq!((both.guest.iter().count(), both.host.iter().count()), (1, 1), "all else is absent");
    write(header, record);
    assert_eq!(early.read().guest.get(CounterEvent::DtlbMisses), Some(220));
    let record = Record::default();
    write(Header { version: 9, ..header }, record);
    assert_eq!(lab(0).unwrap_err(), lab::Unusable::Version(9));
    write(Header { record_offset: u64::MAX - 7, ..header }, record);
    assert_eq!(lab(1).unwrap_err(), lab::Unusable::Pcpu(2), "a record beyond the memory");
    write(Header { magic: 7, ..header }, record);
    assert!(lab(0).unwrap_err().to_string().contains("begin with 0x7"));
    drop(memory);
}

#[test]
fn counters_that_do_not_advance_are_noticed() {
    let at = |n| BothSides { guest: counts(&[(CounterEvent::Instructions, n)]), host: Counts::ABSENT };
    let mut detector = StallDetector::default();
    assert!(!detector.look(&at(5), true));
    assert!((0..31).all(|_| !detector.look(&at(5), true)));
    assert!(detector.look(&at(5), true));
    let mut detector = StallDetector::default();
    assert!((0..100).all(|_| !detector.look(&at(0), false)), "no guest has run");
    assert!((0..100).all(|n| !detector.look(&at(n + 1), true)));
    assert!((0..100).all(|_| !detector.look(&BothSides::ABSENT, true)), "nothing is counted");
}
