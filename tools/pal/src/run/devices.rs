//! QEMU's own virtio devices, which stand in for the hypervisor's where a guest runs without it (`--machine native`).
//!
//! What the guest can tell from: names and serial numbers of disks are the same, and so is what a disk forbids; what it
//! writes is gone after the run, unless the disk is written back.

use std::path::Path;

use anyhow::{Context, Result};

use super::qemu::escape_commas;
use crate::guest::vm::{Disk, Vm};

/// QEMU's arguments for the guest's disks, network cards and source of random numbers. The console is connected with the others
/// to pal ([`super::qemu::Spec::virtio_console`]).
///
/// # Errors
/// The current directory, which a file is relative to, is not to be had.
pub fn arguments<'a>(disks: impl Iterator<Item = &'a Disk>, vm: &Vm) -> Result<Vec<String>> {
    let mut arguments = Vec::new();
    let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
    for (number, disk) in disks.enumerate() {
        let file = absolute(&disk.file)?;
        let read_only = if disk.read_only { ",readonly=on" } else { "" };
        let snapshot = if disk.write_back { "" } else { ",snapshot=on" };
        add("-drive", format!("if=none,id=disk{number},format=raw{snapshot}{read_only},file={file}"));
        add("-device", format!("virtio-blk-pci,drive=disk{number},serial=disk{number}"));
    }
    for (number, name) in vm.networks.iter().enumerate() {
        // Cards at the same switch are ports of the same hub, which has the number of the first of them.
        let hub = vm.networks.iter().position(|other| other == name).unwrap_or(number);
        add("-netdev", format!("hubport,id=net{number},hubid={hub}"));
        // The card's ROM, to boot from a network, is a package of its own and may not be there.
        add("-device", format!("virtio-net-pci,netdev=net{number},romfile="));
    }
    if vm.entropy {
        add("-device", "virtio-rng-pci".to_owned());
    }
    if vm.balloon {
        add("-device", "virtio-balloon-pci,deflate-on-oom=on,free-page-reporting=on".to_owned());
    }
    Ok(arguments)
}

/// A file's name for QEMU's lists, which take `NAME:` at the beginning for a protocol.
fn absolute(file: &Path) -> Result<String> {
    let path = std::path::absolute(file).with_context(|| format!("cannot find {}", file.display()))?;
    Ok(escape_commas(&path.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_its_stand_in() {
        assert!(arguments([].iter(), &Vm::named("guest")).unwrap().is_empty());
        let vm = Vm {
            disks: vec![
                Disk { file: "/a,b".into(), read_only: false, write_back: false },
                Disk { file: "c:d".into(), read_only: true, write_back: false },
                Disk { file: "/e".into(), read_only: false, write_back: true },
            ],
            networks: ["lan", "wan", "lan"].map(String::from).into(),
            entropy: true,
            balloon: true,
            ..Vm::named("guest")
        };
        let line = arguments(vm.disks.iter(), &vm).unwrap().join(" ");
        for part in [
            "-drive if=none,id=disk0,format=raw,snapshot=on,file=/a,,b ",
            "-device virtio-blk-pci,drive=disk1,serial=disk1",
            "id=disk1,format=raw,snapshot=on,readonly=on,file=/",
            "/c:d ",
            "-drive if=none,id=disk2,format=raw,file=/e ",
            "-netdev hubport,id=net0,hubid=0 ",
            "-netdev hubport,id=net1,hubid=1 ",
            "-netdev hubport,id=net2,hubid=0 ",
            "-device virtio-rng-pci",
            "-device virtio-balloon-pci,",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}
