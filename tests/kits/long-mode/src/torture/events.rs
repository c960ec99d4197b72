//! Descriptor tables and stacks on pages that are absent, read-only or untouched; accesses across the border of two pages.
//!
//! AMD APM 2, 8.2.9 (double faults), 8.9; Intel SDM 3, 4.6 (implicit supervisor accesses) and 4.7.

use core::arch::{asm, naked_asm};

use super::model::{Kind, Setup};
use super::region::{ALL, PAGES, Region, target};
use super::script::Script;
use super::space::{Space, USER_BASE};
use crate::check::Check;
use crate::machine::insn::{cpuid, cr4, invlpg, peek, poke, set_cr4};
use crate::machine::trap::{self, Trap, catch, vector};
use crate::machine::user;

/// Accessed, dirty.
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
/// Present and writable, for supervisor mode.
const PW: u64 = 3;
/// The page of descriptor tables that may go, and the one behind it.
const FIRST: u64 = 2;

/// What all cases need.
struct Stage {
    region: Region,
    _space: Space,
}

impl Stage {
    fn new(c: &mut Check) -> Self {
        let mut space = Space::new(Kind::Four);
        let region = Region::new(&mut space);
        region.map(&mut Script::new(c, &mut space, Setup::new(Kind::Four)));
        Stage { region, _space: space }
    }

    /// Maps a page again, to its own target.
    fn map(&self, page: u64, flags: u64) {
        self.map_to(page, target(page), flags);
    }

    fn map_to(&self, page: u64, to: u64, flags: u64) {
        poke(self.region.leaf(page), to | flags);
        invlpg(self.region.page(page));
    }

    /// Bits A and D of a page.
    fn touched(&self, page: u64) -> u64 {
        peek::<u64>(self.region.leaf(page)) & (A | D)
    }

    fn page(&self, page: u64) -> u64 {
        self.region.page(page)
    }
}

/// What a trap was: vector, error code, CR2.
fn brief(trap: Option<Trap>) -> Option<(u8, u32, u64)> {
    trap.map(|trap| (trap.vector, trap.error, if trap.vector == vector::PF { trap.cr2 } else { 0 }))
}

fn ud2() -> Option<Trap> {
    // SAFETY: faults.
    catch(|| unsafe { asm!("ud2") })
}

#[unsafe(naked)]
unsafe extern "C" fn user_ud2() {
    naked_asm!("ud2")
}

#[unsafe(naked)]
unsafe extern "C" fn user_load_fs() {
    naked_asm!("mov eax, edi", "mov fs, eax", "int 0x80")
}

/// The IDT across two pages of the region.
pub fn idt(c: &mut Check) {
    let stage = Stage::new(c);
    // The first ten gates are on the first page.
    let base = stage.page(FIRST + 1) - 160;
    trap::copy_idt(target(FIRST + 1) - 160);
    for user in [false, true] {
        let raise = || if user { Some(user::run_at(user_ud2, USER_BASE, 0, 0)) } else { ud2() };
        for flags in [PW, 1, PW | A | D, ALL] {
            stage.map(FIRST, flags);
            stage.map(FIRST + 1, PW);
            trap::load_idt_at(base);
            let got = raise();
            trap::load_idt(4095);
            c.equal(format_args!("#UD, IDT mapped with {flags:x}"), brief(got), Some((vector::UD, 0, 0)));
            c.equal("its page", stage.touched(FIRST), A | flags & D);
            c.equal("the next page", stage.touched(FIRST + 1) & D, 0);
        }
        // Reading a gate is a supervisor access at any CPL.
        stage.map(FIRST, 0);
        trap::load_idt_at(base);
        let got = raise();
        trap::load_idt(4095);
        c.equal("#UD whose gate's page is absent", brief(got), Some((vector::PF, 0, base + 6 * 16)));
        // #PF whose gate's page is absent: #DF.
        stage.map(FIRST, PW);
        stage.map(FIRST + 1, 0);
        trap::load_idt_at(base);
        let got = read(stage.page(FIRST + 1));
        trap::load_idt(4095);
        c.equal("#PF whose gate's page is absent", brief(got), Some((vector::DF, 0, 0)));
        stage.map(FIRST + 1, PW);
    }
    smap_idt(c, &stage, base);
}

