//! The rules that explain the source tree, checked.

use std::path::{Path, PathBuf};

/// Where assembly and unsafe code may be, and the hardware-free files whose module doc says why they need it.
const HARDWARE: [&str; 3] = ["hw/", "boot/", "virt/"];
const TOUCHES_MEMORY: [&str; 4] = ["mem/frame.rs", "mem/heap.rs", "mem/host_ram.rs", "mem/tables.rs"];
/// What ties the machine to the guests: it makes the promises that the functions above ask for.
const TIES: [&str; 7] = [
    "vmm/backend.rs",
    "vmm/kicks.rs",
    "vmm/machine.rs",
    "vmm/memory.rs",
    "vmm/pcpu.rs",
    "vmm/pcpus.rs",
    "vmm/start.rs",
];
/// Lines of a file at most.
const LONGEST: usize = 400;
/// Tables of registers may be longer.
const TABLES: [&str; 1] = ["virt/state.rs"];

/// Every source file of the hypervisor, tests left out, with its path below `src`.
fn sources() -> Vec<(String, String)> {
    fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { collect(&path, files) } else { files.push(path) }
        }
    }
    // Asked for when it runs: a checkout that was copied keeps its compiled tests.
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("src");
    let mut files = vec![];
    collect(&root, &mut files);
    let name = |path: &Path| path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
    let texts = files.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap()));
    texts.filter(|(name, _)| !name.contains("tests/") && !name.ends_with("tests.rs")).collect()
}

/// The line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

fn offenders(breaks: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let broken = |name: &str, text: &str| {
        let lines = text.lines().enumerate().filter(|(_, line)| breaks(name, code(line)));
        lines.map(|(n, line)| format!("{name}:{}: {}", n + 1, line.trim())).collect::<Vec<_>>()
    };
    sources().iter().flat_map(|(name, text)| broken(name, text)).collect()
}

#[test]
fn assembly_lives_with_the_hardware() {
    let found = offenders(|name, line| {
        !HARDWARE.iter().any(|dir| name.starts_with(dir)) && (line.contains("asm!(") || name.ends_with(".s"))
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn unsafe_code_is_where_the_hardware_is() {
    let allowed = |name: &str| {
        HARDWARE.iter().any(|dir| name.starts_with(dir))
            || TOUCHES_MEMORY.contains(&name)
            || TIES.contains(&name)
    };
    let is_unsafe =
        |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
    let found = offenders(|name, line| !allowed(name) && is_unsafe(line));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn files_are_short_and_say_what_they_are() {
    let mut found = vec![];
    for (name, text) in sources().iter().filter(|(name, _)| name.ends_with(".rs")) {
        if text.lines().count() > LONGEST && !TABLES.contains(&name.as_str()) {
            found.push(format!("{name}: {} lines", text.lines().count()));
        }
        if !text.starts_with("//!") {
            found.push(format!("{name}: no module documentation"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
