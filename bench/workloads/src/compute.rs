//! Workloads that are indifferent to paging: they stay in the caches.

use std::io;

use sha2::{Digest, Sha256};

use crate::{Work, random::Random};

/// Products of matrices of integers.
pub fn matmul(rounds: u64) -> io::Result<Work> {
    const SIZE: usize = 160;
    let mut random = Random::new(3);
    let mut matrix = || (0..SIZE * SIZE).map(|_| random.next() as u32).collect::<Vec<u32>>();
    let (mut left, right) = (matrix(), matrix());
    let mut product = vec![0u32; SIZE * SIZE];
    Ok(Box::new(move || {
        for _ in 0..rounds {
            for (out, row) in product.chunks_exact_mut(SIZE).zip(left.chunks_exact(SIZE)) {
                out.fill(0);
                for (factor, line) in row.iter().zip(right.chunks_exact(SIZE)) {
                    for (sum, each) in out.iter_mut().zip(line) {
                        *sum = sum.wrapping_add(factor.wrapping_mul(*each));
                    }
                }
            }
            std::mem::swap(&mut left, &mut product);
        }
        Ok(left.iter().fold(0u64, |sum, word| sum.wrapping_mul(31).wrapping_add((*word).into())))
    }))
}

/// Hashes.
pub fn sha256(rounds: u64) -> io::Result<Work> {
    let mut block = vec![0x5a_u8; 16 << 10];
    Ok(Box::new(move || {
        let mut sum = 0;
        for _ in 0..rounds {
            let hash = Sha256::digest(&block);
            block[..hash.len()].copy_from_slice(&hash);
            sum = hash[..8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        }
        Ok(sum)
    }))
}
