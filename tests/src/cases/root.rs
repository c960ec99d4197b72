//! Root file systems with an init of their own: `--root`, and `pal root`, which makes one of Debian's.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::{Case, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "root: a directory with busybox' init", busybox),
    only("qemu-svm", "root: Debian with systemd", debian),
    only("qemu-svm", "root: what cannot be booted", refused),
];

/// The busybox of the default guest: the file that `pal` has unpacked for it, or, where it uses this machine's own, out of a guest.
fn busybox_file(context: &Context) -> Result<Vec<u8>> {
    let target = context.pal.ancestors().nth(2).context("pal is in no target directory")?;
    if let Ok(bytes) = fs::read(target.join("pal/busybox/busybox-static/bin/busybox")) {
        return Ok(bytes);
    }
    let back = context.path("busybox");
    context
        .run(&["--exec", "true", "--virtio-console", "--get", &format!("/bin/busybox:{back}")])?
        .status(0)?;
    Ok(fs::read(back)?)
}

/// A directory becomes a disk, boots with its own init, hands files back, and stays as it is.
fn busybox(context: &Context) -> Result<()> {
    let root = context.path("tree");
    let path = |name: &str| format!("{root}/{name}");
    for name in ["bin", "dev", "etc", "lib", "proc", "run", "sbin", "sys", "root"] {
        fs::create_dir_all(path(name))?;
    }
    let program = context.file("tree/bin/busybox", busybox_file(context)?)?;
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    for name in ["sh", "cat", "ls", "poweroff", "grep", "touch"] {
        symlink("busybox", path(&format!("bin/{name}")))?;
    }
    symlink("../bin/busybox", path("sbin/init"))?;
    context.file("tree/etc/inittab", "::sysinit:/bin/touch /booted\nttyS0::respawn:/bin/sh\n")?;
    let other = context.file("tree/sbin/other", "#!/bin/sh\nwhile :; do /bin/busybox sleep 1; done\n")?;
    fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let put = context.file("put", "from outside\n")?;
    let put = format!("{put}:/etc/motd");
    let command = "ls /booted; cat /etc/motd /proc/1/comm; grep -c ' / ext4 rw' /proc/mounts; exit 4";
    let options = ["--root", &root, "--put", &put, "--get", "/etc/motd", "--exec", command];
    context.run(&options)?.status(4)?.prints("/booted\nfrom outside\ninit\n1\n")?;
    ensure!(fs::read(context.path("motd"))? == b"from outside\n", "the file that it sends");
    ensure!(!Path::new(&path("booted")).exists(), "the directory has changed");
    // Another program in init's place.
    let options = ["--root", &root, "--append", "init=/sbin/other", "--exec", "cat /proc/1/comm; exit 5"];
    context.run(&options)?.status(5)?.prints("other\n")?;
    Ok(())
}

/// The image is made once and kept beside the other things that are fetched.
fn debian_image(context: &Context) -> Result<String> {
    let folder = context.pal.ancestors().nth(2).context("pal is in no target directory")?.join("pal/root");
    fs::create_dir_all(&folder)?;
    let image = folder.join("bookworm.ext4").to_string_lossy().into_owned();
    if !Path::new(&image).exists() {
        context.pal(["root", "debian", "bookworm", "--yes", "-o", &image], None)?.status(0)?;
    }
    Ok(image)
}

/// The system comes up whole, with the modules of its kernel, and goes down in its own way.
fn debian(context: &Context) -> Result<()> {
    let image = debian_image(context)?;
    let copy = context.path("copy.ext4");
    let copied = Command::new("cp").args(["--sparse=always", &image, &copy]).status()?;
    ensure!(copied.success(), "cannot copy the image");
    let command = "systemctl is-system-running --wait; modprobe dummy; grep -c '^dummy ' /proc/modules\n\
                   cat /etc/hostname > /kept; exit 6";
    let root = format!("{copy}:rw");
    let options = ["--root", &root, "--mem", "512", "--get", "/etc/os-release", "--exec", command];
    context.run(&options)?.status(6)?.prints("running\n1\n")?;
    ensure!(fs::read_to_string(context.path("os-release"))?.contains("bookworm"), "the file that it sends");
    // Unmounted, and not only switched off.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("debugfs").args(["-R", "cat /kept", &copy]).env("PATH", &path).output()?;
    ensure!(output.stdout == b"palimpsest\n", "{output:?}");
    let output = Command::new("dumpe2fs").args(["-h", &copy]).env("PATH", &path).output()?;
    let header = String::from_utf8_lossy(&output.stdout);
    ensure!(header.contains("clean") && !header.contains("needs_recovery"), "not unmounted\n{header}");
    Ok(())
}

fn refused(context: &Context) -> Result<()> {
    fs::create_dir_all(context.path("empty"))?;
    let empty = context.path("empty");
    context.run(&["--root", &format!("{empty}:rw")])?.status(2)?.says("mke2fs -t ext4 -d")?;
    context.run(&["--root", "none"])?.status(2)?.says("--root none")?;
    context.run(&["--root", &empty, "--get", "/x"])?.status(2)?.says("--exec")?;
    let kit = context.kit.to_string_lossy().into_owned();
    context.run(&["--root", &empty, "--kernel", &kit])?.status(2)?.says("--root needs a Linux kernel")?;
    context.run(&["--root", &empty, "--exec", "true"])?.status(3)?.says("lacks one of the directories")?;
    context.pal(["root", "debian", "Bad name", "-o", "x"], None)?.status(2)?.says("bookworm")?;
    Ok(())
}
