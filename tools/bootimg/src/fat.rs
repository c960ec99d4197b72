//! FAT file systems, by mtools.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use crate::{Error, Image, Tools, stage::entries};

/// A file system under construction, in an image file.
pub(crate) struct Fat<'a> {
    image: &'a Image,
    tools: &'a Tools,
    /// mtools' word for the file and the place in it.
    drive: OsString,
}

/// What the file system looks like from outside.
pub(crate) struct Layout {
    /// Bytes of the image file before the file system; a multiple of 512.
    pub offset: u64,
    /// Bytes of the file system, a multiple of 64 KiB.
    pub size: u64,
    /// With entries of 32 bits, which takes 33 MiB and more; otherwise as few bits as will do.
    pub fat32: bool,
}

impl<'a> Fat<'a> {
    /// Formats a part of the file `path`, which is there. The serial number is taken from the image's name `id`.
    pub fn format(
        image: &'a Image,
        tools: &'a Tools,
        path: &Path,
        id: &str,
        layout: &Layout,
    ) -> Result<Self, Error> {
        let mut drive = path.as_os_str().to_owned();
        drive.push(format!("@@{}", layout.offset));
        let fat = Fat { image, tools, drive };
        let (sectors, hidden) = ((layout.size / 512).to_string(), (layout.offset / 512).to_string());
        let geometry =
            ["-T", &sectors, "-h", "64", "-s", "32", "-H", &hidden, "-N", &id[..8], "-v", &image.label];
        let bits = layout.fat32.then_some("-F");
        fat.run("mformat", geometry.into_iter().chain(bits).chain(["::"]).map(PathBuf::from))?;
        Ok(fat)
    }

    /// Makes a directory; its parents are there.
    pub fn directory(&self, path: &str) -> Result<(), Error> {
        self.run("mmd", [PathBuf::from(format!("::/{path}"))])
    }

    /// Copies a file of the host.
    pub fn file(&self, from: &Path, path: &str) -> Result<(), Error> {
        self.run("mcopy", [from.to_owned(), format!("::/{path}").into()])
    }

    /// Copies everything in a directory of the host, in the order of names; `into` is empty or ends with a slash.
    pub fn tree(&self, from: &Path, into: &str) -> Result<(), Error> {
        for entry in entries(from)? {
            let name = format!("{into}{}", entry.file_name().unwrap_or_default().to_string_lossy());
            if entry.is_dir() {
                self.directory(&name)?;
                self.tree(&entry, &format!("{name}/"))?;
            } else {
                self.file(&entry, &name)?;
            }
        }
        Ok(())
    }

    fn run(&self, program: &str, arguments: impl IntoIterator<Item = PathBuf>) -> Result<(), Error> {
        let drive = ["-i".into(), PathBuf::from(&self.drive)];
        self.tools.run(self.image, program, drive.into_iter().chain(arguments))
    }
}

/// The file system from which UEFI starts the loader, alone in a file.
pub(crate) fn for_loader(
    image: &Image,
    tools: &Tools,
    id: &str,
    loader: &Path,
    into: &Path,
) -> Result<(), Error> {
    let size = fs::metadata(loader).map_err(Error::file(loader))?.len();
    // With room for the file system's own tables.
    let layout = Layout { offset: 0, size: (size + (64 << 10)).next_multiple_of(64 << 10), fat32: false };
    fs::File::create(into).and_then(|file| file.set_len(layout.size)).map_err(Error::file(into))?;
    let fat = Fat::format(image, tools, into, id, &layout)?;
    put_loader(&fat, loader)
}

/// Puts the loader where UEFI looks for it on removable media (UEFI specification 2.10, 3.5.1.1).
pub(crate) fn put_loader(fat: &Fat, loader: &Path) -> Result<(), Error> {
    fat.directory("EFI")?;
    fat.directory("EFI/BOOT")?;
    fat.file(loader, "EFI/BOOT/BOOTX64.EFI")
}
