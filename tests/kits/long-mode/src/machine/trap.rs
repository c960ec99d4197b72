//! The IDT, and what happens on a trap: it is counted and recorded, then a hook, a landing place or the default decides.

use super::insn::{cr2, dr6, rdtsc};
use super::{Cell, lapic, smp};
use crate::say;

core::arch::global_asm!(include_str!("trap.s"));

/// Exception vectors.
#[allow(missing_docs)]
pub mod vector {
    pub const DE: u8 = 0;
    pub const DB: u8 = 1;
    pub const NMI: u8 = 2;
    pub const BP: u8 = 3;
    pub const UD: u8 = 6;
    pub const DF: u8 = 8;
    pub const NP: u8 = 11;
    pub const GP: u8 = 13;
    pub const PF: u8 = 14;
    pub const AC: u8 = 17;
}

/// The registers at a trap, as trap.s saves them. What a hook changes is what the code goes on with.
#[repr(C)]
#[allow(missing_docs)]
pub struct Frame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rax: u64,
    pub vector: u64,
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// A trap that happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Trap {
    pub vector: u8,
    /// 0 where the vector pushes none.
    pub error: u32,
    pub rip: u64,
    pub rflags: u64,
    pub cr2: u64,
    pub dr6: u64,
    pub tsc: u64,
    pub rax: u64,
    pub from_user: bool,
}

/// What a trap may run instead of the default.
pub type Hook = fn(&mut Frame);

/// The error code with which QEMU's emulation delivers an interrupt that its controllers have withdrawn meanwhile: that of
/// vector -1.
const NO_INTERRUPT: u32 = 0xffff_fff2;

/// Traps that are remembered; later ones are only counted.
pub const LOG_LEN: usize = 512;

static COUNTS: [Cell<u32>; 256] = [const { Cell::new(0) }; 256];
static HOOKS: [Cell<Option<Hook>>; 256] = [const { Cell::new(None) }; 256];
static LOG: [Cell<Trap>; LOG_LEN] = [const { Cell::new(EMPTY) }; LOG_LEN];
static LOGGED: Cell<usize> = Cell::new(0);
static CAUGHT: Cell<Option<Trap>> = Cell::new(None);
static IDT: Cell<[[u64; 2]; 256]> = Cell::new([[0; 2]; 256]);
/// The TSS (AMD APM 2, 12.2.5), as words of 4 bytes.
static TSS: Cell<[u32; 26]> = Cell::new([0; 26]);

const EMPTY: Trap =
    Trap { vector: 0, error: 0, rip: 0, rflags: 0, cr2: 0, dr6: 0, tsc: 0, rax: 0, from_user: false };

unsafe extern "C" {
    static trap_stubs: [u8; 4096];
    static mut kit_gdt: [u64; 10];
    static kit_gdt_pointer: [u8; 10];
    static kit_trap_stack_top: u8;
    static kit_fault_stack_top: u8;
    static mut kit_catch_rsp: u64;
    fn kit_catch(run: unsafe extern "C" fn(*mut u8), argument: *mut u8) -> u64;
    fn kit_catch_landing();
}

/// Called by trap.s.
#[unsafe(no_mangle)]
extern "C" fn kit_trap(frame: &mut Frame) {
    let number = frame.vector as u8;
    if number == vector::GP && frame.error as u32 == NO_INTERRUPT {
        return;
    }
    if smp::trap(frame) {
        return;
    }
    let trap = Trap {
        vector: number,
        error: frame.error as u32,
        rip: frame.rip,
        rflags: frame.rflags,
        cr2: if number == vector::PF { cr2() } else { 0 },
        dr6: if number == vector::DB { dr6() } else { 0 },
        tsc: rdtsc(),
        rax: frame.rax,
        from_user: frame.cs & 3 == 3,
    };
    let count = &COUNTS[frame.vector as usize & 0xff];
    count.set(count.get() + 1);
    let logged = LOGGED.get();
    if logged < LOG_LEN {
        LOG[logged].set(trap);
        LOGGED.set(logged + 1);
    }
    if let Some(hook) = HOOKS[frame.vector as usize & 0xff].get() {
        return hook(frame);
    }
    if number < 32 || trap.from_user {
        return land(frame, trap);
    }
    if number != lapic::SPURIOUS {
        lapic::eoi();
    }
}

/// Goes on at the end of the catch that is active.
fn land(frame: &mut Frame, trap: Trap) {
    // SAFETY: written by trap.s before the code under test runs.
    let rsp = unsafe { (&raw const kit_catch_rsp).read_volatile() };
    if rsp == 0 {
        say!("FAIL kit: unexpected {trap:x?}");
        crate::end(0xff);
    }
    CAUGHT.set(Some(trap));
    frame.rip = kit_catch_landing as *const () as u64;
    frame.rsp = rsp;
    (frame.cs, frame.ss) = (0x08, 0x10);
    frame.rflags = 2;
}

/// Runs `body`; an exception in it ends it and is returned.
pub fn catch<F: FnMut()>(mut body: F) -> Option<Trap> {
    unsafe extern "C" fn run<F: FnMut()>(body: *mut u8) {
        // SAFETY: the pointer that `catch` passes.
        unsafe { (*body.cast::<F>())() }
    }
    begin_catch();
    // SAFETY: trap.s keeps the registers that calls preserve.
    unsafe { kit_catch(run::<F>, (&raw mut body).cast()) };
    CAUGHT.get()
}

