//! The guest of the benchmark: one static program as the only file of an initial RAM disk.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{
    guest::cpio::Archive,
    host::{guests::Architecture, needs::is_static_elf},
    project::{Project, TARGET},
    ui::Ui,
};

const PACKAGE: &str = "bench-guest";
const PROFILE: &str = "guest";
/// A static program at a fixed address: nothing is relocated or linked when it starts.
const FLAGS: &str =
    "target.x86_64-unknown-linux-gnu.rustflags=['-Ctarget-feature=+crt-static','-Crelocation-model=static']";

/// Builds the program.
///
/// # Errors
/// It does not compile; no static C library.
pub fn build(project: &Project, ui: &Ui) -> Result<PathBuf> {
    let arguments = ["build", "--quiet", "--package", PACKAGE, "--profile", PROFILE, "--target", TARGET];
    ui.run("building the guest's program", project.cargo().args(arguments).args(["--config", FLAGS]))
        .context(
            "the benchmark's guest needs a static C library: libc6-dev on Debian, glibc-static on Fedora",
        )?;
    let program = project.target.join(TARGET).join(PROFILE).join(PACKAGE);
    if !is_static_elf(&program, Architecture::Amd64) {
        bail!("{} is not a static program", program.display());
    }
    Ok(program)
}

/// The initial RAM disk with the program as the first process.
///
/// # Errors
/// The program cannot be read.
pub fn initramfs(program: &std::path::Path) -> Result<Vec<u8>> {
    let contents = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mut archive = Archive::new();
    for directory in ["dev", "proc", "sys"] {
        archive.directory(directory)?;
    }
    archive.character_device("dev/console", 5, 1)?;
    archive.file("init", 0o755, &contents)?;
    Ok(archive.finish())
}
