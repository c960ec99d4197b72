//! The bundle: a cpio archive that carries the guest's files and `palimpsest.toml`, which says how to run them.
//! QEMU passes one initial RAM disk to the hypervisor, so everything travels in it. The hypervisor defines the schema
//! (the crate `abi` and `hv/src/guest/config`).

use std::collections::HashMap;

use abi::config::{FILE_NAME, VERSION};
use anyhow::{Context, Result};
use serde::Serialize;

use super::{cpio::Archive, disk::Contents, files::Files};

/// A guest to be packed.
pub struct Guest<'a> {
    /// What was described.
    pub vm: &'a super::vm::Vm,
    /// Its files.
    pub files: &'a Files,
    /// The kernel's command line.
    pub cmdline: &'a str,
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
    console: Option<&'a str>,
    vm: &'a [Vm<'a>],
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
    pub weight: Option<u32>,
    pub cap: Option<u32>,
    pub affinity: Option<&'a [u32]>,
    pub mode: String,
    pub nested_page: Option<&'static str>,
    pub regions: Option<String>,
    pub shadow_pages: Option<u32>,
    pub audit_shadow: Option<u32>,
    pub protocol: &'static str,
    pub permissive_msr: bool,
    pub test_device: bool,
    pub pv_clock: bool,
    pub restart: Option<bool>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub networks: &'a [String],
    pub console: Option<&'a str>,
    pub entropy: Option<bool>,
    pub overcommit: Option<bool>,
    pub resident_mib: Option<u64>,
    pub replacement: Option<&'static str>,
    pub balloon: Option<bool>,
    pub fast_mib: Option<u64>,
    pub modules: Vec<ModuleEntry<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskEntry>,
    pub mitigations: Option<&'static str>,
    pub cpu: Option<CpuEntry<'a>>,
}

/// The processor that a guest sees.
#[derive(Serialize)]
#[allow(missing_docs)]
pub struct CpuEntry<'a> {
    pub without: &'a [String],
}

/// A disk of a guest: a file, or where in the machine's memory it is mapped.
#[derive(Default, Serialize)]
#[allow(missing_docs)]
pub struct DiskEntry {
    pub file: Option<String>,
    pub address: Option<u64>,
    pub bytes: Option<u64>,
    pub read_only: bool,
}

/// A module of a guest.
#[derive(Serialize)]
#[allow(missing_docs)]
pub struct ModuleEntry<'a> {
    pub file: String,
    pub cmdline: &'a str,
}

/// The text of `palimpsest.toml` for these guests; `console` has the console first, without it the first does.
///
/// # Errors
/// None that is known.
pub fn config(console: Option<&str>, vm: &[Vm]) -> Result<String> {
    toml::to_string(&Config { version: VERSION, console, vm }).context("cannot write palimpsest.toml")
}

/// Packs guests. A file that several of them have is packed once. Mapped disks are where `addresses` say, in the order of guests
/// and disks.
///
/// # Errors
/// Files of 4 GiB and more.
pub fn pack(
    guests: &[Guest],
    console: Option<&str>,
    addresses: impl IntoIterator<Item = u64>,
) -> Result<Vec<u8>> {
    let mut addresses = addresses.into_iter();
    let mut names = Names::default();
    let mut entries = Vec::new();
    for (number, Guest { vm, files, cmdline }) in guests.iter().enumerate() {
        // Folders keep files of the same name apart.
        let folder = if guests.len() > 1 { format!("vm{number}/") } else { String::new() };
        let mut entry = vm.entry(cmdline);
        entry.kernel = names.add(format!("{folder}kernel/{}", files.kernel.name), &files.kernel.contents);
        let initrd = files.initrd.as_ref();
        entry.initrd =
            initrd.map(|initrd| names.add(format!("{folder}initrd/{}", initrd.name), &initrd.contents));
        for (index, Module { contents, cmdline }) in files.modules.iter().enumerate() {
            let file = names.add(format!("{folder}module{index}"), contents);
            entry.modules.push(ModuleEntry { file, cmdline });
        }
        for (index, disk) in files.disks.iter().enumerate() {
            let mut place = DiskEntry { read_only: disk.source.read_only, ..DiskEntry::default() };
            match &disk.contents {
                Contents::Read(contents) => {
                    place.file = Some(names.add(format!("{folder}disk{index}"), contents));
                }
                Contents::Mapped(file) => {
                    place.address = Some(addresses.next().context("a mapped disk without an address")?);
                    place.bytes = Some(file.bytes);
                }
            }
            entry.disks.push(place);
        }
        entries.push(entry);
    }
    let mut archive = Archive::new();
    archive.file(FILE_NAME, 0o644, config(console, &entries)?.as_bytes())?;
    names.order.iter().try_for_each(|(name, contents)| archive.file(name, 0o644, contents))?;
    Ok(archive.finish())
}