/// An IDT on a user page, with SMAP: implicit accesses are never let through.
fn smap_idt(c: &mut Check, stage: &Stage, base: u64) {
    if cpuid(7, 0)[1] >> 20 & 1 == 0 {
        return;
    }
    stage.map(FIRST, ALL);
    stage.map(FIRST + 1, PW);
    set_cr4(cr4() | 1 << 21);
    trap::load_idt_at(base);
    let got = user::run_at(user_ud2, USER_BASE, 0, 0);
    trap::load_idt(4095);
    set_cr4(cr4() & !(1 << 21));
    c.equal("SMAP and an IDT on a user page", brief(Some(got)), Some((vector::PF, 1, base + 6 * 16)));
}

fn read(at: u64) -> Option<Trap> {
    catch(|| _ = peek::<u32>(at))
}

/// The GDT across two pages of the region; the second holds one data segment for user mode.
pub fn gdt(c: &mut Check) {
    let stage = Stage::new(c);
    const SELECTOR: u64 = 0x50;
    let low = target(FIRST + 1) - SELECTOR;
    (0..SELECTOR / 8).for_each(|i| poke(low + i * 8, trap::descriptor(i as usize)));
    let base = stage.page(FIRST + 1) - SELECTOR;
    let descriptor = target(FIRST + 1);
    stage.map(FIRST, PW | A | D);
    for user in [false, true] {
        let load = || {
            trap::load_gdt_at(base, SELECTOR as u16 + 7);
            let got = if user {
                Some(user::run_at(user_load_fs, USER_BASE, SELECTOR | 3, 0))
                    .filter(|t| t.vector != user::DONE)
            } else {
                // SAFETY: FS is not used.
                catch(|| unsafe { asm!("mov fs, {:e}", in(reg) SELECTOR as u32 | 3) })
            };
            trap::load_gdt();
            got
        };
        for (accessed, flags) in [(1u64, 1), (1, PW), (0, PW), (1, PW | A)] {
            poke(descriptor, 0x00cf_f200_0000_ffff | accessed << 40);
            stage.map(FIRST + 1, flags);
            c.equal(format_args!("a segment, GDT mapped with {flags:x}"), brief(load()), None);
            // The processor sets the descriptor's accessed bit only if it is clear.
            let dirty = if accessed == 0 { D } else { 0 };
            c.equal("its page", stage.touched(FIRST + 1), A | dirty);
            c.equal("its descriptor", peek::<u64>(descriptor) >> 40 & 1, 1);
        }
        stage.map(FIRST + 1, 0);
        let at = base + SELECTOR;
        c.equal("a segment whose descriptor's page is absent", brief(load()), Some((vector::PF, 0, at)));
    }
}

