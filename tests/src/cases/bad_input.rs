//! Wrong options and unusable files: a message that helps, status 2, nothing started, nothing hangs.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::{Case, both, only};
use crate::context::{Context, PATIENCE};

pub const CASES: &[Case] = &[
    only("native", "unknown options and values", options),
    both("missing files", missing),
    both("files that are no kernels", no_kernels),
    both("truncated kernels", truncated),
    both("kernels for another architecture", architecture),
    both("options that cannot work together", conflicts),
    both("too little memory", little_memory),
    both("QEMU does not start", qemu),
    only("native", "help shows examples", help),
    only("native", "a copied checkout uses itself", copied),
    only("native", "options given twice, and where a silent run is", twice),
    only("qemu-svm", "no AMD-V", no_svm),
    only("qemu-svm", "more shadow pages than there is memory for", shadow_pages),
    only("qemu-svm", "unknown words for the hypervisor", hv_words),
];

fn options(context: &Context) -> Result<()> {
    context.pal(["run", "--frobnicate"], None)?.status(2)?.says("--frobnicate")?;
    context.pal(["run", "--machine", "toaster"], None)?.status(2)?.says("qemu-svm")?;
    context.pal(["run", "--mem", "lots"], None)?.status(2)?.says("--mem")?;
    context.pal(["run", "--vcpus", "0"], None)?.status(2)?.says("--vcpus")?;
    context.pal(["run", "--mode", "both"], None)?.status(2)?.says("switch=N")?;
    context.pal(["run", "--mode", "switch=0"], None)?.status(2)?.says("switch=N")?;
    let unknown = context.pal(["run", "--without", "x2apci"], None)?.status(2)?;
    unknown.says("--without")?.says("the nearest are x2apic")?;
    context.pal(["run", "--without", "apic", "--vcpus", "2"], None)?.status(2)?.says("local APIC")?;
    context.pal(["run", "--machine", "native", "--without", "avx"], None)?.status(2)?.says("--without")?;
    context.pal(["run", "--shadow-pages", "15"], None)?.status(2)?.says("--shadow-pages")?;
    context.pal(["walk"], None)?.status(2)?.says("walk")?;
    context.pal(["run", "--timeout"], None)?.status(2)?.says("--timeout")?;
    Ok(())
}

/// The machine has less memory than `pal` would give it.
fn shadow_pages(context: &Context) -> Result<()> {
    let memory = ["--qemu-arg=-m", "--qemu-arg=264"];
    let wanted = ["--mode", "shadow", "--shadow-pages", "1000000"];
    context
        .kit("", &[wanted, ["--mem", "32", memory[0], memory[1]]].concat())?
        .status(2)?
        .says("lower `shadow_pages`")?;
    Ok(())
}

fn missing(context: &Context) -> Result<()> {
    for option in ["--kernel", "--initrd", "--module", "--put", "--disk"] {
        context.run(&[option, "/no/such/file"])?.status(2)?.says(option)?.says("/no/such/file")?.soon()?;
    }
    context.run(&["--qemu", "/no/such/qemu"])?.status(2)?.says("--qemu")?;
    context.run(&["--stats", "/no/such/dir/stats"])?.status(2)?.says("--stats")?;
    context.run(&["--put", &format!("{}:relative", context.kit.display())])?.status(2)?.says("absolute")?;
    Ok(())
}

fn no_kernels(context: &Context) -> Result<()> {
    for (name, contents, what) in [
        ("empty", &b""[..], "empty"),
        ("text", b"hello, world", "not a kernel"),
        ("zip", b"\x1f\x8b\x08\x00", "gzip"),
        ("directory.deb", b"!<arch>\n", "dpkg-deb"),
        ("script", b"#!/bin/sh\n", "script"),
    ] {
        let file = context.file(name, contents)?;
        context.run(&["--kernel", &file])?.status(2)?.says(&file)?.says(what)?.soon()?;
    }
    Ok(())
}

fn truncated(context: &Context) -> Result<()> {
    let kernel = context.pal(["kernel"], None)?.status(0)?.stdout();
    let kernel = std::fs::read(kernel.trim())?;
    for size in [0x230, 4096, kernel.len() / 2, kernel.len() - 4096] {
        let file = context.file("vmlinuz", &kernel[..size])?;
        context.run(&["--kernel", &file])?.status(2)?.says("truncated")?;
    }
    let kit = std::fs::read(&context.kit)?;
    let file = context.file("kit.elf", &kit[..kit.len().min(0x1100)])?;
    context.run(&["--kernel", &file])?.status(2)?.says("truncated")?;
    Ok(())
}

fn architecture(context: &Context) -> Result<()> {
    let mut elf = std::fs::read(&context.kit)?;
    elf[18] = 183;
    let file = context.file("arm.elf", &elf)?;
    context.run(&["--kernel", &file])?.status(2)?.says("64-bit ARM")?;
    let mut image = vec![0; 4096];
    image[0x38..0x3c].copy_from_slice(b"ARMd");
    let file = context.file("Image", &image)?;
    context.run(&["--kernel", &file])?.status(2)?.says("64-bit ARM")?;
    Ok(())
}

