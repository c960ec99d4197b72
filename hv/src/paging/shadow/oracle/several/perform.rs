//! What the VCPUs, devices and the hypervisor do.

use super::cpu::Place;
use super::{Fault, Several};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hpa, PAGE_SIZE};
use crate::arch::state::{cr4, rflags};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::HostAccess;
use crate::paging::guest_walk::{PagingKind, PagingState, peek, walk};
use crate::paging::model::Modelled;
use crate::paging::random::Random;
use crate::paging::shadow::oracle::layout::{self, TABLE_BYTES};
use crate::paging::shadow::{Reload, TlbFlush};
use crate::paging::tree_key::TreeKey;
use crate::vm::work;

impl<F: Modelled> Several<F> {
    /// The operation that a number stands for.
    pub(super) fn perform(&mut self, n: usize, number: u64) -> Result<(), Fault> {
        let mut random = Random(number);
        let v = random.draw() as usize % self.world.cpus.len();
        let probes = self.world.cpus[v].borrow().probes.len() as u64;
        let probe = (random.draw() % probes) as usize;
        let what = number % 64;
        self.world.log(|| format!("{n}: VCPU {v}, {what}, probe {probe}"));
        self.enter(v);
        match what {
            0..20 => {
                let cpl = self.world.cpus[v].borrow().state.cpl;
                let access = random.access(cpl);
                if let Some((hpa, emulate)) = self.access(v, probe, access)?
                    && access.write
                    && random.once_in(2)
                {
                    let hpa = self.world.cpus[v].borrow().aim(&self.world, hpa);
                    self.write_at(v, hpa, random.draw(), emulate);
                }
            }
            20..32 => {
                let at = self.entry_on_way(v, probe, &mut random);
                self.store(v, at, &mut random)?;
            }
            32..39 => self.remap(v, probe, &mut random)?,
            39..42 => self.remap_large(v, probe, &mut random)?,
            42..47 => self.invlpg(v, probe),
            47 => {
                self.engine(v, |shadow, _, memory, _| ((), shadow.flush_all(memory)));
                self.world.cpus[v].borrow_mut().flushed_all(&self.world, true, true);
            }
            48..52 => {
                let mut same = random.once_in(3);
                if !same {
                    let mut cpu = self.world.cpus[v].borrow_mut();
                    cpu.state.cr3 = layout::cr3(&mut random, cpu.state.kind());
                }
                if random.once_in(4) {
                    self.select(v, &mut random);
                    same = false;
                }
                self.load_registers(v, false, same);
            }
            52 => {
                let kind = self.world.cpus[v].borrow().state.kind();
                self.change_registers(v, kind, &mut random);
            }
            53 => {
                let kinds = [PagingKind::Off, PagingKind::TwoLevel, PagingKind::Pae, PagingKind::FourLevel];
                let kind = kinds[random.draw() as usize % 4];
                let now = self.world.cpus[v].borrow().state.kind();
                self.change_registers(v, if self.changes_kind { kind } else { now }, &mut random);
            }
            54 => {
                let mut cpu = self.world.cpus[v].borrow_mut();
                cpu.state.cpl = (random.draw() % 4) as u8;
                cpu.state.rflags = if random.once_in(2) { rflags::AC } else { 0 };
            }
            55 => self.adopt(v, probe, &mut random)?,
            56..58 => self.dma(v, &mut random),
            58 if random.once_in(2) => self.close_memory(v, &mut random),
            58 if self.world.pager.is_some() && !random.once_in(3) => self.page_out(v, &mut random)?,
            58 if self.world.mover.is_some() && random.once_in(2) => self.migrate(v, &mut random)?,
            58 => self.change_p2m(v, &mut random),
            59 if random.once_in(3) => self.change_engine(v, &mut random),
            59 if random.once_in(2) => self.spend_time_on_nested_tables(v, &mut random)?,
            59 => {
                // As on the way back from nested tables without dirty bits.
                let reload = self.engine(v, |shadow, _, _, _| shadow.drop_everything());
                self.reload(v, Some(reload));
            }
            60 if random.once_in(3) => self.follow(v, &mut random),
            60 => self.roam(v, probe, &mut random)?,
            61 if self.world.pager.is_some() && !random.once_in(3) => self.page_out(v, &mut random)?,
            61 if self.world.mover.is_some() && !random.once_in(3) => self.migrate(v, &mut random)?,
            61 => self.move_memory(v, &mut random)?,
            62 if !random.once_in(3) => self.change_phase(v, &mut random),
            62 => self.world.cpus[v].borrow_mut().place = Place::Descheduled,
            63 if random.once_in(2) => self.page_out(v, &mut random)?,
            63 if random.once_in(2) => self.sample_twice(v, probe, &mut random)?,
            _ => (0..4).for_each(|_| self.world.race()),
        }
        Ok(())
    }

    /// The VCPU begins to run.
    pub(super) fn begin(&mut self, v: usize) {
        self.world.served.set(v);
        self.load_registers(v, true, false);
    }

