//! ELF files of both classes: loadable segments and notes (System V gABI chapter 4 and 5).
//!
//! Written by hand over slices because a kernel is read in place, may be gigabytes long and is untrusted.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::place::Placer;
use super::{File, LoadError, Problem};
use crate::mem::guest_memory::GuestMemory;

/// A program header; a 32-bit file's fields are widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// `p_type`
    pub kind: u32,
    /// `p_vaddr`
    pub virt: u64,
    /// `p_paddr`
    pub phys: u64,
    /// `p_memsz`
    pub mem_size: u64,
    /// `p_align`
    pub align: u64,
    /// The bytes in the file.
    pub bytes: &'a [u8],
}

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
/// More program headers than any kernel has.
const MAX_SEGMENTS: u16 = 64;

/// A parsed file.
#[derive(Debug)]
pub struct Elf<'a> {
    /// `e_entry`
    pub entry: u64,
    /// Program headers of type LOAD and NOTE.
    pub segments: Vec<Segment<'a>>,
}

/// Whether the file starts with the ELF magic.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// The name of the machine if it is not x86.
pub fn foreign_machine(bytes: &[u8]) -> Option<&'static str> {
    let machine = bytes.get(18..20)?;
    let big_endian = bytes.get(5) == Some(&2);
    let machine = if big_endian { [machine[1], machine[0]] } else { [machine[0], machine[1]] };
    match u16::from_le_bytes(machine) {
        3 | 62 if !big_endian => None,
        8 => Some("MIPS"),
        20 | 21 => Some("PowerPC"),
        22 => Some("IBM Z"),
        40 => Some("32-bit ARM"),
        43 => Some("SPARC"),
        183 => Some("64-bit ARM"),
        243 => Some("RISC-V"),
        258 => Some("LoongArch"),
        _ => Some("another processor"),
    }
}

impl<'a> Elf<'a> {
    /// Reads the headers of an x86 file.
    pub fn parse(file: &File<'a>) -> Result<Self, LoadError> {
        let bytes = file.bytes;
        let error = |problem| LoadError { file: file.name.to_string(), problem };
        let short = |what, need: u64| error(Problem::Truncated { what, need, have: bytes.len() as u64 });
        let is64 = match bytes.get(4) {
            Some(1) => false,
            Some(2) => true,
            _ => return Err(error(Problem::Invalid { what: "the ELF class is neither 32 nor 64 bit" })),
        };
        if bytes.get(5) != Some(&1) || foreign_machine(bytes).is_some() {
            return Err(error(Problem::WrongMachine { machine: "another processor" }));
        }
        let header_size = if is64 { 64 } else { 52 };
        if bytes.len() < header_size {
            return Err(short("the ELF header", header_size as u64));
        }
        let field = |at32, at64| if is64 { word(bytes, at64, 8) } else { word(bytes, at32, 4) };
        let (entry, table) = (field(24, 24), field(28, 32));
        let entry_size = half(bytes, if is64 { 54 } else { 42 }) as u64;
        let count = half(bytes, if is64 { 56 } else { 44 });
        if entry_size < (if is64 { 56 } else { 32 }) || count > MAX_SEGMENTS {
            return Err(error(Problem::Invalid { what: "the ELF program header table is malformed" }));
        }
        let mut segments = Vec::new();
        for i in 0..count as u64 {
            let start = table.saturating_add(i * entry_size);
            let end = start.saturating_add(entry_size);
            let header = slice(bytes, start, entry_size).ok_or(short("the ELF program header table", end))?;
            let field = |at32, at64| if is64 { word(header, at64, 8) } else { word(header, at32, 4) };
            let kind = word(header, 0, 4) as u32;
            if kind != PT_LOAD && kind != PT_NOTE {
                continue;
            }
            let (offset, size) = (field(4, 8), field(16, 32));
            let contents =
                slice(bytes, offset, size).ok_or(short("an ELF segment", offset.saturating_add(size)))?;
            let (virt, phys) = (field(8, 16), field(12, 24));
            let mem_size = field(20, 40);
            if kind == PT_LOAD && mem_size < size {
                return Err(error(Problem::Invalid {
                    what: "an ELF segment is larger in the file than in memory",
                }));
            }
            segments.push(Segment { kind, virt, phys, mem_size, align: field(28, 48), bytes: contents });
        }
        Ok(Elf { entry, segments })
    }

