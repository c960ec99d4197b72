//! The disk image: a boot sector and GRUB behind it for BIOS, one FAT partition with the files and with GRUB for UEFI.
//!
//! The partition table is the old one, because it means the same on a stick of any size: a GUID partition table
//! has a second copy at the disk's end. UEFI takes the partition type 0xef on removable media, and a BIOS that
//! looks at the table finds the partition active.

use std::{
    fs,
    io::{Seek, SeekFrom, Write},
    path::Path,
};

use crate::{
    Error, Image, Tools,
    fat::{self, Fat, Layout},
    grub::Core,
    stage::{Stage, replace},
};

const SECTOR: u64 = 512;
/// Where the partition begins.
const PARTITION: u64 = 1 << 20;
/// The least file system that has FAT32's entries, and room for notes and logs.
const LEAST: u64 = 64 << 20;

/// Writes a disk image to `into`. A file that is there is replaced when everything has worked; a disk is written to.
///
/// # Errors
/// [`Error`].
pub fn usb(image: &Image, tools: &Tools, into: &Path) -> Result<(), Error> {
    let stage = Stage::new(image)?;
    let contents: u64 = image.files().map(|file| file.contents.len() as u64 + (32 << 10)).sum();
    // Tables, loaders, and a little to spare.
    let size = (contents + contents / 32 + (16 << 20)).max(LEAST).next_multiple_of(1 << 20);
    let sectors = u32::try_from(size / SECTOR)
        .map_err(|_| Error::description("more than 2 TiB do not fit into the partition table"))?;
    let made = stage.scratch("disk.img");
    fs::File::create(&made).and_then(|file| file.set_len(PARTITION + size)).map_err(Error::file(&made))?;
    let layout = Layout { offset: PARTITION, size, fat32: true };
    let fat = Fat::format(image, tools, &made, &stage.id, &layout)?;
    if image.uefi() {
        let efi = stage.scratch("bootx64.efi");
        stage.core(tools, Core::Efi, &efi)?;
        fat::put_loader(&fat, &efi)?;
    }
    fat.tree(&stage.tree, "")?;

    let core = stage.scratch("core.img");
    stage.core(tools, Core::Disk, &core)?;
    let core = fs::read(&core).map_err(Error::file(&core))?;
    if core.len() as u64 > PARTITION - SECTOR {
        return Err(Error::description("GRUB does not fit before the partition"));
    }
    let boot = tools.grub_file("i386-pc/boot.img");
    let boot = fs::read(&boot).map_err(Error::file(&boot))?;
    let record = boot_record(&boot, sectors, u32::from_str_radix(&stage.id[..8], 16).unwrap_or(1))?;
    let write = |bytes: &[u8], at| {
        let mut file = fs::OpenOptions::new().write(true).open(&made)?;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(bytes)
    };
    write(&record, 0).and_then(|()| write(&core, SECTOR)).map_err(Error::file(&made))?;
    replace(&made, into)
}

/// The first sector: GRUB's boot.img, which loads what follows it, and the partition table.
fn boot_record(boot: &[u8], sectors: u32, signature: u32) -> Result<[u8; 512], Error> {
    /// Where boot.img has a jump over its distrust of the drive number that the BIOS gives; disks get the distrust.
    const DRIVE_CHECK: usize = 0x66;
    const JUMP: u8 = 0xeb;
    let mut record = [0; 512];
    let code = boot.get(..440).filter(|code| code[DRIVE_CHECK] == JUMP);
    let code =
        code.ok_or_else(|| Error::description("GRUB's boot.img is not what it was in GRUB 2.00 to 2.12"))?;
    record[..440].copy_from_slice(code);
    record[DRIVE_CHECK..DRIVE_CHECK + 2].fill(0x90);
    record[440..444].copy_from_slice(&signature.to_le_bytes());
    let entry = &mut record[446..462];
    entry[0] = 0x80; // active
    entry[1..4].copy_from_slice(&[0xfe, 0xff, 0xff]); // cylinders are long gone
    entry[4] = 0xef; // EFI system partition
    entry[5..8].copy_from_slice(&[0xfe, 0xff, 0xff]);
    entry[8..12].copy_from_slice(&((PARTITION / SECTOR) as u32).to_le_bytes());
    entry[12..16].copy_from_slice(&sectors.to_le_bytes());
    record[510..].copy_from_slice(&[0x55, 0xaa]);
    Ok(record)
}
