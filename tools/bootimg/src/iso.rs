//! The CD image, which also boots from a disk or a stick: El Torito entries for BIOS and UEFI, a master boot record with
//! GRUB's boot sector, and a partition table that names the UEFI part.

use std::path::{Path, PathBuf};

use crate::{
    Error, Image, Tools, fat,
    grub::{self, Core},
    stage::{Stage, replace},
};

/// Writes the image to `into`. A file that is there is replaced when everything has worked; a disk is written to.
///
/// # Errors
/// [`Error`].
pub fn iso(image: &Image, tools: &Tools, into: &Path) -> Result<(), Error> {
    let stage = Stage::new(image)?;
    let loader = stage.tree.join(grub::FOLDER);
    stage.core(tools, Core::Cd, &loader.join("bios.img"))?;
    let mut arguments =
        "-no_rc -as mkisofs -r -b boot/grub/bios.img -no-emul-boot -boot-load-size 4 -boot-info-table \
                         --grub2-boot-info --protective-msdos-label"
            .to_owned();
    if image.uefi() {
        let efi = stage.scratch("bootx64.efi");
        stage.core(tools, Core::Efi, &efi)?;
        fat::for_loader(image, tools, &stage.id, &efi, &loader.join("efi.img"))?;
        arguments += " --efi-boot boot/grub/efi.img -efi-boot-part --efi-boot-image";
    }
    stage.set_times()?;
    let made = stage.scratch("image.iso");
    let mut arguments: Vec<PathBuf> = arguments.split_whitespace().map(PathBuf::from).collect();
    arguments.extend(["-V".into(), image.label.clone().into()]);
    arguments.extend(["--grub2-mbr".into(), tools.grub_file("i386-pc/boot_hybrid.img")]);
    arguments.extend(["-o".into(), made.clone(), stage.tree.clone()]);
    tools.run(image, "xorriso", arguments)?;
    replace(&made, into)
}
