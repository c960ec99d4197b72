//! The program by which a guest's session tells a lab machine that it begins (`--lab-from session`).
//!
//! It executes one no-op that the lab machine knows ([`abi::lab::MARK_MODEL`]), and ends. Anywhere else it does nothing, so
//! every guest runs it.

use abi::lab::{MARK_MODEL, MARKS};

/// Where it is loaded.
const BASE: u32 = 0x40_0000;
/// ELF: `e_machine` of the two architectures.
const EM_386: u16 = 3;
const EM_X86_64: u16 = 62;

/// ELF: `p_type` of what is loaded, and of the stack.
const PT_LOAD: u32 = 1;
const PT_GNU_STACK: u32 = 0x6474_e551;
/// ELF: `p_flags`.
const READ_EXECUTE: u32 = 5;
const READ_WRITE: u32 = 6;

/// An ELF program for Linux, of 64 bits or of 32: a header, one segment with everything, a stack that is not executable (Linux
/// says so otherwise), and code.
pub fn program(wide: bool) -> Vec<u8> {
    // exit(0)
    let exit: &[u8] = if wide {
        // mov eax, 60; xor edi, edi; syscall
        &[0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05]
    } else {
        // mov eax, 1; xor ebx, ebx; int 0x80
        &[0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80]
    };
    let code = [&MARKS[..], &MARK_MODEL.to_le_bytes(), exit].concat();
    let (header, segment): (u16, u16) = if wide { (64, 56) } else { (52, 32) };
    let begin = u32::from(header + 2 * segment);
    let size = begin + code.len() as u32;

    let mut elf = Elf { wide, bytes: Vec::new() };
    elf.bytes.extend([0x7f, b'E', b'L', b'F', if wide { 2 } else { 1 }, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    elf.half(2); // ET_EXEC
    elf.half(if wide { EM_X86_64 } else { EM_386 });
    elf.word(1);
    elf.address(BASE + begin);
    elf.address(header.into()); // program headers
    elf.address(0); // no sections
    elf.word(0);
    for field in [header, segment, 2, 0, 0, 0] {
        elf.half(field);
    }

    elf.segment(PT_LOAD, READ_EXECUTE, BASE, size);
    elf.segment(PT_GNU_STACK, READ_WRITE, 0, 0);
    elf.bytes.extend(code);
    elf.bytes
}

/// What is written of it.
struct Elf {
    wide: bool,
    bytes: Vec<u8>,
}

impl Elf {
    fn half(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn word(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    /// The header of a segment from the file's begin. Its flags are elsewhere in the two formats.
    fn segment(&mut self, kind: u32, flags: u32, address: u32, size: u32) {
        self.word(kind);
        if self.wide {
            self.word(flags);
        }
        for field in [0, address, address, size, size] {
            self.address(field);
        }
        if !self.wide {
            self.word(flags);
        }
        self.address(4096);
    }

    /// An address, offset or size: as wide as the program.
    fn address(&mut self, value: u32) {
        self.word(value);
        if self.wide {
            self.word(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt, process::Command};

    #[test]
    fn it_ends_well_on_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        fs::write(&path, program(true)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(Command::new(&path).status().unwrap().code(), Some(0));
    }

    #[test]
    fn headers_are_what_the_format_asks_for() {
        for (wide, header, segment) in [(true, 64, 56), (false, 52, 32)] {
            let elf = program(wide);
            let begin = header + 2 * segment;
            let code = &elf[begin..];
            assert_eq!(code[..4], MARKS, "{wide}");
            assert_eq!(code[4..8], MARK_MODEL.to_le_bytes(), "{wide}");
            // The entry is the code.
            assert_eq!(elf[24..28], (BASE + begin as u32).to_le_bytes(), "{wide}");
        }
    }
}
