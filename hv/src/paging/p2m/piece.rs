//! Pieces of 2 MiB of RAM that move as one, and small leaves that become a large one.
//!
//! A piece on its way is one absent leaf, so that it takes no work for each page. The first access to one of its pages splits it, into a
//! table that was set aside: a page becomes present with the P2m shared, under the migration's lock. When all is copied, with the P2m
//! borrowed exclusively, it is one leaf again.

use core::sync::atomic::Ordering;

use super::{P2m, P2mEntry, P2mKind};
use crate::arch::addr::{Gpa, Hfn, Hpa, PAGE_SIZE, PageSize};
use crate::mem::table_memory::TableMemory;
use crate::mem::tier::migration::PIECE;
use crate::paging::range::{Changed, Flush, GpaRange, Kept, OldFrames};

const SIZE: PageSize = PageSize::Size2M;

impl P2mKind {
    /// Of RAM that may move: the domain to whose cache it is mapped, and whether it is clean.
    fn movable(self) -> Option<(Option<u8>, bool)> {
        match self {
            P2mKind::Ram { writable: true } => Some((None, false)),
            P2mKind::Local { writable: true, home } => Some((Some(home), false)),
            P2mKind::Clean { home } => Some((home, true)),
            _ => None,
        }
    }

    fn present(is_clean: bool, home: Option<u8>) -> P2mKind {
        if is_clean { P2mKind::Clean { home } } else { P2mKind::ram(true, home) }
    }
}

impl<M: TableMemory> Drop for P2m<M> {
    fn drop(&mut self) {
        let spare = *self.spare.get_mut();
        if spare != 0 {
            self.table.drop_spare(Hfn(spare));
        }
    }
}

fn piece(start: Gpa) -> Option<GpaRange> {
    GpaRange::new(start, SIZE.bytes()).filter(|_| start.is_aligned(SIZE.bytes()))
}

impl<M: TableMemory> P2m<M> {
    /// The first frame of the 2 MiB at `gpa`, a multiple of that, if all of it can be read and lies in the same 2 MiB of host memory. Of
    /// small leaves with one walk, whatever caches they are mapped to.
    pub fn memory_of_piece(&self, gpa: Gpa) -> Option<Hfn> {
        let (entry, len) = self.entry(gpa);
        let first = entry.readable().filter(|first| first.is_aligned(SIZE.bytes()))?;
        let follows = |n: u64, to: Hpa, kind| {
            to.0 == first.0 + n * PAGE_SIZE && P2mEntry::new(kind, to).readable().is_some()
        };
        (len >= SIZE.bytes() || self.table.all_small(gpa, follows)).then_some(first.frame())
    }

    /// Whether the `pieces` pieces of 2 MiB from `gpa` on, a multiple of as many, are large leaves that can be read, and `accepts` says so of the
    /// first frame of each. With one walk.
    pub fn are_large_leaves(&self, gpa: Gpa, pieces: u64, accepts: impl Fn(Hfn) -> bool) -> bool {
        self.table.all_large(gpa, pieces, |to, kind| {
            let first = P2mEntry::new(kind, to).readable().filter(|to| to.is_aligned(SIZE.bytes()));
            first.is_some_and(|to| accepts(to.frame()))
        })
    }

    /// The first frame of a piece that may move as one, and whether it is clean: all its pages are RAM in one aligned run, and alike.
    pub fn movable_piece(&self, start: Gpa) -> Option<(Hfn, bool)> {
        piece(start)?;
        let (to, kind) = self.table.whole(start)?;
        kind.movable().map(|(_, is_clean)| (to.frame(), is_clean))
    }

    /// Has the next write to a piece be seen, which stays where it is: it is clean until then, as if its copy elsewhere were complete. `None`:
    /// it is not plain RAM in these frames as one now, or there is no memory for a table; it stays as it is.
    pub fn protect_piece(&mut self, start: Gpa, frame: Hfn) -> Option<Changed> {
        let range = piece(start)?;
        let (to, kind) = self.table.whole(start)?;
        let (home, is_clean) = kind.movable()?;
        if to.frame() != frame || is_clean {
            return None;
        }
        let _software_tables_need_none = self.table.map(range, to, P2mKind::Clean { home }).ok()?;
        self.piece_changed(range, frame, Kept::Reads)
    }

    fn piece_changed(&mut self, range: GpaRange, frame: Hfn, kept: Kept) -> Option<Changed> {
        let mut was = OldFrames::NONE;
        was.add(frame, PIECE);
        let changed = self.changed(range, was, Ok(Flush::None)).ok()?;
        Some(Changed { kept, ..changed })
    }

