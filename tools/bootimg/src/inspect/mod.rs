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
    os::unix::fs::FileTypeExt,
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
    let kind = fs::metadata(path).map_err(Error::file(path))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        // Reading a pipe could last for ever.
        return Err(Error::Description(format!("{}: neither a file nor a disk", path.display())));
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

/// Finds the file system of an image. Its files fit into it together, so a reader of all of them reads a bounded amount.
fn examine(source: &impl Source) -> Result<(Inspection, Places), Damaged> {
    let (found, places) = find(source)?;
    let total = found.files.iter().try_fold(0u64, |sum, (_, size)| sum.checked_add(*size));
    if total.is_none_or(|total| total > found.size) {
        return Err(Damaged::Inconsistent("its files are larger than the image"));
    }
    Ok((found, places))
}

fn find(source: &impl Source) -> Result<(Inspection, Places), Damaged> {
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
    // First of all: any other directory may have everything below it.
    if !path.join(SCRIPT).is_file() {
        return Err(Error::Description(format!("{}: a directory without {SCRIPT}", path.display())));
    }
    let mut files = Vec::new();
    let mut seen = 0;
    walk(path, &mut |file| {
        seen += 1;
        if seen > MAX_FILES {
            return Err(std::io::Error::other("there are too many files"));
        }
        if file.is_file() {
            let name = file.strip_prefix(path).unwrap_or(file).to_string_lossy().into_owned();
            files.push((name, fs::metadata(file)?.len()));
        }
        Ok(())
    })?;
    let has = |name: &str| files.iter().any(|(path, _)| path == name);
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

/// Looks at arbitrary bytes as an image, and as the directories of both kinds of image; for fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let _ = menu::parse(&String::from_utf8_lossy(&data[..data.len().min(4096)]));
    let _ = crate::identity(data);
    let _ = crate::loadable(data);
    check(data);
    check(&iso_around(data));
    check(&fat_around(data));
}

/// All files of what may be an image.
#[cfg(any(test, feature = "testing"))]
fn check(data: &[u8]) {
    let Ok((found, places)) = examine(&data) else { return };
    assert!(found.files.len() <= MAX_FILES);
    for (index, (path, size)) in found.files.iter().enumerate().take(100) {
        assert!(!path.is_empty() && !path.starts_with('/') && path.split('/').all(|part| part != ".."));
        let read = match &places {
            Places::Iso(extents) => data.bytes(extents[index].at(), u64::from(extents[index].size)),
            Places::Fat(geometry, clusters) => geometry.read(&data, clusters[index], Some(*size)),
        };
        assert!(read.is_err() || read.is_ok_and(|bytes| bytes.len() as u64 == *size));
    }
}

/// An ISO image whose root directory and boot catalogue are `data`.
#[cfg(any(test, feature = "testing"))]
fn iso_around(data: &[u8]) -> Vec<u8> {
    const PLACE: u8 = 18;
    let len = data.len().next_multiple_of(2048);
    let mut image = vec![0; usize::from(PLACE) * 2048 + len];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x8000, b"\x01CD001\x01");
    put(0x8000 + 158, &[PLACE]);
    put(0x8000 + 166, &(len as u32).to_le_bytes());
    put(0x8800, b"\0CD001\x01EL TORITO");
    put(0x8847, &[PLACE]);
    put(usize::from(PLACE) * 2048, data);
    image
}

/// A FAT16 volume whose root directory begins with `data`, and whose table does with the rest of it.
#[cfg(any(test, feature = "testing"))]
fn fat_around(data: &[u8]) -> Vec<u8> {
    const SECTORS: u16 = 1 + 32 + 32 + 5000;
    let mut image = vec![0; usize::from(SECTORS) * 512];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(11, &[0, 2, 1, 1, 0, 1, 0, 2]); // 512 bytes, one sector, one reserved, one table, 512 root entries
    put(19, &SECTORS.to_le_bytes());
    put(22, &[32, 0]);
    put(510, &[0x55, 0xaa]);
    (0..8192u16).for_each(|n| put(512 + usize::from(n) * 2, &(n + 1).to_le_bytes()));
    let (root, table) = data.split_at(data.len() / 2);
    put(512, &table[..table.len().min(32 * 512)]);
    put(33 * 512, &root[..root.len().min(32 * 512)]);
    image
}
