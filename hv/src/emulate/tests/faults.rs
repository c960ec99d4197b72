//! Faults are the right ones and leave everything as it was.

use super::testing::Event;
use super::*;
use crate::arch::{Exception, vector};

const RAX: usize = Gpr::Rax as usize;
const RCX: usize = Gpr::Rcx as usize;
const END: u64 = RAM + RAM_LEN as u64;

fn page_fault(at: u64, error: u32) -> Outcome<u64> {
    Outcome::Fault(Exception::page_fault(Gva(at), error))
}

/// Runs `code`, which must end in `expected` with nothing changed.
fn refused(s: &mut ArchState, m: &mut TestMemory, code: &[u8], expected: Outcome<u64>) {
    let (before, ram) = (s.clone(), m.ram.clone());
    assert_eq!(step(s, m, code), expected, "{code:02x?}");
    assert_eq!(*s, before, "{code:02x?}");
    assert!(m.ram == ram, "{code:02x?}");
}

#[test]
fn a_write_across_pages_is_all_or_nothing() {
    for (code, error) in [
        (&[0x48, 0x89, 0x08][..], 2),       // mov [rax], rcx
        (&[0x48, 0x01, 0x08][..], 2),       // add [rax], rcx
        (&[0xf0, 0x48, 0x01, 0x08][..], 2), // lock add [rax], rcx
        (&[0x48, 0x87, 0x08][..], 2),       // xchg [rax], rcx
        (&[0x48, 0x8b, 0x08][..], 0),       // mov rcx, [rax]
        (&[0x0f, 0x11, 0x00][..], 2),       // movups [rax], xmm0
    ] {
        let (mut s, mut m) = (machine(Mode::Bits64), memory());
        s.gprs[RAX] = END - 3;
        s.gprs[RCX] = 0x1122_3344_5566_7788;
        refused(&mut s, &mut m, code, page_fault(END, error));
        s.cpl = 3;
        refused(&mut s, &mut m, code, page_fault(END, error | 4));
    }
}

#[test]
fn read_modify_write_asks_for_write_permission_first() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    m.read_only = RAM..RAM + 0x1000;
    s.gprs[RAX] = RAM;
    // add, lock add, inc, cmpxchg (failing), bts, shl, xadd, cmpxchg8b
    for code in [
        &[0x01, 0x08][..],
        &[0xf0, 0x01, 0x08],
        &[0xff, 0x00],
        &[0x0f, 0xb1, 0x08],
        &[0x0f, 0xab, 0x08],
        &[0xd1, 0x20],
        &[0x0f, 0xc1, 0x08],
        &[0x0f, 0xc7, 0x08],
    ] {
        refused(&mut s, &mut m, code, page_fault(RAM, 3));
    }
    // cmp, test, bt only read.
    for code in [&[0x39, 0x08][..], &[0x85, 0x08], &[0x0f, 0xa3, 0x08]] {
        assert_eq!(step(&mut s, &mut m, code), DONE);
        s.rip = CODE;
    }
}

#[test]
fn non_canonical_addresses() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    let (gp, ss) = (Outcome::Fault(Exception::GP0), Outcome::Fault(Exception::SS0));
    s.gprs = [0x8000_0000_0000; 16];
    s.gprs[Gpr::Rsp as usize] += 0x100;
    refused(&mut s, &mut m, &[0x8b, 0x01], gp); // mov eax, [rcx]
    refused(&mut s, &mut m, &[0x8b, 0x45, 0x00], ss); // mov eax, [rbp]
    refused(&mut s, &mut m, &[0x8b, 0x04, 0x24], ss); // mov eax, [rsp]
    refused(&mut s, &mut m, &[0x3e, 0x8b, 0x45, 0x00], ss); // ds: is ignored
    refused(&mut s, &mut m, &[0x65, 0x8b, 0x45, 0x00], gp); // gs: is not
    refused(&mut s, &mut m, &[0x50], ss); // push rax
    refused(&mut s, &mut m, &[0x58], ss); // pop rax
    refused(&mut s, &mut m, &[0xa4], gp); // movsb
    // The last byte counts too; 57-bit addresses reach further.
    s.gprs[RCX] = 0x7fff_ffff_fffd;
    refused(&mut s, &mut m, &[0x8b, 0x01], gp);
    s.cr4 |= cr4::LA57;
    refused(&mut s, &mut m, &[0x8b, 0x01], page_fault(0x7fff_ffff_fffd, 0));
    // A branch to such an address, and a CALL that could have pushed.
    let mut s = machine(Mode::Bits64);
    s.gprs[RAX] = 0x8000_0000_0000;
    refused(&mut s, &mut m, &[0xff, 0xe0], gp);
    refused(&mut s, &mut m, &[0xff, 0xd0], gp);
}

