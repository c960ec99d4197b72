//! A set of interrupt vectors that knows its highest member: IRR, ISR and TMR.

/// 256 bits, one per vector. `max` is cached, because it is looked at before every guest entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VectorSet {
    words: [u64; 4],
    max: u8,
}

impl VectorSet {
    /// The highest member; 0 if there is none (vector 0 is never a member: see [`super::Lapic::accept`]).
    pub(super) fn max(&self) -> u8 {
        self.max
    }

    pub(super) fn contains(&self, vector: u8) -> bool {
        self.words[usize::from(vector >> 6)] & 1 << (vector & 63) != 0
    }

    pub(super) fn insert(&mut self, vector: u8) {
        self.words[usize::from(vector >> 6)] |= 1 << (vector & 63);
        self.max = self.max.max(vector);
    }

    pub(super) fn remove(&mut self, vector: u8) {
        self.words[usize::from(vector >> 6)] &= !(1 << (vector & 63));
        if vector == self.max {
            self.max = self.find_max();
        }
    }

    /// The 32 vectors from `32 * index`, as the registers show them; `index` is 0 to 7.
    pub(super) fn word(&self, index: u8) -> u32 {
        (self.words[usize::from(index >> 1 & 3)] >> (32 * (index & 1))) as u32
    }

    fn find_max(&self) -> u8 {
        for (i, word) in self.words.iter().enumerate().rev() {
            if *word != 0 {
                return (i * 64) as u8 + word.ilog2() as u8;
            }
        }
        0
    }
}
