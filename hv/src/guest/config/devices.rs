//! The keys of a `[[vm]]` table that ask for virtio devices.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use abi::config::{Console, MAX_DISKS, MAX_NETWORKS, is_name};

use super::ConfigError;
use super::table::Table;

/// Machine memory below this address is no disk's: firmware, devices and most of the RAM are there.
const LOWEST: u64 = 4 << 30;
/// Machine memory ends here at the latest.
const HIGHEST: u64 = 1 << 47;

/// Where the contents of a disk are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskSource {
    /// In a file that the boot loader passed, which stays as it is.
    File(String),
    /// In machine memory that no memory map mentions. The guest changes it.
    Memory {
        /// Machine-physical address, a multiple of 4096 from 4 GiB on.
        address: u64,
        /// Bytes, a multiple of 512.
        bytes: u64,
    },
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Its contents.
    pub source: DiskSource,
    /// The guest cannot write it.
    pub read_only: bool,
}

/// The devices of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Disks, at most [`MAX_DISKS`].
    pub disks: Vec<DiskConfig>,
    /// A network card for each name of a switch, at most [`MAX_NETWORKS`].
    pub networks: Vec<String>,
    /// The console.
    pub console: Console,
    /// A source of random numbers.
    pub entropy: bool,
    /// A balloon, for the memory of overcommitted guests.
    pub balloon: bool,
}

impl DeviceConfig {
    pub(super) fn read(table: &mut Table<'_>) -> Result<DeviceConfig, ConfigError> {
        Ok(DeviceConfig {
            disks: table.tables("disks")?.into_iter().map(DiskConfig::read).collect::<Result<_, _>>()?,
            networks: table.strings("networks")?,
            console: table.choice("console", Console::WORDS)?,
            entropy: table.boolean("entropy")?.unwrap_or(false),
            balloon: table.boolean("balloon")?.unwrap_or(false),
        })
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        let most = |key, count: usize, most: usize| match count {
            count if count > most => Err(format!("`{key}` has {count} entries; the most is {most}")),
            _ => Ok(()),
        };
        most("disks", self.disks.len(), MAX_DISKS)?;
        most("networks", self.networks.len(), MAX_NETWORKS)?;
        self.disks.iter().try_for_each(DiskConfig::validate)?;
        if !self.networks.iter().all(|name| is_name(name)) {
            return Err("`networks` must name switches by 1 to 32 printable ASCII characters without blanks"
                .to_string());
        }
        Ok(())
    }
}

impl DiskConfig {
    fn read(mut table: Table<'_>) -> Result<DiskConfig, ConfigError> {
        let source = match (table.integer("address")?, table.integer("bytes")?) {
            (Some(address), Some(bytes)) => DiskSource::Memory { address, bytes },
            _ => DiskSource::File(table.required_string("file")?),
        };
        let read_only = table.boolean("read_only")?.unwrap_or(false);
        table.finish()?;
        Ok(DiskConfig { source, read_only })
    }

    fn validate(&self) -> Result<(), String> {
        match self.source {
            DiskSource::File(ref file) if file.is_empty() => {
                Err("`disks.file` is empty; name a file that the boot loader passes".to_string())
            }
            DiskSource::Memory { address, .. } if !address.is_multiple_of(4096) || address < LOWEST => {
                Err(format!("`disks.address` is {address:#x}; it must be a multiple of 4096 from 4 GiB on"))
            }
            DiskSource::Memory { address, bytes } => {
                let fits = address.checked_add(bytes).is_some_and(|end| end <= HIGHEST);
                let valid = bytes > 0 && bytes.is_multiple_of(512) && fits;
                let text =
                    || format!("`disks.bytes` is {bytes}; it must be a multiple of 512, and end below 2^47");
                valid.then_some(()).ok_or_else(text)
            }
            DiskSource::File(_) => Ok(()),
        }
    }

    /// The machine memory that it takes.
    pub fn memory(&self) -> Option<Range<u64>> {
        match self.source {
            DiskSource::Memory { address, bytes } => Some(address..address + bytes),
            DiskSource::File(_) => None,
        }
    }
}
