//! Segments, tables and far transfers through memory.

use super::*;
use crate::arch::state::TableReg;
use crate::arch::vector;

const RAX: usize = Gpr::Rax as usize;
const RSP: usize = Gpr::Rsp as usize;
/// Where the GDT is.
const GDT: u64 = RAM + 0x6000;

const CODE_64: u64 = 0x00af_9a00_0000_ffff;
const CODE_32: u64 = 0x00cf_9a00_0000_ffff;
const DATA: u64 = 0x00cf_9200_0000_ffff;
const USER_DATA: u64 = 0x00cf_f200_0000_ffff;
const ABSENT: u64 = 0x00cf_1200_0000_ffff;
/// A task state of 104 bytes at 0x12345678, available, and an LDT at 0x1000; the upper halves follow in long mode.
const TASK: u64 = 0x1200_8934_5678_0067;
const LDT: u64 = 0x0000_8200_1000_0017;

/// Selectors of the GDT's entries.
const SEL_CODE: u16 = 0x08;
const SEL_DATA: u16 = 0x10;
const SEL_USER: u16 = 0x18;
const SEL_ABSENT: u16 = 0x20;
const SEL_TASK: u16 = 0x28;
const SEL_LDT: u16 = 0x38;
const SEL_BEYOND: u16 = 0x48;

fn scene(mode: Mode) -> (ArchState, TestMemory) {
    let (mut s, mut m) = (machine(mode), memory());
    let code = if mode == Mode::Bits64 { CODE_64 } else { CODE_32 };
    let entries = [0, code, DATA, USER_DATA, ABSENT, TASK, 0, LDT, 0];
    for (n, entry) in entries.iter().enumerate() {
        m.put(GDT + 8 * n as u64, &entry.to_le_bytes());
    }
    s.gdtr = TableReg { base: GDT, limit: 8 * entries.len() as u16 - 1 };
    s.segments[SegReg::Ldtr as usize] = Segment::default();
    s.gprs[RAX] = RAM;
    (s, m)
}

fn fault(vector: u8, selector: u16) -> Outcome<u64> {
    Outcome::Fault(Exception { vector, error: Some(selector.into()), cr2: None })
}

/// Runs `code` with `operand` at `[rax]`.
fn run(mode: Mode, code: &[u8], operand: &[u8]) -> (Outcome<u64>, ArchState, TestMemory) {
    let (mut s, mut m) = scene(mode);
    m.put(RAM, operand);
    let (before, ram) = (s.clone(), m.ram.clone());
    let outcome = step(&mut s, &mut m, code);
    if outcome != DONE {
        assert_eq!((&s, &m.ram), (&before, &ram), "a fault had an effect");
    }
    (outcome, s, m)
}

#[test]
fn segment_registers() {
    for mode in [Mode::Bits64, Mode::Bits32] {
        for (selector, expected) in [
            (SEL_DATA, DONE),
            (SEL_USER | 3, DONE),
            (0, DONE),
            (SEL_CODE, DONE),
            (SEL_BEYOND, fault(vector::GP, SEL_BEYOND)),
            (SEL_TASK, fault(vector::GP, SEL_TASK)),
            (SEL_ABSENT, fault(vector::NP, SEL_ABSENT)),
            (SEL_DATA | 4, fault(vector::GP, SEL_DATA | 4)),
        ] {
            // mov es, [rax]
            let (outcome, s, m) = run(mode, &[0x8e, 0x00], &selector.to_le_bytes());
            assert_eq!(outcome, expected, "{selector:#x}");
            let es = s.segments[SegReg::Es as usize];
            if outcome == DONE {
                assert_eq!(es.selector, selector);
                assert_eq!(es.attributes & Segment::PRESENT != 0, selector != 0);
            }
            if selector == SEL_DATA {
                assert_eq!((es.limit, es.attributes), (0xffff_ffff, 0xc93));
                assert_eq!(m.get(GDT + 0x15, 1), 0x93, "the accessed bit");
            }
        }
        for (selector, expected) in [
            (SEL_DATA, DONE),
            (SEL_DATA | 3, fault(vector::GP, SEL_DATA)),
            (SEL_USER, fault(vector::GP, SEL_USER)),
            (SEL_CODE, fault(vector::GP, SEL_CODE)),
            (SEL_ABSENT, fault(vector::SS, SEL_ABSENT)),
        ] {
            // mov ss, [rax]
            assert_eq!(run(mode, &[0x8e, 0x10], &selector.to_le_bytes()).0, expected, "{selector:#x}");
        }
        // A null SS is for the kernel in 64-bit code.
        let null = if mode == Mode::Bits64 { DONE } else { fault(vector::GP, 0) };
        assert_eq!(run(mode, &[0x8e, 0x10], &[0, 0]).0, null);
    }
    // lss esp, [eax]
    let pointer = [0x78, 0x56, 0x34, 0x12, SEL_DATA as u8, 0];
    let (outcome, s, _) = run(Mode::Bits32, &[0x0f, 0xb2, 0x20], &pointer);
    assert_eq!((outcome, s.gprs[RSP]), (DONE, 0x1234_5678));
    assert_eq!(s.segments[SegReg::Ss as usize].selector, SEL_DATA);
    // Nothing is loaded if the selector is bad; real mode takes any.
    let pointer = [0x78, 0x56, 0x34, 0x12, SEL_ABSENT as u8, 0];
    assert_eq!(run(Mode::Bits32, &[0xc4, 0x08], &pointer).0, fault(vector::NP, SEL_ABSENT));
    let (mut s, mut m) = (machine(Mode::Bits16), memory());
    m.put(RAM, &[0x34, 0x12, 0x00, 0xb8]);
    assert_eq!(step(&mut s, &mut m, &[0xc4, 0x0e, 0, 0]), DONE); // les cx, [0]
    let es = s.segments[SegReg::Es as usize];
    assert_eq!((s.gprs[1], es.selector, es.base, es.limit), (0x1234, 0xb800, 0xb8000, 0xffff));
}

