//! The devices as a driver sees them: [`driver`] is the other end of the rings, written apart from the device's.

mod balloon;
mod block;
mod bus;
mod driver;
mod net;
mod queue;
mod streams;
mod transport;

use super::*;
use driver::{Chain, Driver};

/// A disk of `sectors` sectors, each filled with its number.
fn disk_bytes(sectors: usize) -> &'static [u8] {
    (0..sectors).flat_map(|sector| [sector as u8; 512]).collect::<Vec<_>>().leak()
}

/// Pages for all tests' disks.
static PAGES: disk::FewPages = disk::FewPages::new(usize::MAX);

/// A disk of `sectors` sectors.
fn disk(sectors: usize) -> disk::RamDisk {
    disk::RamDisk::new(disk_bytes(sectors), false, &PAGES)
}

/// A VM with this disk.
fn driver_of(disk: disk::RamDisk) -> Driver {
    let mut devices = Builder::new(0);
    devices.block(Block::new(disk, "disk0"));
    Driver::new(devices.build())
}

/// A VM with one disk.
fn with_disk(sectors: usize, read_only: bool) -> Driver {
    driver_of(disk::RamDisk::new(disk_bytes(sectors), read_only, &PAGES))
}

#[test]
fn survives_arbitrary_rings() {
    crate::device::fuzz::run(1500, 600, fuzz_one);
}
