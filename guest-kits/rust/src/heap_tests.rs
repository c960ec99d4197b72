//! The heap against a model: random objects come and go, on a source that has addresses and no memory.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};

use super::*;

/// Hands out addresses, each once, and knows what is mapped.
#[derive(Default)]
struct Addresses {
    next: usize,
    mapped: BTreeMap<usize, usize>,
    /// Pages that may be mapped at a time.
    limit: usize,
}

impl Addresses {
    fn with_limit(limit: usize) -> Addresses {
        Addresses { next: 1 << 30, limit, ..Default::default() }
    }

    fn frames(&self) -> usize {
        self.mapped.values().sum::<usize>() / PAGE
    }
}

impl Source for Addresses {
    fn map(&mut self, bytes: usize) -> io::Result<usize> {
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE));
        if bytes / PAGE > self.limit - self.frames() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let address = self.next;
        self.next += bytes.next_multiple_of(ARENA) + ARENA;
        self.mapped.insert(address, bytes);
        Ok(address)
    }

    fn unmap(&mut self, address: usize, bytes: usize) {
        assert_eq!(self.mapped.remove(&address), Some(bytes), "what was mapped, as a whole");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(Layout),
    Release(prop::sample::Index),
    Trim,
}

fn layout() -> impl Strategy<Value = Layout> {
    let size = prop_oneof![4 => 0..300usize, 3 => 0..5000usize, 1 => 0..400_000usize];
    let alignment = prop_oneof![3 => Just(8usize), 1 => (0..17u32).prop_map(|bits| 1 << bits)];
    (size, alignment).prop_map(|(size, alignment)| Layout::from_size_align(size, alignment).unwrap())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => layout().prop_map(Step::Allocate),
        4 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => Just(Step::Trim),
    ];
    vec(step, 1..400)
}

/// No two objects overlap, each is aligned and where memory is, and the frames are those that are mapped.
fn check(heap: &Heap<Addresses>, objects: &[(usize, Layout)]) {
    let mut sorted: Vec<_> = objects.iter().map(|(at, layout)| (*at, at + layout.size().max(1))).collect();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:x?}");
    }
    for (at, end) in sorted {
        let (base, bytes) = heap.source.mapped.range(..=at).next_back().expect("memory");
        assert!(end <= base + bytes, "{at:x}..{end:x} is outside of its mapping");
    }
    for (at, layout) in objects {
        assert!(at.is_multiple_of(layout.align()), "{at:x} for {layout:?}");
    }
    assert_eq!(heap.frames(), heap.source.frames());
}

proptest! {
    #[test]
    fn objects_are_apart_and_all_memory_comes_back(steps in steps(), limit in 100..2000usize) {
        let mut heap = Heap::new(Addresses::with_limit(limit));
        let mut objects: Vec<(usize, Layout)> = vec![];
        for step in steps {
            match step {
                Step::Allocate(layout) => match heap.allocate(layout) {
                    Ok(at) => objects.push((at, layout)),
                    // A refusal changes nothing, and is the source's.
                    Err(error) => prop_assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded),
                },
                Step::Release(which) if !objects.is_empty() => {
                    let (at, layout) = objects.swap_remove(which.index(objects.len()));
                    heap.release(at, layout);
                }
                Step::Release(_) => {}
                Step::Trim => {
                    heap.trim();
                    prop_assert!(heap.frames() == 0 || !objects.is_empty());
                }
            }
            check(&heap, &objects);
        }
        objects.drain(..).for_each(|(at, layout)| heap.release(at, layout));
        prop_assert!(heap.frames() <= ARENA_PAGES, "{} frames are kept", heap.frames());
        heap.trim();
        prop_assert_eq!(heap.source.frames(), 0);
    }

    /// A place of the same kind holds both layouts.
    #[test]
    fn layouts_of_one_place_fit_it(one in layout(), other in layout()) {
        let room = match Place::of(one).unwrap() {
            Place::Slot(class) => SIZES[class],
            Place::Run { pages, .. } => pages * PAGE,
            Place::Mapping { bytes } => bytes,
        };
        prop_assert!(one.size() <= room);
        if Place::of(one) == Place::of(other) {
            prop_assert!(other.size() <= room);
        }
    }
}

#[test]
fn small_objects_fill_pages_and_pages_fill_arenas() {
    let mut heap = Heap::new(Addresses::with_limit(1000));
    let layout = Layout::from_size_align(64, 8).unwrap();
    for n in 0..ARENA_PAGES * PAGE / 64 {
        heap.allocate(layout).unwrap();
        assert_eq!(heap.frames(), ARENA_PAGES, "object {n}");
    }
    heap.allocate(layout).unwrap();
    assert_eq!(heap.frames(), 2 * ARENA_PAGES);
}

#[test]
#[should_panic(expected = "an object of this region")]
fn an_object_ends_once() {
    let mut heap = Heap::new(Addresses::with_limit(1000));
    let layout = Layout::new::<u64>();
    let (at, _keeps_the_page) = (heap.allocate(layout).unwrap(), heap.allocate(layout).unwrap());
    heap.release(at, layout);
    heap.release(at, layout);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut heap = Heap::new(Addresses::with_limit(1000));
    let too_aligned = Layout::from_size_align(8, 2 * ALIGNMENT_MAX).unwrap();
    assert_eq!(heap.allocate(too_aligned).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let too_large = Layout::from_size_align(isize::MAX as usize - 8, 8).unwrap();
    assert_eq!(heap.allocate(too_large).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
}
