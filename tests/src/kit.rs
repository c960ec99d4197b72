//! Builds what is under `tests/kits`: the multiboot1 kit and the stress, clock, regions and memlat programs with the system's C compiler,
//! the long-mode kit with cargo; and the examples of the guest kit's libraries, as their documentation says.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Options for code that runs without a C library, and without SSE.
const OPTIONS: [&str; 16] = [
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fno-tree-loop-distribute-patterns",
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

/// The guests' target of cargo's.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Cargo's option for a program that needs no libraries of the guest's.
const STATIC: &str = "target.x86_64-unknown-linux-gnu.rustflags=['-Ctarget-feature=+crt-static']";

/// Where `palimpsest.h` is, from a kit.
const HEADERS: &str = "../../../abi/include";

/// The kernels that the cases start, and the programs that they take along.
pub struct Kits {
    /// Does what the words on its command line say.
    pub multiboot1: PathBuf,
    /// Checks the machine against the manuals.
    pub long_mode: PathBuf,
    /// A Linux program that stresses memory, for 64-bit and 32-bit guests.
    pub stress: [PathBuf; 2],
    /// A Linux program that measures time, with the system's C library.
    pub clock: PathBuf,
    /// Does random things to its machine.
    pub hostile: PathBuf,
    /// A Linux program that misuses the guest kit's device.
    pub regions: PathBuf,
    /// A Linux program whose memory is two regions.
    pub memlat: PathBuf,
    /// Its first form, for 32-bit guests.
    pub memlat32: PathBuf,
    /// A Linux program that uses memory as some of SPEC CPU2006 do.
    pub standins: PathBuf,
    /// A web server, and the load for one.
    pub server: PathBuf,
    pub webload: PathBuf,
    /// The examples of the guest kit's libraries in C and in Rust, and the tests of the first.
    pub sdk: Sdk,
}

/// Programs with the guest kit's libraries.
#[derive(Clone)]
pub struct Sdk {
    /// The example in C.
    pub c: PathBuf,
    /// The tests of the library in C.
    pub c_tests: PathBuf,
    /// The example in Rust.
    pub rust: PathBuf,
}

impl Kits {
    /// Builds all of them into `dir`.
    pub fn build(dir: &Path) -> Result<()> {
        let kits = Self::built(dir);
        multiboot1(&kits.multiboot1).context("the multiboot1 kit does not build")?;
        long_mode(&kits.long_mode).context("the long-mode kit does not build")?;
        stress(&kits.stress).context("the stress program does not build")?;
        clock(&kits.clock).context("the clock program does not build")?;
        hostile(&kits.hostile, &dir.join("hostile64.elf")).context("the hostile kit does not build")?;
        regions(&kits.regions).context("the regions program does not build")?;
        memlat32(&kits.memlat32).context("the memlat program for 32-bit guests does not build")?;
        for (name, program) in [
            ("memlat", &kits.memlat),
            ("standins", &kits.standins),
            ("server", &kits.server),
            ("webload", &kits.webload),
        ] {
            plain(name, program).with_context(|| format!("the {name} program does not build"))?;
        }
        sdk_c(&dir.join("sdk")).context("guest-kits/c does not build")?;
        sdk_rust(&kits.sdk.rust).context("guest-kits/rust/example does not build")
    }

    /// Those that were built into `dir`.
    pub fn built(dir: &Path) -> Self {
        Self {
            multiboot1: dir.join("kit.elf"),
            long_mode: dir.join("long-mode.elf"),
            stress: ["stress64", "stress32"].map(|name| dir.join(name)),
            clock: dir.join("clock"),
            hostile: dir.join("hostile.elf"),
            regions: dir.join("regions"),
            memlat: dir.join("memlat"),
            memlat32: dir.join("memlat32"),
            standins: dir.join("standins"),
            server: dir.join("server"),
            webload: dir.join("webload"),
            sdk: Sdk {
                c: dir.join("sdk/example"),
                c_tests: dir.join("sdk/test"),
                rust: dir.join("sdk/region-example"),
            },
        }
    }
}

/// The directory `tests` of the checkout that this program runs in, which need not be the one that it was built in.
fn package() -> Result<PathBuf> {
    let by_cargo = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let program = env::current_exe()?;
    let around = program.ancestors().map(|dir| dir.join("tests"));
    let found = by_cargo.into_iter().chain(around).find(|dir| dir.join("kits/multiboot1").is_dir());
    found.context("the sources of the kits are not here: run `cargo run -p e2e` in a checkout")
}

fn multiboot1(program: &Path) -> Result<()> {
    let source = package()?.join("kits/multiboot1");
    let mut compile = Command::new("cc");
    compile.current_dir(&source).args(["-m32", "-march=i686", "-O1"]).args(OPTIONS);
    compile.args(["-Wl,-T,link.ld", "-o"]).arg(program);
    compile.args(["-I", HEADERS, "start.s", "real.s", "kit.c", "acpi.c", "words.c"]);
    run(&mut compile, "cc; install gcc")
}

fn stress(programs: &[PathBuf; 2]) -> Result<()> {
    let source = package()?.join("kits/stress");
    for (bits, program) in ["64", "32"].iter().zip(programs) {
        let mut compile = Command::new("cc");
        compile.current_dir(&source).arg(format!("-m{bits}")).arg("-O2").args(OPTIONS);
        compile.arg("-o").arg(program).arg(format!("arch{bits}.s"));
        let parts = ["stress", "system", "fault", "pages", "areas", "sharing", "exec", "processors"];
        compile.args(parts.map(|part| format!("{part}.c")));
        run(&mut compile, "cc; install gcc")?;
    }
    Ok(())
}

fn clock(program: &Path) -> Result<()> {
    let mut compile = Command::new("cc");
    compile.current_dir(package()?.join("kits/clock"));
    let options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-static", "-pthread"];
    compile.args(options).args(["clock.c", "-o"]).arg(program);
    run(&mut compile, "cc; install gcc and libc6-dev")
}

fn regions(program: &Path) -> Result<()> {
    let mut compile = Command::new("cc");
    compile.current_dir(package()?.join("kits/regions"));
    let options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-static", "-I", HEADERS];
    compile.args(options).args(["regions.c", "-o"]).arg(program);
    run(&mut compile, "cc; install gcc and libc6-dev")
}

/// A program of one file, with the system's C library.
fn plain(name: &str, program: &Path) -> Result<()> {
    let mut compile = Command::new("cc");
    compile.current_dir(package()?.join("kits").join(name));
    let options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-static"];
    compile.args(options).arg(format!("{name}.c")).arg("-o").arg(program);
    run(&mut compile, "cc; install gcc and libc6-dev")
}

fn memlat32(program: &Path) -> Result<()> {
    let mut compile = Command::new("cc");
    compile.current_dir(package()?.join("kits/memlat")).args(["-m32", "-march=i686", "-O2"]).args(OPTIONS);
    compile.args(["memlat32.c", "-o"]).arg(program);
    run(&mut compile, "cc; install gcc")
}

fn sdk_c(dir: &Path) -> Result<()> {
    let out = format!("OUT={}", dir.display());
    let mut make = Command::new("make");
    make.arg("-C").arg(package()?.join("../guest-kits/c")).arg(out).arg("all").arg(dir.join("test"));
    run(make.env_remove("MAKEFLAGS"), "make; install make and gcc")
}

fn sdk_rust(program: &Path) -> Result<()> {
    let (root, target) = workspace()?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet", "--package", "region-example"]);
    cargo.args(["--profile", "guest", "--target", TRIPLE, "--config", STATIC]).env_remove("RUSTFLAGS");
    run(&mut cargo, "cargo")?;
    std::fs::copy(target.join(TRIPLE).join("guest/region-example"), program)?;
    Ok(())
}

/// `wide` is the ELF file on the way to `program`.
fn hostile(program: &Path, wide: &Path) -> Result<()> {
    let source = package()?.join("kits/hostile");
    let mut compile = Command::new("cc");
    compile.current_dir(&source).args(["-m64", "-O1", "-mno-red-zone"]).args(OPTIONS);
    compile.args(["-Wl,-T,link.ld", "-o"]).arg(wide);
    compile.args(["start.s", "main.c", "apic.c", "devices.c", "tables.c", "code.c", "virtio.c", "regions.c"]);
    run(&mut compile, "cc; install gcc")?;
    multiboot(wide, program)
}

/// The directory of the workspace, and where cargo builds.
fn workspace() -> Result<(PathBuf, PathBuf)> {
    let root = package()?.parent().context("tests is a directory of the workspace")?.to_owned();
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    Ok((root, target))
}

fn long_mode(program: &Path) -> Result<()> {
    let (root, target) = workspace()?;
    // Warnings of the compiler about the flags are no concern of the tests.
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    run(cargo.current_dir(root).args(["kit", "--quiet"]).env_remove("RUSTFLAGS"), "cargo")?;
    multiboot(&target.join(TRIPLE).join("hv/long-mode-kit"), program)
}

/// Multiboot 1 knows 32-bit ELF files only: the same segments go into one.
fn multiboot(wide: &Path, program: &Path) -> Result<()> {
    let mut wrap = Command::new("objcopy");
    wrap.args(["--input-target=elf64-x86-64", "--output-target=elf32-i386", "--strip-debug"]);
    run(wrap.arg(wide).arg(program), "objcopy; install binutils")
}

fn run(command: &mut Command, name: &str) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
