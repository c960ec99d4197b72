//! Linux bzImages (`Documentation/arch/x86/boot.rst`, `zero-page.rst`).
//!
//! The real-mode part is only read: its header, corrected, becomes part of the zero page, and the
//! protected-mode part is entered directly, in 64-bit or in 32-bit mode.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::super::config::Protocol;
use super::place::Placer;
use super::{BootState, File, LoadError, Problem, Request, expand as payload, identify, pvh, start};
use crate::arch::addr::PAGE_SIZE;
use crate::arch::state::Gpr;
use crate::mem::guest_memory::GuestMemory;
use crate::vm::layout::{HIGH_RAM_BASE, MIB};

/// The unit of `syssize` in bytes. The last one need not be full: Linux fills it up, other images that use the protocol do
/// not.
const PARAGRAPH: u64 = 16;

/// How the kernel is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// 64-bit boot protocol.
    Bits64,
    /// 32-bit boot protocol.
    Bits32,
}

/// Offsets in the file's first sectors, and likewise in the zero page.
mod at {
    pub const SETUP_SECTS: usize = 0x1f1;
    pub const SYSSIZE: usize = 0x1f4;
    pub const VID_MODE: usize = 0x1fa;
    pub const JUMP: usize = 0x201;
    pub const MAGIC: usize = 0x202;
    pub const VERSION: usize = 0x206;
    pub const TYPE_OF_LOADER: usize = 0x210;
    pub const LOADFLAGS: usize = 0x211;
    pub const CODE32_START: usize = 0x214;
    pub const RAMDISK_IMAGE: usize = 0x218;
    pub const RAMDISK_SIZE: usize = 0x21c;
    pub const CMD_LINE_PTR: usize = 0x228;
    pub const INITRD_ADDR_MAX: usize = 0x22c;
    pub const KERNEL_ALIGNMENT: usize = 0x230;
    pub const RELOCATABLE: usize = 0x234;
    pub const XLOADFLAGS: usize = 0x236;
    pub const CMDLINE_SIZE: usize = 0x238;
    pub const PAYLOAD_OFFSET: usize = 0x248;
    pub const PAYLOAD_LENGTH: usize = 0x24c;
    pub const PREF_ADDRESS: usize = 0x258;
    pub const INIT_SIZE: usize = 0x260;
    // Only in the zero page.
    pub const EXT_MEM_K: usize = 0x002;
    pub const ACPI_RSDP_ADDR: usize = 0x070;
    pub const EXT_RAMDISK_IMAGE: usize = 0x0c0;
    pub const EXT_RAMDISK_SIZE: usize = 0x0c4;
    pub const ALT_MEM_K: usize = 0x1e0;
    pub const E820_ENTRIES: usize = 0x1e8;
    pub const E820_TABLE: usize = 0x2d0;
}

/// `LOADED_HIGH` in `loadflags`: a bzImage, not a zImage.
const LOADED_HIGH: u8 = 1;
/// `KEEP_SEGMENTS` in `loadflags`: keep the segment registers that the loader set.
const KEEP_SEGMENTS: u8 = 1 << 6;
/// `XLF_KERNEL_64` in `xloadflags`: has a 64-bit entry point at +0x200.
const XLF_KERNEL_64: u16 = 1;
/// `XLF_CAN_BE_LOADED_ABOVE_4G` in `xloadflags`.
const XLF_ABOVE_4G: u16 = 2;
/// The header's end in the zero page; what a longer header says is not for the zero page.
const HEADER_END: usize = 0x290;

/// Whether the file has a Linux boot sector with a setup header.
pub fn is_bzimage(bytes: &[u8]) -> bool {
    bytes.get(at::MAGIC..at::MAGIC + 4) == Some(b"HdrS") && bytes.get(0x1fe..0x200) == Some(b"\x55\xaa")
}

/// Whether the kernel has a 64-bit entry point.
pub fn is_64bit(bytes: &[u8]) -> bool {
    let version = bytes.get(at::VERSION..at::VERSION + 2);
    let flags = bytes.get(at::XLOADFLAGS..at::XLOADFLAGS + 2);
    let (Some(&[v0, v1]), Some(&[f0, f1])) = (version, flags) else { return false };
    u16::from_le_bytes([v0, v1]) >= 0x20c && u16::from_le_bytes([f0, f1]) & XLF_KERNEL_64 != 0
}

/// The setup header and the protected-mode code behind it.
#[derive(Debug)]
struct Image<'a> {
    file: &'a File<'a>,
    header: &'a [u8],
    version: u16,
    code: &'a [u8],
}

