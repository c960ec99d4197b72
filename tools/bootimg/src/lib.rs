//! Media that boot the hypervisor: makes them from a description, and tells what one holds.
//!
//! An [`Image`] is files and a boot menu. [`iso`] writes it as a CD image that also boots from a disk, [`usb`] as the image
//! of a disk whose files can be changed afterwards, [`netboot`] as a directory for a server. Firmware is a PC's BIOS
//! or 64-bit UEFI; the boot loader is GRUB, which starts the hypervisor by multiboot2 and passes files as modules
//! (docs/configuration.md says what the hypervisor makes of them).
//!
//! ```no_run
//! use bootimg::{Boot, Entry, Firmware, Image, Menu, Module, Tools};
//!
//! # fn main() -> Result<(), bootimg::Error> {
//! # let (hypervisor, bundle) = (vec![], vec![]);
//! let mut image = Image::new(Firmware::Bios); // without UEFI it takes a quarter of a second
//! image.add("boot/palimpsest", bootimg::loadable(&hypervisor)?)?;
//! image.add("boot/bundle.cpio", bundle)?;
//! let boot = Boot::Hypervisor {
//!     file: "boot/palimpsest".into(),
//!     cmdline: "console=com1 loglevel=info".into(),
//!     modules: vec![Module { file: "boot/bundle.cpio".into(), cmdline: String::new() }],
//! };
//! // One entry and no waiting: the loader boots at once.
//! image.menu = Menu { entries: vec![Entry { title: "guest".into(), boot }], timeout_s: Some(0), ..Menu::default() };
//! bootimg::iso(&image, &Tools::find(Firmware::Bios)?, "boot.iso".as_ref())?;
//! # Ok(())
//! # }
//! ```
//!
//! The same image gives the same bytes, wherever and whenever it is made (by the same versions of GRUB, xorriso and
//! mtools): all times are [`Image::epoch`], and identifiers come from the contents. The caller is `pal`.

mod elf;
mod error;
mod fat;
mod grub;
mod hash;
mod image;
pub mod inspect;
mod iso;
mod netboot;
mod stage;
mod tools;
mod usb;

pub use elf::{Identity, identity, loadable};
pub use error::Error;
pub use hash::sha256;
pub use image::{Boot, DEFAULT_EPOCH, Entry, File, Firmware, Image, Menu, Module, Serial};
pub use iso::iso;
pub use netboot::netboot;
pub use tools::Tools;
pub use usb::usb;
