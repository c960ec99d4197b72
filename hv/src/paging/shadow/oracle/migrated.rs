//! Pages that move between two tiers while the trace goes on.
//!
//! The migration, the P2m and the engines are the hypervisor's own; what `vm::tiers` does between them is done here step by step, so that
//! accesses come in between. A page must hold in its new place what it held, and no store may reach its old frame once all
//! processors have forgotten it.

use super::layout::{self, page_at};
use super::twins::Omits;
use super::{Guest, Oracle};
use crate::arch::addr::{Gfn, Gpa, Hfn, Hpa, PAGE_SIZE, PageSize};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::mem::tier::migration::{CopyFrame, Migration, Move, PIECE, Way};
use crate::paging::model::Modelled;
use crate::paging::random::Random;
use crate::paging::range::{Changed, GpaRange, OldFrames};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pages of a batch at most.
const MOST: usize = 8;

/// Copies in each of these memories.
#[derive(Debug)]
struct Copier {
    hosts: Vec<VecHost>,
    forgets: Arc<AtomicBool>,
}

impl CopyFrame for Copier {
    fn copy(&self, from: Hfn, to: Hfn) {
        if !self.forgets.load(Ordering::Relaxed) {
            self.hosts.iter().for_each(|host| layout::copy_page(host, from.base(), to.base()));
        }
    }

    fn wipe(&self, _: Hfn) {}
}

/// What moves pages of a guest.
#[derive(Debug)]
pub struct Mover {
    pub migration: Arc<Migration>,
    hosts: Vec<VecHost>,
    /// A twin: contents are not copied.
    forgets: Arc<AtomicBool>,
    /// The pages of the batch.
    moves: RefCell<Vec<Move>>,
}

impl Mover {
    /// For a guest in all of these memories.
    pub fn new(p2m: &mut Guest, hosts: &[VecHost]) -> Mover {
        let forgets = Arc::new(AtomicBool::new(false));
        let copier = Copier { hosts: hosts.to_vec(), forgets: forgets.clone() };
        let migration = Arc::new(Migration::new(MOST, Box::new(copier)).expect("the test's own heap"));
        p2m.set_migration(&migration);
        Mover { migration, hosts: hosts.to_vec(), forgets, moves: RefCell::default() }
    }

    /// The first step: some tables become absent, and `wanted` if it is one.
    pub fn take_out(
        &self,
        p2m: &mut Guest,
        wanted: Option<Gfn>,
        omits: Omits,
        random: &mut Random,
    ) -> Vec<Changed> {
        let mut all: Vec<Move> = Vec::new();
        let wanted = wanted.and_then(|page| layout::migrates(page.0, p2m)).into_iter();
        for mut page in wanted.chain((0..3).flat_map(|_| layout::migrations(random, p2m))) {
            if omits == Omits::DiscardDirty && page.way == Way::Back {
                page.way = Way::Discard;
            }
            if all.len() < MOST && !all.contains(&page) {
                all.push(page);
            }
        }
        *self.moves.borrow_mut() = all;
        let moves = self.moves.borrow();
        let changes = moves.iter().map(|page| {
            let change = p2m.take_out(page.page.base(), page.from).expect("it can be written");
            assert!(self.migration.add(*page));
            change
        });
        changes.collect()
    }

    /// All processors have forgotten them; what the old frames hold.
    pub fn forgotten(&self, host: &VecHost, omits: Omits) -> Vec<Vec<u8>> {
        self.forgets.store(omits == Omits::LoseCopy, Ordering::Relaxed);
        self.migration.forgotten();
        self.moves.borrow().iter().map(|page| page_at(host, page.from.base())).collect()
    }

    /// Copies one page that is absent still; false: there is none.
    ///
    /// # Errors
    /// It is not as it was at [`Mover::forgotten`].
    pub fn copy_one(&self, p2m: &Guest, host: &VecHost, held: &[Vec<u8>]) -> Result<bool, String> {
        let mut result = Ok(true);
        let any = self.migration.copy_one(&mut |page, frame, is_clean| {
            let at = self.moves.borrow().iter().position(|other| other.page == page);
            if page_at(host, frame.base()) != held[at.expect("it was added")] {
                result = Err(format!("{page:?} has come to {frame:?} with other contents"));
            }
            p2m.attach_moved(page.base(), frame, is_clean);
        });
        result.map(|_| any)
    }

