//! What to run: the schema of `palimpsest.toml`.
//!
//! The file names the guests and, for each, the files that a boot loader passed next to it. It is written by
//! people and by the command line tool, so every complaint names the key and says what would be accepted.
//! Unknown keys are errors: a misspelt key must not silently mean its default.
//!
//! ```toml
//! version = 1
//! [[vm]]
//! name = "debian"
//! kernel = "vmlinuz"
//! initrd = "initrd.img"
//! cmdline = "console=ttyS0"
//! memory_mib = 512
//! ```

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;

mod cpu;
mod devices;
mod overcommit;
mod share;
mod table;
#[cfg(test)]
mod tests;

pub use devices::{DeviceConfig, DiskConfig, DiskSource};

pub use overcommit::Overcommit;
pub use share::Share;
use table::{Table, line_of};

pub use abi::config::{Console, Mitigations, NestedPage, Protocol};
use abi::config::{
    MAX_MEMORY_MIB, MAX_SHADOW_PAGES, MAX_VCPUS, MAX_VMS, MIN_MEMORY_MIB, MIN_SHADOW_PAGES, VERSION, is_name,
};

use abi::regions::Regions;

use super::cpuid::FeatureSet;
use crate::paging::policy::Mode;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The guests, in the order of their start.
    pub vm: Vec<VmConfig>,
    /// The number of the one that has the console first.
    pub console: usize,
}

/// One guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// A name for messages and the monitor: 1 to 32 printable ASCII characters without blanks, unique.
    pub name: String,
    /// File name of the kernel.
    pub kernel: String,
    /// File name of the initial RAM disk.
    pub initrd: Option<String>,
    /// Multiboot or PVH modules, in order.
    pub modules: Vec<ModuleConfig>,
    /// The kernel's command line.
    pub cmdline: String,
    /// RAM in MiB, [`MIN_MEMORY_MIB`] to [`MAX_MEMORY_MIB`].
    pub memory_mib: u64,
    /// Virtual processors, 1 to [`MAX_VCPUS`].
    pub vcpus: u32,
    /// Its share of the processors.
    pub share: Share,
    /// How the guest's memory is virtualized.
    pub mode: Mode,
    /// The largest pages of its nested tables.
    pub nested_page: NestedPage,
    /// Whether regions of its memory are found and mapped to caches, and how.
    pub regions: Regions,
    /// Pages of shadow tables at most, [`MIN_SHADOW_PAGES`] to [`MAX_SHADOW_PAGES`]; by default what fits a fiftieth of the guest's memory.
    pub shadow_pages: Option<usize>,
    /// N: shadow tables are checked before every N-th entry.
    pub audit_shadow: Option<NonZeroU32>,
    /// How the kernel is started.
    pub protocol: Protocol,
    /// Unknown MSRs read as zero and ignore writes, instead of #GP.
    pub permissive_msr: bool,
    /// The guest has the test device (exit port and friends).
    pub test_device: bool,
    /// The guest sees a KVM-compatible paravirtual clock and so need not calibrate its TSC.
    pub pv_clock: bool,
    /// A guest that dies is restarted, as after a reset.
    pub restart: bool,
    /// What is done so that it learns nothing of others by speculation.
    pub mitigations: Mitigations,
    /// CPUID features that it does not see.
    pub hidden: FeatureSet,
    /// Its virtio devices.
    pub devices: DeviceConfig,
    /// Its memory may be more than the host has for it.
    pub overcommit: Option<Overcommit>,
    /// MiB of fast memory that it may have; by default the machine divides it.
    pub fast_mib: Option<u64>,
}

/// A module for the guest's kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleConfig {
    /// File name.
    pub file: String,
    /// The module's command line, handed over as it is. Kernels often take its first word for the module's
    /// name.
    pub cmdline: String,
}

