//! A time on nested tables: all VCPUs leave the shadow tables, write their own tables unseen, and come back to the pages that
//! were kept (`vcpu::mmu::switch`).

use super::cpu::Place;
use super::{Fault, Several};
use crate::arch::addr::{Gfn, Gpa};
use crate::mem::host_access::HostAccess;
use crate::paging::guest_walk::walk;
use crate::paging::model::Modelled;
use crate::paging::random::Random;
use crate::paging::shadow::oracle::layout;
use crate::paging::shadow::oracle::twins::Omits;
use crate::paging::shadow::{Reload, TlbFlush};
use crate::vm::work;
use std::collections::BTreeSet;

/// Pages of the guest whose nested dirty bit is set.
type Written = BTreeSet<Gfn>;

impl<F: Modelled> Several<F> {
    /// VCPU `v` leads the VM to nested tables, and a VCPU leads it back.
    pub(super) fn spend_time_on_nested_tables(&mut self, v: usize, random: &mut Random) -> Result<(), Fault> {
        self.call_off_all_but(v);
        self.end_agile(v);
        self.engine(v, |shadow, _, _, _| (shadow.leave(), TlbFlush::All));
        {
            // No guest uses the shadow tables until it has looked for its root again.
            let mut cpu = self.world.cpus[v].borrow_mut();
            cpu.work |= work::MMU;
            cpu.place = Place::Host;
        }
        let mut written = Written::new();
        let count = self.world.cpus.len() as u64;
        let mut last = v;
        for _ in 0..random.draw() % 12 {
            last = (random.draw() % count) as usize;
            self.world.served.set(last);
            if random.once_in(2) {
                // Others may never come to run on the nested tables.
                self.engine(last, |shadow, _, _, _| (shadow.leave(), TlbFlush::All));
            }
            self.act_on_nested_tables(last, &mut written, random);
        }
        self.call_off_all_but(last);
        self.come_back(last, &written);
        self.check()
    }

    /// Every other VCPU leaves the guest, and looks for its tables before it goes on.
    pub(super) fn call_off_all_but(&mut self, v: usize) {
        self.world.served.set(v);
        let others = self.world.mailboxes.iter().filter(|mailbox| mailbox.id() as usize != v);
        others.for_each(|mailbox| mailbox.request(work::MMU));
        self.world.request(false);
    }

    /// All VCPUs are on shadow tables again.
    fn come_back(&mut self, v: usize, written: &Written) {
        let omits = self.world.omits.get();
        let is_written = |page| omits != Omits::Compare && written.contains(&page);
        let reload: Reload = self.engine(v, |shadow, p2m, memory, state| {
            shadow.resume(p2m, memory, state.features.physical_bits, is_written)
        });
        self.reload(v, Some(reload));
    }

    /// A VCPU does something that no shadow table sees. Its processor remembers nothing of it: the next entry flushes.
    fn act_on_nested_tables(&mut self, v: usize, written: &mut Written, random: &mut Random) {
        let probes = self.world.cpus[v].borrow().probes.len() as u64;
        let probe = (random.draw() % probes) as usize;
        // A flush of the guest's own stands for this moment.
        self.world.flush_point.set(self.world.changes.borrow().len());
        if self.phase_of() == Some(v) && random.once_in(4) {
            self.close_all();
            if random.once_in(4) {
                self.end_tables(v);
            }
        }
        match random.draw() % 8 {
            0..3 => {
                let at = Gpa(self.entry_on_way(v, probe, random).0 & !7);
                let value = self.world.p2m.borrow().translate(at).readable();
                let old = value.map_or(0, |hpa| self.world.host.load(hpa));
                let new = layout::change(random, at.0, old);
                if self.world.write(at, &new.to_le_bytes()) {
                    written.insert(at.frame());
                }
            }
            3..5 => {
                // Accessed and dirty bits.
                let cpu = self.world.cpus[v].borrow();
                let p2m = self.world.p2m.borrow();
                let access = random.access(cpu.state.cpl);
                let memory = self.world.walked(&p2m);
                let _any = walk(&cpu.state, &memory, cpu.probes[probe].gva, access, true, |step| {
                    written.insert(step.at.frame());
                });
            }
            5..7 => self.world.cpus[v].borrow_mut().flushed(&self.world, probe),
            _ => {
                {
                    let mut cpu = self.world.cpus[v].borrow_mut();
                    cpu.state.cr3 = layout::cr3(random, cpu.state.kind());
                }
                self.load_pointers(v);
                self.world.cpus[v].borrow_mut().flushed_all(&self.world, false, false);
            }
        }
    }
}
