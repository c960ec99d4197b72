//! The kernel modules that drive a guest's virtio devices, for kernels that have them not built in: found beside a kernel that
//! was fetched, or where `--modules` says, and loaded by the default initramfs in the order in which they stand here.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::vm::Vm;

/// The modules that drive the devices and read ext4, in an order in which they can be loaded. Kernels have some of them built
/// in, and some not at all. Of a tree with a list of dependencies, other modules come along as they are needed.
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
    "rng_core",
    "virtio_rng",
    "crc16",
    "crc32c_generic",
    "libcrc32c",
    "mbcache",
    "jbd2",
    "ext4",
    "af_packet",
    "overlay",
];

/// How files of modules end, and what unpacks them.
const KINDS: [(&str, Option<[&str; 2]>); 4] = [
    (".ko", None),
    (".ko.xz", Some(["xz", "xz-utils"])),
    (".ko.zst", Some(["zstd", "zstd"])),
    (".ko.gz", Some(["gzip", "gzip"])),
];

/// Finds out whether there are modules where the description says.
///
/// # Errors
/// [`crate::status::Usage`]: there are none, or several kernels'.
pub fn check(vm: &Vm) -> Result<()> {
    let Some(dir) = &vm.kernel_modules else { return Ok(()) };
    let wrong = |text: &str| Err(vm.wrong("kernel_modules", format!(" {}: {text}", dir.display())));
    if !dir.is_dir() {
        return wrong("no such directory");
    }
    let mut files = Vec::new();
    collect(dir, &mut files)?;
    if !files.iter().any(|path| module_name(path).is_some()) {
        return wrong(
            "no modules in it; give what `make modules_install INSTALL_MOD_PATH=DIR` made, or a lib/modules/VERSION",
        );
    }
    if files.iter().filter(|path| path.ends_with("modules.dep")).count() > 1 {
        return wrong("modules of several kernels; give the lib/modules/VERSION of one");
    }
    Ok(())
}

/// The modules for a guest's devices: names and contents, in the order of loading. Without `kernel_modules` those of the package
/// that was unpacked around `kernel`; none for a kernel from elsewhere.
///
/// # Errors
/// Files that cannot be read or unpacked.
pub fn find(vm: &Vm, kernel: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    if let Some(dir) = &vm.kernel_modules {
        collect(dir, &mut files)?;
    } else if let Some(package) = kernel.parent().and_then(Path::parent) {
        for folder in ["lib/modules", "usr/lib/modules"] {
            collect(&package.join(folder), &mut files)?;
        }
    }
    let list = files.iter().find(|path| path.ends_with("modules.dep"));
    let needs = list.map(fs::read_to_string).transpose().context("cannot read modules.dep")?;
    let paths: HashMap<String, &PathBuf> =
        files.iter().filter_map(|path| Some((module_name(path)?, path))).collect();
    let order = in_order(&dependencies(&needs.unwrap_or_default()));
    order
        .into_iter()
        .filter_map(|name| Some((paths.get(&name)?, name)))
        .map(|(path, name)| Ok((name, read(path)?)))
        .collect()
}

/// The name of the module in this file, with underscores, if it is one.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = KINDS.iter().find_map(|(end, _)| file.strip_suffix(end))?;
    Some(stem.replace('-', "_"))
}

/// What modules.dep says: for each module those that it needs, the first to be loaded last.
fn dependencies(text: &str) -> HashMap<String, Vec<String>> {
    let name = |path: &str| module_name(Path::new(path));
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter_map(|(path, needs)| Some((name(path)?, needs.split_whitespace().filter_map(name).collect())))
        .collect()
}

/// What to load, in order: what each module needs before it.
fn in_order(dependencies: &HashMap<String, Vec<String>>) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        let needs = dependencies.get(module).into_iter().flatten().rev().map(String::as_str);
        for name in needs.chain([module]) {
            if !order.iter().any(|other| other == name) {
                order.push(name.to_owned());
            }
        }
    }
    order
}

