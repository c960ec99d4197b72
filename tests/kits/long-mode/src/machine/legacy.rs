//! Excursions to 32-bit protected mode: a list of steps performed there, with any paging that it has.
//!
//! The code is in legacy.s. The job's page tables map the low 4 MiB to themselves for supervisor mode, and at the job's base once
//! more for user mode.

use super::step::Step;
use super::{Cell, trap};

core::arch::global_asm!(include_str!("legacy.s"));

/// What a stay in legacy mode begins with.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Job {
    /// CR0.
    pub cr0: u32,
    /// CR3.
    pub cr3: u32,
    /// CR4.
    pub cr4: u32,
    /// EFER.NXE or 0.
    pub efer: u32,
    /// The steps; the last is [`super::step::END`].
    pub steps: u32,
    /// Where user mode sees the low 4 MiB while paging is on.
    pub user_base: u32,
}

/// A 32-bit TSS (AMD APM 2, 12.2.4): ESP0, SS0; no I/O permissions. In a page of its own: shadow paging on QEMU's emulation
/// executes all writes to it in software.
#[repr(align(4096))]
struct TssPage(Cell<[u32; 26]>);
static TSS: TssPage = TssPage(Cell::new([0; 26]));
static JOB: Cell<Job> = Cell::new(Job { cr0: 0, cr3: 0, cr4: 0, efer: 0, steps: 0, user_base: 0 });

unsafe extern "C" {
    static legacy_stubs: [[u8; 16]; 33];
    static legacy_stack_top: u8;
    static mut legacy_idt: [u64; 129];
    static mut legacy_tss_descriptor: u64;
    static mut legacy_more: [u64; 10];
    fn kit_legacy(job: *const Job);
}

/// The descriptors from selector 30h on.
pub fn set_descriptors(descriptors: [u64; 10]) {
    // SAFETY: a static table that the processor does not use now.
    unsafe { (&raw mut legacy_more).write_volatile(descriptors) };
}

/// One of them, by its selector.
pub fn descriptor(selector: u64) -> u64 {
    // SAFETY: as above.
    unsafe { (&raw const legacy_more[(selector as usize - 0x30) / 8]).read_volatile() }
}

/// The TSS with which a stay begins, at selector 28h, as words.
pub fn tss() -> *mut u32 {
    TSS.0.ptr().cast()
}

/// Performs `steps` after `prepare` has changed the tables: the IDT, and the TSS with which the stay begins.
pub fn run_with(job: Job, steps: &mut [Step], prepare: impl FnOnce(&mut [u64; 129], &mut [u32; 26])) {
    set_up();
    // SAFETY: static tables that the processor does not use now, and nothing else refers to.
    unsafe { prepare(&mut *(&raw mut legacy_idt), &mut *TSS.0.ptr()) };
    perform(job, steps);
}

/// Performs `steps`, which lie below 4 GiB where the job's tables map them to themselves.
pub fn run(job: Job, steps: &mut [Step]) {
    set_up();
    perform(job, steps);
}

fn perform(job: Job, steps: &mut [Step]) {
    JOB.set(Job { steps: steps.as_mut_ptr() as u32, ..job });
    // SAFETY: the job's tables keep the kit mapped, by contract; everything is restored.
    unsafe { kit_legacy(JOB.ptr()) };
    trap::load_idt(4095);
}

/// Fills the tables that the assembler cannot.
fn set_up() {
    let mut tss = [0; 26];
    tss[1] = &raw const legacy_stack_top as u32;
    tss[2] = 0x10;
    tss[25] = 104 << 16;
    TSS.0.set(tss);
    let base = TSS.0.ptr() as u64;
    let gate = |stub: usize, flags: u64| {
        let at = &raw const legacy_stubs as u64 + stub as u64 * 16;
        at & 0xffff | 0x08 << 16 | flags << 32 | (at >> 16) << 48
    };
    let mut idt = [0; 129];
    (0..32).for_each(|vector| idt[vector] = gate(vector, 0x8e00));
    idt[128] = gate(32, 0xee00);
    // SAFETY: static tables that the processor does not use now.
    unsafe {
        (&raw mut legacy_idt).write(idt);
        (&raw mut legacy_tss_descriptor)
            .write(103 | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24) << 56);
    }
}
