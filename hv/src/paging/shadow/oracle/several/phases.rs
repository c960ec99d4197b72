//! Phases of regioning: a VCPU at a time has tables in which pages are opened one by one. Its accesses reach what is open, and what is
//! closed faults (`vcpu::regions`, `vm::regions`).

use super::world::World;
use super::{Fault, Guest, Several};
use crate::arch::Access;
use crate::arch::addr::{Gfn, Gpa, Hpa, PAGE_SIZE};
use crate::paging::format::x86::ADDRESS;
use crate::paging::model::Modelled;
use crate::paging::p2m::P2mEntry;
use crate::paging::random::Random;
use crate::paging::shadow::oracle::layout::{RAM, TABLES};
use crate::paging::shadow::oracle::twins::Omits;
use crate::paging::shadow::{AddressSpace, PageFault, ShadowOutcome, TlbFlush};
use crate::paging::tree_key::TreeKey;
use crate::vm::regions::PHASE;
use std::collections::BTreeSet;

/// The VCPU that is in a phase, and what is open there.
#[derive(Debug)]
pub struct Phase {
    pub vcpu: usize,
    pub open: BTreeSet<Gfn>,
}

impl<F: Modelled> Several<F> {
    /// A phase begins or ends, or something changes in it.
    pub(super) fn change_phase(&mut self, v: usize, random: &mut Random) {
        let Some(own) = self.phase_of() else { return self.begin_phase(v) };
        match random.draw() % 6 {
            0 => {
                self.end_phase();
                if random.once_in(2) {
                    self.begin_phase(own);
                }
            }
            1 | 2 => self.close_all(),
            _ => {
                // Others are open than are used.
                let first = random.draw() % TABLES;
                (first..first + random.draw() % 8).for_each(|page| self.open(Gfn(page)));
                self.world.log(|| format!("    VCPU {own} has opened pages from {first:#x} on"));
            }
        }
    }

    /// The VCPU that is in a phase.
    pub(super) fn phase_of(&self) -> Option<usize> {
        self.world.phase.borrow().as_ref().map(|phase| phase.vcpu)
    }

    fn begin_phase(&mut self, v: usize) {
        if self.agile.is_some() {
            return;
        }
        *self.world.phase.borrow_mut() = Some(Phase { vcpu: v, open: BTreeSet::new() });
        self.change_tree(v, PHASE);
    }

    /// The phase ends, whichever VCPU is served.
    pub(super) fn end_phase(&mut self) {
        let Some(v) = self.phase_of() else { return };
        let served = self.world.served.get();
        self.enter(v);
        self.end_tables(v);
        self.change_tree(v, TreeKey::FIRST);
        self.world.served.set(served);
    }

    /// The tables of the VCPU's phase go.
    pub(super) fn end_tables(&mut self, v: usize) {
        self.use_tree(v, TreeKey::FIRST);
        if self.world.omits.get() != Omits::PhaseEnd {
            self.engine(v, |shadow, _, _, _| ((), shadow.end_phase(PHASE)));
        }
        *self.world.phase.borrow_mut() = None;
    }

    fn open(&mut self, gfn: Gfn) {
        self.world.phase.borrow_mut().iter_mut().for_each(|phase| phase.open.extend([gfn]));
    }

    /// What is open is closed.
    pub(super) fn close_all(&mut self) {
        let Some(v) = self.phase_of() else { return };
        let served = self.world.served.replace(v);
        let open = {
            let mut phase = self.world.phase.borrow_mut();
            phase.as_mut().map(|phase| core::mem::take(&mut phase.open)).unwrap_or_default()
        };
        self.world.log(|| format!("    VCPU {v} closes {open:x?}"));
        let omits = self.world.omits.get();
        // The VCPU is not in the guest meanwhile.
        let frames: Vec<_> = {
            let p2m = self.world.p2m.borrow();
            open.iter().filter_map(|gfn| Some(p2m.peek(gfn.base()).readable()?.frame())).collect()
        };
        self.engine(v, |shadow, _, _, _| {
            let frames = frames.iter().copied().filter(|_| omits != Omits::PhaseClose);
            let flush = shadow.close_in_phase(PHASE, frames);
            ((), if omits == Omits::PhaseFlush { TlbFlush::None } else { flush })
        });
        self.world.served.set(served);
    }

    /// A fault of the VCPU that is in the phase: what is closed may be opened.
    pub(super) fn fault_in_phase(&mut self, v: usize, fault: PageFault) -> Result<ShadowOutcome, Fault> {
        if self.phase_of() != Some(v) {
            return Err(format!("VCPU {v} is said to be in a phase"));
        }
        let world = self.world.clone();
        let is_open = |gfn| world.phase.borrow().as_ref().is_some_and(|phase| phase.open.contains(&gfn));
        let outcome = self.engine(v, |shadow, p2m, memory, state| {
            shadow.fault_in_phase(AddressSpace::new(p2m, memory, state), fault, &is_open)
        });
        let ShadowOutcome::Touched { gpa, .. } = outcome else { return Ok(outcome) };
        if is_open(gpa.frame()) || self.world.p2m.borrow().peek(gpa).readable().is_none() {
            return Err(format!("{gpa} is said to be closed"));
        }
        self.world.log(|| format!("    VCPU {v} touches {gpa}"));
        if self.world.once_in(3) {
            self.close_all();
        }
        self.open(gpa.frame());
        if self.world.once_in(3) {
            let next = self.world.draw() % 4;
            (1..next).for_each(|n| self.open(Gpa(gpa.0 + n * PAGE_SIZE).frame()));
        }
        Ok(ShadowOutcome::Retry)
    }

    /// Fails if a leaf of the phase's tables leads to what is closed.
    pub(super) fn check_phase(&self) -> Result<(), Fault> {
        let p2m = self.world.p2m.borrow();
        let mut leaves = self.shadow.pool.leaves();
        let closed = leaves.find(|(id, _, raw)| {
            let is_of_phase = self.shadow.pool.page(*id).key.tree() == PHASE;
            is_of_phase && !self.world.belongs(&p2m, Hpa(raw & ADDRESS), Access::READ, PHASE)
        });
        closed.map_or(Ok(()), |leaf| Err(format!("{leaf:x?} of the phase's leads to what is closed")))
    }
}

impl World {
    /// Where an access that nothing stops leads is the guest's memory, can be written if it writes, and is open in these tables.
    pub fn belongs(&self, p2m: &Guest, hpa: Hpa, access: Access, tree: TreeKey) -> bool {
        let page = Hpa(hpa.0 & !(PAGE_SIZE - 1));
        let phase = self.phase.borrow();
        (0..RAM / PAGE_SIZE).map(|page| Gpa(page * PAGE_SIZE)).any(|gpa| {
            let entry = p2m.peek(gpa);
            let there = if access.write { entry.writable() } else { entry.readable() };
            let is_open = match tree.is_of_phase() {
                // RAM only is closed there.
                true if matches!(entry, P2mEntry::Rom { .. }) => true,
                true => phase.as_ref().is_some_and(|phase| phase.open.contains(&gpa.frame())),
                false => entry.closed_in(tree.domain()).is_none(),
            };
            there == Some(page) && is_open
        })
    }
}
