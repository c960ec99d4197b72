//! Builds the kernels under `tests/kits` with the system's C compiler.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Options for code that runs on the bare machine, in 32-bit mode, without SSE.
const OPTIONS: [&str; 18] = [
    "-m32",
    "-march=i686",
    "-std=gnu11",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fno-pic",
    "-fno-pie",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-mgeneral-regs-only",
    "-nostdlib",
    "-static",
    "-no-pie",
    "-Wl,--build-id=none",
    "-Wl,-z,noexecstack",
];

/// Builds the multiboot1 kit into `dir`.
pub fn build(dir: &Path) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("kits/multiboot1");
    let program = dir.join("kit.elf");
    let mut compile = Command::new("cc");
    compile.current_dir(&source).args(OPTIONS).args(["-Wl,-T,link.ld", "-o"]).arg(&program);
    compile.args(["start.s", "kit.c", "acpi.c", "words.c"]);
    let output = compile.output().context("cannot run cc; install gcc")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(program)
}
