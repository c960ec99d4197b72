//! The frequency of the host's time-stamp counter.
//!
//! From CPUID where it says so and the ACPI PM timer does not contradict, else measured against that timer or channel 2 of
//! the PIT.

use super::{cpu, port};

/// Frequency of the ACPI PM timer in Hz (ACPI 6.5, 4.8.3.3).
const PM_TIMER_HZ: u64 = 3_579_545;
/// Frequency of the PIT in Hz.
const PIT_HZ: u64 = 1_193_182;
/// Length of one measurement: 10 ms.
const MEASURE_HZ: u64 = 100;
/// Reads of a timer before it is taken for stuck.
const MAX_READS: u32 = 10_000_000;

/// The ACPI PM timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmTimer {
    /// Its I/O port.
    pub port: u16,
    /// It counts 32 bits instead of 24.
    pub wide: bool,
}

/// Where the frequency comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// CPUID leaf 15h, with leaf 16h for the crystal where it is missing.
    Cpuid,
    /// The hypervisor below us, leaf 4000_0010h.
    Hypervisor,
    /// Measured against the ACPI PM timer.
    PmTimer,
    /// Measured against the PIT.
    Pit,
}

impl core::fmt::Display for Source {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Source::Cpuid => "CPUID",
            Source::Hypervisor => "the hypervisor below",
            Source::PmTimer => "the ACPI PM timer",
            Source::Pit => "the PIT",
        })
    }
}

/// The TSC frequency in kHz, and how it was found; `None` if every timer is stuck.
///
/// What CPUID tells is exact, if it is true: an emulated processor tells the frequency of the one that it imitates. So a
/// clear contradiction of the PM timer's counts.
pub fn frequency_khz(pm_timer: Option<PmTimer>) -> Option<(u64, Source)> {
    let measure = || pm_timer.and_then(measure_pm_timer);
    let told = from_cpuid(|leaf| cpu::cpuid(leaf, 0)).map(|khz| (khz, Source::Cpuid));
    let told = told.or_else(|| Some((from_hypervisor(|leaf| cpu::cpuid(leaf, 0))?, Source::Hypervisor)));
    if let Some((khz, source)) =
        told.filter(|(khz, _)| measure().is_none_or(|measured| agree(*khz, measured)))
    {
        return Some((khz, source));
    }
    match (told, median(measure)) {
        (Some((khz, source)), Some(measured)) if agree(khz, measured) => Some((khz, source)),
        (_, Some(measured)) => Some((measured, Source::PmTimer)),
        (_, None) => median(measure_pit).map(|khz| (khz, Source::Pit)),
    }
}

/// Whether a measurement confirms a frequency, with 5 % for what disturbs it.
fn agree(khz: u64, measured: u64) -> bool {
    khz.abs_diff(measured) <= measured / 20
}

/// Intel SDM 3, 20.7.3: crystal × ratio; the crystal from the base frequency where leaf 15h leaves it out.
fn from_cpuid(cpuid: impl Fn(u32) -> cpu::CpuidResult) -> Option<u64> {
    let highest = cpuid(0).eax;
    let leaf = (highest >= 0x15).then(|| cpuid(0x15))?;
    if leaf.eax == 0 || leaf.ebx == 0 {
        return None;
    }
    if leaf.ecx != 0 {
        return Some(u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax) / 1000);
    }
    let base_mhz = if highest >= 0x16 { cpuid(0x16).eax & 0xffff } else { 0 };
    (base_mhz != 0).then_some(u64::from(base_mhz) * 1000)
}

/// The timing leaf that VMware introduced, where its owner is known to fill it.
fn from_hypervisor(cpuid: impl Fn(u32) -> cpu::CpuidResult) -> Option<u64> {
    if cpuid(1).ecx >> 31 == 0 {
        return None;
    }
    let leaf = cpuid(0x4000_0000);
    let mut signature = [0; 12];
    for (bytes, register) in signature.chunks_exact_mut(4).zip([leaf.ebx, leaf.ecx, leaf.edx]) {
        bytes.copy_from_slice(&register.to_le_bytes());
    }
    let known = [*b"VMwareVMware", *b"KVMKVMKVM\0\0\0"].contains(&signature);
    let khz = (known && leaf.eax >= 0x4000_0010).then(|| cpuid(0x4000_0010).eax)?;
    (khz != 0).then_some(khz.into())
}

/// The median of three measurements: one may be disturbed by an SMI, or by the hypervisor or emulator below.
fn median(measure: impl Fn() -> Option<u64>) -> Option<u64> {
    let mut runs = [measure()?, measure()?, measure()?];
    runs.sort_unstable();
    Some(runs[1])
}

/// `ticks` of the TSC during `count` periods of a timer, in kHz.
const fn to_khz(ticks: u64, count: u64, timer_hz: u64) -> u64 {
    (ticks as u128 * timer_hz as u128 / (count as u128 * 1000)) as u64
}

