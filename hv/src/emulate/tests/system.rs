//! Operands of system instructions.

use super::*;
use crate::arch::RegMove;

#[test]
fn control_and_debug_register_moves() {
    let to = |index, reg| Some(RegMove { index, write: true, gpr: Some(reg) });
    let from = |index, reg| Some(RegMove { index, write: false, gpr: Some(reg) });
    let cases: &[(&[u8], Option<RegMove>)] = &[
        (&[0x0f, 0x22, 0xc0], to(0, Gpr::Rax)),
        (&[0x0f, 0x22, 0xdf], to(3, Gpr::Rdi)),
        (&[0x41, 0x0f, 0x22, 0xe1], to(4, Gpr::R9)),
        (&[0x44, 0x0f, 0x22, 0xc2], to(8, Gpr::Rdx)),
        (&[0x0f, 0x20, 0xd0], from(2, Gpr::Rax)),
        (&[0x41, 0x0f, 0x20, 0xdf], from(3, Gpr::R15)),
        (&[0x0f, 0x23, 0xf9], to(7, Gpr::Rcx)),
        (&[0x0f, 0x21, 0xf4], from(6, Gpr::Rsp)),
        (&[0x0f, 0x06], None),
        (&[0x89, 0xc8], None),
    ];
    for (code, expected) in cases {
        let insn = decode(code, Mode::Bits64).expect("an instruction");
        assert_eq!(register_move(&insn), *expected, "{code:02x?}");
    }
}

#[test]
fn machine_status_word() {
    let (mut s, mut m) = (machine(Mode::Bits64), memory());
    s.gprs[0] = RAM;
    s.gprs[3] = 0xffff_fff9;
    m.put(RAM, &0x1234u16.to_le_bytes());
    let lmsw = decode(&[0x0f, 0x01, 0x30], Mode::Bits64).expect("lmsw [rax]");
    assert_eq!(lmsw.op, Op::System(System::Lmsw));
    assert_eq!(read_msw(&lmsw, &mut s, &mut m), Ok(0x1234));
    let lmsw = decode(&[0x0f, 0x01, 0xf3], Mode::Bits64).expect("lmsw bx");
    assert_eq!(read_msw(&lmsw, &mut s, &mut m), Ok(0xfff9));
    // SMSW stores 16 bits to memory, the operand size to a register.
    let cr0 = 0x8005_003b;
    for (code, register) in [(&[0x0f, 0x01, 0xe3][..], cr0), (&[0x66, 0x0f, 0x01, 0xe3], 0xffff_003b)] {
        s.gprs[3] = 0xffff_ffff;
        let smsw = decode(code, Mode::Bits64).expect("smsw");
        assert_eq!(write_msw(&smsw, &mut s, &mut m, cr0), Ok(()));
        assert_eq!(s.gprs[3], register);
    }
    m.put(RAM, &[0xff; 4]);
    let smsw = decode(&[0x0f, 0x01, 0x20], Mode::Bits64).expect("smsw [rax]");
    assert_eq!(write_msw(&smsw, &mut s, &mut m, cr0), Ok(()));
    assert_eq!(m.get(RAM, 4), 0xffff_003b);
}

#[test]
fn invalidated_addresses() {
    let mut s = machine(Mode::Bits64);
    s.gprs[0] = 0xffff_8000_1234_5678;
    s.segments[SegReg::Gs as usize].base = 0x1000;
    s.segments[SegReg::Ds as usize].base = 0x5000;
    let at = |s: &ArchState, code: &[u8], mode| {
        invlpg_address(&decode(code, mode).expect("invlpg"), s).map(|gva| gva.0)
    };
    assert_eq!(at(&s, &[0x0f, 0x01, 0x38], Mode::Bits64), Some(0xffff_8000_1234_5678));
    assert_eq!(at(&s, &[0x65, 0x0f, 0x01, 0x38], Mode::Bits64), Some(0xffff_8000_1234_6678));
    assert_eq!(at(&s, &[0x0f, 0x01, 0x3d, 1, 0, 0, 0], Mode::Bits64), Some(CODE + 8));
    assert_eq!(at(&s, &[0x0f, 0x01, 0x38], Mode::Bits32), Some(0x1234_a678));
    assert_eq!(at(&s, &[0x0f, 0xa2], Mode::Bits64), None);

    let mut m = memory();
    s.gprs[0] = RAM;
    s.gprs[9] = 2;
    m.put(RAM, &7u64.to_le_bytes());
    m.put(RAM + 8, &0xabcd_e000u64.to_le_bytes());
    let insn = decode(&[0x66, 0x44, 0x0f, 0x38, 0x82, 0x08], Mode::Bits64).expect("invpcid r9, [rax]");
    assert_eq!(insn.op, Op::System(System::Invpcid));
    assert_eq!(invpcid_operands(&insn, &mut s, &mut m), Ok((2, 0xabcd_e000 << 64 | 7)));
}

#[test]
fn advance_moves_over_an_instruction() {
    let mut s = machine(Mode::Bits64);
    s.rflags |= rflags::RF;
    assert!(!advance(&mut s, 2));
    assert_eq!((s.rip, s.rflags), (CODE + 2, rflags::FIXED));
    s.rflags |= rflags::TF;
    assert!(advance(&mut s, 2));
    let mut s = machine(Mode::Bits32);
    s.rip = 0xffff_ffff;
    assert!(!advance(&mut s, 1));
    assert_eq!(s.rip, 0);
}
