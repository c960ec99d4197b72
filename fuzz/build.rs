//! Lists the modules that have a `pub fn fuzz_one`.

use std::{env, fs, io, path::Path};

/// The crates, with what the names of their targets begin with.
const CRATES: [(&str, &str, &str); 4] = [
    ("hv", "../hv/src", ""),
    ("bootimg", "../tools/bootimg/src", "bootimg-"),
    ("labsim", "../tools/labsim/src", "labsim-"),
    ("pagesim", "../tools/pagesim/src", "pagesim-"),
];

fn main() -> io::Result<()> {
    let mut entries = String::new();
    for (name, source, prefix) in CRATES {
        println!("cargo::rerun-if-changed={source}");
        let source = Path::new(source);
        let mut modules = Vec::new();
        search(source, source, &mut modules)?;
        modules.sort();
        entries.extend(modules.iter().map(|module| {
            format!("    (\"{prefix}{}\", {name}::{}::fuzz_one),\n", module.join("-"), module.join("::"))
        }));
    }
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(
        Path::new(&out).join("targets.rs"),
        format!("/// Their names and functions.\npub const TARGETS: &[(&str, Target)] = &[\n{entries}];\n"),
    )
}

fn search(dir: &Path, source: &Path, modules: &mut Vec<Vec<String>>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            search(&path, source, modules)?;
        } else if fs::read_to_string(&path)?.contains("\npub fn fuzz_one(") {
            let relative = path.strip_prefix(source).unwrap_or(&path).with_extension("");
            let parts = relative.iter().map(|part| part.to_string_lossy().into_owned());
            // `mod.rs` and `fuzz.rs` belong to the module of their directory.
            modules.push(parts.filter(|part| part != "mod" && part != "fuzz").collect());
        }
    }
    Ok(())
}
