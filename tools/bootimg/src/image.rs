//! The description of an image: files, and a menu that says what to do with them.

use std::collections::BTreeMap;

use crate::{Error, grub::FOLDER as LOADER, hash::sha256, netboot::SCRIPT};

/// The time of files by default: 2000-01-01.
pub const DEFAULT_EPOCH: u32 = 946_684_800;

/// The firmware that an image boots on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// BIOS only: quick to make.
    Bios,
    /// BIOS and 64-bit UEFI.
    Both,
}

/// Files and a menu.
#[derive(Clone, Debug)]
pub struct Image {
    /// What it boots on.
    pub firmware: Firmware,
    /// Name of the volume: up to 11 characters `A` to `Z`, `0` to `9`, `_`.
    pub label: String,
    /// The menu.
    pub menu: Menu,
    /// The time of all files, in seconds since 1970, from 1980 (the FAT file system's beginning) on.
    pub epoch: u32,
    files: BTreeMap<String, Vec<u8>>,
}

/// A file of an image.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Its path from the root, without a leading slash.
    pub path: &'a str,
    /// Its bytes.
    pub contents: &'a [u8],
}

/// The boot menu.
#[derive(Clone, Debug, Default)]
pub struct Menu {
    /// The entries in their order; at least one.
    pub entries: Vec<Entry>,
    /// The entry that is booted without a choice.
    pub default: usize,
    /// Seconds until the default entry is booted: `Some(0)` at once, without showing the menu; `None` never.
    pub timeout_s: Option<u32>,
    /// The serial port on which the menu is, too. The hypervisor's ports are words of its command line.
    pub serial: Option<Serial>,
}

/// A serial port of the machine that boots, as the loader uses it: 8 data bits, no parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serial {
    /// 0 for COM1 to 3 for COM4.
    pub unit: u8,
    /// Bits per second.
    pub baud: u32,
}

/// One line of the menu.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What the person reads: printable ASCII.
    pub title: String,
    /// What is booted.
    pub boot: Boot,
}

/// What an entry boots. File names are paths of [`Image::add`]. Words of command lines must not hold quotes or
/// backslashes, which GRUB would change.
#[derive(Clone, Debug)]
pub enum Boot {
    /// The hypervisor, by multiboot2.
    Hypervisor {
        /// Its ELF file.
        file: String,
        /// Its command line.
        cmdline: String,
        /// What it gets, in this order.
        modules: Vec<Module>,
    },
    /// A Linux kernel without the hypervisor.
    Linux {
        /// A bzImage.
        kernel: String,
        /// Its command line.
        cmdline: String,
        /// The initial RAM disk.
        initrd: Option<String>,
    },
    /// A multiboot 1 kernel without the hypervisor.
    Multiboot1 {
        /// Its file.
        kernel: String,
        /// Its command line.
        cmdline: String,
        /// Its modules.
        modules: Vec<Module>,
    },
}

/// A file that is passed along.
#[derive(Clone, Debug)]
pub struct Module {
    /// The file.
    pub file: String,
    /// Its command line; for the hypervisor, the name by which it knows the file.
    pub cmdline: String,
}

impl Image {
    /// An image without files, called `PALIMPSEST`.
    pub fn new(firmware: Firmware) -> Image {
        Image {
            firmware,
            label: "PALIMPSEST".into(),
            menu: Menu::default(),
            epoch: DEFAULT_EPOCH,
            files: BTreeMap::new(),
        }
    }