/// Stacks for traps on pages of the region.
pub fn stacks(c: &mut Check) {
    let stage = Stage::new(c);
    let top = stage.page(8);
    let on_stack = || {
        // SAFETY: faults; the landing place has its own stack pointer.
        catch(|| unsafe { asm!("mov rsp, {}", "ud2", in(reg) top) })
    };
    let from_user = || {
        trap::set_stack(top);
        let got = user::run_at(user_ud2, USER_BASE, 0, 0);
        trap::set_default_stack();
        Some(got)
    };
    for user in [false, true] {
        let raise = || if user { from_user() } else { on_stack() };
        for flags in [PW, PW | A, PW | A | D] {
            (3..8).for_each(|page| stage.map(page, flags));
            c.equal(
                format_args!("#UD, stack mapped with {flags:x}"),
                brief(raise()),
                Some((vector::UD, 0, 0)),
            );
            c.equal("its page", stage.touched(7), A | D);
        }
        for flags in [0, 1, 1 | A] {
            stage.map(7, flags);
            let what = format_args!("#UD, stack mapped with {flags:x}");
            // The page fault finds the same stack.
            c.equal(what, brief(raise()), Some((vector::DF, 0, 0)));
            c.equal("its page", stage.touched(7) & D, 0);
        }
        stage.map(7, PW);
    }
    // The stack is the table that maps it: the trap's frame goes over the entries of pages that are not in use.
    let table = stage.region.leaf_table();
    stage.map_to(7, table, PW);
    let got = catch(|| {
        // SAFETY: as above; the handler's stack reaches back to the page below.
        unsafe { asm!("mov rsp, {}", "ud2", in(reg) top) }
    });
    c.equal("#UD on a stack on a table", brief(got), Some((vector::UD, 0, 0)));
    // Below SS, RSP, RFLAGS, CS, RIP and the error code trap.s pushes the vector.
    c.equal("the frame", peek::<u64>(table + 4096 - 56), vector::UD.into());
    (0..PAGES).for_each(|page| stage.map(page, ALL));
}

/// Code and data across two pages.
pub fn straddles(c: &mut Check) {
    let stage = Stage::new(c);
    let (first, second) = (4, 5);
    let border = stage.page(second);
    // mov eax, imm32; ret: from two bytes before the border.
    let code = target(second) - 2;
    poke(code, 0xb8u8);
    poke(code + 1, 0x1234u32);
    poke(code + 5, 0xc3u8);
    let nx = 1 << 63;
    let cases = [
        ("both", PW, PW, None),
        ("second absent", PW, 0, Some((vector::PF, 0x10, border))),
        ("second not executable", PW, PW | nx, Some((vector::PF, 0x11, border))),
        ("first absent", 0, PW, Some((vector::PF, 0x10, border - 2))),
        ("first not executable", PW | nx, 0, Some((vector::PF, 0x11, border - 2))),
    ];
    for (what, one, two, want) in cases {
        stage.map(first, one);
        stage.map(second, two);
        // SAFETY: the code changes RAX only, or faults.
        let got = catch(|| unsafe { asm!("call {}", in(reg) border - 2, out("rax") _) });
        let got = brief(got);
        // Where the second page lacks, Bochs tells an address behind its first.
        let behind = |at: u64, got: u64| if at == border { at | got & 0xfff } else { at };
        let late = want.zip(got).map(|((vector, error, at), got)| (vector, error, behind(at, got.2)));
        c.equal_but_bochs(format_args!("code, {what}"), got, want, late);
    }
    let cases = [
        ("second absent", PW, 0, 0, border),
        ("second read-only", PW, 1, 3, border),
        ("first absent", 0, PW, 0, border - 3),
        ("first read-only", 1, PW, 3, border - 3),
    ];
    for on_table in [false, true] {
        let to = if on_table { stage.region.leaf_table() } else { target(first) };
        for (what, one, two, error, at) in cases {
            stage.map_to(first, to, one);
            stage.map(second, two);
            let (end, start) = (to + 4096 - 8, target(second));
            let before = (peek::<u64>(end), peek::<u64>(start));
            let got = catch(|| poke(border - 3, 0x55aa_1234_5678_9abcu64));
            c.equal(format_args!("write, {what}"), brief(got), Some((vector::PF, error | 2, at)));
            c.equal(format_args!("memory, {what}"), (peek::<u64>(end), peek::<u64>(start)), before);
            if error == 0 {
                let got = catch(|| _ = peek::<u64>(border - 3));
                c.equal(format_args!("read, {what}"), brief(got), Some((vector::PF, 0, at)));
            }
        }
        stage.map_to(first, to, PW);
        stage.map(second, PW);
        poke(border - 3, 0x55aa_1234_5678_9abcu64);
        c.equal("a write across", peek::<u64>(border - 3), 0x55aa_1234_5678_9abc);
        c.equal("its first half", peek::<u32>(to + 4092) >> 8, 0x78_9abc);
    }
}
