//! Which processors and which memory are near each other: the SRAT and the SLIT.
//!
//! Pure; damaged tables count as far as they can be read. ACPI 6.5, 5.2.16 (SRAT) and 5.2.17 (SLIT).

use alloc::vec::Vec;
use core::ops::Range;

use super::le;

/// Entries of either kind at most: more would be damage.
const MAX_ENTRIES: usize = 1024;
/// Nodes at most in the table of distances.
const MAX_NODES: usize = 64;
/// Of the flags of an entry of the SRAT.
const ENABLED: u64 = 1;
/// Distance of a node to itself, and to others where no table tells (5.2.17).
const NEAR: u8 = 10;
const FAR: u8 = 20;

/// Memory of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Physical addresses.
    pub range: Range<u64>,
    /// The node.
    pub node: u32,
}

/// The nodes, by the numbers that the tables give them (proximity domains).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numa {
    /// APIC IDs and their nodes.
    cpus: Vec<(u32, u32)>,
    /// Memory in the table's order.
    pub memory: Vec<Memory>,
    /// How many nodes the table of distances has, and its rows, one after the other.
    distances: (usize, Vec<u8>),
}

/// Memory that a whole SRAT names, in its order.
pub fn memory(table: &[u8]) -> impl Iterator<Item = Memory> {
    entries(table).filter_map(|(kind, entry)| {
        let (start, length) = (le(entry, 8, 8), le(entry, 16, 8));
        let end = start.checked_add(length).filter(|end| *end > start)?;
        let is_there = kind == 1 && entry.len() >= 40 && le(entry, 28, 4) & ENABLED != 0;
        is_there.then(|| Memory { range: start..end, node: le(entry, 2, 4) as u32 })
    })
}

/// The entries of a SRAT, with their kinds.
fn entries(table: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = table.get(48..).unwrap_or(&[]);
    core::iter::from_fn(move || {
        let [kind, length, ..] = *rest else { return None };
        let (entry, next) = rest.split_at_checked(length.into()).filter(|_| length >= 2)?;
        rest = next;
        Some((kind, entry))
    })
}

impl Numa {
    /// Reads a whole SRAT.
    pub fn read_srat(&mut self, table: &[u8]) {
        for (kind, entry) in entries(table) {
            match (kind, entry.len()) {
                (0, 16..) if le(entry, 4, 4) & ENABLED != 0 => {
                    let node = le(entry, 9, 3) << 8 | le(entry, 2, 1);
                    self.note_cpu(le(entry, 3, 1) as u32, node as u32);
                }
                (2, 24..) if le(entry, 12, 4) & ENABLED != 0 => {
                    self.note_cpu(le(entry, 8, 4) as u32, le(entry, 4, 4) as u32);
                }
                _ => {}
            }
        }
        let room = MAX_ENTRIES.saturating_sub(self.memory.len());
        self.memory.extend(memory(table).take(room));
    }

    fn note_cpu(&mut self, apic_id: u32, node: u32) {
        if self.cpus.len() < MAX_ENTRIES {
            self.cpus.push((apic_id, node));
        }
    }

    /// Reads a whole SLIT.
    pub fn read_slit(&mut self, table: &[u8]) {
        let nodes = usize::try_from(le(table, 36, 8)).unwrap_or(usize::MAX);
        if nodes > MAX_NODES {
            return;
        }
        if let Some(rows) = table.get(44..44 + nodes * nodes) {
            self.distances = (nodes, rows.to_vec());
        }
    }

    /// The node of a processor, 0 if none is named.
    pub fn node_of(&self, apic_id: u32) -> u32 {
        self.cpus.iter().find(|(id, _)| *id == apic_id).map_or(0, |(_, node)| *node)
    }

    /// The bytes of a node's memory, holes in it included.
    pub fn bytes(&self, node: u32) -> u64 {
        let of_node = self.memory.iter().filter(|memory| memory.node == node);
        of_node.fold(0, |sum: u64, memory| sum.saturating_add(memory.range.end - memory.range.start))
    }