/// Forgets the last caught trap.
pub fn begin_catch() {
    CAUGHT.set(None);
}

/// The trap that ended the last stay in user mode.
pub fn caught() -> Trap {
    CAUGHT.get().unwrap_or(EMPTY)
}

/// How often a vector came since the case began.
pub fn count(number: u8) -> u32 {
    COUNTS[usize::from(number)].get()
}

/// The traps since the case began.
pub fn log() -> impl Iterator<Item = Trap> {
    (0..LOGGED.get()).map(|i| LOG[i].get())
}

/// The traps of one vector since the case began.
pub fn log_of(number: u8) -> impl Iterator<Item = Trap> {
    log().filter(move |trap| trap.vector == number)
}

/// Lets a hook decide what a vector does.
pub fn hook(number: u8, hook: Hook) {
    HOOKS[usize::from(number)].set(Some(hook));
}

/// A hook for what needs nothing but its record, such as NMIs and single steps.
pub fn only_record(_: &mut Frame) {}

/// The flags of a gate: present, DPL 0, interrupt gate.
pub const GATE: u64 = 0x8e00;
/// A gate that `int` at privilege level 3 may use.
pub const USER_GATE: u64 = 0xee00;

/// Rewrites a gate: its flags (present, DPL, type, IST) and its code selector.
pub fn set_gate(number: u8, flags: u64, selector: u64) {
    let stub = (&raw const trap_stubs) as u64 + u64::from(number) * 16;
    let low = stub & 0xffff | selector << 16 | flags << 32 | (stub >> 16 & 0xffff) << 48;
    // SAFETY: the table is static; the processor reads it at the next trap.
    unsafe { (&raw mut (*IDT.ptr())[usize::from(number)]).write_volatile([low, stub >> 32]) };
}

/// Loads the task register, and everything that [`reset`] does.
pub fn set_up() {
    let tss = TSS.ptr();
    let stacks = [(1, &raw const kit_trap_stack_top), (9, &raw const kit_fault_stack_top)];
    // SAFETY: static tables that the processor does not use yet.
    unsafe {
        for (word, top) in stacks {
            (*tss)[word] = top as u32;
        }
        // Beyond the limit: no ports for user mode.
        (*tss)[25] = 104 << 16;
        let base = tss as u64;
        let low = 103 | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
        (&raw mut kit_gdt[6]).write_volatile(low);
        (&raw mut kit_gdt[7]).write_volatile(base >> 32);
        core::arch::asm!("ltr {:x}", in(reg) 0x30u16, options(nostack));
    }
    reset();
}

/// The state in which a case begins: all gates in order, no hooks, nothing recorded.
pub fn reset() {
    for number in 0..=255 {
        set_gate(number, GATE, 0x08);
        COUNTS[usize::from(number)].set(0);
        HOOKS[usize::from(number)].set(None);
    }
    set_gate(super::user::DONE, USER_GATE, 0x08);
    set_gate(vector::BP, USER_GATE, 0x08);
    // The double fault has a stack of its own: IST 1.
    set_gate(vector::DF, GATE | 1, 0x08);
    LOGGED.set(0);
    load_idt(4095);
}

#[repr(C, packed)]
struct Pointer(u16, u64);

/// Loads the IDT with a limit in bytes.
pub fn load_idt(limit: u16) {
    let pointer = Pointer(limit, IDT.ptr() as u64);
    // SAFETY: the table is static.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &pointer, options(nostack)) };
}

/// Copies the IDT to another place.
pub fn copy_idt(to: u64) {
    // SAFETY: the caller's memory.
    unsafe { (to as *mut [[u64; 2]; 256]).write_volatile(IDT.get()) };
}

/// Loads an IDT that is a copy.
pub fn load_idt_at(base: u64) {
    // SAFETY: the caller restores the other before anything that the copy cannot serve.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &Pointer(4095, base), options(nostack)) };
}

/// A descriptor of the GDT.
pub fn descriptor(index: usize) -> u64 {
    // SAFETY: static; the processor changes accessed and busy bits only.
    unsafe { (&raw const kit_gdt[index]).read_volatile() }
}

/// Loads a GDT that begins as the kit's.
pub fn load_gdt_at(base: u64, limit: u16) {
    // SAFETY: the caller's table has the same descriptors.
    unsafe { core::arch::asm!("lgdt [{}]", in(reg) &Pointer(limit, base), options(nostack)) };
}

/// Loads the kit's GDT.
pub fn load_gdt() {
    // SAFETY: a static table.
    unsafe { core::arch::asm!("lgdt [{}]", in(reg) &raw const kit_gdt_pointer, options(nostack)) };
}

/// The stack on which traps from user mode arrive.
pub fn set_stack(top: u64) {
    // SAFETY: the processor reads the static TSS at the next such trap.
    unsafe {
        (&raw mut (*TSS.ptr())[1]).write_volatile(top as u32);
        (&raw mut (*TSS.ptr())[2]).write_volatile((top >> 32) as u32);
    }
}

/// The same as at the start.
pub fn set_default_stack() {
    set_stack(&raw const kit_trap_stack_top as u64);
}
