//! bzImages.

use super::*;
use crate::arch::state::{Gpr, SegReg, VcpuState, cr0, cr4, efer, rflags};
use crate::vm::layout::MIB;

const SETUP: usize = 512 * 3;
const CODE: usize = 0x1000;

/// A relocatable 64-bit kernel of boot protocol 2.15 that wants 2 MiB at 16 MiB.
pub fn bzimage() -> Vec<u8> {
    let mut k = vec![0; SETUP + CODE];
    k[0x1f1] = 2;
    put(&mut k, 0x1f4, &(CODE as u32 / 16).to_le_bytes());
    put(&mut k, 0x1fe, &[0x55, 0xaa, 0xeb, 0x66]);
    put(&mut k, 0x202, b"HdrS\x0f\x02");
    k[0x211] = 1;
    put(&mut k, 0x22c, &0x7fff_ffffu32.to_le_bytes());
    put(&mut k, 0x230, &0x20_0000u32.to_le_bytes());
    k[0x234] = 1;
    put(&mut k, 0x236, &3u16.to_le_bytes());
    put(&mut k, 0x238, &2047u32.to_le_bytes());
    put(&mut k, 0x258, &0x100_0000u64.to_le_bytes());
    put(&mut k, 0x260, &0x20_0000u32.to_le_bytes());
    (SETUP..SETUP + CODE).for_each(|i| k[i] = i as u8);
    k
}

#[test]
fn enters_in_64_bit_mode() {
    let kernel = bzimage();
    let (memory, state) = load_ok(&request(&kernel, 512));
    let a = &state.arch;
    assert_eq!((state.protocol, placed(&state, "kernel")), (Protocol::Linux64, 0x100_0000..0x120_0000));
    assert_eq!(memory.bytes(0x100_0000, CODE), &kernel[SETUP..]);
    assert_eq!(
        (a.rip, a.rflags, a.cr4, a.efer),
        (0x100_0200, rflags::FIXED, cr4::PAE, efer::LME | efer::LMA)
    );
    assert_eq!(a.cr0 & (cr0::PE | cr0::PG | cr0::CD | cr0::NW), cr0::PE | cr0::PG);
    assert!(a.is_64bit() && a.cpl == 0);
    let selectors = [SegReg::Cs, SegReg::Ds, SegReg::Es, SegReg::Ss].map(|s| a.segment(s).selector);
    assert_eq!(selectors, [0x10, 0x18, 0x18, 0x18]);
    // The descriptors say the same as the hidden parts.
    assert_eq!(
        (memory.u64(a.gdtr.base + 0x10), memory.u64(a.gdtr.base + 0x18)),
        (0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff)
    );
    // The identity map covers 4 GiB.
    for gva in [0u64, 0x100_0200, 0x3fff_f000, 0x4000_0000, 0xffe0_0000] {
        let pml4e = memory.u64(a.cr3 + (gva >> 39 & 511) * 8);
        let pdpte = memory.u64((pml4e & !0xfff) + (gva >> 30 & 511) * 8);
        let pde = memory.u64((pdpte & !0xfff) + (gva >> 21 & 511) * 8);
        assert_eq!(pde, gva & !0x1f_ffff | 0x83);
    }
    assert_eq!((memory.u64(a.cr3 + 8), memory.u64(a.cr3 + 0x1000 + 32)), (0, 0), "and no more");
}

#[test]
fn fills_the_zero_page() {
    let (kernel, initrd) = (bzimage(), vec![7; 5000]);
    let mut r = request(&kernel, 4096);
    r.initrd = Some(file("initrd", &initrd));
    let (memory, state) = load_ok(&r);
    let zero = state.arch.gprs[Gpr::Rsi as usize];
    assert_eq!(memory.text(memory.u32(zero + 0x228).into()), "console=ttyS0");
    assert_eq!(memory.bytes(zero + 0x202, 4), b"HdrS");
    assert_eq!(memory.bytes(zero + 0x210, 2), [0xff, 1]);
    let (at, size) = (memory.u32(zero + 0x218), memory.u32(zero + 0x21c));
    assert_eq!((u64::from(at), size), (0x8000_0000 - 0x2000, 5000), "as high as initrd_addr_max allows");
    assert_eq!(memory.bytes(at.into(), 5000), initrd);
    assert_eq!((memory.u32(zero + 0xc0), memory.u32(zero + 0xc4)), (0, 0));
    assert_eq!(memory.u64(zero + 0x70), 0xf_0000, "RSDP");
    assert_eq!(memory.bytes(zero + 0x1ef, 1), [0], "sentinel");
    let count = memory.bytes(zero + 0x1e8, 1)[0] as u64;
    let map: Vec<_> = (0..count).map(|i| zero + 0x2d0 + i * 20).collect();
    let map: Vec<_> = map.iter().map(|&e| (memory.u64(e), memory.u64(e + 8), memory.u32(e + 16))).collect();
    assert_eq!(map.first(), Some(&(0, 0x9_fc00, 1)));
    assert_eq!(map.last(), Some(&(1 << 32, 1 << 30, 1)));
    assert_eq!(memory.bytes(zero, 2), [0, 0]);
}

