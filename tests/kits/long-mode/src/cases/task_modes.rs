//! Task switches into other modes and page tables, and NMIs in 32-bit protected mode: to a handler, and through a task gate.
//! Intel SDM 3, 7.3, 21.2 and 6.7.1; AMD APM 2, 12.3 and 8.2.3.

use super::tasks::*;
use crate::check::{Case, Check, case};
use crate::machine::insn::{peek, poke};
use crate::machine::legacy::{self, Job};
use crate::machine::step::{END, EXECUTE, NONE, Step};
use crate::machine::{Cell, is_palimpsest, lapic};

pub const CASES: &[Case] = &[
    case("tasks.virtual-8086", virtual_8086),
    case("tasks.user-mode", user_mode),
    case("tasks.pae-pointers", pae_pointers),
    case("tasks.nmi-gate", nmi_gate),
    case("ipi.nmi-32-bit", nmi_32_bit),
];

/// Words of a TSS: the stack of privilege level 0.
const ESP0: usize = 1;
const SS0: usize = 2;

const GP: u32 = 13;
const PF: u32 = 14;
const VM: u32 = 1 << 17;
const IOPL3: u32 = 3 << 12;

unsafe extern "C" {
    fn task_load();
    fn task_stays();
    fn task_user();
    fn task_nmi();
    fn task_nmi_handler();
    static mut task_nmi_row: u32;
    static mut task_nmi_count: u32;
    static mut task_nmi_nested: u32;
    static mut task_nmi_elsewhere: u32;
}

/// A segment of virtual-8086 mode, in memory that nothing else uses.
const SEGMENT: u32 = 0x700;

/// What the other task finds in virtual-8086 mode: it stores DS, CS, SP, AX and its flags, and ends by HLT, which is #GP there.
fn virtual_8086(c: &mut Check) {
    const CODE: [u8; 23] = [
        0x8c, 0x1e, 0x00, 0x01, 0x8c, 0x0e, 0x02, 0x01, 0x89, 0x26, 0x04, 0x01, 0xa3, 0x06, 0x01, 0x9c, 0x8f,
        0x06, 0x08, 0x01, 0xf4, 0xeb, 0xfd,
    ];
    let base = u64::from(SEGMENT) << 4;
    for (n, byte) in CODE.into_iter().enumerate() {
        poke(base + n as u64, byte);
    }
    poke(base + 0x100, [0u16; 5]);
    let mut scene = Scene::new();
    scene.tss[EIP] = 0;
    scene.tss[EFLAGS] = VM | IOPL3 | 2;
    scene.tss[SELECTORS..SELECTORS + 6].fill(SEGMENT);
    // ESP.
    scene.tss[EFLAGS + 5] = 0xf00;
    (scene.tss[ESP0], scene.tss[SS0]) = (stack(), 0x10);
    let steps: [(Code, u64); 4] =
        [(task_call, to(OTHER)), (task_tr, 0), (task_jump, to(FIRST.into())), (task_tr, 0)];
    let [there, tr, back, after] = scene.play(steps);
    c.equal("HLT in virtual-8086 mode", (there.vector, there.error), (GP, 0));
    c.equal("TR there", tr.value, OTHER);
    let segment = SEGMENT as u16;
    let found: [u16; 5] = peek(base + 0x100);
    let flags = (NT | IOPL3 | 2) as u16;
    c.equal("DS, CS, SP, AX, flags", found, [segment, segment, 0xf00, 0x11, flags]);
    // The first task called, so that it is still busy.
    c.equal("back", (back.vector, back.error, after.value), (GP, FIRST, OTHER));
}

/// A task at privilege level 3 on its own stack, which comes back through an interrupt gate.
fn user_mode(c: &mut Check) {
    let mut scene = Scene::new();
    scene.tss[EIP] = address(task_user) as u32;
    scene.tss[SELECTORS..SELECTORS + 6].copy_from_slice(&[0x23, 0x1b, 0x23, 0x23, 0, 0x23]);
    (scene.tss[ESP0], scene.tss[SS0]) = (stack() + 0x80, 0x10);
    let steps: [(Code, u64); 4] =
        [(task_jump, to(OTHER)), (task_tr, 0), (task_jump, to(FIRST.into())), (task_tr, 0)];
    let [there, tr, back, after] = scene.play(steps);
    c.equal("CS there", (there.vector, there.value), (NONE, 0x1b));
    c.equal("ESP there", log(1), stack());
    c.equal("TR there", tr.value, OTHER);
    c.equal("back", (back.vector, after.value as u32), (NONE, FIRST));
    // What no task may have: a stack of another level than its code's.
    scene.tss[SELECTORS + 2] = 0x10;
    let [there, tr, back, _] = scene.play(steps);
    c.equal("SS of level 0", (there.vector, there.error, tr.value), (10, 0x10, OTHER));
    c.equal("back", back.vector, NONE);
}

#[repr(C, align(4096))]
struct Tables {
    /// Maps the lowest GiB to itself.
    directory: Cell<[u64; 512]>,
    pointers: [Cell<[u64; 4]>; 2],
}

