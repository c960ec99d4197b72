//! Directories that several pals share: one at a time fetches something into each.

use std::{
    fs::{File, TryLockError},
    path::Path,
};

use anyhow::{Context, Result};

use crate::ui::Ui;

/// Keeps other pals out of a cache directory until dropped, and says so when it has to wait for one. The lock is the kernel's, so
/// that of a pal that was killed is gone with it.
///
/// A pal takes the lock of what it fetches before that of the package lists, so that no two wait for each other.
///
/// # Errors
/// The directory cannot be written to.
pub fn lock(dir: &Path, ui: &Ui) -> Result<File> {
    let path = dir.join(".lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            ui.say(&format!("waiting for another pal, which fetches something into {}", dir.display()));
        }
        Err(TryLockError::Error(_)) => {}
    }
    let _step = ui.step("waiting for another pal");
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}
