//! A QEMU whose plugins can do what the lab machine takes.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{
    apt::Apt,
    find_program,
    guests::Architecture,
    lock::lock,
    needs::{Needs, QEMU},
};
use crate::status::Usage;

/// The oldest version with version 4 of the plugin interface.
const OLDEST: (u32, u32) = (9, 2);
/// What of Debian's backports makes up a QEMU beside an installed older one, whose libraries it uses.
const PACKAGES: [&str; 4] = ["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"];

/// A QEMU program, with its own firmware if it is not the installed one.
pub struct Emulator {
    /// The program.
    pub program: PathBuf,
    tree: Option<PathBuf>,
}

impl Emulator {
    /// The given one, the installed one, or one that is fetched from Debian's backports into `target/pal` and not
    /// installed.
    ///
    /// # Errors
    /// The given one is too old; none is to be had.
    pub fn with_plugins(given: Option<&Path>, needs: &Needs) -> Result<Emulator> {
        let program = needs.qemu(given)?;
        let found = version(&program);
        if found.is_some_and(|version| version >= OLDEST) {
            return Ok(Emulator { program, tree: None });
        }
        if given.is_some() {
            let found = found.map_or("unknown".into(), |(major, minor)| format!("{major}.{minor}"));
            let text = format!(
                "--qemu {}: its version is {found}, and --lab takes 9.2 or newer: leave --qemu away",
                program.display()
            );
            return Err(Usage::new(text).into());
        }
        let emulator = Emulator::fetched(needs)?;
        match version(&emulator.program) {
            Some(version) if version >= OLDEST => Ok(emulator),
            _ => bail!(
                "{} does not start or is too old: install {QEMU} 9.2 or newer, or give one with --qemu",
                emulator.program.display()
            ),
        }
    }

    fn fetched(needs: &Needs) -> Result<Emulator> {
        let cache = needs.project.cache("qemu")?;
        let _lock = lock(&cache, needs.ui)?;
        let tree = cache.join("backports");
        let program = tree.join("usr/bin").join(QEMU);
        if find_program(&program.to_string_lossy()).is_none() {
            let advice = "--lab takes QEMU 9.2 or newer: install one, or give one with --qemu";
            let Some(mut apt) = Apt::find(needs.project, needs.ui, Architecture::Amd64)? else {
                bail!("{advice} (there is no apt here to fetch it with)");
            };
            apt.use_backports(needs.project).context(advice)?;
            apt.fetch_all(&PACKAGES, &tree).context(advice)?;
        }
        Ok(Emulator { program, tree: Some(tree) })
    }

    /// The arguments that tell it where its firmware is.
    pub fn data(&self) -> Vec<String> {
        let dirs = self
            .tree
            .iter()
            .flat_map(|tree| ["qemu", "seabios"].map(|name| tree.join("usr/share").join(name)));
        dirs.flat_map(|dir| ["-L".to_owned(), dir.to_string_lossy().into_owned()]).collect()
    }
}

/// What a QEMU says of itself: its version, and that of its package.
pub fn about(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
}

/// The major and minor version of a QEMU.
fn version(program: &Path) -> Option<(u32, u32)> {
    parse(&about(program)?)
}

fn parse(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_once("version ")?.1.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(parse("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)"), Some((7, 2)));
        assert_eq!(parse("QEMU emulator version 10.0.2 (Debian)"), Some((10, 0)));
        assert!(parse("QEMU emulator version 9.2.0").unwrap() >= OLDEST);
        assert!(parse("QEMU emulator version 9.1.3").unwrap() < OLDEST);
        assert_eq!(parse("something else"), None);
    }
}
