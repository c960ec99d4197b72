//! Where things are: the source tree, the build directory, and pal's own cache inside it.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The target that programs for machines of our own are built for, named so that their flags stay off build scripts.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The paths of one checkout.
pub struct Project {
    /// The workspace's root.
    pub root: PathBuf,
    /// Cargo's target directory.
    pub target: PathBuf,
}

impl Project {
    /// The checkout that this program was built from.
    pub fn locate() -> Self {
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tools/pal is two levels deep");
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        Self { root: root.to_owned(), target }
    }

    /// A directory of pal's own for things that are kept between runs; created if needed.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn cache(&self, name: &str) -> Result<PathBuf> {
        let dir = self.target.join("pal").join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(dir)
    }

    /// The hypervisor that [`build_hypervisor`](Self::build_hypervisor) builds.
    pub fn hypervisor(&self) -> PathBuf {
        self.target.join(TARGET).join("hv/palimpsest")
    }

    /// What builds it; on success it says nothing.
    pub fn build_hypervisor(&self) -> std::process::Command {
        let mut command = self.cargo();
        command.args(["hv", "--quiet"]);
        command
    }

    /// The cargo that runs us, or the one in PATH.
    pub fn cargo(&self) -> std::process::Command {
        let mut command = std::process::Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        command
    }
}
