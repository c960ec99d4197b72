//! Images of ext4 file systems, made from directories by e2fsprogs: no mounting, so no root rights.

use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::find_program;
use crate::ui::Ui;

/// Room for what the guest writes, in MiB. The image's file is sparse.
pub const FREE_MIB: u64 = 512;

/// Finds a program that Debian keeps in a folder of the administrator's.
pub fn find_admin_program(name: &str) -> Option<PathBuf> {
    let places = ["/usr/sbin", "/sbin"].map(|folder| format!("{folder}/{name}"));
    find_program(name).or_else(|| places.iter().find_map(|place| find_program(place)))
}

/// Makes the image of a directory, with `free_mib` of free space. Files of the calling user belong to root in it.
///
/// # Errors
/// mke2fs is missing or fails; files that cannot be read.
pub fn make(dir: &Path, image: &Path, free_mib: u64, ui: &Ui) -> Result<()> {
    let mke2fs = find_admin_program("mke2fs").context("mke2fs is missing: install e2fsprogs")?;
    let mut found = Found::default();
    let user = rustix::process::geteuid().as_raw();
    found.add(dir, dir, user)?;
    // A block for the inode and what the tables need of each file, and a tenth for the file system itself.
    let mib = (found.bytes + found.files * 1024).div_ceil(1 << 20) * 11 / 10 + free_mib + 16;
    let text = format!("making a file system of {}", dir.display());
    let mut command = Command::new(mke2fs);
    command.args(["-q", "-F", "-t", "ext4", "-E", "root_owner=0:0,lazy_itable_init=1", "-d"]);
    ui.run(&text, command.arg(dir).arg(image).arg(format!("{mib}M")))?;
    if user != 0 && !found.own.is_empty() {
        let debugfs = find_admin_program("debugfs").context("debugfs is missing: install e2fsprogs")?;
        let commands = tempfile::NamedTempFile::new()?;
        fs::write(commands.path(), found.own)?;
        ui.run(&text, Command::new(debugfs).arg("-w").arg("-f").arg(commands.path()).arg(image))?;
    }
    Ok(())
}

/// What is in a directory.
#[derive(Default)]
struct Found {
    bytes: u64,
    files: u64,
    /// Commands of debugfs that give the person's files to root.
    own: Vec<u8>,
}

impl Found {
    fn add(&mut self, path: &Path, base: &Path, user: u32) -> Result<()> {
        let context = || format!("cannot read {}", path.display());
        let metadata = fs::symlink_metadata(path).with_context(context)?;
        self.files += 1;
        self.bytes += metadata.len().next_multiple_of(4096);
        if user != 0 && metadata.uid() == user {
            let inside = path.strip_prefix(base)?.as_os_str().as_bytes();
            if inside.iter().any(|byte| matches!(byte, b'"' | b'\n')) {
                bail!("{}: a name with a quotation mark or a line feed", path.display());
            }
            for field in ["uid", "gid"] {
                self.own.extend([b"sif \"/", inside, b"\" ", field.as_bytes(), b" 0\n"].concat());
            }
        }
        if metadata.is_dir() {
            for entry in fs::read_dir(path).with_context(context)? {
                self.add(&entry?.path(), base, user)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_becomes_an_image() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::write(tree.join("etc/a b"), "x").unwrap();
        let image = dir.path().join("image");
        make(&tree, &image, 8, &Ui::new(0)).unwrap();
        let debugfs = |command: &str| {
            let program = find_admin_program("debugfs").unwrap();
            let output = Command::new(program).args(["-R", command]).arg(&image).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert_eq!(debugfs("cat \"/etc/a b\""), "x");
        assert!(debugfs("stat \"/etc/a b\"").contains("User:     0   Group:     0"));
        assert!(fs::metadata(&image).unwrap().len().is_multiple_of(4096));
        assert!(make(&dir.path().join("none"), &image, 8, &Ui::new(0)).is_err());
    }

    #[test]
    fn what_is_the_persons_becomes_roots() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("f"), "x").unwrap();
        let user = fs::metadata(dir.path()).unwrap().uid();
        let mut found = Found::default();
        // For another user than root; as root there is nothing to do.
        found.add(dir.path(), dir.path(), user).unwrap();
        let expected = if user == 0 { "" } else { "sif \"/f\" uid 0\n" };
        assert!(String::from_utf8(found.own).unwrap().contains(expected));
        assert_eq!(found.files, 2);
    }
}
