//! Words of 64 frames, without vector instructions: which of 64 bytes are equal to one, and 64 counters that change together.

/// A bit for each byte of `bytes` that is `wanted`.
pub fn equal_bytes(bytes: &[u8; 64], wanted: u8) -> u64 {
    let mut mask = 0;
    for (n, eight) in bytes.as_chunks().0.iter().enumerate() {
        let word = u64::from_le_bytes(*eight);
        mask |= u64::from(zero_bytes(word ^ (u64::from(wanted) * (u64::MAX / 255)))) << (8 * n);
    }
    mask
}

/// Counters from 0 to 63 of 64 frames: word `n` has bit `n` of each. So a few instructions change or compare all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters([u64; 6]);

impl Counters {
    /// That of one frame.
    pub fn get(&self, bit: u32) -> u8 {
        self.0.iter().rev().fold(0, |count, plane| count << 1 | (plane >> bit & 1) as u8)
    }

    /// That of one frame, and which have the same.
    pub fn alike(&self, bit: u32) -> (u8, u64) {
        let (mut count, mut differs) = (0, 0);
        for (n, plane) in self.0.iter().enumerate() {
            let one = plane >> bit & 1;
            count |= (one as u8) << n;
            differs |= plane ^ one.wrapping_neg();
        }
        (count, !differs)
    }

    /// Adds one to those of a mask.
    pub fn add(&mut self, mut mask: u64) {
        for plane in &mut self.0 {
            if mask == 0 {
                break;
            }
            (*plane, mask) = (*plane ^ mask, *plane & mask);
        }
    }

    /// Takes one from those of a mask.
    pub fn subtract(&mut self, mut mask: u64) {
        for plane in &mut self.0 {
            if mask == 0 {
                break;
            }
            (*plane, mask) = (*plane ^ mask, !*plane & mask);
        }
    }

    /// Those of a mask become 0.
    pub fn clear(&mut self, mask: u64) {
        self.0.iter_mut().for_each(|plane| *plane &= !mask);
    }

    /// Which are `least` or more.
    pub fn from(&self, least: u8) -> u64 {
        // From the lowest bit on: a bit that is set where that of `least` is not decides, and one that is not where it is.
        let above = |above: u64, (n, plane): (usize, &u64)| {
            if least >> n & 1 == 1 { plane & above } else { plane | above }
        };
        self.0.iter().enumerate().fold(u64::MAX, above)
    }

    /// Which are one of these numbers.
    #[inline(always)]
    pub fn are_any_of<const N: usize>(&self, numbers: [u8; N]) -> u64 {
        let equal = |number: u8| {
            let planes = self.0.iter().enumerate();
            planes.fold(u64::MAX, |all, (n, plane)| all & if number >> n & 1 == 1 { *plane } else { !plane })
        };
        numbers.into_iter().fold(0, |all, number| all | equal(number))
    }

    /// Which are not 0.
    pub fn any(&self) -> u64 {
        self.0.iter().fold(0, |all, plane| all | plane)
    }
}

/// A bit for each byte of `word` that is zero.
fn zero_bytes(word: u64) -> u8 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // The upper bit of each byte is set if any of its bits is; no carry leaves a byte.
    let set = ((word & LOW) + LOW) | word | LOW;
    // Bit 7 of each zero byte, gathered into the uppermost byte in order.
    ((!set >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// How many ones a word has. Most often all, or none, and not all processors count them with one instruction.
pub fn number(word: u64) -> u32 {
    match word {
        0 => 0,
        u64::MAX => u64::BITS,
        _ => word.count_ones(),
    }
}

/// The places of the ones of a word, lowest first.
pub fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros());
        word &= word.wrapping_sub(1);
        bit
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equal_bytes_are_those_that_a_loop_finds(bytes in proptest::collection::vec(0u8..4, 64), high in any::<u8>(), wanted in 0u8..4) {
            let mut bytes: [u8; 64] = bytes.try_into().unwrap();
            for (n, byte) in bytes.iter_mut().enumerate() {
                *byte |= if n % 3 == 0 { high & 0xfc } else { 0 };
            }
            let expected = (0..64).fold(0u64, |mask, n| mask | u64::from(bytes[n] == wanted) << n);
            prop_assert_eq!(equal_bytes(&bytes, wanted), expected);
            prop_assert_eq!([expected, !0, 0].map(number), [expected, !0, 0].map(u64::count_ones));
            prop_assert_eq!(bits(expected).fold(0u64, |mask, bit| mask | 1 << bit), expected);
        }

        #[test]
        fn counters_are_those_that_single_ones_come_to(steps in proptest::collection::vec((any::<u64>(), 0u8..5), 0..60)) {
            let (mut counters, mut plain) = (Counters::default(), [0u8; 64]);
            let where_plain = |plain: &[u8; 64], is: &dyn Fn(u8) -> bool| {
                (0..64).fold(0u64, |mask, n| mask | u64::from(is(plain[n])) << n)
            };
            for (mask, op) in steps {
                let own = (0..64).filter(|n| mask >> n & 1 == 1);
                match op {
                    0..3 => {
                        let mask = mask & !counters.from(32);
                        counters.add(mask);
                        bits(mask).for_each(|n| plain[n as usize] += 1);
                    }
                    3 => {
                        let mask = mask & counters.any();
                        counters.subtract(mask);
                        bits(mask).for_each(|n| plain[n as usize] -= 1);
                    }
                    _ => {
                        counters.clear(mask & mask >> 1);
                        own.filter(|n| mask >> 1 >> n & 1 == 1).for_each(|n| plain[n] = 0);
                    }
                }
                prop_assert_eq!(counters.any(), where_plain(&plain, &|count| count != 0));
            }
            (0..64).for_each(|n| assert_eq!(counters.get(n), plain[n as usize]));
            (0..64).for_each(|n| {
                let own = plain[n as usize];
                assert_eq!(counters.alike(n), (own, where_plain(&plain, &|count| count == own)));
            });
            for value in 0..=33 {
                prop_assert_eq!(counters.from(value), where_plain(&plain, &|count| count >= value));
                let two = [value, value / 2];
                prop_assert_eq!(counters.are_any_of(two), where_plain(&plain, &|count| two.contains(&count)));
            }
        }
    }
}
