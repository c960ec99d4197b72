//! Exits with agile paging: those that stand in for what the proposed processor does by itself are not charged.
//!
//! At #VMEXIT it is not known yet which kind an exit is; the next VMRUN says it. So all is counted as the host's, as it was
//! executed, and what was counted since the exit is noted a second time if the exit was a stand-in. The processor's own caches are
//! then as they were at the exit.

use abi::lab::{Counters, Side};

use super::Processor;
use crate::model::{
    context::{AgileEntry, Control, EXIT_INVLPG, EXIT_WRITE_CR3},
    hierarchy::SavedCaches,
    memory::Memory,
    walk::Agile,
    witness::Witness,
};

/// Entries whose bits a stand-in may set.
const MOST_DUE: usize = 64;

/// What is known of the last exit, and of the guest before it.
#[derive(Default)]
pub(super) struct LastExit {
    /// The host's counters before it, if agile paging was in force.
    before: Option<Counters>,
    /// What was in the caches then. What the hypervisor uses to stand in for the processor, the proposed one does not bring in.
    caches: SavedCaches,
    /// The bits that the host's stores since then have set in the place of a walker, by address.
    due: Vec<(u64, u8)>,
    /// Nested tables and their place in the nested TLB. A hypervisor may flush a guest by giving it another ASID; where that stands in
    /// for the guest's own flush, its nested translations stay.
    nested: Option<(u64, u16)>,
    /// The guest's registers, if agile paging was in force.
    pub(super) control: Option<Control>,
}

impl LastExit {
    /// The ASID that nested translations have.
    pub(super) fn nested_asid(&self, asid: u16, agile: &Option<Agile>) -> u16 {
        let kept = self.nested.filter(|(root, _)| agile.is_some_and(|agile| agile.nested_root == *root));
        kept.map_or(asid, |(_, asid)| asid)
    }
}

impl<M: Memory> Processor<M> {
    /// #VMEXIT; the host's counters are up to date, and do not have it yet.
    pub(super) fn note_exit(&mut self) {
        self.exit.due.clear();
        self.exit.control = self.agile.is_some().then_some(self.control);
        self.exit.before = self.agile.is_some().then_some(self.record.sides[Side::Host as usize]);
        if let (Some(hierarchy), Some(_)) = (&self.hierarchy, self.agile) {
            hierarchy.save(&mut self.exit.caches);
        }
    }

    /// The host stores to what may be a table.
    pub(super) fn note_store(&mut self, pa: u64) {
        if self.exit.before.is_some() && self.exit.due.len() < MOST_DUE {
            let bits = self.tables.due_bits(pa);
            if bits != 0 {
                self.exit.due.push((pa, bits));
            }
        }
    }

    /// VMRUN; the host's counters are up to date, and have it. The guest's counters take what it executes itself.
    pub(super) fn note_entry(&mut self, asid: u16, entry: Option<&AgileEntry>) {
        let before = self.exit.before.take();
        self.agile = entry.and_then(|entry| entry.agile);
        let stand_in = entry.and_then(|entry| entry.stand_in);
        let root = self.agile.map(|agile| agile.nested_root);
        let is_kept = stand_in.is_some() && self.exit.nested.map(|(root, _)| root) == root;
        if !is_kept {
            self.exit.nested = root.map(|root| (root, asid));
        }
        if self.agile.is_some() {
            self.watch_stand_ins(asid);
        }
        let (Some(code), Some(before)) = (stand_in, before) else { return };
        self.record.agile.stand_ins += 1;
        let since = self.record.sides[Side::Host as usize].since(&before);
        self.record.stand_ins.add(&since);
        if let Some(hierarchy) = &mut self.hierarchy {
            hierarchy.restore(&self.exit.caches);
        }
        for (pa, bits) in self.exit.due.drain(..) {
            self.tables.restore(pa, bits, &self.memory);
        }
        let guest = &mut self.record.sides[Side::Shadow as usize];
        match code {
            EXIT_WRITE_CR3 => {
                guest.cr3_writes += 1;
                guest.stall_cycles += self.costs.cr3_write;
            }
            EXIT_INVLPG => {
                guest.invlpgs += 1;
                guest.stall_cycles += self.costs.invlpg;
            }
            _ => {}
        }
    }

    /// On a checked machine stores and flushes are written down from now on.
    fn watch_stand_ins(&mut self, asid: u16) {
        if self.witness.is_none()
            && let Some(stores) = &self.stores
        {
            self.witness = Some(Witness::new(0, std::sync::Arc::clone(stores)));
        }
        if let Some(witness) = &mut self.witness {
            witness.enter(asid);
        }
    }
}
