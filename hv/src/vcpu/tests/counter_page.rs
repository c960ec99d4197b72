//! The page on which a guest's kernel counts: its hypercall, what samples have of it, and what a policy says without it.

use abi::hypercall::*;

use super::*;
use crate::arch::addr::Gpa;
use crate::arch::counters::{CounterEvent, Counts};
use crate::arch::state::{SegReg, Segment, efer};
use crate::mem::guest_memory::GuestMemory;
use crate::paging::GpaRange;
use crate::paging::policy::Period;
use crate::vcpu::sampling;
use crate::vcpu::testing::{CODE, Machine, START};
use crate::virt::fake::Step;
use crate::vm::translation::Translation;

/// A page of the guest's that nothing else uses.
const PAGE: u64 = 0x9000;
/// Registers [`PAGE`].
const REGISTER: Step = |f| call(f, COUNTER_PAGE, PAGE | COUNTER_PAGE_ENABLED, COUNTER_PAGE_VERSION);
const UNREGISTER: Step = |f| call(f, COUNTER_PAGE, 0, 0);

fn call(f: &mut Fake, number: u64, value: u64, version: u64) -> Exit {
    f.set_gpr(Gpr::Rax, number);
    f.set_gpr(Gpr::Rbx, value);
    f.set_gpr(Gpr::Rcx, version);
    Exit::Hypercall
}

/// What RAX holds after one step.
#[track_caller]
fn answer_to(step: Step) -> i64 {
    let mut machine = Machine::new(&[step]);
    machine.play();
    assert!(machine.vcpu.virt.delivered.is_empty(), "no hypercall faults");
    assert_eq!(machine.vcpu.virt.regs.rip, CODE + 2);
    machine.vcpu.virt.gpr(Gpr::Rax) as i64
}

#[test]
fn each_refusal_has_its_number() {
    assert_eq!(answer_to(REGISTER), 0);
    assert_eq!(answer_to(UNREGISTER), 0, "also without a registration");
    assert_eq!(answer_to(|f| call(f, TIER_TARGET + 1, PAGE | 1, 1)), -1000);
    assert_eq!(answer_to(|f| call(f, COUNTER_PAGE, PAGE, 1)), -22, "not enabled");
    assert_eq!(answer_to(|f| call(f, COUNTER_PAGE, PAGE | 0x801, 1)), -22, "not aligned");
    assert_eq!(answer_to(|f| call(f, COUNTER_PAGE, PAGE | 3, 1)), -22, "reserved");
    assert_eq!(answer_to(|f| call(f, COUNTER_PAGE, PAGE | 1, 2)), -95, "version");
    assert_eq!(answer_to(|f| call(f, COUNTER_PAGE, 0xfee0_0001, 1)), -14, "the local APIC");
    assert_eq!(answer_to(|f| call(f, COUNTER_PAGE, 0x4000_0001, 1)), -14, "a hole");
    assert_eq!(answer_to(|f| call(f, COUNTER_PAGE, !0xfff | 1, 1)), -14, "beyond all memory");
}

#[test]
fn rom_cannot_count() {
    let mut machine = Machine::new(&[REGISTER]);
    let vm = &machine.vm;
    let page = GpaRange::new(Gpa(PAGE), 0x1000).unwrap();
    let hpa = vm.memory.read().p2m.translate(Gpa(PAGE)).writable().unwrap();
    let _flush = vm.change_map(0, &mut 0, |p2m, _| p2m.map_rom(page, hpa).map(|c| Vec::from([c]))).unwrap();
    machine.play();
    assert_eq!(machine.vcpu.virt.gpr(Gpr::Rax) as i64, -14);
}

#[test]
fn programs_of_the_guest_may_not_call() {
    let user = |f: &mut Fake| {
        f.regs.cpl = 3;
        REGISTER(f)
    };
    assert_eq!(answer_to(user), -1);
}

#[test]
fn code_of_32_bits_has_halves_of_registers() {
    let high = |f: &mut Fake| {
        let exit = REGISTER(f);
        for gpr in [Gpr::Rax, Gpr::Rbx, Gpr::Rcx] {
            f.set_gpr(gpr, f.gpr(gpr) | 7 << 32);
        }
        exit
    };
    assert_eq!(answer_to(high), 0);
    let long: Step = |f| {
        f.set_efer(f.efer() | efer::LMA);
        let mut cs = f.segment(SegReg::Cs);
        cs.attributes |= Segment::LONG;
        f.set_segment(SegReg::Cs, cs);
        let exit = REGISTER(f);
        f.set_gpr(Gpr::Rbx, f.gpr(Gpr::Rbx) | 7 << 32);
        exit
    };
    assert_eq!(answer_to(long), -14);
}

