//! Several processors: how they start, what they send each other, and that each keeps its own state (AMD APM 2, 15.27.8 and
//! chapter 16; Intel SDM 3A, chapters 9 and 11).

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::lapic::{self, reg};
use crate::machine::smp::{self, Processor, processors};
use crate::machine::{time, trap};
use crate::say;

pub const CASES: &[Case] = &[
    case("smp.start", start),
    case("smp.init", init),
    case("smp.ipi-xapic", ipi_xapic),
    case("smp.ipi-x2apic", ipi_x2apic),
    case("smp.nmi", nmi),
    case("smp.storm", storm),
    case("smp.tsc", tsc),
    case("smp.state", state),
];

const V: u8 = 0x73;
const LOGICAL: u64 = 1 << 11;
const LOWEST: u64 = 1 << 8;
const ALL: u64 = 2 << 18;
const OTHERS: u64 = 3 << 18;
/// Patience in milliseconds, for machines with much else to do.
pub const LONG: u64 = 60_000;

/// Runs a case on all processors, if there are several.
pub fn with_all(c: &mut Check, body: impl FnOnce(&mut Check, &'static [Processor])) {
    if smp::start() == 0 {
        return c.skip("one processor");
    }
    body(c, processors());
    smp::on_interrupt(None);
    smp::stop();
}

/// The same job for each; all are done with it.
pub fn all_do(c: &mut Check, all: &'static [Processor], job: smp::Job) {
    all.iter().enumerate().for_each(|(i, p)| p.give(job, i as u64));
    for p in all {
        c.holds(format_args!("processor {} is done", p.id()), p.is_done(LONG));
    }
}

fn start(c: &mut Check) {
    with_all(c, |c, all| {
        say!("kit: {} processors", all.len() + 1);
        let me = lapic::id();
        for (i, p) in all.iter().enumerate() {
            c.holds(
                "it has an id of its own",
                p.id() != me && all[..i].iter().all(|other| other.id() != p.id()),
            );
        }
        // A second start-up IPI does nothing to one that runs.
        for p in all {
            lapic::send(0x4600 | smp::START_PAGES[0] >> 12, p.id());
        }
        all_do(c, all, |me, argument| me.word.store(argument + 1, SeqCst));
        for (i, p) in all.iter().enumerate() {
            c.equal("its job", p.word.load(SeqCst), i as u64 + 1);
        }
        c.equal("none started twice", processors().len(), all.len());
    });
}

static STAYS: AtomicU64 = AtomicU64::new(0);

/// What INIT leaves as it was: an XMM register, an MSR that only system calls use.
fn staying() -> u64 {
    let xmm: u64;
    // SAFETY: reads registers that nothing else of the kit uses.
    unsafe { asm!("movq {}, xmm15", out(reg) xmm, options(nostack)) };
    xmm ^ rdmsr(0xc000_0082).rotate_left(7)
}

fn init(c: &mut Check) {
    with_all(c, |c, all| {
        let id = all[0].id();
        all[0].give(
            |_, _| {
                // SAFETY: as above.
                unsafe { asm!("movq xmm15, {}", in(reg) 0x1234_5678_9abc_u64, options(nostack)) };
                wrmsr(0xc000_0082, 0x7654_3210);
                set_cr2(0x1234_5000);
                set_dr0(0x5678);
                STAYS.store(staying(), SeqCst);
                // INIT comes while it loops.
                loop {
                    core::hint::spin_loop();
                }
            },
            0,
        );
        c.holds("it is there", time::wait(LONG, || STAYS.load(SeqCst) != 0));
        let want = STAYS.load(SeqCst);
        // To another page, so that the vector is seen to be used.
        c.holds("it starts again", smp::start_one(id, smp::START_PAGES[1]));
        let Some(p) = processors().get(all.len()) else {
            return;
        };
        c.equal("its id", p.id(), id);
        let left = p.left();
        // CD and NW are unchanged by INIT, and set by other manuals.
        c.equal("CR0", left.cr0 & !0x6000_0000, 0x10);
        c.equal("CR4, CR3", (left.cr4, left.cr3), (0, 0));
        c.equal("EFER", left.efer, 0);
        c.equal("EDX: family, model, stepping", left.edx as u32, cpuid(1, 0)[0]);
        STAYS.store(0, SeqCst);
        p.give(
            |me, _| {
                STAYS.store(staying(), SeqCst);
                me.word.store(cr2() | dr0() | dr7() << 16, SeqCst);
            },
            0,
        );
        c.holds("it works", p.is_done(LONG));
        c.equal("XMM15 and LSTAR are as before INIT", STAYS.load(SeqCst), want);
        c.equal("CR2, DR0, DR7", p.word.load(SeqCst), 0x400 << 16);
        STAYS.store(0, SeqCst);
    });
}

/// Sends a command; how often it came to this processor, then to each other.
fn sent(c: &mut Check, what: &str, command: u64, destination: u32, here: u32, there: impl Fn(usize) -> u32) {
    let all = processors();
    let before = trap::count(V);
    all.iter().for_each(Processor::forget);
    lapic::send(command | u64::from(V), destination);
    let arrived = |i: usize| all[i].count(V);
    time::wait(LONG, || (0..all.len()).all(|i| arrived(i) >= there(i)));
    window();
    c.equal(format_args!("{what}: to itself"), trap::count(V) - before, here);
    for i in 0..all.len() {
        c.equal(format_args!("{what}: to the {i}th other"), arrived(i), there(i));
    }
}

/// Sends with lowest priority: exactly one of these gets it, with these counts of others' being 0.
fn sent_to_one(c: &mut Check, what: &str, command: u64, destination: u32) {
    let all = processors();
    all.iter().for_each(Processor::forget);
    let before = trap::count(V);
    lapic::send(command | LOWEST | u64::from(V), destination);
    let total = || trap::count(V) - before + all.iter().map(|p| p.count(V)).sum::<u32>();
    time::wait(LONG, || {
        window();
        total() > 0
    });
    time::wait(5, || false);
    c.equal(what, total(), 1);
}

fn ipi_xapic(c: &mut Check) {
    with_all(c, |c, all| {
        // Logical ids: bit i + 1 for the i-th other, as far as there are bits.
        all_do(c, all, |_, i| {
            lapic::write(reg::DFR, u32::MAX);
            lapic::write(reg::LDR, 1u32.checked_shl(i as u32 + 25).unwrap_or(0));
        });
        lapic::write(reg::DFR, u32::MAX);
        lapic::write(reg::LDR, 1 << 24);
        // All bits are a broadcast, to those without a bit, too.
        let flat = |i: usize, mask: u32| u32::from(mask == 0xff || i < 7 && mask >> (i + 1) & 1 != 0);
        for (target, p) in all.iter().enumerate() {
            sent(c, "physical", 0, p.id(), 0, |i| u32::from(i == target));
        }
        sent(c, "to itself", lapic::TO_SELF, 0, 1, |_| 0);
        sent(c, "to all", ALL, 0, 1, |_| 1);
        sent(c, "to all others", OTHERS, 0, 0, |_| 1);
        sent(c, "physical broadcast", 0, 0xff, 1, |_| 1);
        sent(c, "to no processor", 0, 0x77, 0, |_| 0);
        for mask in [0x01, 0x02, 0x03, 0x06, 0xfe, 0xff, 0] {
            sent(c, "flat logical", LOGICAL, mask, mask & 1, |i| flat(i, mask));
        }
        sent_to_one(c, "lowest priority among all", LOGICAL, 0xff);
        sent_to_one(c, "lowest priority among some", LOGICAL, 0x03);
        // Clusters of four.
        all_do(c, all, |_, i| {
            let i = i as u32 + 1;
            lapic::write(reg::DFR, 0x0fff_ffff);
            lapic::write(reg::LDR, (i / 4) << 28 | 1 << (i % 4 + 24));
        });
        lapic::write(reg::DFR, 0x0fff_ffff);
        lapic::write(reg::LDR, 0x01 << 24);
        let member = |i: usize, mask: u32| {
            u32::from((i as u32 + 1) / 4 == mask >> 4 && mask >> ((i + 1) % 4) & 1 != 0)
        };
        for mask in [0x01, 0x03, 0x0e, 0x0f, 0x11, 0x1f, 0x23] {
            sent(c, "cluster logical", LOGICAL, mask, u32::from(mask >> 4 == 0) & mask, |i| member(i, mask));
        }
        lapic::write(reg::DFR, u32::MAX);
        lapic::write(reg::LDR, 0);
    });
}

fn ipi_x2apic(c: &mut Check) {
    if c.lacks_x2apic() {
        return;
    }
    with_all(c, |c, all| {
        all_do(c, all, |me, _| {
            lapic::set_x2(true);
            wrmsr(0x80f, 0x1ff);
            me.word.store(rdmsr(0x80d), SeqCst);
        });
        lapic::set_x2(true);
        wrmsr(0x80f, 0x1ff);
        for (target, p) in all.iter().enumerate() {
            c.equal("LDR", p.word.load(SeqCst) as u32, p.id() >> 4 << 16 | 1 << (p.id() & 15));
            sent(c, "physical", 0, p.id(), 0, |i| u32::from(i == target));
            let ldr = p.word.load(SeqCst) as u32;
            sent(c, "logical", LOGICAL, ldr, 0, |i| u32::from(i == target));
        }
        sent(c, "to all", ALL, 0, 1, |_| 1);
        sent(c, "to all others", OTHERS, 0, 0, |_| 1);
        sent(c, "physical broadcast", 0, u32::MAX, 1, |_| 1);
        sent(c, "0xff is an id like others", 0, 0xff, 0, |_| 0);
        let members = |ids: u32| move |p: &Processor| u32::from(p.id() < 16 && ids >> p.id() & 1 != 0);
        for ids in [0xffff, 0x0003, 0x000a] {
            sent(c, "logical, several", LOGICAL, ids, ids >> lapic::id() & 1, |i| members(ids)(&all[i]));
        }
        sent_to_one(c, "lowest priority among all", LOGICAL, 0xffff);
    });
}

fn nmi(c: &mut Check) {
    with_all(c, |c, all| {
        trap::hook(trap::vector::NMI, trap::only_record);
        let counts = |n: u32| all.iter().all(|p| p.count(2) == n);
        for round in 1..=20 {
            lapic::send(lapic::NMI | OTHERS, 0);
            c.holds("NMIs wake those that halt", time::wait(LONG, || counts(round)));
        }
        // Once more with interrupts off, and while it computes.
        for (sleep, word) in [(0u64, 100u64), (1, 200)] {
            // One NMI too many may have been sent before, and be on its way still: it comes while this job runs, and not into
            // the next one, which would be over before it is looked at.
            all_do(c, all, |_, _| {
                for _ in 0..1000 {
                    cpuid(0, 0);
                }
            });
            all.iter().for_each(|p| {
                p.forget();
                p.word.store(0, SeqCst);
                p.give(
                    |me, sleep| {
                        cli();
                        me.word.store(1, SeqCst);
                        while me.count(2) == 0 {
                            if sleep != 0 {
                                // SAFETY: an NMI ends it.
                                unsafe { asm!("hlt", options(nostack)) };
                            }
                        }
                        me.word.store(100 * (sleep + 1), SeqCst);
                    },
                    sleep,
                );
            });
            let ready = time::wait(LONG, || all.iter().all(|p| p.word.load(SeqCst) == 1));
            c.holds("all are there", ready);
            // Between its last look and HLT an NMI would be missed: it comes until it is seen.
            for p in all {
                let seen = time::wait(LONG, || {
                    lapic::send(lapic::NMI, p.id());
                    time::wait(20, || p.word.load(SeqCst) == word)
                });
                c.holds("an NMI comes with interrupts off", seen && p.is_done(LONG));
            }
        }
        c.equal("none came here", trap::count(trap::vector::NMI), 0);
    });
}

static RECEIVED: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];
/// Messages of all together.
const STORM: u32 = 900;

