//! A disk of the machine for pages that overcommitted guests do not use (`--page-disk`): an empty file, for this run only.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
};

use abi::disk::{FIRST_BYTE, SIGNATURE};
use anyhow::{Context as _, Result};

use super::qemu::escape_commas;
use crate::{
    cli::{Machine, RunArgs},
    status::Usage,
};

/// QEMU's arguments for a disk of this many MiB, which is made in `folder`.
///
/// # Errors
/// The file cannot be made.
pub fn arguments(mib: Option<u64>, folder: &Path) -> Result<Vec<String>> {
    let Some(mib) = mib else { return Ok(Vec::new()) };
    let path = folder.join("pages.img");
    make(&path, mib).with_context(|| format!("cannot make a disk of {mib} MiB at {}", path.display()))?;
    // What it holds is of no use to a later run, so the host need not write it to its own disk.
    let drive = format!(
        "if=none,id=pal-pages,format=raw,cache=unsafe,file={}",
        escape_commas(&path.to_string_lossy())
    );
    // The hypervisor's driver knows the interface by ports.
    Ok(["-drive", &drive, "-device", "virtio-blk-pci,drive=pal-pages,disable-modern=on"]
        .map(String::from)
        .into())
}

/// An empty disk, which takes no room before it is written.
fn make(path: &Path, mib: u64) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(SIGNATURE)?;
    file.set_len(FIRST_BYTE + (mib << 20))
}

/// Refuses a disk that nothing would use.
///
/// # Errors
/// [`Usage`].
pub fn check(args: &RunArgs) -> Result<()> {
    let wrong = |text: &str| Err(Usage::new(text).into());
    match args.page_disk {
        Some(_) if args.machine != Machine::QemuSvm => {
            wrong("--page-disk: the hypervisor on QEMU's machine uses it; take --machine qemu-svm")
        }
        Some(_) if !args.overcommit && args.config.is_none() => {
            wrong("--page-disk: it is for guests with --overcommit; add that, or leave it out")
        }
        Some(_) if args.deterministic.is_some() => wrong(
            "--page-disk: no run repeats, as it depends on this machine when the disk answers; leave --deterministic out",
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_begins_with_its_signature_and_takes_no_room() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(arguments(None, folder.path()).unwrap(), [""; 0]);
        let arguments = arguments(Some(300), folder.path()).unwrap();
        assert_eq!(arguments.len(), 4);
        let path = folder.path().join("pages.img");
        assert!(arguments[1].ends_with(&path.display().to_string()), "{arguments:?}");
        assert!(std::fs::read(&path).unwrap().starts_with(SIGNATURE));
        let metadata = path.metadata().unwrap();
        assert_eq!(metadata.len(), FIRST_BYTE + (300 << 20));
        assert!(metadata.blocks() * 512 < 1 << 20);
    }
}
