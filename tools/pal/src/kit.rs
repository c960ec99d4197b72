//! The guest kit: a kernel module that counts page faults on a page shared with the hypervisor, and gives programs memory in
//! regions (`guest-kits/linux`), built for a guest's kernel and kept under `target/pal`.
//!
//! `run --kit` has the default initramfs load it; `pal kit` prints where it is. It is built against the headers of the kernel's
//! release: those that belong to its modules (`build` in `lib/modules/RELEASE`), or Debian's, fetched and unpacked as kernels
//! are. Nothing is installed without being asked for, and no kernel is built.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    cli::Guest,
    guest::{drivers, image, vm::Vm},
    host::{apt::Apt, find_program, guests::Architecture, lock::lock, needs::Needs},
    status::Usage,
};

/// The module's name, which its file has with `.ko`.
pub const NAME: &str = "palimpsest";
/// What it is made of, in the checkout, in the same places in the directory where it is built.
const SOURCES: [&str; 10] = [
    "guest-kits/linux/Kbuild",
    "guest-kits/linux/kit.h",
    "guest-kits/linux/main.c",
    "guest-kits/linux/mapping.c",
    "guest-kits/linux/programs.c",
    "guest-kits/linux/programs.h",
    "guest-kits/linux/regions.c",
    "guest-kits/linux/slab_names.c",
    "guest-kits/linux/slab_names.h",
    "abi/include/palimpsest.h",
];

/// Options of `pal kit`.
#[derive(Args)]
pub struct KitArgs {
    /// The guest whose kernel it is for, by a name as of `pal run --guest`
    #[arg(long, value_name = "NAME", default_value_t = Guest::DebianAmd64)]
    pub guest: Guest,
    /// A kernel file in its place
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Where the modules of that kernel are, with `build`, the directory of its headers
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub modules: Option<PathBuf>,
    /// Install what is missing without asking
    #[arg(long)]
    pub yes: bool,
}

/// `pal kit`.
///
/// # Errors
/// As of [`build`].
pub fn run(args: &KitArgs, needs: &Needs) -> Result<u8> {
    let vm = Vm {
        guest: Some(args.guest),
        kernel: args.kernel.clone(),
        kernel_modules: args.modules.clone(),
        kit: true,
        ..Vm::named("guest")
    };
    vm.check()?;
    drivers::check(&vm)?;
    let path = args.kernel.clone().map_or_else(|| needs.kernel(args.guest), Ok)?;
    let kernel =
        fs::read(&path).map_err(|error| Usage::new(format!("--kernel {}: {error}", path.display())))?;
    println!("{}", build(&vm, needs, &path, &kernel)?.display());
    Ok(0)
}

/// The module for the kernel in this file, whose contents these are. It is built once for each release and version of the
/// sources.
///
/// # Errors
/// The kernel names no release, there are no headers for it, a program is missing; the error says what to do.
pub fn build(vm: &Vm, needs: &Needs, path: &Path, kernel: &[u8]) -> Result<PathBuf> {
    let release = image::release(kernel).ok_or_else(|| {
        let text =
            format!(": {} names no release, for which there could be headers; use a bzImage", path.display());
        vm.wrong("kit", text)
    })?;
    let own = drivers::folder(vm, path, kernel).map(|modules| modules.join("build"));
    let headers = match own.filter(|build| build.join("Makefile").is_file()) {
        Some(own) => fs::canonicalize(own)?,
        None => fetch_headers(vm, needs, release)?,
    };
    let cache = needs.project.cache("kit")?;
    let _lock = lock(&cache, needs.ui)?;
    let mut key = DefaultHasher::new();
    headers.hash(&mut key);
    let scratch =
        tempfile::tempdir_in(&cache).with_context(|| format!("cannot write to {}", cache.display()))?;
    for source in SOURCES {
        let from = needs.project.root.join(source);
        let contents = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        contents.hash(&mut key);
        let to = scratch.path().join(source);
        fs::create_dir_all(to.parent().context("a file has a directory")?)?;
        fs::write(&to, contents).with_context(|| format!("cannot write {}", to.display()))?;
    }
    let module = cache.join(format!("{release}-{:016x}.ko", key.finish()));
    if !module.exists() {
        check_programs(needs, &headers)?;
        let place = scratch.path().join("guest-kits/linux");
        let mut make = Command::new("make");
        // Words of a make around this one are not for the kernel's.
        make.env_remove("MAKEFLAGS").env("LC_ALL", "C");
        make.arg("-C").arg(&headers).arg(format!("M={}", place.display())).arg("modules");
        // Its types as BTF, which newer headers want, take pahole and serve programs in BPF alone.
        make.arg("CONFIG_DEBUG_INFO_BTF_MODULES=");
        needs.ui.run(&format!("building the guest kit for {release}"), &mut make)?;
        let built = place.join(format!("{NAME}.ko"));
        fs::rename(&built, &module).with_context(|| format!("the build left no {}", built.display()))?;
    }
    Ok(module)
}

