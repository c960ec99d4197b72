//! Where things are: the source tree, the build directory, and pal's own cache inside it.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::status::Usage;

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
    /// The checkout to work on. No path of it is compiled in: a checkout that was copied or moved together with its target
    /// directory keeps this program, and cargo sees no need to build it again.
    ///
    /// # Errors
    /// [`Usage`]: there is none around this program, nor around the current directory.
    pub fn locate() -> Result<Self> {
        let set_by_cargo = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let root = find_root(set_by_cargo.as_deref(), env::current_exe().ok(), env::current_dir().ok());
        let root = root.ok_or_else(|| {
            Usage::new(
                "no checkout of Palimpsest here: go into one and type `cargo pal`, which builds this program",
            )
        })?;
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        Ok(Self { root, target })
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

/// The checkout that cargo runs this program from, else the one that the program lies in, else the one that we are in.
///
/// What cargo says comes first only if it is about this package: other programs that cargo runs, such as tests, hand their own
/// down, and may run a copy's `pal`.
fn find_root(
    set_by_cargo: Option<&Path>,
    program: Option<PathBuf>,
    here: Option<PathBuf>,
) -> Option<PathBuf> {
    let is_checkout =
        |dir: &&Path| ["tools/pal/Cargo.toml", "hv/Cargo.toml"].iter().all(|file| dir.join(file).is_file());
    let by_cargo =
        set_by_cargo.filter(|dir| dir.ends_with("tools/pal")).and_then(|dir| dir.ancestors().nth(2));
    let around = [program.as_deref(), set_by_cargo, here.as_deref()];
    let around = around.into_iter().flatten().flat_map(Path::ancestors);
    by_cargo.into_iter().chain(around).find(is_checkout).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_a_checkout_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let [old, copy] = ["old", "copy"].map(|name| dir.path().join(name));
        for root in [&old, &copy] {
            for file in ["tools/pal/Cargo.toml", "hv/Cargo.toml"] {
                fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
                fs::write(root.join(file), "").unwrap();
            }
        }
        let program = |root: &Path| Some(root.join("target/debug/pal"));
        let found = |cargo: Option<PathBuf>, program, here| find_root(cargo.as_deref(), program, here);
        // Typed in the copy, with its own target directory or that of the original.
        assert_eq!(found(Some(copy.join("tools/pal")), program(&copy), None), Some(copy.clone()));
        assert_eq!(found(Some(copy.join("tools/pal")), program(&old), None), Some(copy.clone()));
        // Started by a test of the original.
        assert_eq!(found(Some(old.join("tests")), program(&copy), Some(old.clone())), Some(copy.clone()));
        // Built elsewhere.
        let elsewhere = Some(dir.path().join("elsewhere/pal"));
        assert_eq!(found(None, elsewhere.clone(), Some(copy.join("docs"))), Some(copy.clone()));
        assert_eq!(found(Some(dir.path().join("gone/tools/pal")), elsewhere, Some("/".into())), None);
    }
}
