//! Processors that take turns: each wakes the next by an interrupt and halts. Where they share one of the machine's, every turn
//! is a decision of the hypervisor's scheduler and a switch between VCPUs: `cargo pal bench` reads in its statistics what these
//! take.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use super::smp::LONG;
use crate::check::{Case, Check, case};
use crate::machine::insn::sti_hlt;
use crate::machine::lapic;
use crate::machine::smp::{self, MOST, processors};

pub const CASES: &[Case] = &[case("turns.ring", ring)];

const V: u8 = 0x76;
/// Turns in all: they count, not how often each has one.
const TURNS: u64 = 4096;
const PATIENCE_MS: u64 = 50;

/// How many have been taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// The processors that take part.
static MEMBERS: AtomicUsize = AtomicUsize::new(0);
static IDS: [AtomicU32; MOST + 1] = [const { AtomicU32::new(0) }; MOST + 1];

fn ring(c: &mut Check) {
    // Those that came in time: where instructions are counted waiting is not cheap.
    let came = smp::start_within(PATIENCE_MS);
    if came == 0 {
        return c.skip("one processor");
    }
    let all = &processors()[..came];
    TAKEN.store(0, SeqCst);
    MEMBERS.store(all.len() + 1, SeqCst);
    IDS[0].store(lapic::id(), SeqCst);
    for (other, n) in all.iter().zip(1..) {
        IDS[n].store(other.id(), SeqCst);
    }
    for (other, n) in all.iter().zip(1..) {
        other.give(|_, n| take_turns(n), n);
    }
    take_turns(0);
    c.holds("all have seen the end", all.iter().all(|other| other.is_done(LONG)));
    c.equal("turns", TAKEN.load(SeqCst), TURNS);
    let mine = TURNS.div_ceil(all.len() as u64 + 1);
    for other in all {
        // One for each turn and one at the end, or fewer: a processor that sees its turn before it halts takes two at once later.
        let came = u64::from(other.count(V));
        c.holds(
            format_args!("interrupts of processor {}: {came}", other.id()),
            (1..=mine + 1).contains(&came),
        );
    }
    smp::stop();
}

/// Member `me` waits for its turns and passes each on. Interrupts are off but while it halts.
fn take_turns(me: u64) {
    let members = MEMBERS.load(SeqCst) as u64;
    let next = IDS[((me + 1) % members) as usize].load(SeqCst);
    loop {
        let taken = TAKEN.load(SeqCst);
        if taken < TURNS && taken % members != me {
            sti_hlt();
            continue;
        }
        if taken < TURNS {
            TAKEN.store(taken + 1, SeqCst);
        }
        lapic::send(V.into(), next);
        if taken >= TURNS {
            return;
        }
    }
}
