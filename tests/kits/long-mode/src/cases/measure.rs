//! What interrupts between processors take: figures for `cargo pal bench --smp`, which reads the lines with its mark. All that
//! can fail is that one does not come. And what accesses to control registers take ([`control`]).

#[path = "measure_control.rs"]
mod control;

use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::smp::{LONG, with_all};
use crate::check::{Case, Check, case};
use crate::machine::insn::{cli, rdtsc, sti, wrmsr};
use crate::machine::smp::{self, Processor};
use crate::machine::{lapic, time, trap};
use crate::say;

pub const CASES: &[Case] = &[
    case("measure.ipi-xapic", xapic),
    case("measure.ipi-x2apic", x2apic),
    case("measure.control", control::measure),
    case("measure.cpuid", control::measure_cpuid),
];

const V: u8 = 0x74;
/// Samples of one round trip each, and those before them that do not count. On a busy machine now and then a processor waits for
/// its turn: the median leaves those out.
const SAMPLES: usize = 101;
const WARM_UP: usize = 3;

fn xapic(c: &mut Check) {
    with_all(c, |c, all| round_trips(c, "ipi-xapic", &all[0]));
}

fn x2apic(c: &mut Check) {
    if c.lacks_x2apic() {
        return;
    }
    fn enter() {
        lapic::set_x2(true);
        wrmsr(0x80f, 0x1ff);
    }
    with_all(c, |c, all| {
        all[0].give(|_, _| enter(), 0);
        c.holds("the other is in x2APIC mode", all[0].is_done(LONG));
        enter();
        round_trips(c, "ipi-x2apic", &all[0]);
    });
}

/// The processor that the other one answers.
static ASKER: AtomicU32 = AtomicU32::new(0);
static STOP: AtomicU32 = AtomicU32::new(0);

/// An interrupt to a processor that computes, whose handler sends one back.
fn round_trips(c: &mut Check, name: &str, other: &'static Processor) {
    ASKER.store(lapic::id(), SeqCst);
    STOP.store(0, SeqCst);
    other.word.store(0, SeqCst);
    smp::on_interrupt(Some(|number| {
        if number == V {
            lapic::send(V.into(), ASKER.load(SeqCst));
        }
    }));
    other.give(
        |me, _| {
            sti();
            // Without PAUSE, which might leave the guest.
            while STOP.load(SeqCst) == 0 {
                me.word.fetch_add(1, SeqCst);
            }
        },
        0,
    );
    c.holds("the other computes", time::wait(LONG, || other.word.load(SeqCst) != 0));
    let mut ticks = [0; SAMPLES];
    let patience = time::micros(1000 * LONG);
    sti();
    for sample in 0..WARM_UP + SAMPLES {
        // Both run at this moment, also where processors take turns.
        let turns = other.word.load(SeqCst);
        if !time::wait(LONG, || other.word.load(SeqCst) != turns) {
            cli();
            return c.fail(format_args!("the other has stopped"));
        }
        let before = trap::count(V);
        let start = rdtsc();
        lapic::send(V.into(), other.id());
        let took = loop {
            let took = rdtsc() - start;
            if trap::count(V) != before {
                break took;
            }
            if took > patience {
                cli();
                return c.fail(format_args!("no answer"));
            }
        };
        if let Some(counted) = sample.checked_sub(WARM_UP) {
            ticks[counted] = took;
        }
    }
    cli();
    STOP.store(1, SeqCst);
    c.holds("the other ends", other.is_done(LONG));
    ticks.sort_unstable();
    let (median, min, max) = (ticks[SAMPLES / 2], ticks[0], ticks[SAMPLES - 1]);
    let mean = ticks.iter().sum::<u64>() / SAMPLES as u64;
    let operations = WARM_UP + SAMPLES;
    say!(
        "@bench {{\"row\":\"{name}\",\"unit\":\"tsc\",\"median\":{median},\"min\":{min},\"max\":{max},\
         \"mean\":{mean},\"samples\":{SAMPLES},\"operations\":{operations}}}"
    );
}
