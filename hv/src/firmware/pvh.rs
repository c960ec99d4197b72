//! PVH: the start-info structure of Xen's direct boot, which QEMU's `-kernel` uses too.
//!
//! Layout: Xen's public header `arch-x86/hvm/start_info.h`; the memory map is there from version 1 on.

use super::info::{BootInfo, Error, LoaderMemory};

const MAGIC: u32 = 0x336e_c578;
/// Entries of the memory map that are looked at; more than any machine has.
const MAX_ENTRIES: u32 = 4096;

/// Reads the start-info structure at `at`.
pub fn parse(memory: &impl LoaderMemory, at: u64) -> Result<BootInfo, Error> {
    let field32 = |offset| memory.u32(at.checked_add(offset)?);
    let field64 = |offset| memory.u64(at.checked_add(offset)?);
    let bad = Error::BadPointer(at);
    if field32(0).ok_or(bad)? != MAGIC {
        return Err(Error::BadMagic);
    }
    let version = field32(4).ok_or(bad)?;
    let mut info = BootInfo::default();
    info.loader.push_str("a PVH loader");
    let modules = field32(12).ok_or(bad)?;
    let module_list = field64(16).ok_or(bad)?;
    let command_line = field64(24).ok_or(bad)?;
    info.rsdp = field64(32).filter(|rsdp| *rsdp != 0);
    if command_line != 0 {
        info.command_line = memory.text(command_line)?;
    }
    for i in 0..u64::from(modules) {
        let entry = module_list.checked_add(i * 32).ok_or(Error::BadPointer(module_list))?;
        let field = |offset| memory.u64(entry.checked_add(offset)?);
        let (Some(start), Some(len), Some(text)) = (field(0), field(8), field(16)) else {
            return Err(Error::BadPointer(entry));
        };
        let command_line = if text == 0 { Default::default() } else { memory.text(text)? };
        info.push_module(memory, start, len, command_line)?;
    }
    if version == 0 {
        return Err(Error::NoMemoryMap);
    }
    let map = field64(40).ok_or(bad)?;
    let entries = field32(48).ok_or(bad)?;
    for i in 0..u64::from(entries.min(MAX_ENTRIES)) {
        let entry = map.checked_add(i * 24).ok_or(Error::BadPointer(map))?;
        let bad = Error::BadPointer(entry);
        let kind = entry.checked_add(16).and_then(|at| memory.u32(at)).ok_or(bad)?;
        let len = entry.checked_add(8).and_then(|at| memory.u64(at)).ok_or(bad)?;
        info.push_region(memory.u64(entry).ok_or(bad)?, len, kind);
    }
    if info.regions.is_empty() { Err(Error::NoMemoryMap) } else { Ok(info) }
}

/// Parses arbitrary bytes as a PVH loader's memory; for fuzzing.
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

    /// Start info at 0, module list at 64, map at 128, texts at 200 and 220, module at 256.
    fn image() -> Vec<u8> {
        let mut m = vec![0u8; 300];
        let mut put = |at: usize, bytes: &[u8]| m[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(4, &1u32.to_le_bytes());
        put(12, &1u32.to_le_bytes());
        put(16, &(BASE + 64).to_le_bytes());
        put(24, &(BASE + 200).to_le_bytes());
        put(32, &0xf_5a00u64.to_le_bytes());
        put(40, &(BASE + 128).to_le_bytes());
        put(48, &2u32.to_le_bytes());
        put(64, &(BASE + 256).to_le_bytes());
        put(72, &44u64.to_le_bytes());
        put(80, &(BASE + 220).to_le_bytes());
        put(136, &0xa0000u64.to_le_bytes());
        put(144, &1u32.to_le_bytes());
        put(152, &0x10_0000u64.to_le_bytes());
        put(160, &0x8000u64.to_le_bytes());
        put(168, &3u32.to_le_bytes());
        put(200, b"loglevel=debug\0");
        put(220, b"vmlinuz\0");
        m
    }

    #[test]
    fn reads_everything() {
        let image = image();
        let info = parse(&TestMemory { base: BASE, bytes: &image }, BASE).unwrap();
        assert_eq!(info.option("loglevel"), Some("debug"));
        assert_eq!(info.rsdp, Some(0xf_5a00));
        assert_eq!(info.modules[0].range, BASE + 256..BASE + 300);
        assert_eq!(&info.modules[0].command_line, "vmlinuz");
        assert_eq!(info.regions[0].range, 0..0xa0000);
        assert_eq!(info.regions[1].kind, RegionKind::AcpiTables);
    }

    #[test]
    fn broken_information_is_refused() {
        let parse_with = |at: usize, bytes: &[u8]| {
            let mut image = image();
            image[at..at + bytes.len()].copy_from_slice(bytes);
            parse(&TestMemory { base: BASE, bytes: &image }, BASE).unwrap_err()
        };
        assert_eq!(parse_with(0, &[0]), Error::BadMagic);
        assert_eq!(parse_with(4, &[0]), Error::NoMemoryMap);
        assert_eq!(parse_with(48, &[0]), Error::NoMemoryMap);
        assert_eq!(parse_with(72, &[45]), Error::BadPointer(BASE + 256));
        assert_eq!(parse_with(79, &[0xff]), Error::BadPointer(BASE + 256));
        assert!(matches!(parse_with(12, &[0xff, 0xff, 0xff, 0xff]), Error::BadPointer(_)));
        assert!(matches!(parse_with(47, &[0xff]), Error::BadPointer(_)));
        let unended = [b'x'; 100];
        assert!(matches!(parse_with(200, &unended), Error::BadPointer(_)));
    }

    proptest! {
        #[test]
        fn damaged_information_never_panics(changes in prop::collection::vec((0usize..300, any::<u8>()), 0..12), len in 0usize..300) {
            let mut image = image();
            for (at, byte) in changes {
                image[at] = byte;
            }
            let _ = parse(&TestMemory { base: BASE, bytes: &image[..len] }, BASE);
            fuzz_one(&image);
        }
    }
}
