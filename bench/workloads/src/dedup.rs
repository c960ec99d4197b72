//! Deduplication of a stream in stages, each of which takes memory for what it hands on and gives it back.

use std::{
    collections::{HashSet, VecDeque},
    io,
};

use crate::{
    Work,
    random::Random,
    sys::{Area, PAGE},
};

/// Bytes of a block of input.
const BLOCK: usize = 128 << 10;
/// Words of what blocks are made of: later ones repeat stretches of it.
const SOURCE: usize = (8 << 20) / size_of::<u64>();
/// Blocks, and then chunks, that wait between two stages.
const WAITING: usize = 8;
/// Words of a chunk, at least and at most.
const CHUNK: std::ops::RangeInclusive<usize> = 128..=1024;
/// A chunk ends where these bits of the rolling hash are clear: after 256 words more on average.
const BOUNDARY: u64 = 0xff << 56;
/// Words of a stretch of the source.
const STRETCH: usize = 2048;

/// Blocks of input.
pub fn dedup(rounds: u64) -> io::Result<Work> {
    let mut source = Area::new(SOURCE * size_of::<u64>())?;
    let mut random = Random::new(29);
    // Compressible: words of few bits, in runs.
    source.words().chunks_mut(4).for_each(|run| run.fill(random.next() >> 40));
    source.settle();
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
            let chunk = &words[begin..begin + boundary(&words[begin..])];
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

/// How long the chunk is that begins here.
fn boundary(words: &[u64]) -> usize {
    let mut rolling = 0u64;
    for (at, word) in words.iter().enumerate().take(*CHUNK.end()) {
        // It forgets what is 16 words back: the same words end a chunk wherever they are.
        rolling = (rolling << 4).wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if at + 1 >= *CHUNK.start() && rolling & BOUNDARY == 0 {
            return at + 1;
        }
    }
    words.len().min(*CHUNK.end())
}

/// What chunks are known by: 128 bits of a fast hash.
fn fingerprint(words: &[u64]) -> [u64; 2] {
    let mix = |seed: u64, factor: u64| {
        words.iter().fold(seed, |hash, word| (hash ^ word).wrapping_mul(factor).rotate_left(23))
    };
    [mix(1, 0xff51_afd7_ed55_8ccd), mix(2, 0xc4ce_b9fe_1a85_ec53)]
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

    #[test]
    fn chunks_end_where_their_words_say() {
        let mut random = Random::new(3);
        let words: Vec<u64> = (0..4096).map(|_| random.next()).collect();
        let first = boundary(&words);
        assert!(CHUNK.contains(&first));
        let second = boundary(&words[first..]);
        // The same words elsewhere are cut at the same place.
        let again = [&[7; 5], &words[first..first + second], &[9; 2000][..]].concat();
        assert_eq!(boundary(&again[5..]), second);
        assert_ne!(fingerprint(&words[..first]), fingerprint(&words[1..first]));
    }
}
