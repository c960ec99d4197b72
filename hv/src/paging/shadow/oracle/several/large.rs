//! Large pages that change: the guest flushes each by one address in it, whatever shadows it, or did until something else drove
//! that out.

use super::{Fault, Several};
use crate::arch::Access;
use crate::arch::addr::{Gpa, PAGE_SIZE};
use crate::arch::state::{cr0, cr4};
use crate::paging::guest_walk::{PagingKind, PagingState};
use crate::paging::model::Modelled;
use crate::paging::random::Random;

/// Probes that lie together, most of them in one large page.
const GROUP: usize = 4;

impl<F: Modelled> Several<F> {
    /// What kernels do: use a large page on every VCPU, change it, flush it on every VCPU by one address, use it again.
    pub(super) fn remap_large(&mut self, v: usize, probe: usize, random: &mut Random) -> Result<(), Fault> {
        let first = probe / GROUP * GROUP;
        let Some(way) = self.way_to_large(v, first) else { return Ok(()) };
        let (at, bytes) = *way.last().expect("it ends there");
        let narrow = bytes == 4;
        let mut page = large_page(random, narrow);
        let overridden = random.once_in(3);
        if overridden {
            // The user reads, and the supervisor writes to it without CR0.WP.
            page = page & !2 | 4;
        }
        self.write_told(v, at, &page.to_le_bytes()[..bytes]);
        let all = 0..self.world.cpus.len();
        for w in all.clone() {
            self.enter(w);
            let state = self.world.cpus[v].borrow().state;
            if overridden {
                self.change(
                    w,
                    PagingState { cr0: state.cr0 & !cr0::WP, cr4: state.cr4 & !cr4::SMAP, ..state },
                );
            }
            self.engine(w, |shadow, _, memory, _| ((), shadow.flush_all(memory)));
            self.world.cpus[w].borrow_mut().flushed_all(&self.world, true, true);
        }
        self.use_group(first, 4 * all.len(), random)?;
        self.enter(v);
        self.drive_out(v, &way, random)?;
        self.enter(v);
        let next = if random.once_in(2) { large_page(random, narrow) } else { table(random, narrow) };
        self.write_told(v, at, &next.to_le_bytes()[..bytes]);
        let flushed = first + random.draw() as usize % 3;
        for w in all.clone() {
            self.enter(w);
            self.invlpg(w, flushed);
        }
        self.use_group(first, 4 * all.len(), random)
    }

    /// Accesses to the addresses of a group, on any VCPU, from any ring.
    fn use_group(&mut self, first: usize, count: usize, random: &mut Random) -> Result<(), Fault> {
        for _ in 0..count {
            let w = random.draw() as usize % self.world.cpus.len();
            self.enter(w);
            let cpl = if random.once_in(2) { 3 } else { 0 };
            self.world.cpus[w].borrow_mut().state.cpl = cpl;
            let access = random.access(cpl);
            self.access(w, first + random.draw() as usize % GROUP, access)?;
        }
        Ok(())
    }

    /// The entries on the way to the one of level 2, and their sizes, if there is one.
    fn way_to_large(&self, v: usize, probe: usize) -> Option<Vec<(Gpa, usize)>> {
        let cpu = self.world.cpus[v].borrow();
        let bytes = if cpu.state.kind() == PagingKind::TwoLevel { 4 } else { 8 };
        let mut way = cpu.path(&self.world, cpu.probes[probe].gva);
        way.retain(|&(.., level)| level >= 2);
        let way: Vec<_> = way.into_iter().map(|(at, _, _, level)| (at, level)).collect();
        let ends = way.last().is_some_and(|&(_, level)| level == 2);
        ends.then(|| way.into_iter().map(|(at, _)| (at, bytes)).collect())
    }

    /// Something has the engine give up what shadows the page.
    fn drive_out(&mut self, v: usize, way: &[(Gpa, usize)], random: &mut Random) -> Result<(), Fault> {
        let (at, bytes) = way[random.draw() as usize % way.len()];
        match random.draw() % 6 {
            0 => {}
            1 | 2 => {
                // A table that is only written.
                let table = at.frame().base().0;
                for n in 1..20 {
                    let near = Gpa(table + (at.offset() + n * 8) % PAGE_SIZE);
                    self.engine(v, |shadow, p2m, memory, _| ((), shadow.written(p2m, memory, near, 8)));
                }
            }
            3 => {
                // The same value again.
                self.engine(v, |shadow, p2m, memory, _| ((), shadow.written(p2m, memory, at, bytes as u64)));
            }
            4 => {
                // Other addresses take its place.
                for _ in 0..12 {
                    let probes = self.world.cpus[v].borrow().probes.len();
                    self.access(v, random.draw() as usize % probes, Access::READ)?;
                }
            }
            _ => {
                let kind = self.world.cpus[v].borrow().state.kind();
                self.change_registers(v, kind, random);
            }
        }
        Ok(())
    }
}

/// An entry for a large page of RAM that is present.
fn large_page(random: &mut Random, narrow: bool) -> u64 {
    let mut entry = 0xa5 | random.draw() & 0x42;
    entry |= if random.once_in(3) { 0x100 } else { 0 };
    entry &= if random.once_in(4) { !4 } else { !0 };
    entry | if narrow { 0 } else { (random.draw() % 2) << 21 }
}

/// An entry for a table of level 1.
fn table(random: &mut Random, narrow: bool) -> u64 {
    let page = if narrow { 15 + random.draw() % 4 } else { 7 + random.draw() % 5 };
    page << 12 | 0x67
}
