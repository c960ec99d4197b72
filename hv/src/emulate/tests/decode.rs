//! Lengths, the decode cache, and fetching.

use super::*;
use crate::arch::Exception;

#[test]
fn lengths_in_all_modes() {
    let cases: &[(&[u8], u32, Option<u8>)] = &[
        (&[0x0f, 0xa2], 64, Some(2)),                          // cpuid
        (&[0xf4, 0x90], 64, Some(1)),                          // hlt
        (&[0x48, 0x0f, 0xa2], 64, Some(3)),                    // rex.w cpuid
        (&[0x48, 0x0f, 0xa2], 32, Some(1)),                    // dec eax
        (&[0x44, 0x0f, 0x22, 0xc0], 64, Some(4)),              // mov cr8, rax
        (&[0xb8, 1, 2, 3, 4, 5], 16, Some(3)),                 // mov ax, imm16
        (&[0xb8, 1, 2, 3, 4, 5], 32, Some(5)),                 // mov eax, imm32
        (&[0x66, 0xb8, 1, 2, 3, 4, 5], 16, Some(6)),           // mov eax, imm32
        (&[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8], 64, Some(10)), // mov rax, imm64
        (&[0x0f, 0x01, 0xd1], 64, Some(3)),                    // xsetbv
        (&[0xa1, 1, 2, 3, 4, 5, 6, 7, 8], 64, Some(9)),        // mov eax, [moffs]
        (&[0x67, 0xa1, 1, 2, 3, 4], 64, Some(6)),              // mov eax, [moffs32]
        (&[0x0f], 64, None),
        (&[], 64, None),
        (&[0x66; 16], 64, None),
    ];
    for (bytes, bits, expected) in cases {
        assert_eq!(instruction_length(bytes, *bits), *expected, "{bytes:02x?} {bits}");
    }
}

#[test]
fn decode_errors() {
    assert_eq!(decode(&[0x0f], Mode::Bits64), Err(DecodeError::Truncated));
    assert_eq!(decode(&[0x66; 15], Mode::Bits64), Err(DecodeError::TooLong));
    // lock mov [rax], eax; lock add eax, eax
    assert_eq!(decode(&[0xf0, 0x89, 0x00], Mode::Bits64), Err(DecodeError::BadLock));
    assert_eq!(decode(&[0xf0, 0x01, 0xc0], Mode::Bits64), Err(DecodeError::BadLock));
    // ud2 is an instruction, 06 (push es) is none in 64-bit code.
    assert_eq!(decode(&[0x0f, 0x0b], Mode::Bits64).map(|i| i.op), Ok(Op::Unsupported));
    assert_eq!(decode(&[0x06; 4], Mode::Bits64), Err(DecodeError::Unknown));
}

#[test]
fn what_is_not_executed_is_left_alone() {
    let codes: &[&[u8]] = &[
        &[0x48, 0xcf],             // iretq
        &[0x66, 0xe8, 0, 0, 0, 0], // call with 66h
        &[0xc5, 0xf8, 0x10, 0x00], // vmovups xmm0, [rax]
        &[0xd9, 0x00],             // fld dword [rax]
    ];
    for code in codes {
        let (mut s, mut m) = (machine(Mode::Bits64), memory());
        s.gprs[0] = RAM;
        let before = s.clone();
        let outcome = step(&mut s, &mut m, code);
        assert!(matches!(outcome, Outcome::Unsupported(bytes) if bytes.as_slice().starts_with(&code[..1])));
        assert_eq!(s, before);
        assert!(m.events.is_empty());
    }
}

#[test]
fn modified_code_is_noticed() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    let mut cache = DecodeCache::new();
    for (code, expected) in [([0xb0, 1], 1), ([0xb0, 1], 1), ([0xb0, 7], 7), ([0xb4, 9], 0x907)] {
        m.code = Some((CODE, code.to_vec()));
        s.rip = CODE;
        assert_eq!(emulate(&mut s, &mut m, &mut cache), DONE);
        assert_eq!(s.gprs[0], expected);
    }
}

#[test]
fn relative_operands_follow_the_instruction() {
    // mov eax, [rip + 0x10]
    let code = [0x8b, 0x05, 0x10, 0, 0, 0];
    let mut cache = DecodeCache::new();
    for at in [RAM, RAM + 0x1000, RAM] {
        let (mut s, mut m) = (machine(Mode::Bits64), memory());
        s.rip = at;
        m.put(at, &code);
        m.put(at + 0x16, &(at as u32 + 5).to_le_bytes());
        assert_eq!(emulate(&mut s, &mut m, &mut cache), DONE);
        assert_eq!(s.gprs[0], at + 5);
    }
}

#[test]
fn fetch_touches_the_next_page_only_if_needed() {
    let end = RAM + RAM_LEN as u64;
    let absent = Outcome::Fault(Exception::page_fault(Gva(end), 0));
    // mov al, 5 ends with the page; one byte further it does not.
    for (rip, expected) in [(end - 2, DONE), (end - 1, absent)] {
        let (mut s, mut m) = (machine(Mode::Bits64), memory());
        s.rip = rip;
        m.ram[RAM_LEN - 2..].copy_from_slice(&[0xb0, 5]);
        m.ram[RAM_LEN - 1] = if expected == DONE { 5 } else { 0xb0 };
        assert_eq!(emulate(&mut s, &mut m, &mut DecodeCache::new()), expected);
    }
}

#[test]
fn fetch_crosses_pages() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    let mut cache = DecodeCache::new();
    m.put(RAM + 0xffe, &[0xb8, 1, 2, 3, 4]);
    for _ in 0..2 {
        s.rip = RAM + 0xffe;
        assert_eq!(emulate(&mut s, &mut m, &mut cache), DONE);
        assert_eq!((s.gprs[0], s.rip), (0x0403_0201, RAM + 0x1003));
    }
}

#[test]
fn fetch_checks_limit_and_canonical_form() {
    let gp = Outcome::Fault(Exception::GP0);
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    s.rip = 0x8000_0000_0000;
    assert_eq!(step(&mut s, &mut m, &[0x90]), gp);
    for (limit, expected) in [(CODE as u32 + 1, DONE), (CODE as u32, gp), (CODE as u32 - 1, gp)] {
        let mut s = machine(Mode::Bits32);
        s.segments[SegReg::Cs as usize].limit = limit;
        assert_eq!(step(&mut s, &mut m, &[0xb0, 5]), expected, "{limit:#x}");
    }
    let mut s = machine(Mode::Bits64);
    assert_eq!(step(&mut s, &mut m, &[0x66; 15]), gp);
    assert_eq!(step(&mut s, &mut m, &[0xf0, 0x89, 0x00]), Outcome::Fault(Exception::UD));
}