static TABLES: Tables = Tables { directory: Cell::new([0; 512]), pointers: [const { Cell::new([0; 4]) }; 2] };

/// The other task has other page-directory pointers: what is mapped at 1 GiB in the first one is not there.
fn pae_pointers(c: &mut Check) {
    const UP: u64 = 1 << 30;
    TABLES.directory.set(core::array::from_fn(|n| (n as u64) << 21 | 0xe3));
    let directory = TABLES.directory.ptr() as u64 | 1;
    TABLES.pointers[0].set([directory, directory, 0, 0]);
    TABLES.pointers[1].set([directory, 0, 0, 0]);
    let mut scene = Scene::new();
    scene.pae = Some(TABLES.pointers[0].ptr() as u32);
    scene.tss[EIP] = address(task_stays) as u32;
    scene.tss[CR3] = TABLES.pointers[1].ptr() as u32;
    let probe = UP + TABLES.directory.ptr() as u64;
    let [before, there, without, back, again] = scene.play([
        (task_load as Code, probe),
        (task_jump, to(OTHER)),
        (task_load, probe),
        (task_jump, to(FIRST.into())),
        (task_load, probe),
    ]);
    let found = (NONE, 0xe3);
    c.equal("before", (before.vector, before.value), found);
    c.equal("there", there.vector, NONE);
    c.equal("with the other pointers", (without.vector, without.cr2), (PF, probe));
    c.equal("back", (back.vector, again.vector, again.value), (NONE, NONE, found.1));
}

/// Sets how many NMIs there are to be; the others follow the first.
fn set_row(row: u32) {
    // SAFETY: static variables of code that does not run now.
    unsafe {
        (&raw mut task_nmi_row).write_volatile(row);
        (&raw mut task_nmi_count).write_volatile(0);
        (&raw mut task_nmi_nested).write_volatile(0);
        (&raw mut task_nmi_elsewhere).write_volatile(0);
    }
}

/// An NMI through a task gate, and one that waits until the task has returned.
fn nmi_gate(c: &mut Check) {
    if lapic::is_x2() {
        return c.skip("the local APIC is in x2APIC mode");
    }
    lapic::write(lapic::reg::ICR_HIGH, lapic::id() << 24);
    for row in [1, 2] {
        set_row(row);
        let mut scene = Scene::new();
        scene.gate = Some(2);
        let [there, tr] = scene.play([(task_nmi, lapic::PAGE), (task_tr, 0)]);
        set_row(0);
        c.equal("comes back", (there.vector, tr.value as u32), (NONE, FIRST));
        c.equal("NMIs", log(8), row);
        c.equal("TR and link", (log(4), log(3) & NT), (OTHER as u32, NT));
        c.equal("the other TSS is not busy", is_busy(OTHER), false);
        // After the store of 10 bytes, or after the NOP behind it. QEMU's own machine brings it a little later.
        let after = first(EIP).wrapping_sub(address(task_nmi) as u32 + 10);
        c.holds("saved EIP", after <= 1 || c.tcg && !is_palimpsest());
    }
}

/// NMIs in a row, each sent while the one before is handled: it comes after that one's IRET and before the next instruction.
fn nmi_32_bit(c: &mut Check) {
    const ROW: u32 = 50;
    if lapic::is_x2() {
        return c.skip("the local APIC is in x2APIC mode");
    }
    lapic::write(lapic::reg::ICR_HIGH, lapic::id() << 24);
    for paging in [false, true] {
        set_row(ROW);
        // Pairs of 4 MiB, as two levels of tables have them, which map everything to itself.
        let page = |n: usize| (n as u64) << 22 | 0xe3;
        TABLES.directory.set(core::array::from_fn(|n| page(2 * n) | page(2 * n + 1) << 32));
        let (cr0, cr3) = (if paging { 0x8000_0031 } else { 0x31 }, TABLES.directory.ptr() as u32);
        let job = Job { cr0, cr3, cr4: 0x10, efer: 0, steps: 0, user_base: 0 };
        let mut steps = [Step::new(EXECUTE, address(task_nmi), lapic::PAGE), Step::new(END, 0, 0)];
        legacy::run_with(job, &mut steps, |idt, _| {
            let at = address(task_nmi_handler);
            idt[2] = at & 0xffff | 0x08 << 16 | 0x8e00 << 32 | (at >> 16) << 48;
        });
        // SAFETY: static variables of code that does not run now.
        let [count, nested, elsewhere] = unsafe {
            [
                (&raw const task_nmi_count).read_volatile(),
                (&raw const task_nmi_nested).read_volatile(),
                (&raw const task_nmi_elsewhere).read_volatile(),
            ]
        };
        set_row(0);
        c.equal(format_args!("NMIs, with paging: {paging}"), (steps[0].vector, count), (NONE, ROW));
        c.equal("of which within another one", nested, 0);
        c.equal("at another place than the first", elsewhere, 0);
    }
}
