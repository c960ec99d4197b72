//! How the memory that an overcommitted VM may have is divided: pages in frames, and compressed ones.

use abi::config::Replacement as PolicyName;

use super::{BATCH, Budget};
use crate::arch::addr::PAGE_SIZE;
use crate::mem::objects::Objects;
use crate::mem::replacement::Replacement;

/// Blocks of the store that a page takes at most, as frames: a sixteenth more than it is long.
const fn stored_at_most(pages: u64) -> u64 {
    pages + pages / 16 + 1
}

/// Bytes that a policy takes for each page in a frame beyond the 8 of the smallest ones, which are in [`overhead`].
const fn more_for(policy: PolicyName) -> u64 {
    Replacement::heap_bytes(policy).saturating_sub(8)
}

/// What a VM's tables take beside its pages and its store, in frames: leaves of 4 KiB in the P2m and in nested tables, what the
/// pager knows of each page and slot and of each block of its store, objects of pages, its VCPUs, and shadow tables.
const fn overhead(wish: &Wish) -> u64 {
    /// One for the heap to grow by, and what is small.
    const ONCE: u64 = 768;
    let memory = wish.memory;
    let objects = Objects::bytes_for(wish.policy, memory) / PAGE_SIZE;
    2 * (memory / 512 + memory / (512 * 512))
        + memory / 1024
        + memory / 512
        + memory / 96
        + objects
        + wish.shadow
        + 64 * wish.vcpus
        + ONCE
}

/// A VM that asks for memory, in frames.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Its memory as the guest sees it.
    pub memory: u64,
    /// Pages that are to be in frames at a time, if the configuration says so.
    pub resident: Option<u64>,
    /// Shadow tables at most.
    pub shadow: u64,
    /// VCPUs.
    pub vcpus: u64,
    /// It has a balloon.
    pub discards: bool,
    /// By which pages are evicted.
    pub policy: PolicyName,
}

impl Budget {
    /// Pages that arrive between two evictions, for which frames are set aside.
    const fn reserve_for(resident: u64) -> u64 {
        let part = resident / 32;
        if part < 2 * BATCH as u64 {
            2 * BATCH as u64
        } else if part > 2048 {
            2048
        } else {
            part
        }
    }

    /// The division of `share` frames. By default pages are expected to compress to a half: all of memory has room then. Where that
    /// cannot be, a quarter is for pages in frames, and the rest hopes for better. `None`: the share is less than an eighth of
    /// the memory, or what was chosen does not fit.
    pub fn divide(share: u64, wish: Wish) -> Option<Budget> {
        let memory = wish.memory;
        // What arrives in place of pages that were discarded: eight bytes for each that is resident.
        let arrivals = if wish.discards { memory / 512 } else { 0 };
        let usable = share.checked_sub(overhead(&wish) + arrivals)?;
        let more = more_for(wish.policy);
        let resident = match wish.resident {
            Some(resident) => resident.min(memory),
            None => {
                let usable = usable.checked_sub(Self::reserve_for(usable))?;
                if usable < memory / 8 {
                    return None;
                }
                let half_stored = (2 * usable).saturating_sub(memory) * PAGE_SIZE / (PAGE_SIZE + 2 * more);
                half_stored.max(usable / 4).min(memory)
            }
        };
        let reserve = Self::reserve_for(resident);
        let tables = (resident * more).div_ceil(PAGE_SIZE);
        let store = usable.checked_sub(resident + reserve + tables)?.min(stored_at_most(memory - resident));
        if store == 0 && resident < memory {
            return None;
        }
        Some(Budget {
            resident: u32::try_from(resident).ok()?,
            reserve: reserve as u32,
            store: u32::try_from(store).ok()?.max(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mem::pager::Pager;

    const MIB: u64 = 256;

    fn wish(memory_mib: u64, resident_mib: Option<u64>) -> Wish {
        let resident = resident_mib.map(|mib| mib * MIB);
        let (memory, shadow) = (memory_mib * MIB, memory_mib * MIB / 50);
        Wish { memory, resident, shadow, vcpus: 1, discards: false, policy: PolicyName::Clock }
    }

    #[test]
    fn two_guests_of_512_mib_fit_into_768() {
        let budget = Budget::divide(730 / 2 * MIB, wish(512, None)).unwrap();
        let (resident, store) = (u64::from(budget.resident) / MIB, u64::from(budget.store) / MIB);
        assert!((150..=200).contains(&resident) && (150..=180).contains(&store), "{resident} {store}");
        // Half of what is not resident fits into the store.
        assert!(u64::from(budget.store) * 2 + u64::from(budget.resident) >= 512 * MIB);
    }

    #[test]
    fn with_enough_memory_nothing_is_evicted() {
        let budget = Budget::divide(600 * MIB, wish(512, None)).unwrap();
        assert_eq!(u64::from(budget.resident), 512 * MIB);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        assert_eq!(Budget::divide(70 * MIB, wish(512, None)), None);
        assert_eq!(Budget::divide(300 * MIB, wish(512, Some(290))), None);
        assert_eq!(Budget::divide(0, wish(64, None)), None);
        assert!(Budget::divide(300 * MIB, wish(512, Some(100))).is_some());
    }

    proptest! {
        #[test]
        fn no_budget_is_above_the_share(
            share in 0u64..1 << 22,
            mib in 20u64..1 << 14,
            resident in prop::option::of(0u64..1 << 14),
            policy in prop::sample::select(PolicyName::ALL),
        ) {
            if let Some(budget) = Budget::divide(share, Wish { policy, ..wish(mib, resident) }) {
                // What the pager takes of the heap, and its arrays of 4, 8 and 72 bytes.
                let arrays = 4 * mib * MIB + 8 * u64::from(budget.resident) + 72 * u64::from(budget.store);
                let objects = if policy == PolicyName::Apr { 2 * mib * MIB } else { 0 };
                let tables = (Pager::heap_bytes(budget, policy) + arrays + objects) / PAGE_SIZE;
                prop_assert!(budget.frames() + tables <= share, "{budget:?}, {tables}");
                prop_assert!(u64::from(budget.resident) <= mib * MIB);
            }
        }
    }
}
