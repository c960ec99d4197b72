//! The files that came with the hypervisor: kernels, initrds, modules and the configuration.
//!
//! A boot loader hands over *boot modules*. QEMU's PVH loader passes exactly one, so everything is packed
//! into a cpio archive in the "newc" format (Linux
//! `Documentation/driver-api/early-userspace/buffer-format.rst`); GRUB passes several, each with a name.
//! [`BootFiles`] makes both look the same: a file is looked up by name and is a slice of the boot loader's
//! memory, nothing is copied. Called once by the VM's construction; every byte of an archive is untrusted.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use abi::config::FILE_NAME;

/// A set of files by name.
pub trait Files {
    /// The contents of the file called `name`; names are compared byte for byte, a leading `./` or `/` is
    /// ignored.
    fn get(&self, name: &str) -> Option<&[u8]>;
}

/// One boot module as the boot loader passed it.
#[derive(Clone, Copy, Debug)]
pub struct BootModule<'a> {
    /// The module's command line: its first word is the name of the file. May be empty.
    pub cmdline: &'a str,
    /// The contents.
    pub bytes: &'a [u8],
}

impl BootModule<'_> {
    /// The first word of the command line.
    pub fn name(&self) -> &str {
        self.cmdline.split_ascii_whitespace().next().unwrap_or("")
    }
}

/// All files that a boot loader passed: those of the first module that is an archive with a [`FILE_NAME`]
/// in it, and every module by its own name.
#[derive(Debug)]
pub struct BootFiles<'a> {
    modules: &'a [BootModule<'a>],
    bundle: Option<Bundle<'a>>,
}

impl<'a> BootFiles<'a> {
    /// Looks through the modules. An archive without a configuration (an initramfs is one as well) is a plain
    /// module. Fails if there is no configuration at all; the error says why.
    pub fn open(modules: &'a [BootModule<'a>]) -> Result<Self, BundleError> {
        let mut broken = None;
        let mut bundle = None;
        for module in modules {
            match Bundle::parse(module.bytes) {
                Ok(b) if b.get(FILE_NAME).is_some() => {
                    bundle = Some(b);
                    break;
                }
                Ok(_) | Err(BundleError::NotAnArchive) => {}
                Err(e) => broken = broken.or(Some(e)),
            }
        }
        let files = BootFiles { modules, bundle };
        match files.get(FILE_NAME) {
            Some(_) => Ok(files),
            None => Err(broken.unwrap_or(BundleError::NoConfig { modules: modules.len() })),
        }
    }

    /// The names of all files, for messages.
    pub fn names(&self) -> Vec<String> {
        let bundled = self.bundle.iter().flat_map(|b| b.entries()).map(|e| e.name.to_string());
        bundled.chain(self.modules.iter().map(|m| m.name().to_string()).filter(|n| !n.is_empty())).collect()
    }
}

impl Files for BootFiles<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        let bundled = self.bundle.as_ref().and_then(|b| b.get(name));
        bundled.or_else(|| self.modules.iter().find(|m| same_name(m.name(), name)).map(|m| m.bytes))
    }
}

/// A cpio "newc" archive whose structure has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Bundle<'a> {
    bytes: &'a [u8],
}

/// A regular file in a [`Bundle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The path as stored.
    pub name: &'a str,
    /// The contents.
    pub bytes: &'a [u8],
}

impl<'a> Bundle<'a> {
    /// Checks the archive from the first header to the trailer. Bytes after the trailer are ignored.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BundleError> {
        if !is_magic(bytes) {
            return Err(BundleError::NotAnArchive);
        }
        // All of it now, so that what is found later cannot be damaged.
        let mut at = 0;
        while let Some((_, next)) = member(bytes, at)? {
            at = next;
        }
        Ok(Bundle { bytes })
    }

    /// The regular files in the order of the archive.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let bytes = self.bytes;
        let mut at = 0;
        core::iter::from_fn(move || {
            // The structure was checked by `parse`; an error cannot come up any more and would end the list.
            let (member, next) = member(bytes, at).ok()??;
            at = next;
            Some(member)
        })
        .filter(|m| m.is_file)
        .filter_map(|m| Some(Entry { name: core::str::from_utf8(m.name).ok()?, bytes: m.bytes }))
    }
}

