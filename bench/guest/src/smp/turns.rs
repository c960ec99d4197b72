//! Threads that wake each other.

use std::{
    fs, io,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    thread,
};

use crate::{
    sample::{Samples, now},
    threads::{Bell, pin, switches},
};

/// Ticks after which the processor of a thread that has gone to sleep has halted.
const SETTLE: u64 = 500_000;

/// From the system call that wakes a thread on a halted processor to what the thread writes first.
pub fn wake(samples: &mut Samples, count: usize) -> io::Result<()> {
    pin(0)?;
    let (bell, answer) = (Bell::default(), AtomicU32::new(0));
    let (sleeper, stop) = (AtomicI32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let pinned = pin(1);
            // SAFETY: has no effect.
            sleeper.store(unsafe { libc::gettid() }, Ordering::Release);
            let mut seen = 0;
            loop {
                seen = bell.wait(seen);
                if stop.load(Ordering::Acquire) {
                    return pinned;
                }
                answer.store(seen, Ordering::Release);
            }
        });
        samples.take_prepared(
            count,
            1,
            || {
                while !is_asleep(sleeper.load(Ordering::Acquire)) {}
                let asleep = now();
                while now() - asleep < SETTLE {}
            },
            |()| {
                let call = bell.ring();
                // Without PAUSE, which might leave the guest.
                while answer.load(Ordering::Acquire) != call {}
            },
        );
        stop.store(true, Ordering::Release);
        bell.ring();
        thread.join().expect("it does not panic")
    })
}

/// Whether a thread of this process sleeps (proc(5): the field after the name in parentheses).
fn is_asleep(thread: libc::pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
}

/// Two threads, on processor 0 and processor `OTHER`, take turns: each wakes the other and goes to sleep. An operation
/// is one turn.
pub fn turns<const OTHER: usize>(samples: &mut Samples, count: usize) -> io::Result<()> {
    pin(0)?;
    let (bell, stop) = (Bell::default(), AtomicBool::new(false));
    let before = switches()?;
    let theirs = thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(OTHER)?;
            let before = switches()?;
            let mut seen = 0;
            loop {
                bell.wait(seen);
                if stop.load(Ordering::Acquire) {
                    return Ok::<_, io::Error>(switches()? - before);
                }
                seen = bell.ring();
            }
        });
        samples.take(count, 2, || {
            let ours = bell.ring();
            bell.wait(ours);
        });
        stop.store(true, Ordering::Release);
        bell.ring();
        other.join().expect("it does not panic")
    })?;
    // A thread that is woken before it sleeps does not sleep; then the other one has.
    let (switches, rounds) = (switches()? - before + theirs, samples.summary().operations as i64 / 2);
    if switches < rounds / 2 {
        return Err(io::Error::other(format!("{switches} times a thread slept, in {rounds} rounds")));
    }
    Ok(())
}
