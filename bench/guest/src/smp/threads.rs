//! What the rows have in common: threads that stay on their processors, and a bell that wakes sleeping ones.

use std::{
    io, mem, ptr,
    sync::atomic::{AtomicU32, Ordering},
};

/// Keeps the calling thread on a processor, at which it is when this returns.
pub fn pin(processor: usize) -> io::Result<()> {
    // SAFETY: all zeroes is the empty set of this C structure; the call reads as much as it is.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Resources that the calling thread (`RUSAGE_THREAD`) or the whole process (`RUSAGE_SELF`) has used.
pub fn usage(who: libc::c_int) -> io::Result<libc::rusage> {
    // SAFETY: all zeroes is a value of this C structure, and the call fills it.
    unsafe {
        let mut usage = mem::zeroed();
        if libc::getrusage(who, &mut usage) == 0 { Ok(usage) } else { Err(io::Error::last_os_error()) }
    }
}

/// How often the calling thread has left its processor to another one, or to the idle task.
pub fn switches() -> io::Result<i64> {
    usage(libc::RUSAGE_THREAD).map(|usage| usage.ru_nvcsw + usage.ru_nivcsw)
}

/// A number that threads sleep on until it changes (futex(2)).
#[derive(Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// Counts up, wakes all sleeping threads, and returns the new number.
    pub fn ring(&self) -> u32 {
        let number = self.0.fetch_add(1, Ordering::AcqRel) + 1;
        // SAFETY: the address is that of a word that lives; waking changes no memory.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                i32::MAX,
            );
        }
        number
    }

    /// The number.
    pub fn number(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Sleeps while the number is `seen`; returns the new one.
    pub fn wait(&self, seen: u32) -> u32 {
        loop {
            let number = self.number();
            if number != seen {
                return number;
            }
            // SAFETY: the address is that of a word that lives; there is no time limit. Whatever woke the thread, the
            // loop looks again.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    seen,
                    ptr::null::<libc::timespec>(),
                );
            }
        }
    }
}
