//! The caches of the processor that is asked.
//!
//! Intel describes each in a subleaf of leaf 4, AMD in the same form in leaf 8000_001Dh (with topology extensions); older
//! AMD processors have sizes only, in leaves 8000_0005h and 8000_0006h. Intel SDM 2A, CPUID; AMD APM 3, appendix E.

use core::fmt;

use arrayvec::ArrayVec;

use super::Size;
use super::processor::Cpuid;

/// Caches at most.
const MAX_CACHES: usize = 8;

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Data.
    Data,
    /// Instructions.
    Instructions,
    /// Both.
    Both,
}

/// A cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is the nearest to the processor.
    pub level: u32,
    /// What it holds.
    pub holds: Holds,
    /// Its size.
    pub bytes: u64,
    /// The length of a line in bytes.
    pub line: u32,
    /// Places that each line can be in; 0 if not known.
    pub ways: u32,
    /// Logical processors that have APIC IDs for sharing it, at most; 0 if not known.
    pub shared_by: u32,
}

/// The caches, the nearest first.
pub type Caches = ArrayVec<Cache, MAX_CACHES>;

/// Asks the processor.
pub fn caches(cpuid: Cpuid<'_>) -> Caches {
    const TOPOLOGY_EXTENSIONS: u32 = 1 << 22;
    let highest = cpuid(0x8000_0000, 0)[0];
    if highest >= 0x8000_001d && cpuid(0x8000_0001, 0)[2] & TOPOLOGY_EXTENSIONS != 0 {
        return described(cpuid, 0x8000_001d);
    }
    let caches = if cpuid(0, 0)[0] >= 4 { described(cpuid, 4) } else { Caches::new() };
    if caches.is_empty() && highest >= 0x8000_0006 { sizes(cpuid) } else { caches }
}

/// The subleaves of `leaf`, up to the first that is no cache.
fn described(cpuid: Cpuid<'_>, leaf: u32) -> Caches {
    let cache = |[a, b, sets, _]: [u32; 4]| {
        let holds = match a & 0x1f {
            1 => Holds::Data,
            2 => Holds::Instructions,
            3 => Holds::Both,
            _ => return None,
        };
        let (line, partitions, ways) = ((b & 0xfff) + 1, (b >> 12 & 0x3ff) + 1, (b >> 22) + 1);
        // At most 2^12 × 2^10 × 2^10 × 2^32: within 64 bits, but for a processor that lies.
        let bytes =
            (u64::from(line) * u64::from(partitions) * u64::from(ways)).saturating_mul(u64::from(sets) + 1);
        Some(Cache { level: a >> 5 & 7, holds, bytes, line, ways, shared_by: (a >> 14 & 0xfff) + 1 })
    };
    (0..MAX_CACHES as u32).map_while(|subleaf| cache(cpuid(leaf, subleaf))).collect()
}

/// AMD's older leaves.
fn sizes(cpuid: Cpuid<'_>) -> Caches {
    let [_, _, data, instructions] = cpuid(0x8000_0005, 0);
    let [_, _, second, third] = cpuid(0x8000_0006, 0);
    let cache = |level, holds, kib: u32, word: u32| Cache {
        level,
        holds,
        bytes: u64::from(kib) << 10,
        line: word & 0xff,
        ways: 0,
        shared_by: 0,
    };
    let all = [
        cache(1, Holds::Data, data >> 24, data),
        cache(1, Holds::Instructions, instructions >> 24, instructions),
        cache(2, Holds::Both, second >> 16, second),
        cache(3, Holds::Both, (third >> 18) * 512, third),
    ];
    all.into_iter().filter(|cache| cache.bytes != 0).collect()
}

/// `L1 data 32 KiB, 8 ways, lines of 64 bytes, one for 2 logical processors`
impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = match self.holds {
            Holds::Data => " data",
            Holds::Instructions => " instructions",
            Holds::Both => "",
        };
        write!(f, "L{}{holds} {}", self.level, Size(self.bytes))?;
        if self.ways != 0 {
            write!(f, ", {} ways", self.ways)?;
        }
        write!(f, ", lines of {} bytes", self.line)?;
        if self.shared_by > 1 {
            write!(f, ", shared by up to {} logical processors", self.shared_by)?;
        }
        Ok(())
    }
}