impl Files for Bundle<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.entries().find(|e| same_name(e.name, name)).map(|e| e.bytes)
    }
}

fn same_name(a: &str, b: &str) -> bool {
    let plain = |s: &'_ str| s.trim_start_matches("./").trim_start_matches('/').len();
    !b.is_empty() && a[a.len() - plain(a)..] == b[b.len() - plain(b)..]
}

struct Member<'a> {
    name: &'a [u8],
    bytes: &'a [u8],
    is_file: bool,
}

/// Size of a newc header: the magic and 13 fields of 8 hexadecimal digits.
const HEADER: usize = 6 + 13 * 8;

fn is_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(b"070701") || bytes.starts_with(b"070702")
}

/// The member at `at` and the offset of the next one, `None` at the trailer.
fn member(bytes: &[u8], at: usize) -> Result<Option<(Member<'_>, usize)>, BundleError> {
    let damaged = |what| BundleError::Damaged { offset: at, what };
    let header = slice(bytes, at, HEADER).ok_or(damaged("the archive ends without a trailer"))?;
    if !is_magic(header) {
        return Err(damaged("no member header where one is expected"));
    }
    let field =
        |n: usize| hex(&header[6 + n * 8..14 + n * 8]).ok_or(damaged("a header field is not hexadecimal"));
    let (mode, size, name_size) = (field(1)?, field(6)? as usize, field(11)? as usize);
    let name = slice(bytes, at + HEADER, name_size).ok_or(damaged("a name is cut off"))?;
    let name = name.strip_suffix(&[0]).ok_or(damaged("a name does not end in a zero byte"))?;
    if name == b"TRAILER!!!" {
        return Ok(None);
    }
    let end = |start: usize, len: usize| start.checked_add(len)?.checked_next_multiple_of(4);
    let data = end(at + HEADER, name_size).ok_or(damaged("a size is too large"))?;
    let contents = slice(bytes, data, size).ok_or(damaged("a file is cut off"))?;
    let next = end(data, size).ok_or(damaged("a size is too large"))?;
    let is_file = mode & 0o170000 == 0o100000;
    Ok(Some((Member { name, bytes: contents, is_file }, next)))
}

fn slice(bytes: &[u8], start: usize, len: usize) -> Option<&[u8]> {
    bytes.get(start..start.checked_add(len)?)
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |n: u32, &d| Some(n << 4 | (d as char).to_digit(16)?))
}

/// Why no configuration could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleError {
    /// Does not start with a newc header.
    NotAnArchive,
    /// Starts as an archive but is not one to the end.
    Damaged {
        /// Offset of the member in bytes.
        offset: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// No module holds a configuration.
    NoConfig {
        /// How many modules the boot loader passed.
        modules: usize,
    },
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BundleError::NotAnArchive => write!(f, "the module is not a cpio archive in newc format"),
            BundleError::Damaged { offset, what } => {
                write!(f, "the bundle is damaged: {what} (member at byte {offset}); build it again")
            }
            BundleError::NoConfig { modules: 0 } => {
                write!(
                    f,
                    "the boot loader passed no module; pass a bundle, or {FILE_NAME} and the files that it \
                     names"
                )
            }
            BundleError::NoConfig { modules } => write!(
                f,
                "none of the {modules} boot modules is or holds {FILE_NAME}; pass a bundle, or a module of \
                 that name"
            ),
        }
    }
}

/// Parses arbitrary bytes as an archive, and as the members of one: must not panic, and every slice lies
/// within the input.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    check(data);
    // Pieces become members: each byte a header field, what follows the name and contents.
    let mut archive = Vec::new();
    for piece in data.chunks(24) {
        let (fields, rest) = piece.split_at(piece.len().min(13));
        archive.extend_from_slice(b"070701");
        (0..13).for_each(|i| archive.extend(alloc::format!("{:08x}", fields.get(i).unwrap_or(&0)).bytes()));
        archive.extend_from_slice(rest);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    check(&archive);
}

