//! The operations of a trace.

use super::layout::{self, TABLE_BYTES};
use super::{HOST, HOST_BYTES, Oracle, Outcome, stale, tables};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hpa, PAGE_SIZE};
use crate::arch::state::{cr4, rflags};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::HostAccess;
use crate::paging::engine::Engines;
use crate::paging::guest_walk::{PagingKind, PagingState, peek};
use crate::paging::model::Modelled;
use crate::paging::random::Random;
use crate::paging::range::Changed;
use crate::paging::shadow::oracle::op::Op;

impl<F: Modelled> Oracle<'_, F> {
    pub(super) fn perform(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Access { probe, access, random } => {
                let access = Access { user: access.user && self.state.cpl == 3, ..access };
                let gva = self.probes[probe].gva;
                if let Some((hpa, emulate)) = self.access(probe, gva, access)?
                    && access.write
                    && random & 1 == 0
                {
                    self.write_at(hpa, random, emulate);
                }
            }
            Op::Store { probe, depth, random } => {
                let path = &self.probes[probe].path;
                let at = match path.get(depth).or(path.last()) {
                    Some(&at) => at,
                    None => ((random >> 8) % TABLE_BYTES) & !7,
                };
                self.store_through(Gpa(at), random)?;
            }
            Op::Burst { probe, count, random } => {
                let Some(&last) = self.probes[probe].path.last() else { return Ok(()) };
                let mut random = Random(random);
                for _ in 0..count {
                    let page = last & !(PAGE_SIZE - 1);
                    // Often an entry that is in use.
                    let used: Vec<u64> =
                        self.probes.iter().filter_map(|probe| probe.path.last()).copied().collect();
                    let mut used = used.into_iter().filter(|at| at & !(PAGE_SIZE - 1) == page);
                    let at = used
                        .next_back()
                        .filter(|_| random.once_in(2))
                        .unwrap_or(page + random.draw() % 512 * 8);
                    self.store_through(Gpa(at), random.draw())?;
                }
            }
            Op::Remap { probe, random } => self.remap(probe, &mut Random(random))?,
            Op::Adopt { probe, random } => self.adopt(probe, &mut Random(random))?,
            Op::Dma { random } => self.dma(&mut Random(random)),
            Op::Invlpg { probe } => self.invlpg(probe),
            Op::FlushAll => self.flush_all(),
            Op::Cr3 { same, random } => {
                if !same {
                    self.state.cr3 = layout::cr3(&mut Random(random), self.state.kind());
                }
                self.load(false);
            }
            Op::Registers { random } => {
                let next = self.registers(&mut Random(random), self.state.kind());
                self.change_registers(next);
            }
            Op::Kind { kind, random } => {
                let kind = if self.changes_kind { kind } else { self.state.kind() };
                let mut random = Random(random);
                let next = self.registers(&mut random, kind);
                self.change_registers(PagingState { cr3: layout::cr3(&mut random, kind), ..next });
            }
            Op::Privilege { cpl, ac } => {
                self.state.cpl = cpl;
                self.state.rflags = if ac { rflags::AC } else { 0 };
            }
            Op::P2m { random } if self.pager.is_some() && random % 4 != 0 => {
                self.page_out(&mut Random(random))?
            }
            Op::Move { random } if self.pager.is_some() && random % 2 != 0 => {
                self.page_out(&mut Random(random))?
            }
            Op::P2m { random } if self.mover.is_some() && random % 2 != 0 => {
                self.migrate(&mut Random(random))?
            }
            Op::Move { random } if self.mover.is_some() && random % 4 != 0 => {
                self.migrate(&mut Random(random))?
            }
            Op::P2m { random } => self.change_p2m(&mut Random(random)),
            Op::Move { random } => self.move_memory(&mut Random(random))?,
            Op::Policy { random } => self.take_policy(&mut Random(random)),
            Op::Exclude { engine } => {
                let before = self.supported;
                self.supported = engine.map_or(Engines::ALL, |engine| Engines::ALL.without(engine));
                self.translation.publish(0, before, self.supported);
            }
        }
        self.exit();
        Ok(())
    }

    /// An exit: what the policy wants comes into force, if the VCPU can run on it.
    pub(super) fn exit(&mut self) {
        let _looked_at_in_any_case = self.translation.count_exit();
        let Some(to) = self.translation.target(self.supported) else { return };
        if self.translation.enforce(to) {
            self.log(|| format!("    {} tables", to.name()));
            self.machine.switch(&self.p2m, &self.state, to);
            self.pointers_changed = false;
            self.all_fresh();
        }
    }

    fn invlpg(&mut self, probe: usize) {
        self.machine.invlpg(&self.p2m, &self.state, self.probes[probe].gva);
        self.flushed(probe);
    }

    fn flush_all(&mut self) {
        self.machine.flush_all(&self.p2m);
        if !self.pointers_changed {
            self.all_fresh();
        }
    }

    fn remap(&mut self, probe: usize, random: &mut Random) -> Result<(), String> {
        // Often in the same page as the other one, if that is large.
        let near = probe ^ 1;
        for _ in 0..1 + random.draw() % 3 {
            let access = random.access(self.state.cpl);
            for n in [near, probe] {
                self.access(n, self.probes[n].gva, access)?;
            }
            let path = &self.probes[probe].path;
            let depth = if random.once_in(2) { random.draw() as usize % 4 } else { 3 };
            if let Some(&at) = path.get(depth).or(path.last()) {
                self.store_through(Gpa(at), random.draw())?;
            }
            match random.draw() % 8 {
                0 | 1 => self.load(false),
                2 => self.flush_all(),
                _ => self.invlpg(probe),
            }
            let again = if random.once_in(2) { access } else { random.access(self.state.cpl) };
            for n in [near, probe] {
                self.access(n, self.probes[n].gva, again)?;
            }
        }
        Ok(())
    }

    /// A page that was data becomes a table.
    fn adopt(&mut self, probe: usize, random: &mut Random) -> Result<(), String> {
        let access = Access { user: self.state.cpl == 3 && random.once_in(2), ..Access::WRITE };
        let Some((hpa, _)) = self.access(probe, self.probes[probe].gva, access)? else { return Ok(()) };
        let (Some(table), Some(&leaf)) = (self.table_at(hpa), self.probes[probe].path.last()) else {
            return Ok(());
        };
        self.store(Gpa(leaf), &[0; 8], true);
        let other = random.draw() as usize % self.probes.len();
        let path = &self.probes[other].path;
        let Some(&at) = path.get(path.len().saturating_sub(1 + random.draw() as usize % 2)) else {
            return Ok(());
        };
        let entry = (table.frame().base().0 | 0x67).to_le_bytes();
        self.store(Gpa(at), &entry, true);
        self.access(other, self.probes[other].gva, Access::READ)?;
        self.machine.check(&self.p2m, &self.state)
    }

    fn registers(&self, random: &mut Random, kind: PagingKind) -> PagingState {
        let PagingState { features, cr3, cpl, rflags, .. } = self.state;
        let state = random.state(kind);
        PagingState { features, cr3, cpl, rflags, pdptes: None, ..state }
    }

    /// Changes of these registers flush global translations too; changes of CR0.WP and CR4.SMAP nothing.
    fn change_registers(&mut self, next: PagingState) {
        let flushes = |state: &PagingState| {
            let large = if state.kind() == PagingKind::TwoLevel { cr4::PSE } else { 0 };
            (state.kind(), state.cr4 & (cr4::PGE | cr4::SMEP | large), state.no_execute())
        };
        let everything = flushes(&self.state) != flushes(&next);
        self.state = next;
        self.load(everything);
    }

    /// The guest has loaded CR3, or (`everything`) registers with which the processor flushes everything.
    pub(super) fn load(&mut self, everything: bool) {
        self.state.pdptes = (self.loads_pointers && self.state.kind() == PagingKind::Pae).then(|| {
            let memory = self.walked();
            let base = self.state.cr3 & 0xffff_ffe0;
            // The hypervisor lets the guest load only what is valid.
            core::array::from_fn(|n| memory.read_u64(Gpa(base + 8 * n as u64)).unwrap_or(0) & 0xffff_f019)
        });
        self.log(|| format!("    {:x?}", self.state));
        let flushed = self.machine.load(&self.p2m, &self.state, everything);
        self.pointers_changed = false;
        if everything || flushed {
            self.all_fresh();
        } else {
            self.non_global_fresh();
        }
    }

    /// The guest accesses the page of a probe. If that goes through: where it led, and whether the hypervisor makes the
    /// access.
    pub(super) fn access(
        &mut self,
        n: usize,
        gva: Gva,
        access: Access,
    ) -> Result<Option<(Hpa, bool)>, String> {
        let fresh = self.probes[n].fresh;
        let pointers = self.pointers();
        let page = self.page_at(gva);
        let expected = self.expected(gva, access);
        if let Some(hpa) = self.machine.code(gva, access)
            && fresh
            && expected != Outcome::Done(hpa)
        {
            return Err(format!("code at {gva} ({access:?}) is read at {hpa}, should be {expected:x?}"));
        }
        let (got, emulate) = self
            .machine
            .access(&self.p2m, &self.state, gva, access)
            .map_err(|what| format!("{gva} {access:?}: {what}"))?;
        if pointers != self.pointers() {
            // The walk set bits in page-directory pointers, which are entries of a table too. A second walk
            // sees the new entries.
            self.follow_tables();
            self.pointers_changed = true;
            self.none_fresh();
            return Ok(None);
        }
        self.log(|| {
            format!("    {gva}: {got:x?}, emulate: {emulate}, fresh: {fresh}, expected {expected:x?}")
        });
        if got != expected {
            let possible = match (got, self.probes[n].since) {
                _ if fresh || emulate => false,
                // Other faults are found by a walk of the tables as they are.
                (Outcome::PageFault(_), _) if !self.machine.delivered => false,
                (Outcome::Done(_) | Outcome::PageFault(_), None) => true,
                (Outcome::Done(_) | Outcome::PageFault(_), Some(since)) => {
                    let changes = &self.changes[since..];
                    stale::is_possible(self.walked(), (changes, usize::MAX), &self.state, gva, access, got)
                }
                _ => false,
            };
            if !possible {
                let fresh = if fresh { "fresh" } else { "not flushed" };
                return Err(format!(
                    "{gva} ({fresh}) {access:?}: {got:x?}, should be {expected:x?}; {:x?}",
                    self.state
                ));
            }
        }
        if !fresh {
            self.follow_tables();
        } else if let Some(what) = self.difference(&self.probes[n].path) {
            return Err(format!("{gva} {access:?}: {what}"));
        }
        let Outcome::Done(hpa) = got else { return Ok(None) };
        if !(HOST.0..HOST.0 + HOST_BYTES).contains(&hpa.0) && !self.is_paged_in(hpa) {
            return Err(format!("{gva} {access:?} leads to {hpa}, which is not the guest's"));
        }
        self.accessed(gva, page.filter(|_| fresh));
        Ok(Some((hpa, emulate)))
    }

    /// Whether one of these entries is another one for the machine than for the plain walker.
    fn difference(&self, path: &[u64]) -> Option<String> {
        path.iter().find_map(|&at| {
            let hpa = self.p2m.translate(Gpa(at)).readable()?;
            let (ours, theirs) = (self.software.load(hpa), self.machine.host.load(hpa));
            (ours != theirs).then(|| format!("the entry at {at:#x} is {theirs:#x}, should be {ours:#x}"))
        })
    }

    /// Compares all tables.
    pub(super) fn compare(&self) -> Result<(), String> {
        self.compare_paged()?;
        let (ours, theirs) = (tables(&self.software), tables(&self.machine.host));
        if ours == theirs {
            return Ok(());
        }
        let at = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs).unwrap_or(0);
        Err(format!("the byte at {at:#x} of the tables is {:#x}, should be {:#x}", theirs[at], ours[at]))
    }

    /// The guest changes what an access has reached, if it is a table.
    fn write_at(&mut self, hpa: Hpa, random: u64, emulate: bool) {
        let at = Hpa(hpa.0 & !7);
        if let Some(gpa) = self.table_at(at) {
            let value = layout::change(&mut Random(random), gpa.0, self.machine.host.load(at));
            self.store(gpa, &value.to_le_bytes(), emulate);
        }
    }

    /// The guest changes an entry through a mapping of its table; if there is none, a device does.
    pub(super) fn store_through(&mut self, at: Gpa, random: u64) -> Result<(), String> {
        let mut random = Random(random);
        let Some(hpa) = self.p2m.promised(at).writable() else { return Ok(()) };
        let first = random.draw() as usize % self.probes.len();
        let user = self.state.cpl == 3 && random.once_in(2);
        let access = Access { user, ..Access::WRITE };
        let count = self.probes.len();
        let through = (0..count).map(|n| (first + n) % count).find(|&n| {
            let found = peek(&self.state, &self.walked(), self.probes[n].gva, access);
            found.is_ok_and(|found| found.gpa.frame() == at.frame())
        });
        match through.filter(|_| !random.once_in(16)) {
            Some(n) => {
                let gva = Gva(self.probes[n].gva.0 & !(PAGE_SIZE - 1) | at.offset());
                if let Some((hpa, emulate)) = self.access(n, gva, access)? {
                    self.write_at(hpa, random.draw(), emulate);
                }
            }
            None => {
                let value = layout::change(&mut random, at.0, self.machine.host.load(Hpa(hpa.0 & !7)));
                self.store(Gpa(at.0 & !7), &value.to_le_bytes(), true);
            }
        }
        Ok(())
    }

    fn dma(&mut self, random: &mut Random) {
        let at = random.draw() % TABLE_BYTES;
        let len = match random.draw() % 8 {
            0 => PAGE_SIZE,
            1..5 => 1 + random.draw() % 8,
            _ => 8 * (1 + random.draw() % 32),
        };
        let zero = random.once_in(4);
        let bytes: Vec<u8> = (at..at + len)
            .map(|at| {
                let word = layout::word(&mut Random(random.0 ^ at >> 3), (at & !7) % TABLE_BYTES);
                if zero { 0 } else { word.to_le_bytes()[at as usize & 7] }
            })
            .collect();
        self.store(Gpa(at), &bytes, true);
    }

    fn change_p2m(&mut self, random: &mut Random) {
        let (range, changed) = layout::change_p2m(random, &mut self.p2m);
        self.log(|| format!("    {range:?}: {:x?}", self.p2m.translate(range.start)));
        self.p2m_changed(&[changed]);
    }

    pub(super) fn p2m_changed(&mut self, changes: &[Changed]) {
        if self.machine.changed(&self.p2m, &self.state, changes) {
            self.pointers_changed = false;
            self.all_fresh();
        } else {
            self.follow_all();
        }
    }

    /// As a migrator does it: the guest must not write, the contents are copied, the guest goes on in the other place.
    fn move_memory(&mut self, random: &mut Random) -> Result<(), String> {
        let moves = layout::moves(random, &self.p2m);
        let protected = moves.iter().map(|&(range, ..)| self.p2m.set_writable(range, false));
        let protected: Vec<_> = protected.map(|changed| changed.expect("the arena is large")).collect();
        self.p2m_changed(&protected);
        let probe = random.draw() as usize % self.probes.len();
        let access = random.access(self.state.cpl);
        self.access(probe, self.probes[probe].gva, access)?;
        for &(_, from, to) in &moves {
            [&self.software, &self.machine.host].iter().for_each(|host| layout::copy_page(host, from, to));
        }
        let moved = moves.iter().map(|&(range, _, to)| self.p2m.map_ram(range, to, true));
        let moved: Vec<_> = moved.map(|changed| changed.expect("the arena is large")).collect();
        self.log(|| format!("    moved: {moves:x?}"));
        self.p2m_changed(&moved);
        self.access(probe, self.probes[probe].gva, access)?;
        Ok(())
    }
}