/// The files of an archive, each once.
#[derive(Default)]
struct Names<'a> {
    order: Vec<(String, &'a [u8])>,
    known: HashMap<&'a [u8], usize>,
}

impl<'a> Names<'a> {
    /// The name of a file with these contents: the wanted one, unless it has one already.
    fn add(&mut self, wanted: String, contents: &'a [u8]) -> String {
        let index = *self.known.entry(contents).or_insert(self.order.len());
        if index == self.order.len() {
            self.order.push((wanted, contents));
        }
        self.order[index].0.clone()
    }
}

#[cfg(test)]
mod tests {
    use abi::config::keys;

    use super::*;
    use crate::guest::{
        disk::{Disk, MappedFile},
        image::Image,
        vm::{Console, Vm as Described},
    };

    fn described(read_only: bool) -> super::super::vm::Disk {
        super::super::vm::Disk { file: "d".into(), read_only, write_back: false }
    }

    fn guest(name: &str) -> (Described, Files) {
        let vm = Described {
            memory_mib: 64,
            weight: Some(512),
            affinity: Some(vec![0, 2]),
            test_device: true,
            networks: vec!["lan".into()],
            console: Console::Virtio,
            entropy: true,
            ..Described::named(name)
        };
        let files = Files {
            kernel: File { name: "vmlinuz".into(), contents: vec![1] },
            kind: Image::BzImage { end: 0 },
            initrd: None,
            ours: false,
            gets: vec![],
            modules: vec![Module { contents: vec![2], cmdline: "a \"quoted\" word".into() }],
            disks: vec![Disk { contents: Contents::Read(vec![3]), source: described(true) }],
        };
        (vm, files)
    }

    /// The configuration inside an archive.
    fn config_of(archive: &[u8]) -> toml::Table {
        let text = String::from_utf8_lossy(archive);
        let start = text.find("version = 1").unwrap();
        let text = text[start..].split("070701").next().unwrap();
        text.trim_end_matches('\0').parse().unwrap()
    }

    #[test]
    fn the_configuration_is_what_the_hypervisor_reads() {
        let (vm, files) = guest("guest");
        let archive = pack(&[Guest { vm: &vm, files: &files, cmdline: "console=ttyS0" }], None, []).unwrap();
        assert!(archive.starts_with(b"070701"));
        let config = config_of(&archive);
        assert_eq!(config["version"].as_integer(), Some(1));
        assert!(config.get("console").is_none());
        let vm = &config["vm"][0];
        assert_eq!(vm["name"].as_str(), Some("guest"));
        assert_eq!(vm["kernel"].as_str(), Some("kernel/vmlinuz"));
        assert_eq!((vm["memory_mib"].as_integer(), vm["weight"].as_integer()), (Some(64), Some(512)));
        assert_eq!(vm["affinity"].as_array().unwrap().len(), 2);
        assert_eq!(vm["test_device"].as_bool(), Some(true));
        assert!(vm.get("initrd").is_none() && vm.get("cap").is_none());
        assert_eq!(vm["modules"][0]["file"].as_str(), Some("module0"));
        assert_eq!(vm["modules"][0]["cmdline"].as_str(), Some("a \"quoted\" word"));
        assert_eq!(vm["disks"][0]["file"].as_str(), Some("disk0"));
        assert_eq!(vm["disks"][0]["read_only"].as_bool(), Some(true));
        assert_eq!(vm["networks"][0].as_str(), Some("lan"));
        assert_eq!((vm["console"].as_str(), vm["entropy"].as_bool()), (Some("virtio"), Some(true)));
    }

