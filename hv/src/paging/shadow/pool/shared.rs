//! What several VCPUs that use the pages mean for the pool: more than one root, and flushes that others must do.

use super::super::TlbFlush;
use super::super::shootdown::Shootdown;
use super::*;
use crate::arch::addr::Gva;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// The other VCPUs, if there are any.
pub(super) struct Shared {
    shootdown: Option<Arc<dyn Shootdown>>,
    /// The roots in use by VCPU; that of the current VCPU is kept apart.
    roots: Vec<Option<PageId>>,
    current_vcpu: u32,
    /// Pages that are free after the next shootdown: other VCPUs may still walk them.
    pending_free: Stack,
    /// VCPUs, a bit for each, that may remember a part of a page of the guest's to which nothing leads any more: their next INVLPG
    /// flushes everything, because the guest flushes the page by any address in it.
    split: u64,
    /// Rights have been taken away that the others may remember.
    must_shoot_down: bool,
    /// Shootdowns so far.
    shootdowns: u64,
}

impl Shared {
    /// No others.
    pub(super) const fn new() -> Shared {
        Shared {
            shootdown: None,
            roots: Vec::new(),
            current_vcpu: 0,
            pending_free: Stack::EMPTY,
            split: 0,
            must_shoot_down: false,
            shootdowns: 0,
        }
    }

    /// Whether there are others.
    #[inline(always)]
    pub(super) fn has_others(&self) -> bool {
        self.shootdown.is_some()
    }

    /// Pages that are not free yet.
    pub(super) fn pending_free_pages(&self) -> usize {
        self.pending_free.len
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("roots", &self.roots)
            .field("pending_free", &self.pending_free.len)
            .finish()
    }
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Several VCPUs use the pages.
    pub(in super::super) fn share(&mut self, vcpus: usize, others: Arc<dyn Shootdown>) {
        self.shared.roots.resize(vcpus, None);
        self.shared.shootdown = Some(others);
    }

    /// Another VCPU becomes the current one.
    pub(in super::super) fn change_vcpu(&mut self, from: u32, to: u32) {
        if let Some(root) = self.shared.roots.get_mut(from as usize) {
            *root = self.root;
        }
        self.root = self.shared.roots.get(to as usize).copied().flatten();
        self.shared.current_vcpu = to;
    }

    /// The root in use changes.
    pub(in super::super) fn set_root(&mut self, root: Option<PageId>) {
        self.root = root;
    }

    /// Whether a page is the root of a VCPU.
    #[inline]
    pub(in super::super) fn is_root(&self, id: PageId) -> bool {
        self.root == Some(id) || self.shared.roots.contains(&Some(id))
    }

    /// Whether a page is the root of another VCPU than the current one.
    pub(in super::super) fn is_root_of_others(&self, id: PageId) -> bool {
        let current = self.shared.current_vcpu as usize;
        self.shared.roots.iter().enumerate().any(|(vcpu, &root)| vcpu != current && root == Some(id))
    }

    /// The root that the current VCPU had when it became the current one is of no interest any more.
    pub(in super::super) fn forget_former_root(&mut self) {
        if let Some(root) = self.shared.roots.get_mut(self.shared.current_vcpu as usize) {
            *root = None;
        }
    }

    /// The root in use of a VCPU.
    #[inline(always)]
    pub(in super::super) fn root_of(&self, vcpu: u32) -> Option<PageId> {
        match vcpu == self.shared.current_vcpu {
            true => self.root,
            false => self.shared.roots.get(vcpu as usize).copied().flatten(),
        }
    }

    /// The roots in use.
    pub(in super::super) fn roots(&self) -> impl Iterator<Item = PageId> {
        self.root.into_iter().chain(self.shared.roots.iter().flatten().copied())
    }

    /// Whether a VCPU must look for its root again: the page is gone, or stood for a CR3 without memory.
    pub(in super::super) fn lost_roots(&self) -> bool {
        self.roots().any(|root| {
            let page = self.page(root);
            !page.is_in_use() || page.key.is_direct()
        })
    }

    /// All roots are gone.
    pub(in super::super) fn forget_roots(&mut self) {
        self.root = None;
        self.shared.roots.fill(None);
    }

    /// Everything must be flushed, by all.
    pub(in super::super) fn owe_all(&mut self) {
        self.owed = TlbFlush::All;
        self.shared.must_shoot_down = true;
    }

    /// The current VCPU's processor must flush everything.
    pub(in super::super) fn owe_own_flush(&mut self) {
        self.owed = TlbFlush::All;
    }

    /// A page is released that processors may still walk: this one until it has flushed, the others until the next shootdown.
    pub(super) fn retire(&mut self, id: PageId) {
        self.owed = TlbFlush::All;
        if self.shared.shootdown.is_some() {
            self.shared.pending_free.push(&mut self.pages, id);
        } else {
            self.free.push(&mut self.pages, id);
        }
    }

    /// Released pages become free. The current VCPU's processor may have them cached like the others.
    pub(super) fn flush_pending_free(&mut self) {
        if self.shared.pending_free.len > 0 {
            self.owed = TlbFlush::All;
            self.shoot_down(false);
        }
    }

    /// Pages to evict when one is needed: with other VCPUs, several for one shootdown.
    pub(super) fn at_once(&self) -> usize {
        if self.shared.shootdown.is_some() { (self.frames.tables / 32).clamp(1, 16) } else { 1 }
    }

    /// What shadows a page of the guest's in several parts is not to be found any more, and may be remembered: the guest will
    /// flush the page by one address. With others each finds that out at its next INVLPG.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn flush_split(&mut self) {
        match self.shared.shootdown {
            Some(_) => self.shared.split = u64::MAX,
            None => self.owed = TlbFlush::All,
        }
    }

    /// What INVLPG flushes.
    pub(in super::super) fn flush_of_page(&self, gva: Gva) -> TlbFlush {
        let all = self.shared.split >> (self.shared.current_vcpu & 63) & 1 != 0;
        if all { TlbFlush::All } else { TlbFlush::Page(gva) }
    }

    /// What follows counts on it that rights have been taken away.
    pub(super) fn count_on_protection(&mut self) {
        if self.shared.must_shoot_down && self.shared.shootdown.is_some() {
            // They may have been taken away on behalf of another VCPU.
            self.owed = TlbFlush::All;
            self.shoot_down(false);
        }
    }

    /// Has the other VCPUs flush everything.
    #[cold]
    pub(in super::super) fn shoot_down(&mut self, reload: bool) {
        if let Some(others) = &self.shared.shootdown {
            others.request(reload);
            self.stale = 0;
            while let Some(id) = self.shared.pending_free.pop(&self.pages) {
                self.free.push(&mut self.pages, id);
            }
            // The current VCPU does its own flush first.
            self.shared.split = 0;
            self.shared.must_shoot_down = false;
            self.shared.shootdowns += 1;
        }
    }

    /// The processor flushes everything, because of what was done to the tables, or because the guest wants it.
    #[inline(always)]
    pub(super) fn flushes_all(&mut self) {
        if self.shared.shootdown.is_none() {
            self.stale = 0;
            return;
        }
        self.shared.split &= !(1 << (self.shared.current_vcpu & 63));
    }

    /// Shootdowns so far.
    pub(in super::super) fn shootdowns(&self) -> u64 {
        self.shared.shootdowns
    }
}
