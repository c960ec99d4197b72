//! The MSRs by which software restricts speculation: there where CPUID offers them, and nowhere else (Intel SDM 4, table 2-2;
//! AMD APM 2, 3.2.9). Which ones this guest has is printed, for the end-to-end case that sets the processor's features.

use super::GP;
use crate::check::{Case, Check, case};
use crate::machine::insn::{cpuid, rdmsr, wrmsr};
use crate::machine::is_palimpsest;
use crate::say;

pub const CASES: &[Case] = &[case("msr.speculation", msrs)];

const SPEC_CTRL: u32 = 0x48;
const PRED_CMD: u32 = 0x49;
const ARCH_CAPABILITIES: u32 = 0x10a;
const FLUSH_CMD: u32 = 0x10b;
const VIRT_SPEC_CTRL: u32 = 0xc001_011f;

fn msrs(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("the emulations ignore unknown MSRs, or lack known ones");
    }
    let leaf7 = if cpuid(0, 0)[0] >= 7 { cpuid(7, 0)[3] } else { 0 };
    let leaf8 = if cpuid(0x8000_0000, 0)[0] >= 0x8000_0008 { cpuid(0x8000_0008, 0)[1] } else { 0 };
    let intel = |bit: u32| leaf7 >> bit & 1 != 0;
    let amd = |bit: u32| leaf8 >> bit & 1 != 0;
    let restricts =
        [(0, intel(26) || amd(14)), (1, intel(27) || amd(15)), (2, intel(31) || amd(24)), (7, amd(28))];
    let bits: u64 = restricts.iter().filter(|(_, has)| *has).map(|(bit, _)| 1u64 << bit).sum();
    let (barrier, flush, capabilities, virt) = (intel(26) || amd(12), intel(28), intel(29), amd(25));
    say!(
        "speculation spec_ctrl={bits:#x} pred_cmd={barrier} flush_cmd={flush} arch={capabilities} virt={virt}"
    );

    spec_ctrl(c, bits);
    command(c, PRED_CMD, barrier);
    command(c, FLUSH_CMD, flush);
    let fault = |has: bool| if has { None } else { GP };
    c.raises("RDMSR of ARCH_CAPABILITIES", fault(capabilities), || _ = rdmsr(ARCH_CAPABILITIES));
    c.raises("WRMSR of ARCH_CAPABILITIES", GP, || wrmsr(ARCH_CAPABILITIES, 0));
    for value in [4, 0] {
        c.raises("WRMSR of VIRT_SPEC_CTRL", fault(virt), || wrmsr(VIRT_SPEC_CTRL, value));
        let mut now = value;
        c.raises("RDMSR of VIRT_SPEC_CTRL", fault(virt), || now = rdmsr(VIRT_SPEC_CTRL));
        c.equal("VIRT_SPEC_CTRL", now, value);
    }
}

/// Holds `bits`, each by itself and all, and no other.
fn spec_ctrl(c: &mut Check, bits: u64) {
    if bits == 0 {
        c.raises("RDMSR of SPEC_CTRL that there is not", GP, || _ = rdmsr(SPEC_CTRL));
        return c.raises("WRMSR of SPEC_CTRL that there is not", GP, || wrmsr(SPEC_CTRL, 0));
    }
    for bit in 0..64 {
        let before = rdmsr(SPEC_CTRL);
        let (fault, after) = if bits >> bit & 1 != 0 { (None, 1 << bit) } else { (GP, before) };
        c.raises(format_args!("SPEC_CTRL bit {bit}"), fault, || wrmsr(SPEC_CTRL, 1 << bit));
        c.equal(format_args!("SPEC_CTRL after bit {bit}"), rdmsr(SPEC_CTRL), after);
    }
    for value in [bits, 0] {
        c.raises("WRMSR of SPEC_CTRL", None, || wrmsr(SPEC_CTRL, value));
        c.equal("SPEC_CTRL", rdmsr(SPEC_CTRL), value);
    }
}

/// Has something done by a write of 1, and keeps nothing.
fn command(c: &mut Check, msr: u32, has: bool) {
    let fault = if has { None } else { GP };
    c.raises(format_args!("WRMSR {msr:x}, offered: {has}"), fault, || wrmsr(msr, 1));
    c.raises(format_args!("RDMSR {msr:x}"), GP, || _ = rdmsr(msr));
    c.raises(format_args!("WRMSR {msr:x} of a reserved bit"), GP, || wrmsr(msr, 2));
}
