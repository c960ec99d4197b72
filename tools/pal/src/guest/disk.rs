//! A guest's disks: which of them a machine takes from their files where they are, and which travel in the bundle.
//!
//! QEMU maps a file into the machine's memory, where the hypervisor finds it: nothing is copied, and what a guest writes goes to the
//! file, or to memory of QEMU's own (a private mapping). Everywhere else, and for files that cannot be mapped, the contents are in
//! the bundle.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    path::PathBuf,
};

use anyhow::Result;

use tempfile::TempPath;

use super::vm::{self, Vm};
use crate::{
    host::{ext4, needs::Needs},
    ui::shell_word,
};

/// What is mapped is whole pages.
const PAGE: u64 = 4096;

/// A disk.
pub struct Disk {
    /// Where its contents come from.
    pub contents: Contents,
    /// How it was described; the file is the one with the contents.
    pub source: vm::Disk,
}

/// The contents of a disk.
pub enum Contents {
    /// Read already, for the bundle.
    Read(Vec<u8>),
    /// In a file that is mapped.
    Mapped(MappedFile),
}

/// A file that is mapped into the machine's memory, or without the hypervisor is a disk of QEMU's.
pub struct MappedFile {
    /// The file.
    pub path: PathBuf,
    /// Its size, a multiple of 4096.
    pub bytes: u64,
    /// What is written goes to the file.
    pub write_back: bool,
    /// Keeps other runs from writing it meanwhile, or from using it while it is written.
    pub _lock: File,
    /// It was made for this run, and is removed after it.
    pub made: Option<TempPath>,
}

impl Disk {
    /// The disk with the root file system: a file, or one that is made of a directory.
    ///
    /// # Errors
    /// As for [`Disk::open`]; a directory cannot be written back to, or its file system cannot be made.
    pub fn root(vm: &Vm, root: &vm::Disk, needs: &Needs, can_map: bool) -> Result<Disk> {
        if !root.file.is_dir() {
            return Disk::open(vm, root, can_map);
        }
        if root.write_back {
            let text = format!(
                " {}: a directory cannot be written back to; make an image of it: `mke2fs -t ext4 -d {} root.ext4 2G`",
                root.file.display(),
                shell_word(&root.file.to_string_lossy())
            );
            return Err(vm.wrong("root", text));
        }
        let image = tempfile::Builder::new().prefix("pal-").suffix(".ext4").tempfile()?.into_temp_path();
        ext4::make(&root.file, &image, ext4::FREE_MIB, needs.ui)?;
        let mut disk = Disk::open(vm, &vm::Disk { file: image.to_path_buf(), ..root.clone() }, can_map)?;
        if let Contents::Mapped(file) = &mut disk.contents {
            file.made = Some(image);
        }
        Ok(disk)
    }

    /// Opens a disk's file, or reads it where it is not to be mapped.
    ///
    /// # Errors
    /// [`crate::status::Usage`]: it cannot be read, or not be written back to, or another run has it open.
    pub fn open(vm: &Vm, disk: &vm::Disk, can_map: bool) -> Result<Disk> {
        let wrong = |text: String| Err(vm.wrong("disks", format!(" {}: {text}", disk.file.display())));
        // QEMU opens each file for writing, also where it does not write.
        let file = match OpenOptions::new().read(true).write(true).open(&disk.file) {
            Ok(file) => Some(file),
            Err(error) if disk.write_back => return wrong(error.to_string()),
            Err(_) => None,
        };
        let bytes = file.as_ref().and_then(|file| Some(file.metadata().ok()?).filter(fs::Metadata::is_file));
        let bytes = bytes.map_or(0, |metadata| metadata.len());
        let fits = bytes > 0 && bytes.is_multiple_of(PAGE);
        if disk.write_back && !can_map {
            return wrong(
                "only QEMU's machines (--machine qemu-svm, native) write a disk back to its file".into(),
            );
        }
        if disk.write_back && !fits {
            return wrong(format!(
                "only a file of whole pages can be written back to: `truncate -s %4096 {}` fills it up",
                shell_word(&disk.file.to_string_lossy())
            ));
        }
        let Some(lock) = file.filter(|_| can_map && fits) else {
            return match fs::read(&disk.file) {
                Ok(contents) => Ok(Disk { contents: Contents::Read(contents), source: disk.clone() }),
                Err(error) => wrong(error.to_string()),
            };
        };
        let locked = if disk.write_back { lock.try_lock() } else { lock.try_lock_shared() };
        match locked {
            Err(TryLockError::WouldBlock) if disk.write_back => {
                return wrong("something else uses it, another run or another disk of this one".into());
            }
            Err(TryLockError::WouldBlock) => {
                return wrong("something else writes it, another run or another disk of this one".into());
            }
            // A file system without locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let (path, write_back) = (disk.file.clone(), disk.write_back);
        let contents = Contents::Mapped(MappedFile { path, bytes, write_back, _lock: lock, made: None });
        Ok(Disk { contents, source: disk.clone() })
    }

    /// The file, if it is mapped.
    pub fn mapped(&self) -> Option<&MappedFile> {
        match &self.contents {
            Contents::Mapped(file) => Some(file),
            Contents::Read(_) => None,
        }
    }

    /// The contents, if they travel in the bundle.
    pub fn read(&self) -> Option<&[u8]> {
        match &self.contents {
            Contents::Read(contents) => Some(contents),
            Contents::Mapped(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_mapped_where_that_is_possible() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: usize| {
            let path = dir.path().join(name);
            fs::write(&path, vec![7; bytes]).unwrap();
            vm::Disk { file: path, read_only: false, write_back: false }
        };
        let vm = Vm::named("guest");
        let (pages, odd, empty) = (file("pages", 8192), file("odd one", 8193), file("empty", 0));
        let bytes = |disk, can_map| {
            let disk = Disk::open(&vm, disk, can_map).unwrap();
            (disk.mapped().map(|file| file.bytes), disk.read().map(<[u8]>::len))
        };
        assert_eq!(bytes(&pages, true), (Some(8192), None));
        assert_eq!(bytes(&pages, false), (None, Some(8192)));
        assert_eq!(bytes(&odd, true), (None, Some(8193)));
        assert_eq!(bytes(&empty, true), (None, Some(0)));

        let back = |disk: &vm::Disk| vm::Disk { write_back: true, ..disk.clone() };
        let error = |disk: &vm::Disk, can_map| Disk::open(&vm, disk, can_map).err().unwrap().to_string();
        let advice = format!("`truncate -s %4096 '{}/odd one'`", dir.path().display());
        assert!(error(&back(&odd), true).contains(&advice));
        assert!(error(&back(&pages), false).contains("qemu-svm"));
        assert!(
            error(&back(&vm::Disk { file: dir.path().into(), ..pages.clone() }), true).contains("--disk")
        );
        // One that is written is locked against other runs.
        let held = Disk::open(&vm, &back(&pages), true).unwrap();
        assert!(held.mapped().unwrap().write_back);
        assert!(error(&pages, true).contains("something else writes it"));
        drop(held);
        let _two = [&pages, &pages].map(|disk| Disk::open(&vm, disk, true).unwrap());
        assert!(error(&back(&pages), true).contains("something else uses it"));
    }
}