fn conflicts(context: &Context) -> Result<()> {
    let kit = context.kit.to_string_lossy().into_owned();
    let file = context.file("file", "x")?;
    context.run(&["--initrd", &file, "--exec", "true"])?.status(2)?.says("--initrd")?;
    context.run(&["--initrd", &file, "--put", &file])?.status(2)?.says("--put")?;
    context.run(&["--initrd", &file, "--get", "/x"])?.status(2)?.says("--get")?;
    context.run(&["--get", "/x:none/y"])?.status(2)?.says("there is no folder none")?;
    context.run(&["--get", "/x:y", "--get", "/z:y"])?.status(2)?.says("another file goes to y")?;
    context.run(&["--kernel", &kit, "--exec", "true"])?.status(2)?.says("--exec")?;
    context.run(&["--module", &file])?.status(2)?.says("--module")?;
    if context.nested() {
        context.run(&["--vcpus", "65", "--exec", "true"])?.status(2)?.says("--vcpus")?;
    } else {
        context.run(&["--hv-arg", "x"])?.status(2)?.says("--hv-arg")?;
        context.run(&["--protocol", "pvh"])?.status(2)?.says("--protocol")?;
    }
    Ok(())
}

fn little_memory(context: &Context) -> Result<()> {
    context.run(&["--mem", "19"])?.status(2)?.says("20 MiB")?;
    context.run(&["--mem", "40", "--exec", "true"])?.status(2)?.says("at least --mem")?.soon()?;
    let big = context.path("big.img");
    std::fs::File::create(&big)?.set_len(80 << 20)?;
    context.run(&["--mem", "96", "--initrd", &big])?.status(2)?.says("initrd")?.soon()?;
    Ok(())
}

fn qemu(context: &Context) -> Result<()> {
    context.run(&["--qemu-arg", "-no-such-option"])?.status(1)?.says("-no-such-option")?.soon()?;
    context.run(&["--qemu", "/bin/false"])?.status(1)?.says("QEMU did not start")?.soon()?;
    // More processors than any machine has that these tests run on.
    let many = if context.nested() { ["--pcpus", "255"] } else { ["--vcpus", "64"] };
    context.run(&[&["--qemu", "/bin/false"], &many[..]].concat())?.status(1)?.says("take turns")?;
    Ok(())
}

fn help(context: &Context) -> Result<()> {
    let finished = context.pal(["run", "--help"], None)?.status(0)?;
    finished.has("Examples:")?.has("Ctrl-a x")?.has("Exit status:")?.has("--put <FILE[:GUESTPATH]>")?;
    Ok(())
}

fn no_svm(context: &Context) -> Result<()> {
    context
        .run(&["--qemu-arg=-cpu", "--qemu-arg=EPYC,-svm", "--exec", "true"])?
        .status(5)?
        .says("AMD-V")?
        .soon()?;
    Ok(())
}

fn hv_words(context: &Context) -> Result<()> {
    context
        .run(&["--hv-arg", "frobnicate=1", "--exec", "echo ran"])?
        .status(0)?
        .prints("ran\n")?
        .says("frobnicate")?;
    Ok(())
}

/// The program lies where cargo leaves it in a copy, with nothing built or fetched beside it.
fn copied(context: &Context) -> Result<()> {
    for file in ["copy/tools/pal/Cargo.toml", "copy/hv/Cargo.toml", "copy/target/debug/pal"] {
        std::fs::create_dir_all(
            Path::new(&context.path(file)).parent().context("a file is in a directory")?,
        )?;
        context.file(file, "")?;
    }
    let program = context.path("copy/target/debug/pal");
    std::fs::copy(&context.pal, &program)?;
    let mut doctor = Command::new(&program);
    doctor.arg("doctor").env_remove("CARGO_TARGET_DIR");
    let finished = context.wait_for(doctor, PATIENCE)?;
    let printed = finished.stdout();
    let line = printed.lines().find(|line| line.starts_with("hypervisor")).context("no line about it")?;
    ensure!(line.contains("not here yet"), "{line}");
    ensure!(std::fs::exists(context.path("copy/target/pal"))?, "its cache is not in the copy");
    // Outside of any checkout it says what it lacks.
    std::fs::rename(&program, context.path("pal"))?;
    let mut lost = Command::new(context.path("pal"));
    lost.arg("doctor").env_remove("CARGO_MANIFEST_DIR").current_dir("/");
    context.wait_for(lost, PATIENCE)?.status(2)?.says("no checkout of Palimpsest")?;
    Ok(())
}

fn twice(context: &Context) -> Result<()> {
    let options =
        ["run", "--machine", "bochs-native", "--machine", context.machine, "--mem", "20", "--mem", "128"];
    let rest = ["--exec", "false", "--exec", "sleep 3; echo over", "--append", "a.b=1", "--append", "a.c=2"];
    let mut run = Command::new(&context.pal);
    run.args(options).args(rest).env("PAL_PROGRESS", "1");
    let finished = context.wait_for(run, PATIENCE)?.status(0)?.prints("over\n")?;
    finished.says("pal: the command runs (")?;
    Ok(())
}
