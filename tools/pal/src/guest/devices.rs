//! Virtio devices of a guest: the options that ask for them.

use std::{fs, path::Path};

use anyhow::Result;

use super::vm::Disk;
use crate::status::Usage;

/// Reads `--disk FILE[:ro]`. A file whose own name ends in `:ro` wins over the split.
///
/// # Errors
/// A FILE that does not exist.
pub fn disk(argument: &str) -> Result<Disk> {
    let (file, read_only) = match argument.strip_suffix(":ro") {
        Some(file) if !Path::new(argument).exists() => (file, true),
        _ => (argument, false),
    };
    fs::metadata(file).map_err(|error| Usage::new(format!("--disk {file}: {error}")))?;
    Ok(Disk { file: file.into(), read_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk");
        fs::write(&file, "x").unwrap();
        let name = file.to_str().unwrap();
        assert_eq!(disk(name).unwrap(), Disk { file: file.clone(), read_only: false });
        assert_eq!(disk(&format!("{name}:ro")).unwrap(), Disk { file, read_only: true });
        assert!(disk("/no/such/disk").unwrap_err().is::<Usage>());
    }
}