impl Config {
    /// Parses and validates the file.
    pub fn parse(bytes: &[u8]) -> Result<Config, ConfigError> {
        let text = core::str::from_utf8(bytes).map_err(|e| ConfigError {
            line: Some(line_of(bytes, e.valid_up_to())),
            message: "not UTF-8 text; write the configuration as plain text".to_string(),
        })?;
        let mut root = Table::parse(text)?;
        let version = root.required_integer("version")?;
        if version != u64::from(VERSION) {
            return Err(ConfigError::new(format!(
                "`version` is {version}; this hypervisor reads version {VERSION}"
            )));
        }
        let console = root.string("console")?;
        let vm: Vec<_> = root.tables("vm")?.into_iter().map(VmConfig::read).collect::<Result<_, _>>()?;
        root.finish()?;
        if vm.is_empty() {
            let message = "no `[[vm]]` table; add one with `name`, `kernel` and `memory_mib`";
            return Err(ConfigError::new(message.to_string()));
        }
        if vm.len() > MAX_VMS {
            return Err(ConfigError::new(format!("there are {} guests; the most is {MAX_VMS}", vm.len())));
        }
        let taken = |(i, a): &(usize, &VmConfig)| vm[..*i].iter().any(|b| a.name == b.name);
        if let Some((i, twin)) = vm.iter().enumerate().find(taken) {
            return Err(ConfigError::new(format!(
                "vm {}: `name` \"{}\" is taken; give each vm its own",
                i + 1,
                twin.name
            )));
        }
        check_memory(&vm)?;
        let Some(name) = console else { return Ok(Config { vm, console: 0 }) };
        let console = vm.iter().position(|vm| vm.name == name).ok_or_else(|| {
            let name = name.escape_default();
            ConfigError::new(format!(
                "`console` is \"{name}\"; use the name of a vm, or leave it out for the first"
            ))
        })?;
        Ok(Config { vm, console })
    }
}

/// Finds disks that have the same machine memory.
fn check_memory(vms: &[VmConfig]) -> Result<(), ConfigError> {
    let disks = vms.iter().flat_map(|vm| vm.devices.disks.iter().map(move |disk| (vm, disk)));
    let mut taken: Vec<_> = disks.filter_map(|(vm, disk)| Some((disk.memory()?, vm))).collect();
    taken.sort_by_key(|(range, _)| range.start);
    match taken.windows(2).find(|pair| pair[0].0.end > pair[1].0.start) {
        None => Ok(()),
        Some(pair) => Err(ConfigError::new(format!(
            "vm \"{}\": `disks.address` {:#x} is memory of another disk, of vm \"{}\"; give each its own",
            pair[1].1.name, pair[1].0.start, pair[0].1.name
        ))),
    }
}

impl VmConfig {
    fn read(mut table: Table<'_>) -> Result<VmConfig, ConfigError> {
        let line = table.line();
        let vm = VmConfig {
            name: table.required_string("name")?,
            kernel: table.required_string("kernel")?,
            initrd: table.string("initrd")?,
            modules: table
                .tables("modules")?
                .into_iter()
                .map(ModuleConfig::read)
                .collect::<Result<_, _>>()?,
            cmdline: table.string("cmdline")?.unwrap_or_default(),
            memory_mib: table.required_integer("memory_mib")?,
            vcpus: table.integer("vcpus")?.unwrap_or(1).try_into().unwrap_or(u32::MAX),
            share: Share::read(&mut table)?,
            mode: mode(&mut table)?,
            nested_page: table.choice("nested_page", NestedPage::WORDS)?,
            regions: regions(&mut table)?,
            shadow_pages: table
                .integer("shadow_pages")?
                .map(|pages| usize::try_from(pages).unwrap_or(usize::MAX)),
            audit_shadow: table
                .integer("audit_shadow")?
                .and_then(|entries| NonZeroU32::new(entries.try_into().unwrap_or(u32::MAX))),
            protocol: table.choice("protocol", Protocol::WORDS)?,
            permissive_msr: table.boolean("permissive_msr")?.unwrap_or(false),
            test_device: table.boolean("test_device")?.unwrap_or(false),
            pv_clock: table.boolean("pv_clock")?.unwrap_or(true),
            restart: table.boolean("restart")?.unwrap_or(false),
            mitigations: table.choice("mitigations", Mitigations::WORDS)?,
            hidden: cpu::hidden(&mut table)?,
            devices: DeviceConfig::read(&mut table)?,
            overcommit: Overcommit::read(&mut table)?,
            fast_mib: table.integer("fast_mib")?,
        };
        table.finish()?;
        vm.validate().map_err(|message| {
            let message = format!("vm \"{}\": {message}", vm.name.escape_default());
            ConfigError { line: Some(line), message }
        })?;
        Ok(vm)
    }

