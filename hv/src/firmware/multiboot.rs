//! Multiboot2: the tagged list that GRUB leaves (specification 2.0, section 3.6).

use super::info::{BootInfo, Error, Firmware, LoaderMemory};
use crate::screen::{Field, Framebuffer, Kind};

/// Tag types.
mod tag {
    pub const END: u32 = 0;
    pub const COMMAND_LINE: u32 = 1;
    pub const LOADER_NAME: u32 = 2;
    pub const MODULE: u32 = 3;
    pub const MEMORY_MAP: u32 = 6;
    pub const FRAMEBUFFER: u32 = 8;
    pub const EFI_32: u32 = 11;
    pub const EFI_64: u32 = 12;
    pub const ACPI_OLD: u32 = 14;
    pub const ACPI_NEW: u32 = 15;
}

/// Reads the list at `at`.
pub fn parse(memory: &impl LoaderMemory, at: u64) -> Result<BootInfo, Error> {
    let bad = Error::BadPointer(at);
    let total = u64::from(memory.u32(at).ok_or(bad)?);
    let end = at.checked_add(total).ok_or(bad)?;
    memory.bytes(at, total).ok_or(bad)?;
    // A loader under UEFI gives the address of its system table, which turns this into the other.
    let mut info = BootInfo { in_use: Some(at..end), firmware: Firmware::Bios, ..BootInfo::default() };
    let mut next = at + 8;
    loop {
        let bad = Error::BadPointer(next);
        // The header, and then the whole tag, lie within the list.
        if next + 8 > end {
            return Err(bad);
        }
        let kind = memory.u32(next).ok_or(bad)?;
        let size = u64::from(memory.u32(next + 4).ok_or(bad)?);
        if size < 8 || size > end - next {
            return Err(bad);
        }
        if kind == tag::END {
            break;
        }
        let tag = Tag { memory, at: next, size };
        tag.read(kind, &mut info)?;
        next += size.next_multiple_of(8);
    }
    if info.regions.is_empty() { Err(Error::NoMemoryMap) } else { Ok(info) }
}

/// One tag; `at..at + size` is readable.
struct Tag<'a, M> {
    memory: &'a M,
    at: u64,
    size: u64,
}

impl<M: LoaderMemory> Tag<'_, M> {
    fn u32(&self, offset: u64) -> Result<u32, Error> {
        let inside = offset + 4 <= self.size;
        inside.then(|| self.memory.u32(self.at + offset)).flatten().ok_or(Error::BadPointer(self.at))
    }

    fn u64(&self, offset: u64) -> Result<u64, Error> {
        Ok(u64::from(self.u32(offset)?) | u64::from(self.u32(offset + 4)?) << 32)
    }

    /// Section 3.6.12.
    fn framebuffer(&self) -> Result<Framebuffer, Error> {
        let byte = |word: u32, index: usize| word.to_le_bytes()[index];
        let types = self.u32(28)?;
        let kind = match byte(types, 1) {
            1 => {
                let (first, second) = (self.u32(32)?, self.u32(34)?);
                let field = |word, index| Field { position: byte(word, index), size: byte(word, index + 1) };
                Kind::Rgb([field(first, 0), field(first, 2), field(second, 2)])
            }
            2 => Kind::Text,
            other => Kind::Other(other),
        };
        let (address, pitch) = (self.u64(8)?, self.u32(16)?);
        let (width, height, bits) = (self.u32(20)?, self.u32(24)?, byte(types, 0));
        Ok(Framebuffer { address, pitch, width, height, bits, kind })
    }

    fn read(&self, kind: u32, info: &mut BootInfo) -> Result<(), Error> {
        match kind {
            tag::COMMAND_LINE => info.command_line = self.memory.text(self.at + 8)?,
            tag::LOADER_NAME => info.loader = self.memory.text(self.at + 8).unwrap_or_default(),
            tag::MODULE => {
                let (start, end) = (u64::from(self.u32(8)?), u64::from(self.u32(12)?));
                let len = end.checked_sub(start).ok_or(Error::BadPointer(start))?;
                let command_line = self.memory.text(self.at + 16)?;
                info.push_module(self.memory, start, len, command_line)?;
            }
            tag::MEMORY_MAP => {
                let entry_size = u64::from(self.u32(8)?);
                if entry_size < 24 {
                    return Err(Error::BadPointer(self.at));
                }
                let mut offset = 16;
                while offset + entry_size <= self.size {
                    info.push_region(self.u64(offset)?, self.u64(offset + 8)?, self.u32(offset + 16)?);
                    offset += entry_size;
                }
            }
            // A screen that is not described as it should be is none: nothing else depends on it.
            tag::FRAMEBUFFER => info.framebuffer = self.framebuffer().ok(),
            tag::EFI_32 => info.firmware = Firmware::Uefi(None),
            tag::EFI_64 => info.firmware = Firmware::Uefi(self.u64(8).ok()),
            // The tag holds a copy of the root pointer. The newer form wins.
            tag::ACPI_NEW => info.rsdp = Some(self.at + 8),
            tag::ACPI_OLD => info.rsdp = info.rsdp.or(Some(self.at + 8)),
            _ => {}
        }
        Ok(())
    }
}

