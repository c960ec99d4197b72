//! Shadow pages that are kept while the guest runs on nested tables, where it writes its own tables unseen.
//!
//! The nested tables' dirty bits say which guest tables have been written since they were cleared
//! ([`start_dirty_log`](crate::paging::nested_trees::NestedTrees::start_dirty_log)). On the way back only these are compared, and
//! by their contents: an AMD processor sets the dirty bit of each table that it walks. Writes by the hypervisor for the guest are
//! reported in either mode ([`Shadow::written`]), and so are changes of the P2m ([`Shadow::apply`]).
//!
//! A table is compared as at a flush of everything by the guest: entries of level 1 by what they were made from; links further up
//! stay where the guest's entry leads to the same table with the same rights. Parts of large pages are linked again by faults.
//!
//! Upper tables come first, so that tables of level 1 to which nothing leads any more are not compared. These have most of the
//! entries, and an AMD processor has marked all that it has walked: beyond [`Tuning::compared`](super::Tuning::compared) entries the links
//! to them are cut, and each is compared when a fault [links it again](Shadow::page). So the time of a change is bounded by the
//! number of pages, and not by that of their entries; pages that are not used any more cost nothing further.

use super::pool::{Page, PageId, is_stale};
use super::role::Key;
use super::root::Recent;
use super::shootdown::View;
use super::{Reload, Shadow, TlbFlush};
use crate::arch::addr::{Gfn, Gpa};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::x86::{ACCESSED, ADDRESS, GLOBAL, LARGE, NO_EXECUTE, PRESENT};
use crate::paging::format::{PteFormat, reserved_address_bits};
use crate::paging::p2m::P2m;

/// Bits 62:52, which PAE paging reserves in entries of levels 1 and 2, and the others ignore.
const HIGH: u64 = 0x7ff0_0000_0000_0000;

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Where the guest's tables are that shadow pages follow; a table may come more than once.
    pub fn tables(&self) -> impl Iterator<Item = Gfn> + Clone {
        let pages = (0..self.pool.end()).map(|id| self.pool.page(id));
        pages.filter(|page| page.is_in_use() && page.key.is_table()).map(|page| page.gfn)
    }

    /// The guest comes back from nested tables, on which all its VCPUs ran; it has a processor with `physical_bits` bits of
    /// physical addresses. `is_written`: whether a page of its memory may have been written since.
    ///
    /// Every VCPU must flush everything and load its root before it goes on.
    pub fn resume(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        physical_bits: u8,
        is_written: impl Fn(Gfn) -> bool,
    ) -> (Reload, TlbFlush) {
        self.begin();
        self.recent = Recent::default();
        self.views.iter_mut().for_each(View::forget_roots);
        self.pool.forget_roots();
        self.dying = None;
        // Tables that the guest writes itself, and could have written before.
        self.resync_all(memory, |_| None);
        let may_differ = |page: &Page, is_upper: bool| {
            let is_one = page.is_in_use() && page.key.is_table() && (page.key.level() > 1) == is_upper;
            is_one && !page.unsync && is_written(page.gfn)
        };
        for id in 0..self.pool.end() {
            if may_differ(self.pool.page(id), true) {
                // The processor would deliver faults there without an exit, and the guest may have made the entries present.
                self.pool.forget_all_absent(id);
                self.compare_links(p2m, memory, physical_bits, id);
            }
        }
        self.drop_unlinked();
        let mut rest = self.tuning.compared;
        for id in 0..self.pool.end() {
            if may_differ(self.pool.page(id), false) {
                self.pool.forget_all_absent(id);
                let entries = self.pool.page(id).count_present();
                if self.pool.page(id).is_linked() && entries <= rest {
                    rest -= entries;
                    self.resync_page(memory, id);
                } else {
                    self.defer(id);
                }
            }
        }
        // Faults find their pages again.
        self.pool.forget_paths();
        (Reload, self.pool.take_owed_and_all())
    }

    /// Leaves a page of level 1 to be compared when it is linked next. Nothing leads to it until then.
    fn defer(&mut self, id: PageId) {
        self.pool.unlink(id);
        self.pool.page_mut(id).deferred = true;
        self.statistics.deferred += 1;
    }

    /// Drops the entries of a page above level 1 that say something else than the guest's entries say now.
    fn compare_links(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        physical_bits: u8,
        id: PageId,
    ) {
        let key = self.pool.page(id).key;
        // Bits that may be reserved: a use of one of them fills the entry again. With 32-bit entries there is only PS.
        let global = if key.level() > 2 { GLOBAL } else { 0 };
        let unusual = LARGE | NO_EXECUTE | HIGH | reserved_address_bits(physical_bits) | global;
        self.drop_changed(memory, id, |shadow, key, now, index, child| {
            const USED: u64 = PRESENT | ACCESSED;
            now & (USED | unusual) == USED && shadow.leads_to(p2m, key, now, index, child)
        });
    }

    /// Drops the entries of a page above level 1 that the guest's entries do not say any more: leaves by what they were made from,
    /// and a link to a page unless it `holds` for the guest's entry with this index.
    pub(super) fn drop_changed(
        &mut self,
        memory: &impl GuestMemory,
        id: PageId,
        holds: impl Fn(&Self, Key, u64, usize, PageId) -> bool,
    ) {
        let (key, base) = (self.pool.page(id).key, self.pool.page(id).gfn.base().0);
        let mut from = 0;
        while let Some(index) = self.pool.page(id).next_present(from) {
            from = index + 1;
            let now = memory.read_entry(Gpa(base + key.entry_offset(index)), key.entry_bytes());
            let stays = match (now, self.pool.child(id, index)) {
                (Err(_), _) => false,
                (Ok(now), None) => !is_stale(self.pool.guest_pte(id, index), now),
                (Ok(now), Some(child)) => holds(self, key, now, index, child),
            };
            if !stays {
                self.statistics.resynced_entries += 1;
                self.unlink(id, index);
            }
        }
    }

    /// Whether the guest's entry `now` leads to the table that a shadow page follows, with the same rights.
    fn leads_to(&self, p2m: &P2m<impl TableMemory>, key: Key, now: u64, index: usize, child: PageId) -> bool {
        let to = p2m.peek(Gpa(now & ADDRESS)).readable();
        key.is_plain_table()
            && to.is_some_and(|to| self.pool.page(child).key == key.below(now, index, to.frame()))
    }
}

#[cfg(test)]
mod tests;
