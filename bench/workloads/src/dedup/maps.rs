//! Deduplication of a stream in stages, each of which maps memory for every piece that it hands on, and unmaps it: more changes of
//! page tables than PARSEC's program makes.

use std::{
    collections::{HashSet, VecDeque},
    io,
};

use super::{STRETCH, boundary, fingerprint, source};
use crate::{
    Work,
    random::Random,
    sys::{Area, PAGE},
};

/// Bytes of a block of input.
const BLOCK: usize = 128 << 10;
/// Words of what blocks are made of.
const SOURCE: usize = (8 << 20) / size_of::<u64>();
/// Words of a chunk at least.
const SHORTEST: usize = 128;
/// Blocks, and then chunks, that wait between two stages.
const WAITING: usize = 8;

/// Blocks of input.
pub fn dedup_maps(rounds: u64) -> io::Result<Work> {
    let mut source = source(SOURCE)?;
    Ok(Box::new(move || {
        let mut pipeline = Pipeline::new(&mut source);
        for _ in 0..rounds {
            pipeline.read()?;
        }
        pipeline.finish()
    }))
}

/// A piece of memory, and how many words of it are used.
struct Piece(Area, usize);

impl Piece {
    /// Of this many words; one per page, so that what is handed on is the kernel's work as it is with a large allocation.
    fn new(words: usize) -> io::Result<Piece> {
        Ok(Piece(Area::new((words * size_of::<u64>()).next_multiple_of(PAGE))?, words))
    }

    fn words(&mut self) -> &mut [u64] {
        &mut self.0.words()[..self.1]
    }
}

/// The stages: reading, cutting, finding what is known, compressing, writing.
struct Pipeline<'a> {
    source: &'a mut Area,
    random: Random,
    blocks: VecDeque<Piece>,
    chunks: VecDeque<Piece>,
    known: HashSet<[u64; 2], std::hash::BuildHasherDefault<std::hash::DefaultHasher>>,
    repeated: u64,
    written: u64,
    sum: u64,
}

impl<'a> Pipeline<'a> {
    fn new(source: &'a mut Area) -> Pipeline<'a> {
        let random = Random::new(31);
        let (blocks, chunks, known) = Default::default();
        Pipeline { source, random, blocks, chunks, known, repeated: 0, written: 0, sum: 0 }
    }

    /// Reads a block: stretches of the source, from anywhere in it.
    fn read(&mut self) -> io::Result<()> {
        let mut block = Piece::new(BLOCK / size_of::<u64>())?;
        for stretch in block.words().chunks_mut(STRETCH) {
            let from = self.random.below(SOURCE / STRETCH) * STRETCH;
            stretch.copy_from_slice(&self.source.words()[from..from + stretch.len()]);
        }
        self.blocks.push_back(block);
        if self.blocks.len() > WAITING { self.cut() } else { Ok(()) }
    }

    /// Cuts a block into chunks, by what is in it, and keeps those that are new.
    fn cut(&mut self) -> io::Result<()> {
        let Some(mut block) = self.blocks.pop_front() else { return Ok(()) };
        let words = block.words();
        let mut begin = 0;
        while begin < words.len() {
            let chunk = &words[begin..begin + boundary(&words[begin..], SHORTEST)];
            begin += chunk.len();
            if self.known.insert(fingerprint(chunk)) {
                let mut piece = Piece::new(chunk.len())?;
                piece.words().copy_from_slice(chunk);
                self.chunks.push_back(piece);
            } else {
                self.repeated += 1;
            }
        }
        while self.chunks.len() > WAITING {
            self.compress()?;
        }
        Ok(())
    }

    /// Compresses a chunk: runs of a word become the word and their length.
    fn compress(&mut self) -> io::Result<()> {
        let Some(mut chunk) = self.chunks.pop_front() else { return Ok(()) };
        let mut out = Piece::new(2 * chunk.1)?;
        let runs = chunk.words().chunk_by(|one, next| one == next);
        let mut len = 0;
        for (run, place) in runs.zip(out.words().chunks_exact_mut(2)) {
            place.copy_from_slice(&[run[0], run.len() as u64]);
            len += 2;
        }
        out.1 = len;
        self.written += len as u64;
        self.sum = out.words().iter().fold(self.sum, |sum, word| sum.wrapping_mul(31).wrapping_add(*word));
        Ok(())
    }

    /// What still waits goes through; the checksum of what was written.
    fn finish(mut self) -> io::Result<u64> {
        while !self.blocks.is_empty() {
            self.cut()?;
        }
        while !self.chunks.is_empty() {
            self.compress()?;
        }
        Ok(self.sum ^ self.written << 32 ^ self.repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_is_written_once() {
        let mut random = Random::new(5);
        let mut source = Area::new(SOURCE * size_of::<u64>()).unwrap();
        source.words().fill_with(|| random.next());
        let mut run = |blocks: usize| {
            let mut pipeline = Pipeline::new(&mut source);
            (0..blocks).for_each(|_| pipeline.read().unwrap());
            (pipeline.blocks.len(), pipeline.chunks.len(), pipeline.written, pipeline.repeated)
        };
        let (blocks, chunks, written, repeated) = run(400);
        // 400 blocks are 50 MiB, of a source of 8 MiB: each stretch comes several times.
        assert_eq!((blocks, chunks), (WAITING, WAITING));
        assert!(repeated > 2000 && written > 0, "{repeated} repeated, {written} words");
        assert_eq!(run(8).2, 0, "they wait");
    }
}
