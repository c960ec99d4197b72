//! Recognises kernel files before anything is started, so that a wrong file gets an answer that says what it is.
//!
//! The hypervisor's loaders check the same files again, more deeply: they trust no file. Offsets: Linux
//! `Documentation/arch/x86/boot.rst` (bzImage), the System V ABI (ELF), Multiboot Specification 0.6.96 section 3.1,
//! Xen's `xen/include/public/elfnote.h` (PVH).

/// What a kernel file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// A Linux bzImage. It needs `end` bytes of guest RAM from 0 while it unpacks itself, without the initrd.
    BzImage {
        /// First address behind the memory that the kernel uses at start.
        end: u64,
    },
    /// An x86 ELF file.
    Elf(Elf),
}

/// The ways in which an ELF file can be started, and what it seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elf {
    /// It has a multiboot1 header.
    pub multiboot1: bool,
    /// It has a PVH entry note.
    pub pvh: bool,
    /// It is an uncompressed Linux kernel (vmlinux).
    pub linux: bool,
}

impl Image {
    /// True for Linux, to which the default command line and the default initramfs apply.
    pub fn is_linux(&self) -> bool {
        match self {
            Image::BzImage { .. } => true,
            Image::Elf(elf) => elf.linux,
        }
    }

    /// Recognises `bytes`, the contents of a kernel file.
    ///
    /// # Errors
    /// A text that says what the file is instead of a kernel for this machine.
    pub fn identify(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("the file is empty".into());
        }
        if slice(bytes, 0x202, 4) == Some(b"HdrS") {
            return bzimage(bytes);
        }
        if bytes.starts_with(b"\x7fELF") {
            return elf(bytes);
        }
        Err(foreign(bytes).unwrap_or("not a kernel: neither a Linux bzImage nor an ELF file").into())
    }
}

/// The release that a Linux kernel says it is, as `uname -r` shows it in the guest and as its modules' directory is called.
///
/// `None` where it says none, or one that is no name of a directory: the caller makes a path of it.
pub fn release(kernel: &[u8]) -> Option<&str> {
    let version = if slice(kernel, 0x202, 4) == Some(b"HdrS") {
        // `kernel_version`, from the end of the first sector; 0 if there is none.
        let at = u16_at(kernel, 0x20e).filter(|&at| at != 0)?;
        kernel.get(0x200 + usize::from(at)..)?
    } else {
        let prefix = b"Linux version ";
        &kernel[find(kernel, prefix)? + prefix.len()..]
    };
    // The release, then its builder, date and options. Its length is limited by the kernel to 64 with the final zero.
    let end = version.iter().take(64).position(|byte| matches!(byte, b' ' | 0))?;
    let release = std::str::from_utf8(&version[..end]).ok()?;
    is_release(release).then_some(release)
}

/// Whether a directory and a word on a command line may have this name.
pub fn is_release(text: &str) -> bool {
    text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
}

/// The oldest boot protocol of which the hypervisor's loader knows enough.
const OLDEST_PROTOCOL: u16 = 0x202;
/// The first that says how much memory the kernel needs to start.
const WITH_INIT_SIZE: u16 = 0x20a;
/// `LOADED_HIGH` in `loadflags`: a bzImage, not a zImage.
const LOADED_HIGH: u8 = 1;

