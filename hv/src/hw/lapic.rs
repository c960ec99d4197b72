//! The local APIC of the PCPU that executes this: xAPIC through its page, x2APIC through MSRs.
//!
//! Intel SDM volume 3, chapter 11; AMD APM volume 2, chapter 16. The mode is the same on every PCPU, so it is kept
//! once for all.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{cpu, msr};

/// Registers by their xAPIC offset; the x2APIC's MSR is `0x800 + offset / 16`.
mod reg {
    pub const ID: u32 = 0x20;
    pub const TPR: u32 = 0x80;
    pub const EOI: u32 = 0xb0;
    pub const SPURIOUS: u32 = 0xf0;
    /// Interrupt command; as an MSR 64 bits wide, with what the xAPIC has in the register behind it.
    pub const COMMAND: u32 = 0x300;
    pub const DESTINATION: u32 = 0x310;
    pub const LVT_TIMER: u32 = 0x320;
    pub const LVT_LINT0: u32 = 0x350;
    pub const LVT_LINT1: u32 = 0x360;
    pub const INITIAL_COUNT: u32 = 0x380;
    pub const CURRENT_COUNT: u32 = 0x390;
    pub const DIVIDE: u32 = 0x3e0;
}

const BASE_ENABLE: u64 = 1 << 11;
const BASE_X2APIC: u64 = 1 << 10;
const SOFTWARE_ENABLE: u32 = 1 << 8;
const LVT_MASKED: u32 = 1 << 16;
const LVT_NMI: u32 = 4 << 8;
const TIMER_TSC_DEADLINE: u32 = 2 << 17;
const DIVIDE_BY_1: u32 = 0b1011;
/// Bits of the interrupt command. De-assertion is for processors before the Pentium 4 (SDM 3, 11.6.1).
const COMMAND_NMI: u32 = 4 << 8;
const COMMAND_INIT: u32 = 5 << 8;
const COMMAND_STARTUP: u32 = 6 << 8;
const COMMAND_PENDING: u32 = 1 << 12;
const COMMAND_ASSERT: u32 = 1 << 14;
/// Reads of the command register before it is written anyway: it is busy for microseconds.
const COMMAND_POLLS: u32 = 100_000;

/// Address of the xAPIC page; 0 means x2APIC.
static PAGE: AtomicU64 = AtomicU64::new(0xfee0_0000);

/// What the local APICs offer, found by [`enable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalApic {
    /// ID of this PCPU's APIC.
    pub id: u32,
    /// Registers are MSRs.
    pub x2apic: bool,
    /// The timer can be armed with a TSC value.
    pub tsc_deadline: bool,
}

/// Physical address of the xAPIC page, which must be mapped uncached.
pub fn page_address() -> u64 {
    // SAFETY: every processor with long mode has the register.
    unsafe { msr::read(msr::IA32_APIC_BASE) & 0x000f_ffff_ffff_f000 }
}

fn read(reg: u32) -> u32 {
    match PAGE.load(Ordering::Relaxed) {
        // SAFETY: x2APIC mode is on, and the register exists.
        0 => unsafe { msr::read(0x800 + reg / 16) as u32 },
        // SAFETY: the page is mapped and holds the register.
        page => unsafe { ((page + u64::from(reg)) as *const u32).read_volatile() },
    }
}

fn write(reg: u32, value: u32) {
    match PAGE.load(Ordering::Relaxed) {
        // SAFETY: x2APIC mode is on; this module writes valid values only.
        0 => unsafe { msr::write(0x800 + reg / 16, u64::from(value)) },
        // SAFETY: the page is mapped and holds the register.
        page => unsafe { ((page + u64::from(reg)) as *mut u32).write_volatile(value) },
    }
}

/// Enables this PCPU's APIC, the first one's, in x2APIC mode where the processor has it, with everything masked but NMIs on LINT1.
///
/// # Safety
/// The page at [`page_address`] is mapped uncached; `spurious` has a gate.
pub unsafe fn enable(spurious: u8) -> LocalApic {
    let features = cpu::cpuid(1, 0).ecx;
    let x2apic = features & 1 << 21 != 0;
    PAGE.store(if x2apic { 0 } else { page_address() }, Ordering::Relaxed);
    // SAFETY: the caller's promise; the mode is one that the processor has.
    let id = unsafe { join(spurious) };
    LocalApic { id, x2apic, tsc_deadline: features & 1 << 24 != 0 }
}

