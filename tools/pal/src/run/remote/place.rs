//! Where the sockets of running machines are: `target/pal/run/NAME`, in a directory that only its owner can enter.
//!
//! A socket's path has at most 107 bytes, fewer than many a checkout's. So sockets are reached through the directory's descriptor.
//! A socket that refuses connections is a killed run's, and goes. The directory's lock is held while one is created or removed, because a
//! socket also refuses for a moment after its birth.

use std::{
    fs::{self, File, Permissions},
    io::{self, ErrorKind},
    os::{
        fd::AsRawFd,
        unix::{
            fs::{FileTypeExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

use super::taken;
use crate::{project::Project, status::Usage};

/// Characters of a name at most.
const LONGEST: usize = 32;

/// The directory.
pub struct Place {
    path: PathBuf,
    dir: File,
}

/// A run's socket; its name goes when this is dropped.
pub struct Listening {
    listener: UnixListener,
    place: Place,
    name: String,
}

/// Checks the name of a machine.
///
/// # Errors
/// What is wrong with it.
pub fn parse_name(name: &str) -> Result<String, String> {
    let safe = name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c));
    if safe && name.len() <= LONGEST && name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Ok(name.to_owned());
    }
    Err(format!("use 1 to {LONGEST} letters, digits, `-`, `_` and `.`, the first a letter or digit"))
}

impl Place {
    /// The one of a checkout.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn new(project: &Project) -> Result<Place> {
        Place::at(&project.cache("run")?)
    }

    fn at(path: &Path) -> Result<Place> {
        let wrong = || format!("cannot use {}", path.display());
        fs::set_permissions(path, Permissions::from_mode(0o700)).with_context(wrong)?;
        Ok(Place { path: path.to_owned(), dir: File::open(path).with_context(wrong)? })
    }

    fn socket(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd()).into()
    }

    /// Opens the socket of a machine that starts.
    ///
    /// # Errors
    /// [`Usage`]: one with this name runs. The directory cannot be written.
    pub fn bind(self, name: &str) -> Result<Listening> {
        let path = self.socket(name);
        flock(&self.dir, FlockOperation::LockExclusive)?;
        let bound = self.bind_locked(name, &path);
        flock(&self.dir, FlockOperation::Unlock)?;
        let listener = bound.with_context(|| format!("cannot create {}", self.path.join(name).display()))?;
        let Some(listener) = listener else { return Err(taken(name).into()) };
        Ok(Listening { listener, place: self, name: name.to_owned() })
    }

    fn bind_locked(&self, name: &str, path: &Path) -> io::Result<Option<UnixListener>> {
        if UnixStream::connect(path).is_ok() {
            return Ok(None);
        }
        self.remove_stale(name);
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(Some(listener))
    }

    /// Removes a socket without a listener. The lock is held.
    fn remove_stale(&self, name: &str) {
        let path = self.socket(name);
        let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
        if UnixStream::connect(&path).is_err_and(refused) {
            let _ = fs::remove_file(&path);
        }
    }

    /// Connects to a machine.
    ///
    /// # Errors
    /// None of this name runs.
    pub fn connect(&self, name: &str) -> io::Result<UnixStream> {
        UnixStream::connect(self.socket(name))
    }

    /// All machines that run, in the order of their names, with a connection to each. Sockets of dead ones are removed.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn running(&self) -> Result<Vec<(String, UnixStream)>> {
        let entries =
            fs::read_dir(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        let is_socket = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_socket());
        let names =
            entries.flatten().filter(is_socket).filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| parse_name(name).is_ok()).collect();
        names.sort();
        let mut running = Vec::new();
        for name in names {
            match self.connect(&name) {
                Ok(stream) => running.push((name, stream)),
                Err(_) => {
                    flock(&self.dir, FlockOperation::LockExclusive)?;
                    self.remove_stale(&name);
                    flock(&self.dir, FlockOperation::Unlock)?;
                }
            }
        }
        Ok(running)
    }

    /// The machine of this name, or the only one.
    ///
    /// # Errors
    /// [`Usage`]: nothing runs, or nothing of this name, or without a name several.
    pub fn find(&self, name: Option<&str>) -> Result<UnixStream> {
        let mut running = self.running()?;
        let names = running.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let index = match name {
            _ if running.is_empty() => {
                return Err(
                    Usage::new("no machine of this checkout is running; `cargo pal run` starts one").into()
                );
            }
            Some(name) => running
                .iter()
                .position(|(other, _)| other == name)
                .ok_or_else(|| Usage::new(format!("no machine named {name} is running; running: {names}")))?,
            None if running.len() > 1 => {
                return Err(Usage::new(format!("several machines are running; name one of {names}")).into());
            }
            None => 0,
        };
        Ok(running.swap_remove(index).1)
    }
}

impl Listening {
    /// The socket, to accept clients at.
    ///
    /// # Errors
    /// No descriptor is to be had.
    pub fn listener(&self) -> Result<UnixListener> {
        Ok(self.listener.try_clone()?)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.place.socket(&self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe() {
        for good in ["a", "run-123", "Lab_2.x", "0", &"x".repeat(32)] {
            assert_eq!(parse_name(good).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", "-x", ".x", "a/b", "a b", "a\n", "\u{e4}", &"x".repeat(33)] {
            assert!(parse_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sockets_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        // Longer than a socket's path may be.
        let path = dir.path().join("x".repeat(150));
        fs::create_dir(&path).unwrap();
        let place = || Place::at(&path).unwrap();
        let says = |name: Option<&str>| place().find(name).map(drop).unwrap_err().to_string();
        assert!(says(None).contains("no machine of this checkout"));
        let one = place().bind("one").unwrap();
        assert_eq!(fs::metadata(path.join("one")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(place().bind("one").map(drop).unwrap_err().to_string().contains("named one is running"));
        assert!(place().find(None).is_ok() && place().find(Some("one")).is_ok());
        let _two = place().bind("two").unwrap();
        assert!(says(None).contains("one of one, two"));
        assert!(says(Some("three")).ends_with("running: one, two"));
        drop(one);
        assert!(!path.join("one").exists());
        assert!(place().find(None).is_ok());
    }

    #[test]
    fn a_killed_runs_socket_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = || Place::at(dir.path()).unwrap();
        drop(UnixListener::bind(dir.path().join("dead")).unwrap());
        drop(UnixListener::bind(dir.path().join("again")).unwrap());
        fs::write(dir.path().join("file"), "not a socket").unwrap();
        let _again = place().bind("again").unwrap();
        let running: Vec<_> = place().running().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(running, ["again"]);
        assert!(!dir.path().join("dead").exists() && dir.path().join("file").exists());
    }
}
