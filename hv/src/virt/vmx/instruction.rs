//! The instruction that exited: what it is about, and its end when it was executed in software.

use super::Vmx;
use super::cache::Field;
use super::field::exit;
use crate::arch::state::{VcpuState, rflags};

impl Vmx {
    /// What the exit's reason leaves open.
    #[inline(always)]
    pub(super) fn qualification(&self) -> u64 {
        // SAFETY: after an exit of this VCPU.
        unsafe { self.cache.read(exit::QUALIFICATION) }
    }

    /// RIP of the instruction after the one that exited.
    #[inline(always)]
    pub(super) fn after_exit(&self) -> u64 {
        // SAFETY: after an exit of this VCPU.
        let (rip, length) = unsafe { self.cache.rip_and_length() };
        let next = rip.wrapping_add(length);
        if next >> 32 == 0 { next } else { self.wrapped(next) }
    }

    /// Outside of 64-bit code the upper half of RIP does not exist.
    #[inline(never)]
    fn wrapped(&self, next: u64) -> u64 {
        if self.is_64bit() { next } else { next & 0xffff_ffff }
    }

    /// Ends an instruction under RF or TF. True: TF is set.
    #[cold]
    #[inline(never)]
    pub(super) fn end_carefully(&self) -> bool {
        let flags = self.cache.get(Field::Rflags);
        self.set(Field::Rflags, flags & !rflags::RF);
        // A single step that waited for the end of the shadow is the caller's now.
        self.end_shadow();
        flags & rflags::TF != 0
    }
}
