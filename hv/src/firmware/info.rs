//! What the boot loader told us, in one form for every loader.
//!
//! Everything is copied out of the loader's memory except the modules' bytes, which stay where they are. The parsers
//! ([`super::pvh`], [`super::multiboot`]) read through [`LoaderMemory`], so that they run under `cargo test` and no
//! pointer of the loader is followed unchecked.

use core::ops::Range;

use arrayvec::{ArrayString, ArrayVec};

use crate::screen::Framebuffer;

/// Entries of the memory map at most; more are dropped and counted.
pub const MAX_REGIONS: usize = 256;
/// Modules at most.
pub const MAX_MODULES: usize = 16;
/// Bytes of the hypervisor's command line at most.
pub const MAX_COMMAND_LINE: usize = 2048;
/// Bytes of a module's command line at most.
pub const MAX_MODULE_TEXT: usize = 512;

/// Memory as the loader left it.
pub trait LoaderMemory {
    /// The bytes at physical address `at`, if all of them can be read.
    fn bytes(&self, at: u64, len: u64) -> Option<&[u8]>;

    /// A little-endian u32.
    fn u32(&self, at: u64) -> Option<u32> {
        self.bytes(at, 4)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// A little-endian u64.
    fn u64(&self, at: u64) -> Option<u64> {
        self.bytes(at, 8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Copies a zero-terminated string; bytes that are not ASCII become `?`.
    fn text<const N: usize>(&self, at: u64) -> Result<ArrayString<N>, Error> {
        let mut text = ArrayString::new();
        for i in 0.. {
            let address = at.checked_add(i).ok_or(Error::BadPointer(at))?;
            let byte = *self.bytes(address, 1).and_then(|b| b.first()).ok_or(Error::BadPointer(at))?;
            if byte == 0 {
                break;
            }
            let c = if byte.is_ascii() { char::from(byte) } else { '?' };
            text.try_push(c).map_err(|_| Error::TextTooLong)?;
        }
        Ok(text)
    }
}

/// Why the loader's information cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It does not begin as the protocol demands.
    BadMagic,
    /// It points to memory that does not exist, or its lengths do not fit together.
    BadPointer(u64),
    /// A command line is longer than [`MAX_COMMAND_LINE`] or [`MAX_MODULE_TEXT`].
    TextTooLong,
    /// More than [`MAX_MODULES`] modules.
    TooManyModules,
    /// There is no memory map.
    NoMemoryMap,
}

/// What a range of the memory map holds; the numbers of E820, PVH and multiboot2 are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Free RAM.
    Usable,
    /// Firmware or devices.
    Reserved,
    /// RAM with ACPI tables.
    AcpiTables,
    /// RAM that firmware uses.
    AcpiNvs,
    /// Something else; treated as reserved.
    Other(u32),
}

impl RegionKind {
    /// From the number in the map.
    pub const fn from_e820(kind: u32) -> RegionKind {
        match kind {
            1 => RegionKind::Usable,
            2 => RegionKind::Reserved,
            3 => RegionKind::AcpiTables,
            4 => RegionKind::AcpiNvs,
            other => RegionKind::Other(other),
        }
    }
}

/// One entry of the memory map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Physical addresses.
    pub range: Range<u64>,
    /// What is there.
    pub kind: RegionKind,
}

/// A file that the loader put into memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Where its bytes are.
    pub range: Range<u64>,
    /// Its command line; empty if the loader gave none.
    pub command_line: ArrayString<MAX_MODULE_TEXT>,
}

/// The firmware that started the boot loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Firmware {
    /// The loader's protocol does not say: QEMU's `-kernel`.
    #[default]
    Unknown,
    /// A PC BIOS.
    Bios,
    /// UEFI, with the address of its 64-bit system table.
    Uefi(Option<u64>),
}

/// Everything that the boot loader told us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootInfo {
    /// The loader's name.
    pub loader: ArrayString<64>,
    /// The hypervisor's command line.
    pub command_line: ArrayString<MAX_COMMAND_LINE>,
    /// The memory map in the loader's order; entries may overlap.
    pub regions: ArrayVec<Region, MAX_REGIONS>,
    /// Entries that did not fit into `regions`, or were empty or beyond 2^64.
    pub dropped_regions: u32,
    /// Modules in the loader's order.
    pub modules: ArrayVec<Module, MAX_MODULES>,
    /// Address of the ACPI root pointer.
    pub rsdp: Option<u64>,
    /// The screen, unchecked.
    pub framebuffer: Option<Framebuffer>,
    /// The firmware that started the loader.
    pub firmware: Firmware,
    /// Memory that still holds something the hypervisor reads during its start (an RSDP copy).
    pub in_use: Option<Range<u64>>,
}