    /// From now on the old frames are another's.
    ///
    /// # Errors
    /// A store has reached one since [`Mover::forgotten`].
    pub fn end(&self, host: &VecHost, held: &[Vec<u8>]) -> Result<(), String> {
        let mut result = Ok(());
        let moves = self.moves.borrow();
        self.migration.end(|page, moved| {
            let at = moves.iter().position(|other| *other == page).expect("it was added");
            if moved && page_at(host, page.from.base()) != held[at] {
                result = Err(format!("a store to {:?} went to its old frame after the flush", page.page));
            }
            // A home keeps what the page held.
            if moved && page.way != Way::In {
                self.hosts.iter().for_each(|host| host.fill(page.from.base(), PAGE_SIZE, 0xa5));
            }
        });
        result
    }
}

/// The 2 MiB with the tables, while they move as one.
impl Mover {
    /// The first step of a move without absence, if they are in one place: they are write-protected if they have to be copied.
    pub fn protect_piece(&self, p2m: &mut Guest, omits: Omits) -> Option<Option<Changed>> {
        let _the_same_translations = p2m.join(Gpa(0));
        let mut piece = layout::migrates_whole(p2m)?;
        if omits == Omits::DiscardDirty && piece.way == Way::Back {
            piece.way = Way::Discard;
        }
        self.forgets.store(omits == Omits::LoseCopy, Ordering::Relaxed);
        *self.moves.borrow_mut() = vec![piece];
        let change = p2m.protect_piece(piece.page.base(), piece.from);
        assert!(change.is_some() || piece.way == Way::Discard, "it was just there");
        Some(change)
    }

    /// Whether there is something to copy.
    pub fn is_copied(&self) -> bool {
        self.moves.borrow()[0].way != Way::Discard
    }

    /// Copies a part of them from page `n` on, where they still are; how many pages.
    pub fn copy_aside(&self, n: u64) -> u64 {
        // Table pages alone have contents.
        let most = if n < layout::TABLES { 7 } else { PIECE };
        self.migration.copy_aside(&self.moves.borrow()[0], n, most)
    }

    /// Has them in their other place, with contents that were copied there: if nothing was written since they were protected, or there was
    /// nothing to copy. `None`: they stay.
    ///
    /// # Errors
    /// They have other contents there.
    pub fn replace_piece(
        &self,
        p2m: &mut Guest,
        host: &VecHost,
        omits: Omits,
    ) -> Result<Option<Changed>, String> {
        let piece = self.moves.borrow()[0];
        let start = piece.page.base();
        if p2m.movable_piece(start) != Some((piece.from, true)) {
            if omits != Omits::StaleCopy {
                p2m.unprotect_piece(start, piece.from);
                assert_eq!(p2m.movable_piece(start), Some((piece.from, false)));
                return Ok(None);
            }
            let _it_is_clean_again = p2m.protect_piece(start, piece.from);
        }
        let was = |frame: Hfn| (0..layout::TABLES).map(move |n| page_at(host, Hfn(frame.0 + n).base()));
        if !was(piece.from).eq(was(piece.to)) {
            return Err(format!("{:?} has come to {:?} with other contents", piece.page, piece.to));
        }
        Ok(p2m.replace_piece(start, piece.from, piece.to))
    }

    /// All engines and processors know their place: the old one may be used for something else.
    pub fn replaced(&self, p2m: &mut Guest) {
        let piece = self.moves.borrow()[0];
        if piece.way != Way::In {
            p2m.unprotect_piece(piece.page.base(), piece.to);
            self.hosts.iter().for_each(|host| host.fill(piece.from.base(), PIECE * PAGE_SIZE, 0xa5));
        }
    }

