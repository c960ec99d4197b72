//! Random numbers: the same everywhere, and cheap.

/// Marsaglia's xorshift.
pub struct Random(u64);

impl Random {
    /// A sequence; there is none for 0.
    pub fn new(seed: u64) -> Random {
        Random(seed.max(1))
    }

    /// The next number, never 0.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number below a power of two.
    pub fn below(&mut self, power: usize) -> usize {
        // The upper bits are the better ones.
        (self.next() >> 20) as usize & (power - 1)
    }
}
