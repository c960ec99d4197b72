//! Memory that moves under a guest on nested tables, with several VCPUs: write-protect, copy, map elsewhere; and as `vm::tiers` does it,
//! absent while it is copied.
//!
//! Each VCPU has a modelled processor that keeps what it has walked until *it* is told to flush. Between the steps of a move the
//! VCPUs go on reading and writing. A read must return what was written last, by whichever VCPU; no store may reach a frame that
//! has been copied.

use super::*;
use crate::arch::Access;
use crate::arch::addr::{Gfn, Hfn};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::mem::tier::migration::{CopyFrame, Migration, Move, PIECE, Way};
use crate::paging::arena::Arena;
use crate::paging::format::{ept::Ept, npt::Npt};
use crate::paging::model::{Modelled, Processor};
use crate::paging::random::Random;
use std::sync::Arc;

const PAGE: u64 = 0x1000;
/// Guest memory: two large leaves at first, of which the first pages are used and move.
const RAM: u64 = 0x40_0000;
const USED: u64 = 6;
/// Each page has two places, this far from each other.
const HOST: Hpa = Hpa(0x4000_0000);
const POISON: u64 = 0xdead;

/// What is left out.
#[derive(Clone, Copy, PartialEq)]
enum Omits {
    Nothing,
    /// The other VCPUs do not flush.
    Shootdown,
    /// Memory is not write-protected before it is copied.
    Protect,
    /// What moves between tiers is not copied.
    Copy,
    /// What goes home is discarded, written or not.
    Dirty,
    /// A piece that was written while it was copied in parts is taken for what was copied.
    Written,
}

struct Machine<'a, F: Modelled> {
    arena: &'a Arena,
    p2m: P2m<&'a Arena>,
    nested: Nested<F, &'a Arena>,
    processors: Vec<Processor>,
    host: VecHost,
    /// What each page holds.
    expected: [u64; USED as usize],
    random: Random,
    omits: Omits,
    /// Pages move between tiers, too.
    migration: Option<Arc<Migration>>,
    /// How often they have, and how often an access came too early for that.
    /// And how many were discarded. The same of pieces of 2 MiB, and how many copies of them were given up.
    moved: [u64; 7],
    /// Nothing is written at the moment.
    is_quiet: bool,
    /// Only pieces move between tiers.
    pieces_only: bool,
}

/// Copies what each page holds, if it is to.
#[derive(Debug)]
struct Copier(Option<VecHost>);

impl CopyFrame for Copier {
    fn copy(&self, from: Hfn, to: Hfn) {
        self.0.iter().for_each(|host| host.write(to.base(), &host.load(from.base()).to_le_bytes()));
    }

    fn wipe(&self, _: Hfn) {}
}

impl<'a, F: Modelled> Machine<'a, F> {
    fn new(arena: &'a Arena, seed: u64, omits: Omits, pieces_only: bool) -> Self {
        let mut p2m = P2m::new(arena).unwrap();
        let _nothing_yet = p2m.map_ram(GpaRange::new(Gpa(0), RAM).unwrap(), HOST, true).unwrap();
        let nested = Nested::new(arena, PageSize::Size2M, &p2m).unwrap();
        let mut random = Random(seed);
        let processors = (0..2 + random.draw() % 3).map(|_| Processor::new(F::VENDOR)).collect();
        let host = VecHost::new(HOST, 2 * RAM as usize);
        let migration = (pieces_only
            || matches!(omits, Omits::Copy | Omits::Dirty | Omits::Written)
            || random.once_in(2))
        .then(|| {
            let copier = Copier((omits != Omits::Copy).then(|| host.clone()));
            Arc::new(Migration::new(4, Box::new(copier)).unwrap())
        });
        migration.iter().for_each(|migration| p2m.set_migration(migration));
        let expected = [0; USED as usize];
        let moved = [0; 7];
        let is_quiet = false;
        Machine {
            arena,
            p2m,
            nested,
            processors,
            host,
            expected,
            random,
            omits,
            migration,
            moved,
            is_quiet,
            pieces_only,
        }
    }