impl<'a> Image<'a> {
    fn parse(file: &'a File<'a>, protocol: &'static str) -> Result<Self, LoadError> {
        let bytes = file.bytes;
        let error = |problem| LoadError { file: file.name.to_string(), problem };
        if !is_bzimage(bytes) {
            let lacks = "it is not a Linux bzImage";
            return match identify::protocol(file) {
                Ok(_) => Err(error(Problem::WrongProtocol { protocol, lacks })),
                Err(e) => Err(e),
            };
        }
        let have = bytes.len() as u64;
        let header = bytes.get(..HEADER_END);
        let header =
            header.ok_or(error(Problem::Truncated { what: "the setup header", need: 0x290, have }))?;
        let version = half(header, at::VERSION);
        if version < 0x202 || header[at::LOADFLAGS] & LOADED_HIGH == 0 {
            let lacks = "it is a zImage or older than boot protocol 2.02 (Linux 2.4)";
            return Err(error(Problem::WrongProtocol { protocol, lacks }));
        }
        let sectors = match header[at::SETUP_SECTS] {
            0 => 4,
            n => n as usize,
        };
        let start = (sectors + 1) * 512;
        // Before protocol 2.04 the field had two bytes, too few for the size of a kernel: it only ever said too little.
        let paragraphs =
            if version >= 0x204 { word(header, at::SYSSIZE) } else { half(header, at::SYSSIZE).into() };
        let last = (u64::from(paragraphs) * PARAGRAPH).saturating_sub(PARAGRAPH);
        let need = start as u64 + last + 1;
        if have < need {
            return Err(error(Problem::Truncated { what: "the kernel", need, have }));
        }
        Ok(Image { file, header, version, code: &bytes[start..] })
    }

    /// A header field that exists since protocol `since`, or a default.
    fn since<T>(&self, since: u16, value: T, default: T) -> T {
        if self.version >= since { value } else { default }
    }

    fn xloadflags(&self) -> u16 {
        self.since(0x20c, half(self.header, at::XLOADFLAGS), 0)
    }

    /// Claims the memory in which the kernel expands itself, at its preferred address if that is free, and
    /// copies the protected-mode code to its start. Returns the address.
    fn place<M: GuestMemory>(&self, p: &mut Placer<'_, M>) -> Result<u64, LoadError> {
        let h = self.header;
        let preferred = self.since(0x20a, long(h, at::PREF_ADDRESS), MIB);
        // Before protocol 2.10 a kernel did not tell how much it needs; three times its size was usual then.
        let guess = (self.code.len() as u32).saturating_mul(3);
        let size = self.since(0x20a, word(h, at::INIT_SIZE), guess).max(self.code.len() as u32) as u64;
        let alignment = self.since(0x205, word(h, at::KERNEL_ALIGNMENT), 1) as u64;
        let relocatable = self.version >= 0x205 && h[at::RELOCATABLE] != 0;
        let at = match p.claim(self.file, "kernel", preferred, size) {
            Ok(()) => preferred,
            Err(e) if !relocatable => return Err(e),
            Err(_) => {
                p.claim_lowest(self.file, "kernel", size, alignment.max(PAGE_SIZE), MIB..HIGH_RAM_BASE)?
            }
        };
        p.write(self.file, at, self.code)?;
        Ok(at)
    }

    /// The end of the addresses at which an initrd may lie; all of RAM if the kernel takes it above 4 GiB.
    fn initrd_limits(&self) -> (u64, Option<u64>) {
        let max = self.since(0x203, word(self.header, at::INITRD_ADDR_MAX), 0x37ff_ffff);
        (max as u64 + 1, (self.xloadflags() & XLF_ABOVE_4G != 0).then_some(u64::MAX))
    }
}

/// Loads the request's kernel.
pub fn load(memory: &impl GuestMemory, request: &Request<'_>, entry: Entry) -> Result<BootState, LoadError> {
    let (name, protocol) = match entry {
        Entry::Bits64 => ("linux64", Protocol::Linux64),
        Entry::Bits32 => ("linux32", Protocol::Linux32),
    };
    let kernel = &request.kernel;
    let image = Image::parse(kernel, name)?;
    let error = |problem| LoadError { file: kernel.name.to_string(), problem };
    if entry == Entry::Bits64 && !is_64bit(kernel.bytes) {
        let lacks = "it has no 64-bit entry point";
        return Err(error(Problem::WrongProtocol { protocol: name, lacks }));
    }
    if let Some(module) = request.modules.first() {
        let lacks = "Linux takes an initrd, but no modules";
        let problem = Problem::WrongProtocol { protocol: name, lacks };
        return Err(LoadError { file: module.file.name.to_string(), problem });
    }
    let limit = image.since(0x206, word(image.header, at::CMDLINE_SIZE), 255) as u64;
    if request.cmdline.len() as u64 > limit {
        return Err(error(Problem::CmdlineTooLong { have: request.cmdline.len() as u64, limit }));
    }

    let mut p = Placer::new(memory, request.layout);
    let at = image.place(&mut p)?;
    let initrd = place_initrd(&mut p, &image, request)?;
    let cmdline = pvh::write_text(&mut p, kernel, request.cmdline)?;
    let zero_page = p.claim_lowest(kernel, "zero page", PAGE_SIZE, PAGE_SIZE, 0..HIGH_RAM_BASE)?;
    p.write(kernel, zero_page, &build_zero_page(&image, request, at, cmdline, initrd))?;
    let gdt = start::write_gdt(&mut p, kernel, entry == Entry::Bits64)?;
    let mut arch = match entry {
        // The identity map covers the first 4 GiB, where everything but the initrd lies.
        Entry::Bits64 => start::long_mode(at + 0x200, gdt, start::write_identity_map(&mut p, kernel)?),
        Entry::Bits32 => start::protected_mode(at as u32, gdt),
    };
    arch.gprs[Gpr::Rsi as usize] = zero_page;
    Ok(BootState { arch, protocol, placed: p.finish() })
}

