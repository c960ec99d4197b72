//! The emulator against the processor that runs the tests, against tables from the manuals, and against random bytes.

mod decode;
mod descriptors;
mod faults;
mod forms;
mod modes;
mod native;
mod strings;
mod system;

use super::testing::TestMemory;
use super::*;
use crate::arch::state::{ArchState, Gpr, SegReg, Segment, cr0, cr4, efer, rflags};

/// RAM of the tests: eight pages here.
const RAM: u64 = 0x10_0000;
const RAM_LEN: usize = 0x8000;
/// Where the tests' code is.
const CODE: u64 = 0x40_0000;

/// A small, good enough generator (xorshift64*).
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 0 to `bound` - 1.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `n` times.
    pub(super) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A supervisor in flat 64-bit or 32-bit protected mode, or a 16-bit real-mode program, about to execute at [`CODE`].
fn machine(mode: Mode) -> ArchState {
    let mut s = ArchState {
        rip: CODE,
        rflags: rflags::FIXED,
        cr0: cr0::PE | cr0::PG | cr0::ET,
        cr4: cr4::PAE | cr4::OSFXSR,
        cr3: 0x1000,
        ..ArchState::default()
    };
    s.gprs[Gpr::Rsp as usize] = RAM + 0x4000;
    let (code, data) = match mode {
        Mode::Bits64 => (0xa9b, 0xc93),
        _ => (0xc9b, 0xc93),
    };
    if mode == Mode::Bits64 {
        s.efer = efer::LMA | efer::LME;
    }
    s.segments = [Segment::flat(0x10, data); 8];
    s.segments[SegReg::Cs as usize] = Segment::flat(8, code);
    if mode == Mode::Bits16 {
        let real = ArchState::reset();
        s.segments = real.segments;
        s.segments[SegReg::Cs as usize] =
            Segment { base: CODE, limit: 0xffff, selector: 0, attributes: 0x9b };
        s.segments[SegReg::Ds as usize].base = RAM;
        s.segments[SegReg::Es as usize].base = RAM + 0x1000;
        s.segments[SegReg::Ss as usize].base = RAM + 0x2000;
        (s.cr0, s.rip) = (cr0::ET, 0);
        s.gprs[Gpr::Rsp as usize] = 0x800;
    }
    s
}

fn memory() -> TestMemory {
    TestMemory::new(RAM, RAM_LEN)
}

/// Runs `code` once on `state` and `mem`.
fn step(state: &mut ArchState, mem: &mut TestMemory, code: &[u8]) -> Outcome<u64> {
    mem.code = Some((CODE, code.to_vec()));
    emulate(state, mem, &mut DecodeCache::new())
}

const DONE: Outcome<u64> = Outcome::Done { single_step: false };

#[test]
fn random_bytes_never_surprise() {
    let mut random = Random(0x0123_4567_89ab_cdef);
    for _ in 0..50_000 {
        let data: alloc::vec::Vec<u8> = (0..40).flat_map(|_| random.next().to_le_bytes()).collect();
        super::fuzz::fuzz_one(&data[..128 + random.below(192) as usize]);
    }
}
