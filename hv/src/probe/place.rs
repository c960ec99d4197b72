//! Where the calling PCPU sits: package, last-level cache, core, thread, all parts of its APIC ID.
//!
//! By CPUID leaf 1Fh or 0Bh where there is one (Intel SDM 3, 9.9; AMD APM 3, appendix E), else by AMD's leaf 8000_001Eh with the size
//! of 8000_0008h, else by the counts of leaves 1 and 4. The PCPUs that share the last cache are in leaf 4 or 8000_001Dh; where
//! they are not, those of a package do.

use core::fmt::{self, Display};

use abi::telemetry::key;

use super::Row;
use super::cache::caches;
use super::processor::Cpuid;
use crate::sched::topology::{Location, PcpuSet, Topology};
use crate::trace::record::Json;

/// Levels of leaves 0Bh and 1Fh at most; architectures have six.
const MAX_LEVELS: u32 = 8;
/// A level of threads in a core.
const SMT: u32 = 1;

/// How many low bits of an APIC ID tell threads in a core apart, and PCPUs in a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shifts {
    thread: u32,
    package: u32,
}

/// Bits needed for `count` different numbers.
fn bits_for(count: u32) -> u32 {
    count.max(1).next_power_of_two().trailing_zeros()
}

/// What is left of `id` without its low `bits`.
fn above(id: u32, bits: u32) -> u32 {
    id.checked_shr(bits).unwrap_or(0)
}

/// The place of the PCPU with this APIC ID, all of whose leaves `cpuid` answers; its memory node is not known here.
pub fn place(cpuid: Cpuid<'_>, apic_id: u32) -> Location {
    let highest = cpuid(0, 0)[0];
    let levels = [0x1f, 0xb].into_iter().filter(|leaf| highest >= *leaf).find_map(|leaf| levels(cpuid, leaf));
    let Shifts { thread, package } = levels.or_else(|| units(cpuid)).unwrap_or_else(|| counts(cpuid));
    let caches = caches(cpuid);
    let last = caches.iter().max_by_key(|cache| cache.level).filter(|cache| cache.shared_by > 0);
    // A core's threads share whatever they have, and no cache reaches out of its package.
    let llc = last.map_or(package, |cache| bits_for(cache.shared_by).clamp(thread, package.max(thread)));
    Location {
        package: above(apic_id, package),
        llc: above(apic_id, llc),
        core: above(apic_id, thread),
        thread: apic_id & !(u32::MAX.checked_shl(thread).unwrap_or(0)),
        node: 0,
    }
}

/// Leaf 0Bh or 1Fh; `None` if the processor does not fill it.
fn levels(cpuid: Cpuid<'_>, leaf: u32) -> Option<Shifts> {
    let mut shifts = None;
    for subleaf in 0..MAX_LEVELS {
        let [shift, processors, level, _] = cpuid(leaf, subleaf);
        let (shift, kind) = (shift & 0x1f, level >> 8 & 0xff);
        if kind == 0 || subleaf == 0 && processors & 0xffff == 0 {
            break;
        }
        let known = shifts.get_or_insert(Shifts { thread: 0, package: 0 });
        if kind == SMT {
            known.thread = shift;
        }
        known.package = known.package.max(shift);
    }
    shifts
}

/// AMD's units with several threads, or with several cores that the first such processors called so.
fn units(cpuid: Cpuid<'_>) -> Option<Shifts> {
    const TOPOLOGY_EXTENSIONS: u32 = 1 << 22;
    let has = cpuid(0x8000_0000, 0)[0] >= 0x8000_001e && cpuid(0x8000_0001, 0)[2] & TOPOLOGY_EXTENSIONS != 0;
    let threads = (cpuid(0x8000_001e, 0)[1] >> 8 & 0xff) + 1;
    let package = has.then(|| amd_package(cpuid)).flatten()?;
    Some(Shifts { thread: bits_for(threads).min(package), package })
}

