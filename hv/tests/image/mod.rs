//! Where the linked hypervisor is.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The image that `cargo hv` built last; built if there is none.
pub fn path() -> PathBuf {
    // Asked for when it runs: a checkout that was copied keeps its compiled tests.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let project = Path::new(&package).parent().unwrap();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project.join("target"), PathBuf::from);
    let image = target.join("x86_64-unknown-linux-gnu/hv/palimpsest");
    if !image.exists() {
        let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .arg("hv")
            .current_dir(project)
            .status()
            .unwrap();
        assert!(status.success(), "cargo hv failed");
    }
    image
}
