//! Deduplication with the memory of PARSEC's program: the input lies in one large buffer, chunks are references into it, a table
//! knows the digests of all chunks so far, and what a new chunk is compressed to has a buffer from malloc until it has been
//! written, in order.
//!
//! The stages take turns on one thread, a piece of the input each. PARSEC's threads hand on pieces of 2 MiB, and the last
//! one frees the buffers: the heap grows by what a piece came to, and the C library gives the end of it back to the kernel.

use std::{collections::VecDeque, io, ops::Range};

use super::{STRETCH, boundary, fingerprint, source};
use crate::{Work, random::Random, sys::Area};

/// Words of what the input is made of.
const SOURCE: usize = (32 << 20) / size_of::<u64>();
/// Words of a piece of the input: what a stage does before the next one goes on. Half of PARSEC's, because the work is short.
const PIECE: usize = (1 << 20) / size_of::<u64>();
/// Pieces of the input at most. Longer work goes through it again.
const MOST_PIECES: u64 = 128;
/// Chains of the table.
const BUCKETS: usize = 1 << 16;
/// Words of a record: digest, next of its chain, where the chunk was, and room for what else PARSEC's chunks are described with.
const RECORD: usize = 16;
const NEXT: usize = 2;
const PLACE: usize = 3;
/// Records that are there before the work: of 400 MiB that came before.
const KNOWN: usize = 1 << 17;
/// Records that there is room for.
const RECORDS: usize = KNOWN + (1 << 16);
/// Words of a chunk at least: with 256 more on average chunks have PARSEC's 4 KiB. None is compressed to as little as the C library
/// keeps for its thread (1032 bytes): that would lie at the end of the heap, where libraries of PARSEC's time kept nothing.
const SHORTEST: usize = 272;
/// Chunks of a piece at most.
const CHUNKS: usize = PIECE / SHORTEST;

/// Pieces of input.
pub fn dedup(rounds: u64) -> io::Result<Work> {
    let mut stream = Stream::new(rounds.min(MOST_PIECES) as usize)?;
    Ok(Box::new(move || {
        let mut output = Output::default();
        for round in 0..rounds {
            stream.piece((round % MOST_PIECES) as usize, &mut output);
        }
        Ok(output.sum ^ output.written << 32 ^ output.repeated)
    }))
}

/// The digests of all chunks so far, in chains.
struct Table {
    buckets: Area,
    records: Area,
    len: usize,
}

impl Table {
    /// With the digests of a stream before this one.
    fn new() -> io::Result<Table> {
        let mut table = Table {
            buckets: Area::new(BUCKETS * size_of::<u64>())?,
            records: Area::new(RECORDS * RECORD * size_of::<u64>())?,
            len: 0,
        };
        table.records.settle();
        let mut random = Random::new(37);
        for _ in 0..KNOWN {
            table.insert([random.next(), random.next()], 0);
        }
        Ok(table)
    }

    /// Whether a chunk of this digest is new; it is known afterwards. Of more than there is room for nothing is remembered.
    fn insert(&mut self, digest: [u64; 2], place: u64) -> bool {
        let (buckets, records) = (self.buckets.words(), self.records.words());
        let first = &mut buckets[digest[0] as usize % BUCKETS];
        // Numbers count from 1; 0 ends a chain.
        let mut at = *first as usize;
        while at != 0 {
            let record = &records[(at - 1) * RECORD..at * RECORD];
            if record[..2] == digest {
                return false;
            }
            at = record[NEXT] as usize;
        }
        if self.len < RECORDS {
            let record = &mut records[self.len * RECORD..(self.len + 1) * RECORD];
            record[..2].copy_from_slice(&digest);
            (record[NEXT], record[PLACE]) = (*first, place);
            self.len += 1;
            *first = self.len as u64;
        }
        true
    }
}

/// A chunk on its way through the stages: where it is in the input, its digest, and what it was compressed to if it is new.
struct Chunk {
    place: Range<usize>,
    digest: [u64; 2],
    compressed: Option<Vec<u64>>,
}

/// What has been written.
#[derive(Default)]
struct Output {
    repeated: u64,
    written: u64,
    sum: u64,
}

/// The input, and what the stages keep.
struct Stream {
    input: Area,
    table: Table,
    cut: VecDeque<Range<usize>>,
    found: VecDeque<Chunk>,
}