/// Enables this PCPU's APIC in the mode of the first one's, and returns its ID.
///
/// # Safety
/// As [`enable`], which has run; where it chose x2APIC mode, this processor has it.
pub unsafe fn join(spurious: u8) -> u32 {
    // SAFETY: going from xAPIC to x2APIC is a legal transition, and so is staying.
    unsafe {
        let base = msr::read(msr::IA32_APIC_BASE) | BASE_ENABLE;
        msr::write(msr::IA32_APIC_BASE, base);
        if is_x2apic() {
            msr::write(msr::IA32_APIC_BASE, base | BASE_X2APIC);
        }
    }
    write(reg::SPURIOUS, SOFTWARE_ENABLE | u32::from(spurious));
    write(reg::LVT_TIMER, LVT_MASKED);
    // The 8259As are masked and not used; in virtual-wire mode firmware has left the pin open for them.
    write(reg::LVT_LINT0, LVT_MASKED);
    write(reg::LVT_LINT1, LVT_NMI);
    write(reg::TPR, 0);
    write(reg::DIVIDE, DIVIDE_BY_1);
    id()
}

/// Whether registers are MSRs, on all PCPUs.
fn is_x2apic() -> bool {
    PAGE.load(Ordering::Relaxed) == 0
}

/// ID of the APIC of the PCPU that executes this.
pub fn id() -> u32 {
    let register = read(reg::ID);
    if is_x2apic() { register } else { register >> 24 }
}

/// Sends an interrupt to one PCPU: INIT, which makes it wait for [`send_startup`].
pub fn send_init(apic_id: u32) {
    command(apic_id, COMMAND_INIT | COMMAND_ASSERT);
}

/// Makes a PCPU that waits for it execute what is at `page`, a page below 1 MiB.
pub fn send_startup(apic_id: u32, page: u64) {
    command(apic_id, COMMAND_STARTUP | COMMAND_ASSERT | (page >> 12) as u32 & 0xff);
}

/// Sends this vector to one PCPU.
pub fn send(apic_id: u32, vector: u8) {
    command(apic_id, COMMAND_ASSERT | u32::from(vector));
}

/// Sends a non-maskable interrupt to one PCPU.
pub fn send_nmi(apic_id: u32) {
    command(apic_id, COMMAND_ASSERT | COMMAND_NMI);
}

/// Sends an interrupt, after the previous one has been sent. The receiver sees all memory writes before this call.
fn command(apic_id: u32, command: u32) {
    if is_x2apic() {
        // The MSR's write waits for no store (SDM 3, 11.12.3).
        // SAFETY: x2APIC mode is on; the command is valid; fences have no other effect.
        unsafe {
            core::arch::asm!("mfence", "lfence", options(nostack, preserves_flags));
            msr::write(0x800 + reg::COMMAND / 16, u64::from(apic_id) << 32 | u64::from(command));
        }
        return;
    }
    // The xAPIC has one command register: the last command must have left it (delivery status, SDM 3, 11.6.1).
    let _sent = (0..COMMAND_POLLS).any(|_| read(reg::COMMAND) & COMMAND_PENDING == 0);
    // Writing the lower half sends: the destination comes first (SDM 3, 11.6.1).
    write(reg::DESTINATION, apic_id << 24);
    write(reg::COMMAND, command);
}

/// Acknowledges the interrupt in service.
pub fn end_of_interrupt() {
    write(reg::EOI, 0);
}

/// Makes the APIC look again whether an interrupt is to be delivered, by writing TPR as it is. An APIC never forgets one;
/// QEMU's emulation does at VMRUN, and looks again at such a write.
pub fn look_again() {
    write(reg::TPR, 0);
}

/// Selects one-shot mode (counted by the bus clock) or TSC-deadline mode, unmasked, with this vector.
pub fn select_timer(vector: u8, tsc_deadline: bool) {
    write(reg::LVT_TIMER, u32::from(vector) | if tsc_deadline { TIMER_TSC_DEADLINE } else { 0 });
    // The mode switch is ordered before the first deadline (SDM 11.5.4.1).
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// Arms the one-shot timer with a count of the bus clock; 0 stops it.
pub fn arm_one_shot(count: u32) {
    write(reg::INITIAL_COUNT, count);
}

/// What is left of the one-shot count.
pub fn remaining() -> u32 {
    read(reg::CURRENT_COUNT)
}

/// Arms the timer for a TSC value; 0 stops it.
///
/// # Safety
/// The processor has TSC-deadline mode, and it is selected.
pub unsafe fn arm_deadline(tsc: u64) {
    // SAFETY: the caller's promise.
    unsafe { msr::write(msr::IA32_TSC_DEADLINE, tsc) };
}
