//! The hypervisor's ELF file: without what only debuggers read, and what it says about itself.

use std::fmt::Write;

use crate::Error;

/// The bytes of an ELF64 file up to the end of its last segment, without its section table. GRUB loads everything that a
/// section table names, debug information too: five times the file, and memory of the machine.
///
/// # Errors
/// [`Error::Description`] for what is no such file, or a truncated one.
pub fn loadable(elf: &[u8]) -> Result<Vec<u8>, Error> {
    let bad = |what: &str| Error::description(format!("the hypervisor is {what}"));
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return Err(bad("not a 64-bit ELF file"));
    }
    let truncated = || bad("a truncated ELF file");
    // System V ABI, "ELF header" and "Program header".
    let table = word(elf, 32, 8).ok_or_else(truncated)?;
    let (size, count) = (word(elf, 54, 2).ok_or_else(truncated)?, word(elf, 56, 2).ok_or_else(truncated)?);
    let mut end = size.checked_mul(count).and_then(|len| len.checked_add(table)).ok_or_else(truncated)?;
    for index in 0..count {
        let header = size.checked_mul(index).and_then(|at| at.checked_add(table)).ok_or_else(truncated)?;
        let field = |offset: u64| word(elf, header.checked_add(offset)?, 8);
        let (offset, len) = field(8).zip(field(32)).ok_or_else(truncated)?;
        end = end.max(offset.checked_add(len).ok_or_else(truncated)?);
    }
    let end = usize::try_from(end).ok().filter(|end| *end >= 64).ok_or_else(truncated)?;
    let mut bytes = elf.get(..end).ok_or_else(truncated)?.to_vec();
    bytes[40..48].fill(0); // e_shoff
    bytes[58..64].fill(0); // e_shentsize, e_shnum, e_shstrndx
    Ok(bytes)
}

/// A little-endian number of `size` bytes.
pub(crate) fn word(bytes: &[u8], at: u64, size: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// What a hypervisor's file says about itself in its notes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its version.
    pub version: String,
    /// The linker's hash of it, in hexadecimal; another for every other program.
    pub build_id: String,
}

/// Reads the notes of an ELF64 file; `None` if it has none of a hypervisor of ours.
pub fn identity(elf: &[u8]) -> Option<Identity> {
    const NOTES: u64 = 4;
    /// Notes looked at; there are three.
    const MOST: usize = 64;
    let (table, size, count) = (word(elf, 32, 8)?, word(elf, 54, 2)?, word(elf, 56, 2)?);
    let mut identity = Identity::default();
    for index in 0..count {
        let header = table.checked_add(size.checked_mul(index)?)?;
        if word(elf, header, 4)? != NOTES {
            continue;
        }
        let (offset, len) = (word(elf, header.checked_add(8)?, 8)?, word(elf, header.checked_add(32)?, 8)?);
        let start = usize::try_from(offset).ok()?;
        let mut notes = elf.get(start..start.checked_add(usize::try_from(len).ok()?)?)?;
        for _ in 0..MOST {
            let Some((Note { name, kind, contents }, rest)) = note(notes) else { break };
            notes = rest;
            match (name, kind) {
                (b"Palimpsest\0", 1) => {
                    let text = contents.iter().take(32).filter(|b| b.is_ascii_graphic());
                    identity.version = text.map(|b| char::from(*b)).collect();
                }
                (b"GNU\0", 3) => {
                    identity.build_id = contents.iter().take(32).fold(String::new(), |mut text, byte| {
                        let _ = write!(text, "{byte:02x}");
                        text
                    });
                }
                _ => {}
            }
        }
    }
    (!identity.version.is_empty()).then_some(identity)
}

struct Note<'a> {
    /// With its zero byte.
    name: &'a [u8],
    kind: u64,
    contents: &'a [u8],
}

/// The first note, and what follows it.
fn note(notes: &[u8]) -> Option<(Note<'_>, &[u8])> {
    let (name, len) = (word(notes, 0, 4)? as usize, word(notes, 4, 4)? as usize);
    let contents = 12usize.checked_add(name.checked_next_multiple_of(4)?)?;
    let end = contents.checked_add(len)?;
    let rest = notes.get(end.checked_next_multiple_of(4)?..).unwrap_or(&[]);
    let name = notes.get(12..12usize.checked_add(name)?)?;
    Some((Note { name, kind: word(notes, 8, 4)?, contents: notes.get(contents..end)? }, rest))
}
