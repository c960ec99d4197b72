//! Words of 64 frames: which of 64 bytes are equal to one, or not less, without vector instructions.

/// A bit for each byte of `bytes` that is `wanted`.
pub fn equal_bytes(bytes: &[u8; 64], wanted: u8) -> u64 {
    let mut mask = 0;
    for (n, eight) in bytes.chunks_exact(8).enumerate() {
        let word = eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        mask |= u64::from(zero_bytes(word ^ (u64::from(wanted) * (u64::MAX / 255)))) << (8 * n);
    }
    mask
}

/// A bit for each byte of `bytes`, none of which is above 32, that is `least` or more (1 to 32).
pub fn bytes_from(bytes: &[u8; 64], least: u8) -> u64 {
    let add = u64::from(128 - least.clamp(1, 32)) * (u64::MAX / 255);
    let mut mask = 0;
    for (n, eight) in bytes.chunks_exact(8).enumerate() {
        let word = eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        // The upper bit of each byte is set if it is large enough; no carry leaves a byte.
        mask |= u64::from(upper_bits(word + add)) << (8 * n);
    }
    mask
}

/// The upper bit of each byte, in order.
fn upper_bits(word: u64) -> u8 {
    const UPPER: u64 = 0x8080_8080_8080_8080;
    ((word & UPPER) >> 7).wrapping_mul(0x0102_0408_1020_4080).wrapping_shr(56) as u8
}

/// A bit for each byte of `word` that is zero.
fn zero_bytes(word: u64) -> u8 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // The upper bit of each byte is set if any of its bits is; no carry leaves a byte.
    let set = ((word & LOW) + LOW) | word | LOW;
    // Bit 7 of each zero byte, gathered into the uppermost byte in order.
    ((!set >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
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
            let few = bytes.map(|byte| byte % 33);
            for least in 1..=32 {
                let expected = (0..64).fold(0u64, |mask, n| mask | u64::from(few[n] >= least) << n);
                prop_assert_eq!(bytes_from(&few, least), expected);
            }
            prop_assert_eq!(bits(expected).fold(0u64, |mask, bit| mask | 1 << bit), expected);
        }
    }
}
