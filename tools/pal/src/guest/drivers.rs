//! The kernel modules that drive a guest's virtio devices, for kernels that have them not built in: found beside a kernel that
//! was fetched, or where `--modules` says, and loaded by the default initramfs in the order in which they stand here.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{image, vm::Vm};

/// The modules that drive the devices and read ext4, in an order in which they can be loaded. Kernels have some of them built
/// in, and some not at all. Of a tree with a list of dependencies, other modules come along as they are needed.
const MODULES: [&str; 21] = [
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
    "virtio_balloon",
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

/// The directory with the modules of the kernel in this file, `lib/modules/RELEASE`: where `kernel_modules` says, else beside the
/// `boot` that it lies in, in a package that was unpacked or on the machine itself. None for a kernel from elsewhere.
///
/// The release is the one that the kernel names, as it looks for its modules by that in the guest: files can be renamed, and a
/// machine has the modules of all kernels that are installed. Only a kernel that names none is known by its file's name.
pub fn folder(vm: &Vm, path: &Path, kernel: &[u8]) -> Option<PathBuf> {
    let named =
        || path.file_name()?.to_str()?.strip_prefix("vmlinuz-").filter(|name| image::is_release(name));
    let release = image::release(kernel).or_else(named)?;
    let around = match &vm.kernel_modules {
        Some(dir) if dir.ends_with(release) => return Some(dir.clone()),
        Some(dir) => dir,
        None => path.parent()?.parent()?,
    };
    ["lib/modules", "usr/lib/modules"]
        .into_iter()
        .map(|folder| around.join(folder).join(release))
        .find(|folder| folder.is_dir())
}

/// The modules for a guest's devices: names and contents, in the order of loading. Without `kernel_modules` those
/// [beside](folder) the kernel, whose file and its contents these are.
///
/// # Errors
/// Files that cannot be read or unpacked.
pub fn find(vm: &Vm, path: &Path, kernel: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    if let Some(dir) = vm.kernel_modules.clone().or_else(|| folder(vm, path, kernel)) {
        collect(&dir, &mut files)?;
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
            ("boot/vmlinuz-6.1", ""),
            ("lib/modules/6.1/kernel/drivers/virtio_blk.ko", "blk"),
            ("lib/modules/6.1/kernel/core/virtio.ko", "core"),
            ("lib/modules/6.1/kernel/rng-core.ko", "rng"),
            ("lib/modules/6.1/kernel/other.ko", ""),
        ]);
        let vm = Vm::named("guest");
        let found = find(&vm, &package.path().join("boot/vmlinuz-6.1"), b"").unwrap();
        assert_eq!(found, [module("virtio", "core"), module("virtio_blk", "blk"), module("rng_core", "rng")]);
        assert!(find(&vm, Path::new("vmlinuz"), b"").unwrap().is_empty());
    }

    #[test]
    fn a_kernel_gets_its_own_modules_among_those_of_several() {
        // As on a machine with two kernels, each with its list.
        let machine = tree(&[
            ("boot/vmlinuz-6.1.0-9-amd64", ""),
            ("lib/modules/6.1.0-9-amd64/kernel/virtio.ko", "old"),
            ("lib/modules/6.1.0-9-amd64/kernel/virtio_blk.ko", "old blk"),
            ("lib/modules/6.1.0-9-amd64/modules.dep", ""),
            ("lib/modules/6.12.9/kernel/virtio.ko.xz", "not xz: must not be read"),
            ("usr/lib/modules/6.12.9/kernel/virtio.ko", ""),
            ("lib/modules/7.0/kernel/virtio.ko", "new"),
        ]);
        let vm = Vm::named("guest");
        let kernel = |release: &str| {
            let mut bytes = vec![0; 0x300];
            bytes[0x202..0x206].copy_from_slice(b"HdrS");
            bytes[0x20e..0x210].copy_from_slice(&0x80_u16.to_le_bytes());
            bytes[0x280..0x280 + release.len()].copy_from_slice(release.as_bytes());
            bytes
        };
        let found =
            |file: &str, kernel: &[u8]| find(&vm, &machine.path().join("boot").join(file), kernel).unwrap();
        let old = [module("virtio", "old"), module("virtio_blk", "old blk")];
        assert_eq!(found("vmlinuz-6.1.0-9-amd64", &kernel("6.1.0-9-amd64 (root@host) #1")), old);
        // The kernel's word counts, not its file's name.
        assert_eq!(found("vmlinuz", &kernel("6.1.0-9-amd64 x")), old);
        assert_eq!(found("vmlinuz-6.1.0-9-amd64", &kernel("7.0 x")), [module("virtio", "new")]);
        // One without a word of its own.
        assert_eq!(found("vmlinuz-7.0", b""), [module("virtio", "new")]);
        // No modules here, and no others in their place.
        assert!(found("vmlinuz-6.1.0-9-amd64", &kernel("8.0 x")).is_empty());
        assert!(found("vmlinuz-..", b"").is_empty());
        // Where a description says, all of one kernel or its own directory.
        for dir in ["", "lib/modules/7.0"] {
            let vm = Vm { kernel_modules: Some(machine.path().join(dir)), ..Vm::named("guest") };
            let folder = folder(&vm, Path::new("bzImage"), &kernel("7.0 x"));
            assert_eq!(folder, Some(machine.path().join("lib/modules/7.0")));
        }
    }

    #[test]
    fn a_list_of_dependencies_brings_more() {
        let dep = "kernel/virtio_blk.ko: kernel/new-a.ko kernel/new_b.ko\nkernel/new-a.ko: kernel/new_b.ko\nkernel/new_b.ko:\n";
        let files =
            [("6/kernel/virtio_blk.ko", "blk"), ("6/kernel/new-a.ko", "a"), ("6/kernel/new_b.ko", "b")];
        let dir = tree(&[&files[..], &[("6/modules.dep", dep)]].concat());
        let vm = Vm { kernel_modules: Some(dir.path().to_owned()), ..Vm::named("guest") };
        check(&vm).unwrap();
        let found = find(&vm, Path::new("vmlinuz"), b"").unwrap();
        assert_eq!(found, [module("new_b", "b"), module("new_a", "a"), module("virtio_blk", "blk")]);
    }

    #[test]
    fn packed_modules_are_unpacked() {
        let dir = tree(&[("virtio.ko", "core")]);
        let status = Command::new("gzip").arg(dir.path().join("virtio.ko")).status().unwrap();
        assert!(status.success() && dir.path().join("virtio.ko.gz").exists());
        let vm = Vm { kernel_modules: Some(dir.path().to_owned()), ..Vm::named("guest") };
        assert_eq!(find(&vm, Path::new("vmlinuz"), b"").unwrap(), [module("virtio", "core")]);
        fs::write(dir.path().join("virtio.ko.gz"), "damaged").unwrap();
        assert!(find(&vm, Path::new("vmlinuz"), b"").unwrap_err().to_string().contains("cannot unpack"));
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
