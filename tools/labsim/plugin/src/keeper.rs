//! Keeps the emulator's threads of several processors in step ([`labsim::model::pace`]).
//!
//! It works while the machine is modelled. Before (`from=session`) the record is brought up to date here, if clocks follow it: accesses
//! are not seen then, and so those to the record's doorbell are not. Without that the counters stop between world switches.
//!
//! A thread that waits here waits in a callback of a block, where it holds no lock of QEMU's. What QEMU does while no processor runs
//! has to wait for it, and the processor that has asked for that does not move meanwhile: so a wait is short, and ends in any case.

use std::{
    ffi::{c_uint, c_void},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread::{sleep, yield_now},
    time::{Duration, Instant},
};

use labsim::model::pace::Pace;

use crate::{ffi, state::plugin, vcpu::Vcpu};

/// A processor looks where the others are after this many instructions.
pub const STRIDE: u64 = 512;
/// How long a thread waits before it looks again.
const SLICE: Duration = Duration::from_micros(50);
/// After this long it goes on, until it next looks.
const PATIENCE: Duration = Duration::from_millis(2);
/// Looks at the others with other threads let run in between, before it sleeps. Within a window of a few thousand cycles another
/// processor catches up sooner than a thread sleeps and wakes.
const YIELDS: u32 = 64;

/// The pace of the processors, and how well it was kept.
pub struct Keeper {
    pace: Pace,
    out_of_step: AtomicU64,
}

impl Keeper {
    /// For processors with numbers of QEMU's below `numbers`, which may be `window` modelled cycles apart.
    pub fn new(numbers: usize, window: u64) -> Keeper {
        Keeper { pace: Pace::new(numbers, window), out_of_step: AtomicU64::new(0) }
    }

    /// How often a processor went on although another one was too far behind.
    pub fn out_of_step(&self) -> u64 {
        self.out_of_step.load(Relaxed)
    }

    /// The time of the processor that QEMU calls `vcpu`, on its thread; it was charged `cycles` in all.
    pub fn time(&self, vcpu: usize, cycles: u64) -> u64 {
        self.pace.time(vcpu, cycles)
    }

    fn keep(&self, vcpu: usize, cycles: u64) {
        for _ in 0..YIELDS {
            if self.pace.reached(vcpu, cycles) {
                return;
            }
            yield_now();
        }
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if self.pace.reached(vcpu, cycles) {
                return;
            }
            sleep(SLICE);
        }
        self.out_of_step.fetch_add(1, Relaxed);
    }
}

/// A block begins, [`STRIDE`] instructions or more after the last look.
pub extern "C" fn stride(vcpu: c_uint, _data: *mut c_void) {
    // SAFETY: a callback of this processor.
    let state = unsafe { Vcpu::of(vcpu) };
    // SAFETY: this processor's words.
    unsafe { (*state.score()).since = 0 };
    let instructions = state.instructions();
    match &plugin().keeper {
        _ if !plugin().models() => state.processor.sync(instructions),
        Some(keeper) => keeper.keep(vcpu as usize, state.processor.cycles(instructions)),
        None => {}
    }
}

/// A processor has halted, or waits to be started.
pub extern "C" fn halts(_id: ffi::Id, vcpu: c_uint) {
    if let Some(keeper) = &plugin().keeper {
        keeper.pace.halts(vcpu as usize);
    }
}
