//! The handle of a region, as an allocator. It keeps the lock of the heap, and turns its addresses into pointers.
#![allow(unsafe_code, reason = "it is an allocator")]

use std::{
    alloc::Layout,
    fmt, io,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use allocator_api2::{
    alloc::{AllocError, Allocator},
    boxed::Box,
    vec::Vec,
};

use crate::{
    device::Memory,
    heap::{Heap, Place},
};

/// A `Box` whose object is in a region.
pub type RegionBox<T> = Box<T, Region>;
/// A `Vec` whose elements are in a region.
pub type RegionVec<T> = Vec<T, Region>;

/// A region, or plain memory where there is none. Clones are the same region, which ends with the last of them and of the objects
/// that were made with them.
#[derive(Clone)]
pub struct Region(Arc<Mutex<Heap<Memory>>>);

impl Region {
    /// A new region. Without the guest kit, or if the kit refuses one, the region has plain memory, and [`reason`](Self::reason)
    /// says why.
    #[allow(clippy::new_without_default, reason = "it makes something of the machine's")]
    pub fn new() -> Region {
        Region(Arc::new(Mutex::new(Heap::new(Memory::new()))))
    }

    /// A new region, never plain memory.
    ///
    /// # Errors
    /// There is no guest kit, it is not for this user, or a limit is reached; the numbers are those of [`abi::kit`].
    pub fn of_hypervisor() -> io::Result<Region> {
        let region = Region::new();
        match region.reason() {
            None => Ok(region),
            Some(why) => Err(why),
        }
    }

    /// Its number in the hypervisor's monitor and in `/sys/kernel/palimpsest/programs`; `None`: plain memory.
    pub fn number(&self) -> Option<u32> {
        self.heap().source().number()
    }

    /// Why its memory is plain; `None`: it is not.
    pub fn reason(&self) -> Option<io::Error> {
        let heap = self.heap();
        let why = heap.source().reason()?;
        Some(why.raw_os_error().map_or_else(|| why.kind().into(), io::Error::from_raw_os_error))
    }

    /// Frames of 4096 bytes that it has now.
    pub fn frames(&self) -> usize {
        self.heap().frames()
    }

    /// Gives back memory without objects. One empty arena (256 KiB) is kept otherwise.
    pub fn trim(&self) {
        self.heap().trim();
    }

    /// Moves a value into the region.
    ///
    /// # Errors
    /// No memory, or a limit of the kit's; the value is dropped.
    pub fn alloc<T>(&self, value: T) -> io::Result<RegionBox<T>> {
        let place = self.place(Layout::new::<T>())?.cast::<T>();
        // SAFETY: the place is new and fits a T; the region is that of the box, which gives it back with this layout.
        unsafe {
            place.write(value);
            Ok(Box::from_raw_in(place.as_ptr(), self.clone()))
        }
    }

    /// An empty vector, whose elements will be in the region.
    pub fn vec<T>(&self) -> RegionVec<T> {
        Vec::new_in(self.clone())
    }

    /// No code that panics runs with the lock but the assertions about wrong calls, which change nothing before.
    fn heap(&self) -> MutexGuard<'_, Heap<Memory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for a layout; none of the region's if its size is 0.
    fn place(&self, layout: Layout) -> io::Result<NonNull<u8>> {
        let address = match layout.size() {
            0 => return Ok(layout.dangling_ptr()),
            _ => self.heap().allocate(layout)?,
        };
        let place = ptr::with_exposed_provenance_mut(address);
        Ok(NonNull::new(place).expect("nothing is mapped at 0"))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("number", &self.number()).field("frames", &self.frames()).finish()
    }
}

// SAFETY: objects are apart and stay where they are until they are released (the heap's tests), and mapped until the last clone goes.
unsafe impl Allocator for Region {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let place = self.place(layout).map_err(|_| AllocError)?;
        Ok(NonNull::slice_from_raw_parts(place, layout.size()))
    }

    unsafe fn deallocate(&self, place: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            self.heap().release(place.addr().get(), layout);
        }
    }

    unsafe fn grow(&self, place: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promises are those of `resize`.
        unsafe { self.resize(place, old, new) }
    }

    unsafe fn grow_zeroed(
        &self,
        place: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: as above; then the bytes behind the old ones are inside of the new place.
        unsafe {
            let grown = self.resize(place, old, new)?;
            grown.cast::<u8>().add(old.size()).write_bytes(0, new.size() - old.size());
            Ok(grown)
        }
    }

    unsafe fn shrink(
        &self,
        place: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: as above.
        unsafe { self.resize(place, old, new) }
    }
}

impl Region {
    /// Changes the size of an object, which stays where it is if the place fits.
    ///
    /// # Safety
    /// `place` was allocated here with the layout `old`, and has not been given back.
    unsafe fn resize(
        &self,
        place: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        let stays = old.size() > 0 && new.size() > 0 && Place::of(old) == Place::of(new);
        if stays && place.addr().get().is_multiple_of(new.align()) {
            return Ok(NonNull::slice_from_raw_parts(place, new.size()));
        }
        let moved = self.allocate(new)?;
        // SAFETY: both places have as many bytes, and are apart because both are allocated.
        unsafe {
            moved.cast::<u8>().copy_from_nonoverlapping(place, old.size().min(new.size()));
            self.deallocate(place, old);
        }
        Ok(moved)
    }
}
