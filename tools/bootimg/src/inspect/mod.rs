//! Reads an image back: the files on it, and what its menu does with them.
//!
//! The bytes come from anywhere and are trusted in nothing: whatever an image says about itself is bounded by its size and
//! by [`MAX_FILES`]. Only what images of this crate look like is understood: ISO 9660 with Rock Ridge names, FAT
//! with 16 and 32 bits alone or in the first partition that has one, the menu that [`crate::Menu`] makes.

mod fat;
mod iso9660;
mod menu;
mod source;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use crate::{Error, netboot::SCRIPT, stage::walk};
pub use menu::{Command, Found, MenuFound};
use source::{Damaged, Source};

/// Files and directories at most; an image with more is refused.
pub const MAX_FILES: usize = 10_000;
/// Directories inside each other at most.
const MAX_DEPTH: usize = 16;
/// Bytes of all directories together at most: a damaged image may have one directory in many places.
const MAX_DIRECTORIES: u64 = 16 << 20;

/// What an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A CD image; boots from disks, too.
    Iso,
    /// The image of a disk with a FAT partition, or a disk.
    Disk,
    /// A directory for the network.
    Netboot,
}

/// An image that is being looked at.
pub struct Inspection {
    /// What it is.
    pub kind: Kind,
    /// The volume's name, if it has one.
    pub label: String,
    /// Bytes in all.
    pub size: u64,
    /// There is something that a BIOS boots.
    pub bios: bool,
    /// There is something that 64-bit UEFI boots.
    pub uefi: bool,
    /// Paths and sizes of all files, in the order of their paths.
    pub files: Vec<(String, u64)>,
    volume: Volume,
}

enum Volume {
    Iso(File, Vec<iso9660::Extent>),
    Fat(File, fat::Geometry, Vec<u32>),
    Directory(PathBuf),
}

/// Looks at a file, a disk or a directory.
///
/// # Errors
/// It cannot be read, or is no image that this crate could have made, or is damaged.
pub fn inspect(path: &Path) -> Result<Inspection, Error> {
    if path.is_dir() {
        return directory(path);
    }
    let file = File::open(path).map_err(Error::file(path))?;
    let (mut found, files) = examine(&file).map_err(|damaged| damaged.of(path))?;
    found.volume = match files {
        Places::Iso(extents) => Volume::Iso(file, extents),
        Places::Fat(geometry, clusters) => Volume::Fat(file, geometry, clusters),
    };
    Ok(found)
}

/// Where the files of an image are, in the order of [`Inspection::files`].
enum Places {
    Iso(Vec<iso9660::Extent>),
    Fat(fat::Geometry, Vec<u32>),
}

/// Finds the file system of an image.
fn examine(source: &impl Source) -> Result<(Inspection, Places), Damaged> {
    let base = Inspection {
        kind: Kind::Iso,
        label: String::new(),
        size: source.size()?,
        bios: false,
        uefi: false,
        files: Vec::new(),
        volume: Volume::Directory(PathBuf::new()),
    };
    if let Some(volume) = iso9660::open(source)? {
        let (names, extents) = volume.files.into_iter().unzip();
        let found =
            Inspection { label: volume.label, bios: volume.bios, uefi: volume.uefi, files: names, ..base };
        return Ok((found, Places::Iso(extents)));
    }
    if let Some(volume) = fat::open(source)? {
        let uefi =
            volume.files.iter().any(|((path, _), _)| path.eq_ignore_ascii_case("EFI/BOOT/BOOTX64.EFI"));
        let (names, clusters) = volume.files.into_iter().unzip();
        let found = Inspection {
            kind: Kind::Disk,
            label: volume.label,
            bios: volume.bios,
            uefi,
            files: names,
            ..base
        };
        return Ok((found, Places::Fat(volume.geometry, clusters)));
    }
    Err(Damaged::Unknown)
}

fn directory(path: &Path) -> Result<Inspection, Error> {
    let mut files = Vec::new();
    let mut too_many = false;
    walk(path, &mut |file| {
        if file.is_file() && files.len() < MAX_FILES {
            let name = file.strip_prefix(path).unwrap_or(file).to_string_lossy().into_owned();
            files.push((name, fs::metadata(file)?.len()));
        } else {
            too_many |= file.is_file();
        }
        Ok(())
    })?;
    let has = |name: &str| files.iter().any(|(path, _)| path == name);
    if !has(SCRIPT) || too_many {
        let what = format!("{}: a directory without {SCRIPT}, or with too much else", path.display());
        return Err(Error::Description(what));
    }
    Ok(Inspection {
        kind: Kind::Netboot,
        label: String::new(),
        size: files.iter().map(|(_, size)| size).sum(),
        bios: has("boot/grub/bios.0"),
        uefi: has("boot/grub/x64.efi"),
        files,
        volume: Volume::Directory(path.to_owned()),
    })
}

impl Inspection {
    /// The bytes of a file, by its path.
    ///
    /// # Errors
    /// There is no such file, it is larger than `limit`, or it cannot be read.
    pub fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let wrong = |what: &str| Error::Description(format!("{}: {what}", path.escape_default()));
        let (index, (_, size)) = self
            .files
            .iter()
            .enumerate()
            .find(|(_, (name, _))| name == path)
            .ok_or_else(|| wrong("there is no such file on the image"))?;
        if *size > limit {
            return Err(wrong(&format!("{size} bytes are more than it can be")));
        }
        let damaged = |damaged: Damaged| damaged.of(Path::new(path));
        match &self.volume {
            Volume::Iso(file, extents) => {
                let extent = extents.get(index).ok_or_else(|| wrong("it has no place"))?;
                file.bytes(extent.at(), u64::from(extent.size)).map_err(damaged)
            }
            Volume::Fat(file, geometry, clusters) => {
                let cluster = clusters.get(index).ok_or_else(|| wrong("it has no place"))?;
                geometry.read(file, *cluster, Some(*size)).map_err(damaged)
            }
            Volume::Directory(dir) => fs::read(dir.join(path)).map_err(Error::file(path)),
        }
    }

    /// The menu, if there is one that can be read.
    pub fn menu(&self) -> Option<MenuFound> {
        let path = self
            .files
            .iter()
            .map(|(path, _)| path)
            .find(|path| path.eq_ignore_ascii_case("boot/grub/grub.cfg"))?;
        let text = self.read(path, 1 << 20).ok()?;
        Some(menu::parse(&String::from_utf8_lossy(&text)))
    }
}

#[cfg(test)]
mod tests;

/// Looks at arbitrary bytes as an image and at all files on it; for fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let _ = menu::parse(&String::from_utf8_lossy(&data[..data.len().min(4096)]));
    let _ = crate::identity(data);
    let _ = crate::loadable(data);
    let Ok((found, places)) = examine(&data) else { return };
    assert!(found.files.len() <= MAX_FILES);
    for (index, (path, size)) in found.files.iter().enumerate() {
        assert!(!path.is_empty() && !path.starts_with('/') && path.split('/').all(|part| part != ".."));
        let read = match &places {
            Places::Iso(extents) => data.bytes(extents[index].at(), u64::from(extents[index].size)),
            Places::Fat(geometry, clusters) => geometry.read(&data, clusters[index], Some(*size)),
        };
        assert!(read.is_err() || read.is_ok_and(|bytes| bytes.len() as u64 == *size));
    }
}