/// Each sends to the next one and waits until that has it; vectors differ by sender, so that none can be lost in another.
fn storm(c: &mut Check) {
    with_all(c, |c, all| {
        RECEIVED.iter().for_each(|count| count.store(0, SeqCst));
        smp::on_interrupt(Some(|number| _ = RECEIVED[usize::from(number)].fetch_add(1, SeqCst)));
        all_do(c, all, |me, i| {
            let all = processors();
            for round in 0..STORM / all.len() as u32 {
                let next = &all[(i as usize + 1 + round as usize % all.len()) % all.len()];
                let vector = 0x80 + i as u8;
                let before = RECEIVED[usize::from(vector)].load(SeqCst);
                sti();
                lapic::send(vector.into(), next.id());
                while RECEIVED[usize::from(vector)].load(SeqCst) == before {
                    if round & 1 == 0 {
                        core::hint::spin_loop();
                    } else {
                        cpuid(0, 0);
                    }
                }
            }
            me.word.store(1, SeqCst);
        });
        for i in 0..all.len() {
            c.equal("each came once", RECEIVED[0x80 + i].load(SeqCst), STORM / all.len() as u32);
        }
    });
}

static NEWEST: AtomicU64 = AtomicU64::new(0);
static BACKWARDS: AtomicU64 = AtomicU64::new(0);

