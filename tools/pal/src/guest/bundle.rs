//! The bundle: a cpio archive that carries the guest's files and `palimpsest.toml`, which says how to run them.
//! QEMU passes one initial RAM disk to the hypervisor, so everything travels in it. The hypervisor defines the schema
//! (`hv/src/guest/config`).

use anyhow::{Context, Result};
use serde::Serialize;

use super::cpio::Archive;

/// One guest, with the contents of its files.
pub struct Guest {
    /// The kernel.
    pub kernel: File,
    /// The initial RAM disk.
    pub initrd: Option<File>,
    /// Modules with their command lines.
    pub modules: Vec<Module>,
    /// The kernel's command line.
    pub cmdline: String,
    /// RAM in MiB.
    pub memory_mib: u64,
    /// Virtual processors.
    pub vcpus: u32,
    /// How guest memory is virtualized.
    pub mode: String,
    /// Pages of shadow tables at most.
    pub shadow_pages: Option<u32>,
    /// Shadow tables are checked before every so many entries.
    pub paranoid: Option<u32>,
    /// The boot protocol, or "auto".
    pub protocol: String,
    /// Unknown MSRs read as zero instead of raising #GP.
    pub permissive_msr: bool,
    /// The guest has the test device.
    pub test_device: bool,
    /// Disks.
    pub disks: Vec<Disk>,
    /// Names of switches, one for each network card.
    pub networks: Vec<String>,
    /// The console is a virtio console.
    pub virtio_console: bool,
    /// The guest has a source of random numbers.
    pub entropy: bool,
}

/// A disk.
#[derive(Clone)]
pub struct Disk {
    /// Contents.
    pub contents: Vec<u8>,
    /// The guest cannot write it.
    pub read_only: bool,
}

/// A file with the name by which messages call it.
#[derive(Clone)]
pub struct File {
    /// The name, without folders.
    pub name: String,
    /// Contents.
    pub contents: Vec<u8>,
}

/// A module for the guest's kernel.
pub struct Module {
    /// Contents.
    pub contents: Vec<u8>,
    /// Command line, whose first word is the file's name.
    pub cmdline: String,
}

#[derive(Serialize)]
struct Config<'a> {
    version: u32,
    vm: [&'a Vm<'a>; 1],
}

/// A guest as `palimpsest.toml` describes it (docs/configuration.md); files go by the names that the hypervisor gets.
#[derive(Serialize)]
#[allow(missing_docs)]
pub struct Vm<'a> {
    pub name: &'a str,
    pub kernel: String,
    pub initrd: Option<String>,
    pub cmdline: &'a str,
    pub memory_mib: u64,
    pub vcpus: u32,
    pub mode: &'a str,
    pub shadow_pages: Option<u32>,
    pub paranoid: Option<u32>,
    pub protocol: &'a str,
    pub permissive_msr: bool,
    pub test_device: bool,
    pub pv_clock: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub networks: &'a [String],
    pub console: Option<&'a str>,
    pub entropy: Option<bool>,
    pub modules: Vec<ModuleEntry<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskEntry>,
}

/// A disk of a guest.
#[derive(Serialize)]
#[allow(missing_docs)]
pub struct DiskEntry {
    pub file: String,
    pub read_only: bool,
}

/// A module of a guest.
#[derive(Serialize)]
#[allow(missing_docs)]
pub struct ModuleEntry<'a> {
    pub file: String,
    pub cmdline: &'a str,
}

impl Vm<'_> {
    /// The text of `palimpsest.toml`.
    ///
    /// # Errors
    /// None that is known.
    pub fn config(&self) -> Result<String> {
        toml::to_string(&Config { version: 1, vm: [self] }).context("cannot write palimpsest.toml")
    }
}

/// The name by which the hypervisor calls the one guest.
pub const GUEST_NAME: &str = "guest";

