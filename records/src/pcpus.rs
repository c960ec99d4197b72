//! What the machine's PCPUs have done up to a moment, and the memory that is left.

use crate::{head, parse_head};

/// The kind of a record.
pub const KIND: u8 = 6;
/// Words before those of the PCPUs.
const FIXED: usize = 4;
/// Words for each PCPU.
const EACH: usize = 3;
/// Words of a record at most.
pub const MOST: usize = FIXED + EACH * crate::PCPUS;
const _: () = assert!(MOST <= crate::ring::LONGEST);

/// A PCPU's sums since the machine's start, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pcpu {
    /// Its number.
    pub pcpu: u64,
    /// Time that it ran VCPUs.
    pub busy: u64,
    /// Time that it halted.
    pub idle: u64,
}

/// Writes the record; its words.
pub fn write(
    tsc: u64,
    free_bytes: u64,
    heap_bytes: u64,
    pcpus: impl Iterator<Item = Pcpu>,
    record: &mut [u64; MOST],
) -> usize {
    let mut words = FIXED;
    for (to, it) in record[FIXED..].chunks_exact_mut(EACH).zip(pcpus) {
        to.copy_from_slice(&[it.pcpu, it.busy, it.idle]);
        words += EACH;
    }
    record[..FIXED].copy_from_slice(&[head(KIND, words, 0), tsc, free_bytes, heap_bytes]);
    words
}

/// Reads a record: the host's TSC, free bytes of memory, bytes of the hypervisor's heap, and the PCPUs. `None`: it is none.
pub fn read(record: &[u64]) -> Option<([u64; 3], impl Iterator<Item = Pcpu> + '_)> {
    let (kind, words, _) = parse_head(*record.first()?);
    let all = record.get(..words).filter(|_| kind == KIND)?;
    let [_, tsc, free, heap] = *all.first_chunk::<FIXED>()?;
    let pcpus = all[FIXED..].chunks_exact(EACH).map(|it| Pcpu { pcpu: it[0], busy: it[1], idle: it[2] });
    Some(([tsc, free, heap], pcpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let pcpu = |n| Pcpu { pcpu: n, busy: 10 * n, idle: 20 * n };
        let mut record = [0; MOST];
        let words = write(7, 8, 9, (0..100).map(pcpu), &mut record);
        assert_eq!(words, MOST);
        let (host, pcpus) = read(&record).unwrap();
        assert_eq!(host, [7, 8, 9]);
        assert!(pcpus.eq((0..64).map(pcpu)));
        assert!(read(&record[..3]).is_none() && read(&[head(1, 4, 0), 0, 0, 0]).is_none());
        assert!(read(&[head(KIND, 3, 0), 0, 0, 0]).is_none());
    }
}
