//! A file that grows by whole lines, and can be read at any moment.

use std::{
    fs::{File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::status::Usage;

/// The file. After an error, of a full disk perhaps, it ends with the last line that it took whole, and takes no more.
pub struct Lines {
    option: &'static str,
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    whole: u64,
    error: Option<String>,
}

impl Lines {
    /// Makes the file, empty. `option` is what asked for it.
    ///
    /// # Errors
    /// [`Usage`]: it cannot be written.
    pub fn create(option: &'static str, path: &Path) -> Result<Lines, Usage> {
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(path);
        let file = file.map_err(|error| Usage::new(format!("{option} {}: {error}", path.display())))?;
        Ok(Lines { option, path: path.to_owned(), file, whole: 0, error: None })
    }

    /// Adds lines.
    pub fn add(&mut self, lines: &[u8]) {
        if self.error.is_some() {
            return;
        }
        match self.file.write_all(lines) {
            Ok(()) => self.whole += lines.len() as u64,
            Err(error) => {
                let kept = self.whole;
                self.error = Some(format!(
                    "{} {}: {error}; the file ends early, after {kept} bytes of whole lines. The run goes on; free some \
                     space before the next one",
                    self.option,
                    self.path.display()
                ));
                // What there was of the last lines goes. If even that fails, a reader finds one line that is cut.
                let _ = self.file.set_len(self.whole);
                let _ = self.file.seek(SeekFrom::Start(self.whole));
            }
        }
    }

    /// What went wrong.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_leaves_whole_lines() {
        // A device that is always full.
        let mut full = Lines::create("--samples", Path::new("/dev/full")).unwrap();
        full.add(b"{}\n");
        full.add(b"{}\n");
        let error = full.error().unwrap();
        assert!(error.starts_with("--samples /dev/full: ") && error.contains("whole lines"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples");
        let mut lines = Lines::create("--samples", &path).unwrap();
        lines.add(b"one\n");
        lines.add(b"two\n");
        assert_eq!((std::fs::read(&path).unwrap(), lines.error()), (b"one\ntwo\n".to_vec(), None));
        let error = Lines::create("--trace", &dir.path().join("no/such/file")).err().unwrap().to_string();
        assert!(error.contains("--trace"), "{error}");
    }
}
