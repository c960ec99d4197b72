//! The KVM-compatible paravirtual clock (`Documentation/virt/kvm/x86/msr.rst`,
//! `arch/x86/include/asm/pvclock-abi.h`).
//!
//! It tells a guest its TSC rate and the time at a TSC value, so that it calibrates nothing; reading the
//! clock then costs no exit. A VCPU gives the address of its structure by an MSR; the VCPU's owner calls
//! [`PvClock::update`] then, and again only if the relation between TSC and time changes. The guest reads the
//! structure under its version: odd means that it is being changed.

use crate::arch::addr::Gpa;
use crate::device::{Nanos, Tsc};
use crate::mem::guest_memory::{GuestMemory, NotRam};

/// `ns = ((ticks << shift) * mul) >> 32`; a negative shift is to the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscScale {
    mul: u32,
    shift: i8,
}

impl TscScale {
    /// The scale of a TSC of `khz` kHz; 0 counts as 1. `mul` has its top bit set, which makes the error less
    /// than 2^-31.
    pub const fn from_khz(khz: u32) -> TscScale {
        const NS_PER_MS: u128 = 1_000_000;
        let khz = if khz == 0 { 1 } else { khz as u128 };
        // Nanoseconds per tick in 1/2^64, brought into 2^31 .. 2^32 in steps of one bit.
        let ratio = (NS_PER_MS << 64) / khz;
        let shift = 96 - ratio.leading_zeros() as i32 - 32;
        TscScale { mul: (ratio >> (32 + shift)) as u32, shift: shift as i8 }
    }

    /// The nanoseconds that `ticks` take, exactly as a guest computes them; modulo 2^64.
    pub const fn to_ns(self, ticks: u64) -> u64 {
        let shifted = if self.shift < 0 { ticks >> -self.shift } else { ticks << self.shift };
        ((shifted as u128 * self.mul as u128) >> 32) as u64
    }
}

/// The TSCs of all VCPUs agree, so that the clock never goes backwards between them.
const FLAG_TSC_STABLE: u8 = 1;

/// The clock of one VCPU.
#[derive(Clone, Debug)]
pub struct PvClock {
    address: Option<Gpa>,
    version: u32,
    scale: TscScale,
}

impl PvClock {
    /// A clock that the guest has not asked for yet.
    pub fn new(tsc_khz: u32) -> PvClock {
        PvClock { address: None, version: 0, scale: TscScale::from_khz(tsc_khz) }
    }

    /// The guest wrote `KVM_SYSTEM_TIME`: an address with bit 0 set to start, bit 0 clear to stop.
    pub fn set_address(&mut self, value: u64) {
        self.address = (value & 1 != 0).then_some(Gpa(value & !1));
    }

    /// Whether the guest uses the clock.
    pub fn is_on(&self) -> bool {
        self.address.is_some()
    }

    /// Tells the guest that its TSC read `tsc` when the time was `now`. Does nothing while the clock is off;
    /// turns it off if its structure is not in RAM.
    pub fn update(&mut self, memory: &impl GuestMemory, tsc: Tsc, now: Nanos) {
        if let Some(at) = self.address
            && self.write(memory, at, tsc, now).is_err()
        {
            self.address = None;
        }
    }

    fn write(&mut self, memory: &impl GuestMemory, at: Gpa, tsc: Tsc, now: Nanos) -> Result<(), NotRam> {
        let mut body = [0; 28];
        body[4..12].copy_from_slice(&tsc.0.to_le_bytes());
        body[12..20].copy_from_slice(&now.0.to_le_bytes());
        body[20..24].copy_from_slice(&self.scale.mul.to_le_bytes());
        body[24] = self.scale.shift as u8;
        body[25] = FLAG_TSC_STABLE;
        memory.write(at, &self.version.wrapping_add(1).to_le_bytes())?;
        memory.write(at.wrapping_add(4), &body)?;
        self.version = self.version.wrapping_add(2);
        memory.write(at, &self.version.to_le_bytes())
    }
}

