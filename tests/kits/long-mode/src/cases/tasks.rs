//! Hardware task switches, in 32-bit protected mode (Intel SDM 3, chapter 7; AMD APM 2, chapter 12).

use crate::check::{Case, Check, case};
use crate::machine::Cell;
use crate::machine::legacy::{self, Job};
use crate::machine::step::{END, EXECUTE, NONE, Step};

core::arch::global_asm!(include_str!("tasks.s"));

pub const CASES: &[Case] = &[
    case("tasks.jump", jump),
    case("tasks.call", call),
    case("tasks.gates", gates),
    case("tasks.16-bit", of_16_bits),
    case("tasks.trap", trap),
    case("tasks.tables", tables),
    case("tasks.faults-old", faults_of_the_old),
    case("tasks.faults-new", faults_of_the_new),
];

/// Selectors: the first task, the other one, one of 16 bits, a task gate, and segments.
pub(super) const FIRST: u32 = 0x28;
pub(super) const OTHER: u64 = 0x30;
const OTHER16: u64 = 0x38;
const GATE: u64 = 0x40;
const SPARE: u64 = 0x48;
const LDT: u64 = 0x50;
const CODE16: u64 = 0x58;
const STACK16: u64 = 0x60;
const ABSENT: u64 = 0x68;

pub(super) const NT: u32 = 1 << 14;
const RF: u32 = 1 << 16;
const BUSY: u64 = 2 << 40;
const TS: u8 = 10;
const NP: u8 = 11;
const GP: u8 = 13;
/// Words of a TSS.
const LINK: usize = 0;
pub(super) const CR3: usize = 7;
pub(super) const EIP: usize = 8;
pub(super) const EFLAGS: usize = 9;
const EAX: usize = 10;
pub(super) const SELECTORS: usize = 18;
const LDT_SELECTOR: usize = 24;
const TRAP: usize = 25;

static TSS: Cell<[u32; 26]> = Cell::new([0; 26]);
static TSS16: Cell<[u16; 22]> = Cell::new([0; 22]);
static STACK: Cell<[u32; 64]> = Cell::new([0; 64]);
static POINTERS: [Cell<[u32; 2]>; 16] = [const { Cell::new([0; 2]) }; 16];

/// Page directories that map everything to itself, in pages of 4 MiB.
#[repr(C, align(4096))]
struct Directories([Cell<[u32; 1024]>; 2]);
static DIRECTORIES: Directories = Directories([const { Cell::new([0; 1024]) }; 2]);

unsafe extern "C" {
    pub(super) fn task_jump();
    pub(super) fn task_call();
    fn task_int();
    fn task_ud();
    fn task_gs();
    fn task_return();
    fn task_dr6();
    fn task_dr7();
    pub(super) fn task_tr();
    fn task_other();
    static mut task_log: [u32; 16];
    static mut task_skip: u32;
    static mut task_saved_eip: u32;
    static mut task_pop: u32;
    static mut task_back: u32;
}

pub(super) type Code = unsafe extern "C" fn();

/// A scene: what the first task does, and what the other one is like.
pub(super) struct Scene {
    /// EIP of the first task is to be moved by this, when the other one runs.
    skip: u32,
    /// The other task finds an error code on its stack.
    pop: bool,
    /// The other task goes back by a jump, not by IRET.
    jumps_back: bool,
    paging: bool,
    pub(super) tss: [u32; 26],
    /// Changes of descriptors.
    descriptors: [u64; 10],
    /// A task gate for this vector.
    pub(super) gate: Option<usize>,
    /// The first task's back link.
    link: u32,
    /// Other page tables than the usual ones, which are PAE's.
    pub(super) pae: Option<u32>,
}

pub(super) fn system(base: u64, limit: u64, kind: u64) -> u64 {
    limit & 0xffff | (base & 0xff_ffff) << 16 | kind << 40 | (limit >> 16 & 0xf) << 48 | (base >> 24) << 56
}

fn task_gate(selector: u64) -> u64 {
    selector << 16 | 0x85 << 40
}

pub(super) fn address(code: Code) -> u64 {
    code as usize as u64
}

