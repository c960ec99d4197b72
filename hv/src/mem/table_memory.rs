//! Where tables live.

use crate::arch::addr::Hfn;

/// Entries of one table.
pub const ENTRIES: usize = 512;

/// The frames of tables: the host's frame allocator on bare metal, an arena in tests.
///
/// Frames given to [`free`](TableMemory::free) and to the entry functions come from
/// [`allocate`](TableMemory::allocate) of the same memory and are not freed yet; `index` is below
/// [`ENTRIES`]. Implementations may panic otherwise. Processors read and update entries at any time, so that
/// every access is one aligned 64-bit access; `store` has release, `load` acquire, `compare_exchange` both
/// orderings.
pub trait TableMemory {
    /// A frame of zeroes, or `None` if the memory for tables is used up.
    fn allocate(&self) -> Option<Hfn>;

    /// The same, below 4 GiB if there is any: PAE roots must lie there.
    fn allocate_low(&self) -> Option<Hfn> {
        self.allocate()
    }

    /// The same, for what no processor walks: it need not be as fast.
    fn allocate_unwalked(&self) -> Option<Hfn> {
        self.allocate()
    }

    /// Takes a frame back.
    fn free(&self, frame: Hfn);

    /// Reads an entry.
    fn load(&self, frame: Hfn, index: usize) -> u64;

    /// Reads eight entries from `first` on, a multiple of eight, each as [`load`](TableMemory::load) does.
    fn load_eight(&self, frame: Hfn, first: usize) -> [u64; 8] {
        core::array::from_fn(|n| self.load(frame, first + n))
    }

    /// Writes an entry.
    fn store(&self, frame: Hfn, index: usize, value: u64);

    /// Writes `new` if the entry is `old`; otherwise returns what it is.
    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64>;

    /// Clears `bits` in the entries of `which` among the eight from `first` on, a multiple of eight: bit `n` of `which` stands for entry
    /// `first + n`. Each is one atomic access, which keeps what processors set meanwhile.
    fn clear_in_eight(&self, frame: Hfn, first: usize, which: u8, bits: u64) {
        for index in (0..8).filter(|n| which >> n & 1 != 0).map(|n| first + n) {
            let mut raw = self.load(frame, index);
            while raw & bits != 0
                && let Err(now) = self.compare_exchange(frame, index, raw, raw & !bits)
            {
                raw = now;
            }
        }
    }
}

/// Which of eight entries have this bit; none if it is 0. Most often all have it, or none.
#[inline(always)]
pub fn which_have(eight: &[u64; 8], bit: u64) -> u8 {
    if eight.iter().fold(bit, |all, raw| all & raw) != 0 {
        return u8::MAX;
    }
    if eight.iter().fold(0, |any, raw| any | raw) & bit == 0 {
        return 0;
    }
    (0..8).fold(0, |all, n| all | u8::from(eight[n] & bit != 0) << n)
}

impl<M: TableMemory> TableMemory for &M {
    fn allocate(&self) -> Option<Hfn> {
        (**self).allocate()
    }
    fn allocate_low(&self) -> Option<Hfn> {
        (**self).allocate_low()
    }
    fn allocate_unwalked(&self) -> Option<Hfn> {
        (**self).allocate_unwalked()
    }
    fn free(&self, frame: Hfn) {
        (**self).free(frame);
    }
    fn load(&self, frame: Hfn, index: usize) -> u64 {
        (**self).load(frame, index)
    }
    fn load_eight(&self, frame: Hfn, first: usize) -> [u64; 8] {
        (**self).load_eight(frame, first)
    }
    fn store(&self, frame: Hfn, index: usize, value: u64) {
        (**self).store(frame, index, value);
    }
    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        (**self).compare_exchange(frame, index, old, new)
    }
    fn clear_in_eight(&self, frame: Hfn, first: usize, which: u8, bits: u64) {
        (**self).clear_in_eight(frame, first, which, bits);
    }
}
