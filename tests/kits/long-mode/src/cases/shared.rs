//! Page tables that several processors use and change at the same time: shootdowns, locked instructions on entries, and what
//! the processors themselves write there (AMD APM 2, 5.5.2 and 5.4.2; Intel SDM 3A, 4.10.5 and 4.8).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::smp::{LONG, all_do, with_all};
use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::lapic::{self, reg};
use crate::machine::paging::{self, P, PW, PWU, entry, scratch, window as page};
use crate::machine::smp::{self, Processor, processors, try_read, try_write};
use crate::machine::time;
use crate::torture::Random;

pub const CASES: &[Case] = &[
    case("shared.shootdown", |c| shootdown(c, false)),
    case("shared.shootdown-asleep", |c| shootdown(c, true)),
    case("shared.dirty", dirty),
    case("shared.locked", locked),
    case("shared.own-entries", own_entries),
];

const V: u8 = 0x74;
const OTHERS: u64 = 3 << 18;
/// Accessed, dirty.
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
/// A word of frame `n`, which tells it from others.
const fn mark(n: u64) -> u64 {
    0x5ca1_ab1e_0000 + n
}

/// The page that all processors read.
const SHARED: usize = 3;
/// What is to be flushed, and how: see [`flush`].
static HOW: AtomicU64 = AtomicU64::new(0);
/// How many have flushed.
static FLUSHED: AtomicU64 = AtomicU64::new(0);

/// A processor's part of a shootdown.
fn flush(number: u8) {
    if number == V {
        match HOW.load(SeqCst) {
            0 => invlpg(page(SHARED)),
            1 => set_cr3(cr3()),
            _ => {
                let with = cr4();
                set_cr4(with ^ 0x80);
                set_cr4(with);
            }
        }
        FLUSHED.fetch_add(1, SeqCst);
    }
}

/// Lets all processors forget the page; whether they did.
fn shoot(how: u64) -> bool {
    HOW.store(how, SeqCst);
    FLUSHED.store(0, SeqCst);
    invlpg(page(SHARED));
    lapic::send(OTHERS | u64::from(V), 0);
    time::wait(LONG, || FLUSHED.load(SeqCst) == processors().len() as u64)
}

/// Odd while the entry changes.
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// The frame that is mapped, or [`NONE`]; plus [`WRITABLE`].
static MAPPED: AtomicU64 = AtomicU64::new(0);
const NONE: u64 = 99;
const WRITABLE: u64 = 1 << 32;
const END: u64 = u64::MAX;
/// Readers sleep now and then.
static DOZES: AtomicBool = AtomicBool::new(false);
/// What a reader found, if it was wrong: wanted, and got.
static WRONG: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Reads and writes the page and compares with what is mapped. Every other one has a root of its own.
fn reader(me: &'static Processor, i: u64) {
    let root = cr3();
    if i & 1 == 1 {
        set_cr3(scratch(15));
    }
    sti();
    for round in 0u64.. {
        let before = GENERATION.load(SeqCst);
        if before == END {
            break;
        }
        if before & 1 != 0 {
            core::hint::spin_loop();
            continue;
        }
        let mapped = MAPPED.load(SeqCst);
        let read = try_read(page(SHARED));
        let wrote = try_write(page(SHARED) + 64 * (i + 1), round);
        if GENERATION.load(SeqCst) != before {
            continue;
        }
        let want = if mapped == NONE {
            (Err(0), Err(2))
        } else {
            (Ok(mark(mapped % WRITABLE)), if mapped & WRITABLE != 0 { Ok(()) } else { Err(3) })
        };
        if (read, wrote) != want && WRONG[0].fetch_add(1, SeqCst) == 0 {
            WRONG[1].store(mapped, SeqCst);
            WRONG[2].store(read.unwrap_or(7777) ^ wrote.map_or_else(u64::from, |()| 0) << 56, SeqCst);
        }
        me.word.store(me.word.load(SeqCst) + 1, SeqCst);
        if DOZES.load(SeqCst) && round & 7 == 0 {
            // The timer may be done before HLT, which must not sleep through it.
            cli();
            lapic::write(reg::LVT_TIMER, (V + 1).into());
            lapic::write(reg::INITIAL_COUNT, 30_000);
            sti_hlt();
            sti();
        }
    }
    cli();
    set_cr3(root);
}

