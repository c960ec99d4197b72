//! 16-bit and 32-bit code: segmentation, operand and address sizes, stacks.

use super::*;
use crate::arch::Exception;

const GP: Outcome<u64> = Outcome::Fault(Exception::GP0);
const SS: Outcome<u64> = Outcome::Fault(Exception::SS0);

fn set(s: &mut ArchState, reg: Gpr, value: u64) {
    s.gprs[reg as usize] = value;
}

#[test]
fn real_mode_addressing() {
    // mov [bx+si+0x10], ax with a sum that wraps at 64 KiB.
    let (mut s, mut m) = (machine(Mode::Bits16), memory());
    set(&mut s, Gpr::Rax, 0xbeef);
    set(&mut s, Gpr::Rbx, 0xfff0);
    set(&mut s, Gpr::Rsi, 0x123);
    assert_eq!(step(&mut s, &mut m, &[0x89, 0x40, 0x10]), DONE);
    assert_eq!((m.get(RAM + 0x123, 2), s.rip), (0xbeef, 3));
    // bp goes through SS; es: overrides.
    for (code, base) in [(&[0x88, 0x46, 0x00][..], RAM + 0x2000), (&[0x26, 0x88, 0x46, 0x00], RAM + 0x1000)] {
        let mut s = machine(Mode::Bits16);
        set(&mut s, Gpr::Rax, 0x77);
        set(&mut s, Gpr::Rbp, 0x44);
        assert_eq!(step(&mut s, &mut m, code), DONE);
        assert_eq!(m.get(base + 0x44, 1), 0x77);
    }
    // 32-bit operand and address by prefix.
    let mut s = machine(Mode::Bits16);
    set(&mut s, Gpr::Rax, 0x1234_5678);
    set(&mut s, Gpr::Rcx, 0x200);
    assert_eq!(step(&mut s, &mut m, &[0x66, 0x67, 0x89, 0x41, 0x04]), DONE);
    assert_eq!(m.get(RAM + 0x204, 4), 0x1234_5678);
}

#[test]
fn real_mode_limits() {
    let mut m = memory();
    let mut run = |code: &[u8], reg: Gpr, value: u64| {
        let mut s = machine(Mode::Bits16);
        s.segments[SegReg::Ds as usize].base = 0;
        set(&mut s, reg, value);
        step(&mut s, &mut m, code)
    };
    assert_eq!(run(&[0x8b, 0x07], Gpr::Rbx, 0xffff), GP); // mov ax, [bx]
    assert_eq!(run(&[0x8b, 0x46, 0x00], Gpr::Rbp, 0xffff), SS); // mov ax, [bp]
    assert_eq!(run(&[0x50], Gpr::Rsp, 1), SS); // push ax at sp = 1
    assert_eq!(run(&[0x67, 0x8a, 0x00], Gpr::Rax, 0x1_0000), GP); // mov al, [eax]
}

#[test]
fn real_mode_stack_and_branches() {
    let (mut s, mut m) = (machine(Mode::Bits16), memory());
    s.rip = 0x100;
    m.code = Some((CODE, alloc::vec![0x90; 0x200]));
    let mut run = |s: &mut ArchState, code: &[u8]| {
        if let Some((_, bytes)) = &mut m.code {
            bytes[s.rip as usize..][..code.len()].copy_from_slice(code);
        }
        assert_eq!(emulate(s, &mut m, &mut DecodeCache::new()), DONE);
        m.get(RAM + 0x2000 + (s.gprs[Gpr::Rsp as usize] & 0xffff), 4)
    };
    set(&mut s, Gpr::Rsp, 0xabcd_0800);
    set(&mut s, Gpr::Rax, 0x1234_5678);
    assert_eq!(run(&mut s, &[0x50]) & 0xffff, 0x5678);
    assert_eq!(s.gprs[Gpr::Rsp as usize], 0xabcd_07fe);
    assert_eq!(run(&mut s, &[0x66, 0x50]), 0x1234_5678);
    assert_eq!(s.gprs[Gpr::Rsp as usize], 0xabcd_07fa);
    assert_eq!(run(&mut s, &[0xe8, 0x00, 0xff]) & 0xffff, 0x106); // call -0x100
    assert_eq!(s.rip, 0x006);
    let _ = run(&mut s, &[0xc2, 0x04, 0x00]); // ret 4
    assert_eq!((s.rip, s.gprs[Gpr::Rsp as usize]), (0x106, 0xabcd_07fe));
    // jmp -0x200 wraps at 64 KiB.
    let _ = run(&mut s, &[0xe9, 0x00, 0xfe]);
    assert_eq!(s.rip, 0xff09);
}

