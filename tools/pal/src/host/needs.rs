//! Finds or fetches what a run needs: the emulators, a guest's kernel, a static busybox, the hypervisor.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::{
    apt::Apt,
    ext4, find_program,
    guests::{Architecture, Source, Suite},
    lock::lock,
};
use crate::{cli::Guest, project::Project, status::Usage, ui::Ui};

/// The program that emulates the AMD machines.
pub const QEMU: &str = "qemu-system-x86_64";
/// UEFI for QEMU's machines.
pub const OVMF: &str = "/usr/share/ovmf/OVMF.fd";
/// The program that emulates the Intel machine.
pub const BOCHS: &str = "bochs";

/// What the Intel machine takes besides what makes its boot medium: programs and files, each with its package.
const BOCHS_PARTS: [(&str, &str); 4] = [
    (BOCHS, "bochs"),
    ("/usr/share/bochs/BIOS-bochs-latest", "bochsbios"),
    // A link to a file of a package that Bochs does not insist on.
    ("/usr/share/bochs/VGABIOS-lgpl-latest", "vgabios"),
    ("/usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_term_gui.so", "bochs-term"),
];

/// The packages that the Intel machine lacks.
pub fn missing_for_bochs() -> Vec<&'static str> {
    let here = |part: &str| {
        if part.starts_with('/') { Path::new(part).exists() } else { find_program(part).is_some() }
    };
    let parts = BOCHS_PARTS.iter().filter(|(part, _)| !here(part));
    let mut packages: Vec<_> = parts.map(|(_, package)| *package).collect();
    if let Err(bootimg::Error::Missing { packages: more, .. }) = bootimg::Tools::find(bootimg::Firmware::Bios)
    {
        packages.extend(more);
    }
    packages
}

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
        match Apt::find(self.project, self.ui, Architecture::Amd64)? {
            Some(apt) => apt.install(&["qemu-system-x86"], "QEMU is missing", self.yes)?,
            None => {
                bail!("QEMU is missing: install the package that has {QEMU}, or give one with --qemu PATH")
            }
        }
        find_program(QEMU).with_context(|| format!("{QEMU} is still not in PATH after the installation"))
    }

    /// Bochs: the given one, or the one in PATH. It and what makes its boot medium are installed if they are missing.
    ///
    /// # Errors
    /// Something is missing; the error says what to install.
    pub fn bochs(&self, given: Option<&Path>) -> Result<PathBuf> {
        let program = given.map_or(BOCHS.into(), Path::to_string_lossy);
        if given.is_some() && find_program(&program).is_none() {
            return Err(Usage::new(format!("--bochs {program}: no such program")).into());
        }
        let missing = || {
            let mut packages = missing_for_bochs();
            packages.retain(|package| given.is_none() || *package != "bochs");
            packages
        };
        let packages = missing();
        if !packages.is_empty() {
            let why = "Bochs or something for its boot medium is missing";
            match Apt::find(self.project, self.ui, Architecture::Amd64)? {
                Some(apt) => apt.install(&packages, why, self.yes)?,
                None => bail!("{why}: install what Debian packages as {}", packages.join(", ")),
            }
            let packages = missing();
            if !packages.is_empty() {
                bail!("{why} after the installation of {}", packages.join(", "));
            }
        }
        find_program(&program).context("bochs is still not in PATH after the installation")
    }

    /// A guest's kernel. It is downloaded once and kept under `target/pal`; nothing is installed.
    ///
    /// # Errors
    /// No apt, no network, no such package.
    pub fn kernel(&self, guest: Guest) -> Result<PathBuf> {
        let Source { architecture, suite, kernels, kernel_cache, .. } = guest.source();
        let cache = self.project.cache(&kernel_cache)?;
        let _lock = lock(&cache, self.ui)?;
        if let Some(kernel) = cached_kernel(&cache) {
            return Ok(kernel);
        }
        let Some(mut apt) = Apt::find(self.project, self.ui, architecture)? else {
            let example = match architecture {
                Architecture::Amd64 => ", for example --kernel /boot/vmlinuz-$(uname -r)",
                Architecture::I386 => "",
            };
            bail!(
                "no apt here to download the kernel of {guest} with: give any Linux kernel with --kernel FILE{example}"
            );
        };
        let advice = || format!("cannot fetch the kernel of {guest}; give one with --kernel");
        if suite == Suite::Backports {
            apt.use_backports(self.project).with_context(advice)?;
        }
        let found = match apt.first_known(&kernels) {
            // Newer ones may be there.
            Err(_) if suite == Suite::Any => {
                apt.use_backports(self.project).and_then(|()| apt.first_known(&kernels))
            }
            found => found,
        };
        let latest = found.with_context(advice)?;
        // One that names the newest depends on it.
        let package = apt.dependency(&latest, "linux-image-").with_context(advice)?.unwrap_or(latest);
        apt.fetch(&package, &cache.join(&package)).with_context(advice)?;
        cached_kernel(&cache).with_context(|| format!("package {package} has no boot/vmlinuz-*"))
    }

    /// A file system with the modules in this directory, the `lib/modules/RELEASE` of a kernel. It is kept, and made again once
    /// the directory has changed.
    ///
    /// # Errors
    /// depmod or mke2fs is missing; the error says what to install.
    pub fn modules_disk(&self, modules: &Path) -> Result<PathBuf> {
        let wrong = || format!("no modules of a kernel: {}", modules.display());
        let modules = &fs::canonicalize(modules).with_context(wrong)?;
        let release = modules.file_name().with_context(wrong)?.to_string_lossy().into_owned();
        let base = modules.ancestors().nth(3).with_context(wrong)?;
        let cache = self.project.cache("modules")?;
        let _lock = lock(&cache, self.ui)?;
        // What depmod writes, which a new kernel's modules come with; packages leave it to their installation.
        let list = modules.join("modules.dep");
        if !list.exists() {
            let depmod = || ext4::find_admin_program("depmod");
            if depmod().is_none()
                && let Some(apt) = Apt::find(self.project, self.ui, Architecture::Amd64)?
            {
                apt.install(&["kmod"], "depmod is missing", self.yes)?;
            }
            let depmod = depmod().context("depmod is missing: install kmod")?;
            let mut command = std::process::Command::new(depmod);
            self.ui.run("listing the kernel's modules", command.arg("-b").arg(base).arg(&release))?;
        }
        // Kernels built in different places may have one release.
        let mut place = DefaultHasher::new();
        modules.hash(&mut place);
        let image = cache.join(format!("{release}-{:016x}.ext4", place.finish()));
        let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        if modified(&image).is_none_or(|made| Some(made) < modified(&list)) {
            let unfinished = image.with_extension("part");
            ext4::make(modules, &unfinished, 0, self.ui)?;
            fs::rename(&unfinished, &image)?;
        }
        Ok(image)
    }

    /// mmdebstrap, installed if it is missing.
    ///
    /// # Errors
    /// It is not to be had; the error says what to install.
    pub fn mmdebstrap(&self) -> Result<PathBuf> {
        if let Some(path) = find_program("mmdebstrap") {
            return Ok(path);
        }
        match Apt::find(self.project, self.ui, Architecture::Amd64)? {
            Some(apt) => apt.install(&["mmdebstrap"], "mmdebstrap is missing", self.yes)?,
            None => bail!(
                "mmdebstrap is missing: install it, or give `run --root` a directory or image of your own"
            ),
        }
        find_program("mmdebstrap").context("mmdebstrap is still not in PATH after the installation")
    }

    /// A statically linked busybox of the guest's architecture: the installed one, or one downloaded and kept under
    /// `target/pal`.
    ///
    /// # Errors
    /// No apt, no network.
    pub fn busybox(&self, guest: Guest) -> Result<PathBuf> {
        let Source { architecture, busybox_cache, .. } = guest.source();
        if let Some(path) = find_program("busybox").filter(|path| is_static_elf(path, architecture)) {
            return Ok(path);
        }
        let cache = self.project.cache(busybox_cache)?;
        let _lock = lock(&cache, self.ui)?;
        let tree = cache.join("busybox-static");
        let in_tree = || {
            let paths = ["bin/busybox", "usr/bin/busybox"].map(|path| tree.join(path));
            paths.into_iter().find(|path| is_static_elf(path, architecture))
        };
        if let Some(path) = in_tree() {
            return Ok(path);
        }
        let install = match architecture {
            Architecture::Amd64 => "install busybox-static, or ",
            Architecture::I386 => "",
        };
        let Some(mut apt) = Apt::find(self.project, self.ui, architecture)? else {
            bail!("a statically linked busybox for {} is missing: {install}give --initrd FILE", guest);
        };
        let advice = || format!("cannot fetch busybox for {}; {install}give --initrd FILE", guest);
        let package = apt.first_known(&["busybox-static"]).with_context(advice)?;
        apt.fetch(&package, &tree).with_context(advice)?;
        in_tree().context("package busybox-static has no bin/busybox")
    }

    /// What the boot tests of `pal test` take besides QEMU.
    ///
    /// # Errors
    /// Something is missing; the error says what to install.
    pub fn boot_tests(&self) -> Result<()> {
        self.media(bootimg::Firmware::Both)?;
        if !Path::new(OVMF).exists() {
            match Apt::find(self.project, self.ui, Architecture::Amd64)? {
                Some(apt) => apt.install(&["ovmf"], "UEFI for QEMU is missing", self.yes)?,
                None => bail!("UEFI for QEMU is missing: {OVMF}, in Debian's package ovmf"),
            }
        }
        Ok(())
    }

    /// What makes boot media, installed if it is missing.
    ///
    /// # Errors
    /// Something is missing; the error says what to install.
    pub fn media(&self, firmware: bootimg::Firmware) -> Result<bootimg::Tools> {
        match bootimg::Tools::find(firmware) {
            Err(error @ bootimg::Error::Missing { .. }) => {
                let bootimg::Error::Missing { what, packages } = &error else { return Err(error.into()) };
                let Some(apt) = Apt::find(self.project, self.ui, Architecture::Amd64)? else {
                    return Err(error.into());
                };
                apt.install(packages, &format!("{} missing", what.join(", ")), self.yes)?;
                Ok(bootimg::Tools::find(firmware)?)
            }
            found => Ok(found?),
        }
    }

    /// The hypervisor, built by `cargo hv`; or the file that PALIMPSEST_HV names.
    ///
    /// # Errors
    /// The build fails.
    pub fn hypervisor(&self) -> Result<PathBuf> {
        if let Some(path) = std::env::var_os("PALIMPSEST_HV") {
            return Ok(path.into());
        }
        self.ui.run("building the hypervisor", &mut self.project.build_hypervisor())?;
        Ok(self.project.hypervisor())
    }

    /// The lab machine's plugin for QEMU.
    ///
    /// # Errors
    /// The build fails.
    pub fn lab_plugin(&self) -> Result<PathBuf> {
        let mut command = self.project.cargo();
        command.args(["build", "--quiet", "--profile", "lab", "--package", "labsim-plugin"]);
        self.ui.run("building the lab machine", &mut command)?;
        Ok(self.project.target.join("lab/liblabsim_plugin.so"))
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

/// True for an ELF executable of this architecture without an interpreter.
pub fn is_static_elf(path: &Path, architecture: Architecture) -> bool {
    /// What differs between ELF64 and ELF32: class and machine; place and width of `e_phoff`; place of `e_phentsize`,
    /// which `e_phnum` follows.
    struct Layout {
        class: u8,
        machine: u8,
        table: (usize, usize),
        size: usize,
    }
    let layout = match architecture {
        Architecture::Amd64 => Layout { class: 2, machine: 62, table: (32, 8), size: 54 },
        Architecture::I386 => Layout { class: 1, machine: 3, table: (28, 4), size: 42 },
    };
    let mut header = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4096).read_to_end(&mut header));
    if read.is_err()
        || !header.starts_with(&[0x7f, b'E', b'L', b'F', layout.class, 1])
        || header.get(18) != Some(&layout.machine)
    {
        return false;
    }
    let word = |at: usize, size: usize| {
        let bytes = header.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    let (Some(table), Some(size), Some(count)) =
        (word(layout.table.0, layout.table.1), word(layout.size, 2), word(layout.size + 2, 2))
    else {
        return false;
    };
    // A program header of type 3 (PT_INTERP) names the dynamic loader.
    (0..count).all(|index| {
        word(table.saturating_add(index * size).min(header.len()), 4).is_some_and(|kind| kind != 3)
    })
}