#[test]
fn alignment() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    s.gprs[RAX] = RAM + 8;
    let gp = Outcome::Fault(Exception::GP0);
    refused(&mut s, &mut m, &[0x0f, 0x28, 0x00], gp); // movaps xmm0, [rax]
    refused(&mut s, &mut m, &[0x66, 0x0f, 0x7f, 0x00], gp); // movdqa [rax], xmm0
    refused(&mut s, &mut m, &[0x66, 0x0f, 0xe7, 0x00], gp); // movntdq [rax], xmm0
    refused(&mut s, &mut m, &[0x48, 0x0f, 0xc7, 0x08], gp); // cmpxchg16b [rax]
    // #AC: CPL 3, CR0.AM and RFLAGS.AC, all three.
    let ac = Outcome::Fault(Exception { vector: vector::AC, error: Some(0), cr2: None });
    s.gprs[RAX] = RAM + 2;
    for bits in 0..8 {
        s.cpl = if bits & 1 != 0 { 3 } else { 0 };
        s.cr0 = machine(Mode::Bits64).cr0 | if bits & 2 != 0 { cr0::AM } else { 0 };
        s.rflags = rflags::FIXED | if bits & 4 != 0 { rflags::AC } else { 0 };
        if bits == 7 {
            refused(&mut s, &mut m, &[0x8b, 0x08], ac);
            assert_eq!(step(&mut s, &mut m, &[0x66, 0x8b, 0x08]), DONE);
        } else {
            assert_eq!(step(&mut s, &mut m, &[0x8b, 0x08]), DONE);
        }
        s.rip = CODE;
    }
}

#[test]
fn vector_availability() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    s.gprs[RAX] = RAM;
    let ud = Outcome::Fault(Exception::UD);
    let nm = Outcome::Fault(Exception { vector: vector::NM, error: None, cr2: None });
    let (sse, mmx): (&[u8], &[u8]) = (&[0x0f, 0x10, 0x00], &[0x0f, 0x6f, 0x00]);
    let usual = (s.cr0, s.cr4);
    for (cr0_bit, cr4_clear, sse_fault, mmx_fault) in [
        (cr0::EM, 0, Some(ud), Some(ud)),
        (cr0::TS, 0, Some(nm), Some(nm)),
        (cr0::EM | cr0::TS, 0, Some(ud), Some(ud)),
        (0, cr4::OSFXSR, Some(ud), None),
        (cr0::TS, cr4::OSFXSR, Some(ud), Some(nm)),
    ] {
        (s.cr0, s.cr4) = (usual.0 | cr0_bit, usual.1 & !cr4_clear);
        for (code, fault) in [(sse, sse_fault), (mmx, mmx_fault)] {
            match fault {
                Some(fault) => refused(&mut s, &mut m, code, fault),
                None => assert_eq!(step(&mut s, &mut m, code), DONE),
            }
            s.rip = CODE;
        }
    }
}

#[test]
fn mmx_moves() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    s.gprs[RAX] = RAM;
    m.put(RAM, &0x1122_3344_5566_7788u64.to_le_bytes());
    let mut run = |s: &mut ArchState, code: &[u8]| {
        s.rip = CODE;
        assert_eq!(step(s, &mut m, code), DONE);
        (m.mmx[3], m.get(RAM + 8, 8))
    };
    assert_eq!(run(&mut s, &[0x0f, 0x6f, 0x18]), (0x1122_3344_5566_7788, 0)); // movq mm3, [rax]
    assert_eq!(run(&mut s, &[0x0f, 0x7f, 0x58, 8]).1, 0x1122_3344_5566_7788); // movq [rax+8], mm3
    assert_eq!(run(&mut s, &[0x0f, 0x6e, 0x18]).0, 0x5566_7788); // movd mm3, [rax]
    assert_eq!(run(&mut s, &[0x0f, 0xe7, 0x58, 8]).1, 0x5566_7788); // movntq [rax+8], mm3
}

