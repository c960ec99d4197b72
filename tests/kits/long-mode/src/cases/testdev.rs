//! The test device's latch, and pages that it takes away.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::smp::{LONG, with_all};
use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::smp::Job;
use crate::machine::{is_palimpsest, paging, time};

pub const CASES: &[Case] =
    &[case("testdev.latch", latch), case("testdev.unmap", unmap), case("shared.unmap", unmap_from_others)];

fn latch(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("this machine's test device has no latch");
    }
    outl(0xe0, 0x4433_2211);
    c.equal("4 bytes", inl(0xe0), 0x4433_2211);
    for (i, byte) in [0x11, 0x22, 0x33, 0x44].into_iter().enumerate() {
        c.equal(format_args!("byte {i}"), inb(0xe0 + i as u16), byte);
    }
    c.equal("a word in the middle", inw(0xe1), 0x3322);
    outb(0xe3, 0xaa);
    outw(0xe1, 0xbbcc);
    c.equal("4 bytes from parts", inl(0xe0), 0xaabb_cc11);
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

fn unmap(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("this machine's test device does not unmap");
    }
    // Of three neighbours the middle one goes.
    const PAGES: u64 = 0x80_0000;
    for i in 0..3 {
        poke(PAGES + i * 4096, 0x1111_1111_1111_1111 * (i + 1));
    }
    outl(0xe4, PAGES as u32 + 4096 + 8);
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
    outl(0xe4, table as u32);
    invlpg(at);
    c.raises_but_tcg("a page table in missing memory", Some((14, 9)), || _ = peek::<u64>(at));
}

/// Twice the number of the page that all read; plus 1 when it is gone; or [`END`].
static STEP: AtomicU64 = AtomicU64::new(0);
const END: u64 = u64::MAX;

/// A page goes that others read without an exit, which alone would have them forget where it was. Whoever knows that it is gone
/// must find it so.
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
                    outl(0xe4, page(round) as u32);
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