/// Parses arbitrary bytes as a multiboot2 loader's memory; for fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    super::info::check_parser(data, parse);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firmware::info::{RegionKind, TestMemory};
    use proptest::prelude::*;

    const BASE: u64 = 0x9000;

    fn tag(list: &mut Vec<u8>, kind: u32, body: &[u8]) {
        list.extend(kind.to_le_bytes());
        list.extend((8 + body.len() as u32).to_le_bytes());
        list.extend(body);
        list.resize(list.len().next_multiple_of(8), 0);
    }

    fn image() -> Vec<u8> {
        let mut list = vec![0; 8];
        tag(&mut list, 1, b"loglevel=debug\0");
        tag(&mut list, 2, b"GRUB 2.06\0");
        tag(&mut list, 9, &[1, 2, 3]); // ELF sections: skipped
        let mut module = vec![];
        module.extend((BASE as u32 + 8).to_le_bytes());
        module.extend((BASE as u32 + 20).to_le_bytes());
        module.extend(b"vmlinuz console=ttyS0\0");
        tag(&mut list, 3, &module);
        let mut map = vec![];
        map.extend(24u32.to_le_bytes());
        map.extend(0u32.to_le_bytes());
        for (start, len, kind) in [(0u64, 0xa0000u64, 1u64), (0x10_0000, 0x8000, 3)] {
            map.extend([start, len, kind].iter().flat_map(|v| v.to_le_bytes()));
        }
        tag(&mut list, 6, &map);
        let mut screen = vec![];
        screen.extend(0xfd00_0000u64.to_le_bytes());
        screen.extend([4096u32, 1024, 768].iter().flat_map(|v| v.to_le_bytes()));
        screen.extend([32, 1, 0, 0, 16, 8, 8, 7, 0, 6]);
        tag(&mut list, 8, &screen);
        tag(&mut list, 15, b"RSD PTR ");
        tag(&mut list, 14, b"RSD PTR ");
        tag(&mut list, 0, &[]);
        let total = list.len() as u32;
        list[..4].copy_from_slice(&total.to_le_bytes());
        list
    }

    #[test]
    fn reads_everything() {
        let image = image();
        let memory = TestMemory { base: BASE, bytes: &image };
        let info = parse(&memory, BASE).unwrap();
        assert_eq!(info.option("loglevel"), Some("debug"));
        assert_eq!(&info.loader, "GRUB 2.06");
        assert_eq!(&info.modules[0].command_line, "vmlinuz console=ttyS0");
        assert_eq!(info.modules[0].range, BASE + 8..BASE + 20);
        assert_eq!(info.regions[0].range, 0..0xa0000);
        assert_eq!(info.regions[1].kind, RegionKind::AcpiTables);
        let rsdp = info.rsdp.unwrap();
        assert_eq!(memory.bytes(rsdp - 8, 12).unwrap(), b"\x0f\0\0\0\x10\0\0\0RSD ", "the new form's copy");
        let field = |position, size| Field { position, size };
        let expected = Framebuffer {
            address: 0xfd00_0000,
            pitch: 4096,
            width: 1024,
            height: 768,
            bits: 32,
            kind: Kind::Rgb([field(16, 8), field(8, 7), field(0, 6)]),
        };
        assert_eq!(info.framebuffer, Some(expected));
        assert_eq!(info.firmware, Firmware::Bios);
        assert_eq!(info.in_use, Some(BASE..BASE + image.len() as u64));
    }

    #[test]
    fn other_screens_and_firmware() {
        let list = |tags: &[(u32, &[u8])]| {
            let mut map = vec![24, 0, 0, 0, 0, 0, 0, 0];
            map.extend([0u64, 1 << 20, 1].iter().flat_map(|v| v.to_le_bytes()));
            let mut list = vec![0; 8];
            tags.iter()
                .chain(&[(6, &map[..]), (0, &[])])
                .for_each(|(kind, body)| tag(&mut list, *kind, body));
            let total = list.len() as u32;
            list[..4].copy_from_slice(&total.to_le_bytes());
            parse(&TestMemory { base: BASE, bytes: &list }, BASE).unwrap()
        };
        let mut text = [0; 24];
        text[..8].copy_from_slice(&0xb8000u64.to_le_bytes());
        (text[8], text[12], text[16], text[20], text[21]) = (160, 80, 25, 16, 2);
        let info = list(&[(8, &text), (12, &[0; 8])]);
        assert_eq!(info.framebuffer.map(|f| (f.address, f.pitch, f.kind)), Some((0xb8000, 160, Kind::Text)));
        assert_eq!(info.firmware, Firmware::Uefi(Some(0)));
        text[21] = 1;
        assert_eq!(list(&[(8, &text)]).framebuffer, None, "pixels without their fields");
        text[21] = 0;
        assert_eq!(list(&[(8, &text)]).framebuffer.map(|f| f.kind), Some(Kind::Other(0)));
        assert_eq!(list(&[(8, &text[..20])]).framebuffer, None);
    }

    #[test]
    fn broken_lists_are_refused() {
        let good = image();
        for len in 0..good.len() {
            assert!(parse(&TestMemory { base: BASE, bytes: &good[..len] }, BASE).is_err(), "cut at {len}");
        }
        let mut zero_size = image();
        zero_size[12..16].fill(0);
        assert_eq!(
            parse(&TestMemory { base: BASE, bytes: &zero_size }, BASE),
            Err(Error::BadPointer(BASE + 8))
        );
    }

    proptest! {
        #[test]
        fn damaged_lists_never_panic(changes in prop::collection::vec((0usize..280, any::<u8>()), 0..12)) {
            let mut image = image();
            let len = image.len();
            for (at, byte) in changes {
                image[at % len] = byte;
            }
            fuzz_one(&image);
        }
    }
}
