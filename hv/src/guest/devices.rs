//! The virtio devices that a VM's configuration asks for.
//!
//! Called once for each VM when it is made. Device numbers on the bus follow the order of the configuration: disks,
//! networks, console, entropy, balloon.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use super::build::BuildError;
use super::bundle::Files;
use super::config::{Console, DiskSource, VmConfig};
use super::load::{LoadError, Problem};
use crate::device::virtio::block::Block;
use crate::device::virtio::disk::{Medium, Pages, RamDisk};
use crate::device::virtio::entropy::Entropy;
use crate::device::virtio::switch::{Mac, Switch};
use crate::device::virtio::{Builder, Virtio};

/// The switches of all VMs, by name.
#[derive(Debug, Default)]
pub struct Switches(Vec<(String, Switch)>);

impl Switches {
    /// The switch called `name`, made at its first mention.
    pub fn get(&mut self, name: &str) -> Switch {
        if let Some((_, switch)) = self.0.iter().find(|(known, _)| known == name) {
            return switch.clone();
        }
        let switch = Switch::default();
        self.0.push((name.to_string(), switch.clone()));
        switch
    }
}

/// Machine memory that holds disks' contents.
pub trait Media {
    /// Takes `bytes` from `address` on until the result is dropped, or says why that is impossible.
    fn take(&self, address: u64, bytes: u64) -> Result<Box<dyn Medium>, &'static str>;
}

/// Makes the devices of VM number `vm`. What is written to disks goes to `pages`, or to its place in `media`; `seed` is for the entropy device and used for
/// nothing else.
pub fn make(
    vm: u32,
    config: &VmConfig,
    files: &'static impl Files,
    pages: &'static dyn Pages,
    media: &dyn Media,
    switches: &mut Switches,
    seed: [u8; 32],
) -> Result<Virtio, BuildError> {
    let mut devices = Builder::new(vm);
    for (disk, number) in config.devices.disks.iter().zip(0..) {
        let ram_disk = match &disk.source {
            DiskSource::File(file) => {
                let missing = || LoadError { file: file.clone(), problem: Problem::Missing };
                RamDisk::new(files.get(file).ok_or_else(missing)?, disk.read_only, pages)
            }
            &DiskSource::Memory { address, bytes } => {
                let medium = media.take(address, bytes);
                let medium = medium.map_err(|why| BuildError::Disk { address, why })?;
                RamDisk::in_place(medium, disk.read_only)
            }
        };
        devices.block(Block::new(ram_disk, &serial(number)));
    }
    for (network, card) in config.devices.networks.iter().zip(0..) {
        let added = devices.net(Mac::of(&config.name, card), &switches.get(network)).is_some();
        added.then_some(()).ok_or(BuildError::Room("network cards"))?;
    }
    if config.devices.console == Console::Virtio {
        devices.console();
    }
    if config.devices.entropy {
        devices.entropy(Entropy::new(seed));
    }
    if config.devices.balloon {
        devices.balloon();
    }
    Ok(devices.build())
}

/// The serial number of a disk, under which Linux finds it (`/dev/disk/by-id/virtio-disk0`).
fn serial(number: u32) -> String {
    let mut serial = String::new();
    let _to_memory = write!(serial, "disk{number}");
    serial
}
