//! Virtio devices of a guest: the options that ask for them.

use std::{fs, path::Path};

use anyhow::Result;

use super::vm::Disk;
use crate::status::Usage;

/// Reads `FILE[:ro|:rw]`, the argument of `--disk` and `--root`. A file whose own name ends so wins over the split.
///
/// # Errors
/// A FILE that does not exist.
pub fn disk(option: &str, argument: &str) -> Result<Disk> {
    let (file, how) = match argument.rsplit_once(':') {
        Some((file, how @ ("ro" | "rw"))) if !Path::new(argument).exists() => (file, how),
        _ => (argument, ""),
    };
    fs::metadata(file).map_err(|error| Usage::new(format!("{option} {file}: {error}")))?;
    Ok(Disk { file: file.into(), read_only: how == "ro", write_back: how == "rw" })
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
        let is = |read_only, write_back| Disk { file: file.clone(), read_only, write_back };
        assert_eq!(disk("--disk", name).unwrap(), is(false, false));
        assert_eq!(disk("--disk", &format!("{name}:ro")).unwrap(), is(true, false));
        assert_eq!(disk("--disk", &format!("{name}:rw")).unwrap(), is(false, true));
        let colon = folder.path().join("disk:rw");
        fs::write(&colon, "x").unwrap();
        assert_eq!(disk("--disk", colon.to_str().unwrap()).unwrap().file, colon);
        assert!(disk("--disk", &format!("{name}:rx")).is_err());
        assert!(disk("--disk", "/no/such/disk").unwrap_err().is::<Usage>());
    }
}
