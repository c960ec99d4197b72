//! Virtio devices of a guest: the options that ask for them, and the kernel modules that drive them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::vm::Disk;
use crate::status::Usage;

/// The modules that drive the devices and read ext4, in an order in which they can be loaded. Kernels have some of them built
/// in, and some not at all.
const MODULES: [&str; 20] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_console",
    "rng-core",
    "virtio-rng",
    "crc16",
    "crc32c_generic",
    "libcrc32c",
    "mbcache",
    "jbd2",
    "ext4",
    "af_packet",
    "overlay",
];

/// Reads `--disk FILE[:ro]`. A file whose own name ends in `:ro` wins over the split.
///
/// # Errors
/// A FILE that does not exist.
pub fn disk(argument: &str) -> Result<Disk> {
    let (file, read_only) = match argument.strip_suffix(":ro") {
        Some(file) if !Path::new(argument).exists() => (file, true),
        _ => (argument, false),
    };
    fs::metadata(file).map_err(|error| Usage::new(format!("--disk {file}: {error}")))?;
    Ok(Disk { file: file.into(), read_only })
}

/// The modules of the kernel whose package was unpacked around `kernel`: names and contents, in the order of loading. None for
/// a kernel from elsewhere.
///
/// # Errors
/// Files that cannot be read.
pub fn modules(kernel: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let Some(package) = kernel.parent().and_then(Path::parent) else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for folder in ["lib/modules", "usr/lib/modules"] {
        collect(&package.join(folder), &mut files)?;
    }
    let file = |name: &str| {
        files.iter().find(|path| path.file_name().is_some_and(|file| file == &*format!("{name}.ko")))
    };
    MODULES
        .iter()
        .filter_map(|name| Some((name, file(name)?)))
        .map(|(name, path)| {
            let contents = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(((*name).to_owned(), contents))
        })
        .collect()
}

/// Adds all files below `folder`, if it is there.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() { collect(&entry.path(), files)? } else { files.push(entry.path()) }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_in_order_and_those_that_are_missing_are_left_out() {
        let package = tempfile::tempdir().unwrap();
        let folder = package.path().join("lib/modules/6.1/kernel");
        for (path, contents) in
            [("drivers/virtio_blk.ko", "blk"), ("core/virtio.ko", "core"), ("other.ko", "")]
        {
            fs::create_dir_all(folder.join(path).parent().unwrap()).unwrap();
            fs::write(folder.join(path), contents).unwrap();
        }
        let found = modules(&package.path().join("boot/vmlinuz")).unwrap();
        let module = |name: &str, contents: &str| (name.to_owned(), contents.as_bytes().to_vec());
        assert_eq!(found, [module("virtio", "core"), module("virtio_blk", "blk")]);
        assert!(modules(Path::new("vmlinuz")).unwrap().is_empty());
    }

    #[test]
    fn disks_are_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk");
        fs::write(&file, "x").unwrap();
        let name = file.to_str().unwrap();
        assert_eq!(disk(name).unwrap(), Disk { file: file.clone(), read_only: false });
        assert_eq!(disk(&format!("{name}:ro")).unwrap(), Disk { file, read_only: true });
        assert!(disk("/no/such/disk").unwrap_err().is::<Usage>());
    }
}
