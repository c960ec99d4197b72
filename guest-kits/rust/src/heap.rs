//! Which part of a region's memory is free. All records are here, none in the memory itself, which this module never touches: it
//! knows addresses only.
//!
//! Memory comes in arenas of 64 pages. Objects of up to 2 KiB are in pages that are divided into slots of a class; those of up to
//! half an arena are runs of pages; others have a mapping of their own. The region calls it, with the region's lock.
//!
//! What must hold: an arena is in `open` if and only if a page of it is free; a page is in `partial` of its class if and only if
//! it has a free slot, and is given back with its last object. An arena without objects is given back, except for one.

use std::{
    alloc::Layout,
    collections::{BTreeMap, BTreeSet},
    io,
};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages of an arena, a bit of a word each.
const ARENA_PAGES: usize = 64;
/// Bytes of an arena, and the alignment of all mappings.
pub const ARENA: usize = ARENA_PAGES * PAGE;
/// The largest alignment of an object, in bytes.
pub const ALIGNMENT_MAX: usize = 65536;
/// Sizes of slots, multiples of 16; each power of two is there, for alignments.
const SIZES: [usize; 21] =
    [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 672, 816, 1024, 1360, 2048];
const SMALL_MAX: usize = 2048;
/// Objects of more pages have a mapping of their own.
const RUN_MAX: usize = ARENA_PAGES / 2;
const ALL_FREE: u64 = u64::MAX;

/// Where memory comes from.
pub trait Source {
    /// Zeroed memory, a multiple of [`PAGE`] bytes, aligned to [`ARENA`]: its address.
    ///
    /// # Errors
    /// There is none, or the region is at a limit.
    fn map(&mut self, bytes: usize) -> io::Result<usize>;

    /// Takes back what one call of `map` has given, which is not in use any more.
    fn unmap(&mut self, address: usize, bytes: usize);
}

/// The kind of place that an object gets: two layouts with the same one fit the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A slot of this class.
    Slot(usize),
    /// Pages in an arena, beginning at a multiple of `step`.
    Run { pages: usize, step: usize },
    /// A mapping of its own.
    Mapping { bytes: usize },
}

impl Place {
    /// `None`: no object can be like this.
    pub fn of(layout: Layout) -> Option<Place> {
        let (size, alignment) = (layout.size().max(1), layout.align());
        if alignment > ALIGNMENT_MAX {
            return None;
        }
        if size <= SMALL_MAX && alignment <= SMALL_MAX {
            // Each slot is aligned, because pages are.
            let fits = |slot: &usize| *slot >= size && slot.is_multiple_of(alignment);
            return SIZES.iter().position(fits).map(Place::Slot);
        }
        let pages = size.div_ceil(PAGE);
        match pages {
            1..=RUN_MAX => Some(Place::Run { pages, step: alignment.div_ceil(PAGE) }),
            _ => Some(Place::Mapping { bytes: pages.checked_mul(PAGE)? }),
        }
    }
}

/// A page that is divided into slots.
#[derive(Clone, Copy)]
struct Slots {
    class: usize,
    used: [u64; PAGE / 16 / 64],
    count: usize,
}

struct Arena {
    /// A bit for each free page.
    free: u64,
    slots: [Option<Slots>; ARENA_PAGES],
}

/// The allocator of a region.
pub struct Heap<S> {
    source: S,
    /// By their addresses, as all below.
    arenas: BTreeMap<usize, Box<Arena>>,
    open: BTreeSet<usize>,
    empty: usize,
    partial: [BTreeSet<usize>; SIZES.len()],
    mappings: BTreeMap<usize, usize>,
}

/// The first page of a run of free ones, at a multiple of `step`.
fn find_run(free: u64, pages: usize, step: usize) -> Option<usize> {
    let run = (1 << pages) - 1;
    (0..=ARENA_PAGES - pages).step_by(step).find(|at| free >> at & run == run)
}

fn arena_of(address: usize) -> (usize, usize) {
    (address & !(ARENA - 1), address % ARENA / PAGE)
}

impl<S: Source> Heap<S> {
    pub fn new(source: S) -> Heap<S> {
        Heap {
            source,
            arenas: BTreeMap::new(),
            open: BTreeSet::new(),
            empty: 0,
            partial: [const { BTreeSet::new() }; SIZES.len()],
            mappings: BTreeMap::new(),
        }
    }

    pub fn source(&self) -> &S {
        &self.source
    }

    /// Pages that are mapped.
    pub fn frames(&self) -> usize {
        self.arenas.len() * ARENA_PAGES + self.mappings.values().sum::<usize>() / PAGE
    }