#[test]
fn initrd_goes_above_4_gib_only_if_allowed() {
    let mut kernel = bzimage();
    put(&mut kernel, 0x22c, &0x37_ffffu32.to_le_bytes());
    let initrd = vec![1; 4 << 20];
    let mut r = request(&kernel, 3073);
    r.initrd = Some(file("initrd", &initrd[..3 << 20]));
    // The limit leaves 2.5 MiB: it must go up, where there is 1 MiB, or to the top of low RAM.
    let (memory, state) = load_ok(&r);
    let zero = state.arch.gprs[Gpr::Rsi as usize];
    assert_eq!(placed(&state, "initrd"), 0xbfd0_0000..0xc000_0000);
    assert_eq!(memory.u32(zero + 0x218), 0xbfd0_0000);
    r.layout = MemoryLayout::new(3072 + 8);
    let (memory, state) = load_ok(&r);
    let zero = state.arch.gprs[Gpr::Rsi as usize];
    assert_eq!((memory.u32(zero + 0x218), memory.u32(zero + 0xc0)), (0x50_0000, 1));

    let mut low_only = kernel.clone();
    put(&mut low_only, 0x236, &1u16.to_le_bytes());
    r.kernel.bytes = &low_only;
    let e = load_err(&r);
    assert_eq!(e.file, "initrd");
    assert!(matches!(e.problem, Problem::DoesNotFit { size: 0x30_0000, max: 0x38_0000, .. }), "{e}");
}

#[test]
fn enters_32_bit_kernels_in_protected_mode() {
    let mut kernel = bzimage();
    put(&mut kernel, 0x236, &0u16.to_le_bytes());
    let (memory, state) = load_ok(&request(&kernel, 64));
    let a = &state.arch;
    assert_eq!((state.protocol, a.rip, a.cr0 & cr0::PG, a.efer), (Protocol::Linux32, 0x100_0000, 0, 0));
    assert_eq!(
        (a.code_bitness(), a.segment(SegReg::Cs).selector, a.segment(SegReg::Ds).selector),
        (32, 0x10, 0x18)
    );
    assert_eq!([Gpr::Rbp, Gpr::Rdi, Gpr::Rbx].map(|r| a.gpr(r)), [0; 3]);
    assert_eq!(memory.u32(a.gpr(Gpr::Rsi) + 0x214), 0x100_0000);
    let mut r = request(&kernel, 64);
    r.protocol = Protocol::Linux64;
    assert!(load_err(&r).to_string().contains("64-bit entry"));
    // Protocol 2.02 knows little: loaded at 1 MiB, a short command line, an initrd below 0x38000000.
    put(&mut kernel, 0x206, &0x202u16.to_le_bytes());
    let (_, state) = load_ok(&request(&kernel, 64));
    assert_eq!(placed(&state, "kernel").start, 0x10_0000);
}

/// Debian's memtest86+ ends with a part of a paragraph.
#[test]
fn the_last_paragraph_need_not_be_full() {
    let mut kernel = bzimage();
    kernel.truncate(SETUP + CODE - 15);
    let (memory, _) = load_ok(&request(&kernel, 64));
    assert_eq!(memory.bytes(0x100_0000, CODE - 15), &kernel[SETUP..]);
    kernel.truncate(SETUP + CODE - 16);
    let problem = load_err(&request(&kernel, 64)).problem;
    let (need, have) = ((SETUP + CODE - 15) as u64, (SETUP + CODE - 16) as u64);
    assert_eq!(problem, Problem::Truncated { what: "the kernel", need, have });
}

#[test]
fn reads_of_an_old_header_only_what_it_has() {
    let mut kernel = bzimage();
    let version = |kernel: &mut Vec<u8>, version: u16| put(kernel, 0x206, &version.to_le_bytes());
    // The size's upper half belongs to something else before 2.04.
    put(&mut kernel, 0x1f6, &[7, 0]);
    version(&mut kernel, 0x203);
    let (memory, state) = load_ok(&request(&kernel, 64));
    assert_eq!(placed(&state, "kernel"), MIB..MIB + 3 * CODE as u64, "it expands to three times its size");
    assert_eq!((state.protocol, state.arch.rip), (Protocol::Linux32, MIB));
    assert_eq!(memory.bytes(MIB, CODE), &kernel[SETUP..]);
    version(&mut kernel, 0x204);
    assert!(matches!(load_err(&request(&kernel, 64)).problem, Problem::Truncated { .. }));
    put(&mut kernel, 0x1f6, &[0, 0]);
    // From 2.05 on it may say that it can move, but not where it wants to be.
    for old in 0x205..0x20a {
        version(&mut kernel, old);
        let (_, state) = load_ok(&request(&kernel, 64));
        assert_eq!((state.protocol, state.arch.rip), (Protocol::Linux32, MIB), "{old:x}");
    }
    // The longest command line, from 2.06 on, and 255 before.
    put(&mut kernel, 0x238, &300u32.to_le_bytes());
    let words = "w".repeat(300);
    for (old, fits) in [(0x205, false), (0x206, true)] {
        version(&mut kernel, old);
        let request = Request { cmdline: &words, ..request(&kernel, 64) };
        if fits {
            load_ok(&request);
        } else {
            assert_eq!(load_err(&request).problem, Problem::CmdlineTooLong { have: 300, limit: 255 });
        }
    }
}