/// The entry changes; after all processors have flushed, none may use the old translation.
fn shootdown(c: &mut Check, asleep: bool) {
    prepare();
    with_all(c, |c, all| {
        smp::on_interrupt(Some(flush));
        GENERATION.store(1, SeqCst);
        WRONG.iter().for_each(|word| word.store(0, SeqCst));
        DOZES.store(asleep, SeqCst);
        all.iter().zip(0..).for_each(|(p, i)| {
            p.word.store(0, SeqCst);
            p.give(reader, i);
        });
        let mut random = Random::new(0x5007 + u64::from(asleep));
        for round in 0..120u64 {
            let frame = random.below(8);
            let (value, mapped) = match random.below(4) {
                0 => (frame << 12, NONE),
                1 => (scratch(frame as usize) | P, frame),
                2 => (scratch(frame as usize) | PW | D, frame | WRITABLE),
                _ => (scratch(frame as usize) | PWU, frame | WRITABLE),
            };
            if round % 16 == 9 {
                // Through the table above: it leads nowhere for a while.
                let upper = paging::upper_entry();
                let before: u64 = peek(upper);
                poke(upper, 0u64);
                poke(entry(SHARED) as u64, value);
                MAPPED.store(NONE, SeqCst);
                c.holds("all flush", shoot(1));
                open(round);
                close();
                poke(upper, before);
            }
            poke(entry(SHARED) as u64, value);
            MAPPED.store(mapped, SeqCst);
            c.holds("all flush", shoot(random.below(3)));
            open(round);
            close();
        }
        // The last mapping until each has had a turn.
        GENERATION.fetch_add(1, SeqCst);
        let compared = time::wait(LONG, || all.iter().all(|p| p.word.load(SeqCst) > 0));
        c.holds("each has compared", compared);
        GENERATION.store(END, SeqCst);
        lapic::send(OTHERS | u64::from(V), 0);
        for p in all {
            c.holds("it ends", p.is_done(LONG));
        }
        let [wrong, mapped, got] = [0, 1, 2].map(|i| WRONG[i].load(SeqCst));
        if wrong != 0 {
            c.fail(format_args!("{wrong} stale uses; first: mapped {mapped:x}, got {got:x}"));
        }
    });
}

/// Lets the readers read for a moment: until one has compared, or for no time at all.
fn open(round: u64) {
    let compared = || processors().iter().map(|p| p.word.load(SeqCst)).sum::<u64>();
    let before = compared();
    GENERATION.fetch_add(1, SeqCst);
    if !round.is_multiple_of(4) {
        time::wait(40, || compared() > before);
    }
}

/// Stops them.
fn close() {
    GENERATION.fetch_add(1, SeqCst);
}

/// Frames with their marks, and a second root in scratch page 15.
fn prepare() {
    for frame in 0..8 {
        poke(scratch(frame), mark(frame as u64));
    }
    let root = cr3();
    for word in 0..512 {
        let value: u64 = peek(root + word * 8);
        poke(scratch(15) + word * 8, value);
    }
}

/// What the writer has written last, and whether it shall go on.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// A page loses its mapping while another writes there. What the entry said when it was taken away must tell whether
/// the page was written since the entry was made, and nothing may be written after the shootdown.
fn dirty(c: &mut Check) {
    prepare();
    with_all(c, |c, all| {
        smp::on_interrupt(Some(flush));
        WRITTEN.store(1, SeqCst);
        let writer: smp::Job = |_, _| {
            sti();
            loop {
                let next = WRITTEN.load(SeqCst);
                if next == END {
                    break;
                }
                if try_write(page(SHARED) + 8, next).is_ok() {
                    // Another processor may have counted, too: that is harmless.
                    _ = WRITTEN.compare_exchange(next, next + 1, SeqCst, SeqCst);
                }
            }
        };
        all.iter().for_each(|p| p.give(writer, 0));
        let (frame, mut written) = (scratch(0) + 8, 0);
        for round in 0..150u64 {
            let before: u64 = peek(frame);
            poke(entry(SHARED) as u64, scratch(0) | PW | A);
            for _ in 0..round % 11 {
                cpuid(0, 0);
            }
            if round % 3 == 0 {
                time::wait(30, || peek::<u64>(frame) != before);
            }
            // SAFETY: an entry of the window's table.
            let old = unsafe { AtomicU64::from_ptr(entry(SHARED)) }.swap(0, SeqCst);
            c.holds("all flush", shoot(0));
            let after: u64 = peek(frame);
            if after != before {
                written += 1;
                c.holds("a page that was written is dirty", old & D != 0);
            }
            c.equal("the entry", old & !D, scratch(0) | PW | A);
            (0..5).for_each(|_| _ = cpuid(0, 0));
            c.equal("nothing is written after the shootdown", peek(frame), after);
            c.equal("no processor writes the entry back", peek::<u64>(entry(SHARED) as u64), 0);
        }
        WRITTEN.store(END, SeqCst);
        all.iter().for_each(|p| c.holds("it ends", p.is_done(LONG)));
        c.holds("it was written, now and then", written > 0);
    });
}