/// No processor reads a time before one that another has written down: a later reading is a larger one, on any processor.
fn tsc(c: &mut Check) {
    with_all(c, |c, all| {
        NEWEST.store(0, SeqCst);
        BACKWARDS.store(0, SeqCst);
        all_do(c, all, |_, _| {
            for round in 0..3000 {
                let newest = NEWEST.load(SeqCst);
                let now = rdtsc();
                if now < newest {
                    BACKWARDS.fetch_max(newest - now, SeqCst);
                }
                NEWEST.fetch_max(now, SeqCst);
                if round % 64 == 0 {
                    cpuid(0, 0);
                }
            }
        });
        c.equal("ticks that time went back", BACKWARDS.load(SeqCst), 0);
    });
}

/// Each fills its registers with numbers of its own, and finds them again after exits, sleep, and whatever ran between.
fn state(c: &mut Check) {
    with_all(c, |c, all| {
        all_do(c, all, |me, i| {
            let mut wrong = 0u64;
            for round in 0..60u64 {
                let mine = (i + 1) << 40 | round << 8 | 0x55;
                // SAFETY: registers that nothing else of the kit uses; GS and FS bases are not.
                unsafe {
                    asm!("movq xmm3, {0}", "movq xmm15, {0}", "fninit", in(reg) mine, options(nostack))
                };
                let bases = [0xc000_0100u32, 0xc000_0101, 0xc000_0102, 0xc000_0082];
                bases.iter().zip(0..).for_each(|(&msr, n)| wrmsr(msr, mine + n));
                set_dr0(mine);
                set_dr3(mine + 3);
                set_cr2(mine + 5);
                set_cr8(i & 3);
                for _ in 0..4 {
                    cpuid(0, 0);
                    if round & 3 == 0 {
                        // A timer's interrupt ends the sleep, the class of which no priority holds back.
                        lapic::write(reg::LVT_TIMER, V.into());
                        lapic::write(reg::INITIAL_COUNT, 20_000);
                        sti_hlt();
                    }
                }
                let (low, high): (u64, u64);
                // SAFETY: as above.
                unsafe {
                    asm!("movq {0}, xmm3", "movq {1}, xmm15", out(reg) low, out(reg) high, options(nostack))
                };
                let same = [
                    low == mine && high == mine,
                    bases.iter().zip(0..).all(|(&msr, n)| rdmsr(msr) == mine + n),
                    dr0() == mine && dr3() == mine + 3,
                    cr2() == mine + 5,
                    cr8() == i & 3,
                ];
                same.iter().zip(0..).for_each(|(&same, bit)| wrong |= u64::from(!same) << bit);
                set_cr8(0);
            }
            me.word.store(wrong, SeqCst);
        });
        for p in all {
            c.equal("XMM, bases, debug registers, CR2, CR8 that were another's", p.word.load(SeqCst), 0);
        }
    });
}
