//! PVH and multiboot kernels.

use super::*;
use crate::arch::state::{Gpr, SegReg, VcpuState, cr0};

/// One segment: type, virtual and physical address, size in memory, alignment, contents.
type Part<'a> = (u32, u64, u64, u64, u64, &'a [u8]);

/// An ELF file with these segments.
pub fn elf(is64: bool, entry: u64, parts: &[Part<'_>]) -> Vec<u8> {
    let (header, entry_size) = if is64 { (64, 56) } else { (52, 32) };
    let mut out = b"\x7fELF".to_vec();
    out.extend_from_slice(&[if is64 { 2 } else { 1 }, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let halves =
        |out: &mut Vec<u8>, list: &[u16]| list.iter().for_each(|h| out.extend_from_slice(&h.to_le_bytes()));
    let addr =
        |out: &mut Vec<u8>, v: u64| out.extend_from_slice(&v.to_le_bytes()[..if is64 { 8 } else { 4 }]);
    halves(&mut out, &[2, if is64 { 62 } else { 3 }, 1, 0]);
    [entry, header, 0].iter().for_each(|&v| addr(&mut out, v));
    out.extend_from_slice(&[0; 4]);
    halves(&mut out, &[header as u16, entry_size as u16, parts.len() as u16, 0, 0, 0]);
    let mut offset = header + entry_size * parts.len() as u64;
    for (kind, virt, phys, mem, align, bytes) in parts {
        out.extend_from_slice(&kind.to_le_bytes());
        if is64 {
            out.extend_from_slice(&[7, 0, 0, 0]);
        }
        [offset, *virt, *phys, bytes.len() as u64, *mem].iter().for_each(|&v| addr(&mut out, v));
        if !is64 {
            out.extend_from_slice(&[7, 0, 0, 0]);
        }
        addr(&mut out, *align);
        offset += bytes.len() as u64;
    }
    parts.iter().for_each(|p| out.extend_from_slice(p.5));
    out
}

fn note(owner: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
    let mut n = [owner.len() as u32, desc.len() as u32, kind].map(u32::to_le_bytes).concat();
    for part in [owner, desc] {
        n.extend_from_slice(part);
        n.resize(n.len().next_multiple_of(4), 0);
    }
    n
}

/// A kernel at 16 MiB, linked high, with 8 KiB of zeroed data.
pub fn pvh_kernel() -> Vec<u8> {
    let notes = [note(b"GNU\0", 3, &[9; 20]), note(b"Xen\0", 18, &0x100_0040u64.to_le_bytes())].concat();
    elf(
        true,
        0x100_0000,
        &[
            (1, 0xffff_ffff_8100_0000, 0x100_0000, 0x2004, 0x20_0000, b"code"),
            (4, 0xffff_ffff_8200_0000, 0x200_0000, 0, 4, &notes),
        ],
    )
}

#[test]
fn pvh_hands_over_a_start_info() {
    let kernel = pvh_kernel();
    let mut r = request(&kernel, 64);
    r.initrd = Some(file("initrd", b"ramdisk"));
    r.modules.push(Module { file: file("m", b"module"), cmdline: "m 1" });
    let (memory, state) = load_ok(&r);
    let a = &state.arch;
    assert_eq!(
        (state.protocol, a.rip, a.code_bitness(), a.cr0 & cr0::PG),
        (Protocol::Pvh, 0x100_0040, 32, 0)
    );
    assert_eq!(
        (a.cr4, a.efer, a.segment(SegReg::Tr).limit, a.segment(SegReg::Tr).attributes),
        (0, 0, 0x67, 0x8b)
    );
    assert_eq!(memory.bytes(0x100_0000, 4), b"code");
    assert!(memory.bytes(0x100_0004, 0x2000).iter().all(|&b| b == 0), "zeroed data");
    let info = a.gpr(Gpr::Rbx);
    assert_eq!([0, 4, 8, 12].map(|o| memory.u32(info + o)), [0x336e_c578, 1, 0, 2]);
    assert_eq!(
        (memory.text(memory.u64(info + 24)), memory.u64(info + 32)),
        ("console=ttyS0".into(), 0xf_0000)
    );
    let list = memory.u64(info + 16);
    let module = |i: u64| [0, 8, 16, 24].map(|o| memory.u64(list + i * 32 + o));
    let [at, size, cmdline, reserved] = module(0);
    assert_eq!((memory.bytes(at, size as usize), cmdline, reserved), (b"ramdisk".to_vec(), 0, 0));
    let [at, size, cmdline, _] = module(1);
    assert_eq!((memory.bytes(at, size as usize), memory.text(cmdline)), (b"module".to_vec(), "m 1".into()));
    let (map, entries) = (memory.u64(info + 40), memory.u32(info + 48));
    assert_eq!(entries as usize, r.layout.map().len());
    assert_eq!((memory.u64(map), memory.u64(map + 8), memory.u32(map + 16)), (0, 0x9_fc00, 1));
}

#[test]
fn pvh_needs_its_note() {
    let no_note = elf(true, 0, &[(1, 0, 0x100_0000, 4, 1, b"code")]);
    assert!(load_err(&request(&no_note, 64)).to_string().contains("without a PVH note"));
    let mut r = request(&no_note, 64);
    r.protocol = Protocol::Pvh;
    assert!(load_err(&r).to_string().contains("PHYS32_ENTRY"));
    let notes = note(b"Xen\0", 18, &0x100_0000u32.to_le_bytes());
    let hole = elf(true, 0, &[(1, 0, 0xd000_0000, 4, 1, b"code"), (4, 0, 0, 0, 4, &notes)]);
    let e = load_err(&request(&hole, 64));
    assert!(matches!(e.problem, Problem::DoesNotFit { min: 0xd000_0000, size: 4, .. }), "{e}");
    let twice = elf(
        false,
        0,
        &[(1, 0, 0x10_0000, 8, 1, b"code"), (1, 0, 0x10_0004, 4, 1, b"data"), (4, 0, 0, 0, 4, &notes)],
    );
    let e = load_err(&request(&twice, 64));
    assert_eq!(e.problem, Problem::Overlap { what: "kernel", at: 0x10_0004, size: 4, other: "kernel" });
    let low = elf(false, 0, &[(1, 0, 0xe_0000, 8, 1, b"code"), (4, 0, 0, 0, 4, &notes)]);
    assert!(load_err(&request(&low, 64)).to_string().contains("ACPI tables"));
}

#[test]
fn truncated_elf_files_are_refused() {
    let kernel = pvh_kernel();
    for len in 5..kernel.len() {
        let e = load_err(&request(&kernel[..len], 64));
        assert!(!matches!(e.problem, Problem::NotRam(_)), "{len}: {e}");
    }
}

fn multiboot_header(flags: u32) -> Vec<u8> {
    [0x1bad_b002, flags, 0u32.wrapping_sub(0x1bad_b002).wrapping_sub(flags)].map(u32::to_le_bytes).concat()
}

#[test]
fn multiboot_elf_gets_modules_and_map() {
    let mut code = multiboot_header(7);
    code.extend_from_slice(b"code");
    // Linked at 3 GiB, loaded at 1 MiB.
    let kernel = elf(false, 0xc000_000c, &[(1, 0xc000_0000, 0x10_0000, 0x1800, 4, &code)]);
    let mut r = request(&kernel, 64);
    r.modules.push(Module { file: file("env", b"A=1"), cmdline: "x y" });
    r.modules.push(Module { file: file("two", &[2; 5000]), cmdline: "" });
    let (memory, state) = load_ok(&r);
    let a = &state.arch;
    assert_eq!((state.protocol, a.rip, a.gpr(Gpr::Rax)), (Protocol::Multiboot1, 0x10_000c, 0x2bad_b002));
    assert_eq!((a.code_bitness(), a.cr0 & (cr0::PE | cr0::PG)), (32, cr0::PE));
    let info = a.gpr(Gpr::Rbx);
    assert_eq!(memory.u32(info), 1 << 0 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 9);
    assert_eq!((memory.u32(info + 4), memory.u32(info + 8)), (639, 63 * 1024));
    assert_eq!(memory.text(memory.u32(info + 16).into()), "kernel console=ttyS0");
    assert_eq!(memory.text(memory.u32(info + 64).into()), "Palimpsest");
    assert_eq!(memory.u32(info + 20), 2);
    let mods = u64::from(memory.u32(info + 24));
    let module = |i: u64| [0, 4, 8].map(|o| u64::from(memory.u32(mods + i * 16 + o)));
    let [start, end, text] = module(0);
    assert_eq!((start, end, memory.text(text)), (0x10_2000, 0x10_2003, "x y".into()));
    assert_eq!(memory.bytes(start, 3), b"A=1");
    assert_eq!(module(1)[..2], [0x10_3000, 0x10_3000 + 5000]);
    assert_eq!(memory.text(module(1)[2]), "two");
    let (len, map) = (memory.u32(info + 44), u64::from(memory.u32(info + 48)));
    assert_eq!(len as usize, r.layout.map().len() * 24);
    assert_eq!(
        (memory.u32(map), memory.u64(map + 4), memory.u64(map + 12), memory.u32(map + 20)),
        (20, 0, 0x9_fc00, 1)
    );
}

/// A flat file with address fields, the header at 16 within the file.
fn kludge(load: u32, load_end: u32, bss_end: u32) -> Vec<u8> {
    let mut k = vec![0xee; 16];
    k.extend_from_slice(&multiboot_header(1 << 16));
    k.extend_from_slice(&[0x20_0010, load, load_end, bss_end, 0x20_0030].map(u32::to_le_bytes).concat());
    k.resize(0x1000, 0x90);
    k
}

#[test]
fn multiboot_address_fields_are_followed() {
    let kernel = kludge(0x20_0000, 0x20_0800, 0x20_2000);
    let (memory, state) = load_ok(&request(&kernel, 64));
    assert_eq!((state.arch.rip, placed(&state, "kernel")), (0x20_0030, 0x20_0000..0x20_2000));
    assert_eq!(memory.bytes(0x20_0000, 0x800), &kernel[..0x800]);
    assert!(memory.bytes(0x20_0800, 0x1800).iter().all(|&b| b == 0));
    // The whole file, no zeroed data; loading may start after the file's first bytes.
    let (_, state) = load_ok(&request(&kludge(0x20_0008, 0, 0), 64));
    assert_eq!(placed(&state, "kernel"), 0x20_0008..0x20_1000);
    for (load, load_end, bss_end) in
        [(0x20_0011, 0, 0), (0x10_0000, 0, 0), (0x20_0000, 0x1f_ffff, 0), (0x20_0000, 0x20_0800, 0x20_07ff)]
    {
        let e = load_err(&request(&kludge(load, load_end, bss_end), 64));
        assert!(matches!(e.problem, Problem::Invalid { .. }), "{e}");
    }
    let e = load_err(&request(&kludge(0x20_0000, 0x20_1001, 0), 64));
    assert_eq!(e.problem, Problem::Truncated { what: "the kernel", need: 0x1001, have: 0x1000 });
}

#[test]
fn unknown_multiboot_requirements_are_refused() {
    let code = multiboot_header(1 << 3);
    let kernel = elf(false, 0x10_0000, &[(1, 0x10_0000, 0x10_0000, 16, 4, &code)]);
    assert!(load_err(&request(&kernel, 64)).to_string().contains("demands"));
    let mut r = request(&[0; 9000], 64);
    r.protocol = Protocol::Multiboot1;
    assert!(load_err(&r).to_string().contains("no multiboot header"));
}
