//! Drives the emulator with arbitrary bytes as code, registers and modes.

use super::testing::{Event, TestMemory};
use super::*;
use crate::arch::state::{ArchState, SegReg, Segment, cr0, cr4, efer, rflags};

const RAM: u64 = 0x1000;
const RAM_LEN: usize = 0x3000;
const DEVICE: u64 = 0x8000;
const STEPS: usize = 4;
/// How much of the input is code.
const CODE_LEN: usize = 40;

/// The fuzzer's bytes as numbers; zeros once they are used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|_| self.byte()))
    }

    /// A register: near RAM, near the device, small, or anything.
    fn register(&mut self) -> u64 {
        let kind = self.byte();
        match kind & 7 {
            0..=2 => RAM + u64::from(kind >> 3) * 0x180 + u64::from(self.byte()),
            3 => DEVICE + u64::from(self.byte()),
            4 => u64::from(self.byte()),
            5 => 0u64.wrapping_sub(u64::from(self.byte())),
            _ => self.word(),
        }
    }
}

fn state(input: &mut Input<'_>) -> ArchState {
    let bits = input.word();
    let on = |bit: u32, value: u64| if bits >> bit & 1 != 0 { value } else { 0 };
    let mut s = ArchState {
        gprs: core::array::from_fn(|_| input.register()),
        rflags: rflags::FIXED | bits >> 40 & 0x3_7fd5,
        cr0: on(0, cr0::PE | cr0::PG)
            | on(1, cr0::TS) & on(2, cr0::TS)
            | on(3, cr0::EM) & on(4, cr0::EM)
            | on(5, cr0::AM),
        cr4: cr4::PAE | on(6, cr4::OSFXSR) | on(7, cr4::LA57),
        cpl: (bits >> 8 & 3) as u8,
        ..ArchState::default()
    };
    for (n, segment) in s.segments.iter_mut().enumerate() {
        let kind = input.byte();
        *segment = Segment::flat(8 * n as u16, if n == SegReg::Cs as usize { 0xc9b } else { 0xc93 });
        match kind & 7 {
            0 => segment.base = u64::from(input.byte()) << 4,
            1 => segment.limit = input.word() as u32 & 0xffff,
            2 => segment.attributes = input.word() as u16 & 0xfff,
            _ => {}
        }
    }
    match bits >> 16 & 3 {
        0 => s.segments[SegReg::Cs as usize].attributes = 0x09b,
        1 => {}
        _ => {
            s.efer = efer::LMA | efer::LME;
            s.cr0 |= cr0::PE | cr0::PG;
            s.rflags &= !rflags::VM;
            s.segments[SegReg::Cs as usize].attributes = 0xa9b;
        }
    }
    s
}

/// Runs a few instructions made of `data`. Must not panic; asserts that whatever is not finished has had no effect.
pub fn fuzz_one(data: &[u8]) {
    let (code, rest) = data.split_at(data.len().min(CODE_LEN));
    let mut input = Input(rest);
    let mut s = state(&mut input);
    let mut m = TestMemory::new(RAM, RAM_LEN);
    m.device = DEVICE..DEVICE + 0x1000;
    m.read_only = RAM + 0x2000..RAM + 0x2800;
    m.races = u32::from(input.byte() & 3);
    m.port_value = input.byte().into();
    let page_end = u64::from(input.byte() & 31);
    s.rip = (RAM + 0x1000 - page_end).wrapping_sub(match s.code_bitness() {
        64 => 0,
        _ => s.segments[SegReg::Cs as usize].base,
    });
    let from = 0x1000 - page_end as usize;
    m.ram[from..from + code.len()].copy_from_slice(code);
    let mut cache = DecodeCache::new();
    for _ in 0..STEPS {
        if !step(&mut s, &mut m, &mut cache) {
            break;
        }
    }
}

/// One call of the emulator with its invariants; false if the guest would not go on.
fn step(s: &mut ArchState, m: &mut TestMemory, cache: &mut DecodeCache) -> bool {
    let (before, ram) = (s.clone(), m.ram.clone());
    m.events.clear();
    let outcome = emulate(s, m, cache);
    let written = |e: &Event| !matches!(e, Event::DeviceRead { .. });
    match outcome {
        Outcome::Done { single_step } => {
            assert_eq!(single_step, before.rflags & rflags::TF != 0);
            let length = s.rip.wrapping_sub(before.rip);
            assert!(s.rflags & rflags::RF == 0 || length == 0, "RF after an instruction");
            true
        }
        Outcome::Continue => {
            assert_eq!(s.rip, before.rip);
            true
        }
        Outcome::Fault(exception) => {
            assert!(exception.vector < 32);
            assert_eq!((&*s, &m.ram), (&before, &ram), "a fault had an effect");
            assert!(!m.events.iter().any(written), "a fault had an effect");
            false
        }
        Outcome::Stop(at) => panic!("stopped without a stop flag, at {at:#x}"),
        Outcome::Unsupported(bytes) => {
            assert_eq!((&*s, &m.ram), (&before, &ram), "an unsupported instruction had an effect");
            // A far pointer is read before it turns out to be a gate's.
            assert!(!m.events.iter().any(written), "an unsupported instruction had an effect");
            assert!(bytes.as_slice().len() <= MAX_LEN);
            false
        }
    }
}