    /// The segments to load.
    pub fn loads(&self) -> impl Iterator<Item = &Segment<'a>> {
        self.segments.iter().filter(|s| s.kind == PT_LOAD && s.mem_size > 0)
    }

    /// The descriptor of the note with this owner and type.
    pub fn note(&self, owner: &[u8], kind: u32) -> Option<&'a [u8]> {
        let notes = self.segments.iter().filter(|s| s.kind == PT_NOTE);
        notes.flat_map(|s| Notes { bytes: s.bytes, align: if s.align == 8 { 8 } else { 4 } }).find_map(|n| {
            let name = n.owner.strip_suffix(&[0]).unwrap_or(n.owner);
            (name == owner && n.kind == kind).then_some(n.desc)
        })
    }

    /// The physical address of the entry point: where the segment that holds the (virtual) entry is loaded.
    pub fn physical_entry(&self) -> u64 {
        let holds = |s: &&Segment<'_>| s.virt <= self.entry && self.entry - s.virt < s.mem_size;
        let segment = self.loads().find(holds);
        segment.map_or(self.entry, |s| s.phys.wrapping_add(self.entry - s.virt))
    }

    /// Copies the segments to their physical addresses; returns the end of the highest.
    pub fn place<M: GuestMemory>(&self, p: &mut Placer<'_, M>, file: &File<'_>) -> Result<u64, LoadError> {
        let mut end = 0;
        for s in self.loads() {
            p.claim(file, "kernel", s.phys, s.mem_size)?;
            p.write(file, s.phys, s.bytes)?;
            let size = s.bytes.len() as u64;
            p.zero(file, s.phys + size, s.mem_size - size)?;
            end = end.max(s.phys + s.mem_size);
        }
        match end {
            0 => Err(LoadError {
                file: file.name.to_string(),
                problem: Problem::Invalid { what: "the ELF file has no segment to load" },
            }),
            _ => Ok(end),
        }
    }
}

struct Note<'a> {
    owner: &'a [u8],
    kind: u32,
    desc: &'a [u8],
}

struct Notes<'a> {
    bytes: &'a [u8],
    align: usize,
}

impl<'a> Iterator for Notes<'a> {
    type Item = Note<'a>;

    fn next(&mut self) -> Option<Note<'a>> {
        let header = self.bytes.get(..12)?;
        let (owner_size, desc_size) = (word(header, 0, 4) as usize, word(header, 4, 4) as usize);
        let desc_at = 12usize.checked_add(owner_size)?.checked_next_multiple_of(self.align)?;
        let end = desc_at.checked_add(desc_size)?;
        let owner = self.bytes.get(12..12 + owner_size)?;
        let desc = self.bytes.get(desc_at..end)?;
        let next = end.checked_next_multiple_of(self.align)?;
        self.bytes = self.bytes.get(next..).unwrap_or(&[]);
        Some(Note { owner, kind: word(header, 8, 4) as u32, desc })
    }
}

fn slice(bytes: &[u8], start: u64, len: u64) -> Option<&[u8]> {
    let start = usize::try_from(start).ok()?;
    bytes.get(start..start.checked_add(usize::try_from(len).ok()?)?)
}

/// A little-endian integer of `size` bytes, at most 8; zero where the slice ends before.
fn word(bytes: &[u8], at: usize, size: usize) -> u64 {
    let mut value = [0; 8];
    if let Some(from) = bytes.get(at..at + size) {
        value[..size].copy_from_slice(from);
    }
    u64::from_le_bytes(value)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    word(bytes, at, 2) as u16
}
