//! Lists the modules of the hypervisor that have a `pub fn fuzz_one`.

use std::{env, fs, io, path::Path};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=../hv/src");
    let source = Path::new("../hv/src");
    let mut modules = Vec::new();
    search(source, source, &mut modules)?;
    modules.sort();
    let entries: String = modules
        .iter()
        .map(|module| format!("    (\"{}\", hv::{}::fuzz_one),\n", module.join("-"), module.join("::")))
        .collect();
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(
        Path::new(&out).join("targets.rs"),
        format!("const TARGETS: &[(&str, Target)] = &[\n{entries}];\n"),
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
