//! Deduplication of a stream: what it is made of, and how it is cut into chunks. [`stream`] does it with PARSEC's memory, [`maps`]
//! with mappings.

mod maps;
mod stream;

pub use maps::dedup_maps;
pub use stream::dedup;

use std::io;

use crate::{random::Random, sys::Area};

/// Words of a stretch of the source.
const STRETCH: usize = 2048;
/// Words of a chunk at most.
const LONGEST: usize = 1024;
/// A chunk ends where these bits of the rolling hash are clear: after 256 words more on average.
const BOUNDARY: u64 = 0xff << 56;

/// This many words of what the input is made of: later parts repeat stretches of it.
fn source(words: usize) -> io::Result<Area> {
    let mut source = Area::new(words * size_of::<u64>())?;
    let mut random = Random::new(29);
    // Compressible: words of few bits, in runs.
    source.words().chunks_mut(4).for_each(|run| run.fill(random.next() >> 40));
    source.settle();
    Ok(source)
}

/// How long the chunk is that begins here: `shortest` words at least, unless there are fewer.
fn boundary(words: &[u64], shortest: usize) -> usize {
    let mut rolling = 0u64;
    for (at, word) in words.iter().enumerate().take(LONGEST) {
        // It forgets what is 16 words back: the same words end a chunk wherever they are.
        rolling = (rolling << 4).wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if at + 1 >= shortest && rolling & BOUNDARY == 0 {
            return at + 1;
        }
    }
    words.len().min(LONGEST)
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
    fn chunks_end_where_their_words_say() {
        let mut random = Random::new(3);
        let words: Vec<u64> = (0..4096).map(|_| random.next()).collect();
        let first = boundary(&words, 128);
        assert!((128..=LONGEST).contains(&first));
        let second = boundary(&words[first..], 128);
        // The same words elsewhere are cut at the same place.
        let again = [&[7; 5], &words[first..first + second], &[9; 2000][..]].concat();
        assert_eq!(boundary(&again[5..], 128), second);
        assert_ne!(fingerprint(&words[..first]), fingerprint(&words[1..first]));
    }
}
