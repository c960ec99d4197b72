//! Bytes at offsets, from a file or from memory, and what can be wrong with them.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use crate::Error;

/// Where an image's bytes come from.
pub(crate) trait Source {
    /// How many there are.
    fn size(&self) -> Result<u64, Damaged>;

    /// The bytes from `at` on, exactly `len` of them.
    fn bytes(&self, at: u64, len: u64) -> Result<Vec<u8>, Damaged>;
}

impl Source for File {
    fn size(&self) -> Result<u64, Damaged> {
        let mut file = self;
        // The length of a disk is where its end is.
        file.seek(SeekFrom::End(0)).map_err(Damaged::Unreadable)
    }

    fn bytes(&self, at: u64, len: u64) -> Result<Vec<u8>, Damaged> {
        if at.checked_add(len).is_none_or(|end| self.size().is_ok_and(|size| end > size)) {
            return Err(Damaged::Truncated);
        }
        let mut file = self;
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(at)).map_err(Damaged::Unreadable)?;
        file.take(len).read_to_end(&mut bytes).map_err(Damaged::Unreadable)?;
        if bytes.len() as u64 == len { Ok(bytes) } else { Err(Damaged::Truncated) }
    }
}

impl Source for &[u8] {
    fn size(&self) -> Result<u64, Damaged> {
        Ok(self.len() as u64)
    }

    fn bytes(&self, at: u64, len: u64) -> Result<Vec<u8>, Damaged> {
        let range =
            usize::try_from(at).ok().zip(at.checked_add(len).and_then(|end| usize::try_from(end).ok()));
        let bytes = range.and_then(|(start, end)| self.get(start..end)).ok_or(Damaged::Truncated)?;
        Ok(bytes.to_vec())
    }
}

/// Why an image cannot be read.
#[derive(Debug)]
pub(crate) enum Damaged {
    /// The operating system says so.
    Unreadable(io::Error),
    /// It ends before something that it names.
    Truncated,
    /// It contradicts itself.
    Inconsistent(&'static str),
    /// Neither of the file systems.
    Unknown,
}

impl Damaged {
    /// The error about a file.
    pub fn of(self, path: &Path) -> Error {
        let path = path.display();
        Error::Description(match self {
            Damaged::Unreadable(error) => format!("{path}: {error}"),
            Damaged::Truncated => {
                format!("{path}: the image is cut off or damaged: it names bytes behind its end")
            }
            Damaged::Inconsistent(what) => format!("{path}: the image is damaged: {what}"),
            Damaged::Unknown => format!(
                "{path}: not an ISO image, not a disk image with a FAT partition, not a directory of pal image netboot"
            ),
        })
    }
}

/// A little-endian number in `bytes`, 0 where there are no bytes.
pub(crate) fn le(bytes: &[u8], at: usize, size: usize) -> u32 {
    let bytes = bytes.get(at..at + size).unwrap_or(&[]);
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// Text of an image, for people: what is not printable ASCII becomes `?`.
pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '?' }).collect()
}

/// Whether a name can be a part of a path.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains('/')
}
