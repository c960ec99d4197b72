//! What several VCPUs that use the pages mean for the pool: more than one root, and flushes that others must do.

use super::super::TlbFlush;
use super::super::others::Others;
use super::*;
use alloc::sync::Arc;
use core::fmt;

/// The other VCPUs, if there are any.
#[derive(Default)]
pub(super) struct Shared {
    others: Option<Arc<dyn Others>>,
    /// The roots in use by VCPU; that of the one that is served counts elsewhere.
    roots: Vec<Option<PageId>>,
    /// Pages have been freed that others may still walk.
    limbo: bool,
    /// What is owed concerns the others, too.
    must_tell: bool,
    /// How often the others were told.
    tells: u64,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("roots", &self.roots).field("limbo", &self.limbo).finish()
    }
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Several VCPUs use the pages.
    pub(in super::super) fn share(&mut self, vcpus: usize, others: Arc<dyn Others>) {
        self.shared.roots.resize(vcpus, None);
        self.shared.others = Some(others);
    }

    /// Another VCPU is served.
    pub(in super::super) fn change_vcpu(&mut self, from: u32, to: u32) {
        if let Some(root) = self.shared.roots.get_mut(from as usize) {
            *root = self.root;
        }
        self.root = self.shared.roots.get(to as usize).copied().flatten();
    }

    /// The root in use changes.
    pub(in super::super) fn set_root(&mut self, root: Option<PageId>) {
        self.root = root;
    }

    /// Whether a page is the root of a VCPU.
    #[inline]
    pub(super) fn is_root(&self, id: PageId) -> bool {
        self.root == Some(id) || self.shared.roots.contains(&Some(id))
    }

    /// All roots are gone.
    pub(super) fn forget_roots(&mut self) {
        self.root = None;
        self.shared.roots.fill(None);
    }

    /// Everything must be flushed, by all.
    pub(in super::super) fn owe_all(&mut self) {
        self.owed = TlbFlush::All;
        self.shared.must_tell = true;
    }

    /// A page is free that processors may still walk: this one until it has flushed, the others until that is used again.
    pub(super) fn leave_in_limbo(&mut self) {
        self.owed = TlbFlush::All;
        self.shared.limbo = self.shared.others.is_some();
    }

    /// Before a free page is used again. The processor that is served may have it cached like the others.
    #[inline(always)]
    pub(super) fn end_limbo(&mut self) {
        if self.shared.limbo {
            self.owed = TlbFlush::All;
            self.tell(false);
        }
    }

    /// Rights have been taken away, and what follows counts on it.
    pub(super) fn count_on_protection(&mut self) {
        if self.shared.must_tell && self.shared.others.is_some() {
            self.tell(false);
        }
    }

    /// Has the others forget everything.
    #[cold]
    pub(in super::super) fn tell(&mut self, reload: bool) {
        if let Some(others) = &self.shared.others {
            others.forget(reload);
            self.lingering = false;
            self.shared.limbo = false;
            self.shared.must_tell = false;
            self.shared.tells += 1;
        }
    }

    /// The processor flushes everything, because of what was done to the tables, or because the guest wants it.
    #[cold]
    pub(super) fn flushes_all(&mut self) {
        if self.shared.others.is_none() {
            self.lingering = false;
        } else if self.shared.must_tell {
            self.tell(false);
        }
    }

    /// How often other VCPUs had to forget.
    pub(in super::super) fn tells(&self) -> u64 {
        self.shared.tells
    }
}