/// make, and the compiler that these headers name.
fn check_programs(needs: &Needs, headers: &Path) -> Result<()> {
    let variables = fs::read_to_string(headers.join(".kernelvariables")).unwrap_or_default();
    for program in ["make", compiler(&variables)] {
        if find_program(program).is_some() {
            continue;
        }
        let why = format!("{program} is missing, which builds the guest kit (--kit)");
        match Apt::find(needs.project, needs.ui, Architecture::Amd64)? {
            Some(apt) => apt.install(&[program], &why, needs.yes)?,
            None => bail!("{why}: install it"),
        }
    }
    Ok(())
}

/// The compiler that Debian's headers choose, which is the one that built the kernel: `$(CROSS_COMPILE)gcc-12`. The machine's own
/// where nothing is chosen.
fn compiler(variables: &str) -> &str {
    let line =
        variables.lines().find(|line| line.trim_start().trim_start_matches("override ").starts_with("CC "));
    let name = line.and_then(|line| line.rsplit([' ', ')', '=']).next()).map(str::trim);
    name.filter(|name| name.starts_with("gcc")).unwrap_or("gcc")
}

/// Debian's headers for this release of a kernel, downloaded once and unpacked: the directory in which modules are built.
fn fetch_headers(vm: &Vm, needs: &Needs, release: &str) -> Result<PathBuf> {
    let source = vm.guest().source();
    let cache = needs.project.cache("headers")?;
    let _lock = lock(&cache, needs.ui)?;
    let package = format!("linux-headers-{release}");
    let tree = cache.join(release);
    let headers = tree.join("usr/src").join(&package);
    if headers.is_dir() {
        return Ok(headers);
    }
    let advice = || {
        format!(
            "cannot fetch {package}, without which {} cannot build the guest kit; a newer kernel has headers (remove the old one \
             from target/pal/kernel*), or give {} with a `build` in it",
            vm.called("kit"),
            vm.called("kernel_modules")
        )
    };
    let Some(mut apt) = Apt::find(needs.project, needs.ui, source.architecture)? else {
        bail!(
            "no apt here to download {package} with: give {} with a `build` in it",
            vm.called("kernel_modules")
        );
    };
    if apt.first_known(&[&package]).is_err() {
        apt.use_backports(needs.project).with_context(advice)?;
        apt.first_known(&[&package]).with_context(advice)?;
    }
    let scratch =
        tempfile::tempdir_in(&cache).with_context(|| format!("cannot write to {}", cache.display()))?;
    let unpacked = scratch.path().join("tree");
    let part = |apt: &Apt, prefix: &str| -> Result<String> {
        apt.dependency(&package, prefix)?.with_context(|| format!("{package} depends on no {prefix}*"))
    };
    let common = part(&apt, "linux-headers-").with_context(advice)?;
    let kbuild = part(&apt, "linux-kbuild-").with_context(advice)?;
    apt.fetch_all(&[&package, &common, &kbuild], &unpacked).with_context(advice)?;
    relocate(&unpacked.join("usr/src").join(&package).join("Makefile")).with_context(advice)?;
    fs::rename(&unpacked, &tree).with_context(|| format!("cannot create {}", tree.display()))?;
    Ok(headers)
}

/// Has the Makefile of unpacked headers look for what it includes beside it, and not in `/usr/src`.
fn relocate(makefile: &Path) -> Result<()> {
    let context = || format!("cannot adapt {}", makefile.display());
    let text = fs::read_to_string(makefile).with_context(context)?;
    fs::write(makefile, relocated(&text)).with_context(context)
}

fn relocated(text: &str) -> String {
    text.replace("include /usr/src/", "include $(dir $(lastword $(MAKEFILE_LIST)))../")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_the_one_that_the_headers_name() {
        let debian = "override ARCH = x86\nCCACHE = ccache\nCC = $(if $(DEBIAN_KERNEL_USE_CCACHE),$(CCACHE)) \
                      $(CROSS_COMPILE)gcc-12\nifneq ($(DEB_BUILD_ARCH),$(DEB_HOST_ARCH))\n";
        assert_eq!(compiler(debian), "gcc-12");
        assert_eq!(compiler("CC = gcc-14"), "gcc-14");
        assert_eq!(compiler("override CC = $(CROSS_COMPILE)gcc-13\n"), "gcc-13");
        assert_eq!(["", "CC = clang", "CCACHE = gcc-9"].map(compiler), ["gcc"; 3]);
    }

    #[test]
    fn unpacked_headers_include_what_is_beside_them() {
        let text = relocated("include /usr/src/linux-headers-6.1.0-9-common/Makefile\n");
        assert_eq!(
            text,
            "include $(dir $(lastword $(MAKEFILE_LIST)))../linux-headers-6.1.0-9-common/Makefile\n"
        );
    }
}
