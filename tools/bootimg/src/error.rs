//! Why an image cannot be made or read.

use std::{io, path::PathBuf};

/// Why an image cannot be made or read. The text names the file, the cause and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The description contradicts itself or holds what a boot loader cannot express.
    #[error("{0}")]
    Description(String),
    /// Programs or files of the host that make images are missing.
    #[error("{} missing: install {}", .what.join(", "), .packages.join(" "))]
    Missing {
        /// What is missing.
        what: Vec<String>,
        /// The packages of Debian and Ubuntu that have it.
        packages: Vec<&'static str>,
    },
    /// A file cannot be read or written.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A program failed.
    #[error("{program} failed ({status}):\n{output}")]
    Program {
        /// Its name.
        program: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        |error| Error::File { path, error }
    }

    pub(crate) fn description(text: impl Into<String>) -> Error {
        Error::Description(text.into())
    }
}
