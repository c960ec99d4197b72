//! The files of unpacked packages, as a guest gets them: what programs need when they run, under `usr` as Debian's systems have
//! it, and a link to each program.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::guest::initramfs::Tree;

/// What is taken, below the packages' root or below `usr`: documentation, settings and scripts of services are left.
const TAKEN: [&str; 5] = ["bin", "lib", "lib32", "lib64", "libexec"];
/// Folders of C libraries that no workload reads: tables of character sets.
const LEFT: [&str; 1] = ["gconv"];

/// Adds the files, and a link of its name to each of `programs`, in [`workloads::PROGRAMS`].
///
/// # Errors
/// A file cannot be read; a program is missing.
pub fn add(packages: &Path, programs: &[&str], tree: &mut Tree) -> Result<()> {
    let mut found = Vec::new();
    for folder in TAKEN {
        for place in [packages.join(folder), packages.join("usr").join(folder)] {
            if fs::symlink_metadata(&place).is_ok_and(|metadata| metadata.is_dir()) {
                copy(&place, &format!("usr/{folder}"), tree, &mut found)?;
            }
        }
        tree.link(folder, &format!("usr/{folder}"));
    }
    for program in programs {
        let mut places: Vec<_> =
            found.iter().filter(|path| path.rsplit('/').next() == Some(program)).collect();
        // One that a person could call goes before one that is part of another.
        places.sort_by_key(|path| (!path.starts_with("usr/bin/"), path.len()));
        let place = places.first().with_context(|| format!("no program {program} in the packages"))?;
        tree.link(&format!("{}/{program}", &workloads::PROGRAMS[1..]), &format!("/{place}"));
    }
    Ok(())
}

/// Adds a folder; `programs` are what may be executed in it.
fn copy(folder: &Path, inside: &str, tree: &mut Tree, programs: &mut Vec<String>) -> Result<()> {
    let context = |path: &Path| format!("cannot read {}", path.display());
    let entries = fs::read_dir(folder).with_context(|| context(folder))?;
    let mut entries: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>().with_context(|| context(folder))?;
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let inside = format!("{inside}/{name}");
        let metadata = fs::symlink_metadata(&path).with_context(|| context(&path))?;
        if metadata.is_symlink() {
            let target = fs::read_link(&path).with_context(|| context(&path))?;
            tree.link(&inside, &target.to_string_lossy());
            programs.push(inside);
        } else if metadata.is_dir() {
            if !LEFT.contains(&name.as_str()) {
                copy(&path, &inside, tree, programs)?;
            }
        } else if metadata.is_file() {
            let mode = metadata.permissions().mode() & 0o755;
            tree.file(&inside, mode, fs::read(&path).with_context(|| context(&path))?);
            if mode & 0o111 != 0 {
                programs.push(inside);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_come_to_lie_under_usr() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, mode: u32| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "contents").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        put("bin/gzip", 0o4755);
        put("lib/x86_64-linux-gnu/libc.so.6", 0o644);
        put("usr/lib/gcc/x86_64-linux-gnu/12/cc1", 0o755);
        put("usr/lib/x86_64-linux-gnu/gconv/IBM037.so", 0o644);
        put("usr/share/doc/gzip/copyright", 0o644);
        put("usr/lib/perl/perl", 0o755);
        put("usr/bin/perl", 0o755);
        fs::create_dir_all(dir.path().join("lib64")).unwrap();
        symlink("/lib/x86_64-linux-gnu/ld.so", dir.path().join("lib64/ld-linux-x86-64.so.2")).unwrap();

        let mut tree = Tree::default();
        add(dir.path(), &["gzip", "cc1", "perl"], &mut tree).unwrap();
        let files: Vec<_> = tree.files.iter().map(|(path, (mode, _))| (path.as_str(), *mode)).collect();
        assert_eq!(
            files,
            [
                ("usr/bin/gzip", 0o755),
                ("usr/bin/perl", 0o755),
                ("usr/lib/gcc/x86_64-linux-gnu/12/cc1", 0o755),
                ("usr/lib/perl/perl", 0o755),
                ("usr/lib/x86_64-linux-gnu/libc.so.6", 0o644)
            ]
        );
        let link = |path: &str| tree.links[path].as_str();
        assert_eq!(link("lib64"), "usr/lib64");
        assert_eq!(link("usr/lib64/ld-linux-x86-64.so.2"), "/lib/x86_64-linux-gnu/ld.so");
        assert_eq!(link("program/gzip"), "/usr/bin/gzip");
        assert_eq!(link("program/cc1"), "/usr/lib/gcc/x86_64-linux-gnu/12/cc1");
        assert_eq!(link("program/perl"), "/usr/bin/perl");
        let missing = add(dir.path(), &["bzip2"], &mut Tree::default()).unwrap_err().to_string();
        assert!(missing.contains("bzip2"), "{missing}");
    }
}