    fn validate(&self) -> Result<(), String> {
        let within = |key, value: u64, min: u64, max: u64| match value {
            v if v < min => Err(format!("`{key}` is {v}; the least is {min}")),
            v if v > max => Err(format!("`{key}` is {v}; the most is {max}")),
            _ => Ok(()),
        };
        if !is_name(&self.name) {
            return Err("`name` must be 1 to 32 printable ASCII characters without blanks".to_string());
        }
        within("memory_mib", self.memory_mib, MIN_MEMORY_MIB, MAX_MEMORY_MIB)?;
        within("vcpus", self.vcpus.into(), 1, MAX_VCPUS.into())?;
        self.share.validate(self.vcpus)?;
        if let Some(pages) = self.shadow_pages {
            within("shadow_pages", pages as u64, MIN_SHADOW_PAGES.into(), MAX_SHADOW_PAGES.into())?;
        }
        cpu::validate(self.hidden, self.vcpus)?;
        self.devices.validate()?;
        if self.devices.balloon && self.overcommit.is_none() {
            return Err(
                "`balloon` is for guests with `overcommit = true`; add that, or leave it out".to_string()
            );
        }
        if let Some(overcommit) = &self.overcommit {
            overcommit.validate(self.memory_mib)?;
            if self.fast_mib.is_some_and(|mib| mib > 0) {
                return Err("pages of a guest with `overcommit` get no fast memory; leave `fast_mib` or `overcommit` out".to_string());
            }
        }
        let files = [("kernel", Some(&self.kernel)), ("initrd", self.initrd.as_ref())];
        let modules = self.modules.iter().map(|m| ("modules.file", Some(&m.file)));
        for (key, file) in files.into_iter().chain(modules) {
            if file.is_some_and(|f| f.is_empty()) {
                return Err(format!("`{key}` is empty; name a file that the boot loader passes"));
            }
        }
        let lines = self.modules.iter().map(|m| ("modules.cmdline", &m.cmdline));
        for (key, line) in lines.chain([("cmdline", &self.cmdline)]) {
            if line.bytes().any(|b| b == 0) {
                return Err(format!("`{key}` holds a zero byte, which would end it; remove it"));
            }
        }
        Ok(())
    }
}

fn regions(table: &mut Table<'_>) -> Result<Regions, ConfigError> {
    let line = table.line();
    let Some(word) = table.string("regions")? else { return Ok(Regions::Off) };
    word.parse().map_err(|unknown| ConfigError {
        line: Some(line),
        message: format!("`regions` is \"{}\"; {unknown}", word.escape_default()),
    })
}

fn mode(table: &mut Table<'_>) -> Result<Mode, ConfigError> {
    let line = table.line();
    let Some(word) = table.string("mode")? else { return Ok(Mode::default()) };
    word.parse().map_err(|unknown| ConfigError {
        line: Some(line),
        message: format!("`mode` is \"{}\"; {unknown}", word.escape_default()),
    })
}

impl ModuleConfig {
    fn read(mut table: Table<'_>) -> Result<ModuleConfig, ConfigError> {
        let file = table.required_string("file")?;
        let cmdline = table.string("cmdline")?.unwrap_or_default();
        table.finish()?;
        Ok(ModuleConfig { file, cmdline })
    }
}

/// What is wrong with a configuration, for its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The line, counted from 1.
    pub line: Option<usize>,
    /// What is wrong and what would be accepted.
    pub message: String,
}

impl ConfigError {
    fn new(message: String) -> Self {
        ConfigError { line: None, message }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(abi::config::FILE_NAME)?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Parses arbitrary bytes: must not panic, and what is accepted is within the documented limits.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    match Config::parse(data) {
        Ok(config) => {
            assert!(config.vm.iter().all(|vm| vm.memory_mib >= MIN_MEMORY_MIB && vm.vcpus <= MAX_VCPUS));
            assert!((1..=MAX_VMS).contains(&config.vm.len()) && config.console < config.vm.len());
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}