#[test]
fn divide_errors() {
    let de = Outcome::Fault(Exception { vector: vector::DE, error: None, cr2: None });
    let mut m = memory();
    let mut divide = |code: &[u8], dividend: (u64, u64), divisor: u64| {
        let mut s = machine(Mode::Bits64);
        (s.gprs[2], s.gprs[RAX], s.gprs[RCX]) = (dividend.0, dividend.1, divisor);
        let before = s.clone();
        let outcome = step(&mut s, &mut m, code);
        if outcome == de {
            assert_eq!(s, before);
            return None;
        }
        assert_eq!(outcome, DONE);
        Some((s.gprs[RAX], s.gprs[2]))
    };
    let (div, idiv, idiv8): (&[u8], &[u8], &[u8]) = (&[0x48, 0xf7, 0xf1], &[0x48, 0xf7, 0xf9], &[0xf6, 0xf9]);
    let minimum = 1 << 63;
    assert_eq!(divide(div, (0, 7), 0), None);
    assert_eq!(divide(div, (1, 0), 1), None);
    assert_eq!(divide(div, (1, 0), 2), Some((minimum, 0)));
    assert_eq!(divide(idiv, (0, 7), 0), None);
    assert_eq!(divide(idiv, (u64::MAX, minimum), u64::MAX), None);
    assert_eq!(divide(idiv, (u64::MAX, minimum), 1), Some((minimum, 0)));
    assert_eq!(divide(idiv, (minimum, 0), u64::MAX), None);
    assert_eq!(divide(idiv8, (0, 0x80), 1), None);
    assert_eq!(divide(idiv8, (0, 0xff80), 1), Some((0x80, 0)));
    assert_eq!(divide(idiv8, (0, 0xff80), 0xff), None);
}

#[test]
fn stack_faults_leave_the_pointer() {
    let mut m = memory();
    m.read_only = RAM..RAM + 0x1000;
    let mut s = machine(Mode::Bits64);
    s.gprs[Gpr::Rsp as usize] = RAM + 0x10;
    s.gprs[RAX] = RAM;
    refused(&mut s, &mut m, &[0x50], page_fault(RAM + 8, 3)); // push rax
    refused(&mut s, &mut m, &[0xff, 0x30], page_fault(RAM + 8, 3)); // push [rax]
    refused(&mut s, &mut m, &[0xe8, 0, 0, 0, 0], page_fault(RAM + 8, 3)); // call
    refused(&mut s, &mut m, &[0x8f, 0x00], page_fault(RAM, 3)); // pop [rax]
    // POP computes its destination with the new stack pointer: pop [rsp].
    refused(&mut s, &mut m, &[0x8f, 0x04, 0x24], page_fault(RAM + 0x18, 3));
    m.read_only = 0..0;
    m.put(RAM + 0x10, &[0x5a]);
    assert_eq!(step(&mut s, &mut m, &[0x8f, 0x04, 0x24]), DONE);
    assert_eq!(m.get(RAM + 0x18, 8), 0x5a);
}

#[test]
fn single_step_and_resume_flag() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    s.gprs[RAX] = RAM;
    s.rflags |= rflags::RF;
    assert_eq!(step(&mut s, &mut m, &[0x89, 0x08]), DONE);
    assert_eq!(s.rflags & rflags::RF, 0);
    s.rip = CODE;
    s.rflags |= rflags::TF | rflags::RF;
    assert_eq!(step(&mut s, &mut m, &[0x89, 0x08]), Outcome::Done { single_step: true });
    assert_eq!(s.rflags & (rflags::RF | rflags::TF), rflags::TF);
}

#[test]
fn the_callers_stop_is_handed_through() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    m.stop = RAM..RAM + 8;
    s.gprs[RAX] = RAM + 4;
    refused(&mut s, &mut m, &[0x89, 0x08], Outcome::Stop(RAM + 4));
}

#[test]
fn locked_instructions_win_or_retry() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    s.gprs[RAX] = RAM;
    s.gprs[RCX] = 0x100;
    m.races = 3;
    assert_eq!(step(&mut s, &mut m, &[0xf0, 0x01, 0x08]), DONE);
    assert_eq!(m.get(RAM, 4), 0x103);
    m.races = 1000;
    s.rip = CODE;
    let before = s.clone();
    assert_eq!(step(&mut s, &mut m, &[0xf0, 0x01, 0x08]), Outcome::Continue);
    assert_eq!(s, before);
}

