//! Drives task switches with arbitrary TSSs and descriptors.

use super::super::testing::TestMemory;
use super::*;
use crate::arch::state::{ArchState, TableReg};

const BASE: u64 = 0x1000;
const LEN: usize = 0x2000;
/// Selectors of the tasks: the current one, and the new one.
const OLD: u16 = 0x08;
const NEW: u16 = 0x10;

/// Switches to a task made of `data`. Must not panic; asserts that a fault of the old task has had no effect, and that what
/// is loaded is what a processor accepts.
pub fn fuzz_one(data: &[u8]) {
    let Some((&[choice, pages, limit, flags], rest)) = data.split_first_chunk::<4>() else { return };
    let mut mem = TestMemory::new(BASE, LEN);
    for (to, from) in mem.ram.iter_mut().zip(rest.iter().cycle()) {
        *to = *from;
    }
    if pages & 1 != 0 {
        mem.read_only = BASE + 0x1000..BASE + 0x2000;
    }
    let mut state =
        ArchState { cr0: cr0::PE | cr0::ET, rflags: u64::from(flags) << 8 | 2, ..ArchState::reset() };
    state.set_gdtr(TableReg { base: BASE, limit: u16::from(limit) << 3 | 7 });
    let kind = if choice & 8 != 0 { 0x8b } else { 0x83 };
    let tr = Segment { selector: OLD, attributes: kind, limit: 0x67, base: BASE + 0xfc0 };
    state.set_segment(SegReg::Tr, tr);
    if choice & 0x30 != 0 {
        // A TSS descriptor that may be valid.
        let busy = if choice & 7 == 2 { 2 } else { 0 };
        let layout = if choice & 0x40 != 0 { 8 } else { 0 };
        let at = BASE + 0x800 + u64::from(pages) * 8;
        mem.put(BASE + 0x10, &(0x67 | at << 16 | (0x81 | busy | layout) << 40).to_le_bytes());
    }
    let source = match choice & 7 {
        0 => TaskSource::Call,
        1 => TaskSource::Jump,
        2 => TaskSource::Iret,
        n => TaskSource::Gate(GateEvent {
            software: n == 3,
            fault: n == 4,
            error: (n > 4).then_some(0x1_0008),
        }),
    };
    let request = TaskSwitch { selector: NEW, source };
    let (before, ram) = (state.clone(), mem.ram.clone());
    let new = match leave(&mut state, &mut mem, &request, 0x1234) {
        Ok(new) => new,
        Err(fault) => {
            assert!(matches!(fault, Fault::Exception(_)));
            assert_eq!((&state, &mem.ram), (&before, &ram), "a fault of the old task had an effect");
            return;
        }
    };
    assert_eq!(state.segment(SegReg::Tr).attributes & 0x97, 0x83, "a busy TSS that is present");
    let arrived = arrive(&mut state, &mut mem, &new);
    assert!(!matches!(arrived, Err(Fault::Stop(_))));
    assert_eq!(state.rflags & !FLAGS, rflags::FIXED);
    let (cs, ss) = (state.segment(SegReg::Cs), state.segment(SegReg::Ss));
    assert!(cs.attributes & ss.attributes & Segment::PRESENT != 0 && state.rip >> 32 == 0);
    if state.rflags & rflags::VM == 0 {
        assert!(cs.attributes & 0x18 == 0x18 && ss.attributes & 0x1a == 0x12);
        assert_eq!(ss.dpl(), state.cpl());
    }
    if arrived.is_ok() {
        assert!(state.rip <= cs.limit.into());
    }
}
