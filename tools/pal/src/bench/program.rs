//! The guests of the benchmarks: one static program each, as the only file of an initial RAM disk.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    guest::cpio::Archive,
    host::{guests::Architecture, needs::is_static_elf},
    project::{Project, TARGET},
    ui::Ui,
};

/// The package of the benchmarks' programs.
const PACKAGE: &str = "bench-guest";
/// The program for one processor.
pub const ONE: &str = "bench-guest";
/// The program for several.
pub const SEVERAL: &str = "bench-smp";
const PROFILE: &str = "guest";
/// A static program at a fixed address: nothing is relocated or linked when it starts.
const FLAGS: &str =
    "target.x86_64-unknown-linux-gnu.rustflags=['-Ctarget-feature=+crt-static','-Crelocation-model=static']";

/// Builds a program: [`ONE`] or [`SEVERAL`].
///
/// # Errors
/// Those of [`build_of`].
pub fn build(project: &Project, ui: &Ui, name: &str) -> Result<PathBuf> {
    build_of(project, ui, PACKAGE, name)
}

/// Builds a program of a package, static.
///
/// # Errors
/// It does not compile; no static C library.
pub fn build_of(project: &Project, ui: &Ui, package: &str, name: &str) -> Result<PathBuf> {
    let arguments = ["build", "--quiet", "--package", package, "--bin", name];
    let arguments = [&arguments[..], &["--profile", PROFILE, "--target", TARGET]].concat();
    ui.run("building the guest's program", project.cargo().args(arguments).args(["--config", FLAGS]))
        .context("a guest's program needs a static C library: libc6-dev on Debian, glibc-static on Fedora")?;
    let program = project.target.join(TARGET).join(PROFILE).join(name);
    if !is_static_elf(&program, Architecture::Amd64) {
        bail!("{} is not a static program", program.display());
    }
    Ok(program)
}

/// Builds the long-mode kit into a directory, as a multiboot1 kernel: those are 32-bit ELF files, whatever is in them.
///
/// # Errors
/// It does not compile; no objcopy.
pub fn kit(project: &Project, ui: &Ui, directory: &Path) -> Result<PathBuf> {
    let mut build = project.cargo();
    ui.run("building the test kernel", build.args(["kit", "--quiet"]).env_remove("RUSTFLAGS"))?;
    let kernel = directory.join("kit");
    let mut wrap = Command::new("objcopy");
    wrap.args(["--input-target=elf64-x86-64", "--output-target=elf32-i386", "--strip-debug"]);
    wrap.arg(project.target.join(TARGET).join("hv/long-mode-kit")).arg(&kernel);
    ui.run("wrapping the test kernel", &mut wrap)
        .context("the test kernel needs objcopy: install binutils")?;
    Ok(kernel)
}

/// The initial RAM disk with the program as the first process.
///
/// # Errors
/// The program cannot be read.
pub fn initramfs(program: &Path) -> Result<Vec<u8>> {
    let contents = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mut archive = Archive::new();
    for directory in ["dev", "proc", "sys"] {
        archive.directory(directory)?;
    }
    archive.character_device("dev/console", 5, 1)?;
    archive.file("init", 0o755, &contents)?;
    Ok(archive.finish())
}