/// The machine with samples on, after it has registered the page.
fn registered() -> Machine {
    let mut machine = Machine::new(&[REGISTER]);
    // Never due by itself.
    machine.vm.sampling.start(u64::MAX / 2, START);
    machine.vcpu.turn_began = START;
    machine.play();
    assert_eq!(machine.vcpu.virt.gpr(Gpr::Rax), 0);
    machine
}

fn count(machine: &Machine, user: u64, kernel: u64) {
    let counters = [user, kernel].map(u64::to_le_bytes);
    machine.vm.memory.read().ram().write(Gpa(PAGE), counters.as_flattened()).unwrap();
}

/// The page faults in the next sample, some milliseconds later.
fn sampled(machine: &mut Machine) -> Option<u64> {
    let tsc = machine.host.cpu.tsc.get();
    machine.vcpu.ran += 5_000_000;
    sampling::publish(&mut machine.vcpu, &machine.vm, &mut machine.host, tsc);
    let mut record = Vec::new();
    let _no_policy = sampling::close(&machine.vm, 0, tsc, true, |words| record = words.to_vec());
    let (sample, _) = records::sample::Sample::read(&record).unwrap();
    sample.sums.counters[0].get(CounterEvent::PageFaults as usize)
}

#[test]
fn samples_have_what_the_page_says() {
    let mut machine = registered();
    count(&machine, 30, 2);
    assert_eq!(sampled(&mut machine), Some(32));
    count(&machine, 31, 2);
    assert_eq!(sampled(&mut machine), Some(33));
    count(&machine, 5, 0);
    assert_eq!(sampled(&mut machine), Some(33), "backwards");
    count(&machine, u64::MAX, u64::MAX);
    let jump = sampled(&mut machine).unwrap();
    assert!((34..1_000_000).contains(&jump), "{jump}: not more than fits the time");
}

#[test]
fn the_page_is_looked_up_each_time() {
    let mut machine = registered();
    count(&machine, 10, 0);
    assert_eq!(sampled(&mut machine), Some(10));
    // Another frame comes to the page's place, with other counters on it.
    let page = GpaRange::new(Gpa(PAGE), 0x1000).unwrap();
    let other = machine.vm.memory.read().p2m.translate(Gpa(0xa000)).writable().unwrap();
    let counters = [25u64, 0].map(u64::to_le_bytes);
    machine.vm.memory.read().ram().write(Gpa(0xa000), counters.as_flattened()).unwrap();
    let vm = &machine.vm;
    let _flush =
        vm.change_map(0, &mut 0, |p2m, _| p2m.map_ram(page, other, true).map(|c| Vec::from([c]))).unwrap();
    assert_eq!(sampled(&mut machine), Some(25));
    // And then none.
    let vm = &machine.vm;
    let _flush = vm.change_map(0, &mut 0, |p2m, _| p2m.unmap(page).map(|c| Vec::from([c]))).unwrap();
    assert_eq!(sampled(&mut machine), None);
    assert!(!machine.vcpu.counter_page.is_registered());
}

#[test]
fn a_module_that_goes_takes_the_count_along() {
    let mut machine = registered();
    count(&machine, 3, 0);
    machine.vcpu.virt.script.push_back(UNREGISTER);
    machine.play();
    count(&machine, 9, 0);
    assert_eq!(sampled(&mut machine), None);
    machine.vcpu.virt.script.push_back(REGISTER);
    machine.play();
    count(&machine, 11, 0);
    let sum = sampled(&mut machine).unwrap();
    assert!((2..=5).contains(&sum), "{sum}: what was counted before, and 2");
}

#[test]
fn page_faults_that_are_not_counted_are_missed_once() {
    let sums = |seconds: u64, counted: bool| {
        let mut guest = Counts::ABSENT;
        for event in [CounterEvent::Instructions, CounterEvent::Cycles, CounterEvent::Walks] {
            guest.set(event, seconds);
        }
        if counted {
            guest.set(CounterEvent::PageFaults, 7 * seconds);
        }
        let nanos = seconds * 1_000_000_000;
        Period { nanos, exits: 0, paging_exits: 0, guest_faults: 0, guest, host: Counts::ABSENT }
    };
    let said = |mode: &str, counted: fn(u64) -> bool| -> Vec<u64> {
        let translation = Translation::default();
        translation.request(mode.parse().unwrap());
        let lacks = |second: &u64| translation.end_period(sums(*second, counted(*second))).lacks_page_faults;
        (0..60).filter(lacks).collect()
    };
    for mode in ["threshold", "dsp-offset", "asp-svm"] {
        assert_eq!(said(mode, |_| false), [10], "{mode}");
        assert!(
            said(mode, |second| second >= 6).is_empty(),
            "{mode}: a module that is loaded after the boot"
        );
    }
    for mode in ["dav2m", "dsp-sample", "random", "nested"] {
        assert!(said(mode, |_| false).is_empty(), "{mode}");
    }
}
