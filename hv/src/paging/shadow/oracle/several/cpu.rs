//! A VCPU: its registers, what its processor remembers, and what may still be remembered of each address.

use super::Fault;
use super::world::{World, arena};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hpa, PAGE_SIZE};
use crate::arch::state::cr4;
use crate::paging::guest_walk::{PagingKind, PagingState, Translation, WalkError, peek, walk};
use crate::paging::shadow::model::{Registers, ShadowProcessor};
use crate::paging::shadow::oracle::Outcome;
use crate::paging::shadow::oracle::machine::linear;
use crate::paging::shadow::oracle::stale::{any_mixture, is_possible};
use crate::paging::shadow::{HardwareControls, Root, TlbFlush, exiting_faults};
use crate::paging::tree_key::TreeKey;
use crate::vm::mailbox::Mailbox;
use crate::vm::work;

/// Where a VCPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The guest runs.
    Guest,
    /// On a PCPU, and about to go on.
    Host,
    /// It waits for the shadow tables, and answers.
    Waits,
    /// On no PCPU.
    Descheduled,
}

/// An address that the guest uses on a VCPU.
pub struct Probe {
    pub gva: Gva,
    /// How many changes there were when the VCPU last flushed it; `None`: it may remember a translation under another root.
    pub since: Option<usize>,
    /// A global translation of it may be remembered.
    pub global: bool,
    /// How many changes there were when the guest took a page fault there last, if the VCPU has used one set of tables since.
    pub faulted: Option<usize>,
}

/// One VCPU.
pub struct Cpu {
    pub state: PagingState,
    pub processor: ShadowProcessor,
    pub root: Root,
    /// The set of tables that it uses.
    pub tree: TreeKey,
    /// The hypervisor has delivered a page fault since the VCPU changed to these tables.
    pub has_faulted: bool,
    pub place: Place,
    /// What is to be done before the guest goes on.
    pub work: u32,
    pub probes: Vec<Probe>,
    /// Addresses that its processor has used on this root since the latest sample.
    pub used: Vec<Gva>,
}

impl Cpu {
    /// What the mailbox holds becomes work, and what can be done without the tables is done: as in `vcpu::run` and `vcpu::mmu`.
    pub fn collect(&mut self, mailbox: &Mailbox) {
        self.work |= mailbox.take(|_, _| ());
        if self.work & (work::FLUSH | work::RELOAD) != 0 {
            self.processor.flush(TlbFlush::All);
            self.work &= !work::FLUSH;
        }
    }

    /// The processor makes an access.
    pub fn touch(&mut self, probe: usize, access: Access) -> Result<Hpa, u32> {
        self.touch_at(self.probes[probe].gva, access)
    }

    /// The same at any address.
    pub fn touch_at(&mut self, gva: Gva, access: Access) -> Result<Hpa, u32> {
        let hardware = HardwareControls::of(&self.state);
        let registers = Registers {
            smep: hardware.cr4 & cr4::SMEP != 0,
            smap: hardware.cr4 & cr4::SMAP != 0,
            ac: self.state.may_override_smap(),
        };
        let reached = self.processor.access(&arena(), self.root, registers, gva, access);
        if reached.is_ok() {
            self.used.push(gva);
        }
        reached
    }

    /// Whether a page fault reaches the guest without an exit.
    pub fn delivers(&self, world: &World, code: u32) -> bool {
        world.filters_faults
            && exiting_faults(self.state.cr4, self.state.efer, world.physical_bits)
                .is_some_and(|bits| code & bits == 0)
    }

    /// Fails if the architecture does not allow this outcome of an access here, with the changes since the last flush by this VCPU,
    /// or `since` (where the engine has looked at the tables itself).
    pub fn judge(
        &self,
        world: &World,
        probe: usize,
        access: Access,
        outcome: Outcome,
        since: Option<usize>,
    ) -> Result<(), Fault> {
        let gva = self.probes[probe].gva;
        let p2m = world.p2m.borrow();
        if let Outcome::Done(hpa) = outcome
            && !world.belongs(&p2m, hpa, access, self.tree)
        {
            return Err(format!(
                "{gva} {access:?} leads to {hpa}, which is not the guest's or closed in {:?}",
                self.tree
            ));
        }
        // What the engine has read it may have read before any change that came meanwhile.
        let absent_from = since.unwrap_or_else(|| world.unfinished_from());
        let Some(since) = since.or(self.probes[probe].since) else { return Ok(()) };
        let changes = world.changes.borrow();
        let absent_from = absent_from.saturating_sub(since);
        let may_be = (&changes[since..], absent_from);
        if is_possible(world.walked(&p2m), may_be, &self.state, gva, access, outcome) {
            return Ok(());
        }
        let now = peek(&self.state, &world.walked(&p2m), gva, access);
        let (count, state) = (changes.len() - since, &self.state);
        Err(format!(
            "VCPU {}: {gva} {access:?}: {outcome:x?}; now it is {now:x?}, {count} changes since the last flush; {state:x?}",
            world.served.get()
        ))
    }

    /// A probe, from this one on, through which the processor remembers that it can write to a table.
    pub fn writer(&self, world: &World, first: usize) -> Option<usize> {
        let kind = self.state.kind();
        let reaches_table = |&n: &usize| {
            let to = self.processor.remembered_write(linear(kind, self.probes[n].gva));
            to.is_some_and(|hpa| world.table_at(hpa).is_some())
        };
        (first..self.probes.len()).chain(0..first).find(reaches_table)
    }

