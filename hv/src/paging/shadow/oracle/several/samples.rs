//! Samples of accesses while VCPUs run on: the bits of links, by which most leaves are passed over, say at least what those of leaves say.
//!
//! What must hold when a sample begins: each link to a page of level 1 that a processor has walked through since the sample before is
//! accessed, and so its leaves are looked at. A processor that keeps a pointer to such a page over a sample sets the bit of the leaf and not that of
//! the link.

use std::collections::BTreeSet;

use super::world::arena;
use super::{Fault, Several};
use crate::arch::addr::{Gva, Hfn, Hpa};
use crate::mem::table_memory::TableMemory;
use crate::paging::format::x86::{ACCESSED, ADDRESS, LARGE, PRESENT};
use crate::paging::model::Modelled;
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
    /// Takes a sample for a VCPU.
    pub(super) fn sample(&mut self, v: usize) -> Result<(), Fault> {
        let world = self.world.clone();
        let mut due = Vec::new();
        for cpu in &world.cpus {
            let mut cpu = cpu.borrow_mut();
            // With agile paging some links lead to the guest's own tables.
            if self.agile.is_some() || !cpu.root.long {
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
        let missed = self.engine(v, |shadow, _, _, _| {
            // Numbers begin again: what older samples have found, and was not asked for, is forgotten.
            let _is_flushed_in_any_case = shadow.begin_sample(1);
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
