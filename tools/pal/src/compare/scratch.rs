//! A folder for what runs need for a moment, which is gone at the end, also if a signal is the end.

use std::{
    path::{Path, PathBuf},
    process, thread,
};

use anyhow::{Context, Result};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use tempfile::TempDir;

use crate::status::exit;

/// The folder. While it is there, SIGINT, SIGTERM and SIGHUP end this program by way of it. Runs in processes of their own end with
/// this one ([`end_with_pal`](crate::run::end_with_pal)).
pub struct Scratch(TempDir);

impl Scratch {
    /// Makes it.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn new() -> Result<Scratch> {
        let dir = tempfile::Builder::new().prefix("pal-").tempdir()?;
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
        let path: PathBuf = dir.path().to_owned();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let _ = std::fs::remove_dir_all(&path);
                let status = i32::from(exit::SIGNAL).saturating_add(signal);
                process::exit(status);
            }
        })?;
        Ok(Scratch(dir))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}