#[test]
fn local_tables_and_tasks() {
    for mode in [Mode::Bits64, Mode::Bits32] {
        // ltr [rax]
        let (outcome, s, m) = run(mode, &[0x0f, 0x00, 0x18], &SEL_TASK.to_le_bytes());
        let tr = s.segments[SegReg::Tr as usize];
        assert_eq!((outcome, tr.base, tr.limit, tr.attributes), (DONE, 0x1234_5678, 0x67, 0x8b));
        assert_eq!(m.get(GDT + 0x2d, 1), 0x8b, "busy");
        // lldt [rax]
        let (outcome, s, _) = run(mode, &[0x0f, 0x00, 0x10], &SEL_LDT.to_le_bytes());
        let ldtr = s.segments[SegReg::Ldtr as usize];
        assert_eq!((outcome, ldtr.base, ldtr.limit, ldtr.attributes), (DONE, 0x1000, 0x17, 0x82));
        let (outcome, s, _) = run(mode, &[0x0f, 0x00, 0x10], &[0, 0]);
        assert_eq!((outcome, s.segments[SegReg::Ldtr as usize].attributes & 0x80), (DONE, 0));
    }
    let ltr = |selector: u16| run(Mode::Bits64, &[0x0f, 0x00, 0x18], &selector.to_le_bytes()).0;
    assert_eq!(ltr(0), fault(vector::GP, 0));
    assert_eq!(ltr(SEL_DATA), fault(vector::GP, SEL_DATA));
    assert_eq!(ltr(SEL_LDT), fault(vector::GP, SEL_LDT));
    assert_eq!(ltr(SEL_TASK | 4), fault(vector::GP, SEL_TASK | 4));
    // A busy one, and one whose upper half lies beyond the table.
    let (mut s, mut m) = scene(Mode::Bits64);
    m.put(RAM, &SEL_TASK.to_le_bytes());
    assert_eq!(step(&mut s, &mut m, &[0x0f, 0x00, 0x18]), DONE);
    s.rip = CODE;
    assert_eq!(step(&mut s, &mut m, &[0x0f, 0x00, 0x18]), fault(vector::GP, SEL_TASK));
    s.gdtr.limit = SEL_TASK + 7;
    assert_eq!(step(&mut s, &mut m, &[0x0f, 0x00, 0x18]), fault(vector::GP, SEL_TASK));
    // User code may not, and real mode has none.
    s.cpl = 3;
    assert_eq!(step(&mut s, &mut m, &[0x0f, 0x00, 0x18]), fault(vector::GP, 0));
    let (mut s, mut m) = (machine(Mode::Bits16), memory());
    assert_eq!(step(&mut s, &mut m, &[0x0f, 0x00, 0x1e, 0, 0]), Outcome::Fault(Exception::UD));
}

