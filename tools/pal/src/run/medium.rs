//! The medium that a machine of Bochs' boots: the hypervisor with one guest, or with none.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use bootimg::{Boot, Entry, Firmware, Image, Menu, Module, Tools};

/// Where the hypervisor is on the medium.
const HYPERVISOR: &str = "boot/palimpsest";
/// The guest's files.
const BUNDLE: &str = "boot/bundle.cpio";

/// Makes a CD image in `dir`, which boots without a menu.
///
/// # Errors
/// What makes it is missing; no space; words that the boot loader would change.
pub fn make(dir: &Path, hypervisor: &Path, words: &str, bundle: Option<Vec<u8>>) -> Result<PathBuf> {
    let file = fs::read(hypervisor).with_context(|| format!("cannot read {}", hypervisor.display()))?;
    let mut image = Image::new(Firmware::Bios);
    image.add(HYPERVISOR, bootimg::loadable(&file)?)?;
    let mut modules = Vec::new();
    if let Some(bundle) = bundle {
        image.add(BUNDLE, bundle)?;
        modules.push(Module { file: BUNDLE.into(), cmdline: "bundle.cpio".into() });
    }
    let boot = Boot::Hypervisor { file: HYPERVISOR.into(), cmdline: words.into(), modules };
    let entries = vec![Entry { title: "guest".into(), boot }];
    image.menu = Menu { entries, timeout_s: Some(0), ..Menu::default() };
    let path = dir.join("medium.iso");
    bootimg::iso(&image, &Tools::find(Firmware::Bios)?, &path)?;
    Ok(path)
}
