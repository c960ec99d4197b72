//! What a check found.

use super::Check;
use crate::arch::addr::{Gpa, Gva};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::shadow::pool::PageId;
use alloc::boxed::Box;
use core::fmt;

/// An entry of a shadow page that must not be as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// What is wrong.
    pub what: &'static str,
    /// The first address that the entry translates, if the root in use leads to it.
    pub gva: Option<Gva>,
    /// The guest's entries on the path there, by level: place, and value now.
    pub guest: [Option<(Gpa, u64)>; 4],
    /// The level of the shadow page.
    pub level: u8,
    /// The number of the entry.
    pub index: usize,
    /// The entry.
    pub shadow: u64,
    /// What it may be at most, if that is a value.
    pub expected: Option<u64>,
    /// For an entry of level 1: what the guest's entry was when it was made.
    pub guest_pte: Option<u64>,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.what)?;
        if let Some(gva) = self.gva {
            write!(f, "{gva}, ")?;
        }
        write!(f, "shadow entry {} of level {} is {:#x}", self.index, self.level, self.shadow)?;
        if let Some(expected) = self.expected {
            write!(f, ", should be {expected:#x} at most")?;
        }
        if let Some(guest_pte) = self.guest_pte {
            write!(f, ", made from {guest_pte:#x}")?;
        }
        for (below, entry) in self.guest.iter().enumerate().rev() {
            if let Some((at, raw)) = entry {
                write!(f, "; the guest's of level {} at {at} is {raw:#x}", below + 1)?;
            }
        }
        Ok(())
    }
}

impl<M: TableMemory, F: PteFormat, N: TableMemory, G: GuestMemory> Check<'_, M, F, N, G> {
    /// Describes an entry.
    #[cold]
    pub(super) fn report(
        &self,
        what: &'static str,
        id: PageId,
        index: usize,
        expected: Option<u64>,
    ) -> Box<Disagreement> {
        let pool = &self.shadow.pool;
        let level = pool.page(id).key.level();
        let index = index.min(511);
        let mut guest = [None; 4];
        let mut gva = 0u64;
        let mut at = Some((id, index));
        let mut top = None;
        while let Some((id, index)) = at.take() {
            let level = pool.page(id).key.level();
            let Some(slot) = guest.get_mut(usize::from(level).wrapping_sub(1)) else { break };
            *slot = self.guest_entry(id, index);
            gva |= (index as u64) << (12 + 9 * u32::from(level - 1));
            top = Some(id);
            // Levels only rise, if the tables are not too broken to tell.
            at = pool.parent(id).filter(|&(parent, _)| pool.page(parent).key.level() > level);
        }
        let gva = top.filter(|&top| pool.root() == Some(top)).map(|_| Gva(((gva << 16) as i64 >> 16) as u64));
        Box::new(Disagreement {
            what,
            gva,
            guest,
            level,
            index,
            shadow: pool.entry(id, index),
            expected,
            guest_pte: (level == 1).then(|| pool.guest_pte(id, index)),
        })
    }
}
