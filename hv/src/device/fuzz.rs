//! Input for the devices' fuzz functions: arbitrary bytes read as operations, and a source of such bytes for tests.

use super::Nanos;

/// A cursor over fuzz input.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads `data` from its beginning.
    pub fn new(data: &'a [u8]) -> Self {
        Input(data)
    }

    /// The next byte; `None` at the end.
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next 4 bytes; zeros beyond the end.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes([0; 4].map(|_: u8| self.byte().unwrap_or(0)))
    }

    /// The next 8 bytes; zeros beyond the end.
    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// A moment not before `now`: from the same nanosecond to a quarter of a minute on, all scales alike.
    pub fn later(&mut self, now: Nanos) -> Nanos {
        let byte = self.byte().unwrap_or(0);
        now.after(u64::from(byte & 7) << (byte >> 3))
    }
}

/// Runs `fuzz_one` over `runs` pseudo-random inputs of up to `max_len` bytes.
#[cfg(test)]
pub fn run(runs: u32, max_len: usize, fuzz_one: impl Fn(&[u8])) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..runs {
        let len = next() as usize % (max_len + 1);
        let data: alloc::vec::Vec<u8> = (0..len).map(|_| (next() >> 32) as u8).collect();
        fuzz_one(&data);
    }
}
