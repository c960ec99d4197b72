//! What this machine has to offer: programs, packages, the guests' kernels.

pub mod apt;
mod backports;
pub mod ext4;
pub mod guests;
pub mod lock;
pub mod needs;
pub mod python;
pub mod qemu;

use std::{
    env,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Finds a program the way a shell does.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let executable = |path: &Path| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| executable(path));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|path| executable(path))
}
