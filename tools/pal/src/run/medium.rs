//! The medium that a machine of Bochs' boots: the hypervisor with its guests or none, or a guest alone.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use bootimg::{Boot, Entry, Firmware, Image, Menu, Module, Tools};

use super::prepare::Guest;
use crate::guest::image::Image as Kernel;

/// Where the hypervisor is on the medium.
const HYPERVISOR: &str = "boot/palimpsest";
/// The guests' files.
const BUNDLE: &str = "boot/bundle.cpio";

/// Makes a CD image in `dir` that boots the hypervisor.
///
/// # Errors
/// What makes it is missing; no space; words that the boot loader would change.
pub fn hypervisor(dir: &Path, program: &Path, words: &str, bundle: Option<Vec<u8>>) -> Result<PathBuf> {
    let file = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mut image = Image::new(Firmware::Bios);
    image.add(HYPERVISOR, bootimg::loadable(&file)?)?;
    let mut modules = Vec::new();
    if let Some(bundle) = bundle {
        image.add(BUNDLE, bundle)?;
        modules.push(Module { file: BUNDLE.into(), cmdline: "bundle.cpio".into() });
    }
    let boot = Boot::Hypervisor { file: HYPERVISOR.into(), cmdline: words.into(), modules };
    write(dir, image, boot)
}

/// Makes a CD image in `dir` that boots the guest without the hypervisor.
///
/// # Errors
/// As for [`hypervisor`].
pub fn native(dir: &Path, guest: &Guest) -> Result<PathBuf> {
    let mut image = Image::new(Firmware::Bios);
    let (kernel, cmdline, files) = ("boot/kernel".to_owned(), guest.cmdline.clone(), &guest.files);
    image.add(&kernel, files.kernel.contents.clone())?;
    let boot = if matches!(files.kind, Kernel::Elf(_)) {
        let mut modules = Vec::new();
        for (index, module) in files.modules.iter().enumerate() {
            let file = format!("boot/module{index}");
            image.add(&file, module.contents.clone())?;
            modules.push(Module { file, cmdline: module.cmdline.clone() });
        }
        // GRUB leaves the file's name out, with which other loaders begin.
        let cmdline = format!("/{kernel} {cmdline}");
        Boot::Multiboot1 { kernel, cmdline, modules }
    } else {
        let initrd = files.initrd.as_ref().map(|_| "boot/initrd".to_owned());
        if let (Some(path), Some(initrd)) = (&initrd, &files.initrd) {
            image.add(path, initrd.contents.clone())?;
        }
        Boot::Linux { kernel, cmdline, initrd }
    };
    write(dir, image, boot)
}

/// Writes an image of one entry, which starts without a menu.
fn write(dir: &Path, mut image: Image, boot: Boot) -> Result<PathBuf> {
    let entries = vec![Entry { title: "guest".into(), boot }];
    image.menu = Menu { entries, timeout_s: Some(0), ..Menu::default() };
    let path = dir.join("medium.iso");
    bootimg::iso(&image, &Tools::find(Firmware::Bios)?, &path)?;
    Ok(path)
}