    /// Puts a clean piece that is in frames from `from` on into other ones, whose contents are the same. It stays clean; with the P2m
    /// borrowed exclusively until the engines have followed the caller may make it plain RAM ([`P2m::unprotect_piece`]). `None`: it is not
    /// there as one, or was written; it stays as it is.
    pub fn replace_piece(&mut self, start: Gpa, from: Hfn, to: Hfn) -> Option<Changed> {
        let range = piece(start)?;
        let (at, kind) = self.table.whole(start)?;
        if at.frame() != from || !matches!(kind, P2mKind::Clean { .. }) {
            return None;
        }
        // An error: a leaf of 1 GiB could not be split, and nothing has changed.
        let _software_tables_need_none = self.table.map(range, to.base(), kind).ok()?;
        self.piece_changed(range, from, Kept::ReadsAt(to))
    }

    /// Ends that before the copy is complete: what is still clean of the piece in these frames is plain RAM. The engines need not know,
    /// whose entries only lack a right.
    pub fn unprotect_piece(&mut self, start: Gpa, frame: Hfn) {
        let Some(range) = piece(start) else { return };
        match self.table.whole(start) {
            // As one leaf.
            Some((to, _)) if self.leaf_range(start).len() >= SIZE.bytes() => {
                if to.frame() == frame {
                    self.let_write(start);
                }
            }
            _ => {
                let pages = (0..PIECE).map(|n| (Gpa(start.0 + n * PAGE_SIZE), Hfn(frame.0 + n)));
                let still = pages.filter(|(page, frame)| self.movable(*page) == Some((*frame, true)));
                still.for_each(|(page, _)| self.let_write(page));
            }
        }
        // The directory knows it again.
        let _never_fails = self.changed(range, OldFrames::NONE, Ok(Flush::None));
    }

    /// Takes a piece away that moves to other frames. `None`: it is not in these frames as one now, or there is no memory for a table;
    /// it stays. One at a time; [`P2m::put_piece`] ends it.
    pub fn take_out_piece(&mut self, start: Gpa, frame: Hfn) -> Option<Changed> {
        let range = piece(start)?;
        let (to, kind) = self.table.whole(start)?;
        let (home, _) = kind.movable().filter(|_| to.frame() == frame)?;
        if *self.spare.get_mut() == 0 {
            // It stays for the next one, unless this one needs it.
            *self.spare.get_mut() = self.table.take_spare()?.0;
        }
        // An error: a leaf of 1 GiB could not be split, and nothing has changed.
        let _software_tables_need_none =
            self.table.map(range, Hpa(start.0), P2mKind::Absent { home }).ok()?;
        self.piece_changed(range, frame, Kept::Nothing)
    }

    /// Gives the pages of an absent piece leaves of their own, before one of them is attached.
    #[cold]
    pub(super) fn split_piece(&self, page: Gpa) -> bool {
        let spare = self.spare.swap(0, Ordering::Relaxed);
        if spare == 0 {
            return false;
        }
        let done = self.table.split_shared(page, Hfn(spare));
        if !done {
            self.spare.store(spare, Ordering::Relaxed);
        }
        done
    }

    /// Puts a piece that [`P2m::take_out_piece`] has taken away into these frames, as one leaf: the contents of all its pages are there.
    /// `is_clean`: its home has the same contents, but for what was written since a page became present. Whether it is clean now;
    /// `None`: something else has come to a part of it meanwhile, and its other pages are there one by one.
    pub fn put_piece(&mut self, start: Gpa, to: Hfn, is_clean: bool) -> Option<bool> {
        let range = piece(start)?;
        let is_large = self.leaf_range(start).len() >= SIZE.bytes();
        let whole = if is_large { self.table.whole(start) } else { None };
        let untouched = match whole {
            Some((_, P2mKind::Absent { home })) => Some((to, home, is_clean)),
            _ => self.alike(start, Some((to, is_clean))).filter(|(at, ..)| *at == to),
        };
        if let Some((_, home, is_clean)) = untouched {
            self.make_large(range, to, P2mKind::present(is_clean, home))?;
            return Some(is_clean);
        }
        let pages = (0..PIECE).map(|n| (Gpa(start.0 + n * PAGE_SIZE), Hfn(to.0 + n)));
        pages.for_each(|(page, frame)| self.attach_moved(page, frame, is_clean));
        None
    }

    /// Makes the pages of a piece one leaf, if they are in one aligned run: clean if all are. Where they are; the engines that are told
    /// may use larger leaves. Translations stay the same, but that some may be written now.
    pub fn join(&mut self, start: Gpa) -> Option<(Hfn, bool, Changed)> {
        let range = piece(start)?;
        let changed = Changed::new(range, OldFrames::NONE);
        if let Some((frame, is_clean)) = self.movable_piece(start) {
            let kind = self.table.whole(start)?.1;
            self.make_large(range, frame, kind)?;
            return Some((frame, is_clean, changed));
        }
        let (frame, home, is_clean) = self.alike(start, None)?;
        self.make_large(range, frame, P2mKind::present(is_clean, home))?;
        Some((frame, is_clean, changed))
    }

