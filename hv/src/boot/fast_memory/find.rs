//! Fast memory that the firmware's tables name (`fast-mem=auto`): that of the node whose memory is fastest.
//!
//! Pure. SRAT and HMAT are read before there is a heap, because what is fast must not get to the frame allocator.

use core::ops::Range;

use abi::tiers::{FastRange, MAX_FAST_RANGES};
use arrayvec::ArrayVec;

use crate::boot::memory::Ranges;
use crate::firmware::hmat::{Hmat, MAX_NODES};
use crate::firmware::numa;

/// Memory below `low` that stays with the hypervisor: it starts there, and has tables that must be there.
const KEPT: u64 = 256 << 20;
const MIB: u64 = 1 << 20;

/// The RAM of the fastest node, in whole MiB. All of a machine's memory that is not slower than other memory is no fast memory, and
/// a machine whose tables do not tell has none. Where all other memory is above the address `low`, the first 256 MiB are left out.
pub fn find(srat: &[u8], hmat: &[u8], ram: &Ranges, low: u64) -> ArrayVec<FastRange, MAX_FAST_RANGES> {
    let mut found = ArrayVec::new();
    let mut nodes: ArrayVec<u32, MAX_NODES> = ArrayVec::new();
    for memory in numa::memory(srat) {
        if !nodes.contains(&memory.node)
            && within(ram, memory.range).next().is_some()
            && nodes.try_push(memory.node).is_err()
        {
            return found;
        }
    }
    let Some(fastest) = Hmat::new(hmat).fastest(&nodes) else { return found };
    let of = |is_fast: bool| {
        let all = numa::memory(srat).filter(move |memory| (memory.node == fastest) == is_fast);
        all.flat_map(|memory| within(ram, memory.range))
    };
    let is_low = |range: Range<u64>| range.end.min(low).saturating_sub(range.start);
    let first = if of(false).map(is_low).fold(0, u64::saturating_add) < KEPT { KEPT } else { 0 };
    for range in of(true) {
        let (start, end) = (range.start.max(first).div_ceil(MIB), range.end / MIB);
        let range = FastRange { start_mib: start, mib: end.saturating_sub(start) };
        // A table that names memory twice is not trusted; more pieces than can be named stay slow.
        if range.mib > 0 && !found.iter().any(|other: &FastRange| other.overlaps(&range)) {
            let _rest_is_slow = found.try_push(range);
        }
    }
    found
}

/// The parts of a range that are RAM.
fn within(ram: &Ranges, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let parts = ram.iter().map(move |part| part.start.max(range.start)..part.end.min(range.end));
    parts.filter(|part| part.start < part.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn srat(memory: &[(u32, u64, u64)]) -> Vec<u8> {
        let mut table = vec![0; 48];
        for (node, start, length) in memory {
            table.extend([1, 40]);
            table.extend(node.to_le_bytes());
            table.extend([0, 0]);
            table.extend(start.to_le_bytes());
            table.extend(length.to_le_bytes());
            table.extend([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        table
    }

    /// Latencies of the nodes from 0 on.
    fn hmat(latencies: &[u16]) -> Vec<u8> {
        let mut table = vec![0; 40];
        table.extend([1, 0, 0, 0]);
        table.extend((36 + 6 * latencies.len() as u32).to_le_bytes());
        table.extend([0, 0, 0, 0, 1, 0, 0, 0]);
        table.extend((latencies.len() as u32).to_le_bytes());
        table.extend([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        table.extend([0; 4]);
        (0..latencies.len() as u32).for_each(|node| table.extend(node.to_le_bytes()));
        latencies.iter().for_each(|value| table.extend(value.to_le_bytes()));
        table
    }

    fn ram(of: &[Range<u64>]) -> Ranges {
        let mut ranges = Ranges::new();
        of.iter().for_each(|range| ranges.add(range.clone()).unwrap());
        ranges
    }

    fn names(srat: &[u8], hmat: &[u8], ram: &Ranges) -> Vec<String> {
        find(srat, hmat, ram, 4 * GIB).iter().map(|range| range.to_string()).collect()
    }

    #[test]
    fn the_fastest_nodes_ram_is_taken() {
        let ram = ram(&[0..0xa_0000, MIB..2 * GIB, 4 * GIB..6 * GIB]);
        let memory = [(0, 0, 0xa_0000), (0, MIB, GIB - MIB), (1, GIB, GIB), (1, 4 * GIB, 8 * GIB)];
        assert_eq!(names(&srat(&memory), &hmat(&[50, 20]), &ram), ["1024@1024", "2048@4096"]);
        // The other memory is enough for the hypervisor.
        assert_eq!(names(&srat(&memory), &hmat(&[20, 50]), &ram), ["1023@1"]);
        for nothing in [
            names(&srat(&memory), &hmat(&[20, 20]), &ram),
            names(&srat(&memory), &hmat(&[20]), &ram),
            names(&srat(&memory[..2]), &hmat(&[20, 50]), &ram),
            names(&[], &[], &ram),
        ] {
            assert!(nothing.is_empty(), "{nothing:?}");
        }
    }

    #[test]
    fn low_memory_stays_with_the_hypervisor_if_there_is_no_other() {
        let ram = ram(&[MIB..2 * GIB, 4 * GIB..6 * GIB]);
        let memory = [(0, 0, 2 * GIB), (1, 4 * GIB, 2 * GIB)];
        assert_eq!(names(&srat(&memory), &hmat(&[20, 50]), &ram), ["1792@256"]);
        assert_eq!(names(&srat(&memory), &hmat(&[50, 20]), &ram), ["2048@4096"]);
    }

    proptest! {
        /// Whatever the tables say, what is found is RAM, and named once.
        #[test]
        fn what_is_found_is_ram(memory in prop::collection::vec((0u32..3, 0u64..64, 0u64..40), 0..12), latencies in prop::collection::vec(0u16..5, 0..4)) {
            let ram = ram(&[100 << 10..6 * MIB, 9 * MIB..20 * MIB, 30 * MIB..60 * MIB]);
            let memory: Vec<_> = memory.iter().map(|(node, at, len)| (*node, at * MIB / 2, len * MIB / 2)).collect();
            let found = find(&srat(&memory), &hmat(&latencies), &ram, 0);
            for (n, range) in found.iter().enumerate() {
                let bytes = range.start_mib * MIB..range.end_mib() * MIB;
                prop_assert!(ram.iter().any(|part| part.start <= bytes.start && bytes.end <= part.end));
                prop_assert!(found[..n].iter().all(|other| !other.overlaps(range)));
            }
        }
    }
}