fn place_initrd<M: GuestMemory>(
    p: &mut Placer<'_, M>,
    image: &Image<'_>,
    request: &Request<'_>,
) -> Result<(u64, u64), LoadError> {
    let Some(file) = request.initrd else { return Ok((0, 0)) };
    let size = file.bytes.len() as u64;
    let (low, high) = image.initrd_limits();
    let at = p.claim_highest(&file, "initrd", size, PAGE_SIZE, MIB..low).or_else(|e| match high {
        Some(high) => p.claim_highest(&file, "initrd", size, PAGE_SIZE, MIB..high),
        None => Err(e),
    })?;
    p.write(&file, at, file.bytes)?;
    Ok((at, size))
}

/// The zero page: `struct boot_params`.
fn build_zero_page(
    image: &Image<'_>,
    request: &Request<'_>,
    code: u64,
    cmdline: u64,
    (initrd, initrd_size): (u64, u64),
) -> Vec<u8> {
    let mut page = alloc::vec![0; PAGE_SIZE as usize];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    let header_end = (at::MAGIC + image.header[at::JUMP] as usize).clamp(at::RAMDISK_SIZE + 4, HEADER_END);
    put(at::SETUP_SECTS, &image.header[at::SETUP_SECTS..header_end]);
    put(at::TYPE_OF_LOADER, &[0xff]);
    put(at::LOADFLAGS, &[image.header[at::LOADFLAGS] & !KEEP_SEGMENTS]);
    put(at::VID_MODE, &0xffffu16.to_le_bytes());
    put(at::CODE32_START, &(code as u32).to_le_bytes());
    put(at::CMD_LINE_PTR, &(cmdline as u32).to_le_bytes());
    put(at::RAMDISK_IMAGE, &(initrd as u32).to_le_bytes());
    put(at::RAMDISK_SIZE, &(initrd_size as u32).to_le_bytes());
    put(at::EXT_RAMDISK_IMAGE, &((initrd >> 32) as u32).to_le_bytes());
    put(at::EXT_RAMDISK_SIZE, &((initrd_size >> 32) as u32).to_le_bytes());
    put(at::ACPI_RSDP_ADDR, &request.rsdp.0.to_le_bytes());

    // For kernels that do not read the map: memory between 1 MiB and 4 GiB.
    let above_1m_k = (request.layout.low_end().0 - MIB) / 1024;
    put(at::EXT_MEM_K, &(above_1m_k.min(0xfc00) as u16).to_le_bytes());
    put(at::ALT_MEM_K, &(above_1m_k as u32).to_le_bytes());
    let map = request.layout.map();
    put(at::E820_ENTRIES, &[map.len() as u8]);
    for (i, e) in map.iter().enumerate() {
        let entry = at::E820_TABLE + i * 20;
        put(entry, &e.base.0.to_le_bytes());
        put(entry + 8, &e.bytes.to_le_bytes());
        put(entry + 16, &(e.kind as u32).to_le_bytes());
    }
    page
}

/// Expands the compressed ELF file in a bzImage; `limit` bounds its size.
pub fn expand(kernel: &File<'_>, limit: u64) -> Result<Vec<u8>, LoadError> {
    let image = Image::parse(kernel, "pvh")?;
    let error = |what| LoadError { file: kernel.name.to_string(), problem: Problem::Decompress { what } };
    if image.version < 0x208 {
        return Err(error("its header does not say where the compressed part is (boot protocol 2.08)"));
    }
    let start = word(image.header, at::PAYLOAD_OFFSET) as usize;
    let len = word(image.header, at::PAYLOAD_LENGTH) as usize;
    let compressed = start.checked_add(len).and_then(|end| image.code.get(start..end));
    let compressed = compressed.ok_or(error("the compressed part lies beyond the end of the file"))?;
    payload::expand(compressed, limit).map_err(error)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}
