//! The default guest's initial RAM file system: a static busybox, [`init.sh`](init.sh) and [`session.sh`](session.sh), the files
//! a person adds with `--put`, the command of `--exec`, and the names of the files that come back. The same inputs give the
//! same bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::{cpio::Archive, get::Get, mark};
use crate::status::Usage;

/// One `--put FILE[:GUESTPATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The file or directory on this machine.
    pub file: PathBuf,
    /// Its absolute path in the guest.
    pub guest_path: String,
}

impl Put {
    /// Reads `FILE[:GUESTPATH]`; without GUESTPATH the file lands in the guest's root directory. A file whose own name
    /// holds a colon wins over the split.
    ///
    /// # Errors
    /// A relative GUESTPATH, one with `..`, or a FILE that does not exist. The caller says where the argument comes from.
    pub fn parse(argument: &str) -> Result<Self> {
        let (file, guest_path) = match argument.rsplit_once(':') {
            Some((file, path)) if !Path::new(argument).exists() => (Path::new(file), path.to_owned()),
            _ => {
                let file = Path::new(argument);
                let name = file.file_name().ok_or_else(|| Usage::new(format!("{argument}: no file name")))?;
                (file, format!("/{}", name.to_string_lossy()))
            }
        };
        if !guest_path.starts_with('/')
            || guest_path.ends_with('/')
            || guest_path.split('/').any(|part| part == "..")
        {
            return Err(Usage::new(format!("{argument}: GUESTPATH must be an absolute file name")).into());
        }
        fs::metadata(file).map_err(|error| Usage::new(format!("{}: {error}", file.display())))?;
        Ok(Self { file: file.to_owned(), guest_path })
    }
}

/// What goes into the archive.
pub struct Contents<'a> {
    /// A statically linked busybox.
    pub busybox: &'a Path,
    /// Files to add.
    pub puts: &'a [Put],
    /// Kernel modules to load, in order: names and contents.
    pub modules: &'a [(String, Vec<u8>)],
    /// The shell command that the guest runs instead of an interactive shell.
    pub command: Option<&'a str>,
    /// Files that it sends afterwards.
    pub gets: &'a [Get],
    /// What it boots, if that is not this archive.
    pub root: Option<&'a Root>,
}

/// A root file system of its own, on the first disk.
#[derive(Default)]
pub struct Root {
    /// The disk with the modules of the kernel.
    pub modules_disk: Option<String>,
}

/// Builds the archive.
///
/// # Errors
/// Files that cannot be read.
pub fn build(contents: &Contents) -> Result<Vec<u8>> {
    let mut tree = Tree::default();
    for directory in ["bin", "dev", "pal", "proc", "root", "sys", "tmp"] {
        tree.directory(directory);
    }
    let busybox =
        fs::read(contents.busybox).with_context(|| format!("cannot read {}", contents.busybox.display()))?;
    tree.file("pal/model", 0o755, mark::program(is_wide(&busybox)));
    tree.file("bin/busybox", 0o755, busybox);
    tree.file("init", 0o755, include_bytes!("init.sh").to_vec());
    tree.file("pal/session", 0o644, include_bytes!("session.sh").to_vec());
    if !contents.gets.is_empty() {
        let paths: String = contents.gets.iter().map(|get| format!("{}\n", get.guest_path)).collect();
        tree.file("pal/get", 0o644, paths.into_bytes());
    }
    if let Some(command) = contents.command {
        tree.file("pal/command", 0o644, format!("{command}\n").into_bytes());
    }
    for (number, (name, module)) in contents.modules.iter().enumerate() {
        tree.file(&format!("pal/modules/{number:02}-{name}.ko"), 0o644, module.clone());
    }
    if let Some(root) = contents.root {
        tree.file("pal/root", 0o644, include_bytes!("root.sh").to_vec());
        tree.file("pal/start", 0o644, include_bytes!("start.sh").to_vec());
        tree.file("pal/session.service", 0o644, include_bytes!("session.service").to_vec());
        if let Some(device) = &root.modules_disk {
            tree.file("pal/modules-disk", 0o644, device.clone().into_bytes());
        }
    }
    // What is put into another root file system is copied there.
    let place = if contents.root.is_some() { "pal/put/" } else { "" };
    for put in contents.puts {
        tree.put(&put.file, &format!("{place}{}", put.guest_path.trim_matches('/')))?;
    }
    tree.archive()
}

/// Whether a program is for 64-bit machines (ELF-64 object file format, `EI_CLASS`).
fn is_wide(elf: &[u8]) -> bool {
    elf.get(4) == Some(&2)
}

