//! Changes of the P2m while the VCPUs run.

use super::{Fault, Guest, Several};
use crate::arch::Access;
use crate::arch::addr::Gpa;
use crate::mem::tier::migration::PIECE;
use crate::paging::MapError;
use crate::paging::guest_walk::peek;
use crate::paging::model::Modelled;
use crate::paging::random::Random;
use crate::paging::range::Changed;
use crate::paging::shadow::TlbFlush;
use crate::paging::shadow::oracle::layout;
use crate::paging::shadow::oracle::migrated::Mover;
use crate::paging::shadow::oracle::paged;
use crate::paging::shadow::oracle::twins::Omits;

impl<F: Modelled> Several<F> {
    /// Something happens to a page of tables.
    pub(super) fn change_p2m(&mut self, v: usize, random: &mut Random) {
        self.edit(v, |p2m| Ok([layout::change_p2m(random, p2m).1].into()));
    }

    /// As a migrator does it: write-protect, copy, map the new place.
    pub(super) fn move_memory(&mut self, v: usize, random: &mut Random) -> Result<(), Fault> {
        let moves = layout::moves(random, &self.world.p2m.borrow());
        self.world.log(|| format!("    moves: {moves:x?}"));
        self.edit(v, |p2m| moves.iter().map(|&(range, ..)| p2m.set_writable(range, false)).collect());
        (0..2).for_each(|_| self.world.race());
        let copies: Vec<_> =
            moves.iter().map(|&(_, from, _)| layout::page_at(&self.world.host, from)).collect();
        moves.iter().for_each(|&(_, from, to)| layout::copy_page(&self.world.host, from, to));
        (0..2).for_each(|_| self.world.race());
        self.edit(v, |p2m| moves.iter().map(|&(range, _, to)| p2m.map_ram(range, to, true)).collect());
        (0..2).for_each(|_| self.world.race());
        for (&(range, from, _), copy) in moves.iter().zip(&copies) {
            if layout::page_at(&self.world.host, from) != *copy {
                return Err(format!("a store to {range:?} went to the old frame after that was copied"));
            }
        }
        self.check()
    }

    /// What the pager does: it evicts, or drops what the guest does not want.
    pub(super) fn page_out(&mut self, v: usize, random: &mut Random) -> Result<(), Fault> {
        if random.once_in(3) { self.discard(v, random) } else { self.evict(v, random) }
    }

    /// As `vm::overcommit` does it: pages leave the P2m and the tables, and nothing is stored.
    fn discard(&mut self, v: usize, random: &mut Random) -> Result<(), Fault> {
        let Some(pager) = self.world.pager.clone() else { return Ok(()) };
        let omits = self.world.omits.get();
        if omits == Omits::DiscardFlush {
            self.world.omits.set(Omits::Flush);
        }
        let mut gone = vec![];
        self.edit(v, |p2m| {
            let (pages, changes) = paged::discard(&pager, p2m, random);
            gone = pages;
            Ok(changes)
        });
        self.world.log(|| format!("    discarded: {gone:x?}"));
        self.world.omits.set(omits);
        let held = paged::contents(&self.world.host, &gone);
        (0..2).for_each(|_| self.world.race());
        paged::end_discard(&pager, &self.world.p2m.borrow(), &self.world.host, &gone, &held, random)?;
        (0..2).for_each(|_| self.world.race());
        self.check()
    }

    /// As `vm::overcommit` does it: pages leave the P2m and the tables, and are stored. The others access them meanwhile.
    fn evict(&mut self, v: usize, random: &mut Random) -> Result<(), Fault> {
        let Some(pager) = self.world.pager.clone() else { return Ok(()) };
        let leaving = paged::choose(&pager, &self.world.p2m.borrow(), &mut self.shadow, random);
        self.world.log(|| format!("    leaving: {leaving:x?}"));
        let omits = self.world.omits.get();
        if omits == Omits::EvictFlush {
            self.world.omits.set(Omits::Flush);
        }
        self.edit(v, |p2m| {
            Ok(leaving.iter().filter_map(|page| p2m.evict(page.page.base(), page.frame)).collect())
        });
        self.world.omits.set(omits);
        let held = paged::contents(&self.world.host, &leaving);
        (0..2).for_each(|_| self.world.race());
        let loses = omits == Omits::LosePages;
        paged::store(&pager, &self.world.p2m.borrow(), &self.world.host, &leaving, &held, loses, random)?;
        (0..2).for_each(|_| self.world.race());
        self.check()
    }

    /// As `vm::tiers` does it: pages leave the P2m and the tables, are copied, and come back elsewhere. The others access them
    /// meanwhile.
    pub(super) fn migrate(&mut self, v: usize, random: &mut Random) -> Result<(), Fault> {
        let world = self.world.clone();
        let Some(mover) = &world.mover else { return Ok(()) };
        if random.once_in(6) {
            return self.migrate_piece(v, random);
        }
        let omits = world.omits.get();
        // What a VCPU's processor remembers is among what moves: this one's, or another's, which has to be told.
        let others = world.cpus.len() - 1;
        let w = match others > 0 && random.once_in(2) {
            true => (v + 1 + random.draw() as usize % others) % world.cpus.len(),
            false => v,
        };
        let probe = random.draw() as usize % world.cpus[w].borrow().probes.len();
        self.enter(w);
        self.access(w, probe, Access::READ)?;
        let wanted = {
            let (cpu, p2m) = (world.cpus[w].borrow(), world.p2m.borrow());
            let found = peek(&cpu.state, &world.walked(&p2m), cpu.probes[probe].gva, Access::READ);
            found.ok().map(|found| found.gpa.frame())
        };
        self.enter(v);
        if omits == Omits::MoveFlush {
            world.omits.set(Omits::Flush);
        }
        self.edit(v, |p2m| Ok(mover.take_out(p2m, wanted, omits, random)));
        world.omits.set(omits);
        if random.once_in(3) {
            world.race();
        }
        let held = mover.forgotten(&world.host, omits);
        (0..3).for_each(|_| world.race());
        loop {
            let any = mover.copy_one(&world.p2m.borrow(), &world.host, &held)?;
            if !any {
                break;
            }
            world.race();
        }
        mover.end(&world.host, &held)?;
        if w != v {
            world.read_again(w, probe)?;
        }
        for _ in 0..2 {
            world.race();
            // This VCPU goes on, too: it has flushed by itself.
            self.enter(v);
            let probe = probe % world.cpus[v].borrow().probes.len();
            self.access(v, probe, Access::READ)?;
        }
        self.check()
    }