impl Stream {
    /// This many pieces of input: stretches of the source, from anywhere in it.
    fn new(pieces: usize) -> io::Result<Stream> {
        let (mut source, mut random) = (source(SOURCE)?, Random::new(31));
        let mut input = Area::new(pieces * PIECE * size_of::<u64>())?;
        for stretch in input.words().chunks_mut(STRETCH) {
            let from = random.below(SOURCE / STRETCH) * STRETCH;
            stretch.copy_from_slice(&source.words()[from..from + stretch.len()]);
        }
        input.settle();
        // Below the buffers in the heap, so that they do not keep it from getting shorter.
        let (cut, found) = (VecDeque::with_capacity(CHUNKS), VecDeque::with_capacity(CHUNKS));
        Ok(Stream { input, table: Table::new()?, cut, found })
    }

    /// A piece of the input goes through all stages.
    fn piece(&mut self, piece: usize, output: &mut Output) {
        self.cut(piece * PIECE..(piece + 1) * PIECE);
        self.find();
        self.compress();
        self.write(output);
    }

    /// Cuts the input into chunks, by what is in it.
    fn cut(&mut self, piece: Range<usize>) {
        let words = &self.input.words()[..piece.end];
        let mut begin = piece.start;
        while begin < words.len() {
            let mut end = begin + boundary(&words[begin..], SHORTEST);
            if words.len() - end < SHORTEST {
                end = words.len();
            }
            self.cut.push_back(begin..end);
            begin = end;
        }
    }

    /// Looks up each chunk.
    fn find(&mut self) {
        while let Some(place) = self.cut.pop_front() {
            let digest = fingerprint(&self.input.words()[place.clone()]);
            let is_new = self.table.insert(digest, place.start as u64);
            self.found.push_back(Chunk { place, digest, compressed: is_new.then(Vec::new) });
        }
    }

    /// Compresses the new chunks: runs of a word become the word and their length.
    fn compress(&mut self) {
        for chunk in &mut self.found {
            let Some(compressed) = &mut chunk.compressed else { continue };
            let words = &self.input.words()[chunk.place.clone()];
            compressed.reserve_exact(2 * words.len());
            for run in words.chunk_by(|one, next| one == next) {
                compressed.extend([run[0], run.len() as u64]);
            }
            compressed.shrink_to_fit();
        }
    }

    /// Writes what the chunks came to, in order: the digest stands for one that is known.
    fn write(&mut self, output: &mut Output) {
        while let Some(Chunk { digest, compressed, .. }) = self.found.pop_front() {
            let mut write = |words: &[u64]| {
                output.sum =
                    words.iter().fold(output.sum, |sum, word| sum.wrapping_mul(31).wrapping_add(*word));
                output.written += words.len() as u64;
            };
            match compressed {
                Some(words) => write(&words),
                None => {
                    output.repeated += 1;
                    write(&digest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_is_a_digest() {
        let mut stream = Stream::new(2).unwrap();
        let (mut first, mut again) = (Output::default(), Output::default());
        stream.piece(0, &mut first);
        let known = stream.table.len;
        stream.piece(0, &mut again);
        assert_eq!(stream.table.len, known, "all of it is known");
        assert_eq!(again.written, 2 * again.repeated);
        // Chunks of 528 words on average.
        assert!((200..300).contains(&again.repeated), "{}", again.repeated);
        let new = (known - KNOWN) as u64;
        assert_eq!(new + first.repeated, again.repeated);
        // Runs of four words are the most that there is.
        assert!(
            first.written > 2 * again.repeated && first.written < PIECE as u64 * 3 / 4,
            "{}",
            first.written
        );
        // The other piece repeats a part of the first one.
        stream.piece(1, &mut first);
        assert!(first.repeated > 0 && stream.table.len > known);
    }

    #[test]
    fn compressed_chunks_leave_the_heap() {
        let mut stream = Stream::new(1).unwrap();
        stream.cut(0..PIECE);
        stream.find();
        stream.compress();
        let chunks = stream.found.iter().filter_map(|chunk| chunk.compressed.as_ref());
        let sizes: Vec<usize> = chunks.map(|words| size_of_val(&words[..])).collect();
        assert!(sizes.len() > 100 && stream.found.len() <= CHUNKS);
        // Not kept by the thread, and no mappings of their own.
        assert!(sizes.iter().all(|bytes| (1033..64 << 10).contains(bytes)), "{sizes:?}");
        assert!(
            sizes.iter().sum::<usize>() > 2 * (128 << 10),
            "more than the library lets lie at the heap's end"
        );
    }

    #[test]
    fn a_full_table_still_answers() {
        let mut table = Table::new().unwrap();
        let mut random = Random::new(41);
        assert!((table.len..RECORDS).all(|_| table.insert([random.next(), 1], 0)));
        let late = [random.next(), 2];
        assert!(table.insert(late, 0) && table.insert(late, 0), "nothing is remembered");
        let mut random = Random::new(37);
        assert!(!table.insert([random.next(), random.next()], 0), "the first one is still there");
    }
}