/// The contents of an archive, by paths without a leading slash.
#[derive(Default)]
pub struct Tree {
    directories: BTreeSet<String>,
    /// Permission bits and contents.
    pub files: BTreeMap<String, (u32, Vec<u8>)>,
    /// Symbolic links, to what they name.
    pub links: BTreeMap<String, String>,
}

impl Tree {
    /// Adds an empty directory.
    pub fn directory(&mut self, path: &str) {
        self.parents(path);
        self.directories.insert(path.to_owned());
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.links.insert(path.to_owned(), target.to_owned());
    }

    /// Adds a file with these permission bits, and the directories that it is in.
    pub fn file(&mut self, path: &str, mode: u32, contents: Vec<u8>) {
        self.parents(path);
        self.files.insert(path.to_owned(), (mode, contents));
    }

    fn parents(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            self.directories.insert(path[..at].to_owned());
        }
    }

    /// Adds a file, or a directory with everything in it; symbolic links inside it stay links.
    fn put(&mut self, file: &Path, guest_path: &str) -> Result<()> {
        let context = || format!("--put: cannot read {}", file.display());
        let metadata = fs::metadata(file).with_context(context)?;
        if !metadata.is_dir() {
            let contents = fs::read(file).with_context(context)?;
            self.file(guest_path, metadata.permissions().mode() & 0o777, contents);
            return Ok(());
        }
        self.directory(guest_path);
        for entry in fs::read_dir(file).with_context(context)? {
            let entry = entry.with_context(context)?;
            let path = format!("{guest_path}/{}", entry.file_name().to_string_lossy());
            if entry.file_type().with_context(context)?.is_symlink() {
                let target = fs::read_link(entry.path()).with_context(context)?;
                self.link(&path, &target.to_string_lossy());
            } else {
                self.put(&entry.path(), &path)?;
            }
        }
        Ok(())
    }

    /// The archive, with the console's device.
    ///
    /// # Errors
    /// Files of 4 GiB and more.
    pub fn archive(self) -> Result<Vec<u8>> {
        let mut archive = Archive::new();
        for directory in &self.directories {
            archive.directory(directory)?;
        }
        // The kernel opens the console for PID 1 before devtmpfs is mounted.
        archive.character_device("dev/console", 5, 1)?;
        for (path, (mode, contents)) in &self.files {
            archive.file(path, *mode, contents)?;
        }
        for (path, target) in &self.links {
            archive.symlink(path, target)?;
        }
        Ok(archive.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_splits_file_and_guest_path() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        let colon = dir.path().join("a:b");
        fs::write(&plain, "x").unwrap();
        fs::write(&colon, "x").unwrap();

        let put = |argument: &str| Put::parse(argument).map(|put| put.guest_path);
        let plain = plain.to_str().unwrap();
        assert_eq!(put(plain).unwrap(), "/plain");
        assert_eq!(put(&format!("{plain}:/etc/x")).unwrap(), "/etc/x");
        assert_eq!(put(colon.to_str().unwrap()).unwrap(), "/a:b");
        assert_eq!(put(&format!("{}:/c", colon.display())).unwrap(), "/c");
        for bad in [":etc/x", ":/etc/", ":/../x", ":"] {
            assert!(put(&format!("{plain}{bad}")).unwrap_err().is::<Usage>(), "{bad}");
        }
        assert!(put("/no/such/file").unwrap_err().is::<Usage>());
    }

    #[test]
    fn the_archive_repeats_byte_for_byte() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("deep")).unwrap();
        for name in ["one", "two", "deep/three"] {
            fs::write(tree.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("one", tree.join("link")).unwrap();
        let puts = [Put { file: tree.clone(), guest_path: "/opt/tree".into() }];
        let contents = Contents {
            busybox: &tree.join("one"),
            puts: &puts,
            modules: &[("virtio".into(), vec![1])],
            command: Some("echo 'a \"b\" $c'"),
            gets: &[Get { guest_path: "/a b".into(), file: "b".into() }],
            root: None,
        };
        let archive = build(&contents).unwrap();
        assert_eq!(archive, build(&contents).unwrap());
        for name in [
            "opt",
            "opt/tree",
            "opt/tree/deep/three",
            "opt/tree/link",
            "pal/command",
            "pal/get",
            "pal/session",
            "pal/modules/00-virtio.ko",
        ] {
            let name = format!("{name}\0");
            assert!(archive.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
        }
    }
}
