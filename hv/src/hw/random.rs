//! Random numbers of the processor: RDSEED and RDRAND (Intel SDM 1, 7.3.17; AMD APM 3).

use core::arch::asm;

use super::cpu::{cpuid, rdtsc_unordered};

/// CPUID leaf 1, ECX: RDRAND.
const RDRAND: u32 = 1 << 30;
/// CPUID leaf 7, EBX: RDSEED.
const RDSEED: u32 = 1 << 18;
/// How often an empty generator is asked again.
const TRIES: u32 = 100;

/// A seed, and whether it is unpredictable.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    /// The bytes.
    pub bytes: [u8; 32],
    /// The processor's generator gave them. If not, they come from the jitter of its clock, which can be guessed with
    /// knowledge of the machine: not for keys.
    pub secure: bool,
}

/// Makes a seed.
pub fn seed() -> Seed {
    let mut words = [0; 4];
    let mut secure = true;
    let mut state = 0;
    for word in &mut words {
        let random = hardware();
        secure &= random.is_some();
        *word = random.unwrap_or_else(|| jitter(&mut state));
    }
    let mut bytes = [0; 32];
    bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    Seed { bytes, secure }
}

fn hardware() -> Option<u64> {
    let largest = cpuid(0, 0).eax;
    let seeds = largest >= 7 && cpuid(7, 0).ebx & RDSEED != 0;
    let randoms = cpuid(1, 0).ecx & RDRAND != 0;
    // RDSEED first: it gives true random bits, RDRAND the output of a generator that they seed.
    let seed = seeds.then(|| (0..TRIES).find_map(|_| rdseed())).flatten();
    seed.or_else(|| randoms.then(|| (0..TRIES).find_map(|_| rdrand())).flatten())
}

fn rdseed() -> Option<u64> {
    let (value, valid): (u64, u8);
    // SAFETY: CPUID has said that the instruction is there; it changes registers only.
    unsafe { asm!("rdseed {}", "setc {}", out(reg) value, out(reg_byte) valid, options(nomem, nostack)) };
    (valid != 0).then_some(value)
}

fn rdrand() -> Option<u64> {
    let (value, valid): (u64, u8);
    // SAFETY: CPUID has said that the instruction is there; it changes registers only.
    unsafe { asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) valid, options(nomem, nostack)) };
    (valid != 0).then_some(value)
}

/// Mixes the times that a thousand CPUIDs take into `state`.
fn jitter(state: &mut u64) -> u64 {
    for _ in 0..1000 {
        let _takes_a_while = cpuid(0, 0);
        *state = (state.rotate_left(7) ^ rdtsc_unordered()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    *state ^ *state >> 32
}
