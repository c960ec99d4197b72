//! Shadow tables that several VCPUs use at a time.
//!
//! One VCPU after the other works on the tables, under the lock of the VM, except for what [several may do together](super::concurrent);
//! all of them may walk these tables meanwhile, and remember what they found. What the guest changes, the guest flushes, on each VCPU
//! by itself. What the engine takes away without the guest's knowledge must be forgotten by all before it counts on that:
//!
//! - the right to write to a table, before the table is read ([`super::pool::Pool::protect`]);
//! - a page, before it becomes another ([`super::pool::Pool::create`]);
//! - memory that was the guest's, before it is used otherwise ([`Shadow::apply`]);
//! - everything, when all pages are dropped.
//!
//! A split large page, which the guest flushes as one, needs no shootdown: each VCPU's next INVLPG flushes all of them
//! ([`super::pool::Pool::flush_split`]).

use super::Shadow;
use super::leaf_lookup::LeafCache;
use super::root::Recent;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::tree_key::TreeKey;
use alloc::sync::Arc;

/// The other processors that use the tables.
pub trait Shootdown: Send + Sync {
    /// Returns when no other VCPU of the VM will use what was cached or loaded before; `reload`: each asks for its root before it
    /// goes on.
    fn request(&self, reload: bool);

    /// Answers the others that wait for this processor to forget, while it waits itself. Before its VCPU goes on, it takes what
    /// they have left for it.
    fn service(&self);
}

/// What the engine knows of a VCPU that does not work on the tables at the moment.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    tree: TreeKey,
    recent: Recent,
    linear: u64,
    reserved: u64,
    table_reserved: [u64; 3],
    drops_seen: u64,
}

/// What a fault of a VCPU depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masks {
    pub(super) linear: u64,
    pub(super) reserved: u64,
}

impl View {
    /// Its registers may stand for other tables from now on.
    pub(super) fn forget_roots(&mut self) {
        self.recent = Recent::default();
    }

    /// It uses the first set of tables from now on.
    pub(super) fn select_first(&mut self) {
        self.tree = TreeKey::FIRST;
        self.forget_roots();
    }
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Several VCPUs use these tables.
    pub fn share(&mut self, vcpus: usize, others: Arc<dyn Shootdown>) {
        self.views.resize(vcpus, View { linear: u64::MAX, ..View::default() });
        self.leaf_caches.resize(vcpus, LeafCache::default());
        self.pool.share(vcpus, others);
        self.is_shared = true;
    }

    /// What follows concerns this VCPU.
    #[inline(always)]
    pub fn switch_vcpu(&mut self, vcpu: u32) {
        if self.is_shared {
            self.exchange_views(vcpu);
        }
    }

    #[cold]
    #[inline(never)]
    fn exchange_views(&mut self, vcpu: u32) {
        if self.current_vcpu == vcpu {
            return;
        }
        if let Some(view) = self.views.get_mut(self.current_vcpu as usize) {
            *view = View {
                tree: self.tree,
                recent: core::mem::take(&mut self.recent),
                linear: self.linear,
                reserved: self.reserved,
                table_reserved: self.table_reserved,
                drops_seen: self.drops_seen,
            };
        }
        if let Some(view) = self.views.get_mut(vcpu as usize) {
            self.pool.change_vcpu(self.current_vcpu, vcpu);
            self.tree = view.tree;
            self.recent = core::mem::take(&mut view.recent);
            self.linear = view.linear;
            self.reserved = view.reserved;
            self.table_reserved = view.table_reserved;
            self.drops_seen = view.drops_seen;
        }
        self.current_vcpu = vcpu;
    }

    /// What faults of a VCPU depend on, whichever the current one is.
    #[inline(always)]
    pub(super) fn masks(&self, vcpu: u32) -> Option<Masks> {
        let view = self.views.get(vcpu as usize)?;
        Some(match vcpu == self.current_vcpu {
            true => Masks { linear: self.linear, reserved: self.reserved },
            false => Masks { linear: view.linear, reserved: view.reserved },
        })
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
