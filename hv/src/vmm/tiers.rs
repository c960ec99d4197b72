//! The machine's fast memory, and what a VM needs to use it.

use alloc::boxed::Box;
use alloc::sync::Arc;

use abi::config::Replacement;
use abi::regions::{Regioning, Regions, Spaces};

use super::backend::Backend;
use super::guest::Guest;
use super::memory::{TierFrames, span};
use crate::arch::addr::{Hpa, PAGE_SIZE};
use crate::boot::host::Host;
use crate::guest::build::BuildError;
use crate::guest::config::VmConfig;
use crate::mem::frame_record::Owner;
use crate::mem::heap;
use crate::mem::tier::Tiers;
use crate::mem::tier::pool::FastPool;
use crate::mem::tier::residents::{MOST_FRAMES, Residents};
use crate::mem::tier::sharing::Demand;

/// Frames of a MiB.
const MIB: u64 = (1 << 20) / PAGE_SIZE;

/// The fast memory that the command line names; `None`: none.
pub(super) fn pool(host: &Host) -> Option<Arc<FastPool>> {
    if host.options.fast_auto && host.options.fast_mem.is_empty() {
        ::log::warn!(
            "fast-mem=auto: the ACPI tables (SRAT, HMAT) name no memory that is faster than other: there is no fast memory"
        );
    }
    // `start` has refused the machine on an error.
    let fast = host.fast.as_ref().ok().filter(|fast| fast.bytes() > 0)?;
    let wanted: u64 = host.options.fast_mem.iter().map(|range| range.mib << 20).sum();
    let (own, there) = (host.fast_own, fast.bytes() + host.fast_own);
    if own > 0 {
        ::log::info!("{} KiB of the fast memory are the hypervisor's: code, heap, stacks", own >> 10);
    }
    if there < wanted {
        let kib = (wanted - there) >> 10;
        ::log::warn!(
            "{kib} KiB of the fast memory are in use by the hypervisor and its files, and so by no guest"
        );
    }
    let frames = fast.iter().map(|range| Hpa(range.start).frame()..Hpa(range.end).frame());
    match FastPool::new(frames, host.options.fast_sharing) {
        Ok(pool) => {
            ::log::info!(
                "{} MiB of fast memory, divided by {}; hot pages by {}; leave by {}",
                u64::from(pool.total()) / MIB,
                pool.sharing(),
                host.options.fast_policy,
                host.options.fast_evict
            );
            Some(Arc::new(pool))
        }
        Err(_) => {
            ::log::warn!("no memory for the records of the fast memory: it is not used");
            None
        }
    }
}

/// The fast memory that a VM uses, for its pages and for page tables. An overcommitted one uses none: its pages are the pager's.
pub(super) fn used_by<'a>(pool: Option<&'a Arc<FastPool>>, config: &VmConfig) -> Option<&'a Arc<FastPool>> {
    pool.filter(|_| config.overcommit.is_none() && config.fast_mib != Some(0))
}

/// Gives a VM its part of the fast memory, if the machine has any.
///
/// # Errors
/// Its configuration asks for more than there is, or there is no memory for the tables.
pub(super) fn attach<B: Backend>(
    pool: Option<&Arc<FastPool>>,
    host: &Host,
    guest: &mut Guest<B>,
    owner: Owner,
) -> Result<(), BuildError> {
    let config = &guest.config;
    // Who asks for all of it gets what the hypervisor's own code, heap and stacks leave.
    let own = host.fast_own / PAGE_SIZE;
    let there = pool.map_or(0, |pool| (u64::from(pool.total()) + own) / MIB);
    let fixed = match config.fast_mib {
        Some(mib) if mib > there => return Err(BuildError::Fast { wanted: mib, there }),
        fixed => fixed.map(|mib| u32::try_from(mib * MIB).unwrap_or(u32::MAX)),
    };
    let Some(pool) = used_by(pool, config) else { return Ok(()) };
    let demand = Demand::new(config.share.weight, fixed.map(|frames| frames.min(pool.total())));
    // SAFETY: the frames of the VM's RAM are its own, and those of the pool that are not free are their VMs'.
    let copier = Box::new(unsafe { TierFrames::new(owner, pool.clone()) });
    let (vm, policy) = (guest.number as usize, host.options.fast_policy);
    let tiers = Tiers::new(pool.clone(), vm, demand, span(config.memory_mib), policy, copier);
    let mut tiers = tiers.map_err(|_| BuildError::Room("lists of hot pages"))?;
    if let Some(policy) = host.options.fast_evict.policy() {
        tiers = evict_by(tiers, policy, config.memory_mib)?;
    }
    let tiers = Arc::new(tiers);
    guest.vm.memory.get_mut().p2m.set_migration(&tiers.migration);
    if let Regions::On(Regioning { spaces: Spaces::Cr3, .. }) = config.regions {
        ::log::info!(
            "{}: with fast memory regions are those of the VM as a whole (spaces=vm)",
            guest.vm.name
        );
    }
    guest.vm.regions.sample_always();
    guest.vm.tiers = Some(tiers);
    Ok(())
}

/// Makes the tables of the policy by which pages leave, for all of the fast memory: none are made when shares change.
fn evict_by(tiers: Tiers, policy: Replacement, memory_mib: u64) -> Result<Tiers, BuildError> {
    let (frames, pages) = (tiers.pool().total(), span(memory_mib).pages());
    let mib = |frames: u32| u64::from(frames) / MIB;
    if frames.min(pages) > MOST_FRAMES {
        return Err(BuildError::EvictMost { policy, most: mib(MOST_FRAMES), there: mib(frames) });
    }
    let (heap, other) = Residents::bytes_for(policy, pages, frames);
    let none = || BuildError::Evict { policy, kib: (heap + other) >> 10 };
    // What small allocations need, which must not fail, stays there. The tables themselves are asked for one by one.
    if !usize::try_from(heap).is_ok_and(heap::has_room) {
        return Err(none());
    }
    tiers.evict_by(policy).map_err(|_| none())
}
