//! Work on page tables that processes do at the same time, each on a processor of its own and in an address space of its own: so
//! that they wait for each other in the hypervisor and hardly in the guest's kernel.

use std::{
    io, process, ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{sample::Samples, threads::pin};

const PAGE: usize = 4096;
/// What a process maps, touches and unmaps in one operation: 16 MiB.
const BYTES: usize = 16 << 20;

/// `PROCESSES` processes map 16 MiB of small pages, write to each, and unmap them, again and again. An operation is one such turn of
/// the first process, all others being at it too.
pub fn spaces<const PROCESSES: usize>(samples: &mut Samples, count: usize) -> io::Result<()> {
    pin(0)?;
    let stop = Shared::new()?;
    let children: Vec<_> = (1..PROCESSES).map(|number| child(number, &stop)).collect::<Result<_, _>>()?;
    let mut result = Ok(());
    samples.take(count, 1, || {
        if let Err(error) = turn() {
            result = Err(error);
        }
    });
    stop.flag().store(true, Ordering::Release);
    children.into_iter().try_for_each(wait)?;
    result
}

/// Starts a process that does the same until it is told to stop.
fn child(number: usize, stop: &Shared) -> io::Result<libc::pid_t> {
    // SAFETY: there is one thread; the child uses what is its own, and ends without returning.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let mut result = pin(number);
            while result.is_ok() && !stop.flag().load(Ordering::Acquire) {
                result = turn();
            }
            process::exit(i32::from(result.is_err()));
        }
        child => Ok(child),
    }
}

fn wait(child: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: the call writes one word.
    match unsafe { libc::waitpid(child, &mut status, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ if status != 0 => Err(io::Error::other(format!("a process ended with status {status:#x}"))),
        _ => Ok(()),
    }
}

/// Maps, touches, unmaps.
fn turn() -> io::Result<()> {
    let at = map(BYTES, libc::MAP_PRIVATE)?;
    for page in 0..BYTES / PAGE {
        // SAFETY: within the mapping, which nothing else knows of.
        unsafe { at.add(page * PAGE).write_volatile(1) };
    }
    // SAFETY: the whole mapping, which is not used any more.
    match unsafe { libc::munmap(at.cast(), BYTES) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// New memory of the kernel's, in small pages.
fn map(bytes: usize, kind: libc::c_int) -> io::Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where the kernel likes it.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, kind | libc::MAP_ANONYMOUS, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping that was just made. Kernels without huge pages refuse.
    unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
    Ok(at.cast())
}

/// A page that the processes share.
struct Shared(*mut u8);

impl Shared {
    fn new() -> io::Result<Self> {
        map(PAGE, libc::MAP_SHARED).map(Shared)
    }

    fn flag(&self) -> &AtomicBool {
        // SAFETY: zeroed memory that stays mapped, is aligned, and is used by this type only.
        unsafe { AtomicBool::from_ptr(self.0.cast()) }
    }
}