    /// The same for 2 MiB as one.
    pub(super) fn migrate_piece(&mut self, v: usize, random: &mut Random) -> Result<(), Fault> {
        let world = self.world.clone();
        let Some(mover) = &world.mover else { return Ok(()) };
        let omits = world.omits.get();
        if random.once_in(2) {
            self.edit(v, |p2m| Ok(vec![layout::all_home(p2m)]));
        }
        let others = world.cpus.len() - 1;
        let w = if others > 0 { (v + 1 + random.draw() as usize % others) % world.cpus.len() } else { v };
        let probe = random.draw() as usize % world.cpus[w].borrow().probes.len();
        self.enter(w);
        self.access(w, probe, Access::READ)?;
        self.enter(v);
        if !random.once_in(3) && self.copy_protected(v, mover, random)? {
            return self.replace_piece(v, mover, (w, probe));
        }
        let mut goes = false;
        self.edit_move(v, |p2m| {
            let change = mover.take_piece_out(p2m);
            goes = change.is_some();
            change
        });
        if !goes {
            return Ok(());
        }
        if random.once_in(3) {
            world.race();
        }
        let held = mover.piece_forgotten(&world.host, omits);
        (0..2).for_each(|_| world.race());
        let every = 1 + random.draw() % 300;
        while let Some(n) = mover.migration.copy_part(1) {
            mover.check_piece(&world.p2m.borrow(), &world.host, &held, n)?;
            if n % every == 0 {
                world.race();
            }
        }
        let mut end = Ok(());
        self.edit(v, |p2m| match mover.end_piece(p2m, &world.host, &held) {
            Ok(changed) => Ok(vec![changed]),
            Err(what) => {
                end = Err(what);
                Ok(Vec::new())
            }
        });
        end?;
        if w != v {
            world.read_again(w, probe)?;
        }
        (0..2).for_each(|_| world.race());
        self.check()
    }

    /// The P2m changes for a step of a move, and the engine follows.
    fn edit_move(&mut self, v: usize, edit: impl FnOnce(&mut Guest) -> Option<Changed>) {
        let world = self.world.clone();
        let omits = world.omits.get();
        if omits == Omits::MoveFlush {
            world.omits.set(Omits::Flush);
        }
        self.edit(v, |p2m| Ok(edit(p2m).into_iter().collect()));
        world.omits.set(omits);
    }

    /// It is copied in parts while the others go on, which may write it. False: it is not in one place.
    fn copy_protected(&mut self, v: usize, mover: &Mover, random: &mut Random) -> Result<bool, Fault> {
        let world = self.world.clone();
        let omits = world.omits.get();
        let mut begun = false;
        self.edit_move(v, |p2m| {
            let change = mover.protect_piece(p2m, omits);
            begun = change.is_some();
            change.flatten()
        });
        let mut done = 0;
        while begun && mover.is_copied() && done < PIECE {
            done += mover.copy_aside(done);
            world.race();
            // This VCPU goes on, too.
            if random.once_in(8) {
                let at = (random.draw() % layout::TABLE_BYTES) & !7;
                self.store(v, Gpa(at), random)?;
            }
        }
        Ok(begun)
    }

    /// The end of that. A VCPU reads what its processor remembers.
    fn replace_piece(&mut self, v: usize, mover: &Mover, (w, probe): (usize, usize)) -> Result<(), Fault> {
        let world = self.world.clone();
        let omits = world.omits.get();
        let mut end = Ok(false);
        self.edit_move(v, |p2m| match mover.replace_piece(p2m, &world.host, omits) {
            Ok(change) => {
                end = Ok(change.is_some());
                change
            }
            Err(what) => {
                end = Err(what);
                None
            }
        });
        if end? {
            mover.replaced(&mut world.p2m.borrow_mut());
            if w != v {
                world.read_again(w, probe)?;
            }
        }
        (0..2).for_each(|_| world.race());
        self.check()
    }

    /// The P2m changes, and the engine follows.
    pub(super) fn edit(&mut self, v: usize, edit: impl FnOnce(&mut Guest) -> Result<Vec<Changed>, MapError>) {
        // Until the engine has been told the others may be where they were.
        self.world.is_changing.set(true);
        let changes = edit(&mut self.world.p2m.borrow_mut()).expect("the arena is large");
        let omits = self.world.omits.get();
        let told: Vec<Changed> = changes.into_iter().map(|changed| omits.told(changed)).collect();
        let reload = self.engine(v, |shadow, _, _, _| {
            let (reload, flush) = shadow.apply(&told);
            (reload, if omits == Omits::Flush { TlbFlush::None } else { flush })
        });
        self.world.is_changing.set(false);
        if reload.is_some() {
            // A VCPU that looks up its root again compares all unsync tables.
            for cpu in &self.world.cpus {
                cpu.borrow_mut().flushed_all(&self.world, true, false);
            }
        }
        self.reload(v, reload);
    }
}
