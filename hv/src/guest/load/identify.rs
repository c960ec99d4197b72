//! What kind of file a kernel is, by its first bytes.

use alloc::string::ToString;

use super::super::config::Protocol;
use super::{File, LoadError, Problem, bzimage, elf, multiboot1, pvh};

/// The protocol that [`Protocol::Auto`] stands for, or what the file is instead of a kernel.
pub fn protocol(kernel: &File<'_>) -> Result<Protocol, LoadError> {
    if bzimage::is_bzimage(kernel.bytes) {
        return Ok(if bzimage::is_64bit(kernel.bytes) { Protocol::Linux64 } else { Protocol::Linux32 });
    }
    if elf::is_elf(kernel.bytes) && pvh::has_note(kernel)? {
        return Ok(Protocol::Pvh);
    }
    if multiboot1::find_header(kernel.bytes).is_some() {
        return Ok(Protocol::Multiboot1);
    }
    Err(not_a_kernel(kernel))
}

/// The error for a file that is no kernel of any kind that we start.
pub fn not_a_kernel(kernel: &File<'_>) -> LoadError {
    let problem = Problem::NotAKernel { found: describe(kernel.bytes) };
    LoadError { file: kernel.name.to_string(), problem }
}

/// Refuses kernels for other processors.
pub fn check_machine(kernel: &File<'_>) -> Result<(), LoadError> {
    let at = |offset: usize, magic: &[u8]| has(kernel.bytes, offset, magic);
    // The magics of Linux' other boot image formats (`Documentation/arch/arm64/booting.rst`,
    // `arch/riscv/boot-image-header.rst`, the ARM zImage header).
    let machine = if elf::is_elf(kernel.bytes) {
        elf::foreign_machine(kernel.bytes)
    } else if at(0x38, b"ARM\x64") {
        Some("64-bit ARM")
    } else if at(0x24, &0x016f_2818u32.to_le_bytes()) || at(0x24, &0x016f_2818u32.to_be_bytes()) {
        Some("32-bit ARM")
    } else if at(0x38, b"RSC\x05") {
        Some("RISC-V")
    } else {
        None
    };
    match machine {
        Some(machine) => {
            Err(LoadError { file: kernel.name.to_string(), problem: Problem::WrongMachine { machine } })
        }
        None => Ok(()),
    }
}

fn has(bytes: &[u8], offset: usize, magic: &[u8]) -> bool {
    bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic))
}

fn describe(bytes: &[u8]) -> &'static str {
    const MAGICS: [(usize, &[u8], &str); 12] = [
        (0, b"\x7fELF", "an ELF file without a PVH note or multiboot header"),
        (0, b"\x1f\x8b", "a gzip-compressed file (expand it first)"),
        (0, b"\xfd7zXZ\0", "an xz-compressed file (expand it first)"),
        (0, b"\x28\xb5\x2f\xfd", "a zstd-compressed file (expand it first)"),
        (0, b"\x02\x21\x4c\x18", "an lz4-compressed file (expand it first)"),
        (0, b"BZh", "a bzip2-compressed file (expand it first)"),
        (0, b"07070", "a cpio archive (an initramfs?)"),
        (0, b"\x27\x05\x19\x56", "a U-Boot image"),
        (0, b"!<arch>", "a Debian package or ar archive (unpack it first)"),
        (0, b"#!", "a script"),
        (0, b"MZ", "an EFI or Windows program"),
        (0x8001, b"CD001", "a CD image"),
    ];
    if bytes.is_empty() {
        return "an empty file";
    }
    if let Some((.., what)) = MAGICS.iter().find(|(offset, magic, _)| has(bytes, *offset, magic)) {
        return what;
    }
    if has(bytes, 510, b"\x55\xaa") {
        return "a boot sector or disk image";
    }
    let start = &bytes[..bytes.len().min(512)];
    if start.iter().all(|&b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        return "a text file";
    }
    "data of an unknown format"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: &[u8]) -> alloc::string::String {
        let file = File { name: "k", bytes };
        check_machine(&file).and_then(|()| protocol(&file)).unwrap_err().to_string()
    }

    #[test]
    fn names_what_it_was_given() {
        let mut sector = [0; 512];
        sector[510..].copy_from_slice(b"\x55\xaa");
        for (bytes, word) in [
            (&b""[..], "empty"),
            (b"hello world\n", "text"),
            (b"070701000", "initramfs"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"\x01\x02", "unknown"),
            (&sector, "boot sector"),
        ] {
            assert!(message(bytes).contains(word), "{}", message(bytes));
        }
    }

    #[test]
    fn names_foreign_machines() {
        let mut image = [0; 64];
        image[0x38..0x3c].copy_from_slice(b"ARM\x64");
        assert!(message(&image).contains("64-bit ARM"));
        let mut image = [0; 64];
        image[0x24..0x28].copy_from_slice(&[0x18, 0x28, 0x6f, 0x01]);
        assert!(message(&image).contains("32-bit ARM"));
        let mut ppc = [0; 64];
        ppc[..20].copy_from_slice(b"\x7fELF\x01\x02\x01\0\0\0\0\0\0\0\0\0\0\x02\0\x14");
        assert!(message(&ppc).contains("PowerPC"), "{}", message(&ppc));
    }
}
