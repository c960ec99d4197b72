//! How fast the memory of each node is: the HMAT.
//!
//! Pure; a damaged table counts as far as it can be read. ACPI 6.3, 5.2.27: a structure of type 1 (5.2.27.4) has latencies or bandwidths between
//! nodes that access memory and nodes that have it.

use arrayvec::ArrayVec;

use super::le;

/// A table longer than this is damaged: one of 64 nodes has not half of it.
const MAX_LENGTH: usize = 1 << 16;
/// Nodes that are compared at most.
pub const MAX_NODES: usize = 64;

/// What an entry tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Latency,
    Bandwidth,
}

/// Latencies and bandwidths, by the numbers of nodes that the SRAT gives them. Nothing is allocated: the fast memory is wanted before
/// there is a heap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hmat<'a>(&'a [u8]);

/// A structure of type 1: a table of numbers.
#[derive(Clone, Copy, Debug)]
struct Locality<'a> {
    kind: Kind,
    froms: usize,
    tos: usize,
    unit: u64,
    bytes: &'a [u8],
}

impl<'a> Locality<'a> {
    const HEAD: usize = 32;

    fn new(bytes: &'a [u8]) -> Option<Locality<'a>> {
        // Of accesses to memory, not to a cache in front of it; of all, or of reads.
        let is_of_memory = le(bytes, 8, 1) & 0xf == 0;
        let kind = match le(bytes, 9, 1) {
            0 | 1 => Kind::Latency,
            3 | 4 => Kind::Bandwidth,
            _ => return None,
        };
        let count = |at| usize::try_from(le(bytes, at, 4)).ok().filter(|count| *count <= MAX_LENGTH);
        let (froms, tos) = (count(12)?, count(16)?);
        let end = Self::HEAD + 4 * (froms + tos) + 2 * froms.checked_mul(tos)?;
        (is_of_memory && end <= bytes.len()).then(|| Locality {
            kind,
            froms,
            tos,
            unit: le(bytes, 24, 8),
            bytes,
        })
    }

    /// What it tells of the memory of a node, for each node that accesses it.
    fn of(self, node: u32) -> impl Iterator<Item = u64> + 'a {
        /// That node does not reach that memory; 0: nothing is known.
        const NONE: u64 = 0xffff;
        let lists = Self::HEAD + 4 * self.froms;
        let matrix = lists + 4 * self.tos;
        let columns = (0..self.tos).filter(move |to| le(self.bytes, lists + 4 * to, 4) == u64::from(node));
        let raw = columns.flat_map(move |to| {
            (0..self.froms).map(move |from| le(self.bytes, matrix + 2 * (from * self.tos + to), 2))
        });
        raw.filter(|raw| *raw != 0 && *raw != NONE).filter_map(move |raw| raw.checked_mul(self.unit))
    }
}

impl<'a> Hmat<'a> {
    /// A whole HMAT.
    pub fn new(table: &'a [u8]) -> Hmat<'a> {
        const HEAD: usize = 40;
        Hmat(table.get(HEAD..).filter(|_| table.len() <= MAX_LENGTH).unwrap_or(&[]))
    }

    fn localities(self) -> impl Iterator<Item = Locality<'a>> {
        let mut rest = self.0;
        let structures = core::iter::from_fn(move || {
            let length = usize::try_from(le(rest, 4, 4)).ok().filter(|length| *length >= 8)?;
            let (structure, next) = rest.split_at_checked(length)?;
            rest = next;
            Some(structure)
        });
        structures.filter(|structure| le(structure, 0, 2) == 1).filter_map(Locality::new)
    }

    /// Picoseconds (nanoseconds in tables of revision 1) from an access to the memory of this node, by the node that is nearest to it.
    /// `None`: the table does not tell.
    pub fn latency(self, node: u32) -> Option<u64> {
        self.of(node, Kind::Latency).min()
    }

    /// MB a second to the memory of this node, by the node that is nearest to it. `None`: the table does not tell.
    pub fn bandwidth(self, node: u32) -> Option<u64> {
        self.of(node, Kind::Bandwidth).max()
    }

    fn of(self, node: u32, kind: Kind) -> impl Iterator<Item = u64> + 'a {
        self.localities().filter(move |table| table.kind == kind).flat_map(move |table| table.of(node))
    }

    /// The node with the fastest memory of these, if the table tells of all of them, and others are slower: the latency decides, and
    /// bandwidth where that is equal, or not told.
    pub fn fastest(self, nodes: &[u32]) -> Option<u32> {
        let mut all: ArrayVec<(u64, u64, u32), MAX_NODES> = ArrayVec::new();
        let tells = |kind| nodes.iter().all(|node| self.of(*node, kind).next().is_some());
        let (latencies, bandwidths) = (tells(Kind::Latency), tells(Kind::Bandwidth));
        if !latencies && !bandwidths || nodes.len() < 2 {
            return None;
        }
        for node in nodes {
            // What is told of some only compares nothing.
            let latency = self.latency(*node).filter(|_| latencies).unwrap_or(0);
            let bandwidth = self.bandwidth(*node).filter(|_| bandwidths).unwrap_or(0);
            all.try_push((latency, u64::MAX - bandwidth, *node)).ok()?;
        }
        let (latency, slowness, node) = all.iter().min().copied()?;
        let alike = all.iter().filter(|other| (other.0, other.1) == (latency, slowness)).count();
        (alike == 1).then_some(node)
    }
}