    /// The keys of a table that has all of them, in the order of `keys`.
    fn written(table: &toml::Value, keys: &[&'static str]) -> Vec<&'static str> {
        let table = table.as_table().unwrap();
        let unknown: Vec<_> = table.keys().filter(|key| !keys.contains(&key.as_str())).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        keys.iter().copied().filter(|key| table.contains_key(*key)).collect()
    }

    #[test]
    fn all_keys_of_the_schema_are_written() {
        let (vm, files) = guest("guest");
        let vm = Described {
            cap: Some(50),
            nested_page: Some(crate::guest::vm::NestedPage::Small),
            regions: "unify,q_us=7".parse().unwrap(),
            shadow_pages: Some(16),
            audit_shadow: Some(1),
            restart: true,
            overcommit: true,
            resident_mib: Some(32),
            replacement: Some(crate::guest::vm::Replacement::Clock),
            balloon: true,
            fast_mib: Some(0),
            mitigations: Some(crate::guest::vm::Mitigations::Off),
            cpu: crate::guest::vm::Cpu { without: vec!["avx".into()] },
            ..vm
        };
        let initrd = Some(File { name: "initrd".into(), contents: vec![9] });
        let lock = tempfile::tempfile().unwrap();
        let mapped = MappedFile { path: "d".into(), bytes: 8192, write_back: false, _lock: lock, made: None };
        let mut files = Files { initrd, ..files };
        files.disks.push(Disk { contents: Contents::Mapped(mapped), source: described(true) });
        let guests = [Guest { vm: &vm, files: &files, cmdline: "" }];
        let config = config_of(&pack(&guests, Some("guest"), [64 << 30]).unwrap());
        assert_eq!(written(&config.clone().into(), keys::FILE), keys::FILE);
        let vm = &config["vm"][0];
        assert_eq!(written(vm, keys::VM), keys::VM);
        assert_eq!(written(&vm["modules"][0], keys::MODULE), keys::MODULE);
        assert_eq!(written(&vm["cpu"], keys::CPU), keys::CPU);
        assert_eq!(written(&vm["disks"][0], keys::DISK), ["file", "read_only"]);
        assert_eq!(written(&vm["disks"][1], keys::DISK), ["address", "bytes", "read_only"]);
    }

    #[test]
    fn mapped_disks_are_named_by_their_places() {
        let (vm, mut files) = guest("guest");
        let lock = tempfile::tempfile().unwrap();
        let file = MappedFile { path: "d".into(), bytes: 8192, write_back: false, _lock: lock, made: None };
        files.disks.insert(0, Disk { contents: Contents::Mapped(file), source: described(false) });
        let guests = [Guest { vm: &vm, files: &files, cmdline: "" }];
        assert!(pack(&guests, None, []).is_err());
        let config = config_of(&pack(&guests, None, [64 << 30]).unwrap());
        let disks = &config["vm"][0]["disks"];
        assert_eq!(disks[0]["address"].as_integer(), Some(64 << 30));
        assert_eq!((disks[0]["bytes"].as_integer(), disks[0].get("file")), (Some(8192), None));
        assert_eq!((disks[1]["file"].as_str(), disks[1].get("address")), (Some("disk1"), None));
    }

    #[test]
    fn what_guests_share_is_packed_once() {
        let ((a, shared), (b, mut other)) = (guest("a"), guest("b"));
        other.disks[0].contents = Contents::Read(vec![4]);
        let guests =
            [Guest { vm: &a, files: &shared, cmdline: "" }, Guest { vm: &b, files: &other, cmdline: "" }];
        let config = config_of(&pack(&guests, Some("b"), []).unwrap());
        assert_eq!(config["console"].as_str(), Some("b"));
        let file = |vm: usize, what: &str| config["vm"][vm][what].as_str().map(str::to_owned);
        assert_eq!(file(0, "kernel").as_deref(), Some("vm0/kernel/vmlinuz"));
        assert_eq!(file(0, "kernel"), file(1, "kernel"));
        let disk = |vm: usize| config["vm"][vm]["disks"][0]["file"].as_str().unwrap().to_owned();
        assert_eq!([disk(0), disk(1)], ["vm0/disk0", "vm1/disk0"]);
    }
}
