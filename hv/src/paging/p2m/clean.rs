//! Pages in fast memory whose homes have the same contents, until the first write; and pieces that are copied in parts, also back to their
//! homes, which then do not have the same contents yet. Nothing else looks at such a piece before the copy is used or given up.
//!
//! Such a page ([`P2mKind::Clean`]) is not writable to the engines, so that the guest's first write faults. What is about to write
//! it, the guest or the hypervisor for it, asks by [`P2m::translate_to_write`], which makes it plain RAM. So a page that is clean
//! when it leaves, with the P2m borrowed exclusively, need not be copied. What must hold: nothing writes guest memory but where that
//! function, or an entry that is writable, has led.

use super::{P2m, P2mEntry, P2mKind};
use crate::arch::addr::{Gpa, Hfn, Hpa};
use crate::mem::table_memory::TableMemory;
use crate::paging::table::Found;

impl<M: TableMemory> P2m<M> {
    /// What is at `gpa`, as [`P2m::translate`] has it, for an access that writes.
    #[inline(always)]
    pub fn translate_to_write(&self, gpa: Gpa) -> P2mEntry {
        match self.translate(gpa) {
            P2mEntry::Ram { writable: false, .. } | P2mEntry::Local { writable: false, .. } => {
                self.let_write(gpa);
                // Also if it was not clean: another processor may have been first since the look above.
                self.translate(gpa)
            }
            entry => entry,
        }
    }

    /// Makes a clean page, or the piece of 2 MiB that it is in, plain RAM; others stay as they are. Who calls it looks again: another
    /// processor may do the same. Without exclusive access and a flush: entries that the engines have made of it only lack the right to
    /// write, and the next fault renews them.
    #[cold]
    #[inline(never)]
    pub(in crate::paging) fn let_write(&self, gpa: Gpa) {
        let written = |kind| match kind {
            P2mKind::Clean { home } => Some(P2mKind::ram(true, home)),
            _ => None,
        };
        let _changed = self.table.change_leaf(gpa, written);
        self.migration.iter().for_each(|migration| migration.changed(gpa.frame(), 1));
    }

    /// The cache domain that a clean page is mapped to, if any, and its frame.
    fn clean(&self, gpa: Gpa) -> Option<(Option<u8>, Hfn)> {
        match self.table.walk(gpa) {
            Found::Leaf(leaf) => match leaf.attr {
                P2mKind::Clean { home } => Some((home, Hpa(leaf.to.0 + (gpa.0 - leaf.gpa.0)).frame())),
                _ => None,
            },
            Found::Hole(_) => None,
        }
    }

    /// What is at `gpa`, as [`P2m::translate`] has it, and as a guest sees it: a clean page takes its writes.
    pub fn promised(&self, gpa: Gpa) -> P2mEntry {
        match self.translate(gpa) {
            P2mEntry::Ram { hpa, writable: false } if self.clean(gpa).is_some() => {
                P2mEntry::Ram { hpa, writable: true }
            }
            P2mEntry::Local { hpa, writable: false, home } if self.clean(gpa).is_some() => {
                P2mEntry::Local { hpa, writable: true, home }
            }
            // It may have been clean a moment ago.
            P2mEntry::Ram { writable: false, .. } | P2mEntry::Local { writable: false, .. } => {
                self.translate(gpa)
            }
            entry => entry,
        }
    }

    /// The frame of a page that may move, and whether it is clean.
    pub fn movable(&self, page: Gpa) -> Option<(Hfn, bool)> {
        if let Some((_, frame)) = self.clean(page) {
            return Some((frame, true));
        }
        self.peek(page).writable().map(|hpa| (hpa.frame(), false))
    }