    /// The VCPU is about to run: it looks into its mailbox.
    pub(super) fn enter(&mut self, v: usize) {
        self.world.served.set(v);
        let reload = {
            let mut cpu = self.world.cpus[v].borrow_mut();
            if self.world.once_in(4) {
                cpu.processor.evict(self.world.draw() as usize);
            }
            cpu.collect(&self.world.mailboxes[v]);
            cpu.place = Place::Guest;
            cpu.work & (work::RELOAD | work::MMU) != 0
        };
        if reload {
            self.load(v);
        }
    }

    /// The guest's own flushes end here, as the engine has done them.
    pub(super) fn load_registers(&mut self, v: usize, everything: bool, same: bool) {
        let same = same & self.load_pointers(v);
        let everything = self.load(v) || everything;
        self.world.log(|| format!("    {:x?}", self.world.cpus[v].borrow().state));
        self.world.cpus[v].borrow_mut().flushed_all(&self.world, everything, same);
    }

    /// A load of CR3 loads the PDPTEs, too; returns whether they stay the same.
    pub(super) fn load_pointers(&self, v: usize) -> bool {
        let p2m = self.world.p2m.borrow();
        let mut cpu = self.world.cpus[v].borrow_mut();
        let base = cpu.state.cr3 & 0xffff_ffe0;
        let memory = self.world.walked(&p2m);
        // The hypervisor lets the guest load only what is valid.
        let pointer = |n| memory.read_u64(Gpa(base + 8 * n as u64)).unwrap_or(0) & 0xffff_f019;
        let pointers = (cpu.state.kind() == PagingKind::Pae).then(|| core::array::from_fn(pointer));
        core::mem::replace(&mut cpu.state.pdptes, pointers) == pointers
    }

    pub(super) fn change_registers(&mut self, v: usize, kind: PagingKind, random: &mut Random) {
        let now = self.world.cpus[v].borrow().state;
        let PagingState { features, cpl, rflags, .. } = now;
        let cr3 = if kind == now.kind() { now.cr3 } else { layout::cr3(random, kind) };
        let next = PagingState { features, cr3, cpl, rflags, pdptes: None, ..random.state(kind) };
        self.change(v, next);
    }

    /// Changes of these registers flush global translations, too.
    pub(super) fn change(&mut self, v: usize, next: PagingState) {
        let flushes = |state: &PagingState| {
            let large = if state.kind() == PagingKind::TwoLevel { cr4::PSE } else { 0 };
            (state.kind(), state.cr4 & (cr4::PGE | cr4::SMEP | large), state.no_execute())
        };
        let now = core::mem::replace(&mut self.world.cpus[v].borrow_mut().state, next);
        self.load_registers(v, flushes(&now) != flushes(&next), false);
    }

    /// The VCPU uses another set of tables.
    fn select(&mut self, v: usize, random: &mut Random) {
        let tree = TreeKey::new((random.draw() % 2) as u8, 0).expect("there are four");
        if self.phase_of() != Some(v) {
            self.use_tree(v, tree);
        }
    }

    /// The VCPU does as another one does: same registers.
    fn follow(&mut self, v: usize, random: &mut Random) {
        let other = random.draw() as usize % self.world.cpus.len();
        let state = self.world.cpus[other].borrow().state;
        self.change(v, state);
    }

    pub(super) fn reload(&mut self, v: usize, reload: Option<Reload>) {
        if reload.is_some() {
            self.load(v);
            self.world.cpus[v].borrow_mut().processor.flush(TlbFlush::All);
        }
    }

    pub(super) fn invlpg(&mut self, v: usize, probe: usize) {
        let gva = self.world.cpus[v].borrow().probes[probe].gva;
        self.engine(v, |shadow, _, memory, _| ((), shadow.invlpg(memory, gva)));
        self.world.cpus[v].borrow_mut().flushed(&self.world, probe);
    }

    /// What kernels do: use an address, change an entry, flush on every VCPU, use it again.
    fn remap(&mut self, v: usize, probe: usize, random: &mut Random) -> Result<(), Fault> {
        let cpl = self.world.cpus[v].borrow().state.cpl;
        let access = random.access(cpl);
        let near = probe ^ 1;
        let all = 0..self.world.cpus.len();
        // On the tables of two domains, in a part of cases; then what is flushed on one must be gone from the other.
        let roams = random.once_in(2);
        for w in all.clone() {
            if w != v && random.once_in(4) {
                continue;
            }
            self.enter(w);
            for probe in [near, probe] {
                self.access(w, probe, access)?;
            }
            if roams && let Some(before) = self.move_away(w) {
                self.access(w, probe, access)?;
                self.change_tree(w, before);
            }
        }
        self.enter(v);
        let at = self.entry_on_way(v, probe, random);
        self.store(v, at, random)?;
        let everything = random.once_in(4);
        for w in (v..self.world.cpus.len()).chain(0..v) {
            self.enter(w);
            let before = if roams { self.move_away(w) } else { None };
            if everything {
                self.load_registers(w, false, true);
            } else {
                self.invlpg(w, probe);
            }
            before.into_iter().for_each(|before| self.change_tree(w, before));
        }
        for w in all {
            self.enter(w);
            let cpl = self.world.cpus[w].borrow().state.cpl;
            let again = random.access(cpl);
            for probe in [near, probe] {
                self.access(w, probe, again)?;
            }
        }
        Ok(())
    }

