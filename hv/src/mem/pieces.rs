//! Arrays in pieces of one frame each: what grows with a guest's memory needs no contiguous memory of the host.
//!
//! [`Pieces`] has a fixed length, like a slice, and finds an element by two shifts and a table of pieces, which takes eight bytes
//! for each piece: a 512th of the array. The shadow pool keeps its records in them. Frames come from [`super::frame`] and not from
//! the heap, which never returns memory and reserves a block for allocations that must not fail.
//!
//! Unsafe because elements live in frames: every element is written before the array exists, and dropped never
//! (`T: Copy` or at least without `Drop`).

use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Index, IndexMut, Range};
use core::ptr::NonNull;

use crate::arch::addr::PAGE_SIZE;

/// The host has no memory for the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// An array of fixed length, in frames that need not be neighbours.
pub struct Pieces<T> {
    pieces: Vec<NonNull<T>>,
    len: usize,
    elements: PhantomData<T>,
}

// SAFETY: the array owns its elements like a `Vec`.
unsafe impl<T: Send> Send for Pieces<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pieces<T> {}

impl<T> Pieces<T> {
    /// Elements of a piece: the largest power of two that fits a frame.
    const EACH: usize = {
        assert!(size_of::<T>() > 0 && size_of::<T>() <= PAGE_SIZE as usize && !core::mem::needs_drop::<T>());
        1 << (PAGE_SIZE as usize / size_of::<T>()).ilog2()
    };

    /// Frames that an array of `len` elements takes, without the table of pieces.
    pub const fn frames(len: usize) -> usize {
        len.div_ceil(Self::EACH)
    }

    /// An array of `len` elements. On an error nothing stays allocated.
    pub fn new(len: usize, element: impl Fn() -> T) -> Result<Pieces<T>, OutOfMemory> {
        let count = Self::frames(len);
        let mut array = Pieces { pieces: Vec::new(), len, elements: PhantomData };
        array.pieces.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
        for _ in 0..count {
            let piece = frames::allocate().ok_or(OutOfMemory)?.cast::<T>();
            // SAFETY: the frame is ours alone, aligned to its size, and holds this many elements.
            (0..Self::EACH).for_each(|n| unsafe { piece.add(n).write(element()) });
            array.pieces.push(piece);
        }
        Ok(array)
    }

    /// Elements.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All elements in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).map(|index| &self[index])
    }

    /// The elements of a range, as far as there are any, in slices.
    pub fn slices(&self, range: Range<usize>) -> impl Iterator<Item = &[T]> {
        let mut at = range.start;
        let end = range.end.min(self.len);
        core::iter::from_fn(move || {
            let (piece, first) = (at / Self::EACH, at % Self::EACH);
            let count = end.checked_sub(at).filter(|left| *left > 0)?.min(Self::EACH - first);
            at += count;
            // SAFETY: all elements of a piece were written by `new`, and these are within it.
            Some(unsafe { core::slice::from_raw_parts(self.pieces[piece].add(first).as_ptr(), count) })
        })
    }

    /// The elements of a range, to be changed. All are in one piece: it begins at a multiple of a power of two that is no larger than a
    /// piece, and is no longer than that.
    ///
    /// # Panics
    /// They are not, or there are not as many.
    pub fn slice_mut(&mut self, range: Range<usize>) -> &mut [T] {
        let (piece, first) = (range.start / Self::EACH, range.start % Self::EACH);
        assert!(range.start <= range.end && range.end <= self.len && first + range.len() <= Self::EACH);
        // SAFETY: all elements of a piece were written by `new`, these are within it, and the array is borrowed for this slice alone.
        unsafe { core::slice::from_raw_parts_mut(self.pieces[piece].add(first).as_ptr(), range.len()) }
    }

    /// All elements in order, to be changed.
    pub fn for_each_mut(&mut self, mut f: impl FnMut(&mut T)) {
        (0..self.len).for_each(|index| f(&mut self[index]));
    }
}

impl<T> Index<usize> for Pieces<T> {
    type Output = T;