/// A module's contents, unpacked.
fn read(path: &Path) -> Result<Vec<u8>> {
    let file = path.to_string_lossy();
    let kind = KINDS.iter().find(|(end, _)| file.ends_with(end));
    let Some([program, package]) = kind.and_then(|(_, program)| *program) else {
        return fs::read(path).with_context(|| format!("cannot read {file}"));
    };
    let mut unpack = Command::new(program);
    let output = unpack.args(["-d", "-c"]).arg(path).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot unpack {file}: install {package}"))?;
    if !output.status.success() {
        bail!("cannot unpack {file}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

/// Adds all files below `folder`, if it is there. Links are not followed: modules_install leaves one to the sources.
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
    use crate::status::Usage;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, contents) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        dir
    }

    fn module(name: &str, contents: &str) -> (String, Vec<u8>) {
        (name.to_owned(), contents.as_bytes().to_vec())
    }

    #[test]
    fn modules_come_in_order_and_those_that_are_missing_are_left_out() {
        let package = tree(&[
            ("lib/modules/6.1/kernel/drivers/virtio_blk.ko", "blk"),
            ("lib/modules/6.1/kernel/core/virtio.ko", "core"),
            ("lib/modules/6.1/kernel/rng-core.ko", "rng"),
            ("lib/modules/6.1/kernel/other.ko", ""),
        ]);
        let vm = Vm::named("guest");
        let found = find(&vm, &package.path().join("boot/vmlinuz")).unwrap();
        assert_eq!(found, [module("virtio", "core"), module("virtio_blk", "blk"), module("rng_core", "rng")]);
        assert!(find(&vm, Path::new("vmlinuz")).unwrap().is_empty());
    }

    #[test]
    fn a_list_of_dependencies_brings_more() {
        let dep = "kernel/virtio_blk.ko: kernel/new-a.ko kernel/new_b.ko\nkernel/new-a.ko: kernel/new_b.ko\nkernel/new_b.ko:\n";
        let files =
            [("6/kernel/virtio_blk.ko", "blk"), ("6/kernel/new-a.ko", "a"), ("6/kernel/new_b.ko", "b")];
        let dir = tree(&[&files[..], &[("6/modules.dep", dep)]].concat());
        let vm = Vm { kernel_modules: Some(dir.path().to_owned()), ..Vm::named("guest") };
        check(&vm).unwrap();
        let found = find(&vm, Path::new("vmlinuz")).unwrap();
        assert_eq!(found, [module("new_b", "b"), module("new_a", "a"), module("virtio_blk", "blk")]);
    }

    #[test]
    fn packed_modules_are_unpacked() {
        let dir = tree(&[("virtio.ko", "core")]);
        let status = Command::new("gzip").arg(dir.path().join("virtio.ko")).status().unwrap();
        assert!(status.success() && dir.path().join("virtio.ko.gz").exists());
        let vm = Vm { kernel_modules: Some(dir.path().to_owned()), ..Vm::named("guest") };
        assert_eq!(find(&vm, Path::new("vmlinuz")).unwrap(), [module("virtio", "core")]);
        fs::write(dir.path().join("virtio.ko.gz"), "damaged").unwrap();
        assert!(find(&vm, Path::new("vmlinuz")).unwrap_err().to_string().contains("cannot unpack"));
    }

    #[test]
    fn folders_without_modules_are_refused() {
        let said = |dir: &Path| {
            let vm = Vm { kernel_modules: Some(dir.to_owned()), ..Vm::named("guest") };
            let error = check(&vm).unwrap_err();
            assert!(error.is::<Usage>());
            error.to_string()
        };
        assert!(said(Path::new("/no/such")).contains("--modules /no/such: no such directory"));
        assert!(said(tree(&[("a", "")]).path()).contains("no modules in it"));
        let two = tree(&[("6/a.ko", ""), ("6/modules.dep", ""), ("7/modules.dep", "")]);
        assert!(said(two.path()).contains("several kernels"));
    }
}