    /// How far memory of the node `to` is from processors of the node `from`: 10 is near.
    pub fn distance(&self, from: u32, to: u32) -> u8 {
        let (nodes, rows) = &self.distances;
        let row = rows.chunks_exact((*nodes).max(1)).nth(from as usize);
        let told = row.and_then(|row| row.get(to as usize)).copied();
        told.unwrap_or(if from == to { NEAR } else { FAR })
    }

    /// All nodes that are named, in rising order.
    pub fn nodes(&self) -> Vec<u32> {
        let of_cpus = self.cpus.iter().map(|(_, node)| *node);
        let mut nodes: Vec<u32> = of_cpus.chain(self.memory.iter().map(|memory| memory.node)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// Reads arbitrary bytes as either table; for fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let mut numa = Numa::default();
    let (first, second) = data.split_at(data.len() / 2);
    numa.read_srat(first);
    numa.read_slit(second);
    let nodes = numa.nodes();
    for from in &nodes {
        let _bytes = numa.bytes(*from);
        for to in &nodes {
            let _distance = numa.distance(*from, *to);
        }
    }
    assert!(numa.memory.iter().all(|memory| memory.range.start < memory.range.end));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn srat() -> Vec<u8> {
        let mut table = vec![0; 48];
        // A processor by its short ID in node 0x01000002, one by its long ID, and one that is not there.
        table.extend([0, 16, 2, 5, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        table.extend([2, 24, 0, 0, 1, 0, 0, 0, 0x34, 0x12, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        table.extend([2, 24, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for (node, start, length, flags) in [
            (1, 0x10_0000u64, 0x700_0000u64, 1u32),
            (1, 1 << 32, 1 << 30, 1),
            (3, 0, 1, 0),
            (3, 8, u64::MAX, 1),
        ] {
            table.extend([1, 40, node, 0, 0, 0, 0, 0]);
            table.extend(start.to_le_bytes());
            table.extend(length.to_le_bytes());
            table.extend([0; 4]);
            table.extend(flags.to_le_bytes());
            table.extend([0; 8]);
        }
        table
    }

    #[test]
    fn processors_and_memory_have_nodes() {
        let mut numa = Numa::default();
        numa.read_srat(&srat());
        assert_eq!([5, 0x1234, 9, 77].map(|id| numa.node_of(id)), [0x0100_0002, 1, 0, 0]);
        assert_eq!(numa.bytes(1), 0x4700_0000);
        assert_eq!(numa.bytes(3), 0);
        assert_eq!(numa.nodes(), [1, 0x0100_0002]);
    }

    #[test]
    fn distances() {
        let mut table = vec![0; 36];
        table.extend(2u64.to_le_bytes());
        table.extend([10, 31, 21, 10]);
        let mut numa = Numa::default();
        assert_eq!([numa.distance(4, 4), numa.distance(0, 1)], [10, 20]);
        numa.read_slit(&table[..47]);
        assert_eq!(numa.distance(0, 1), 20, "a table that is too short");
        numa.read_slit(&table);
        assert_eq!([(0, 1), (1, 0), (1, 1), (0, 2)].map(|(a, b)| numa.distance(a, b)), [31, 21, 10, 20]);
        table[36..44].fill(0xff);
        numa.read_slit(&table);
        assert_eq!(numa.distance(0, 1), 31, "a table that is too large says nothing");
    }

    proptest! {
        #[test]
        fn damage_is_survived(changes in prop::collection::vec((0usize..320, any::<u8>()), 0..12),
                              data in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), Just(24), Just(40), any::<u8>()], 0..400)) {
            let mut table = srat();
            for (at, byte) in changes {
                let at = at % table.len();
                table[at] = byte;
            }
            fuzz_one(&table);
            fuzz_one(&data);
        }
    }
}
