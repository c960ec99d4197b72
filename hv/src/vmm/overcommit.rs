//! Gives an overcommitted VM its part of the machine's memory, and a pager for it.
//!
//! A VM's part is fixed when it starts: what is free then, without the memory of VMs that could still start, divided among the
//! overcommitted ones in proportion to their memory. It is set aside at once. So what one VM uses takes nothing from another.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::backend::Backend;
use super::machine::Machine;
use super::memory::{PagerFrames, span};
use crate::arch::addr::PAGE_SIZE;
use crate::guest::build::BuildError;
use crate::guest::config::VmConfig;
use crate::mem::frame_record::Owner;
use crate::mem::pager::disk::RUN;
use crate::mem::pager::{Budget, Pager, Wish};
use crate::mem::{frame, heap};
use crate::paging::shadow::Limit;

/// Frames of a MiB.
const MIB: u64 = (1 << 20) / PAGE_SIZE;

/// Frames that its shadow tables may take.
fn shadow(config: &VmConfig) -> u64 {
    Limit::default_for(config.memory_mib << 20).bytes() / PAGE_SIZE
}

/// The frames that VM `number` may have, of `free`.
fn share<B: Backend>(machine: &Machine<B>, number: usize, free: u64) -> u64 {
    let own = machine.entries[number].config.memory_mib;
    let (mut for_others, mut overcommitted) = (0, own);
    for (other, entry) in machine.entries.iter().enumerate().filter(|(other, _)| *other != number) {
        let config = &entry.config;
        match (machine.guest(other).is_some(), &config.overcommit) {
            (true, _) => for_others += shadow(config),
            (false, Some(_)) => overcommitted += config.memory_mib,
            // Tables and VCPUs beside its memory.
            (false, None) => for_others += config.memory_mib * (MIB + MIB / 64) + shadow(config) + 2 * MIB,
        }
    }
    let left = u128::from(free.saturating_sub(for_others));
    (left * u128::from(own) / u128::from(overcommitted.max(1))) as u64
}

/// A pager for VM `number`, if it is overcommitted.
///
/// # Errors
/// Its share is too small, or is not there.
pub(super) fn pager<B: Backend>(
    machine: &Machine<B>,
    number: usize,
    owner: Owner,
) -> Result<Option<Arc<Pager>>, BuildError> {
    let config = &machine.entries[number].config;
    let Some(wanted) = &config.overcommit else { return Ok(None) };
    let share = share(machine, number, frame::stats().free);
    let wish = Wish {
        memory: config.memory_mib * MIB,
        resident: wanted.resident_mib.map(|mib| mib * MIB),
        shadow: shadow(config),
        vcpus: config.vcpus.into(),
        discards: config.devices.balloon,
        policy: wanted.replacement,
    };
    let too_small = || BuildError::Overcommit {
        wanted: config.memory_mib,
        share: share / MIB,
        resident: wanted.resident_mib,
    };
    let budget = Budget::divide(share, wish).ok_or_else(too_small)?;
    let configs = machine.entries.iter().map(|entry| &entry.config);
    let disk = machine.page_disks.as_ref().and_then(|disks| disks.part(configs, number));
    let for_disk = if disk.is_some() { Pager::DISK_HEAP_BYTES } else { 0 };
    let heap_bytes = Pager::heap_bytes(budget, wanted.replacement) + for_disk;
    let heap_bytes = usize::try_from(heap_bytes).unwrap_or(usize::MAX);
    if !heap::has_room(heap_bytes) {
        return Err(BuildError::Room("pager"));
    }
    // SAFETY: the VM drops its pager after its tables.
    let frames = unsafe { PagerFrames::reserve(owner, budget.frames()) }.ok_or_else(too_small)?;
    let pager = Pager::new(span(config.memory_mib), budget, wanted.replacement, Box::new(frames));
    let pager = pager.map_err(|_| BuildError::Room("pager"))?;
    if config.devices.balloon {
        pager.expect_discards().map_err(|_| BuildError::Room("pager"))?;
    }
    let disk_runs = disk.as_ref().map_or(0, |disk| u64::from(disk.runs()));
    if let Some(disk) = disk {
        pager.use_disk(disk).map_err(|_| BuildError::Room("pager"))?;
    }
    ::log::info!(
        "{}: overcommitted: of {} MiB, {} MiB in frames at a time, {} MiB for compressed pages, {} MiB of disk; {}",
        config.name,
        config.memory_mib,
        u64::from(budget.resident) / MIB,
        u64::from(budget.store) / MIB,
        disk_runs * u64::from(RUN) / MIB,
        wanted.replacement,
    );
    Ok(Some(Arc::new(pager)))
}
