//! The CD image, which also boots from a disk or a stick: El Torito entries for BIOS and UEFI, a master boot record with
//! GRUB's boot sector, and a partition table that names the UEFI part.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Error, Firmware, Image, Tools,
    grub::{self, Core},
};

/// Writes the image to `into`. A file that is there is replaced, and only when everything has worked.
///
/// # Errors
/// [`Error`]; nothing is left behind.
pub fn iso(image: &Image, tools: &Tools, into: &Path) -> Result<(), Error> {
    image.check()?;
    let config = grub::config(&image.menu);
    let id = image.id(&config);
    let scratch =
        tempfile::Builder::new().prefix("bootimg-").tempdir().map_err(Error::file(std::env::temp_dir()))?;
    let tree = scratch.path().join("tree");
    stage(image, &config, &id, &tree)?;
    let loader = tree.join("boot/grub");
    grub::core(image, tools, Core::Cd, &id, scratch.path(), &loader.join("bios.img"))?;
    if image.firmware == Firmware::Both {
        let efi = scratch.path().join("bootx64.efi");
        grub::core(image, tools, Core::Efi, &id, scratch.path(), &efi)?;
        efi_partition(image, tools, &id, &efi, &loader.join("efi.img"))?;
    }
    set_times(image, &tree)?;
    let made = scratch.path().join("image.iso");
    let uefi: &[&str] = match image.firmware {
        Firmware::Bios => &[],
        Firmware::Both => &["--efi-boot", "boot/grub/efi.img", "-efi-boot-part", "--efi-boot-image"],
    };
    let mut arguments: Vec<PathBuf> = [
        "-no_rc",
        "-as",
        "mkisofs",
        "-r",
        "-V",
        &image.label,
        "-b",
        "boot/grub/bios.img",
        "-no-emul-boot",
        "-boot-load-size",
        "4",
        "-boot-info-table",
        "--grub2-boot-info",
        "--protective-msdos-label",
        "--grub2-mbr",
    ]
    .map(PathBuf::from)
    .into();
    arguments.push(tools.grub_file("i386-pc/boot_hybrid.img"));
    arguments.extend(uefi.iter().map(PathBuf::from));
    arguments.extend(["-o".into(), made.clone(), tree]);
    tools.run(image, "xorriso", arguments)?;
    replace(&made, into)
}

/// Writes the files, the menu and the marker to a directory.
pub(crate) fn stage(image: &Image, config: &str, id: &str, tree: &Path) -> Result<(), Error> {
    let write = |path: &str, contents: &[u8]| {
        let path = tree.join(path);
        let parent = path.parent().unwrap_or(tree);
        fs::create_dir_all(parent).map_err(Error::file(parent))?;
        fs::write(&path, contents).map_err(Error::file(&path))
    };
    write("boot/grub/grub.cfg", config.as_bytes())?;
    write(&grub::marker(id), b"")?;
    image.files().try_for_each(|file| write(file.path, file.contents))
}

/// The FAT file system from which UEFI starts the loader.
fn efi_partition(image: &Image, tools: &Tools, id: &str, loader: &Path, into: &Path) -> Result<(), Error> {
    let size = fs::metadata(loader).map_err(Error::file(loader))?.len();
    let file = fs::File::create(into).map_err(Error::file(into))?;
    // The least multiple of 64 KiB with room for the file system's tables.
    let size = (size + (64 << 10)).next_multiple_of(64 << 10);
    file.set_len(size).map_err(Error::file(into))?;
    let sectors = (size / 512).to_string();
    let into = into.to_string_lossy();
    let loader = loader.to_string_lossy();
    let serial = &id[..8];
    tools.run(
        image,
        "mformat",
        ["-i", &into, "-T", &sectors, "-h", "16", "-s", "32", "-N", serial, "-v", &image.label, "::"],
    )?;
    tools.run(image, "mmd", ["-i", &into, "::/EFI", "::/EFI/BOOT"])?;
    tools.run(image, "mcopy", ["-i", &into, &loader, "::/EFI/BOOT/BOOTX64.EFI"])
}

/// Gives all files and directories the image's time.
fn set_times(image: &Image, path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        for entry in fs::read_dir(path).map_err(Error::file(path))? {
            set_times(image, &entry.map_err(Error::file(path))?.path())?;
        }
    }
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(image.epoch.into());
    let file = fs::File::open(path).map_err(Error::file(path))?;
    file.set_modified(time).map_err(Error::file(path))
}

/// Moves a finished image to its place. What is no plain file, such as a disk, is written to and stays what it is.
pub(crate) fn replace(made: &Path, into: &Path) -> Result<(), Error> {
    let copy = || fs::copy(made, into).map(drop);
    let special = fs::metadata(into).is_ok_and(|metadata| !metadata.is_file());
    // A rename does not reach other file systems.
    if special { copy() } else { fs::rename(made, into).or_else(|_| copy()) }.map_err(Error::file(into))
}