impl Guest {
    /// Packs the guest.
    ///
    /// # Errors
    /// Files of 4 GiB and more.
    pub fn pack(&self) -> Result<Vec<u8>> {
        let mut archive = Archive::new();
        archive.file("palimpsest.toml", 0o644, self.config()?.as_bytes())?;
        archive.file(&self.kernel_name(), 0o644, &self.kernel.contents)?;
        if let (Some(name), Some(initrd)) = (self.initrd_name(), &self.initrd) {
            archive.file(&name, 0o644, &initrd.contents)?;
        }
        for (index, module) in self.modules.iter().enumerate() {
            archive.file(&module_name(index), 0o644, &module.contents)?;
        }
        for (index, disk) in self.disks.iter().enumerate() {
            archive.file(&disk_name(index), 0o644, &disk.contents)?;
        }
        Ok(archive.finish())
    }

    /// Folders keep files of the same name apart.
    fn kernel_name(&self) -> String {
        format!("kernel/{}", self.kernel.name)
    }

    fn initrd_name(&self) -> Option<String> {
        self.initrd.as_ref().map(|initrd| format!("initrd/{}", initrd.name))
    }

    fn config(&self) -> Result<String> {
        let modules = self.modules.iter().enumerate();
        let disks = self.disks.iter().enumerate();
        let vm = Vm {
            name: GUEST_NAME,
            kernel: self.kernel_name(),
            initrd: self.initrd_name(),
            cmdline: &self.cmdline,
            memory_mib: self.memory_mib,
            vcpus: self.vcpus,
            mode: &self.mode,
            shadow_pages: self.shadow_pages,
            paranoid: self.paranoid,
            protocol: &self.protocol,
            permissive_msr: self.permissive_msr,
            test_device: self.test_device,
            pv_clock: true,
            modules: modules
                .map(|(index, module)| ModuleEntry { file: module_name(index), cmdline: &module.cmdline })
                .collect(),
            networks: &self.networks,
            console: self.virtio_console.then_some("virtio"),
            entropy: self.entropy.then_some(true),
            disks: disks
                .map(|(index, disk)| DiskEntry { file: disk_name(index), read_only: disk.read_only })
                .collect(),
        };
        vm.config()
    }
}

fn module_name(index: usize) -> String {
    format!("module{index}")
}

fn disk_name(index: usize) -> String {
    format!("disk{index}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_what_the_hypervisor_reads() {
        let guest = Guest {
            shadow_pages: None,
            paranoid: None,
            kernel: File { name: "vmlinuz".into(), contents: vec![1] },
            initrd: None,
            modules: vec![Module { contents: vec![2], cmdline: "a \"quoted\" word".into() }],
            cmdline: "console=ttyS0".into(),
            memory_mib: 64,
            vcpus: 1,
            mode: "nested".into(),
            protocol: "auto".into(),
            permissive_msr: false,
            test_device: true,
            disks: vec![Disk { contents: vec![3], read_only: true }],
            networks: vec!["lan".into()],
            virtio_console: true,
            entropy: true,
        };
        let config: toml::Table = guest.config().unwrap().parse().unwrap();
        assert_eq!(config["version"].as_integer(), Some(1));
        let vm = &config["vm"][0];
        assert_eq!(vm["name"].as_str(), Some("guest"));
        assert_eq!(vm["kernel"].as_str(), Some("kernel/vmlinuz"));
        assert_eq!(vm["memory_mib"].as_integer(), Some(64));
        assert_eq!(vm["test_device"].as_bool(), Some(true));
        assert!(vm.get("initrd").is_none());
        assert_eq!(vm["modules"][0]["file"].as_str(), Some("module0"));
        assert_eq!(vm["modules"][0]["cmdline"].as_str(), Some("a \"quoted\" word"));
        assert_eq!(vm["disks"][0]["file"].as_str(), Some("disk0"));
        assert_eq!(vm["disks"][0]["read_only"].as_bool(), Some(true));
        assert_eq!(vm["networks"][0].as_str(), Some("lan"));
        assert_eq!((vm["console"].as_str(), vm["entropy"].as_bool()), (Some("virtio"), Some(true)));
        assert!(guest.pack().unwrap().starts_with(b"070701"));
    }
}
