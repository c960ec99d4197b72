//! Input for the programs that read text: made in the guest, so that nothing is fetched or kept for it.

use crate::random::Random;

/// Words of the vocabulary.
const WORDS: usize = 4096;
const SYLLABLES: [&str; 16] =
    ["ka", "lo", "mi", "ter", "an", "shu", "bre", "no", "vi", "dal", "e", "ros", "pe", "quin", "ost", "gu"];

/// This many KiB of lines of words and numbers. The first words of the vocabulary are the most frequent ones, as in a language's
/// text, and phrases come back: it compresses as text does, to about a third.
pub fn text(kib: u64) -> Vec<u8> {
    let bytes = kib as usize * 1024;
    let (vocabulary, mut random) = (vocabulary(), Random::new(17));
    let mut text = Vec::with_capacity(bytes + 256);
    while text.len() < bytes {
        match random.below(16) {
            // A phrase that was there before, from at most 16 KiB back.
            0 | 1 if text.len() > 1 << 14 => {
                let from = text.len() - (1 << 14) + random.below(1 << 13);
                text.extend_from_within(from..from + 16 + random.below(64));
                text.push(b' ');
            }
            2 => text.extend(format!("{} ", random.below(1 << 16)).bytes()),
            3 => text.extend_from_slice(b".\n"),
            _ => {
                // Halving the range again and again makes low numbers frequent.
                let range = WORDS >> random.below(8);
                text.extend(vocabulary[random.below(range)].bytes());
                text.push(b' ');
            }
        }
    }
    text.truncate(bytes);
    text
}

fn vocabulary() -> Vec<String> {
    let mut random = Random::new(13);
    let mut word = || (0..=random.below(4)).map(|_| SYLLABLES[random.below(16)]).collect::<String>();
    (0..WORDS).map(|_| word()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_text_begins_with_less() {
        let (short, long) = (text(20), text(40));
        assert_eq!((short.len(), long.len()), (20 << 10, 40 << 10));
        assert!(long.starts_with(&short) && long.is_ascii());
        assert!(long.split(|byte| *byte == b'\n').count() > 100);
    }
}
