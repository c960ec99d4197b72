//! The C library beside this crate builds without a warning, and passes its own tests.

use std::{path::PathBuf, process::Command};

#[test]
fn the_c_library_passes_its_tests() {
    // Asked for when it runs: a checkout that was copied keeps its compiled tests.
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let scratch = tempfile::tempdir().unwrap();
    let mut make = Command::new("make");
    make.arg("-C").arg(package.join("../c")).arg(format!("OUT={}", scratch.path().display()));
    let output =
        make.args(["all", "check"]).env_remove("MAKEFLAGS").output().expect("make; install make and gcc");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.lines().any(|line| line == "ok"), "{said}");
}