fn bzimage(bytes: &[u8]) -> Result<Image, String> {
    let truncated = || "a truncated Linux bzImage".to_owned();
    let setup_sectors = match *bytes.get(0x1f1).ok_or_else(truncated)? {
        0 => 4,
        sectors => u64::from(sectors),
    };
    let protocol = u16_at(bytes, 0x206).ok_or_else(truncated)?;
    if protocol < OLDEST_PROTOCOL {
        return Err(format!(
            "a Linux kernel with boot protocol {}.{:02}; 2.02 (Linux 2.4) or later is needed",
            protocol >> 8,
            protocol & 0xff
        ));
    }
    if bytes.get(0x211).ok_or_else(truncated)? & LOADED_HIGH == 0 {
        return Err("a Linux zImage; the kernel must be built as a bzImage".to_owned());
    }
    // In units of 16 bytes, the last of which need not be full; two bytes before protocol 2.04.
    let size_field = match protocol {
        0x204.. => u32_at(bytes, 0x1f4),
        _ => u16_at(bytes, 0x1f4).map(u32::from),
    };
    let units = u64::from(size_field.ok_or_else(truncated)?);
    let setup = (setup_sectors + 1) * 512;
    let needed = setup + units.saturating_sub(1) * 16 + 1;
    let size = bytes.len() as u64;
    if size < needed {
        return Err(format!("a truncated Linux bzImage: {size} bytes of at least {needed}"));
    }
    // The hypervisor's loader copies the header, whatever the version.
    slice(bytes, 0, 0x290).ok_or_else(truncated)?;
    let (start, needs) = if protocol >= WITH_INIT_SIZE {
        let init_size = u32_at(bytes, 0x260).ok_or_else(truncated)?;
        (u64_at(bytes, 0x258).ok_or_else(truncated)?, u64::from(init_size))
    } else {
        // What the loader takes: it expands to three times its size, from 1 MiB on.
        (1 << 20, (size - setup) * 3)
    };
    Ok(Image::BzImage { end: start.saturating_add(needs) })
}

fn elf(bytes: &[u8]) -> Result<Image, String> {
    let truncated = || "a truncated ELF file".to_owned();
    let wide = match bytes.get(4).ok_or_else(truncated)? {
        1 => false,
        2 => true,
        _ => return Err("a damaged ELF file (unknown class)".into()),
    };
    let machine = u16_at(bytes, 18).ok_or_else(truncated)?;
    if !matches!(machine, 3 | 62) {
        let name = match machine {
            8 => "MIPS",
            20 | 21 => "PowerPC",
            22 => "S/390",
            40 => "32-bit ARM",
            183 => "64-bit ARM",
            243 => "RISC-V",
            258 => "LoongArch",
            _ => "another architecture",
        };
        return Err(format!("a program for {name} (ELF machine {machine}); the guest machine is an x86 PC"));
    }
    let kind = u16_at(bytes, 16).ok_or_else(truncated)?;
    if kind != 2 && kind != 3 {
        return Err(format!("an ELF file of type {kind}, which is not an executable"));
    }
    let mut pvh = false;
    for header in program_headers(bytes, wide).ok_or_else(truncated)? {
        let contents = slice_at(bytes, header.offset, header.size).ok_or_else(truncated)?;
        pvh |= header.kind == 4 && has_pvh_note(contents);
    }
    let multiboot1 = has_multiboot1_header(bytes);
    if multiboot1 && wide && !pvh {
        return Err("a 64-bit ELF file with a multiboot1 header; multiboot1 kernels must be ELF32".into());
    }
    if !multiboot1 && !pvh {
        return Err(
            "an ELF file without a multiboot1 header or a PVH note: there is no way to start it".into()
        );
    }
    Ok(Image::Elf(Elf { multiboot1, pvh, linux: find(bytes, b"Linux version ").is_some() }))
}

struct ProgramHeader {
    kind: u32,
    offset: u64,
    size: u64,
}

fn program_headers(bytes: &[u8], wide: bool) -> Option<Vec<ProgramHeader>> {
    let (table, entry_size, count) = if wide {
        (u64_at(bytes, 32)?, u16_at(bytes, 54)?, u16_at(bytes, 56)?)
    } else {
        (u64::from(u32_at(bytes, 28)?), u16_at(bytes, 42)?, u16_at(bytes, 44)?)
    };
    (0..u64::from(count))
        .map(|index| {
            let at = table.checked_add(index * u64::from(entry_size))?;
            let header = slice_at(bytes, at, if wide { 56 } else { 32 })?;
            let kind = u32_at(header, 0)?;
            let (offset, size) = if wide {
                (u64_at(header, 8)?, u64_at(header, 32)?)
            } else {
                (u64::from(u32_at(header, 4)?), u64::from(u32_at(header, 16)?))
            };
            Some(ProgramHeader { kind, offset, size })
        })
        .collect()
}

/// XEN_ELFNOTE_PHYS32_ENTRY: owner "Xen", type 18.
fn has_pvh_note(mut notes: &[u8]) -> bool {
    loop {
        let (Some(name_size), Some(size), Some(kind)) =
            (u32_at(notes, 0), u32_at(notes, 4), u32_at(notes, 8))
        else {
            return false;
        };
        if kind == 18 && slice(notes, 12, name_size as usize) == Some(b"Xen\0") {
            return true;
        }
        let (name_size, size) =
            (u64::from(name_size).next_multiple_of(4), u64::from(size).next_multiple_of(4));
        let Some(rest) = usize::try_from(12 + name_size + size).ok().and_then(|next| notes.get(next..))
        else {
            return false;
        };
        notes = rest;
    }
}