    /// The first step, if they are in one place: they become absent.
    pub fn take_piece_out(&self, p2m: &mut Guest) -> Option<Changed> {
        // Small leaves in one place are as good.
        let _the_same_translations = p2m.join(Gpa(0));
        let piece = layout::migrates_whole(p2m).filter(|piece| piece.way != Way::Discard)?;
        let change = p2m.take_out_piece(piece.page.base(), piece.from).expect("it was just there");
        assert!(self.migration.add_piece(piece));
        *self.moves.borrow_mut() = vec![piece];
        Some(change)
    }

    /// All processors have forgotten them; what the old frames hold.
    pub fn piece_forgotten(&self, host: &VecHost, omits: Omits) -> Vec<u8> {
        self.forgets.store(omits == Omits::LoseCopy, Ordering::Relaxed);
        self.migration.forgotten();
        piece_at(host, self.moves.borrow()[0].from)
    }

    /// Page `n` has been copied.
    ///
    /// # Errors
    /// It is not as it was, and nothing has accessed it.
    pub fn check_piece(&self, p2m: &Guest, host: &VecHost, held: &[u8], n: u64) -> Result<(), String> {
        let piece = self.moves.borrow()[0];
        let at = Gpa(n * PAGE_SIZE);
        let (now, is_absent) = (page_at(host, Hfn(piece.to.0 + n).base()), p2m.peek(at).readable().is_none());
        let was = &held[at.0 as usize..][..PAGE_SIZE as usize];
        // Table pages alone have contents.
        if is_absent && now != was {
            Err(format!("{at} has come to {:?} with other contents", piece.to))
        } else {
            Ok(())
        }
    }

    /// The last step: they are present, as one leaf.
    ///
    /// # Errors
    /// A store has reached the old frames since [`Mover::piece_forgotten`].
    pub fn end_piece(&self, p2m: &mut Guest, host: &VecHost, held: &[u8]) -> Result<Changed, String> {
        let (piece, frame, is_clean) = self.migration.end_piece().expect("it was added");
        let _may_be_in_parts = p2m.put_piece(piece.page.base(), frame, is_clean);
        if frame != piece.from {
            if piece_at(host, piece.from) != held {
                return Err("a store to the piece went to its old frames after the flush".into());
            }
            if piece.way != Way::In {
                self.hosts.iter().for_each(|host| host.fill(piece.from.base(), PIECE * PAGE_SIZE, 0xa5));
            }
        }
        let range = GpaRange::new(piece.page.base(), PIECE * PAGE_SIZE).expect("a small range");
        Ok(Changed::new(range, OldFrames::NONE))
    }
}

fn piece_at(host: &VecHost, at: Hfn) -> Vec<u8> {
    let mut bytes = vec![0; (PIECE * PAGE_SIZE) as usize];
    host.read(at.base(), &mut bytes);
    bytes
}

