//! The keys of a `[[vm]]` table that ask for virtio devices.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::ConfigError;
use super::table::Table;

/// The most disks that a guest can have.
pub const MAX_DISKS: usize = 8;
/// The most network cards that a guest can have.
pub const MAX_NETWORKS: usize = 4;

/// A disk: a file in memory, and what the guest writes beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// File name.
    pub file: String,
    /// The guest cannot write it.
    pub read_only: bool,
}

/// What a person's input goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsoleKind {
    /// The serial port.
    #[default]
    Serial,
    /// A virtio console, once its driver runs; the serial port before that.
    Virtio,
}

const CONSOLES: [(&str, ConsoleKind); 2] = [("serial", ConsoleKind::Serial), ("virtio", ConsoleKind::Virtio)];

/// The devices of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Disks, at most [`MAX_DISKS`].
    pub disks: Vec<DiskConfig>,
    /// A network card for each name of a switch, at most [`MAX_NETWORKS`].
    pub networks: Vec<String>,
    /// The console.
    pub console: ConsoleKind,
    /// A source of random numbers.
    pub entropy: bool,
}

impl DeviceConfig {
    pub(super) fn read(table: &mut Table<'_>) -> Result<DeviceConfig, ConfigError> {
        Ok(DeviceConfig {
            disks: table.tables("disks")?.into_iter().map(DiskConfig::read).collect::<Result<_, _>>()?,
            networks: table.strings("networks")?,
            console: table.choice("console", &CONSOLES, ConsoleKind::default())?,
            entropy: table.boolean("entropy")?.unwrap_or(false),
        })
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        let most = |key, count: usize, most: usize| match count {
            count if count > most => Err(format!("`{key}` has {count} entries; the most is {most}")),
            _ => Ok(()),
        };
        most("disks", self.disks.len(), MAX_DISKS)?;
        most("networks", self.networks.len(), MAX_NETWORKS)?;
        if self.disks.iter().any(|disk| disk.file.is_empty()) {
            return Err("`disks.file` is empty; name a file that the boot loader passes".to_string());
        }
        let is_name =
            |name: &String| (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
        if !self.networks.iter().all(is_name) {
            return Err("`networks` must name switches by 1 to 32 printable ASCII characters without blanks"
                .to_string());
        }
        Ok(())
    }
}

impl DiskConfig {
    fn read(mut table: Table<'_>) -> Result<DiskConfig, ConfigError> {
        let file = table.required_string("file")?;
        let read_only = table.boolean("read_only")?.unwrap_or(false);
        table.finish()?;
        Ok(DiskConfig { file, read_only })
    }
}