/// Writes the wall clock at the time 0 of the paravirtual clock, in seconds and nanoseconds since 1970, to
/// the structure that the guest named by `KVM_WALL_CLOCK`. A structure outside of RAM is the guest's loss.
pub fn write_wall_clock(memory: &impl GuestMemory, at: Gpa, seconds: u64, nanoseconds: u32) {
    let version = memory.read_u32(at).unwrap_or(0).wrapping_add(2) & !1;
    // The structure has 32 bits of seconds: until 2106.
    let words = [version, seconds as u32, nanoseconds];
    let _ = memory.write(at, words.map(u32::to_le_bytes).as_flattened());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::guest_memory::VecMemory;
    use proptest::prelude::*;

    /// What Linux makes of the scale: the TSC rate in kHz.
    fn khz_of(scale: TscScale) -> u64 {
        let khz = (1_000_000u64 << 32) / u64::from(scale.mul);
        if scale.shift < 0 { khz << -scale.shift } else { khz >> scale.shift }
    }

    #[test]
    fn scale_is_exact_for_round_rates() {
        assert_eq!(TscScale::from_khz(1_000_000), TscScale { mul: 1 << 31, shift: 1 });
        assert_eq!(TscScale::from_khz(1_000_000).to_ns(12345), 12345);
        assert_eq!(TscScale::from_khz(2_000_000).to_ns(u64::MAX - 1), u64::MAX / 2);
        assert_eq!(TscScale::from_khz(500_000).to_ns(7), 14);
        let _ = TscScale::from_khz(0).to_ns(u64::MAX);
    }

    #[test]
    fn structure_is_as_the_guest_expects() {
        let memory = VecMemory::new(4096);
        let mut clock = PvClock::new(3_000_000);
        clock.update(&memory, Tsc(1), Nanos(2));
        assert_eq!(memory.read_u32(Gpa(0x40)), Ok(0), "off");
        clock.set_address(0x41);
        clock.update(&memory, Tsc(0x1111), Nanos(0x2222));
        clock.update(&memory, Tsc(0x1_0000_0003), Nanos(0x2_0000_0004));
        let mut s = [0; 32];
        memory.read(Gpa(0x40), &mut s).unwrap();
        assert_eq!(s[..8], [4, 0, 0, 0, 0, 0, 0, 0], "version even, padding");
        assert_eq!(s[8..24], [3, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(s[24..28], clock.scale.mul.to_le_bytes());
        assert_eq!(s[28..], [clock.scale.shift as u8, 1, 0, 0]);
        clock.set_address(4096 | 1);
        clock.update(&memory, Tsc(0), Nanos(0));
        assert!(!clock.is_on(), "not in RAM");

        write_wall_clock(&memory, Gpa(0x80), 1_700_000_000, 5);
        assert_eq!([0x80, 0x84, 0x88].map(|a| memory.read_u32(Gpa(a)).unwrap()), [2, 1_700_000_000, 5]);
        write_wall_clock(&memory, Gpa(u64::MAX), 0, 0);
    }

    proptest! {
        #[test]
        fn guest_finds_the_rate_and_the_time(khz in 1000u32..16_000_000, seconds in 0u64..100_000_000) {
            let scale = TscScale::from_khz(khz);
            prop_assert!(scale.mul >> 31 == 1);
            // Linux loses the bits that its shift to the left brings in as zeros.
            let lost = khz.abs_diff(khz_of(scale) as u32);
            prop_assert!(lost < 1 << (-scale.shift).max(0), "{} became {}", khz, khz_of(scale));
            let ticks = u64::from(khz) * 1000 * seconds;
            let ns = scale.to_ns(ticks);
            let exact = seconds * 1_000_000_000;
            prop_assert!(exact.abs_diff(ns) <= 16 + (exact >> 30), "{} {}", exact, ns);
        }
    }
}
