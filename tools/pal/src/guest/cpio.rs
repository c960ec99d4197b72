//! A writer for cpio archives in the "newc" format: the format of Linux initial RAM file systems
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`) and of the bundle that carries guests to the hypervisor.
//!
//! The same calls give the same bytes: inode numbers count up, owners and times are 0.

use anyhow::{Result, bail};

const REGULAR: u32 = 0o100000;
const DIRECTORY: u32 = 0o040000;
const SYMLINK: u32 = 0o120000;
const CHARACTER: u32 = 0o020000;

/// An archive under construction. Paths are stored without a leading slash.
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// An archive without entries.
    pub fn new() -> Self {
        Self { bytes: Vec::new(), entries: 0 }
    }

    /// Adds a regular file with the permission bits `mode`.
    ///
    /// # Errors
    /// The format cannot hold files of 4 GiB and more.
    pub fn file(&mut self, path: &str, mode: u32, contents: &[u8]) -> Result<()> {
        self.entry(path, REGULAR | (mode & 0o7777), 0, contents)
    }

    /// Adds a directory; parents come first.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        self.entry(path, DIRECTORY | 0o755, 0, &[])
    }

    /// Adds a symbolic link to `target`.
    pub fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(path, SYMLINK | 0o777, 0, target.as_bytes())
    }

    /// Adds a character device node.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) -> Result<()> {
        self.entry_with_device(path, CHARACTER | 0o600, (major, minor), &[])
    }

    /// Ends the archive with its trailer.
    pub fn finish(mut self) -> Vec<u8> {
        self.entries = 0;
        self.header(0, 0, 0, (0, 0), "TRAILER!!!");
        self.pad(512);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, minor: u32, contents: &[u8]) -> Result<()> {
        self.entry_with_device(path, mode, (0, minor), contents)
    }

    fn entry_with_device(
        &mut self,
        path: &str,
        mode: u32,
        device: (u32, u32),
        contents: &[u8],
    ) -> Result<()> {
        let Ok(size) = u32::try_from(contents.len()) else {
            bail!("{path}: a file of 4 GiB or more does not fit into a cpio archive");
        };
        self.entries += 1;
        self.header(self.entries, mode, size, device, path.trim_start_matches('/'));
        self.bytes.extend_from_slice(contents);
        self.pad(4);
        Ok(())
    }

    fn header(&mut self, inode: u32, mode: u32, size: u32, device: (u32, u32), name: &str) {
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let name_size = u32::try_from(name.len() + 1).expect("file names are short");
        self.bytes.extend_from_slice(b"070701");
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        for field in [inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0] {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad(4);
    }

    fn pad(&mut self, alignment: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(alignment), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_a_trailer() {
        let mut archive = Archive::new();
        archive.directory("/etc").unwrap();
        archive.file("/etc/a", 0o644, b"12345").unwrap();
        archive.symlink("b", "etc/a").unwrap();
        archive.character_device("null", 1, 3).unwrap();
        let bytes = archive.finish();

        let mut found = Vec::new();
        let mut at = 0;
        loop {
            let field = |n: usize| {
                let from = at + 6 + n * 8;
                usize::from_str_radix(std::str::from_utf8(&bytes[from..from + 8]).unwrap(), 16).unwrap()
            };
            assert_eq!(at % 4, 0);
            assert_eq!(&bytes[at..at + 6], b"070701");
            let (mode, size, major, minor, name_size) = (field(1), field(6), field(9), field(10), field(11));
            let name = std::str::from_utf8(&bytes[at + 110..at + 110 + name_size - 1]).unwrap().to_owned();
            assert_eq!(bytes[at + 110 + name_size - 1], 0);
            let data = (at + 110 + name_size).next_multiple_of(4);
            let contents = bytes[data..data + size].to_vec();
            at = (data + size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                break;
            }
            found.push((name, mode, contents, major, minor));
        }
        assert_eq!(bytes.len() % 512, 0);
        assert_eq!(
            found,
            [
                ("etc".to_owned(), 0o040755, vec![], 0, 0),
                ("etc/a".to_owned(), 0o100644, b"12345".to_vec(), 0, 0),
                ("b".to_owned(), 0o120777, b"etc/a".to_vec(), 0, 0),
                ("null".to_owned(), 0o020600, vec![], 1, 3),
            ]
        );
    }
}
