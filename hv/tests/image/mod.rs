//! Where the linked hypervisor is.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The image that `cargo hv` built last; built if there is none.
pub fn path() -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project.join("target"), PathBuf::from);
    let image = target.join("x86_64-unknown-linux-gnu/hv/palimpsest");
    if !image.exists() {
        let status = Command::new(env!("CARGO")).arg("hv").current_dir(project).status().unwrap();
        assert!(status.success(), "cargo hv failed");
    }
    image
}
