//! The hypervisor's ELF file without what only debuggers read.

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