/// Entries that are not present: counters, in a table that is in use.
const COUNTERS: usize = 480;
const STEPS: u64 = 400;

/// Adds to a counter, by one locked instruction or another.
fn count(counter: usize, kind: u64) {
    let at = entry(COUNTERS + counter);
    // SAFETY: entries of the window's table that map nothing.
    let word = unsafe { AtomicU64::from_ptr(at) };
    match kind {
        0 => _ = word.fetch_add(2, SeqCst),
        1 => _ = word.fetch_update(SeqCst, SeqCst, |old| Some(old + 2)),
        // SAFETY: as above.
        2 => unsafe { core::arch::asm!("lock add dword ptr [{}], 2", in(reg) at, options(nostack)) },
        3 => {
            let mut seen = word.load(SeqCst);
            loop {
                let done: u8;
                let (low, high) = (seen as u32, (seen >> 32) as u32);
                let (mut a, mut d) = (low, high);
                // SAFETY: as above; RBX is kept.
                unsafe {
                    core::arch::asm!(
                        "xchg rbx, {new:r}", "lock cmpxchg8b [rdi]", "sete r8b", "xchg rbx, {new:r}",
                        new = inout(reg) u64::from(low.wrapping_add(2)) => _, out("r8b") done,
                        in("rdi") at, in("ecx") high, inout("eax") a, inout("edx") d, options(nostack)
                    );
                }
                if done != 0 {
                    break;
                }
                seen = u64::from(d) << 32 | u64::from(a);
            }
        }
        // SAFETY: as above.
        _ => unsafe { core::arch::asm!("lock sub qword ptr [{}], -2", in(reg) at, options(nostack)) },
    }
}

/// All processors add to entries of one table, while it is used for translations: no addition is lost.
fn locked(c: &mut Check) {
    with_all(c, |c, all| {
        (0..4).for_each(|n| poke(entry(COUNTERS + n) as u64, 0u64));
        (0..8).for_each(|n| _ = paging::map(16 + n, scratch(n), PW));
        let adder: smp::Job = |_, i| {
            for step in 0..STEPS {
                count((step + i) as usize % 4, (step / 4 + i) % 5);
                if step % 16 == 0 {
                    // The table in all its states: just loaded, read through, written through.
                    set_cr3(cr3());
                }
                _ = try_read(page(16 + (step % 8) as usize));
            }
        };
        all.iter().zip(1..).for_each(|(p, i)| p.give(adder, i));
        adder(&all[0], 0);
        for p in all {
            c.holds("it is done", p.is_done(LONG));
        }
        let want = 2 * STEPS * (all.len() as u64 + 1);
        let got: u64 = (0..4).map(|n| peek::<u64>(entry(COUNTERS + n) as u64)).sum();
        c.equal("what all have added", got, want);
        (0..4).for_each(|n| poke(entry(COUNTERS + n) as u64, 0u64));
    });
}

/// Each has entries of its own in one table, clears their accessed and dirty bits and sees them come back.
fn own_entries(c: &mut Check) {
    with_all(c, |c, all| {
        for i in 0..=all.len() {
            _ = paging::map(32 + i, scratch(i), PW);
            _ = paging::map(64 + i, scratch(i), P);
        }
        let owner: smp::Job = |me, i| {
            let mut wrong = 0;
            let (both, read) = (32 + i as usize, 64 + i as usize);
            // SAFETY: entries of the window's table.
            let [own, own_read] = [both, read].map(|n| unsafe { AtomicU64::from_ptr(entry(n)) });
            for round in 0..STEPS {
                own.fetch_and(!(A | D), SeqCst);
                own_read.store(scratch(i as usize) | P, SeqCst);
                invlpg(page(both));
                invlpg(page(read));
                _ = try_read(page(both));
                let was_read = own.load(SeqCst) & (A | D);
                _ = try_write(page(both) + 8, round);
                let was_written = own.load(SeqCst) & (A | D);
                let value = try_read(page(read) + 8);
                let was_both = own_read.load(SeqCst) & (A | D);
                let same = (was_read, was_written, was_both, value) == (A, A | D, A, Ok(round));
                let entry = own.load(SeqCst) == scratch(i as usize) | PW | A | D;
                wrong += u64::from(!same) + (u64::from(!entry) << 32);
            }
            me.word.store(wrong, SeqCst);
        };
        all_do(c, all, owner);
        for p in all {
            c.equal("rounds with wrong bits", p.word.load(SeqCst), 0);
        }
    });
}