/// AMD's size of the part of the APIC ID within a package, or the number of threads in it.
fn amd_package(cpuid: Cpuid<'_>) -> Option<u32> {
    let size = if cpuid(0x8000_0000, 0)[0] >= 0x8000_0008 { cpuid(0x8000_0008, 0)[2] } else { 0 };
    match (size >> 12 & 0xf, size & 0xff) {
        (0, 0) => None,
        (0, threads) => Some(bits_for(threads + 1)),
        (bits, _) => Some(bits),
    }
}

/// The counts of leaf 1 and leaf 4.
fn counts(cpuid: Cpuid<'_>) -> Shifts {
    const HTT: u32 = 1 << 28;
    let [_, ebx, _, edx] = cpuid(1, 0);
    if edx & HTT == 0 {
        return Shifts { thread: 0, package: 0 };
    }
    // AMD's CMP legacy: HTT means cores, not threads (APM 3, CPUID Fn8000_0001 ECX bit 1).
    if cpuid(0x8000_0000, 0)[0] >= 0x8000_0001 && cpuid(0x8000_0001, 0)[2] & 1 << 1 != 0 {
        let package = amd_package(cpuid).unwrap_or_else(|| bits_for(ebx >> 16 & 0xff));
        return Shifts { thread: 0, package };
    }
    let package = bits_for(ebx >> 16 & 0xff);
    let cores = if cpuid(0, 0)[0] >= 4 { (cpuid(4, 0)[0] >> 26) + 1 } else { 1 };
    Shifts { thread: package.saturating_sub(bits_for(cores)), package }
}

/// Where each PCPU is, for the `host` record.
pub fn record(json: &mut Json<'_>, topology: &Topology) -> fmt::Result {
    json.begin_array(key::TOPOLOGY)?;
    for place in topology.all().into_iter().filter_map(|pcpu| topology.location(pcpu)) {
        json.begin_object("")?;
        json.number(key::PACKAGE, place.package)?;
        json.number(key::LLC, place.llc)?;
        json.number(key::CORE, place.core)?;
        json.number(key::THREAD, place.thread)?;
        json.number(key::NODE, place.node)?;
        json.end()?;
    }
    json.end()
}

/// `4 cores in 2 packages, last-level caches of PCPUs 0-1, 2-3, 1 memory node`
pub fn shape(topology: &Topology) -> impl Display {
    fmt::from_fn(move |f| {
        let cores = kinds(topology, |place| place.core);
        let packages = kinds(topology, |place| place.package);
        let nodes = kinds(topology, |place| place.node);
        write!(f, "{} in {}, ", count(cores, "core"), count(packages, "package"))?;
        write!(f, "last-level {} of PCPUs ", if topology.llcs().len() == 1 { "cache" } else { "caches" })?;
        write!(f, "{}, {}", Row(topology.llcs().iter().map(|set| runs(*set))), count(nodes, "memory node"))
    })
}

fn count(n: usize, what: &str) -> impl Display {
    fmt::from_fn(move |f| write!(f, "{n} {what}{}", if n == 1 { "" } else { "s" }))
}

/// How many values a number has.
fn kinds(topology: &Topology, number: fn(&Location) -> u32) -> usize {
    let numbers = || topology.all().into_iter().filter_map(|pcpu| topology.location(pcpu)).map(number);
    numbers().enumerate().filter(|(n, value)| numbers().take(*n).all(|other| other != *value)).count()
}

/// `0-3+8`
pub fn runs(set: PcpuSet) -> impl Display {
    fmt::from_fn(move |f| {
        let mut rest = set.bits();
        while rest != 0 {
            let first = rest.trailing_zeros();
            let length = (rest >> first).trailing_ones();
            rest &= !(u64::MAX >> (64 - length) << first);
            let before = if set.bits().trailing_zeros() == first { "" } else { "+" };
            write!(f, "{before}{first}")?;
            if length > 1 {
                write!(f, "-{}", first + length - 1)?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