#[test]
fn port_permission() {
    let gp = Outcome::Fault(Exception::GP0);
    let mut m = memory();
    m.port_value = 0x5a;
    let mut s = machine(Mode::Bits64);
    s.gprs[2] = 0x3f8;
    let tss = Segment { selector: 0x40, attributes: 0x8b, limit: 0x68 + 0x80, base: RAM };
    s.segments[SegReg::Tr as usize] = tss;
    m.put(RAM + 0x66, &0x68u16.to_le_bytes());
    let bit_byte = RAM + 0x68 + 0x3f8 / 8;
    m.put(bit_byte, &[0b0000_0100]);
    let (inb, inw, inl): (&[u8], &[u8], &[u8]) = (&[0xec], &[0x66, 0xed], &[0xed]);
    let mut read = |s: &mut ArchState, code: &[u8]| {
        s.rip = CODE;
        m.events.clear();
        let outcome = step(s, &mut m, code);
        assert_eq!(m.events.is_empty(), outcome != DONE);
        outcome
    };
    s.cpl = 3;
    assert_eq!(read(&mut s, inb), DONE);
    assert_eq!(s.gprs[RAX] & 0xff, 0x5a);
    assert_eq!(read(&mut s, inw), DONE);
    assert_eq!(read(&mut s, inl), gp);
    s.rflags |= 3 << 12;
    assert_eq!(read(&mut s, inl), DONE);
    s.rflags = rflags::FIXED;
    // Two bytes are always read: both must lie within the limit. A 16-bit TSS has no map.
    let refusing = [
        Segment { limit: 0x68 + 0x7f, ..tss },
        Segment { limit: 0x66, ..tss },
        Segment { attributes: 0x83, ..tss },
    ];
    for tr in refusing {
        s.segments[SegReg::Tr as usize] = tr;
        assert_eq!(read(&mut s, inb), gp);
    }
    s.cpl = 0;
    assert_eq!(read(&mut s, inb), DONE);
}

#[test]
fn devices_see_each_access_once_with_its_size() {
    let dev = 0xfee0_0000;
    let cases: &[(&[u8], &[Event])] = &[
        (&[0x89, 0x08], &[Event::DeviceWrite { at: dev, size: 4, value: 0x55 }]),
        (&[0x48, 0x8b, 0x08], &[Event::DeviceRead { at: dev, size: 8 }]),
        (&[0x66, 0x85, 0x08], &[Event::DeviceRead { at: dev, size: 2 }]),
        (
            &[0x80, 0x08, 0x80], // or byte [rax], 0x80
            &[Event::DeviceRead { at: dev, size: 1 }, Event::DeviceWrite { at: dev, size: 1, value: 0x81 }],
        ),
        (
            &[0x87, 0x08], // xchg
            &[Event::DeviceRead { at: dev, size: 4 }, Event::DeviceWrite { at: dev, size: 4, value: 0x55 }],
        ),
        (&[0x0f, 0x11, 0x00], &[Event::DeviceWrite { at: dev, size: 16, value: 0 }]),
        (&[0x0f, 0x18, 0x08], &[]), // prefetcht0
    ];
    for (code, events) in cases {
        let (mut s, mut m) = (machine(Mode::Bits64), memory());
        m.device = dev..dev + 0x1000;
        s.gprs[RAX] = dev;
        s.gprs[RCX] = 0x55;
        assert_eq!(step(&mut s, &mut m, code), DONE);
        assert_eq!(m.events, *events, "{code:02x?}");
    }
}

#[test]
fn cache_line_instructions_check_like_loads() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    m.read_only = RAM..RAM + 0x1000;
    // clflush [rax], clflushopt [rax], clwb [rax]
    for code in [&[0x0f, 0xae, 0x38][..], &[0x66, 0x0f, 0xae, 0x38], &[0x66, 0x0f, 0xae, 0x30]] {
        s.gprs[RAX] = END;
        refused(&mut s, &mut m, code, page_fault(END, 0));
        s.gprs[RAX] = RAM + 63;
        assert_eq!(step(&mut s, &mut m, code), DONE);
        s.rip = CODE;
    }
    assert!(m.events.is_empty());
}
