//! Real programs: fetched from Debian's packages once, unpacked under `target/pal/programs` and not installed, and put into a
//! workload's initial RAM disk together with what they need.

mod closure;
mod tree;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use workloads::{Programs, Workload};

use crate::{
    guest::initramfs::Tree,
    host::{apt::Apt, guests::Architecture, lock::lock, needs::Needs},
};

/// The file with the names and versions of a workload's packages, a line for each.
const LIST: &str = "packages";
/// The folder with what they hold.
const FILES: &str = "tree";

/// The packages of a workload with their versions, each `NAME VERSION`, after they have been fetched.
///
/// # Errors
/// No apt, no network, no such package: what to do then.
pub fn fetch(needs: &Needs, workload: &Workload, programs: &Programs) -> Result<Vec<String>> {
    let found = fetch_as(needs, workload.name, programs);
    let (_, packages) = found.with_context(|| {
        format!(
            "workload {}; those that fetch nothing: {}",
            workload.name,
            super::names(|other| other.programs.is_none())
        )
    })?;
    Ok(packages)
}

/// The same of programs that are no workload, under a name of their own: the folder with what the packages hold, as they have it, and
/// the packages.
///
/// # Errors
/// As for [`fetch`].
pub fn fetch_as(needs: &Needs, name: &str, programs: &Programs) -> Result<(PathBuf, Vec<String>)> {
    let cache = needs.project.cache("programs")?;
    let _lock = lock(&cache, needs.ui)?;
    let place = cache.join(name);
    if !place.join(LIST).exists() {
        let advice = || {
            format!(
                "cannot fetch the programs of {name} (package {}): with a network, type this again; they are kept then",
                programs.package,
            )
        };
        fetch_into(needs, programs, &cache, &place).with_context(advice)?;
    }
    let list = fs::read_to_string(place.join(LIST));
    let list = list.with_context(|| format!("cannot read {}; remove that folder", place.display()))?;
    Ok((place.join(FILES), list.lines().map(str::to_owned).collect()))
}

/// Fetches packages into a folder, which exists only if that succeeded.
fn fetch_into(needs: &Needs, programs: &Programs, cache: &Path, place: &Path) -> Result<()> {
    let Some(mut apt) = Apt::find(needs.project, needs.ui, Architecture::Amd64)? else {
        bail!("there is no apt here (apt-get, apt-cache, dpkg-deb)");
    };
    // Fetches lists where there are none.
    apt.first_known(&[programs.package])?;
    let names = closure::closure(programs, |names| apt.show(names))?;
    let scratch = tempfile::Builder::new().prefix("part-").tempdir_in(cache)?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let versions = apt.fetch_all(&names, &scratch.path().join(FILES))?;
    fs::write(
        scratch.path().join(LIST),
        versions.iter().map(|line| format!("{line}\n")).collect::<String>(),
    )?;
    // What an earlier pal has left without its list.
    let _absent = fs::remove_dir_all(place);
    fs::rename(scratch.keep(), place).with_context(|| format!("cannot create {}", place.display()))
}

/// The initial RAM disk with our program as the first process, and the workload's programs, which have been fetched.
///
/// # Errors
/// A file cannot be read; the packages lack a program.
pub fn initramfs(needs: &Needs, workload: &Workload, programs: &Programs, ours: &Path) -> Result<Vec<u8>> {
    let packages = needs.project.cache("programs")?.join(workload.name);
    let mut tree = Tree::default();
    ["dev", "proc", "sys", "tmp"].into_iter().for_each(|directory| tree.directory(directory));
    let ours = fs::read(ours).with_context(|| format!("cannot read {}", ours.display()))?;
    tree.file("init", 0o755, ours);
    tree::add(&packages.join(FILES), programs.files, &mut tree).with_context(|| {
        format!(
            "the programs of workload {}; remove {} to fetch them again",
            workload.name,
            packages.display()
        )
    })?;
    tree.archive()
}
