//! `docs/msrs.md` says what the code does: each of its rows is tried, and each MSR that answers has a row.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::*;

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/msrs.md"));

/// Every range in which there are MSRs.
const RANGES: [core::ops::Range<u32>; 4] =
    [0..0x2000, 0x4b56_4d00..0x4b56_4d10, 0xc000_0000..0xc000_2000, 0xc001_0000..0xc001_2000];

/// What a row says.
#[derive(Debug, PartialEq)]
struct Row {
    /// AMD's answer, Intel's.
    answers: [String; 2],
    /// Whether it depends on a CPUID bit.
    conditional: bool,
}

fn rows() -> BTreeMap<u32, Row> {
    let mut rows = BTreeMap::new();
    for line in PAGE.lines().filter(|line| line.starts_with("| 0x")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [numbers, _, amd, intel, condition] = cells[..] else { panic!("five cells: {line}") };
        let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number");
        let (first, last) = numbers.split_once(" to ").unwrap_or((numbers, numbers));
        for msr in number(first)..=number(last) {
            let row = Row { answers: [amd, intel].map(str::to_string), conditional: !condition.is_empty() };
            assert!(rows.insert(msr, row).is_none(), "{msr:#x} has two rows");
        }
    }
    rows
}

/// The words of the page for how the code answers.
fn answer(msr: u32, ctx: &MsrContext<'_>) -> String {
    if PASS_THROUGH.contains(&msr) {
        return "own".to_string();
    }
    let mut state = MsrState::default();
    let reset = match state.read(msr, ctx) {
        MsrRead::Device(_) => return "device".to_string(),
        MsrRead::Name(_) => return "name".to_string(),
        MsrRead::Value(value) => Some(value),
        MsrRead::Fault => None,
    };
    let (mut accepted, mut changed) = (false, false);
    for value in [0, 1, 2, 6, 0x406, 1 << 11, 0x0007_0106_0007_0406, u64::MAX] {
        let written = state.write(msr, value, ctx);
        accepted |= written != MsrWrite::Fault;
        changed |= matches!(written, MsrWrite::Effect(_))
            || state.read(msr, ctx) != MsrRead::Value(reset.unwrap_or(0));
    }
    match reset {
        None if accepted => "write-only".to_string(),
        None => "-".to_string(),
        Some(_) if changed => "kept".to_string(),
        Some(value) if accepted => format!("{value:#x}, ignored"),
        Some(value) => format!("{value:#x}, fixed"),
    }
}

#[test]
fn the_page_says_what_the_code_does() {
    let rows = rows();
    assert!(rows.len() > 300);
    for (which, amd) in [(0, true), (1, false)] {
        let none = CpuLimits { amd, phys_bits: 48, ..CpuLimits::default() };
        let all = CpuLimits {
            efer: 0xd01,
            tsc_aux: true,
            apic: true,
            x2apic: true,
            tsc_deadline: true,
            mtrr: true,
            pat: true,
            mca: true,
            spec_ctrl: 7,
            barrier: true,
            flush_l1d: !amd,
            virt_ssbd: amd,
            arch_capabilities: (!amd).then_some(0),
            ..none
        };
        let with = MsrContext { limits: &all, cr0: 0, efer: 0, permissive: false, pv_clock: true };
        let without = MsrContext { limits: &none, pv_clock: false, ..with };
        for msr in RANGES.into_iter().flatten() {
            let says = rows.get(&msr).map_or("-", |row| &row.answers[which]);
            assert_eq!(says, answer(msr, &with), "{msr:#x}, AMD: {amd}");
            let says = if rows.get(&msr).is_some_and(|row| row.conditional) { "-" } else { says };
            assert_eq!(says, answer(msr, &without), "{msr:#x}, AMD: {amd}, nothing offered by CPUID");
        }
    }
    let outside = rows.keys().find(|msr| !RANGES.iter().any(|range| range.contains(msr)));
    assert_eq!(outside, None, "no MSR is outside of what was tried");
}
