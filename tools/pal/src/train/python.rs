//! The trainer's Python.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Result;

use crate::{
    host::{needs::Needs, python::Environment},
    project::Project,
};

/// Where the trainer is in the checkout.
pub const TRAINER: &str = "tools/train";
const ENVIRONMENT: Environment =
    Environment { cache: "train", of: "the trainer", lists: &["tools/train/requirements.txt"] };

impl Needs<'_> {
    /// The Python of the trainer's environment, which is made if needed.
    ///
    /// # Errors
    /// No suitable Python, no venv, no network; the error says what to do.
    pub fn trainer(&self) -> Result<PathBuf> {
        self.python_of(&ENVIRONMENT)
    }
}

/// A command of the trainer: what its package's `__main__` takes follows.
pub fn command(project: &Project, python: &Path) -> Command {
    let mut command = Command::new(python);
    command.arg("-m").env("PYTHONPATH", project.root.join(TRAINER)).env("PYTHONDONTWRITEBYTECODE", "1");
    // Its tables have signs of mathematics.
    command.env("PYTHONIOENCODING", "utf-8").stdin(Stdio::null());
    command
}
