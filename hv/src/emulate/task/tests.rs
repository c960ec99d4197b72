//! Faults that need a stack of their own to be seen in a guest, and arbitrary tasks.

use super::super::testing::TestMemory;
use super::*;
use crate::arch::state::{ArchState, TableReg};

const GDT: u64 = 0x1000;
const OLD_TSS: u64 = 0x1800;
const NEW_TSS: u64 = 0x1900;
const NEW: TaskSwitch = TaskSwitch { selector: 0x28, source: TaskSource::Jump };

fn descriptor(base: u64, limit: u64, kind: u64) -> u64 {
    limit & 0xffff | (base & 0xff_ffff) << 16 | kind << 40 | (limit >> 16) << 48 | 0xc << 52
}

/// A task that runs, and another one that can be switched to.
fn scene() -> (ArchState, TestMemory) {
    let mut mem = TestMemory::new(GDT, 0x1000);
    let tss = |base: u64, kind: u64| 0x67 | base << 16 | kind << 40;
    let table = [
        0,
        descriptor(0, 0xf_ffff, 0x9a),
        descriptor(0, 0xf_ffff, 0x92),
        descriptor(0, 0xf_ffff, 0x12),
        tss(OLD_TSS, 0x8b),
        tss(NEW_TSS, 0x89),
        descriptor(0, 0xf_ffff, 0xf2),
    ];
    for (n, entry) in table.into_iter().enumerate() {
        mem.put(GDT + 8 * n as u64, &entry.to_le_bytes());
    }
    for (offset, value) in
        [(0x20, 0x7777), (0x24, 0x202), (0x38, 0x1f00), (0x4c, 0x08), (0x50, 0x10), (0x54, 0x10)]
    {
        mem.put(NEW_TSS + offset, &u32::to_le_bytes(value));
    }
    let mut state =
        ArchState { cr0: cr0::PE | cr0::ET, rip: 0x5555, rflags: 2, dr7: 0x7ff, ..ArchState::reset() };
    state.set_gdtr(TableReg { base: GDT, limit: 0x37 });
    state.set_segment(SegReg::Tr, Segment { selector: 0x20, attributes: 0x8b, limit: 0x67, base: OLD_TSS });
    (state, mem)
}

#[test]
fn a_switch_saves_one_task_and_loads_the_other() {
    let (mut state, mut mem) = scene();
    let new = leave(&mut state, &mut mem, &NEW, 0x555c).unwrap();
    assert_eq!(
        (mem.get(OLD_TSS + 0x20, 4), mem.get(GDT + 0x25, 1), mem.get(GDT + 0x2d, 1)),
        (0x555c, 0x89, 0x8b)
    );
    assert_eq!(arrive(&mut state, &mut mem, &new), Ok(false));
    assert_eq!((state.rip, state.rflags, state.dr7), (0x7777, 0x202, 0x6aa));
    assert_eq!(
        state.segment(SegReg::Tr),
        Segment { selector: 0x28, attributes: 0x8b, limit: 0x67, base: NEW_TSS }
    );
    // The descriptors have been accessed.
    assert_eq!((mem.get(GDT + 0xd, 1), mem.get(GDT + 0x15, 1)), (0x9b, 0x93));
}

#[test]
fn what_a_task_loads_is_checked_in_the_order_of_the_manual() {
    for (offset, value, vector, error) in [
        (0x60, 0x28, vector::TS, 0x28),
        (0x60, 0x2000, vector::TS, 0x2000),
        (0x4c, 0, vector::TS, 0),
        (0x4c, 0x10, vector::TS, 0x10),
        (0x4c, 0x0b, vector::TS, 0x08),
        (0x50, 0, vector::TS, 0),
        (0x50, 0x08, vector::TS, 0x08),
        (0x50, 0x30, vector::TS, 0x30),
        (0x50, 0x18, vector::SS, 0x18),
        (0x54, 0x18, vector::NP, 0x18),
        (0x48, 0x28, vector::TS, 0x28),
        (0x5c, 0x0c, vector::TS, 0x0c),
    ] {
        let (mut state, mut mem) = scene();
        mem.put(NEW_TSS + offset, &u32::to_le_bytes(value));
        let new = leave(&mut state, &mut mem, &NEW, 0).unwrap();
        let fault = Exception { vector, error: Some(error), cr2: None };
        let got = arrive(&mut state, &mut mem, &new);
        assert_eq!(got, Err(Fault::Exception(fault)), "{offset:#x}: {value:#x}");
        assert_eq!(state.rip, 0x7777, "the new task's fault");
        let (cs, ss) = (state.segment(SegReg::Cs), state.segment(SegReg::Ss));
        assert_eq!(
            (ss.selector & 3, ss.dpl().into()),
            (cs.selector & 3, cs.selector & 3),
            "what VT-x demands"
        );
    }
}

#[test]
fn an_event_from_outside_marks_its_faults_and_pushes_its_error_code() {
    let event = GateEvent { software: false, fault: true, error: Some(0x1234) };
    let request = TaskSwitch { source: TaskSource::Gate(event), ..NEW };
    let (mut state, mut mem) = scene();
    let new = leave(&mut state, &mut mem, &request, 0).unwrap();
    assert_eq!((mem.get(OLD_TSS + 0x20, 4), mem.get(OLD_TSS + 0x24, 4)), (0x5555, 1 << 16 | 2));
    assert_eq!((mem.get(NEW_TSS, 2), mem.get(GDT + 0x25, 1)), (0x20, 0x8b), "nested: both are busy");
    assert_eq!(arrive(&mut state, &mut mem, &new), Ok(false));
    assert_eq!((state.gpr(Gpr::Rsp), mem.get(0x1efc, 4)), (0x1efc, 0x1234));
    assert_eq!(state.rflags & rflags::NT, rflags::NT);
    let (mut state, mut mem) = scene();
    mem.put(GDT + 0x2d, &[0x8b]);
    let fault = Exception { vector: vector::GP, error: Some(0x29), cr2: None };
    assert_eq!(leave(&mut state, &mut mem, &request, 0).err(), Some(Fault::Exception(fault)));
}

#[test]
fn arbitrary_tasks_never_panic_and_faults_of_the_old_one_have_no_effect() {
    let mut random = 7u64;
    for _ in 0..8_000 {
        let data: [u8; 200] = core::array::from_fn(|_| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 56) as u8
        });
        fuzz_one(&data);
    }
}