    /// Adds a file. `path` has components of 1 to 64 characters out of letters, digits and `._+-`, separated by
    /// slashes, none beginning with a dot.
    ///
    /// # Errors
    /// [`Error::Description`] for another path, or one that is taken (upper and lower case are the same), or one of the
    /// loader's; for files of 4 GiB and more.
    pub fn add(&mut self, path: &str, contents: Vec<u8>) -> Result<(), Error> {
        let plain = |part: &str| {
            (1..=64).contains(&part.len())
                && !part.starts_with('.')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._+-".contains(&b))
        };
        if !path.split('/').all(plain) || path.len() > 200 {
            return Err(Error::description(format!(
                "{path:?} cannot be a path on an image: use letters, digits, `._+-` and slashes"
            )));
        }
        let folded = path.to_ascii_lowercase();
        let inside = |outer: &str, inner: &str| inner.strip_prefix(outer).is_some_and(|r| r.starts_with('/'));
        let clash = self
            .files
            .keys()
            .map(|name| name.to_ascii_lowercase())
            .any(|name| name == folded || inside(&name, &folded) || inside(&folded, &name));
        let ours = [LOADER, "efi", SCRIPT]
            .iter()
            .any(|ours| folded == *ours || inside(ours, &folded) || inside(&folded, ours));
        if clash || ours {
            return Err(Error::description(format!("the path {path} is taken on the image")));
        }
        if u32::try_from(contents.len()).is_err() {
            return Err(Error::description(format!(
                "{path}: a file of 4 GiB or more does not fit into an image"
            )));
        }
        self.files.insert(path.to_owned(), contents);
        Ok(())
    }

    /// Whether it boots on UEFI, too.
    pub(crate) fn uefi(&self) -> bool {
        self.firmware == Firmware::Both
    }

    /// The files, in the order of their paths.
    pub fn files(&self) -> impl Iterator<Item = File<'_>> {
        self.files.iter().map(|(path, contents)| File { path, contents })
    }

    /// Checks what [`Image::add`] could not: the menu, and that it names files that are there.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Description(text));
        let legal = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
        if !(1..=11).contains(&self.label.len()) || !self.label.bytes().all(legal) {
            return wrong(format!("the label {:?} is not 1 to 11 characters of A-Z, 0-9 and _", self.label));
        }
        if self.epoch < 315_532_800 {
            return wrong(format!("the time {} is before 1980, where FAT's begins", self.epoch));
        }
        if self.menu.default >= self.menu.entries.len() {
            return wrong(format!(
                "the default entry is number {} of {}",
                self.menu.default.saturating_add(1),
                self.menu.entries.len()
            ));
        }
        if let Some(serial) = self.menu.serial.filter(|s| s.unit > 3 || !(1..=4_000_000).contains(&s.baud)) {
            return wrong(format!("no serial port {} with {} bits per second", serial.unit, serial.baud));
        }
        for entry in &self.menu.entries {
            entry
                .check(self)
                .map_err(|text| Error::Description(format!("entry {:?}: {text}", entry.title)))?;
        }
        Ok(())
    }

    /// A name for these contents and this menu, 16 hexadecimal digits: identifies the medium when it boots.
    pub(crate) fn id(&self, menu: &str) -> String {
        let mut parts = String::new();
        let files = self.files().flat_map(|file| [file.path.as_bytes(), file.contents]);
        for part in
            [menu.as_bytes(), self.label.as_bytes(), &self.epoch.to_le_bytes()].into_iter().chain(files)
        {
            parts += &sha256(part);
        }
        sha256(parts.as_bytes())[..16].to_owned()
    }
}

impl Entry {
    fn check(&self, image: &Image) -> Result<(), String> {
        let printable = |text: &str| text.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        if self.title.is_empty() || self.title.len() > 70 || !printable(&self.title) {
            return Err("a title has 1 to 70 printable ASCII characters".into());
        }
        let (kernel, cmdline, files) = match &self.boot {
            Boot::Hypervisor { file, cmdline, modules }
            | Boot::Multiboot1 { kernel: file, cmdline, modules } => {
                (file, cmdline, modules.iter().map(|m| (&m.file, m.cmdline.as_str())).collect())
            }
            Boot::Linux { kernel, cmdline, initrd } => {
                (kernel, cmdline, initrd.iter().map(|file| (file, "")).collect::<Vec<_>>())
            }
        };
        for (file, words) in files.into_iter().chain([(kernel, cmdline.as_str())]) {
            if !image.files.contains_key(file) {
                return Err(format!("there is no file {file} on the image"));
            }
            if !printable(words) || words.contains(['\'', '"', '\\']) {
                return Err(format!(
                    "the command line {words:?} holds a quote, a backslash or an unprintable character, which GRUB \
                     would change"
                ));
            }
        }
        Ok(())
    }
}
