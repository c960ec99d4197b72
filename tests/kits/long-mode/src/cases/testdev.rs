//! The test device: latch, memory, translations that it drops and pages that it takes away.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use abi::testdev::{EXIT, FLUSH, IRQ, IRQS, MEMORY, UNMAP};

use super::smp::{LONG, with_all};
use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::smp::Job;
use crate::machine::{is_palimpsest, paging, time};

pub const CASES: &[Case] = &[
    case("testdev.latch", latch),
    case("testdev.silent", silent),
    case("testdev.memory", memory),
    case("testdev.flush", flush),
    case("testdev.unmap", unmap),
    case("shared.unmap", unmap_from_others),
];

fn latch(c: &mut Check) {
    outl(0xe0, 0x4433_2211);
    c.equal("4 bytes", inl(0xe0), 0x4433_2211);
    for (i, byte) in [0x11, 0x22, 0x33, 0x44].into_iter().enumerate() {
        c.equal(format_args!("byte {i}"), inb(0xe0 + i as u16), byte);
        c.equal(format_args!("byte {i} at the other place"), inb(0xe8 + i as u16), byte);
    }
    c.equal("a word", inw(0xe2), 0x4433);
    c.equal("the other place", (inw(0xe8), inl(0xe8)), (0x2211, 0x4433_2211));
    outb(0xe3, 0xaa);
    outb(0xe2, 0xbb);
    outb(0xe9, 0xcc);
    c.equal("4 bytes from parts", inl(0xe0), 0xaabb_cc11);
    // QEMU's own device ignores accesses that are not aligned, unless KVM has split them.
    if is_palimpsest() {
        c.equal("a word in the middle", inw(0xe1), 0xbbcc);
        outw(0xe9, 0x3322);
        c.equal("and written", inl(0xe8), 0xaa33_2211);
        outw(0xe1, 0xbbcc);
    }
    // IN leaves the bytes that it does not read, except that 4 bytes clear the upper half.
    let (byte, word, long): (u64, u64, u64);
    // SAFETY: reads of the latch.
    unsafe {
        core::arch::asm!("mov rax, -1", "in al, 0xe0", "mov {0}, rax", "mov rax, -1", "in ax, 0xe0", "mov {1}, rax",
                         "mov rax, -1", "in eax, 0xe0", out(reg) byte, out(reg) word, out("rax") long);
    }
    c.equal(
        "RAX after reads of 1, 2 and 4 bytes",
        [byte, word, long],
        [!0xff | 0x11, !0xffff | 0xcc11, 0xaabb_cc11],
    );
}

/// What can only be written reads as zero.
fn silent(c: &mut Check) {
    c.equal("the flush", (inb(FLUSH), inw(FLUSH), inl(FLUSH)), (0, 0, 0));
    c.equal("the lines", (inb(IRQ), inb(IRQ + IRQS - 1)), (0, 0));
    c.equal("the exit", (inb(EXIT), inl(EXIT)), (0, 0));
}

fn memory(c: &mut Check) {
    for at in [MEMORY, MEMORY + 0x8ff8, MEMORY + 0xfff8] {
        poke(at, 0x8877_6655_4433_2211_u64);
        c.equal(
            format_args!("{at:x}"),
            (peek::<u64>(at), peek::<u32>(at + 4), peek::<u16>(at + 2), peek::<u8>(at + 7)),
            (0x8877_6655_4433_2211, 0x8877_6655, 0x4433, 0x88),
        );
        poke(at + 1, 0xaa_u8);
        poke(at + 2, 0xbbcc_u16);
        c.equal("parts", peek::<u64>(at), 0x8877_6655_bbcc_aa11);
    }
    // Read, change, write; and the compiler's ways to copy.
    // SAFETY: device memory.
    unsafe {
        core::arch::asm!("add dword ptr [{0}], 5", "lock inc qword ptr [{0}]", "not byte ptr [{0} + 7]", in(reg) MEMORY);
        core::arch::asm!("rep movsb", inout("rsi") MEMORY => _, inout("rdi") MEMORY + 0x100 => _, inout("rcx") 8_u64 => _);
    }
    c.equal("after arithmetic", peek::<u64>(MEMORY), 0x7777_6655_bbcc_aa17);
    c.equal("a copy", peek::<u64>(MEMORY + 0x100), 0x7777_6655_bbcc_aa17);
}