fn has_multiboot1_header(bytes: &[u8]) -> bool {
    let area = &bytes[..bytes.len().min(8192)];
    (0..area.len()).step_by(4).any(|at| {
        let (Some(magic), Some(flags), Some(sum)) =
            (u32_at(area, at), u32_at(area, at + 4), u32_at(area, at + 8))
        else {
            return false;
        };
        magic == 0x1bad_b002 && magic.wrapping_add(flags).wrapping_add(sum) == 0
    })
}

/// Files that people give by mistake.
fn foreign(bytes: &[u8]) -> Option<&'static str> {
    if slice(bytes, 0x38, 4) == Some(b"ARMd") {
        return Some("a Linux kernel for 64-bit ARM; the guest machine is an x86 PC");
    }
    if slice(bytes, 0x38, 4) == Some(b"RSC\x05") {
        return Some("a Linux kernel for RISC-V; the guest machine is an x86 PC");
    }
    let prefixes: [(&[u8], &str); 7] = [
        (b"\x1f\x8b", "a gzip file; give the kernel itself, unpacked"),
        (b"\x28\xb5\x2f\xfd", "a zstd file; give the kernel itself, unpacked"),
        (b"\xfd7zXZ", "an xz file; give the kernel itself, unpacked"),
        (
            b"!<arch>",
            "an archive, perhaps a Debian package; unpack it with `dpkg-deb -x` and give its boot/vmlinuz-*",
        ),
        (b"070701", "a cpio archive; that belongs to --initrd"),
        (b"#!", "a script"),
        (b"MZ", "a PE program without a Linux boot header"),
    ];
    prefixes.iter().find(|(prefix, _)| bytes.starts_with(prefix)).map(|(_, text)| *text)
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

fn slice(bytes: &[u8], at: usize, size: usize) -> Option<&[u8]> {
    bytes.get(at..at.checked_add(size)?)
}