#[test]
fn moves_where_the_preferred_address_is_not_ram() {
    let mut kernel = bzimage();
    put(&mut kernel, 0x258, &0x800_0000u64.to_le_bytes());
    let (_, state) = load_ok(&request(&kernel, 64));
    assert_eq!((placed(&state, "kernel").start, state.arch.rip), (0x20_0000, 0x20_0200));
    kernel[0x234] = 0;
    assert!(matches!(load_err(&request(&kernel, 64)).problem, Problem::DoesNotFit { min: 0x800_0000, .. }));
}

#[test]
fn says_what_is_wrong() {
    let kernel = bzimage();
    for len in [0x290, SETUP, SETUP + CODE - 16] {
        let e = load_err(&request(&kernel[..len], 64));
        assert!(matches!(e.problem, Problem::Truncated { what: "the kernel", .. }), "{e}");
    }
    let mut big = kernel.clone();
    put(&mut big, 0x260, &(30u32 << 20).to_le_bytes());
    let message = load_err(&request(&big, 20)).to_string();
    assert!(message.contains("30 MiB") && message.contains("20 MiB, raise `memory_mib`"), "{message}");

    let line = "x".repeat(2048);
    let mut r = request(&kernel, 64);
    r.cmdline = &line;
    assert_eq!(load_err(&r).problem, Problem::CmdlineTooLong { have: 2048, limit: 2047 });
    let mut r = request(&kernel, 64);
    r.modules.push(Module { file: file("m", b""), cmdline: "" });
    assert!(load_err(&r).to_string().contains("no modules"));
    let mut old = kernel.clone();
    old[0x211] = 0;
    assert!(load_err(&request(&old, 64)).to_string().contains("zImage"));
    let elf = super::elf_files::pvh_kernel();
    let mut r = request(&elf, 64);
    r.protocol = Protocol::Linux64;
    assert!(load_err(&r).to_string().contains("not a Linux bzImage"));
}

/// A bzImage whose payload is `payload`.
fn with_payload(payload: &[u8]) -> Vec<u8> {
    let mut k = bzimage();
    k.truncate(SETUP);
    k.extend_from_slice(&[0; 16]);
    k.extend_from_slice(payload);
    k.resize(SETUP + (k.len() - SETUP).next_multiple_of(16), 0);
    let code = (k.len() - SETUP) as u32;
    put(&mut k, 0x1f4, &(code / 16).to_le_bytes());
    put(&mut k, 0x248, &16u32.to_le_bytes());
    put(&mut k, 0x24c, &(payload.len() as u32).to_le_bytes());
    k
}

fn sized(mut payload: Vec<u8>, size: usize) -> Vec<u8> {
    payload.extend_from_slice(&(size as u32).to_le_bytes());
    payload
}

#[test]
fn pvh_expands_the_payload() {
    let elf = super::elf_files::pvh_kernel();
    let mut block = vec![0; elf.len() * 2];
    let len = lz4_flex::block::compress_into(&elf, &mut block).unwrap();
    let lz4 = [&0x184c_2102u32.to_le_bytes()[..], &(len as u32).to_le_bytes(), &block[..len]].concat();
    let lz4 = sized(lz4, elf.len());
    // A gzip file with a name and one stored block.
    let stored =
        [&[1][..], &(elf.len() as u16).to_le_bytes(), &(!elf.len() as u16).to_le_bytes(), &elf].concat();
    let gzip = [b"\x1f\x8b\x08\x08\0\0\0\0\0\0vmlinux\0", &stored[..], &[0; 4]].concat();
    let gzip = sized(gzip, elf.len());
    for payload in [&lz4, &gzip] {
        let kernel = with_payload(payload);
        let mut r = request(&kernel, 64);
        r.protocol = Protocol::Pvh;
        let (memory, state) = load_ok(&r);
        assert_eq!((state.protocol, state.arch.rip), (Protocol::Pvh, 0x100_0040));
        assert_eq!(memory.bytes(0x100_0000, 4), b"code");

        let mut damaged = payload.clone();
        let len = damaged.len();
        damaged[len - 4] ^= 1;
        let kernel = with_payload(&damaged);
        r.kernel.bytes = &kernel;
        assert!(matches!(load_err(&r).problem, Problem::Decompress { .. }));
        put(&mut damaged, len - 4, &[0xff; 4]);
        let kernel = with_payload(&damaged);
        r.kernel.bytes = &kernel;
        assert!(load_err(&r).to_string().contains("raise `memory_mib`"));
    }
    let kernel = with_payload(&sized(b"\xfd7zXZ\0".to_vec(), 100));
    let mut r = request(&kernel, 64);
    r.protocol = Protocol::Pvh;
    assert!(load_err(&r).to_string().contains("extract vmlinux"));
}