    /// A VCPU reads or writes a page.
    fn access(&mut self) -> Result<(), String> {
        let v = self.random.draw() as usize % self.processors.len();
        let page = self.random.draw() % USED;
        let access = if !self.is_quiet && self.random.once_in(2) { Access::WRITE } else { Access::READ };
        let (gpa, root) = (Gpa(page * PAGE), self.nested.root().frame());
        let Ok(hpa) = self.processors[v].access(&self.arena, root, gpa, access) else {
            return match self.nested.fault(gpa, access, &self.p2m).unwrap() {
                NestedOutcome::WriteProtected if access.write => Ok(()),
                NestedOutcome::Filled(flush) if self.migration.is_some() => {
                    self.processors.iter_mut().for_each(|processor| processor.flush(flush));
                    self.access()
                }
                said => Err(format!("VCPU {v}, page {page}, {access:?}: {said:?}")),
            };
        };
        if access.write {
            let value = self.random.draw() | 1 << 63;
            self.host.write(hpa, &value.to_le_bytes());
            self.expected[page as usize] = value;
            return Ok(());
        }
        let (found, expected) = (self.host.load(hpa), self.expected[page as usize]);
        let place = format!("VCPU {v}, page {page} at {hpa}");
        if found == expected { Ok(()) } else { Err(format!("{place}: {found:#x}, should be {expected:#x}")) }
    }

    fn accesses(&mut self) -> Result<(), String> {
        (0..self.random.draw() % 6).try_for_each(|_| self.access())
    }

    /// The nested tables follow a change of the P2m, and all VCPUs flush.
    fn follow(&mut self, changed: Changed) {
        let flush = self.nested.apply(&self.p2m, changed).unwrap();
        let retired = self.nested.take_retired();
        let told = if self.omits == Omits::Shootdown { 1 } else { self.processors.len() };
        self.processors[..told].iter_mut().for_each(|processor| processor.flush(flush));
        if told > 1 {
            retired.free(&self.arena);
        }
    }

    fn move_page(&mut self) -> Result<(), String> {
        let page = self.random.draw() % USED;
        self.move_this(page)
    }

    fn move_this(&mut self, page: u64) -> Result<(), String> {
        let range = GpaRange::page(Gpa(page * PAGE));
        let from = self.p2m.translate_to_write(range.start).writable().unwrap();
        let home = Hpa(HOST.0 + page * PAGE);
        let to = if from == home { Hpa(home.0 + RAM) } else { home };
        if self.omits != Omits::Protect {
            let changed = self.p2m.set_writable(range, false).unwrap();
            self.follow(changed);
        }
        self.accesses()?;
        self.host.write(to, &self.host.load(from).to_le_bytes());
        self.accesses()?;
        let changed = self.p2m.map_ram(range, to, true).unwrap();
        self.follow(changed);
        // From now on the frame is another's.
        self.host.write(from, &POISON.to_le_bytes());
        self.accesses()?;
        let left = self.host.load(from);
        if left == POISON { Ok(()) } else { Err(format!("a store to page {page} went to its old frame")) }
    }