    /// Puts a page that was absent into this frame. Only the migration's callers, as [`P2m::attach`]. `is_clean`: its home has the same
    /// contents.
    pub fn attach_moved(&self, page: Gpa, frame: Hfn, is_clean: bool) {
        let present = |kind| match kind {
            P2mKind::Absent { home } if is_clean => Some(P2mKind::Clean { home }),
            P2mKind::Absent { home } => Some(P2mKind::ram(true, home)),
            _ => None,
        };
        if !self.table.fill_leaf(page, frame.base(), present) && self.split_piece(page) {
            self.table.fill_leaf(page, frame.base(), present);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::arch::addr::PAGE_SIZE;
    use crate::mem::guest_memory::GuestMemory;
    use crate::mem::host_access::VecHost;
    use crate::paging::arena::Arena;
    use crate::paging::range::GpaRange;
    use crate::paging::vm_memory::VmMemory;

    /// Four pages, of which the second is clean in frame 9.
    fn p2m(arena: &Arena) -> P2m<&Arena> {
        let mut p2m = P2m::new(arena).unwrap();
        let _no_engine =
            p2m.map_ram(GpaRange::new(Gpa(0), 4 * PAGE_SIZE).unwrap(), Hpa(0x10_0000), true).unwrap();
        let _no_engine = p2m.take_out(Gpa(PAGE_SIZE), Hfn(0x101)).unwrap();
        p2m.attach_moved(Gpa(PAGE_SIZE), Hfn(9), true);
        p2m
    }

    #[test]
    fn the_first_write_makes_it_plain_ram() {
        let arena = Arena::new(100);
        let p2m = p2m(&arena);
        let at = Gpa(PAGE_SIZE + 8);
        let clean = P2mEntry::Ram { hpa: Hpa(0x9008), writable: false };
        let plain = P2mEntry::Ram { hpa: Hpa(0x9008), writable: true };
        assert_eq!([p2m.translate(at), p2m.peek(at), p2m.promised(at)], [clean, clean, plain]);
        assert_eq!(p2m.movable(at), Some((Hfn(9), true)));
        assert_eq!((p2m.translate_to_write(at), p2m.translate(at)), (plain, plain));
        assert_eq!(p2m.movable(at), Some((Hfn(9), false)));
        p2m.let_write(at);
        assert_eq!(p2m.translate(at), plain);
        assert_eq!(p2m.movable(Gpa(0)), Some((Hfn(0x100), false)));
        assert_eq!(p2m.movable(Gpa(1 << 30)), None);
    }

    /// Tables in which another processor changes an entry just before one of the loads of it.
    struct Meanwhile<'a> {
        arena: &'a Arena,
        /// The entry that was loaded last.
        last: Cell<(Hfn, usize)>,
        /// Loads until then, and what the entry is set to.
        after: Cell<Option<(u32, u64)>>,
    }

    impl TableMemory for &Meanwhile<'_> {
        fn allocate(&self) -> Option<Hfn> {
            self.arena.allocate()
        }

        fn free(&self, frame: Hfn) {
            self.arena.free(frame);
        }

        fn load(&self, frame: Hfn, index: usize) -> u64 {
            match self.after.get() {
                Some((loads, value)) if self.last.get() == (frame, index) => {
                    self.after.set((loads > 0).then(|| (loads - 1, value)));
                    if loads == 0 {
                        self.store(frame, index, value);
                    }
                }
                Some(_) => {}
                None => self.last.set((frame, index)),
            }
            self.arena.load(frame, index)
        }

        fn store(&self, frame: Hfn, index: usize, value: u64) {
            self.arena.store(frame, index, value);
        }

        fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
            self.arena.compare_exchange(frame, index, old, new)
        }
    }

    #[test]
    fn another_processor_may_be_the_first_to_write() {
        let arena = Arena::new(100);
        let memory = Meanwhile { arena: &arena, last: Cell::default(), after: Cell::new(None) };
        let mut p2m = P2m::new(&memory).unwrap();
        let page = GpaRange::page(Gpa(0));
        let _no_engine = p2m.map_ram(page, Hpa(0x9000), true).unwrap();
        let plain = p2m.translate(Gpa(0));
        let (frame, index) = memory.last.get();
        let raw_plain = arena.load(frame, index);
        let _no_engine = p2m.take_out(Gpa(0), Hfn(9)).unwrap();
        p2m.attach_moved(Gpa(0), Hfn(9), true);
        let raw_clean = arena.load(frame, index);
        assert_ne!(raw_clean, raw_plain);
        let bytes = VecHost::new(Hpa(0x9000), 4096);
        // The entry is looked at three times at most: what it is, to change it, and what it has become.
        for loads in 0..4 {
            let again = || {
                arena.store(frame, index, raw_clean);
                memory.last.set((frame, index));
                memory.after.set(Some((loads, raw_plain)));
            };
            again();
            assert_eq!(p2m.translate_to_write(Gpa(0)), plain, "after {loads} loads");
            again();
            assert_eq!(p2m.promised(Gpa(0)), plain, "after {loads} loads");
            again();
            assert!(VmMemory::new(&p2m, &bytes).write(Gpa(0), &[1]).is_ok(), "after {loads} loads");
        }
    }

    #[test]
    fn it_stays_clean_in_another_cache_domain_and_on_its_way() {
        let arena = Arena::new(100);
        let mut p2m = p2m(&arena);
        let (page, range) = (Gpa(PAGE_SIZE), GpaRange::page(Gpa(PAGE_SIZE)));
        let _no_engine = p2m.set_home(range, Some(3)).unwrap();
        assert_eq!(p2m.translate(page), P2mEntry::Local { hpa: Hpa(0x9000), writable: false, home: 3 });
        assert_eq!(p2m.take_out(page, Hfn(0x101)).map(|_| ()), None, "another frame");
        let _no_engine = p2m.take_out(page, Hfn(9)).unwrap();
        assert_eq!((p2m.peek(page), p2m.movable(page)), (P2mEntry::Absent { home: Some(3) }, None));
        p2m.attach_moved(page, Hfn(9), true);
        assert_eq!(p2m.movable(page), Some((Hfn(9), true)));
        let plain = P2mEntry::Local { hpa: Hpa(0x9000), writable: true, home: 3 };
        assert_eq!(p2m.translate_to_write(page), plain);
        // What the hypervisor protects itself stays so.
        let _no_engine = p2m.set_writable(range, false).unwrap();
        assert_eq!(p2m.translate_to_write(page).writable(), None);
    }
}