#[test]
fn table_registers() {
    let (mut s, mut m) = scene(Mode::Bits64);
    s.idtr = TableReg { base: 0xffff_8000_1234_5678, limit: 0xfff };
    let mut run = |s: &mut ArchState, code: &[u8]| {
        s.rip = CODE;
        let outcome = step(s, &mut m, code);
        (outcome, m.get(RAM, 2), m.get(RAM + 2, 8))
    };
    // sidt [rax]; lgdt [rax]; sgdt [rax]
    assert_eq!(run(&mut s, &[0x0f, 0x01, 0x08]), (DONE, 0xfff, 0xffff_8000_1234_5678));
    assert_eq!(run(&mut s, &[0x0f, 0x01, 0x10]).0, DONE);
    assert_eq!(s.gdtr, s.idtr);
    assert_eq!(run(&mut s, &[0x0f, 0x01, 0x00]), (DONE, 0xfff, 0xffff_8000_1234_5678));
    s.segments[SegReg::Tr as usize].selector = 0x28;
    s.segments[SegReg::Ldtr as usize].selector = 0x38;
    // str [rax]; sldt [rax]; smsw [rax]; lmsw [rax]
    assert_eq!(run(&mut s, &[0x0f, 0x00, 0x08]).1, 0x28);
    assert_eq!(run(&mut s, &[0x0f, 0x00, 0x00]).1, 0x38);
    s.cr0 |= cr0::TS | cr0::MP;
    assert_eq!(run(&mut s, &[0x0f, 0x01, 0x20]).1, s.cr0 & 0xffff);
    s.cr0 &= !(cr0::TS | cr0::MP);
    assert_eq!(run(&mut s, &[0x0f, 0x01, 0x30]).0, DONE);
    assert_eq!(s.cr0 & 0xf, cr0::PE | cr0::TS | cr0::MP);
    // User code sees them unless CR4.UMIP is set, and cannot load them.
    s.cpl = 3;
    for code in
        [[0x0f, 0x01, 0x08], [0x0f, 0x01, 0x00], [0x0f, 0x00, 0x08], [0x0f, 0x00, 0x00], [0x0f, 0x01, 0x20]]
    {
        s.cr4 &= !cr4::UMIP;
        assert_eq!(run(&mut s, &code).0, DONE, "{code:x?}");
        s.cr4 |= cr4::UMIP;
        assert_eq!(run(&mut s, &code).0, fault(vector::GP, 0), "{code:x?}");
    }
    for code in [[0x0f, 0x01, 0x10], [0x0f, 0x01, 0x18], [0x0f, 0x01, 0x30]] {
        assert_eq!(run(&mut s, &code).0, fault(vector::GP, 0), "{code:x?}");
    }
    // 16-bit operands have 24 bits of base; and a base must be canonical.
    let (outcome, s, _) =
        super::descriptors::run(Mode::Bits32, &[0x66, 0x0f, 0x01, 0x10], &[7, 0, 1, 2, 3, 4]);
    assert_eq!((outcome, s.gdtr), (DONE, TableReg { base: 0x03_0201, limit: 7 }));
    let bad = [7, 0, 0, 0, 0, 0, 0, 0, 0, 0x80];
    assert_eq!(super::descriptors::run(Mode::Bits64, &[0x0f, 0x01, 0x10], &bad).0, fault(vector::GP, 0));
}

#[test]
fn far_transfers() {
    let there = 0x1000_u32;
    let pointer = |selector: u16| [&there.to_le_bytes()[..], &selector.to_le_bytes()].concat();
    for mode in [Mode::Bits64, Mode::Bits32] {
        // jmp far [rax]
        let (outcome, s, m) = run(mode, &[0xff, 0x28], &pointer(SEL_CODE));
        assert_eq!((outcome, s.rip), (DONE, there.into()));
        assert_eq!(s.segments[SegReg::Cs as usize].selector, SEL_CODE);
        assert_eq!(m.get(GDT + 0xd, 1), 0x9b, "the accessed bit");
        // call far [rax], and back
        let (outcome, mut s, mut m) = run(mode, &[0xff, 0x18], &pointer(SEL_CODE));
        assert_eq!((outcome, s.rip, s.gprs[RSP]), (DONE, there.into(), RAM + 0x4000 - 8));
        assert_eq!((m.get(RAM + 0x3ffc, 4), m.get(RAM + 0x3ff8, 4)), (8, CODE + 2));
        m.code = Some((there.into(), vec![0xcb]));
        assert_eq!(emulate(&mut s, &mut m, &mut DecodeCache::new()), DONE);
        assert_eq!((s.rip, s.gprs[RSP]), (CODE + 2, RAM + 0x4000));
        for (selector, expected) in [
            (0, fault(vector::GP, 0)),
            (SEL_DATA, fault(vector::GP, SEL_DATA)),
            (SEL_BEYOND, fault(vector::GP, SEL_BEYOND)),
        ] {
            assert_eq!(run(mode, &[0xff, 0x28], &pointer(selector)).0, expected);
            assert_eq!(run(mode, &[0xff, 0x18], &pointer(selector)).0, expected);
        }
        // A TSS: a task switch, which `emulate::task` executes and this module does not.
        assert!(matches!(run(mode, &[0xff, 0x28], &pointer(SEL_TASK)).0, Outcome::Unsupported(_)));
    }
    // A stack that cannot be written, and a descriptor that cannot be marked: nothing happens.
    let (mut s, mut m) = scene(Mode::Bits64);
    m.put(RAM, &pointer(SEL_CODE));
    for page in [RAM + 0x3000, RAM + 0x6000] {
        m.read_only = page..page + 0x1000;
        let before = (s.clone(), m.ram.clone());
        assert!(matches!(step(&mut s, &mut m, &[0xff, 0x18]), Outcome::Fault(e) if e.vector == vector::PF));
        assert_eq!((&s, &m.ram), (&before.0, &before.1));
    }
    // Real mode.
    let (mut s, mut m) = (machine(Mode::Bits16), memory());
    m.put(RAM, &[0x34, 0x12, 0x00, 0xf0]);
    assert_eq!(step(&mut s, &mut m, &[0xff, 0x1e, 0, 0]), DONE);
    assert_eq!((s.rip, s.segments[SegReg::Cs as usize].base, s.gprs[RSP]), (0x1234, 0xf0000, 0x7fc));
    assert_eq!(m.get(RAM + 0x27fc, 4), 4);
}