    /// An entry on the way of a probe, or any other.
    pub(super) fn entry_on_way(&self, v: usize, probe: usize, random: &mut Random) -> Gpa {
        let cpu = self.world.cpus[v].borrow();
        let p2m = self.world.p2m.borrow();
        let mut path = Vec::new();
        let memory = self.world.walked(&p2m);
        let gva = cpu.probes[probe].gva;
        let _any = walk(&cpu.state, &memory, gva, Access::READ, false, |step| {
            path.push(Gpa(step.at.0 & !7));
        });
        let depth = if random.once_in(2) { random.draw() as usize % 4 } else { 3 };
        let at = path.get(depth).or(path.last());
        at.copied().unwrap_or(Gpa((random.draw() % TABLE_BYTES) & !7))
    }

    /// The guest changes an entry through a mapping of its table; if there is none, a device does.
    pub(super) fn store(&mut self, v: usize, at: Gpa, random: &mut Random) -> Result<(), Fault> {
        let Some(hpa) = self.world.p2m.borrow().promised(at).writable() else { return Ok(()) };
        let through = {
            let cpu = self.world.cpus[v].borrow();
            let p2m = self.world.p2m.borrow();
            let count = cpu.probes.len();
            let first = random.draw() as usize % count;
            (0..count).map(|n| (first + n) % count).find(|&n| {
                let found = peek(&cpu.state, &self.world.walked(&p2m), cpu.probes[n].gva, Access::WRITE);
                found.is_ok_and(|found| found.gpa.frame() == at.frame())
            })
        };
        match through.filter(|_| !random.once_in(16)) {
            Some(probe) => {
                if let Some((hpa, emulate)) = self.access(v, probe, Access::WRITE)? {
                    let hpa = Hpa(hpa.0 & !(PAGE_SIZE - 1) | at.offset());
                    self.write_at(v, hpa, random.draw(), emulate);
                }
            }
            None => {
                let value = layout::change(random, at.0, self.world.host.load(Hpa(hpa.0 & !7)));
                self.write_told(v, Gpa(at.0 & !7), &value.to_le_bytes());
            }
        }
        Ok(())
    }

    /// The guest changes what an access has reached, if it is a table.
    fn write_at(&mut self, v: usize, hpa: Hpa, random: u64, emulate: bool) {
        if let Some(gpa) = self.world.change_at(hpa, random)
            && emulate
        {
            self.world.race();
            self.engine(v, |shadow, p2m, memory, _| ((), shadow.written(p2m, memory, gpa, 8)));
        }
    }

    /// A write that is reported to the engine, as a device's or the emulator's is.
    pub(super) fn write_told(&mut self, v: usize, gpa: Gpa, bytes: &[u8]) {
        if self.world.write(gpa, bytes) {
            self.world.race();
            self.engine(v, |shadow, p2m, memory, _| {
                ((), shadow.written(p2m, memory, gpa, bytes.len() as u64))
            });
        }
    }

    fn dma(&mut self, v: usize, random: &mut Random) {
        let at = random.draw() % TABLE_BYTES;
        let len = if random.once_in(4) { PAGE_SIZE } else { 8 * (1 + random.draw() % 32) };
        let len = len.min(TABLE_BYTES - at);
        let zero = random.once_in(4);
        let byte = |at: u64| {
            let word = layout::word(&mut Random(random.0 ^ at >> 3), at & !7);
            if zero { 0 } else { word.to_le_bytes()[at as usize & 7] }
        };
        let bytes: Vec<u8> = (at..at + len).map(byte).collect();
        self.write_told(v, Gpa(at), &bytes);
    }

    /// A page that was written becomes a table.
    fn adopt(&mut self, v: usize, probe: usize, random: &mut Random) -> Result<(), Fault> {
        let all = self.world.cpus.len();
        let w = random.draw() as usize % all;
        for user in [v, w] {
            self.enter(user);
            self.access(user, probe, Access::WRITE)?;
        }
        let gva = self.world.cpus[w].borrow().probes[probe].gva;
        let Some(table) = self.leads_to(w, gva) else { return Ok(()) };
        self.enter(v);
        let leaf = self.entry_on_way(v, probe, &mut Random(0));
        self.write_told(v, leaf, &[0; 8]);
        let other = random.draw() as usize % self.world.cpus[v].borrow().probes.len();
        let at = self.entry_on_way(v, other, random);
        self.write_told(v, at, &(table.0 | 0x67).to_le_bytes());
        self.access(v, other, Access::READ)?;
        self.check()
    }

    /// The page of tables to which an address leads.
    fn leads_to(&self, v: usize, gva: Gva) -> Option<Gpa> {
        let cpu = self.world.cpus[v].borrow();
        let p2m = self.world.p2m.borrow();
        let found = peek(&cpu.state, &self.world.walked(&p2m), gva, Access::WRITE).ok()?;
        (found.gpa.0 < TABLE_BYTES).then(|| found.gpa.frame().base())
    }
}
