//! Pages in fast memory whose homes have the same contents, until the first write.
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
            entry @ (P2mEntry::Ram { writable: false, .. } | P2mEntry::Local { writable: false, .. }) => {
                if self.let_write(gpa) {
                    self.translate(gpa)
                } else {
                    entry
                }
            }
            entry => entry,
        }
    }

    /// Makes a clean page, or the piece of 2 MiB that it is in, plain RAM; false: it is none, or another processor was first and it is RAM now. Without exclusive access and
    /// a flush: entries that the engines have made of it only lack the right to write, and the next fault renews them.
    #[cold]
    #[inline(never)]
    pub(in crate::paging) fn let_write(&self, gpa: Gpa) -> bool {
        if self.clean(gpa).is_none() {
            return false;
        }
        let written = |kind| match kind {
            P2mKind::Clean { home } => Some(P2mKind::ram(true, home)),
            _ => None,
        };
        // If another one was first the page is what it is to become.
        let _first = self.table.change_leaf(gpa, written);
        true
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
    use super::*;
    use crate::arch::addr::PAGE_SIZE;
    use crate::paging::arena::Arena;
    use crate::paging::range::GpaRange;

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
        assert!(!p2m.let_write(at), "once");
        assert_eq!(p2m.movable(Gpa(0)), Some((Hfn(0x100), false)));
        assert_eq!(p2m.movable(Gpa(1 << 30)), None);
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