#[test]
fn descriptors_are_inspected() {
    // lar ecx, [rax]; lsl ecx, [rax]; verr [rax]; verw [rax]: ZF, and the register.
    let look = |code: &[u8], selector: u16| {
        let (outcome, s, _) = run(Mode::Bits64, code, &selector.to_le_bytes());
        assert_eq!(outcome, DONE);
        (s.rflags & rflags::ZF != 0, s.gprs[1])
    };
    let (lar, lsl, verr, verw) =
        ([0x0f, 0x02, 0x08], [0x0f, 0x03, 0x08], [0x0f, 0x00, 0x20], [0x0f, 0x00, 0x28]);
    assert_eq!(look(&lar, SEL_CODE), (true, 0xaf_9a00));
    assert_eq!(look(&lar, SEL_TASK), (true, 0x00_8900));
    assert_eq!(look(&lsl, SEL_DATA), (true, 0xffff_ffff));
    assert_eq!(look(&lsl, SEL_TASK), (true, 0x67));
    for selector in [0, SEL_BEYOND, SEL_DATA | 3] {
        assert_eq!((look(&lar, selector), look(&lsl, selector)), ((false, 0), (false, 0)));
        assert_eq!((look(&verr, selector), look(&verw, selector)), ((false, 0), (false, 0)));
    }
    assert_eq!((look(&verr, SEL_CODE).0, look(&verw, SEL_CODE).0), (true, false));
    assert_eq!((look(&verr, SEL_DATA).0, look(&verw, SEL_DATA).0), (true, true));
    assert_eq!((look(&verr, SEL_TASK).0, look(&verw, SEL_TASK).0), (false, false));
}

#[test]
fn stack_frames() {
    // pushad, popad
    let (mut s, mut m) = scene(Mode::Bits32);
    for n in 0..8 {
        if n != RSP {
            s.gprs[n] = 0x1111 * n as u64;
        }
    }
    let before = s.clone();
    assert_eq!(step(&mut s, &mut m, &[0x60]), DONE);
    assert_eq!(s.gprs[RSP], before.gprs[RSP] - 32);
    assert_eq!((m.get(s.gprs[RSP], 4), m.get(s.gprs[RSP] + 28, 4)), (0x7777, 0));
    assert_eq!(m.get(s.gprs[RSP] + 12, 4), before.gprs[RSP]);
    s.gprs[0] = 99;
    s.rip = CODE;
    assert_eq!(step(&mut s, &mut m, &[0x61]), DONE);
    assert_eq!(s.gprs, before.gprs);
    // bound eax, [ecx]
    for (index, inside) in [(4, false), (5, true), (9, true), (10, false), (-1i32 as u32, false)] {
        let (mut s, mut m) = scene(Mode::Bits32);
        m.put(RAM, &[5, 0, 0, 0, 9, 0, 0, 0]);
        (s.gprs[RAX], s.gprs[1]) = (index.into(), RAM);
        let expected = Exception { vector: vector::BR, error: None, cr2: None };
        let expected = if inside { DONE } else { Outcome::Fault(expected) };
        assert_eq!(step(&mut s, &mut m, &[0x62, 0x01]), expected, "{index}");
    }
    // pushfq
    let (mut s, mut m) = scene(Mode::Bits64);
    s.rflags |= rflags::RF | rflags::CF;
    assert_eq!(step(&mut s, &mut m, &[0x9c]), DONE);
    assert_eq!(m.get(s.gprs[RSP], 8), rflags::FIXED | rflags::CF);
}