    /// An index behind the last element panics if it is in no piece; those behind it in the last piece are elements as well.
    #[inline(always)]
    fn index(&self, index: usize) -> &T {
        let piece = self.pieces[index / Self::EACH];
        // SAFETY: all elements of a piece were written by `new`, and the index is within it.
        unsafe { piece.add(index % Self::EACH).as_ref() }
    }
}

impl<T> IndexMut<usize> for Pieces<T> {
    #[inline(always)]
    fn index_mut(&mut self, index: usize) -> &mut T {
        let mut piece = self.pieces[index / Self::EACH];
        // SAFETY: as above, and the array is borrowed for this reference alone.
        unsafe {
            piece = piece.add(index % Self::EACH);
            piece.as_mut()
        }
    }
}

impl<T> Drop for Pieces<T> {
    fn drop(&mut self) {
        for piece in self.pieces.drain(..) {
            // SAFETY: it came from `allocate`, and no element needs to be dropped.
            unsafe { frames::free(piece.cast()) };
        }
    }
}

impl<T> fmt::Debug for Pieces<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").field("len", &self.len).finish()
    }
}

/// The machine's frames.
#[cfg(feature = "baremetal")]
mod frames {
    use crate::arch::addr::Hpa;
    use crate::mem::frame::{self, Node};
    use core::ptr::NonNull;

    pub(super) fn allocate() -> Option<NonNull<u8>> {
        frame::alloc(0, Node(0)).and_then(|frame| NonNull::new(frame.0 as *mut u8))
    }

    /// # Safety
    /// It came from [`allocate`] and is not used any more.
    pub(super) unsafe fn free(frame: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { frame::free(Hpa(frame.as_ptr() as u64), 0) };
    }
}

/// Where there is no machine: memory of this process, in the same pieces.
#[cfg(not(feature = "baremetal"))]
mod frames {
    use crate::arch::addr::PAGE_SIZE;
    use alloc::alloc::{alloc, dealloc};
    use core::alloc::Layout;
    use core::ptr::NonNull;

    const FRAME: Layout = match Layout::from_size_align(PAGE_SIZE as usize, PAGE_SIZE as usize) {
        Ok(layout) => layout,
        Err(_) => panic!("a frame is aligned to its size"),
    };

    pub(super) fn allocate() -> Option<NonNull<u8>> {
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc(FRAME) })
    }

    /// # Safety
    /// It came from [`allocate`] and is not used any more.
    pub(super) unsafe fn free(frame: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(frame.as_ptr(), FRAME) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_as_an_array_of_any_length() {
        for len in [1, 15, 16, 17, 1000] {
            let mut array = Pieces::new(len, || [7u8; 200]).unwrap();
            assert_eq!((array.len(), array.iter().count()), (len, len));
            (0..len).for_each(|n| array[n] = [n as u8; 200]);
            array.for_each_mut(|element| element[0] ^= 0xff);
            let right = |n: usize| array[n][0] == !(n as u8) && array[n][199] == n as u8;
            assert!((0..len).all(right));
            // 4096 / 200 is 20, so that 16 share a frame.
            assert_eq!(Pieces::<[u8; 200]>::frames(len), len.div_ceil(16));
        }
        assert!(Pieces::new(0, || 0u32).unwrap().is_empty());
        let mut array = Pieces::new(3000, || 0u32).unwrap();
        array.slice_mut(1024..2048).iter_mut().zip(1..).for_each(|(element, n)| *element = n);
        array.slice_mut(2990..3000).fill(7);
        assert_eq!([0, 1023, 1024, 2047, 2048, 2999].map(|n| array[n]), [0, 0, 1, 1024, 0, 7]);
        assert!(array.slice_mut(3000..3000).is_empty());
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn what_lies_in_no_piece_is_no_element() {
        let array = Pieces::new(1024, || 0u32).unwrap();
        let _beyond = array[1024];
    }

    #[test]
    #[should_panic(expected = "EACH")]
    fn what_is_in_two_pieces_is_no_slice() {
        Pieces::new(2048, || 0u32).unwrap().slice_mut(1023..1025);
    }

    #[test]
    fn too_much_is_an_error() {
        assert_eq!(Pieces::new(usize::MAX / 2, || 0u64).err(), Some(OutOfMemory));
    }
}
