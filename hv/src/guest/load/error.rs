//! Why a guest could not be loaded, for the author of its configuration.

use alloc::string::String;
use core::fmt;

use crate::mem::guest_memory::NotRam;
use crate::vm::layout::MIB;

/// A file and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The file's name.
    pub file: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with a file. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The boot loader did not pass it.
    Missing,
    /// Not a kernel of a format that is supported.
    NotAKernel {
        /// What it seems to be.
        found: &'static str,
    },
    /// A kernel for another processor.
    WrongMachine {
        /// Which.
        machine: &'static str,
    },
    /// A kernel, but not for the protocol that was asked for.
    WrongProtocol {
        /// The protocol.
        protocol: &'static str,
        /// What the file lacks.
        lacks: &'static str,
    },
    /// The file ends too early.
    Truncated {
        /// What is cut off.
        what: &'static str,
        /// The size that the file needs at least.
        need: u64,
        /// Its size.
        have: u64,
    },
    /// The file contradicts itself or the protocol.
    Invalid {
        /// How.
        what: &'static str,
    },
    /// Fits no free RAM that the protocol allows.
    DoesNotFit {
        /// What does not fit.
        what: &'static str,
        /// Its size.
        size: u64,
        /// The lowest address at which it may lie.
        min: u64,
        /// The end of the range in which it may lie.
        max: u64,
        /// RAM of the guest.
        ram: u64,
    },
    /// Two things want the same memory.
    Overlap {
        /// What was to be placed.
        what: &'static str,
        /// Its first address.
        at: u64,
        /// Its size.
        size: u64,
        /// What lies there.
        other: &'static str,
    },
    /// The command line is longer than the kernel takes.
    CmdlineTooLong {
        /// Its size without the final zero.
        have: u64,
        /// The most.
        limit: u64,
    },
    /// A compressed kernel could not be expanded.
    Decompress {
        /// Why.
        what: &'static str,
    },
    /// The guest has no RAM where the layout says so.
    NotRam(u64),
}

impl LoadError {
    pub(super) fn not_ram(file: &str, e: NotRam) -> LoadError {
        LoadError { file: file.into(), problem: Problem::NotRam(e.gpa.0) }
    }
}

/// Rounded up to MiB.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(MIB)
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.escape_debug())?;
        match self.problem {
            Problem::Missing => {
                write!(f, "no such file among the boot modules; add it to the bundle or correct the name")
            }
            Problem::NotAKernel { found } => write!(
                f,
                "not a kernel but {found}; give a Linux bzImage, an ELF file with a PVH note, or a multiboot \
                 kernel"
            ),
            Problem::WrongMachine { machine } => {
                write!(f, "a kernel for {machine}; this machine runs x86 kernels only")
            }
            Problem::WrongProtocol { protocol, lacks } => {
                write!(f, "cannot be started by protocol {protocol}: {lacks}; try `protocol = \"auto\"`")
            }
            Problem::Truncated { what, need, have } => {
                write!(f, "truncated: {what} needs {need} bytes, the file has {have}; copy it again")
            }
            Problem::Invalid { what } => write!(f, "invalid: {what}; is the file damaged?"),
            Problem::DoesNotFit { what, size, min, max, ram } => write!(
                f,
                "{what} of {size} bytes ({} MiB) does not fit into free memory between {min:#x} and {max:#x}; \
                 the guest has {} MiB, raise `memory_mib` (pal: --mem) or use a smaller file",
                mib(size),
                ram / MIB
            ),
            Problem::Overlap { what, at, size, other } => {
                write!(
                    f,
                    "{what} at {at:#x} of {size} bytes overlaps {other}; the file must be linked elsewhere"
                )
            }
            Problem::CmdlineTooLong { have, limit } => {
                write!(
                    f,
                    "the command line has {have} characters, the kernel takes {limit}; shorten `cmdline`"
                )
            }
            Problem::Decompress { what } => write!(f, "cannot expand the compressed kernel: {what}"),
            Problem::NotRam(gpa) => write!(f, "guest memory is not accessible at {gpa:#x}"),
        }
    }
}