impl Scene {
    pub(super) fn new() -> Scene {
        let mut tss = [0; 26];
        tss[CR3] = DIRECTORIES.0[1].ptr() as u32;
        tss[EIP] = address(task_other) as u32;
        tss[EFLAGS] = 0x0c93;
        tss[EAX..EAX + 8].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, stack(), 0x55, 0x66, 0x77]);
        tss[SELECTORS..SELECTORS + 6].copy_from_slice(&[0x10, 0x08, 0x10, 0x10, 0, 0x23]);
        tss[TRAP] = 104 << 16;
        let descriptors = [
            system(TSS.ptr() as u64, 103, 0x89),
            system(TSS16.ptr() as u64, 43, 0x81),
            task_gate(OTHER),
            0,
            system(TSS.ptr() as u64, 103, 0x82),
            system(address(task_other), 0xffff, 0x9b) | 1 << 54,
            system(STACK.ptr() as u64, 0xffff, 0x93),
            system(0, 0xffff, 0x13),
            0,
            0,
        ];
        let (skip, pop, jumps_back, paging) = (0, false, false, false);
        Scene { skip, pop, jumps_back, paging, tss, descriptors, gate: None, link: 0, pae: None }
    }

    pub(super) fn descriptor(&mut self, selector: u64, value: u64) {
        self.descriptors[(selector as usize - 0x30) / 8] = value;
    }

    /// Has the first task do this; what came of each step.
    pub(super) fn play<const N: usize>(&self, code: [(Code, u64); N]) -> [Step; N] {
        self.perform(code.map(|(code, value)| Step::new(EXECUTE, address(code), value)))
    }

    /// The same for steps of any kind.
    pub(super) fn perform<const N: usize>(&self, wanted: [Step; N]) -> [Step; N] {
        for (n, directory) in DIRECTORIES.0.iter().enumerate() {
            let user = 4 * n as u32;
            directory.set(core::array::from_fn(|n| (n as u32) << 22 | 0xe3 | user));
        }
        TSS.set(self.tss);
        TSS16.set(self.tss16());
        legacy::set_descriptors(self.descriptors);
        // SAFETY: static variables of the code that does not run now.
        unsafe {
            (&raw mut task_log).write_volatile([0; 16]);
            (&raw mut task_skip).write_volatile(self.skip);
            (&raw mut task_saved_eip).write_volatile(legacy::tss().add(EIP) as u32);
            (&raw mut task_pop).write_volatile(self.pop.into());
            (&raw mut task_back).write_volatile(self.jumps_back.into());
        }
        let mut steps = [Step::new(END, 0, 0); 13];
        steps[..N].copy_from_slice(&wanted);
        let cr0 = if self.paging || self.pae.is_some() { 0x8000_0031 } else { 0x31 };
        let cr3 = self.pae.unwrap_or(DIRECTORIES.0[0].ptr() as u32);
        let cr4 = if self.pae.is_some() { 0x30 } else { 0x10 };
        let job = Job { cr0, cr3, cr4, efer: 0, steps: 0, user_base: 0 };
        legacy::run_with(job, &mut steps, |idt, tss| {
            if let Some(vector) = self.gate {
                idt[vector] = task_gate(OTHER);
            }
            tss[LINK] = self.link;
            // A switch does not save it.
            tss[CR3] = cr3;
        });
        core::array::from_fn(|n| steps[n])
    }

    /// The same task in the layout of the 80286.
    fn tss16(&self) -> [u16; 22] {
        let mut tss = [0; 22];
        tss[8] = 0x93;
        tss[9..17].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x100, 0x55, 0x66, 0x77]);
        tss[17..21].copy_from_slice(&[0x10, CODE16 as u16, STACK16 as u16, 0x10]);
        tss
    }
}

/// The other task's stack pointer.
pub(super) fn stack() -> u32 {
    STACK.ptr() as u32 + 256
}

pub(super) fn log(n: usize) -> u32 {
    // SAFETY: a static variable of code that does not run now.
    unsafe { (&raw const task_log[n]).read_volatile() }
}

pub(super) fn first(n: usize) -> u32 {
    // SAFETY: a static TSS that is not in use now.
    unsafe { legacy::tss().add(n).read_volatile() }
}

/// A far pointer to a selector.
pub(super) fn to(selector: u64) -> u64 {
    let pointer = &POINTERS[selector as usize / 8 % 16];
    pointer.set([0x1234_5678, selector as u32]);
    pointer.ptr() as u64
}

pub(super) fn is_busy(selector: u64) -> bool {
    legacy::descriptor(selector) & BUSY != 0
}

/// What the other task finds.
pub(super) fn arrives(c: &mut Check, what: &str, nested: bool) {
    c.equal(format_args!("{what}: arrivals"), log(8), 1);
    c.equal(format_args!("{what}: EAX, EBP"), (log(0), log(2)), (0x11, 0x55));
    let flags = 0xc93 | if nested { NT } else { 0 };
    c.equal(format_args!("{what}: EFLAGS"), log(3), flags);
    c.equal(format_args!("{what}: TR"), log(4), OTHER as u32);
    c.equal(format_args!("{what}: CR0.TS"), log(5) >> 3 & 1, 1);
}

