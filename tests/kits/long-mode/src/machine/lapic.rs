//! The local APIC, in xAPIC or x2APIC mode as `APIC_BASE` says (AMD APM 2, chapter 16).

use super::insn::{peek, poke, rdmsr, wrmsr};

/// `APIC_BASE`
pub const BASE_MSR: u32 = 0x1b;
/// `APIC_BASE`: enabled.
pub const ENABLE: u64 = 1 << 11;
/// `APIC_BASE`: x2APIC mode.
pub const X2APIC: u64 = 1 << 10;
/// `TSC_DEADLINE`
pub const DEADLINE_MSR: u32 = 0x6e0;
/// The vector of spurious interrupts, which get no EOI.
pub const SPURIOUS: u8 = 0xff;
/// Where the registers are in xAPIC mode.
pub const PAGE: u64 = 0xfee0_0000;

/// Registers, by their offsets.
#[allow(missing_docs)]
pub mod reg {
    pub const ID: u32 = 0x20;
    pub const TPR: u32 = 0x80;
    pub const PPR: u32 = 0xa0;
    pub const EOI: u32 = 0xb0;
    pub const LDR: u32 = 0xd0;
    pub const DFR: u32 = 0xe0;
    pub const SVR: u32 = 0xf0;
    pub const ISR: u32 = 0x100;
    pub const TMR: u32 = 0x180;
    pub const IRR: u32 = 0x200;
    pub const ESR: u32 = 0x280;
    pub const ICR: u32 = 0x300;
    pub const ICR_HIGH: u32 = 0x310;
    pub const LVT_TIMER: u32 = 0x320;
    pub const LVT_LINT0: u32 = 0x350;
    pub const LVT_LINT1: u32 = 0x360;
    pub const LVT_ERROR: u32 = 0x370;
    pub const INITIAL_COUNT: u32 = 0x380;
    pub const CURRENT_COUNT: u32 = 0x390;
    pub const DIVIDE: u32 = 0x3e0;
}

/// LVT: masked.
pub const MASKED: u32 = 1 << 16;
/// LVT timer: periodic.
pub const PERIODIC: u32 = 1 << 17;
/// LVT timer: TSC deadline.
pub const TSC_DEADLINE: u32 = 2 << 17;
/// ICR: to itself.
pub const TO_SELF: u64 = 1 << 18;
/// ICR and LVT: delivery mode NMI.
pub const NMI: u64 = 4 << 8;
/// LVT: delivery mode ExtINT.
pub const EXT_INT: u32 = 7 << 8;

/// Whether it is in x2APIC mode.
pub fn is_x2() -> bool {
    rdmsr(BASE_MSR) & X2APIC != 0
}

/// Whether the processor has x2APIC mode.
pub fn has_x2() -> bool {
    super::insn::cpuid(1, 0)[2] >> 21 & 1 != 0
}

/// Whether the timer has TSC deadlines.
pub fn has_deadline() -> bool {
    super::insn::cpuid(1, 0)[2] >> 24 & 1 != 0
}

/// Reads a register.
pub fn read(register: u32) -> u32 {
    if is_x2() { rdmsr(0x800 + (register >> 4)) as u32 } else { peek(PAGE + u64::from(register)) }
}

/// Writes a register.
pub fn write(register: u32, value: u32) {
    if is_x2() {
        wrmsr(0x800 + (register >> 4), value.into());
    } else {
        poke(PAGE + u64::from(register), value);
    }
}

/// End of interrupt.
pub fn eoi() {
    write(reg::EOI, 0);
}

/// The local APIC's id.
pub fn id() -> u32 {
    if is_x2() { read(reg::ID) } else { read(reg::ID) >> 24 }
}

/// Sends an interrupt command; `destination` is an APIC id.
pub fn send(command: u64, destination: u32) {
    if is_x2() {
        wrmsr(0x800 + (reg::ICR >> 4), u64::from(destination) << 32 | command);
    } else {
        write(reg::ICR_HIGH, destination << 24);
        write(reg::ICR, command as u32);
        while read(reg::ICR) & 1 << 12 != 0 {}
    }
}

/// Sends itself an interrupt.
pub fn send_self(vector: u8) {
    send(TO_SELF | u64::from(vector), 0);
}

/// A bit of IRR, ISR or TMR.
pub fn bit(register: u32, vector: u8) -> bool {
    read(register + u32::from(vector >> 5) * 0x10) >> (vector & 31) & 1 != 0
}

/// Enters x2APIC mode (true) or xAPIC mode from any state.
pub fn set_x2(x2: bool) {
    if is_x2() == x2 && rdmsr(BASE_MSR) & ENABLE != 0 {
        return;
    }
    let base = rdmsr(BASE_MSR) & !(ENABLE | X2APIC);
    wrmsr(BASE_MSR, base);
    wrmsr(BASE_MSR, base | ENABLE);
    if x2 {
        wrmsr(BASE_MSR, base | ENABLE | X2APIC);
    }
}

/// The state in which a case begins: xAPIC mode, enabled, nothing pending, every source masked.
pub fn reset() {
    set_x2(false);
    write(reg::SVR, 0x100 | u32::from(SPURIOUS));
    write(reg::TPR, 0);
    for lvt in [reg::LVT_TIMER, reg::LVT_LINT0, reg::LVT_LINT1, reg::LVT_ERROR] {
        write(lvt, MASKED);
    }
    write(reg::INITIAL_COUNT, 0);
    if has_deadline() {
        wrmsr(DEADLINE_MSR, 0);
    }
    write(reg::DIVIDE, 0b1011);
    for _ in 0..256 {
        if (0..8).all(|word| read(reg::ISR + word * 0x10) == 0) {
            break;
        }
        eoi();
    }
}