    /// Where to write in the page at `hpa`: if it is a table, most often to an entry through which a probe leads.
    pub fn aim(&self, world: &World, hpa: Hpa) -> Hpa {
        let Some(table) = world.table_at(hpa).filter(|_| !world.once_in(4)) else { return hpa };
        let all = self.probes.iter().flat_map(|probe| self.path(world, probe.gva));
        let places: Vec<Gpa> = all.map(|(at, ..)| at).filter(|at| at.frame() == table.frame()).collect();
        let place = places.get(world.draw() as usize % places.len().max(1));
        place.map_or(hpa, |at| Hpa(hpa.0 & !(PAGE_SIZE - 1) | at.offset()))
    }

    /// The entries on the way now, from the root.
    pub fn path(&self, world: &World, gva: Gva) -> Vec<(Gpa, u64, bool, u8)> {
        let p2m = world.p2m.borrow();
        let mut path = Vec::new();
        let _any = walk(&self.state, &world.walked(&p2m), gva, Access::READ, false, |step| {
            // Pointers in registers are no entries.
            if self.state.kind() != PagingKind::Pae || step.level != 3 {
                path.push((step.at, step.raw, step.leaf, step.level));
            }
        });
        path
    }

    /// Whether nothing on the way of an address has changed since the VCPU flushed it.
    fn is_fresh(&self, world: &World, probe: usize) -> bool {
        let Some(since) = self.probes[probe].since else { return false };
        let changes = world.changes.borrow();
        let path = self.path(world, self.probes[probe].gva);
        !path.iter().any(|(at, ..)| changes[since..].iter().any(|(word, _)| *word == at.0 & !7))
    }

    /// Fails if accessed and dirty bits are missing after an access that went through.
    pub fn check_bits(&self, world: &World, probe: usize, access: Access) -> Result<(), Fault> {
        if !self.is_fresh(world, probe) {
            return Ok(());
        }
        for (at, raw, leaf, level) in self.path(world, self.probes[probe].gva) {
            if world.p2m.borrow().promised(at).writable().is_none() {
                // There they cannot be set.
                continue;
            }
            let wanted = if leaf && access.write { 0x60 } else { 0x20 };
            if raw & wanted != wanted {
                let gva = self.probes[probe].gva;
                return Err(format!("{gva} {access:?}: the entry at {at} (level {level}) is {raw:#x}"));
            }
        }
        Ok(())
    }

    /// An access has gone through.
    pub fn accessed(&mut self, world: &World, probe: usize) {
        let gva = self.probes[probe].gva;
        if self.state.cr4 & cr4::PGE == 0 {
            return;
        }
        let fresh = self.is_fresh(world, probe);
        let kind = self.state.kind();
        let found = {
            let p2m = world.p2m.borrow();
            peek(&self.open(), &world.walked(&p2m), gva, Access::READ).ok().filter(|_| fresh)
        };
        let at = linear(kind, gva).0;
        for probe in &mut self.probes {
            let other = linear(kind, probe.gva).0;
            probe.global |=
                found.is_none_or(|found| found.global && at >> found.page_shift == other >> found.page_shift);
        }
    }

    /// The registers with which every page can be read.
    fn open(&self) -> PagingState {
        PagingState { cr4: self.state.cr4 & !(cr4::SMAP | cr4::SMEP), cpl: 0, ..self.state }
    }

    /// The guest has flushed the address of a probe here: the page in which it is, whatever its size.
    pub fn flushed(&mut self, world: &World, probe: usize) {
        let kind = self.state.kind();
        let at = linear(kind, self.probes[probe].gva).0;
        let changes = world.changes.borrow();
        let p2m = world.p2m.borrow();
        for n in 0..self.probes.len() {
            let Some(since) = self.probes[n].since else { continue };
            let gva = linear(kind, self.probes[n].gva).0;
            // What else could be remembered there must be a page in which the flushed address is, too.
            let is_left = |found: Result<Translation, WalkError>, is_now: bool| {
                !is_now && found.map_or(true, |found| gva >> found.page_shift != at >> found.page_shift)
            };
            let near = gva >> 30 == at >> 30;
            let open = self.open();
            if n == probe
                || near
                    && !any_mixture(
                        world.walked(&p2m),
                        (&changes[since..], 0),
                        &open,
                        self.probes[n].gva,
                        Access::READ,
                        is_left,
                    )
            {
                self.probes[n].since = Some(world.flush_point.get());
            }
        }
    }

    /// The guest takes a page fault at a probe: what the processor remembered of the address is gone.
    pub fn faulted(&mut self, world: &World, probe: usize) {
        self.probes[probe].faulted = Some(world.changes.borrow().len());
    }

    /// The VCPU has changed to another set of tables, where it must not find what its faults have flushed. (On the same set a fault
    /// may leave an entry that allows another kind of access than the one that failed.)
    pub fn changed_tree(&mut self) {
        self.has_faulted = false;
        for probe in &mut self.probes {
            let faulted = probe.faulted.take();
            probe.since = probe.since.map(|since| faulted.map_or(since, |at| since.max(at)));
        }
    }

    /// Everything has been flushed here, or all but global translations; `same`: under the same root.
    pub fn flushed_all(&mut self, world: &World, global: bool, same: bool) {
        let now = world.flush_point.get();
        for probe in &mut self.probes {
            if global || !probe.global {
                (probe.since, probe.global) = (Some(now), false);
            } else if !same {
                probe.since = None;
            }
        }
    }
}
