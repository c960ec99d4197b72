//! Finds or fetches what a run needs: QEMU, the default kernel, a static busybox, the hypervisor.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::{apt::Apt, find_program};
use crate::{project::Project, status::Usage, ui::Ui};

/// The program that emulates the machines.
pub const QEMU: &str = "qemu-system-x86_64";
/// Packages whose dependency is the newest kernel: Debian's, then Ubuntu's.
const KERNEL_PACKAGES: [&str; 2] = ["linux-image-cloud-amd64", "linux-image-virtual"];

/// Provides what a run needs.
pub struct Needs<'a> {
    /// The checkout.
    pub project: &'a Project,
    /// For messages.
    pub ui: &'a Ui,
    /// Install without asking.
    pub yes: bool,
}

impl Needs<'_> {
    /// QEMU: the given one, or the one in PATH, which is installed if it is missing.
    ///
    /// # Errors
    /// There is none; the error says what to install.
    pub fn qemu(&self, given: Option<&Path>) -> Result<PathBuf> {
        if let Some(path) = given {
            return find_program(&path.to_string_lossy())
                .ok_or_else(|| Usage::new(format!("--qemu {}: no such program", path.display())).into());
        }
        if let Some(path) = find_program(QEMU) {
            return Ok(path);
        }
        match Apt::find(self.project, self.ui)? {
            Some(apt) => apt.install(&["qemu-system-x86"], "QEMU is missing", self.yes)?,
            None => {
                bail!("QEMU is missing: install the package that has {QEMU}, or give one with --qemu PATH")
            }
        }
        find_program(QEMU).with_context(|| format!("{QEMU} is still not in PATH after the installation"))
    }

    /// The default guest's kernel. It is downloaded once and kept under `target/pal/kernel`; nothing is installed.
    ///
    /// # Errors
    /// No apt, no network.
    pub fn kernel(&self) -> Result<PathBuf> {
        let cache = self.project.cache("kernel")?;
        let _lock = lock(&cache)?;
        if let Some(kernel) = cached_kernel(&cache) {
            return Ok(kernel);
        }
        let Some(mut apt) = Apt::find(self.project, self.ui)? else {
            bail!(
                "no apt here to download the default kernel with: give any Linux kernel with --kernel FILE, for example \
                 --kernel /boot/vmlinuz-$(uname -r)"
            );
        };
        let latest = apt.first_known(&KERNEL_PACKAGES).context("cannot find the default kernel")?;
        let package = apt.dependency(&latest, "linux-image-")?;
        apt.fetch(&package, &cache.join(&package))
            .context("cannot fetch the default kernel; give one with --kernel")?;
        cached_kernel(&cache).with_context(|| format!("package {package} has no boot/vmlinuz-*"))
    }

    /// A statically linked busybox: the installed one, or one downloaded and kept under `target/pal/busybox`.
    ///
    /// # Errors
    /// No apt, no network.
    pub fn busybox(&self) -> Result<PathBuf> {
        if let Some(path) = find_program("busybox").filter(|path| is_static_elf(path)) {
            return Ok(path);
        }
        let cache = self.project.cache("busybox")?;
        let _lock = lock(&cache)?;
        let tree = cache.join("busybox-static");
        let Some(path) = busybox_in(&tree) else {
            let Some(mut apt) = Apt::find(self.project, self.ui)? else {
                bail!(
                    "a statically linked busybox is missing: install busybox-static, or give a guest with --initrd FILE"
                );
            };
            let package = apt.first_known(&["busybox-static"])?;
            apt.fetch(&package, &tree)
                .context("cannot fetch busybox; install busybox-static or give --initrd FILE")?;
            return busybox_in(&tree).context("package busybox-static has no bin/busybox");
        };
        Ok(path)
    }

    /// The hypervisor, built by `cargo hv`; or the file that PALIMPSEST_HV names.
    ///
    /// # Errors
    /// The build fails.
    pub fn hypervisor(&self) -> Result<PathBuf> {
        if let Some(path) = std::env::var_os("PALIMPSEST_HV") {
            return Ok(path.into());
        }
        self.ui.run("building the hypervisor", self.project.cargo().args(["hv", "--quiet"]))?;
        Ok(self.project.hypervisor())
    }
}

/// The newest kernel in the cache.
pub fn cached_kernel(cache: &Path) -> Option<PathBuf> {
    let packages = fs::read_dir(cache).ok()?.filter_map(|entry| Some(entry.ok()?.path().join("boot")));
    let files = packages
        .filter_map(|boot| fs::read_dir(boot).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let is_kernel =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"));
    files
        .filter(is_kernel)
        .max_by_key(|path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok())
}

fn busybox_in(tree: &Path) -> Option<PathBuf> {
    ["bin/busybox", "usr/bin/busybox"].iter().map(|path| tree.join(path)).find(|path| is_static_elf(path))
}

/// True for an x86-64 ELF executable without an interpreter.
pub fn is_static_elf(path: &Path) -> bool {
    let mut header = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4096).read_to_end(&mut header));
    if read.is_err() || !header.starts_with(b"\x7fELF\x02\x01") || header.get(18) != Some(&62) {
        return false;
    }
    let word = |at: usize, size: usize| {
        let bytes = header.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    let (Some(table), Some(size), Some(count)) = (word(32, 8), word(54, 2), word(56, 2)) else {
        return false;
    };
    // A program header of type 3 (PT_INTERP) names the dynamic loader.
    (0..count).all(|index| {
        word(table.saturating_add(index * size).min(header.len()), 4).is_some_and(|kind| kind != 3)
    })
}

/// Keeps other pal processes out of a cache directory until dropped.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(".lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}