#[cfg(any(test, feature = "testing"))]
fn check(data: &[u8]) {
    if let Ok(bundle) = Bundle::parse(data) {
        let total: usize = bundle.entries().map(|e| e.bytes.len() + e.name.len()).sum();
        assert!(total <= data.len());
        let _ = bundle.get("x");
    }
    let modules = [BootModule { cmdline: "a b", bytes: data }];
    if let Ok(files) = BootFiles::open(&modules) {
        assert!(files.get(FILE_NAME).is_some() && !files.names().is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn newc(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut add = |name: &str, mode: u32, bytes: &[u8]| {
            let fields = [1, mode, 0, 0, 1, 0, bytes.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
            out.extend_from_slice(b"070701");
            fields.iter().for_each(|f| out.extend_from_slice(format!("{f:08x}").as_bytes()));
            out.extend_from_slice(name.as_bytes());
            out.push(0);
            out.resize(out.len().next_multiple_of(4), 0);
            out.extend_from_slice(bytes);
            out.resize(out.len().next_multiple_of(4), 0);
        };
        add("dir", 0o40755, b"");
        files.iter().for_each(|(name, bytes)| add(name, 0o100644, bytes));
        add("TRAILER!!!", 0, b"");
        out
    }

    #[test]
    fn finds_files_in_a_bundle() {
        let archive = newc(&[("./palimpsest.toml", b"version = 1"), ("vmlinuz", b"kernel"), ("empty", b"")]);
        let modules = [BootModule { cmdline: "", bytes: &archive }];
        let files = BootFiles::open(&modules).unwrap();
        assert_eq!(files.get("palimpsest.toml"), Some(&b"version = 1"[..]));
        assert_eq!(files.get("/vmlinuz"), Some(&b"kernel"[..]));
        assert_eq!(files.get("empty"), Some(&b""[..]));
        assert_eq!(files.get("dir"), None);
        assert_eq!(files.get(""), None);
        assert_eq!(files.names(), ["./palimpsest.toml", "vmlinuz", "empty"]);
    }

    #[test]
    fn finds_named_modules_and_leaves_an_initramfs_whole() {
        let initramfs = newc(&[("init", b"#!/bin/sh")]);
        let modules = [
            BootModule { cmdline: "initrd.img quiet", bytes: &initramfs },
            BootModule { cmdline: "palimpsest.toml", bytes: b"version = 1" },
        ];
        let files = BootFiles::open(&modules).unwrap();
        assert_eq!(files.get("initrd.img"), Some(&initramfs[..]));
        assert_eq!(files.get("init"), None);
        assert_eq!(files.get(FILE_NAME), Some(&b"version = 1"[..]));
    }

    #[test]
    fn says_what_is_missing_or_damaged() {
        assert_eq!(BootFiles::open(&[]).unwrap_err(), BundleError::NoConfig { modules: 0 });
        let other = [BootModule { cmdline: "x", bytes: b"1234" }];
        assert_eq!(BootFiles::open(&other).unwrap_err(), BundleError::NoConfig { modules: 1 });
        let archive = newc(&[("palimpsest.toml", b"version = 1")]);
        for len in 6..archive.len() - 12 {
            let cut = [BootModule { cmdline: "", bytes: &archive[..len] }];
            assert!(matches!(BootFiles::open(&cut), Err(BundleError::Damaged { .. })), "cut at {len}");
        }
    }

    proptest! {
        #[test]
        fn survives_damage(at in 0usize..500, byte: u8, cut in 0usize..600) {
            let mut archive = newc(&[("palimpsest.toml", b"version = 1"), ("kernel", &[7; 100])]);
            let at = at % archive.len();
            archive[at] = byte;
            archive.truncate(cut.max(1));
            fuzz_one(&archive);
        }

        #[test]
        fn survives_noise(mut data in proptest::collection::vec(any::<u8>(), 0..400)) {
            fuzz_one(&data);
            data.splice(0..0, *b"070701");
            fuzz_one(&data);
        }
    }
}
