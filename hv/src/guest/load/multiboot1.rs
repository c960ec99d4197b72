//! The Multiboot specification, version 0.6.96, as QEMU and GRUB follow it.
//!
//! Kernels take the first word of a command line for a name. The kernel's own line therefore starts with its
//! file's name, as with QEMU; a module's line is handed over as it is configured, and is the file's name if
//! there is none.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::super::config::Protocol;
use super::elf::{self, Elf};
use super::place::Placer;
use super::pvh::write_text;
use super::{BootState, File, LoadError, Problem, Request, bios, start};
use crate::arch::addr::{Gpa, PAGE_SIZE};
use crate::arch::state::Gpr;
use crate::mem::guest_memory::GuestMemory;
use crate::vm::layout::{EBDA, HIGH_RAM_BASE, MIB, MapEntry, MapKind};

const HEADER_MAGIC: u32 = 0x1bad_b002;
const BOOT_MAGIC: u64 = 0x2bad_b002;
/// The header lies within this many bytes of the file.
const SEARCH: usize = 8192;

/// Header flags: bits 0 to 15 are demands, a loader refuses those that it does not know.
mod header_flag {
    pub const PAGE_ALIGN: u32 = 1 << 0;
    pub const MEMORY_INFO: u32 = 1 << 1;
    /// A wish; without a display there is no mode to report.
    pub const VIDEO_MODE: u32 = 1 << 2;
    pub const ADDRESS_FIELDS: u32 = 1 << 16;
    pub const KNOWN_DEMANDS: u32 = PAGE_ALIGN | MEMORY_INFO | VIDEO_MODE;
    pub const DEMANDS: u32 = 0xffff;
}

/// Information flags.
mod info_flag {
    pub const MEMORY: u32 = 1 << 0;
    pub const CMDLINE: u32 = 1 << 2;
    pub const MODULES: u32 = 1 << 3;
    pub const MAP: u32 = 1 << 6;
    pub const LOADER_NAME: u32 = 1 << 9;
}

/// A header that was found, by its offset and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    offset: usize,
    flags: u32,
}

/// Looks for a header with a valid checksum.
pub fn find_header(bytes: &[u8]) -> Option<Header> {
    let searched = &bytes[..bytes.len().min(SEARCH)];
    (0..searched.len()).step_by(4).find_map(|offset| {
        let [magic, flags, checksum] = words::<3>(searched, offset)?;
        let valid = magic == HEADER_MAGIC && magic.wrapping_add(flags).wrapping_add(checksum) == 0;
        valid.then_some(Header { offset, flags })
    })
}

/// Loads the request's kernel.
pub fn load(memory: &impl GuestMemory, request: &Request<'_>) -> Result<BootState, LoadError> {
    let kernel = &request.kernel;
    let wrong = |lacks| LoadError {
        file: kernel.name.to_string(),
        problem: Problem::WrongProtocol { protocol: "multiboot1", lacks },
    };
    let header = find_header(kernel.bytes).ok_or(wrong("it has no multiboot header in its first 8 KiB"))?;
    if header.flags & header_flag::DEMANDS & !header_flag::KNOWN_DEMANDS != 0 {
        return Err(wrong("its header demands features that do not exist in Multiboot 0.6.96"));
    }
    bios::write_vectors(memory).map_err(|e| LoadError::not_ram(kernel.name, e))?;
    let mut p = Placer::new(memory, request.layout);
    let (entry, end) = if header.flags & header_flag::ADDRESS_FIELDS != 0 {
        place_by_address_fields(&mut p, kernel, header)?
    } else if elf::is_elf(kernel.bytes) {
        let elf = Elf::parse(kernel)?;
        let end = elf.place(&mut p, kernel)?;
        (elf.physical_entry(), end)
    } else {
        return Err(wrong("it is neither an ELF file nor gives load addresses in its header"));
    };
    let entry = u32::try_from(entry).map_err(|_| wrong("its entry point lies above 4 GiB"))?;
    let info = write_info(&mut p, request, end)?;
    let gdt = start::write_gdt(&mut p, kernel, false)?;
    let mut arch = start::protected_mode(entry, gdt);
    arch.gprs[Gpr::Rax as usize] = BOOT_MAGIC;
    arch.gprs[Gpr::Rbx as usize] = info;
    Ok(BootState { arch, protocol: Protocol::Multiboot1, placed: p.finish() })
}