#[test]
fn protected_mode_segment_types() {
    // mov al, [ecx]; mov [ecx], al; add [ecx], al; xchg [ecx], al
    let (read, write, add, xchg) = ([0x8a, 0x01], [0x88, 0x01], [0x00, 0x01], [0x86, 0x01]);
    let segment = |attributes| Segment { selector: 0x18, attributes, limit: 0xfff, base: RAM };
    // (attributes, may read, may write)
    for (attributes, reads, writes) in [
        (0xc93, true, true),   // data, writable
        (0xc91, true, false),  // data, read-only
        (0xc9b, true, false),  // code, readable
        (0xc99, false, false), // code, execute-only
        (0xc13, false, false), // not present (null)
    ] {
        for (code, allowed) in [(read, reads), (write, writes), (add, writes), (xchg, writes)] {
            let (mut s, mut m) = (machine(Mode::Bits32), memory());
            s.segments[SegReg::Ds as usize] = segment(attributes);
            assert_eq!(step(&mut s, &mut m, &code), if allowed { DONE } else { GP }, "{attributes:#x}");
        }
    }
}

#[test]
fn protected_mode_limits() {
    let run = |attributes, limit, offset: u64, code: &[u8]| {
        let (mut s, mut m) = (machine(Mode::Bits32), memory());
        s.segments[SegReg::Ds as usize] = Segment {
            selector: 0x18,
            attributes,
            limit,
            base: RAM.wrapping_sub(offset & 0xffff_f000) & 0xffff_ffff,
        };
        set(&mut s, Gpr::Rcx, offset);
        step(&mut s, &mut m, code)
    };
    let dword = &[0x8b, 0x01]; // mov eax, [ecx]
    assert_eq!(run(0xc93, 0xfff, 0xffc, dword), DONE);
    assert_eq!(run(0xc93, 0xfff, 0xffd, dword), GP);
    assert_eq!(run(0xc93, 0xffff_ffff, 0xffff_fffc, dword), DONE);
    assert_eq!(run(0xc93, 0xffff_ffff, 0xffff_fffd, dword), GP);
    // Expand-down: above the limit, up to 4 GiB or 64 KiB.
    assert_eq!(run(0xc97, 0xfff, 0xfff, dword), GP);
    assert_eq!(run(0xc97, 0xfff, 0x1000, dword), DONE);
    assert_eq!(run(0xc97, 0xfff, 0xffff_fffc, dword), DONE);
    assert_eq!(run(0x897, 0xfff, 0xfffc, dword), DONE);
    assert_eq!(run(0x897, 0xfff, 0xfffd, dword), GP);
    assert_eq!(run(0x897, 0xfff, 0x1_0000, dword), GP);
}

#[test]
fn virtual_8086_ignores_types_but_not_limits() {
    let (mut s, mut m) = (machine(Mode::Bits16), memory());
    s.cr0 |= cr0::PE;
    s.rflags |= rflags::VM;
    s.cpl = 3;
    // A write through CS: mov cs:[0x10], al.
    s.segments[SegReg::Cs as usize].base = RAM;
    m.put(RAM, &[0x2e, 0xa2, 0x10, 0x00]);
    set(&mut s, Gpr::Rax, 0x66);
    assert_eq!(emulate(&mut s, &mut m, &mut DecodeCache::new()), DONE);
    assert_eq!(m.get(RAM + 0x10, 1), 0x66);
    // Ports need the bitmap whatever IOPL says.
    s.rflags |= 3 << 12;
    s.segments[SegReg::Tr as usize].attributes = 0x83;
    s.rip = 0x20;
    m.put(RAM + 0x20, &[0xec]);
    assert_eq!(emulate(&mut s, &mut m, &mut DecodeCache::new()), GP);
}