    /// Some pages move between tiers, as one batch.
    fn migrate(&mut self) -> Result<(), String> {
        let Some(migration) = self.migration.clone() else { return Ok(()) };
        let mut moves = Vec::new();
        let mut changes = Vec::new();
        for page in (0..USED).filter(|_| self.random.once_in(2)).take(4).collect::<Vec<_>>() {
            let gpa = Gpa(page * PAGE);
            let (from, is_clean) = self.p2m.movable(gpa).unwrap();
            let home = Hpa(HOST.0 + page * PAGE).frame();
            let (to, way) = match from == home {
                true => (Hpa(home.base().0 + RAM).frame(), Way::In),
                false if is_clean || self.omits == Omits::Dirty => (home, Way::Discard),
                false => (home, Way::Back),
            };
            let page = Move { page: gpa.frame(), from, to, way };
            changes.push(self.p2m.take_out(gpa, from).unwrap());
            assert!(migration.add(page) && self.p2m.take_out(gpa, from).is_none());
            moves.push(page);
        }
        changes.into_iter().for_each(|changed| self.follow(changed));
        if self.random.once_in(2) {
            self.accesses()?;
        }
        migration.forgotten();
        self.accesses()?;
        while migration
            .copy_one(&mut |page, frame, is_clean| self.p2m.attach_moved(page.base(), frame, is_clean))
        {
            self.accesses()?;
        }
        let mut old = Vec::new();
        let mut homes = Vec::new();
        migration.end(|page, moved| {
            self.moved[usize::from(!moved)] += 1;
            self.moved[2] += u64::from(moved && page.way == Way::Discard);
            // A home keeps what the page held.
            match page.way {
                Way::In if moved => homes.push((page.from, self.host.load(page.from.base()))),
                Way::In => {}
                Way::Back | Way::Discard => old.extend(moved.then_some(page.from)),
            }
        });
        old.iter().for_each(|frame| self.host.write(frame.base(), &POISON.to_le_bytes()));
        self.accesses()?;
        let left = old.iter().map(|frame| (*frame, POISON)).chain(homes);
        match left.into_iter().find(|(frame, held)| self.host.load(frame.base()) != *held) {
            None => Ok(()),
            Some((frame, _)) => Err(format!("a store went to {frame:?}, which a page has left")),
        }
    }

    /// The first 2 MiB move between tiers as one, once all of them are in one place.
    fn migrate_piece(&mut self) -> Result<(), String> {
        let Some(migration) = self.migration.clone() else { return Ok(()) };
        let place = |machine: &Self, page: u64| {
            machine.p2m.peek(Gpa(page * PAGE)).readable().unwrap().0 - page * PAGE
        };
        for page in 0..USED {
            if place(self, page) != place(self, 511) {
                self.move_this(page)?;
            }
        }
        let (from, is_clean, joined) = self.p2m.join(Gpa(0)).unwrap();
        self.follow(joined);
        let home = HOST.frame();
        let (to, way) = match from == home {
            true => (Hpa(HOST.0 + RAM).frame(), Way::In),
            false if is_clean || self.omits == Omits::Dirty => (home, Way::Discard),
            false => (home, Way::Back),
        };
        let all = Move { page: Gfn(0), from, to, way };
        let is_copied = way != Way::Discard && self.random.once_in(2);
        if is_copied && !self.copy_protected(&migration, &all)? {
            self.moved[6] += 1;
            return self.accesses();
        }
        let held = |machine: &Self| -> Vec<u64> {
            (0..USED).map(|n| machine.host.load(Hpa(from.base().0 + n * PAGE))).collect()
        };
        let (piece, frame, held) = if is_copied || way == Way::Discard {
            let _a_twin_has_overlooked_a_write = self.p2m.protect_piece(Gpa(0), from);
            let change = self.p2m.replace_piece(Gpa(0), from, to).unwrap();
            self.follow(change);
            if way != Way::In {
                self.p2m.unprotect_piece(Gpa(0), to);
            }
            (all, to, held(self))
        } else {
            let change = self.p2m.take_out_piece(Gpa(0), from).unwrap();
            assert!(migration.add_piece(all));
            self.follow(change);
            if self.random.once_in(4) {
                self.accesses()?;
            }
            migration.forgotten();
            self.accesses()?;
            while let Some(n) = migration.copy_part(1 + self.random.draw() % 3) {
                if n < 2 * USED {
                    self.accesses()?;
                }
            }
            let (piece, frame, is_clean) = migration.end_piece().unwrap();
            let held = held(self);
            assert!(self.p2m.put_piece(Gpa(0), frame, is_clean).is_some());
            self.follow(joined);
            (piece, frame, held)
        };
        let moved = frame != piece.from;
        self.moved[3 + usize::from(!moved)] += 1;
        self.moved[5] += u64::from(moved && piece.way == Way::Discard);
        if moved && piece.way != Way::In {
            (0..USED).for_each(|n| self.host.write(Hpa(from.base().0 + n * PAGE), &POISON.to_le_bytes()));
        }
        self.accesses()?;
        let is_left = |n: u64| {
            let now = self.host.load(Hpa(from.base().0 + n * PAGE));
            now == if piece.way == Way::In { held[n as usize] } else { POISON }
        };
        if moved && !(0..USED).all(is_left) {
            return Err(format!("a store went to {from:?}, which a piece has left"));
        }
        Ok(())
    }