fn jump(c: &mut Check) {
    let scene = Scene { jumps_back: true, ..Scene::new() };
    let [there, tr] = scene.play([(task_jump, to(OTHER)), (task_tr, 0)]);
    c.equal("comes back", (there.vector, there.value as u32 & NT), (NONE, 0));
    arrives(c, "a jump", false);
    c.equal("ESP", log(1), stack());
    c.equal("TR afterwards", tr.value as u32, FIRST);
    c.equal("the other TSS is not busy", is_busy(OTHER), false);
    c.equal("no link", TSS.get()[LINK], 0);
    c.equal("saved EIP", first(EIP), address(task_jump) as u32 + 2);
    c.equal("saved selectors", (first(SELECTORS + 1), first(SELECTORS + 2)), (0x08, 0x10));
    // To itself: it is busy.
    let [itself] = scene.play([(task_jump, to(FIRST.into()))]);
    c.equal("a jump to a busy TSS", (itself.vector, itself.error), (GP.into(), FIRST));
}

fn call(c: &mut Check) {
    for selector in [OTHER, GATE] {
        let scene = Scene::new();
        let [there, tr] = scene.play([(task_call, to(selector)), (task_tr, 0)]);
        c.equal("comes back", (there.vector, there.value as u32 & NT), (NONE, 0));
        arrives(c, "a call", true);
        c.equal("TR afterwards", tr.value as u32, FIRST);
        c.equal("the other TSS is not busy", is_busy(OTHER), false);
        c.equal("its link", TSS.get()[LINK], FIRST);
        c.equal("its saved EFLAGS, without NT", TSS.get()[EFLAGS] & NT, 0);
        c.equal("its saved selectors", TSS.get()[SELECTORS + 5], 0x23);
    }
}

fn gates(c: &mut Check) {
    let scene = Scene { gate: Some(0x20), ..Scene::new() };
    let [there] = scene.play([(task_int, 0)]);
    c.equal("INT n comes back", there.vector, NONE);
    arrives(c, "INT n", true);
    c.equal("saved EIP and RF", (first(EIP), first(EFLAGS) & RF), (address(task_int) as u32 + 2, 0));
    let scene = Scene { gate: Some(6), skip: 2, ..Scene::new() };
    let [there] = scene.play([(task_ud, 0)]);
    c.equal("#UD comes back", there.vector, NONE);
    arrives(c, "#UD", true);
    c.equal("ESP", log(1), stack());
    c.equal_but_tcg("saved RF", first(EFLAGS) & RF, RF, 0);
    let scene = Scene { gate: Some(13), skip: 2, pop: true, ..Scene::new() };
    let [there] = scene.play([(task_gs, 0x1008)]);
    c.equal("#GP comes back", there.vector, NONE);
    arrives(c, "#GP", true);
    c.equal("ESP and error code", (log(1), log(10)), (stack() - 4, 0x1008));
}

fn of_16_bits(c: &mut Check) {
    let scene = Scene { jumps_back: false, ..Scene::new() };
    let [there, tr] = scene.play([(task_call, to(OTHER16)), (task_tr, 0)]);
    c.equal("comes back", (there.vector, tr.value as u32), (NONE, FIRST));
    c.equal("arrivals", log(8), 1);
    c.equal("TR", log(4), OTHER16 as u32);
    c.equal("EAX, EBP, SP", (log(0) as u16, log(2) as u16, log(1) as u16), (0x11, 0x55, 0x100));
    c.equal("EFLAGS", log(3), 0x93 | NT);
    let tss = TSS16.get();
    c.equal("its link", tss[0], FIRST as u16);
    c.equal("its saved EFLAGS", tss[8] & NT as u16, 0);
    c.equal("its saved selectors", (tss[17], tss[18], tss[19]), (0x10, CODE16 as u16, STACK16 as u16));
}

fn trap(c: &mut Check) {
    let mut scene = Scene::new();
    scene.tss[TRAP] |= 1;
    let steps =
        [(task_dr6 as Code, 0xffff_0ff0), (task_jump, to(OTHER)), (task_dr6, 0xffff_0ff0), (task_tr, 0)];
    let [_, there, dr6, tr] = scene.play(steps);
    // QEMU's emulation does not look at T.
    c.equal_but_tcg("#DB", there.vector, 1, GP.into());
    c.equal_but_tcg("DR6.BT", dr6.value >> 15 & 1, 1, 0);
    c.equal_but_tcg("before its first instruction", (log(8), tr.value), (0, OTHER), (1, OTHER));
    let scene = Scene { jumps_back: true, ..Scene::new() };
    let [_, there, dr7] = scene.play([(task_dr7, 0x6ff), (task_jump, to(OTHER)), (task_dr7, 0x400)]);
    c.equal("comes back", there.vector, NONE);
    c.equal("local breakpoints", (log(7), dr7.value), (0x6aa, 0x6aa));
}