#[test]
fn protected_mode_stack() {
    // A 16-bit stack segment under 32-bit code: SP wraps, the rest of ESP stays.
    let (mut s, mut m) = (machine(Mode::Bits32), memory());
    s.segments[SegReg::Ss as usize] =
        Segment { selector: 0x20, attributes: 0x893 & !0x800, limit: 0xffff, base: 0 };
    s.segments[SegReg::Ss as usize].base = RAM.wrapping_sub(0xf000) & 0xffff_ffff;
    set(&mut s, Gpr::Rsp, 0x5555_0000);
    set(&mut s, Gpr::Rax, 0xdead_beef);
    assert_eq!(step(&mut s, &mut m, &[0x50]), DONE);
    assert_eq!(s.gprs[Gpr::Rsp as usize], 0x5555_fffc);
    assert_eq!(m.get(RAM + 0xffc, 4), 0xdead_beef);
    // A 32-bit one; push word, push imm8.
    let mut s = machine(Mode::Bits32);
    let top = s.gprs[Gpr::Rsp as usize];
    assert_eq!(step(&mut s, &mut m, &[0x6a, 0xfe]), DONE);
    assert_eq!(m.get(top - 4, 4), 0xffff_fffe);
    s.rip = CODE;
    assert_eq!(step(&mut s, &mut m, &[0x66, 0x6a, 0xfe]), DONE);
    assert_eq!((m.get(top - 6, 2), s.gprs[Gpr::Rsp as usize]), (0xfffe, top - 6));
    // push fs; pop eax
    s.rip = CODE;
    s.segments[SegReg::Fs as usize].selector = 0x53;
    assert_eq!(step(&mut s, &mut m, &[0x0f, 0xa0]), DONE);
    s.rip = CODE;
    assert_eq!(step(&mut s, &mut m, &[0x58]), DONE);
    assert_eq!((s.gprs[0], s.gprs[Gpr::Rsp as usize]), (0x53, top - 6));
}

#[test]
fn protected_mode_branches() {
    let (mut s, mut m) = (machine(Mode::Bits32), memory());
    let cs = &mut s.segments[SegReg::Cs as usize];
    cs.limit = CODE as u32 + 0xff;
    set(&mut s, Gpr::Rax, CODE + 0x100);
    let before = s.clone();
    assert_eq!(step(&mut s, &mut m, &[0xff, 0xe0]), GP); // jmp eax beyond the limit
    assert_eq!(step(&mut s, &mut m, &[0xff, 0xd0]), GP); // call eax
    assert_eq!(s, before);
    assert_eq!(step(&mut s, &mut m, &[0xe8, 0xfb, 0, 0, 0]), GP); // call +0x100
    assert_eq!(step(&mut s, &mut m, &[0xe8, 0xf0, 0, 0, 0]), DONE);
    assert_eq!(s.rip, CODE + 0xf5);
    assert_eq!(m.get(s.gprs[Gpr::Rsp as usize], 4), CODE + 5);
    let mut s = machine(Mode::Bits32);
    assert_eq!(step(&mut s, &mut m, &[0xeb, 0xf0]), DONE); // jmp -16
    assert_eq!(s.rip, CODE - 14);
}

#[test]
fn linear_addresses_wrap_at_4_gib() {
    let (mut s, mut m) = (machine(Mode::Bits32), memory());
    s.segments[SegReg::Ds as usize].base = 0xffff_f000;
    set(&mut s, Gpr::Rcx, RAM + 0x1010);
    m.put(RAM + 0x10, &[1, 2, 3, 4]);
    assert_eq!(step(&mut s, &mut m, &[0x8b, 0x01]), DONE);
    assert_eq!(s.gprs[0], 0x0403_0201);
}

#[test]
fn stores_of_selectors() {
    // mov [rax], fs writes two bytes; mov ecx, fs clears the rest.
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    s.segments[SegReg::Fs as usize].selector = 0x53;
    set(&mut s, Gpr::Rax, RAM);
    set(&mut s, Gpr::Rcx, u64::MAX);
    m.put(RAM, &[0xff; 8]);
    assert_eq!(step(&mut s, &mut m, &[0x48, 0x8c, 0x20]), DONE);
    assert_eq!(m.get(RAM, 4), 0xffff_0053);
    s.rip = CODE;
    assert_eq!(step(&mut s, &mut m, &[0x8c, 0xe1]), DONE);
    assert_eq!(s.gprs[1], 0x53);
}
