//! What every kind of image begins with: the checked description, its files in a scratch directory, core images.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use tempfile::TempDir;

use crate::{
    Error, Image, Tools,
    grub::{self, Core},
};

/// Files on their way into an image.
pub(crate) struct Stage<'a> {
    image: &'a Image,
    /// The name of the medium, 16 hexadecimal digits.
    pub id: String,
    /// The files as they will be on the image.
    pub tree: PathBuf,
    scratch: TempDir,
}

impl<'a> Stage<'a> {
    /// Checks the description and writes its files, the menu and the marker.
    pub fn new(image: &'a Image) -> Result<Self, Error> {
        image.check()?;
        let config = grub::config(&image.menu);
        let id = image.id(&config);
        let scratch = tempfile::Builder::new().prefix("bootimg-").tempdir();
        let scratch = scratch.map_err(Error::file(std::env::temp_dir()))?;
        let stage = Stage { image, tree: scratch.path().join("tree"), id, scratch };
        stage.write(&format!("{}/grub.cfg", grub::FOLDER), config.as_bytes())?;
        stage.write(&grub::marker(&stage.id), b"")?;
        image.files().try_for_each(|file| stage.write(file.path, file.contents))?;
        Ok(stage)
    }

    fn write(&self, path: &str, contents: &[u8]) -> Result<(), Error> {
        let path = self.tree.join(path);
        let parent = path.parent().unwrap_or(&self.tree);
        fs::create_dir_all(parent).map_err(Error::file(parent))?;
        fs::write(&path, contents).map_err(Error::file(&path))
    }

    /// A path for something on the way, not on the image.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Makes a core image.
    pub fn core(&self, tools: &Tools, core: Core, into: &Path) -> Result<(), Error> {
        grub::core(self.image, tools, core, &self.id, self.scratch.path(), into)
    }

    /// Gives all files and directories the image's time.
    pub fn set_times(&self) -> Result<(), Error> {
        let time = UNIX_EPOCH + Duration::from_secs(self.image.epoch.into());
        walk(&self.tree, &mut |path| fs::File::open(path)?.set_modified(time))
    }
}

/// Visits everything below `path` in the order of names, and `path` at last.
pub(crate) fn walk(path: &Path, visit: &mut dyn FnMut(&Path) -> io::Result<()>) -> Result<(), Error> {
    if path.is_dir() {
        for entry in entries(path)? {
            walk(&entry, visit)?;
        }
    }
    visit(path).map_err(Error::file(path))
}

/// What is in a directory, in the order of names.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(dir).map_err(Error::file(dir))?;
    let entries: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut entries = entries.map_err(Error::file(dir))?;
    entries.sort();
    Ok(entries)
}

/// Moves a finished image to its place. What is no plain file, such as a disk, is written to and stays what it is.
pub(crate) fn replace(made: &Path, into: &Path) -> Result<(), Error> {
    let special = fs::metadata(into).is_ok_and(|metadata| !metadata.is_file());
    let write = || {
        let mut disk = fs::OpenOptions::new().write(true).open(into)?;
        io::copy(&mut fs::File::open(made)?, &mut disk)?;
        // Pipes cannot; for disks it is the moment when errors show.
        disk.sync_all()
            .or_else(|error| if error.kind() == io::ErrorKind::InvalidInput { Ok(()) } else { Err(error) })
    };
    // A rename does not reach other file systems.
    let rename = || fs::rename(made, into).or_else(|_| fs::copy(made, into).map(drop));
    if special { write() } else { rename() }.map_err(Error::file(into))
}