    /// All of a piece is copied in parts while the VCPUs go on; false: one has written it, and it stays.
    fn copy_protected(&mut self, migration: &Migration, all: &Move) -> Result<bool, String> {
        let change = self.p2m.protect_piece(Gpa(0), all.from).unwrap();
        self.follow(change);
        let mut done = 0;
        while done < PIECE {
            if self.p2m.movable_piece(Gpa(0)) != Some((all.from, true)) && self.omits != Omits::Written {
                self.p2m.unprotect_piece(Gpa(0), all.from);
                return Ok(false);
            }
            done += migration.copy_aside(all, done, 1 + self.random.draw() % 3);
            // As often as in a move that is not given up nothing is written.
            if done < 2 * USED && self.random.once_in(3) {
                self.accesses()?;
            }
        }
        Ok(self.p2m.movable_piece(Gpa(0)) == Some((all.from, true)) || self.omits == Omits::Written)
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.draw() % 8 {
            0 if self.pieces_only => self.migrate_piece()?,
            1 if self.migration.is_some() && self.random.once_in(2) => self.migrate_piece()?,
            0 if self.migration.is_some() => self.migrate()?,
            0 | 1 => self.move_page()?,
            4 => self.is_quiet = self.random.once_in(3),
            2 => {
                let changed = self.p2m.merge(GpaRange::ALL);
                self.follow(changed);
            }
            3 => {
                // What tells which pages are written changes no translation.
                let pages = (0..USED).map(|page| Gpa(page * PAGE).frame());
                self.nested.start_dirty_log(pages);
                self.processors.iter_mut().for_each(|processor| processor.flush(Flush::All));
                let before = self.expected;
                self.accesses()?;
                for (page, _) in (0..).zip(before).filter(|&(page, was)| self.expected[page as usize] != was)
                {
                    if !self.nested.is_written(Gpa(page * PAGE).frame()) {
                        return Err(format!("page {page} was written, and its dirty bit is clear"));
                    }
                }
            }
            _ => {}
        }
        self.accesses()
    }
}

fn run<F: Modelled>(omits: Omits, seed: u64, pieces_only: bool) -> Result<[u64; 7], String> {
    let arena = Arena::new(400);
    let mut machine = Machine::<F>::new(&arena, seed, omits, pieces_only);
    (0..200).try_for_each(|n| machine.step().map_err(|what| format!("seed {seed}, step {n}: {what}")))?;
    Ok(machine.moved)
}

#[test]
fn memory_moves_under_several_vcpus() {
    let mut moved = [0; 7];
    for seed in 0..28 {
        let pieces_only = seed % 4 == 0;
        let run = [run::<Npt>, run::<Ept>].map(|run| run(Omits::Nothing, seed, pieces_only).unwrap());
        for more in run {
            moved.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
    assert!(moved[0] > 500 && moved[1] > 50 && moved[2] > 25, "{moved:?}");
    assert!(moved[3] > 250 && moved[4] > 25 && moved[5] > 25 && moved[6] > 100, "{moved:?}");
}

#[test]
fn moves_without_a_shootdown_or_protection_or_a_copy_are_found_out() {
    for omits in [Omits::Shootdown, Omits::Protect, Omits::Copy, Omits::Dirty, Omits::Written] {
        for pieces_only in [false, true] {
            assert!((0..20).any(|seed| run::<Npt>(omits, seed, pieces_only).is_err()));
            assert!((0..20).any(|seed| run::<Ept>(omits, seed, pieces_only).is_err()));
        }
    }
}
