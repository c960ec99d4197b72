//! The directory for a TFTP or HTTP server: a script for iPXE, the loader for BIOS and UEFI clients, the files.

use std::{fs, path::Path};

use crate::{
    Error, Image, Tools,
    grub::{self, Core},
    stage::Stage,
};

/// The script's name in the directory.
pub const SCRIPT: &str = "palimpsest.ipxe";

/// For iPXE. The loader asks iPXE for the name of the boot file, and so learns where everything is. It is this script's,
/// if DHCP named it; newer versions of iPXE (2020 and later) know it in any case.
const TEXT: &str = "#!ipxe
isset ${cwduri} && set netX/filename ${cwduri}palimpsest.ipxe ||
iseq ${platform} efi && goto efi ||
chain boot/grub/bios.0
exit
:efi
chain boot/grub/x64.efi
";

/// Writes the directory `into`, which is created if needed. Files of the same names are replaced; others stay.
///
/// # Errors
/// [`Error`]; files may have been replaced only if one could not be written.
pub fn netboot(image: &Image, tools: &Tools, into: &Path) -> Result<(), Error> {
    let stage = Stage::new(image)?;
    let loader = stage.tree.join(grub::FOLDER);
    stage.core(tools, Core::Pxe, &loader.join("bios.0"))?;
    if image.uefi() {
        stage.core(tools, Core::EfiNet, &loader.join("x64.efi"))?;
    }
    let script = stage.tree.join(SCRIPT);
    fs::write(&script, TEXT).map_err(Error::file(&script))?;
    stage.set_times()?;
    copy(&stage.tree, into)
}

/// Copies a tree, times too, in the order of names.
fn copy(from: &Path, into: &Path) -> Result<(), Error> {
    if !from.is_dir() {
        fs::copy(from, into).map_err(Error::file(into))?;
    } else {
        fs::create_dir_all(into).map_err(Error::file(into))?;
        for entry in fs::read_dir(from).map_err(Error::file(from))? {
            let name = entry.map_err(Error::file(from))?.file_name();
            copy(&from.join(&name), &into.join(&name))?;
        }
    }
    let time = fs::metadata(from).and_then(|metadata| metadata.modified()).map_err(Error::file(from))?;
    fs::File::open(into).and_then(|file| file.set_modified(time)).map_err(Error::file(into))
}