impl<F: Modelled> Oracle<'_, F> {
    /// The same for 2 MiB as one.
    fn migrate_piece(&mut self, mover: &Mover, random: &mut Random) -> Result<(), String> {
        if random.once_in(2) {
            let changed = layout::all_home(&mut self.p2m);
            self.p2m_changed(&[changed]);
        }
        self.compare()?;
        let omits = self.machine.omits;
        if !random.once_in(3) && self.copy_protected(mover, random)? {
            return self.replace_piece(mover, random);
        }
        let Some(change) = mover.take_piece_out(&mut self.p2m) else { return Ok(()) };
        self.log(|| format!("    moving: {:x?}", mover.moves.borrow()));
        self.piece_changed(change);
        let probe = random.draw() as usize % self.probes.len();
        let access = random.access(self.state.cpl);
        if random.once_in(4) {
            self.access(probe, self.probes[probe].gva, access)?;
            self.compare()?;
        }
        let held = mover.piece_forgotten(&self.machine.host, omits);
        let early = random.draw() % (2 * PIECE);
        while let Some(n) = mover.migration.copy_part(1) {
            mover.check_piece(&self.p2m, &self.machine.host, &held, n)?;
            if n == early {
                self.access(probe, self.probes[probe].gva, access)?;
                self.compare()?;
            }
        }
        self.access(probe, self.probes[probe].gva, access)?;
        let host = self.machine.host.clone();
        let changed = mover.end_piece(&mut self.p2m, &host, &held)?;
        self.p2m_changed(&[changed]);
        self.access(probe, self.probes[probe].gva, access)?;
        Ok(())
    }

    /// The engine follows a step of a move.
    fn piece_changed(&mut self, change: Changed) {
        let omits = self.machine.omits;
        if omits == Omits::MoveFlush {
            self.machine.omits = Omits::Flush;
        }
        self.p2m_changed(&[change]);
        self.machine.omits = omits;
    }

    /// They are copied in parts while the guest goes on, which may write them. False: they are not in one place.
    fn copy_protected(&mut self, mover: &Mover, random: &mut Random) -> Result<bool, String> {
        let omits = self.machine.omits;
        let Some(change) = mover.protect_piece(&mut self.p2m, omits) else { return Ok(false) };
        self.log(|| format!("    copying: {:x?}", mover.moves.borrow()));
        if let Some(change) = change {
            self.piece_changed(change);
        }
        let mut done = 0;
        while mover.is_copied() && done < PIECE {
            done += mover.copy_aside(done);
            if random.once_in(4) {
                let probe = random.draw() as usize % self.probes.len();
                self.access(probe, self.probes[probe].gva, random.access(self.state.cpl))?;
                self.compare()?;
            }
            if random.once_in(8) {
                let at = (random.draw() % layout::TABLE_BYTES) & !7;
                self.store_through(Gpa(at), random.draw())?;
            }
        }
        Ok(true)
    }

    /// The end of that.
    fn replace_piece(&mut self, mover: &Mover, random: &mut Random) -> Result<(), String> {
        let host = self.machine.host.clone();
        let Some(change) = mover.replace_piece(&mut self.p2m, &host, self.machine.omits)? else {
            return Ok(());
        };
        self.piece_changed(change);
        mover.replaced(&mut self.p2m);
        let probe = random.draw() as usize % self.probes.len();
        self.access(probe, self.probes[probe].gva, random.access(self.state.cpl))?;
        self.compare()
    }

    /// All leaves that lead to the 2 MiB with the tables become small.
    fn split_leaves(&mut self) {
        self.p2m.split(GpaRange::page(Gpa(0)), PageSize::Size4K).expect("the arena is large");
        if let Some(frame) = self.p2m.peek(Gpa(0)).readable().map(Hpa::frame) {
            self.machine.drop_large_leaves(frame);
            assert!(!self.machine.shadow.has_large_leaf(frame));
        }
    }

    /// As `vm::tiers` does it: pages leave the P2m and the tables, are copied, and come back elsewhere.
    pub(super) fn migrate(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(mover) = self.mover.take() else { return Ok(()) };
        let result = self.migrate_with(&mover, random);
        self.mover = Some(mover);
        result
    }

    fn migrate_with(&mut self, mover: &Mover, random: &mut Random) -> Result<(), String> {
        if random.once_in(6) {
            return self.migrate_piece(mover, random);
        }
        if random.once_in(6) {
            self.split_leaves();
        }
        self.compare()?;
        let changes = mover.take_out(&mut self.p2m, None, self.machine.omits, random);
        self.log(|| format!("    moving: {:x?}", mover.moves.borrow()));
        let omits = self.machine.omits;
        if omits == Omits::MoveFlush {
            self.machine.omits = Omits::Flush;
        }
        self.p2m_changed(&changes);
        self.machine.omits = omits;
        let probe = random.draw() as usize % self.probes.len();
        let access = random.access(self.state.cpl);
        if random.once_in(4) {
            self.access(probe, self.probes[probe].gva, access)?;
            self.compare()?;
        }
        let held = mover.forgotten(&self.machine.host, omits);
        self.access(probe, self.probes[probe].gva, access)?;
        self.compare()?;
        while mover.copy_one(&self.p2m, &self.machine.host, &held)? {}
        mover.end(&self.machine.host, &held)?;
        self.access(probe, self.probes[probe].gva, access)?;
        Ok(())
    }
}