fn tables(c: &mut Check) {
    for jumps_back in [false, true] {
        let mut scene = Scene { paging: true, jumps_back, ..Scene::new() };
        scene.tss[LDT_SELECTOR] = LDT as u32;
        let code: Code = if jumps_back { task_jump } else { task_call };
        let [there, tr] = scene.play([(code, to(OTHER)), (task_tr, 0)]);
        c.equal("comes back", (there.vector, tr.value as u32), (NONE, FIRST));
        arrives(c, "with paging", !jumps_back);
        c.equal("CR3", log(6), DIRECTORIES.0[1].ptr() as u32);
        c.equal("LDT", log(9), LDT as u32);
    }
}

fn faults_of_the_old(c: &mut Check) {
    let code = |c: &mut Check, what: &str, scene: &Scene, selector: u64, want: (u8, u64)| {
        let [there, tr] = scene.play([(task_jump, to(selector)), (task_tr, 0)]);
        let want = (u32::from(want.0), want.1 as u32);
        c.equal(format_args!("{what}"), (there.vector, there.error), want);
        c.equal(format_args!("{what}: arrivals, TR"), (log(8), tr.value as u32), (0, FIRST));
    };
    let mut scene = Scene::new();
    scene.descriptor(SPARE, system(TSS.ptr() as u64, 103, 0x09));
    code(c, "a TSS that is not present", &scene, SPARE, (NP, SPARE));
    scene.descriptor(SPARE, system(TSS.ptr() as u64, 102, 0x89));
    code(c, "a TSS that is too small", &scene, SPARE, (TS, SPARE));
    scene.descriptor(SPARE, system(TSS.ptr() as u64, 103, 0x8b));
    code(c, "a busy TSS", &scene, SPARE, (GP, SPARE));
    scene.descriptor(SPARE, task_gate(LDT));
    code(c, "a gate to an LDT", &scene, SPARE, (GP, LDT));
    scene.descriptor(SPARE, task_gate(0x2000));
    code(c, "a gate to beyond the GDT", &scene, SPARE, (GP, 0x2000));
    // IRET: the link must be a busy TSS.
    for (link, descriptor) in [(SPARE, system(TSS.ptr() as u64, 103, 0x89)), (LDT, 0), (0x2000, 0)] {
        scene.descriptor(SPARE, descriptor);
        scene.link = link as u32;
        let [there, tr] = scene.play([(task_return, 0), (task_tr, 0)]);
        let want = (TS.into(), link as u32, FIRST);
        c.equal(format_args!("IRET to {link:#x}"), (there.vector, there.error, tr.value as u32), want);
    }
}

fn faults_of_the_new(c: &mut Check) {
    let (es, cs, ds, gs) = (SELECTORS, SELECTORS + 1, SELECTORS + 3, SELECTORS + 5);
    for (what, word, value, vector, error) in [
        ("ES beyond the GDT", es, 0x2000, TS, 0x2000),
        ("DS that is not present", ds, ABSENT, NP, ABSENT),
        ("GS in an LDT that there is not", gs, 0x0c, TS, 0x0c),
        ("a TSS in DS", ds, OTHER, TS, OTHER),
        ("EIP beyond the code segment", EIP, 0xffff_ffff, GP, 0),
    ] {
        let mut scene = Scene { jumps_back: true, ..Scene::new() };
        scene.tss[word] = value as u32;
        if word == EIP {
            // Its limit is 0xffff.
            scene.tss[cs] = CODE16 as u32;
        }
        // The fault's handler runs in the new task, and goes back.
        let [there, tr, back, after] =
            scene.play([(task_jump, to(OTHER)), (task_tr, 0), (task_jump, to(FIRST.into())), (task_tr, 0)]);
        let want = (u32::from(vector), error as u32);
        c.equal(format_args!("{what}"), (there.vector, there.error), want);
        c.equal(format_args!("{what}: TR"), tr.value, OTHER);
        c.equal(format_args!("{what}: afterwards"), (back.vector, after.value as u32), (NONE, FIRST));
    }
}