/// Loads a kernel whose header gives the addresses (the "a.out kludge"); returns entry and end.
fn place_by_address_fields<M: GuestMemory>(
    p: &mut Placer<'_, M>,
    kernel: &File<'_>,
    header: Header,
) -> Result<(u64, u64), LoadError> {
    let error = |problem| LoadError { file: kernel.name.to_string(), problem };
    let have = kernel.bytes.len() as u64;
    let need = header.offset as u64 + 32;
    let fields = words::<5>(kernel.bytes, header.offset + 12);
    let fields = fields.ok_or(error(Problem::Truncated { what: "the multiboot header", need, have }))?;
    let [header_addr, load_addr, load_end, bss_end, entry] = fields.map(u64::from);
    let invalid =
        error(Problem::Invalid { what: "the load addresses in the multiboot header contradict each other" });
    let before = header_addr.checked_sub(load_addr).ok_or(invalid.clone())?;
    let start = (header.offset as u64).checked_sub(before).ok_or(invalid.clone())?;
    let size = match load_end {
        0 => have - start,
        end => end.checked_sub(load_addr).ok_or(invalid.clone())?,
    };
    let mem_size = match bss_end {
        0 => size,
        end => end.checked_sub(load_addr).filter(|&s| s >= size).ok_or(invalid)?,
    };
    // Both lie within the file: `start` is at most the header's offset.
    let bytes = kernel.bytes.get(start as usize..(start + size) as usize);
    let bytes = bytes.ok_or(error(Problem::Truncated { what: "the kernel", need: start + size, have }))?;
    p.claim(kernel, "kernel", load_addr, mem_size)?;
    p.write(kernel, load_addr, bytes)?;
    p.zero(kernel, load_addr + size, mem_size - size)?;
    Ok((entry, load_addr + mem_size))
}

/// Writes modules, memory map and the information structure; returns the structure's address.
fn write_info<M: GuestMemory>(
    p: &mut Placer<'_, M>,
    request: &Request<'_>,
    kernel_end: u64,
) -> Result<u64, LoadError> {
    let kernel = &request.kernel;
    let mut modules = Vec::new();
    let initrd = request.initrd.iter().map(|file| (*file, ""));
    for (file, cmdline) in initrd.chain(request.modules.iter().map(|m| (m.file, m.cmdline))) {
        let size = file.bytes.len() as u64;
        // Behind the kernel and in order, where simple kernels expect them.
        let at = p.claim_lowest(&file, "module", size, PAGE_SIZE, kernel_end.max(MIB)..HIGH_RAM_BASE)?;
        p.write(&file, at, file.bytes)?;
        let cmdline = write_text(p, &file, if cmdline.is_empty() { file.name } else { cmdline })?;
        modules.push([at as u32, (at + size) as u32, cmdline as u32, 0]);
    }
    let modules_at = write_words(p, kernel, "module list", modules.as_flattened())?;
    let map: Vec<u32> = request.layout.map().iter().flat_map(map_entry).collect();
    let map_at = write_words(p, kernel, "memory map", &map)?;
    let cmdline = write_text(p, kernel, format!("{} {}", kernel.name, request.cmdline).trim_end())?;
    let name = write_text(p, kernel, "Palimpsest")?;

    let mut info = [0u32; 30];
    info[0] =
        info_flag::MEMORY | info_flag::CMDLINE | info_flag::MODULES | info_flag::MAP | info_flag::LOADER_NAME;
    info[1] = (EBDA / 1024) as u32;
    info[2] = ((request.layout.low_end().0 - MIB) / 1024) as u32;
    info[4] = cmdline as u32;
    info[5] = modules.len() as u32;
    info[6] = modules_at;
    info[11] = map.len() as u32 * 4;
    info[12] = map_at;
    info[16] = name as u32;
    Ok(write_words(p, kernel, "boot information", &info)?.into())
}

/// Size of the rest, base, length, type.
fn map_entry(e: &MapEntry) -> [u32; 6] {
    let MapEntry { base: Gpa(base), bytes, kind } = *e;
    let kind = match kind {
        MapKind::Usable => 1,
        MapKind::Reserved => 2,
        MapKind::Acpi => 3,
    };
    [20, base as u32, (base >> 32) as u32, bytes as u32, (bytes >> 32) as u32, kind]
}

fn write_words<M: GuestMemory>(
    p: &mut Placer<'_, M>,
    file: &File<'_>,
    what: &'static str,
    words: &[u32],
) -> Result<u32, LoadError> {
    let size = (words.len() as u64 * 4).max(4);
    let at = p.claim_lowest(file, what, size, 8, 0..HIGH_RAM_BASE)?;
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    p.write(file, at, &bytes)?;
    Ok(at as u32)
}

fn words<const N: usize>(bytes: &[u8], at: usize) -> Option<[u32; N]> {
    let bytes = bytes.get(at..at.checked_add(N * 4)?)?;
    let mut words = [0; N];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = chunk.iter().rev().fold(0, |w, &b| w << 8 | u32::from(b));
    }
    Some(words)
}
