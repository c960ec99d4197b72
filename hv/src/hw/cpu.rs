//! Control registers, CPUID, descriptor tables, the interrupt flag, the time-stamp counter.
//!
//! AMD APM volume 3 (general-purpose and system instructions), Intel SDM volume 2.

use core::arch::asm;
pub use core::arch::x86_64::CpuidResult;

/// CPUID leaf `leaf`, subleaf `subleaf`.
pub fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
    core::arch::x86_64::__cpuid_count(leaf, subleaf)
}

macro_rules! control_register {
    ($read:ident, $write:ident, $name:literal) => {
        #[doc = concat!("Reads ", $name, ".")]
        pub fn $read() -> u64 {
            let value;
            // SAFETY: reading a control register changes nothing; the hypervisor runs at CPL 0.
            unsafe { asm!(concat!("mov {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
            value
        }

        #[doc = concat!("Writes ", $name, ".")]
        ///
        /// # Safety
        /// The value must be valid on this processor, and code, data and stack must stay mapped and usable.
        pub unsafe fn $write(value: u64) {
            // SAFETY: the caller's promise.
            unsafe { asm!(concat!("mov ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags)) };
        }
    };
}

control_register!(cr0, set_cr0, "cr0");
control_register!(cr2, set_cr2, "cr2");
control_register!(cr3, set_cr3, "cr3");
control_register!(cr4, set_cr4, "cr4");

/// Forgets the translation of the page that holds `address` on this PCPU.
pub fn invlpg(address: u64) {
    // SAFETY: dropping a cached translation is always allowed.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// The time-stamp counter, read after all earlier loads have completed (LFENCE serializes dispatch).
pub fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: RDTSC has no side effects.
    unsafe { asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// The time-stamp counter, wherever the processor finds it convenient to read it.
#[inline(always)]
pub fn rdtsc_unordered() -> u64 {
    // SAFETY: RDTSC has no side effects.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The low half of what [`rdtsc_unordered`] returns: nothing is done about the upper one.
#[inline(always)]
pub fn rdtsc_low() -> u32 {
    let low: u32;
    // SAFETY: RDTSC has no side effects.
    unsafe { asm!("rdtsc", out("eax") low, out("edx") _, options(nomem, nostack, preserves_flags)) };
    low
}

/// Opens interrupts for the two instructions in which a pending one is taken, then closes them.
///
/// # Safety
/// The IDT and the host's TSS are loaded, and no lock is held that an interrupt handler takes.
pub unsafe fn interrupt_window() {
    // SAFETY: the caller's promise; handlers restore every register and run on stacks of their own.
    unsafe { asm!("sti", "nop", "nop", "cli", options(preserves_flags)) };
}

/// Halts until an interrupt has been taken. STI's shadow covers HLT, so that no interrupt is lost in between.
///
/// # Safety
/// As [`interrupt_window`].
pub unsafe fn wait_for_interrupt() {
    // SAFETY: the caller's promise.
    unsafe { asm!("sti", "hlt", "cli", options(preserves_flags)) };
}

/// Closes interrupts.
pub fn cli() {
    // SAFETY: the host runs with closed interrupts anyway.
    unsafe { asm!("cli", options(nomem, nostack)) };
}

/// Stops this PCPU for ever.
pub fn halt_forever() -> ! {
    loop {
        // SAFETY: nothing runs after it; an NMI only goes round the loop.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

/// The operand of LGDT, LIDT, SGDT and SIDT.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed)]
pub struct TablePointer {
    /// Size of the table in bytes, minus one.
    pub limit: u16,
    /// Linear address of the table.
    pub base: u64,
}

/// Loads the GDT register and reloads every segment register: CS with `code`, DS, ES and SS with `data`,
/// FS and GS with null (which leaves their base 0).
///
/// # Safety
/// The table lives for ever, and the selectors name a 64-bit code and a data segment of DPL 0 in it.
pub unsafe fn load_gdt(table: &TablePointer, code: u16, data: u16) {
    // SAFETY: the caller's promise; the far return continues at the next instruction with the new CS.
    unsafe {
        asm!(
            "lgdt [{table}]",
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ds, {data:e}",
            "mov es, {data:e}",
            "mov ss, {data:e}",
            "xor {scratch:e}, {scratch:e}",
            "mov fs, {scratch:e}",
            "mov gs, {scratch:e}",
            table = in(reg) table,
            code = in(reg) u64::from(code),
            data = in(reg) u64::from(data),
            scratch = out(reg) _,
        );
    }
}

/// Address of the GDT, which is the host's at any time: exits from a guest restore it.
#[inline(always)]
pub fn gdt_base() -> u64 {
    let mut table = TablePointer::default();
    // SAFETY: stores ten bytes into a local variable.
    unsafe { asm!("sgdt [{}]", in(reg) &raw mut table, options(nostack, preserves_flags)) };
    table.base
}

/// Loads the task register.
///
/// # Safety
/// `selector` names an available 64-bit TSS in the GDT that lives for ever.
pub unsafe fn load_tr(selector: u16) {
    // SAFETY: the caller's promise.
    unsafe { asm!("ltr {:x}", in(reg) selector, options(nostack, preserves_flags)) };
}

/// Loads the IDT register.
///
/// # Safety
/// The table lives for ever and its gates are valid.
pub unsafe fn load_idt(table: &TablePointer) {
    // SAFETY: the caller's promise.
    unsafe { asm!("lidt [{}]", in(reg) table, options(readonly, nostack, preserves_flags)) };
}

/// Reads an extended control register (0 is XCR0).
///
/// # Safety
/// CR4.OSXSAVE is set and the register exists.
pub unsafe fn xgetbv(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller's promise; reading changes nothing.
    unsafe {
        asm!("xgetbv", in("ecx") index, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags))
    };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes an extended control register.
///
/// # Safety
/// CR4.OSXSAVE is set, the register exists and accepts the value.
pub unsafe fn xsetbv(index: u32, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("xsetbv", in("ecx") index, in("eax") value as u32, in("edx") (value >> 32) as u32,
             options(nostack, preserves_flags));
    }
}

/// DR0 to DR3: the addresses of breakpoints. The host has none.
pub fn breakpoints() -> [u64; 4] {
    let (a, b, c, d): (u64, u64, u64, u64);
    // SAFETY: reads registers.
    unsafe {
        asm!("mov {0}, dr0", "mov {1}, dr1", "mov {2}, dr2", "mov {3}, dr3",
             out(reg) a, out(reg) b, out(reg) c, out(reg) d, options(nomem, nostack, preserves_flags));
    }
    [a, b, c, d]
}

/// Sets DR0 to DR3. They mean nothing while the host runs, whose DR7 turns them off.
pub fn set_breakpoints([a, b, c, d]: [u64; 4]) {
    // SAFETY: exits turn breakpoints off (VT-x, AMD-V).
    unsafe {
        asm!("mov dr0, {0}", "mov dr1, {1}", "mov dr2, {2}", "mov dr3, {3}",
             in(reg) a, in(reg) b, in(reg) c, in(reg) d, options(nomem, nostack, preserves_flags));
    }
}

/// Writes back and invalidates all caches.
pub fn wbinvd() {
    // SAFETY: costs time only.
    unsafe { asm!("wbinvd", options(nostack, preserves_flags)) };
}

/// The address of the caller's stack frame: the start of the chain of frame pointers.
#[inline(always)]
pub fn frame_pointer() -> u64 {
    let rbp;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags)) };
    rbp
}