    /// The address of a new object.
    ///
    /// # Errors
    /// Those of the source; `InvalidInput` for a layout that no object can have.
    pub fn allocate(&mut self, layout: Layout) -> io::Result<usize> {
        match Place::of(layout).ok_or(io::ErrorKind::InvalidInput)? {
            Place::Slot(class) => self.new_slot(class),
            Place::Run { pages, step } => self.new_run(pages, step),
            Place::Mapping { bytes } => {
                let address = self.source.map(bytes)?;
                self.mappings.insert(address, bytes);
                Ok(address)
            }
        }
    }

    /// Ends the object at this address, which was allocated with this layout.
    ///
    /// # Panics
    /// There is no such object.
    pub fn release(&mut self, address: usize, layout: Layout) {
        match Place::of(layout) {
            Some(Place::Slot(class)) => self.end_slot(address, class),
            Some(Place::Run { pages, .. }) => self.end_run(address, pages),
            _ => {
                let bytes = self.mappings.remove(&address).expect("an object of this region");
                self.source.unmap(address, bytes);
            }
        }
    }

    /// Gives back arenas without objects.
    pub fn trim(&mut self) {
        let is_empty = |address: &usize| self.arenas[address].free == ALL_FREE;
        let empty: Vec<usize> = self.open.iter().copied().filter(is_empty).collect();
        empty.into_iter().for_each(|address| self.end_arena(address));
        self.empty = 0;
    }

    fn end_arena(&mut self, address: usize) {
        self.open.remove(&address);
        self.arenas.remove(&address);
        self.source.unmap(address, ARENA);
    }

    fn new_run(&mut self, pages: usize, step: usize) -> io::Result<usize> {
        let found = self.open.iter().find_map(|&address| {
            let at = find_run(self.arenas[&address].free, pages, step)?;
            Some((address, at))
        });
        let (address, at) = match found {
            Some(found) => found,
            None => {
                let address = self.source.map(ARENA)?;
                let arena = Arena { free: ALL_FREE, slots: [None; ARENA_PAGES] };
                self.arenas.insert(address, Box::new(arena));
                self.open.insert(address);
                self.empty += 1;
                (address, 0)
            }
        };
        let arena = self.arenas.get_mut(&address).expect("it is in `open`");
        self.empty -= usize::from(arena.free == ALL_FREE);
        arena.free &= !(((1 << pages) - 1) << at);
        if arena.free == 0 {
            self.open.remove(&address);
        }
        Ok(address + at * PAGE)
    }

    fn end_run(&mut self, address: usize, pages: usize) {
        let (base, at) = arena_of(address);
        let arena = self.arenas.get_mut(&base).expect("an object of this region");
        let run = ((1 << pages) - 1) << at;
        assert!(arena.free & run == 0 && address.is_multiple_of(PAGE), "an object of this region");
        arena.free |= run;
        self.open.insert(base);
        if arena.free != ALL_FREE {
            return;
        }
        if self.empty > 0 {
            self.end_arena(base);
        } else {
            self.empty += 1;
        }
    }

    fn slots(&mut self, page: usize) -> Option<&mut Option<Slots>> {
        let (base, at) = arena_of(page);
        Some(&mut self.arenas.get_mut(&base)?.slots[at])
    }

    fn new_slot(&mut self, class: usize) -> io::Result<usize> {
        let page = match self.partial[class].first() {
            Some(&page) => page,
            None => {
                let page = self.new_run(1, 1)?;
                *self.slots(page).expect("it is new") =
                    Some(Slots { class, used: [0; PAGE / 16 / 64], count: 0 });
                self.partial[class].insert(page);
                page
            }
        };
        let slots = self.slots(page).and_then(Option::as_mut).expect("it is in `partial`");
        let word = slots.used.iter().position(|word| *word != u64::MAX).expect("a slot is free");
        let bit = slots.used[word].trailing_ones() as usize;
        slots.used[word] |= 1 << bit;
        slots.count += 1;
        if slots.count == PAGE / SIZES[class] {
            self.partial[class].remove(&page);
        }
        Ok(page + (word * 64 + bit) * SIZES[class])
    }

    fn end_slot(&mut self, address: usize, class: usize) {
        let (page, at) = (address & !(PAGE - 1), address % PAGE);
        let slots = self.slots(page).and_then(Option::as_mut).filter(|slots| slots.class == class);
        let slots = slots.expect("an object of this region");
        let (word, bit) = (at / SIZES[class] / 64, at / SIZES[class] % 64);
        let is_used = at.is_multiple_of(SIZES[class]) && slots.used[word] >> bit & 1 == 1;
        assert!(is_used, "an object of this region");
        slots.used[word] &= !(1 << bit);
        slots.count -= 1;
        if slots.count > 0 {
            self.partial[class].insert(page);
            return;
        }
        *self.slots(page).expect("it was there") = None;
        self.partial[class].remove(&page);
        self.end_run(page, 1);
    }
}

#[cfg(test)]
#[path = "heap_tests.rs"]
mod tests;