/// Reads arbitrary bytes as the table; for fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let hmat = Hmat::new(data);
    let nodes: ArrayVec<u32, 8> = data.iter().take(8).map(|byte| u32::from(*byte)).collect();
    if let Some(fastest) = hmat.fastest(&nodes) {
        assert!(nodes.contains(&fastest));
        let all = nodes.iter().map(|node| hmat.latency(*node));
        assert!(all.clone().any(|latency| latency.is_none()) || all.min() == Some(hmat.latency(fastest)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A structure of type 1 with the entries of each row.
    fn locality(kind: u8, unit: u64, froms: &[u32], tos: &[u32], rows: &[u16]) -> Vec<u8> {
        let length = 32 + 4 * (froms.len() + tos.len()) + 2 * rows.len();
        let mut all = vec![1, 0, 0, 0];
        all.extend((length as u32).to_le_bytes());
        all.extend([0, kind, 0, 0]);
        all.extend((froms.len() as u32).to_le_bytes());
        all.extend((tos.len() as u32).to_le_bytes());
        all.extend([0; 4]);
        all.extend(unit.to_le_bytes());
        froms.iter().chain(tos).for_each(|node| all.extend(node.to_le_bytes()));
        rows.iter().for_each(|value| all.extend(value.to_le_bytes()));
        all
    }

    fn table(structures: &[Vec<u8>]) -> Vec<u8> {
        [&[0; 40][..], &structures.concat()].concat()
    }

    fn fastest(structures: &[Vec<u8>], nodes: &[u32]) -> Option<u32> {
        Hmat::new(&table(structures)).fastest(nodes)
    }

    #[test]
    fn the_nearest_node_tells() {
        let other = vec![2, 0, 0, 0, 12, 0, 0, 0, 9, 9, 9, 9];
        let latencies = locality(0, 1000, &[0, 1], &[0, 1, 4], &[20, 60, 0xffff, 70, 30, 0]);
        let bandwidths = locality(3, 100, &[0], &[0, 1], &[500, 900]);
        let bytes = table(&[other, latencies, bandwidths]);
        let hmat = Hmat::new(&bytes);
        assert_eq!([0, 1, 4, 7].map(|node| hmat.latency(node)), [Some(20_000), Some(30_000), None, None]);
        assert_eq!([0, 1, 4].map(|node| hmat.bandwidth(node)), [Some(50_000), Some(90_000), None]);
        assert_eq!(hmat.fastest(&[0, 1]), Some(0), "the latency decides");
        assert_eq!(hmat.fastest(&[0, 1, 4]), None, "nothing is known of one");
        assert_eq!(hmat.fastest(&[0]), None, "there is no other");
    }

    #[test]
    fn bandwidth_decides_where_latency_does_not() {
        let latencies = locality(1, 1000, &[0], &[0, 1], &[20, 20]);
        let bandwidths = locality(4, 1, &[0], &[0, 1], &[500, 900]);
        assert_eq!(fastest(&[latencies.clone(), bandwidths.clone()], &[0, 1]), Some(1));
        assert_eq!(fastest(&[bandwidths], &[0, 1]), Some(1));
        assert_eq!(fastest(&[latencies], &[0, 1]), None, "they are equal");
        let writes = locality(2, 1000, &[0], &[0, 1], &[20, 30]);
        assert_eq!(fastest(&[writes], &[0, 1]), None, "of writes alone");
    }

    #[test]
    fn damage_ends_it() {
        let good = locality(0, 1000, &[0], &[0, 1], &[20, 30]);
        let mut long = good.clone();
        long[4] += 1;
        assert_eq!(Hmat::new(&table(&[good.clone(), long])).latency(1), Some(30_000), "the first is whole");
        let mut many = good;
        many[12..16].fill(0xff);
        assert_eq!(Hmat::new(&table(&[many])).latency(1), None);
    }

    proptest! {
        #[test]
        fn damage_is_survived(changes in prop::collection::vec((0usize..120, any::<u8>()), 0..8), kind in 0u8..6,
                              data in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(48), any::<u8>()], 0..300)) {
            let structure = locality(kind, 10, &[0, 1], &[0, 1, 2], &[1, 2, 3, 4, 5, 6]);
            let mut all = [&[0; 40][..], &structure, &structure].concat();
            for (at, byte) in changes {
                let at = at % all.len();
                all[at] = byte;
            }
            fuzz_one(&all);
            fuzz_one(&data);
        }
    }
}
