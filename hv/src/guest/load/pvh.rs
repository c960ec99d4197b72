//! The PVH boot protocol (Xen `docs/misc/pvh.pandoc`, `public/arch-x86/hvm/start_info.h`).
//!
//! An ELF kernel names its 32-bit physical entry in a note and gets the address of an `hvm_start_info` in
//! EBX. A Linux bzImage carries such an ELF file compressed; it is expanded here, because nothing in the
//! bzImage's own code enters by PVH.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::super::config::Protocol;
use super::elf::Elf;
use super::place::Placer;
use super::{BootState, File, LoadError, Problem, Request, bzimage, elf, start};
use crate::arch::addr::PAGE_SIZE;
use crate::arch::state::Gpr;
use crate::mem::guest_memory::GuestMemory;

/// `XEN_ELFNOTE_PHYS32_ENTRY`
const PHYS32_ENTRY: u32 = 18;
/// `XEN_HVM_START_MAGIC_VALUE`
const START_MAGIC: u32 = 0x336e_c578;
/// Everything the protocol hands over lies below 4 GiB.
const WINDOW: core::ops::Range<u64> = 0..1 << 32;

/// Whether an ELF file has the entry note.
pub fn has_note(kernel: &File<'_>) -> Result<bool, LoadError> {
    Ok(entry_note(&Elf::parse(kernel)?).is_some())
}

fn entry_note(elf: &Elf<'_>) -> Option<u32> {
    match *elf.note(b"Xen", PHYS32_ENTRY)? {
        [a, b, c, d] => Some(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, 0, 0, 0, 0] => Some(u32::from_le_bytes([a, b, c, d])),
        _ => None,
    }
}

/// Loads the request's kernel.
pub fn load(memory: &impl GuestMemory, request: &Request<'_>) -> Result<BootState, LoadError> {
    let kernel = &request.kernel;
    if bzimage::is_bzimage(kernel.bytes) {
        let expanded = bzimage::expand(kernel, request.layout.ram_bytes())?;
        return load_elf(memory, request, &File { name: kernel.name, bytes: &expanded });
    }
    load_elf(memory, request, kernel)
}

fn load_elf(
    memory: &impl GuestMemory,
    request: &Request<'_>,
    kernel: &File<'_>,
) -> Result<BootState, LoadError> {
    let lacks = |lacks| LoadError {
        file: kernel.name.to_string(),
        problem: Problem::WrongProtocol { protocol: "pvh", lacks },
    };
    if !elf::is_elf(kernel.bytes) {
        return Err(lacks("it is not an ELF file"));
    }
    let elf = Elf::parse(kernel)?;
    let entry = entry_note(&elf).ok_or(lacks("it has no Xen PHYS32_ENTRY note"))?;

    let mut p = Placer::new(memory, request.layout);
    elf.place(&mut p, kernel)?;
    let mut modules = Vec::new();
    let initrd = request.initrd.iter().map(|file| ("initrd", *file, ""));
    let others = request.modules.iter().map(|m| ("module", m.file, m.cmdline));
    for (what, file, cmdline) in initrd.chain(others) {
        let size = file.bytes.len() as u64;
        let at = p.claim_highest(&file, what, size, PAGE_SIZE, WINDOW)?;
        p.write(&file, at, file.bytes)?;
        let cmdline = if cmdline.is_empty() { 0 } else { write_text(&mut p, &file, cmdline)? };
        modules.push([at, size, cmdline, 0]);
    }
    let cmdline = write_text(&mut p, kernel, request.cmdline)?;
    let info = write_info(&mut p, request, cmdline, &modules)?;
    let gdt = start::write_gdt(&mut p, kernel, false)?;
    let mut arch = start::protected_mode(entry, gdt);
    arch.gprs[Gpr::Rbx as usize] = info;
    Ok(BootState { arch, protocol: Protocol::Pvh, placed: p.finish() })
}

/// Writes `hvm_start_info`, the module list and the memory map behind it; returns its address.
fn write_info<M: GuestMemory>(
    p: &mut Placer<'_, M>,
    request: &Request<'_>,
    cmdline: u64,
    modules: &[[u64; 4]],
) -> Result<u64, LoadError> {
    const INFO_SIZE: u64 = 56;
    let map = request.layout.map();
    let (list_size, map_size) = (modules.len() as u64 * 32, map.len() as u64 * 24);
    let size = INFO_SIZE + list_size + map_size;
    let at = p.claim_lowest(&request.kernel, "start info", size, 8, WINDOW)?;
    let (list_at, map_at) = (at + INFO_SIZE, at + INFO_SIZE + list_size);
    let pair = |low: u32, high: u32| low as u64 | (high as u64) << 32;
    let words = [
        pair(START_MAGIC, 1),
        pair(0, modules.len() as u32),
        if modules.is_empty() { 0 } else { list_at },
        cmdline,
        request.rsdp.0,
        map_at,
        map.len() as u64,
    ];
    let map_words = map.iter().flat_map(|e| [e.base.0, e.bytes, e.kind as u64]);
    let all = words.into_iter().chain(modules.iter().flatten().copied()).chain(map_words);
    let bytes: Vec<u8> = all.flat_map(u64::to_le_bytes).collect();
    p.write(&request.kernel, at, &bytes)?;
    Ok(at)
}

/// Writes a zero-terminated text below 4 GiB; returns its address.
pub fn write_text<M: GuestMemory>(
    p: &mut Placer<'_, M>,
    file: &File<'_>,
    text: &str,
) -> Result<u64, LoadError> {
    let size = text.len() as u64;
    let at = p.claim_lowest(file, "command line", size + 1, 16, WINDOW)?;
    p.write(file, at, text.as_bytes())?;
    p.zero(file, at + size, 1)?;
    Ok(at)
}