fn measure_pm_timer(timer: PmTimer) -> Option<u64> {
    let mask = if timer.wide { u32::MAX } else { 0xff_ffff };
    // SAFETY: the FADT names this port as the PM timer's; reading has no effect.
    let read = || unsafe { port::in32(timer.port) };
    let want = (PM_TIMER_HZ / MEASURE_HZ) as u32;
    let first = read();
    let start = cpu::rdtsc();
    for _ in 0..MAX_READS {
        let count = read().wrapping_sub(first) & mask;
        if count >= want {
            let ticks = cpu::rdtsc().wrapping_sub(start);
            return Some(to_khz(ticks, count.into(), PM_TIMER_HZ));
        }
    }
    None
}

/// Channel 2 of the PIT in mode 0: its output, visible in port 61h, rises when the count is used up.
fn measure_pit() -> Option<u64> {
    const GATE: u8 = 1;
    const SPEAKER: u8 = 2;
    const OUTPUT: u8 = 1 << 5;
    let count = PIT_HZ / MEASURE_HZ;
    // SAFETY: the host has no other use for channel 2.
    unsafe {
        let control = port::in8(0x61) & !(GATE | SPEAKER);
        port::out8(0x61, control | GATE);
        port::out8(0x43, 0xb0);
        port::out8(0x42, count as u8);
        port::out8(0x42, (count >> 8) as u8);
        let start = cpu::rdtsc();
        // A port without a device reads as ones: the output must have been low.
        let counting = port::in8(0x61) & OUTPUT == 0;
        let ended = counting && (0..MAX_READS).any(|_| port::in8(0x61) & OUTPUT != 0);
        let ticks = cpu::rdtsc().wrapping_sub(start);
        port::out8(0x61, control);
        ended.then(|| to_khz(ticks, count, PIT_HZ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn leaves(list: &[(u32, [u32; 4])]) -> impl Fn(u32) -> cpu::CpuidResult + use<> {
        let map: BTreeMap<u32, [u32; 4]> = list.iter().copied().collect();
        move |leaf| {
            let [eax, ebx, ecx, edx] = map.get(&leaf).copied().unwrap_or_default();
            cpu::CpuidResult { eax, ebx, ecx, edx }
        }
    }

    #[test]
    fn cpuid_leaf_15() {
        // Skylake-SP: 25 MHz crystal, 168/2. Skylake client: no crystal, base 3 GHz. Silence.
        let with_crystal = leaves(&[(0, [0x16, 0, 0, 0]), (0x15, [2, 168, 25_000_000, 0])]);
        assert_eq!(from_cpuid(with_crystal), Some(2_100_000));
        let without = leaves(&[(0, [0x16, 0, 0, 0]), (0x15, [2, 250, 0, 0]), (0x16, [3000, 0, 0, 0])]);
        assert_eq!(from_cpuid(without), Some(3_000_000));
        assert_eq!(from_cpuid(leaves(&[(0, [0x16, 0, 0, 0]), (0x15, [0, 0, 0, 0])])), None);
        assert_eq!(from_cpuid(leaves(&[(0, [0xd, 0, 0, 0]), (0x15, [2, 168, 25_000_000, 0])])), None);
    }

    #[test]
    fn hypervisor_leaf_only_of_known_hypervisors() {
        let kvm = [
            0x4000_0010,
            u32::from_le_bytes(*b"KVMK"),
            u32::from_le_bytes(*b"VMKV"),
            u32::from_le_bytes(*b"M\0\0\0"),
        ];
        let tcg = [
            0x4000_0010,
            u32::from_le_bytes(*b"TCGT"),
            u32::from_le_bytes(*b"CGTC"),
            u32::from_le_bytes(*b"GTCG"),
        ];
        let machine = |leaf, bit| {
            leaves(&[(1, [0, 0, bit, 0]), (0x4000_0000, leaf), (0x4000_0010, [2_500_000, 0, 0, 0])])
        };
        assert_eq!(from_hypervisor(machine(kvm, 1 << 31)), Some(2_500_000));
        assert_eq!(from_hypervisor(machine(kvm, 0)), None);
        assert_eq!(from_hypervisor(machine(tcg, 1 << 31)), None);
        assert_eq!(from_hypervisor(machine([0x4000_0001, kvm[1], kvm[2], kvm[3]], 1 << 31)), None);
    }

    #[test]
    fn a_measurement_confirms_or_contradicts() {
        assert!(agree(3_500_000, 3_507_000) && agree(3_500_000, 3_400_000) && agree(0, 0));
        assert!(!agree(3_500_000, 100_000) && !agree(100_000, 3_500_000) && !agree(1, 0));
    }

    #[test]
    fn measurements() {
        assert_eq!(to_khz(10_000_000, 35_795, PM_TIMER_HZ), 1_000_012);
        assert_eq!(to_khz(u64::MAX, 1, PM_TIMER_HZ), (u128::from(u64::MAX) * 3_579_545 / 1000) as u64);
        let runs = core::cell::Cell::new(0);
        let disturbed = || {
            runs.set(runs.get() + 1);
            Some([0, 100, 900, 101][runs.get()])
        };
        assert_eq!(median(disturbed), Some(101));
        assert_eq!(median(|| None), None);
    }
}
