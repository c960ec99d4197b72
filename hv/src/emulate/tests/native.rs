//! The proof that counts: random instructions with random operands, executed by the emulator and by the processor
//! that runs the tests, must leave the same registers, flags and memory.
//!
//! A case is made of random bytes that the decoder accepts; registers are then chosen so that its memory operand lies
//! in the test's RAM. The emulator goes first, and only what it finishes without a fault runs natively, so that a
//! crash here means that the emulator missed a fault.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod generate;
mod harness;

use std::collections::BTreeMap;

use super::*;
use generate::Case;
use harness::{EXIT, Harness, INSN, Registers};

/// How many instructions are made up, and how often each kind is run at most and at least.
const ATTEMPTS: usize = 700_000;
const AT_MOST: usize = 250;
const AT_LEAST: usize = 10;

#[test]
fn agrees_with_this_processor() {
    let mut harness = Harness::new();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut mem = TestMemory::new(harness::DATA, harness::DATA_LEN);
    for _ in 0..ATTEMPTS {
        let Some(mut case) = Case::random(&mut random) else { continue };
        let ran = seen.entry(generate::kind(&case.insn)).or_default();
        if *ran < AT_MOST && case.choose_operands(&mut random, &mut mem).is_some() {
            *ran += usize::from(run(&mut harness, &case, &mut mem));
        }
    }
    println!("{} cases: {seen:#?}", seen.values().sum::<usize>());
    for kind in generate::expected_kinds() {
        let ran = seen.get(&kind).copied().unwrap_or(0);
        assert!(ran >= AT_LEAST, "{kind} ran only {ran} times: {seen:#?}");
    }
}

/// Runs a case on both sides; false if the emulator did not finish it.
fn run(harness: &mut Harness, case: &Case, mem: &mut TestMemory) -> bool {
    mem.xmm = case.xmm;
    harness.copy_data(&mem.ram);
    let before = mem.ram.clone();
    let mut state = case.state(INSN);
    mem.code = Some((INSN, case.bytes.to_vec()));
    let mut cache = DecodeCache::new();
    loop {
        match emulate(&mut state, mem, &mut cache) {
            Outcome::Continue => {}
            Outcome::Done { single_step: false } => break,
            _ => {
                mem.ram = before;
                return false;
            }
        }
    }
    let native = harness.run(&case.bytes[..usize::from(case.insn.len)], &case.registers(), &case.xmm);
    let emulated = Registers { gprs: state.gprs, rflags: state.rflags };
    let compared = generate::defined_flags(case);
    let same_flags = (native.0.rflags ^ emulated.rflags) & compared == 0;
    let same = native.0.gprs == emulated.gprs && same_flags && native.1 == mem.xmm;
    assert!(
        same,
        "{:02x?} {:?}\nbefore   {:x?}\nnative   {:x?}\nemulated {:x?}\nflags {:#x}\nxmm {}",
        &case.bytes[..usize::from(case.insn.len)],
        case.insn,
        case.registers(),
        native.0,
        emulated,
        (native.0.rflags ^ emulated.rflags) & compared,
        native.1 == mem.xmm,
    );
    // As slices first: this is the test's hottest line.
    if harness.data() != mem.ram {
        let at = harness.data().iter().zip(&mem.ram).position(|(a, b)| a != b);
        panic!("memory at {at:x?}: {:02x?} {:?}", case.bytes, case.insn);
    }
    let after = match case.insn.op {
        Op::Call | Op::Jmp | Op::Ret => EXIT,
        _ => INSN + u64::from(case.insn.len),
    };
    assert_eq!(state.rip, after, "{:02x?} {:?}", case.bytes, case.insn);
    mem.events.clear();
    true
}