/// Nothing that a guest can see comes of it but time.
fn flush(c: &mut Check) {
    const PAGES: u64 = 0x90_0000;
    let local = 0x1234_5678_u64;
    for i in 0..3 {
        poke(PAGES + i * 4096, 0x1111_1111_1111_1111 * (i + 1));
    }
    for round in 0..100 {
        outl(FLUSH, PAGES as u32 + 4096 + 8);
        c.equal("read again", peek::<u64>(PAGES + 4096), 0x2222_2222_2222_2222 + round);
        outl(FLUSH, PAGES as u32 + 4096);
        poke(PAGES + 4096, 0x2222_2222_2222_2223 + round);
    }
    c.equal(
        "its neighbours",
        [peek(PAGES), peek(PAGES + 8192)],
        [0x1111_1111_1111_1111_u64, 0x3333_3333_3333_3333],
    );
    // The stack, this code, a page table in use, device memory, nothing at all.
    outl(FLUSH, &raw const local as u32);
    outl(FLUSH, flush as fn(&mut Check) as usize as u32);
    let at = paging::map(0, PAGES, paging::PW);
    outl(FLUSH, paging::entry(0) as u32);
    c.equal("through a page table", peek::<u64>(at), 0x1111_1111_1111_1111);
    // SAFETY: a local variable.
    c.equal("the stack", unsafe { (&raw const local).read_volatile() }, 0x1234_5678);
    poke(MEMORY + 0x40, 7_u32);
    [MEMORY as u32 + 0x40, 0xfee0_0000, 0xfff0_0000].into_iter().for_each(|at| outl(FLUSH, at));
    c.equal("device memory", peek::<u32>(MEMORY + 0x40), 7);
}

fn unmap(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("this machine's test device does not unmap");
    }
    // Of three neighbours the middle one goes.
    const PAGES: u64 = 0x80_0000;
    for i in 0..3 {
        poke(PAGES + i * 4096, 0x1111_1111_1111_1111 * (i + 1));
    }
    outl(UNMAP, PAGES as u32 + 4096 + 8);
    c.equal("what is missing reads as ones", peek::<u64>(PAGES + 4096), u64::MAX);
    poke(PAGES + 4096, 5u64);
    c.equal("and stays so", peek::<u64>(PAGES + 4096), u64::MAX);
    c.equal("a byte", peek::<u8>(PAGES + 4096 + 77), 0xff);
    c.equal(
        "the neighbours stay",
        [peek(PAGES), peek(PAGES + 8192)],
        [0x1111_1111_1111_1111_u64, 0x3333_3333_3333_3333],
    );
    // Across the edge: half RAM, half missing.
    poke(PAGES + 4096 - 4, 0x5555_5555_6666_6666_u64);
    c.equal("across the edge", peek::<u64>(PAGES + 4096 - 4), 0xffff_ffff_6666_6666);
    // A page table that goes missing: all ones, and so reserved bits, present.
    let table = PAGES + 0x10_0000;
    poke(table, 0x7u64);
    let upper = paging::scratch(0);
    poke(upper, table | 7);
    let at = paging::hang_level2(upper);
    c.raises("a page table in RAM", None, || _ = peek::<u64>(at));
    outl(UNMAP, table as u32);
    invlpg(at);
    c.raises("a page table in missing memory", Some((14, 9)), || _ = peek::<u64>(at));
}

/// Twice the number of the page that all read; plus 1 when it is gone; or [`END`].
static STEP: AtomicU64 = AtomicU64::new(0);
const END: u64 = u64::MAX;

/// A page is removed that other processors read without an exit, at which they would flush anyway. A processor that knows that
/// it is gone must not reach it.
fn unmap_from_others(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("this machine's test device does not unmap");
    }
    const ROUNDS: u64 = 24;
    const fn page(round: u64) -> u64 {
        0xa0_0000 + round * 4096
    }
    with_all(c, |c, all| {
        (0..ROUNDS).for_each(|round| poke(page(round), round));
        STEP.store(0, SeqCst);
        // Says what it has read last, and how often it was wrong.
        let reader: Job = |me, _| {
            let mut wrong = 0;
            loop {
                let step = STEP.load(SeqCst);
                if step == END {
                    break;
                }
                // Until all know, it may be there or not.
                let is_there = peek::<u64>(page(step / 2)) != u64::MAX;
                wrong += u64::from(is_there && step & 1 == 1);
                me.word.store(step << 32 | wrong, SeqCst);
            }
        };
        all.iter().for_each(|p| {
            p.word.store(END, SeqCst);
            p.give(reader, 0);
        });
        for round in 0..ROUNDS {
            for step in [2 * round, 2 * round + 1] {
                if step & 1 == 1 {
                    outl(UNMAP, page(round) as u32);
                }
                STEP.store(step, SeqCst);
                let have_read = || all.iter().all(|p| p.word.load(SeqCst) >> 32 == step);
                c.holds("all read", time::wait(LONG, have_read));
            }
        }
        STEP.store(END, SeqCst);
        for p in all {
            c.holds("it ends", p.is_done(LONG));
            c.equal("reads of a page that was gone", p.word.load(SeqCst) & 0xffff_ffff, 0);
        }
    });
}
