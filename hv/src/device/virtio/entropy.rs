//! The entropy device: random bytes for the guest's own generator.
//!
//! The bytes come from a ChaCha20 generator. They are as good as its seed, which the machine's random number instructions
//! give where there are any; the caller knows. Virtio 1.2, 5.4.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::chain::Chain;
use super::model::Served;
use super::queue::Malformed;
use crate::mem::guest_memory::GuestMemory;

/// Bytes for one chain at most.
const MOST: usize = 4096;
const CHUNK: usize = 64;

/// A source of random bytes.
#[derive(Debug)]
pub struct Entropy {
    generator: ChaCha20Rng,
}

impl Entropy {
    /// The source that `seed` makes.
    pub fn new(seed: [u8; 32]) -> Entropy {
        Entropy { generator: ChaCha20Rng::from_seed(seed) }
    }

    pub(super) fn serve(&mut self, chain: &Chain, memory: &impl GuestMemory) -> Result<Served, Malformed> {
        let mut to = chain.writable();
        if to.is_empty() {
            return Err(Malformed::Request);
        }
        let mut written = 0;
        while written < MOST {
            let mut bytes = [0; CHUNK];
            self.generator.fill_bytes(&mut bytes);
            let len = to.write(memory, &bytes)?;
            written += len;
            if len < CHUNK {
                break;
            }
        }
        Ok(Served::Done { written: written as u32, moved: written as u32 })
    }
}
