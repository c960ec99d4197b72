//! The operations: one function per row. Each prepares what it needs, takes samples and leaves nothing behind, so that
//! any choice of rows in any order gives the same figures.

mod access;
mod memory;
mod process;
mod trap;

use std::io;

use crate::sample::Samples;
pub use access::Access;

/// One row of the table.
pub struct Row {
    /// The name, for the command line and the records.
    pub name: &'static str,
    /// Takes its samples.
    pub measure: fn(&mut Samples) -> io::Result<()>,
}

/// All rows, in the order of the table.
pub const ROWS: [Row; 12] = [
    Row { name: "cpuid", measure: trap::cpuid },
    Row { name: "pci-read", measure: trap::pci_read },
    Row { name: "fork-wait", measure: process::fork_wait },
    Row { name: "fork-exec", measure: process::fork_exec },
    Row { name: "mmap-touch-munmap", measure: memory::mmap_touch_munmap },
    Row { name: "first-touch", measure: memory::first_touch },
    Row { name: "touch-again", measure: memory::touch_again },
    Row { name: "huge-touch", measure: memory::huge_touch },
    Row { name: "mprotect-1", measure: memory::mprotect_one },
    Row { name: "mprotect-256", measure: memory::mprotect_many },
    Row { name: "fork-cow", measure: memory::fork_and_write },
    Row { name: "ping-pong", measure: process::ping_pong },
];

/// Turns a system call's -1 into an error.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A result inside a timed batch: it cannot be returned from there, and figures of failed calls would be wrong.
#[track_caller]
fn must<T>(result: io::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
