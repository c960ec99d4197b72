//! Loaders: from files in boot modules to a guest that is ready to run.
//!
//! [`load`] recognizes the kernel's format, checks it, copies it, its initrd and its modules to guest memory
//! as the boot protocol demands, and returns the registers that the first VCPU starts with. Called by the
//! VM's construction and again at each reset of the guest, so a loader writes everything it relies on, zeros
//! included. File bytes are untrusted: they can lead to a [`LoadError`] and to nothing else.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::bundle::Files;
use super::config::{Protocol, VmConfig};
use crate::arch::addr::Gpa;
use crate::arch::state::ArchState;
use crate::mem::guest_memory::GuestMemory;
use crate::vm::layout::MemoryLayout;

mod bios;
mod bzimage;
mod elf;
mod error;
mod expand;
mod identify;
mod multiboot1;
mod place;
mod pvh;
mod start;

pub use error::{LoadError, Problem};
pub use place::Placed;

/// A file by name, for messages, and its contents.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// The name in the configuration.
    pub name: &'a str,
    /// The contents.
    pub bytes: &'a [u8],
}

/// A module for the guest's kernel.
#[derive(Clone, Copy, Debug)]
pub struct Module<'a> {
    /// The file.
    pub file: File<'a>,
    /// Its command line.
    pub cmdline: &'a str,
}

/// What to load.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The kernel.
    pub kernel: File<'a>,
    /// The initial RAM disk.
    pub initrd: Option<File<'a>>,
    /// Modules in order (PVH and multiboot).
    pub modules: Vec<Module<'a>>,
    /// The kernel's command line.
    pub cmdline: &'a str,
    /// The protocol, or [`Protocol::Auto`].
    pub protocol: Protocol,
    /// The guest's RAM.
    pub layout: MemoryLayout,
    /// Where the ACPI root pointer is.
    pub rsdp: Gpa,
}

impl<'a> Request<'a> {
    /// Looks up the files that a configuration names.
    pub fn from_config(
        vm: &'a VmConfig,
        files: &'a impl Files,
        layout: MemoryLayout,
        rsdp: Gpa,
    ) -> Result<Self, LoadError> {
        let file = |name: &'a str| match files.get(name) {
            Some(bytes) => Ok(File { name, bytes }),
            None => Err(LoadError { file: name.to_string(), problem: Problem::Missing }),
        };
        let modules = vm.modules.iter().map(|m| Ok(Module { file: file(&m.file)?, cmdline: &m.cmdline }));
        Ok(Request {
            kernel: file(&vm.kernel)?,
            initrd: vm.initrd.as_deref().map(file).transpose()?,
            modules: modules.collect::<Result<_, _>>()?,
            cmdline: &vm.cmdline,
            protocol: vm.protocol,
            layout,
            rsdp,
        })
    }
}

/// A loaded guest.
#[derive(Clone, Debug)]
pub struct BootState {
    /// The registers of the first VCPU.
    pub arch: ArchState,
    /// The protocol that was used, never [`Protocol::Auto`].
    pub protocol: Protocol,
    /// What lies where, for the log, in the order of placement.
    pub placed: Vec<Placed>,
}

/// Loads a guest into memory that holds `request.layout`'s RAM.
pub fn load(memory: &impl GuestMemory, request: &Request<'_>) -> Result<BootState, LoadError> {
    identify::check_machine(&request.kernel)?;
    let protocol = match request.protocol {
        Protocol::Auto => identify::protocol(&request.kernel)?,
        asked => asked,
    };
    bios::write_data_area(memory).map_err(|e| LoadError::not_ram(request.kernel.name, e))?;
    match protocol {
        Protocol::Pvh => pvh::load(memory, request),
        Protocol::Multiboot1 => multiboot1::load(memory, request),
        Protocol::Linux32 => bzimage::load(memory, request, bzimage::Entry::Bits32),
        Protocol::Auto | Protocol::Linux64 => bzimage::load(memory, request, bzimage::Entry::Bits64),
    }
}

#[cfg(any(test, feature = "testing"))]
mod fuzz;
#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;

#[cfg(test)]
mod tests;
