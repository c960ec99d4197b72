//! Samples of accesses while VCPUs run on: the bits of links, by which most leaves are passed over, say at least what those of leaves say.
//!
//! What must hold when a sample begins: each link to a page of level 1 that a processor has walked through since the sample before is
//! accessed, and so its leaves are looked at. A processor that keeps a pointer to such a page over a sample sets the bit of the leaf and not that of
//! the link.

use std::collections::BTreeSet;

use super::world::arena;
use super::{Fault, Several};
use crate::arch::Access;
use crate::arch::addr::{Gva, Hfn, Hpa};
use crate::mem::table_memory::TableMemory;
use crate::paging::format::x86::{ACCESSED, ADDRESS, LARGE, PRESENT};
use crate::paging::model::Modelled;
use crate::paging::random::Random;
use crate::paging::shadow::TlbFlush;
use crate::paging::shadow::hardware::RESERVED;
use crate::paging::shadow::oracle::twins::Omits;

/// The entries of the levels 2 and 1 on the way of an address from a root of four levels; `None`: none or a large one, or one that was used
/// has become an entry whose faults are told by its reserved bit.
fn last_entries(root: Hfn, gva: Gva) -> Option<(u64, u64)> {
    let (mut table, mut link) = (root, 0);
    for level in (2..=4).rev() {
        link = arena().load(table, (gva.0 >> (12 + 9 * (level - 1)) & 511) as usize);
        if link & PRESENT == 0 || link & (LARGE | RESERVED) != 0 {
            return None;
        }
        table = Hpa(link & ADDRESS).frame();
    }
    Some((link, arena().load(table, (gva.0 >> 12 & 511) as usize)))
}

impl<F: Modelled> Several<F> {
    /// VCPUs use an address, before a sample and after it, and another sample follows: what a processor has kept over the first one is missed by
    /// the second.
    pub(super) fn sample_twice(&mut self, v: usize, probe: usize, random: &mut Random) -> Result<(), Fault> {
        let users: Vec<usize> = (0..self.world.cpus.len()).filter(|_| !random.once_in(4)).collect();
        for _ in 0..2 {
            for &user in &users {
                self.enter(user);
                self.access(user, probe, Access::READ)?;
            }
            self.enter(v);
            self.sample(v)?;
        }
        Ok(())
    }

    /// Whether the root that a VCPU has loaded is still what the engine has for it: if not, it is told to leave these tables, and what it uses
    /// in them meanwhile is in no sample.
    fn has_live_root(&self, v: usize) -> bool {
        let pool = &self.shadow.pool;
        let root = pool.root_of(v as u32).map(|id| pool.page(id));
        root.is_some_and(|page| page.is_in_use() && page.frame == self.world.cpus[v].borrow().root.frame)
    }

    /// Takes a sample for a VCPU.
    fn sample(&mut self, v: usize) -> Result<(), Fault> {
        let world = self.world.clone();
        let mut due = Vec::new();
        for (w, cpu) in world.cpus.iter().enumerate() {
            let is_live = self.has_live_root(w);
            let mut cpu = cpu.borrow_mut();
            // With agile paging some links lead to the guest's own tables.
            if self.agile.is_some() || !cpu.root.long || !is_live {
                cpu.used.clear();
            }
            for gva in core::mem::take(&mut cpu.used) {
                let Some((link, leaf)) = last_entries(cpu.root.frame, gva) else { continue };
                if link & ACCESSED == 0 {
                    return Err(format!(
                        "{gva} was used, and the link on its way is {link:#x}, its leaf {leaf:#x}"
                    ));
                }
                if leaf & PRESENT != 0 && leaf & ACCESSED != 0 {
                    due.push((gva, Hpa(leaf & ADDRESS)));
                }
            }
        }
        let omits = world.omits.get();
        let most = 1 << (world.random.borrow_mut().draw() % 14);
        let missed = self.engine(v, |shadow, _, _, _| {
            // Numbers begin again: what older samples have found, and was not asked for, is forgotten.
            let mut part = shadow.collect_sample(1, true, most);
            while !part.is_complete {
                part = shadow.collect_sample(1, false, most);
            }
            // A frame may have been used at several addresses.
            let frames: BTreeSet<Hfn> = due.iter().map(|(_, to)| to.frame()).collect();
            let missed: Vec<Hfn> =
                frames.into_iter().filter(|frame| shadow.take_used(*frame, 1) == 0).collect();
            let flush = if omits == Omits::SampleFlush { TlbFlush::None } else { shadow.flush_accessed() };
            (missed, flush)
        });
        // What others have used before they have flushed may be told of later.
        world.cpus.iter().for_each(|cpu| cpu.borrow_mut().used.clear());
        let missed = due.iter().find(|(_, to)| missed.contains(&to.frame()));
        missed.map_or(Ok(()), |(gva, to)| Err(format!("a sample has missed {gva}, which leads to {to}")))
    }
}