    /// The aligned run of frames that the small leaves of a piece lead to, the domain to whose cache they are mapped, and whether all are
    /// clean. Absent ones count as `absent` says: in this run, clean or not.
    fn alike(&self, start: Gpa, absent: Option<(Hfn, bool)>) -> Option<(Hfn, Option<u8>, bool)> {
        let mut found: Option<(u64, Option<u8>)> = None;
        let mut all_clean = true;
        let accepts = |n: u64, to: Hpa, kind: P2mKind| {
            let (first, home, is_clean) = match (kind, absent) {
                (P2mKind::Absent { home }, Some((first, is_clean))) => (Some(first.0), home, is_clean),
                _ => match kind.movable() {
                    Some((home, is_clean)) => (to.frame().0.checked_sub(n), home, is_clean),
                    None => return false,
                },
            };
            all_clean &= is_clean;
            first.is_some_and(|first| *found.get_or_insert((first, home)) == (first, home))
        };
        if !self.table.all_small(start, accepts) {
            return None;
        }
        let (first, home) = found.filter(|(first, _)| first % PIECE == 0)?;
        Some((Hfn(first), home, all_clean))
    }

    fn make_large(&mut self, range: GpaRange, to: Hfn, kind: P2mKind) -> Option<()> {
        // A table goes, and none is needed.
        let result = self.table.map(range, to.base(), kind);
        self.changed(range, OldFrames::NONE, result).ok().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::arena::Arena;
    use crate::paging::p2m::P2mEntry;

    const HOME: Hpa = Hpa(0x4000_0000);
    const FAST: Hfn = Hfn(0x8_0000);

    fn p2m(arena: &Arena) -> P2m<&Arena> {
        let mut p2m = P2m::new(arena).unwrap();
        let _no_engine = p2m.map_ram(GpaRange::new(Gpa(0), 4 << 20).unwrap(), HOME, true).unwrap();
        p2m
    }

    fn page(n: u64) -> Gpa {
        Gpa(n * PAGE_SIZE)
    }

    #[test]
    fn large_leaves_tell_where_each_of_their_pieces_is() {
        let arena = Arena::new(20);
        let mut p2m = P2m::new(&arena).unwrap();
        let range = GpaRange::new(Gpa(0), 2 << 30).unwrap();
        let _no_engine = p2m.map_ram(range, HOME, true).unwrap();
        for first in [0, 8 * SIZE.bytes(), (1 << 30) - 8 * SIZE.bytes(), (1 << 30) + 8 * SIZE.bytes()] {
            let asked = core::cell::RefCell::new(vec![]);
            let accepts = |frame| {
                asked.borrow_mut().push(frame);
                true
            };
            assert!(p2m.are_large_leaves(Gpa(first), 8, accepts));
            let expected = (0..8).map(|n| Hpa(HOME.0 + first + n * SIZE.bytes()).frame());
            assert!(asked.take().into_iter().eq(expected), "from {first:#x}");
            let last = Hpa(HOME.0 + first + 7 * SIZE.bytes()).frame();
            assert!(!p2m.are_large_leaves(Gpa(first), 8, |frame| frame != last));
        }
        assert!(!p2m.are_large_leaves(Gpa(4 << 30), 8, |_| true), "there is nothing");
    }

    #[test]
    fn a_piece_moves_as_one_leaf_and_needs_no_table_while_nothing_accesses_it() {
        let arena = Arena::new(20);
        let mut p2m = p2m(&arena);
        let before = arena.in_use();
        assert_eq!(p2m.movable_piece(Gpa(0)), Some((HOME.frame(), false)));
        assert_eq!(p2m.movable_piece(page(1)), None, "not the first page");
        assert!(p2m.take_out_piece(Gpa(0), FAST).is_none(), "it is elsewhere");
        let changed = p2m.take_out_piece(Gpa(0), HOME.frame()).unwrap();
        assert_eq!(changed.was.runs(), Some(&[(HOME.frame(), 512)][..]));
        assert_eq!((p2m.peek(page(7)), p2m.movable_piece(Gpa(0))), (P2mEntry::Absent { home: None }, None));
        assert_eq!(p2m.put_piece(Gpa(0), FAST, true), Some(true));
        // The table that was set aside waits for the next one.
        assert_eq!((p2m.movable_piece(Gpa(0)), arena.in_use()), (Some((FAST, true)), before + 1));
        let range = GpaRange::new(Gpa(0), 2 << 20).unwrap();
        assert_eq!(p2m.leaf_range(page(9)), range, "one leaf");
        // The first write makes all of it plain.
        let there = Hpa(FAST.base().0 + 9 * PAGE_SIZE);
        assert_eq!(p2m.promised(page(9)), P2mEntry::Ram { hpa: there, writable: true });
        assert_eq!(p2m.translate_to_write(page(9)), P2mEntry::Ram { hpa: there, writable: true });
        assert_eq!((p2m.movable_piece(Gpa(0)), p2m.leaf_range(page(9))), (Some((FAST, false)), range));
        assert_eq!(p2m.translate(page(600)).readable(), Some(Hpa(HOME.0 + 600 * PAGE_SIZE)), "as it was");
    }

    #[test]
    fn pages_that_are_accessed_on_the_way_have_leaves_of_their_own() {
        let arena = Arena::new(20);
        let mut p2m = p2m(&arena);
        let before = arena.in_use();
        for written in [None, Some(5)] {
            let _no_engine = p2m.take_out_piece(Gpa(0), HOME.frame()).unwrap();
            for n in [5, 300] {
                p2m.attach_moved(page(n), Hfn(FAST.0 + n), true);
                assert_eq!(p2m.peek(page(n)).readable(), Some(Hfn(FAST.0 + n).base()));
                assert_eq!(p2m.peek(page(n + 1)), P2mEntry::Absent { home: None });
            }
            written.into_iter().for_each(|n| assert!(p2m.translate_to_write(page(n)).writable().is_some()));
            assert_eq!(p2m.put_piece(Gpa(0), FAST, true), Some(written.is_none()));
            assert_eq!(
                (p2m.movable_piece(Gpa(0)), arena.in_use()),
                (Some((FAST, written.is_none())), before)
            );
            // And home.
            let _no_engine = p2m.take_out_piece(Gpa(0), FAST).unwrap();
            assert_eq!(p2m.put_piece(Gpa(0), HOME.frame(), false), Some(false));
            assert_eq!(arena.in_use(), before + 1);
        }
        assert_eq!((arena.in_use(), p2m.leaf_range(Gpa(0)).len()), (before + 1, 2 << 20));
        drop(p2m);
        assert_eq!(arena.in_use(), 0, "with what was set aside");
    }

    #[test]
    fn what_comes_to_a_part_of_it_meanwhile_stays() {
        let arena = Arena::new(20);
        let mut p2m = p2m(&arena);
        let _no_engine = p2m.take_out_piece(Gpa(0), HOME.frame()).unwrap();
        let _no_engine = p2m.map_mmio(GpaRange::page(page(3))).unwrap();
        assert_eq!(p2m.put_piece(Gpa(0), FAST, true), None);
        assert_eq!((p2m.peek(page(3)), p2m.movable_piece(Gpa(0))), (P2mEntry::Mmio, None));
        assert_eq!(p2m.movable(page(4)), Some((Hfn(FAST.0 + 4), true)));
        assert!(p2m.take_out_piece(Gpa(0), FAST).is_none() && p2m.join(Gpa(0)).is_none());
    }

    #[test]
    fn small_leaves_in_one_run_become_one() {
        let arena = Arena::new(20);
        let mut p2m = p2m(&arena);
        let before = arena.in_use();
        let _no_engine = p2m.take_out(page(5), Hfn(HOME.frame().0 + 5)).unwrap();
        assert!(p2m.join(Gpa(0)).is_none(), "one is absent");
        p2m.attach_moved(page(5), Hfn(FAST.0 + 5), true);
        assert!(p2m.join(Gpa(0)).is_none(), "one is elsewhere");
        let _no_engine = p2m.take_out(page(5), Hfn(FAST.0 + 5)).unwrap();
        p2m.attach_moved(page(5), Hfn(HOME.frame().0 + 5), false);
        assert!(arena.in_use() > before);
        assert!(matches!(p2m.join(Gpa(0)), Some((at, false, _)) if at == HOME.frame()));
        assert_eq!((arena.in_use(), p2m.leaf_range(Gpa(0)).len()), (before, 2 << 20));
        // Plain beside clean is plain.
        p2m.split(GpaRange::new(Gpa(0), 2 << 20).unwrap(), PageSize::Size4K).unwrap();
        let _no_engine = p2m.take_out(page(5), Hfn(HOME.frame().0 + 5)).unwrap();
        p2m.attach_moved(page(5), Hfn(HOME.frame().0 + 5), true);
        assert!(matches!(p2m.join(Gpa(0)), Some((_, false, _))));
    }
}
