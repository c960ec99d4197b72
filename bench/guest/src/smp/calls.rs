//! Interrupts between processors that both run.

use std::{
    fs, hint, io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use crate::{sample::Samples, threads::pin};

/// The command by which a process says that it will use the other one (linux/membarrier.h).
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
/// Interrupts all other processors that run a thread of this process, and waits until each has been there.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: this system call touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Membarrier with one other thread, which computes on its processor: one interrupt there, and the answer through memory.
pub fn call(samples: &mut Samples, count: usize) -> io::Result<()> {
    membarrier(REGISTER_PRIVATE_EXPEDITED)?;
    pin(0)?;
    let before = called(1)?;
    let (turns, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let result = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let pinned = pin(1);
            // A thread that computes, without PAUSE, which might leave the guest.
            while !stop.load(Ordering::Relaxed) {
                turns.fetch_add(1, Ordering::Relaxed);
            }
            pinned
        });
        let computes = || {
            let seen = turns.load(Ordering::Relaxed);
            while turns.load(Ordering::Relaxed) == seen {
                hint::spin_loop();
            }
        };
        let mut result = Ok(());
        samples.take_prepared(count, 1, computes, |()| {
            if let Err(error) = membarrier(PRIVATE_EXPEDITED) {
                result = Err(error);
            }
        });
        stop.store(true, Ordering::Relaxed);
        other.join().expect("it does not panic").and(result)
    });
    result?;
    let (calls, operations) = (called(1)? - before, samples.summary().operations);
    // Where the other thread was not running for a moment, there was no running thread to interrupt.
    if calls < operations / 2 {
        return Err(io::Error::other(format!("{calls} interrupts came of {operations}")));
    }
    Ok(())
}

/// How often a processor was interrupted by another that had it call a function.
fn called(processor: usize) -> io::Result<u64> {
    let text = fs::read_to_string("/proc/interrupts")?;
    let mut line = text.lines().filter_map(|line| line.trim_start().strip_prefix("CAL:"));
    let count = line.next().and_then(|counts| counts.split_whitespace().nth(processor)?.parse().ok());
    count.ok_or_else(|| io::Error::other("/proc/interrupts has no count of function calls"))
}
