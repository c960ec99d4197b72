//! Pages of linear addresses that the guest must not write by itself, wherever they lead: *guarded* ones.
//!
//! There is one use of them: the TSS in use by a 32-bit guest, on a processor that executes hardware task switches although
//! they are intercepted (`virt::Virt::guarded_page`). Such a processor writes to the TSS before it does anything else, and so
//! faults first.
//!
//! To write-protect the frame behind the address would not do, because the guest can map another one there. Nor would it do to fill
//! leaves for the address without the right to write: shadow pages are found by the guest's tables that they follow, and the
//! same page may serve other addresses, through which the leaf could be filled. So the path to a guarded address has shadow
//! pages of its own ([`Role::guarded`](super::role::Role::guarded)), and in these the entry is never writable. Pages of
//! level 2 serve all guarded stretches of 1 GiB, if the guest's tables are the same; so addresses are compared level by
//! level, each level's index with that of any guarded page. That guards too much at worst.
//!
//! Only below page-directory pointers ([`Source::Top`](super::role::Source::Top)), that is, outside of long mode. What is
//! not plain takes the slow path of a fault, so that the fast one has nothing more to look at.

use super::role::Key;
use super::{Reload, Shadow, TlbFlush};
use crate::arch::addr::Gva;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use alloc::vec::Vec;

/// The guarded pages: at most one of each VCPU, by its number.
#[derive(Debug, Default)]
pub(super) struct Guards(Vec<(u32, u64)>);

impl Guards {
    /// Whether there is a page with `part` of its number as wanted.
    fn any(&self, part: impl Fn(u64) -> u64, index: usize) -> bool {
        self.0.iter().any(|&(_, page)| part(page) == index as u64)
    }
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Guards the page of a 32-bit address for a VCPU, in place of the one that was guarded for it before.
    pub fn guard(&mut self, vcpu: u32, gva: Option<Gva>) -> (Option<Reload>, TlbFlush) {
        let page = gva.map(|gva| (gva.0 & 0xffff_ffff) >> 12);
        let old = self.guards.0.iter().position(|&(owner, _)| owner == vcpu);
        if old.map(|n| self.guards.0[n].1) == page {
            return (None, TlbFlush::None);
        }
        if let Some(n) = old {
            self.guards.0.swap_remove(n);
        }
        self.guards.0.extend(page.map(|page| (vcpu, page)));
        let (reload, flush) = self.drop_everything();
        (Some(reload), flush)
    }

    /// Whether a guarded address leads through the entry with this number of the page with this key.
    #[inline(always)]
    pub(super) fn guards(&self, key: Key, index: usize) -> bool {
        !self.guards.0.is_empty() && self.is_guarded(key, index)
    }

    #[cold]
    fn is_guarded(&self, key: Key, index: usize) -> bool {
        match key.level() {
            3 if key.is_top() => self.guards.any(|page| page >> 18, index),
            2 if key.is_guarded() => self.guards.any(|page| page >> 9 & 511, index),
            1 if key.is_guarded() => self.guards.any(|page| page & 511, index),
            _ => false,
        }
    }
}