impl BootInfo {
    /// Notes an entry of the memory map.
    pub(crate) fn push_region(&mut self, start: u64, len: u64, kind: u32) {
        let region = start.checked_add(len).filter(|end| *end > start).map(|end| start..end);
        let kind = RegionKind::from_e820(kind);
        if region.and_then(|range| self.regions.try_push(Region { range, kind }).ok()).is_none() {
            self.dropped_regions += 1;
        }
    }

    /// Notes a module; its bytes must be readable.
    pub(super) fn push_module(
        &mut self,
        memory: &impl LoaderMemory,
        start: u64,
        len: u64,
        command_line: ArrayString<MAX_MODULE_TEXT>,
    ) -> Result<(), Error> {
        let bad = Error::BadPointer(start);
        let end = start.checked_add(len).ok_or(bad)?;
        memory.bytes(start, len).ok_or(bad)?;
        self.modules.try_push(Module { range: start..end, command_line }).map_err(|_| Error::TooManyModules)
    }

    /// The value of the word `name=value` on the command line; the last one counts.
    pub fn option(&self, name: &str) -> Option<&str> {
        let words = self.command_line.split_ascii_whitespace();
        words.rev().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }
}

/// The RSDP in the BIOS area, for loaders that do not pass it on (ACPI 6.5, 5.2.5.1).
pub fn find_rsdp(memory: &impl LoaderMemory) -> Option<u64> {
    (0xe_0000..0x10_0000).step_by(16).find(|at| {
        memory.bytes(*at, 20).is_some_and(|b| {
            b.starts_with(b"RSD PTR ") && b.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
        })
    })
}

/// Loader memory for tests: one run of bytes at an address.
#[cfg(any(test, feature = "testing"))]
pub struct TestMemory<'a> {
    /// Address of the first byte.
    pub base: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

#[cfg(any(test, feature = "testing"))]
impl LoaderMemory for TestMemory<'_> {
    fn bytes(&self, at: u64, len: u64) -> Option<&[u8]> {
        let start = usize::try_from(at.checked_sub(self.base)?).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(len).ok()?)?)
    }
}

/// Has a loader's parser read arbitrary bytes, the first of which is where it begins: whatever it finds lies within them. For
/// fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn check_parser<'a>(data: &'a [u8], parse: impl FnOnce(&TestMemory<'a>, u64) -> Result<BootInfo, Error>) {
    let base = 0x1000;
    if let Ok(info) = parse(&TestMemory { base, bytes: data }, base) {
        assert!(info.regions.iter().all(|r| !r.range.is_empty()));
        for module in &info.modules {
            assert!(module.range.start >= base && module.range.end <= base + data.len() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_whole_words_and_the_last_counts() {
        let mut info = BootInfo::default();
        info.command_line.push_str("quiet loglevel=info xloglevel=a  loglevel=debug guest=a=b");
        assert_eq!(info.option("loglevel"), Some("debug"));
        assert_eq!(info.option("guest"), Some("a=b"));
        assert_eq!(info.option("level"), None);
        assert_eq!(info.option("quiet"), None);
    }

    #[test]
    fn the_root_pointer_is_found_by_its_checksum() {
        let mut area = vec![0; 0x2_0000];
        area[0x100..0x108].copy_from_slice(b"RSD PTR "); // wrong sum
        area[0x1_0010..0x1_0018].copy_from_slice(b"RSD PTR ");
        let sum = area[0x1_0010..0x1_0018].iter().fold(0u8, |a, b| a.wrapping_add(*b));
        area[0x1_0018] = sum.wrapping_neg();
        assert_eq!(find_rsdp(&TestMemory { base: 0xe_0000, bytes: &area }), Some(0xf_0010));
        assert_eq!(find_rsdp(&TestMemory { base: 0, bytes: &[] }), None);
    }
}
