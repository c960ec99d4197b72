//! The host's disk for evicted pages, if there is one, and each overcommitted VM's part of it.
//!
//! It is a virtio disk that begins with [`SIGNATURE`]: to write that there is to give the disk away, and no other is written to. It
//! is looked for once, at the start, if a VM is overcommitted. Parts are fixed, in proportion to the VMs' memory, so that none
//! takes another's. What a VM had there is not wiped when it ends; a pager hands out what it has written itself, and nothing else.

use alloc::boxed::Box;
use alloc::sync::Arc;

use abi::disk::{FIRST_BYTE, SIGNATURE};
use spin::Mutex;

use crate::guest::config::{Config, VmConfig};
use crate::hw::pci;
use crate::hw::virtio_blk::{self, Ports, VirtioBlk};
use crate::mem::frame::{self, Node, order_for};
use crate::mem::pager::PageDisk;
use crate::mem::pager::disk::{DiskError, RUN, RUN_BYTES};

/// Sectors of a run.
const RUN_SECTORS: u64 = (RUN_BYTES / virtio_blk::SECTOR) as u64;
const _: () = assert!(RUN_BYTES <= virtio_blk::MOST);
/// How long a request may take: a disk that spins up from standstill takes some seconds.
const PATIENCE_S: u64 = 20;

type Shared = Arc<Mutex<VirtioBlk<Ports>>>;

/// The disk, for all VMs.
#[derive(Debug)]
pub(super) struct PageDisks {
    disk: Shared,
    /// Runs that it has behind its first bytes.
    runs: u64,
    /// MiB of memory of all VMs that have a part.
    memory_mib: u64,
}

impl PageDisks {
    /// Looks for it, if one of these VMs may need it.
    pub(super) fn find(config: &Config, tsc_khz: u64) -> Option<PageDisks> {
        let memory_mib: u64 = overcommitted(config.vm.iter()).map(|vm| vm.memory_mib).sum();
        if memory_mib == 0 {
            return None;
        }
        let (vendor, device) = virtio_blk::ID;
        let (mut disk, first) = pci::find(vendor, device).find_map(|function| {
            let port = function.ports()?;
            // SAFETY: nothing else in the hypervisor drives PCI devices, and what this one is told to do is the driver's.
            unsafe { function.enable() };
            let queue = frame::alloc_zeroed(order_for(virtio_blk::QUEUE_BYTES as u64), Node(0))?;
            let data = frame::alloc_zeroed(order_for(virtio_blk::MOST as u64), Node(0))?;
            // SAFETY: a virtio device answers there, as its identification says. The frames are its own for good, also when it
            // turns out to be another disk: a device that has once been given memory keeps it.
            let disk =
                unsafe { VirtioBlk::start(Ports::new(port), queue.0, data.0, PATIENCE_S * 1000 * tsc_khz) };
            let Some(mut disk) = disk else {
                ::log::warn!(
                    "a virtio disk at port {port:#x} is passed over: its queue or its size makes no sense"
                );
                return None;
            };
            let mut sector = [0; virtio_blk::SECTOR];
            match disk.read(0, &mut sector) {
                Ok(()) => sector.starts_with(SIGNATURE).then_some((disk, sector)),
                Err(error) => {
                    ::log::warn!("a virtio disk at port {port:#x} is passed over: {error}");
                    None
                }
            }
        })?;
        let runs = (disk.sectors() / RUN_SECTORS).saturating_sub(FIRST_BYTE / RUN_BYTES as u64);
        // Else a VM would end at its first eviction.
        if let Err(error) = disk.write(0, &first) {
            ::log::error!("the disk for evicted pages cannot be written: {error}; it is not used");
            return None;
        }
        ::log::info!("a disk for evicted pages: {} MiB", runs / ((1 << 20) / RUN_BYTES as u64));
        Some(PageDisks { disk: Arc::new(Mutex::new(disk)), runs, memory_mib })
    }

    /// The part of VM `number` in the configuration; `None`: it would have nothing.
    pub(super) fn part<'a>(
        &self,
        all: impl Iterator<Item = &'a VmConfig> + Clone,
        number: usize,
    ) -> Option<Box<dyn PageDisk>> {
        let before: u64 = overcommitted(all.clone().take(number)).map(|vm| vm.memory_mib).sum();
        let own = overcommitted(all.skip(number).take(1)).map(|vm| vm.memory_mib).next()?;
        let (first, runs) = part(self.runs, before, own, self.memory_mib);
        let disk = self.disk.clone();
        (runs > 0).then(|| Box::new(Part { disk, first, runs }) as Box<dyn PageDisk>)
    }
}

fn overcommitted<'a>(all: impl Iterator<Item = &'a VmConfig>) -> impl Iterator<Item = &'a VmConfig> {
    all.filter(|vm| vm.overcommit.is_some())
}

/// The first run, and how many, of a VM with `own` MiB of memory behind others with `before`, of `all`. Not more than it has pages.
fn part(runs: u64, before: u64, own: u64, all: u64) -> (u64, u32) {
    let at = |mib: u64| (u128::from(runs) * u128::from(mib) / u128::from(all.max(1))) as u64;
    let most = (own << 20) / RUN_BYTES as u64;
    let first = at(before);
    (first, (at(before + own) - first).min(most).try_into().unwrap_or(u32::MAX))
}

/// The sector of a place in a part that begins with this run.
fn sector(first: u64, place: u32) -> u64 {
    FIRST_BYTE / virtio_blk::SECTOR as u64
        + first * RUN_SECTORS
        + u64::from(place) * (RUN_SECTORS / u64::from(RUN))
}

/// A VM's part of the disk.
#[derive(Debug)]
struct Part {
    disk: Shared,
    first: u64,
    runs: u32,
}

impl Part {
    /// The sector of a place in this part.
    fn sector(&self, place: u32) -> u64 {
        sector(self.first, place)
    }
}

impl PageDisk for Part {
    fn runs(&self) -> u32 {
        self.runs
    }

    fn read(&mut self, run: u32, out: &mut [u8]) -> Result<(), DiskError> {
        let done = self.disk.lock().read(self.sector(run * RUN), out);
        done.map_err(|error| report("read", error))
    }

    fn write(&mut self, place: u32, pages: &[u8]) -> Result<(), DiskError> {
        let done = self.disk.lock().write(self.sector(place), pages);
        done.map_err(|error| report("write", error))
    }
}

#[cold]
fn report(what: &str, error: virtio_blk::Error) -> DiskError {
    ::log::error!("the disk for evicted pages does not {what}: {error}");
    DiskError
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_none_is_larger_than_the_memory() {
        // 512 MiB of disk for 256 and 768 MiB of memory.
        let (first, second) = (part(8192, 0, 256, 1024), part(8192, 256, 768, 1024));
        assert_eq!((first, second), ((0, 2048), (2048, 6144)));
        assert_eq!(part(1 << 20, 0, 256, 256), (0, 4096));
        assert_eq!(part(2, 0, 1, 1024), (0, 0));
        assert_eq!(part(0, 0, 256, 256), (0, 0));
    }

    #[test]
    fn places_of_neighbours_do_not_meet_and_the_last_is_on_the_disk() {
        let sectors = |pages: u64| pages * 8;
        let runs = 8192;
        let (first, second) = (part(runs, 0, 256, 1024), part(runs, 256, 768, 1024));
        assert_eq!(sector(first.0, 0), 128);
        let last = |(first, runs): (u64, u32)| sector(first, runs * RUN - 1) + sectors(1);
        assert_eq!(last(first), sector(second.0, 0));
        assert_eq!(last(second), 128 + runs * RUN_SECTORS);
    }
}
