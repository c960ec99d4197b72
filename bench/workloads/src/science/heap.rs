//! Arrays that tell of their accesses, at addresses of a heap of their own.

use std::cell::Cell;

pub use allocator_api2::alloc::Global;
use allocator_api2::{alloc::Allocator, vec::Vec};

/// Who watches.
pub trait Watch {
    /// What the elements of arrays really are in.
    type Memory: Allocator;
    /// Memory for an array of this many bytes.
    fn memory(&self, bytes: u64) -> Self::Memory;
    /// A word is accessed.
    fn touch(&self, address: u64);
    /// Memory is allocated.
    fn allocated(&self, address: u64, bytes: u64);
}

/// No watcher: nothing is recorded.
impl Watch for () {
    type Memory = Global;
    fn memory(&self, _bytes: u64) -> Global {
        Global
    }
    fn touch(&self, _address: u64) {}
    fn allocated(&self, _address: u64, _bytes: u64) {}
}

const PAGE: u64 = 4096;
/// Bytes from which on an allocation has pages of its own, as those of a C library that maps them.
pub const LARGE: u64 = 40 << 10;

/// Where arrays are.
pub struct Heap<'a, W> {
    watch: &'a W,
    next: Cell<u64>,
}

impl<'a, W: Watch> Heap<'a, W> {
    /// Empty.
    pub fn new(watch: &'a W) -> Self {
        Heap { watch, next: Cell::new(1 << 32) }
    }

    /// An array of zeros.
    pub fn array<T: Copy + Default>(&self, len: usize) -> Array<'a, T, W> {
        let bytes = (len * size_of::<T>()) as u64;
        let align = if bytes >= LARGE { PAGE } else { 16 };
        let base = self.next.get().next_multiple_of(align);
        // The size before each.
        self.next.set(base + bytes + 16);
        self.watch.allocated(base, bytes);
        let mut data = Vec::with_capacity_in(len, self.watch.memory(bytes));
        data.resize(len, T::default());
        Array { data, base, watch: self.watch }
    }
}

/// An array.
pub struct Array<'a, T, W: Watch> {
    data: Vec<T, W::Memory>,
    base: u64,
    watch: &'a W,
}

impl<T: Copy, W: Watch> Array<'_, T, W> {
    /// The element.
    #[inline]
    pub fn get(&self, at: usize) -> T {
        self.watch.touch(self.base + (at * size_of::<T>()) as u64);
        self.data[at]
    }

    /// Sets the element.
    #[inline]
    pub fn set(&mut self, at: usize, value: T) {
        self.watch.touch(self.base + (at * size_of::<T>()) as u64);
        self.data[at] = value;
    }

    /// Changes the element.
    #[inline]
    pub fn change(&mut self, at: usize, by: impl FnOnce(T) -> T) {
        let value = by(self.get(at));
        self.set(at, value);
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The elements, unwatched.
    pub fn data(&self) -> &[T] {
        &self.data
    }
}