fn slice_at(bytes: &[u8], at: u64, size: u64) -> Option<&[u8]> {
    slice(bytes, usize::try_from(at).ok()?, usize::try_from(size).ok()?)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(slice(bytes, at, 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(slice(bytes, at, 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(slice(bytes, at, 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bzimage_bytes() -> Vec<u8> {
        let mut bytes = vec![0; 0x400 + 0x200];
        bytes[0x1f1] = 1;
        bytes[0x1f4..0x1f8].copy_from_slice(&0x20_u32.to_le_bytes());
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x211] = 1;
        bytes[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
        bytes[0x258..0x260].copy_from_slice(&0x100_0000_u64.to_le_bytes());
        bytes[0x260..0x264].copy_from_slice(&0x200_0000_u32.to_le_bytes());
        bytes
    }

    fn elf32_bytes() -> Vec<u8> {
        let mut bytes = vec![0; 52];
        bytes[..5].copy_from_slice(b"\x7fELF\x01");
        bytes[16] = 2;
        bytes[18] = 3;
        for word in [0x1bad_b002_u32, 3, 0_u32.wrapping_sub(0x1bad_b002 + 3)] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn linux_images() {
        let bytes = bzimage_bytes();
        assert_eq!(Image::identify(&bytes), Ok(Image::BzImage { end: 0x300_0000 }));
        for length in [0x206, 0x262, 0x28f, bytes.len() - 16] {
            assert!(Image::identify(&bytes[..length]).unwrap_err().contains("truncated"), "{length}");
        }
        // The size counts units of 16 bytes; the last need not be full.
        assert!(Image::identify(&bytes[..bytes.len() - 15]).is_ok());
    }

    #[test]
    fn old_boot_protocols() {
        let of = |protocol: u16, change: fn(&mut [u8])| {
            let mut bytes = bzimage_bytes();
            bytes[0x206..0x208].copy_from_slice(&protocol.to_le_bytes());
            change(&mut bytes);
            Image::identify(&bytes)
        };
        // They say neither where they want to be nor how much they need: 1 MiB, and three times their size.
        for protocol in [0x202, 0x203, 0x204, 0x205, 0x209] {
            assert_eq!(
                of(protocol, |_| {}),
                Ok(Image::BzImage { end: 0x10_0000 + 3 * 0x200 }),
                "{protocol:x}"
            );
        }
        assert_eq!(of(0x20a, |_| {}), Ok(Image::BzImage { end: 0x300_0000 }));
        // The upper half of the size is something else before 2.04.
        let junk = |bytes: &mut [u8]| bytes[0x1f6] = 7;
        assert!(of(0x203, junk).is_ok());
        assert!(of(0x204, junk).unwrap_err().contains("truncated"));
        assert!(of(0x201, |_| {}).unwrap_err().contains("2.02"));
        assert!(of(0x20f, |bytes| bytes[0x211] = 0x80).unwrap_err().contains("zImage"));
    }

    #[test]
    fn elf_images() {
        let bytes = elf32_bytes();
        assert_eq!(
            Image::identify(&bytes),
            Ok(Image::Elf(Elf { multiboot1: true, pvh: false, linux: false }))
        );
        let mut arm = bytes.clone();
        arm[18] = 183;
        assert!(Image::identify(&arm).unwrap_err().contains("64-bit ARM"));
        assert!(Image::identify(&bytes[..19]).unwrap_err().contains("truncated"));
        assert!(Image::identify(&bytes[..52]).unwrap_err().contains("no way to start"));
    }

    #[test]
    fn notes() {
        let mut notes = Vec::new();
        for (name, kind) in [(b"GNU\0", 1_u32), (b"Xen\0", 18)] {
            for word in [4_u32, 4, kind] {
                notes.extend_from_slice(&word.to_le_bytes());
            }
            notes.extend_from_slice(name);
            notes.extend_from_slice(&[0; 4]);
        }
        assert!(has_pvh_note(&notes));
        assert!(!has_pvh_note(&notes[..20]));
    }

    #[test]
    fn releases() {
        let of = |version: &[u8], at: u16| {
            let mut bytes = bzimage_bytes();
            bytes[0x20e..0x210].copy_from_slice(&at.to_le_bytes());
            let start = 0x200 + 0x100;
            bytes[start..start + version.len()].copy_from_slice(version);
            release(&bytes).map(str::to_owned)
        };
        assert_eq!(of(b"6.1.0-9-amd64 (root@host) #1 SMP\0", 0x100).as_deref(), Some("6.1.0-9-amd64"));
        assert_eq!(of(b"6.12.0\0", 0x100).as_deref(), Some("6.12.0"));
        // None, none that ends, none that is in the file, and none that may become a path.
        assert_eq!(of(b"6.12.0\0", 0), None);
        assert_eq!(of(&[b'6'; 64], 0x100), None);
        assert_eq!(of(b"6.12.0\0", 0xffff), None);
        for bad in [&b"\0"[..], b"../x\0", b"6/../x\0", b"-b\0", b"6\x01\0", b"6\xff\0"] {
            assert_eq!(of(bad, 0x100), None, "{bad:?}");
        }
        let vmlinux = [&elf32_bytes(), &b"Linux version 6.9.1+ (root@host)"[..]].concat();
        assert_eq!(release(&vmlinux), Some("6.9.1+"));
        assert_eq!(release(&elf32_bytes()), None);
    }

    #[test]
    fn other_files_are_named() {
        assert!(Image::identify(b"").unwrap_err().contains("empty"));
        assert!(Image::identify(b"#!/bin/sh").unwrap_err().contains("script"));
        assert!(Image::identify(b"070701").unwrap_err().contains("--initrd"));
        assert!(Image::identify(b"hello").unwrap_err().contains("not a kernel"));
    }

    proptest! {
        #[test]
        fn no_file_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..1024), kind in 0..3, header in any::<[u8; 52]>()) {
            let prefix = match kind { 0 => vec![], 1 => elf32_bytes()[..16].to_vec(), _ => bzimage_bytes() };
            if kind == 1 { bytes.splice(0..0, header); }
            bytes.splice(0..bytes.len().min(prefix.len()), prefix);
            let _ = Image::identify(&bytes);
            let _ = release(&bytes);
        }
    }
}
