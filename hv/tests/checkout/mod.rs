//! The files of the checkout, for tests that read them.

use std::path::{Path, PathBuf};

/// The project's root. Asked for when a test runs: a checkout that was copied keeps its compiled tests.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    Path::new(&package).parent().unwrap().to_owned()
}

/// The files below a folder that are wanted, with their text. What is built or hidden is left out.
pub fn texts(folder: &Path, is_wanted: impl Fn(&Path) -> bool) -> Vec<(PathBuf, String)> {
    let mut found = vec![];
    collect(folder, &is_wanted, &mut found);
    found
}

fn collect(folder: &Path, is_wanted: &impl Fn(&Path) -> bool, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                collect(&path, is_wanted, found);
            }
        } else if is_wanted(&path) {
            let text =
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found.push((path, text));
        }
    }
}
