//! Debian's unmodified kernels, one for each kind of page tables.

use std::{path::Path, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{Case, both, only, virtio};
use crate::context::Context;

pub const CASES: &[Case] = &[
    both("a 32-bit guest with two levels of page tables", two_levels),
    both("a 32-bit guest with PAE page tables", pae),
    both("another kernel for a 32-bit guest", other_kernel),
    both("a kernel of the backports, and modules of a kernel of one's own", backports),
    only("native", "names of guests", names),
    only("native", "two pals fetch kernels at once", at_once),
];

/// What the kernel says about NX tells whether it uses PAE.
const COMMAND: &str = "uname -m; dmesg | grep -o 'NX (Execute Disable) protection.*'; cat /root/taken";

fn boot(context: &Context, guest: &str, no_execute: &str) -> Result<()> {
    let file = context.file("taken", "along\n")?;
    let put = format!("{file}:/root/taken");
    let finished = context.run(&["--guest", guest, "--put", &put, "--exec", COMMAND])?.status(0)?;
    finished.prints(&format!("i686\nNX (Execute Disable) protection{no_execute}\nalong\n"))?.within(90)?;
    Ok(())
}

fn two_levels(context: &Context) -> Result<()> {
    boot(context, "debian-686", " cannot be enabled: non-PAE kernel!")
}

fn pae(context: &Context) -> Result<()> {
    boot(context, "debian-686-pae", ": active")
}

/// `--kernel` takes the place of the guest's kernel; its busybox stays.
fn other_kernel(context: &Context) -> Result<()> {
    let kernel = context.pal(["kernel", "--guest", "debian-686"], None)?.status(0)?.stdout();
    let options = ["--guest", "debian-686-pae", "--kernel", kernel.trim(), "--exec", "uname -rm"];
    context.run(&options)?.status(0)?.has("-686 i686\n")?;
    Ok(())
}

/// Its drivers are modules, which Debian packs. By its name on the hypervisor; on the bare machine as a kernel of one's own, which lies
/// elsewhere than its modules.
fn backports(context: &Context) -> Result<()> {
    let kernel = context.pal(["kernel", "--guest", "debian-amd64-backports"], None)?.status(0)?.stdout();
    let kernel = Path::new(kernel.trim());
    let (disk, sum) = virtio::noise_and_sum(context, "disk", 64)?;
    let command = ["--disk", &disk, "--exec", "uname -r; md5sum < /dev/vda; ls -d /sys/module/virtio_blk"];
    let finished = if context.nested() {
        context.run(&[&["--guest", "debian-amd64-backports"], &command[..]].concat())?
    } else {
        let copy = context.path("vmlinuz");
        std::fs::copy(kernel, &copy)?;
        let package = kernel.ancestors().nth(2).context("a kernel lies in its package")?;
        let package = package.to_string_lossy();
        context.run(&[&["--kernel", &copy, "--modules", &package], &command[..]].concat())?
    };
    let release =
        kernel.file_name().context("a kernel has a name")?.to_string_lossy().replace("vmlinuz-", "");
    finished.status(0)?.prints(&format!("{release}\n{sum}  -\n/sys/module/virtio_blk\n"))?;
    Ok(())
}

fn names(context: &Context) -> Result<()> {
    context.run(&["--guest", "debian"])?.status(2)?.says("debian-amd64-backports")?;
    context.run(&["--guest", "linux-image-../x"])?.status(2)?.says("--guest")?;
    context
        .run(&["--modules", "/no/such/dir"])?
        .status(2)?
        .says("--modules /no/such/dir: no such directory")?;
    let empty = context.path("empty");
    std::fs::create_dir(&empty)?;
    context.run(&["--modules", &empty])?.status(2)?.says("make modules_install")?;
    context.pal(["run", "--help"], None)?.status(0)?.has("debian-amd64-rt")?.has("--modules <DIR>")?;
    Ok(())
}

/// Stands in for apt and dpkg: apt-get takes a while for the lists and gives up at once when another does so, as the real one.
const APT: &str = r#"#!/bin/sh
for word; do case "$word" in Dir::State::Lists=*) lists=${word#*=};; esac; done
case "$0 $*" in
*apt-cache*show*) [ -e "${lists:-/none}/here" ] && echo "Package: x";;
*apt-cache*depends*) ;;
*apt-get*indextargets*) ;;
*apt-get*update*)
    mkdir "$lists/held" 2>/dev/null || { echo "E: Could not get lock $lists/lock" >&2; exit 100; }
    sleep 2; touch "$lists/here"; rmdir "$lists/held";;
*apt-get*download*) for word; do package=$word; done; echo "$package" > "$package.deb";;
*dpkg-deb*) for word; do tree=$word; done; mkdir -p "$tree/boot" && cp "$2" "$tree/boot/vmlinuz-$(cat "$2")";;
esac
"#;

/// Both need the same lists of packages, which no run has fetched yet. The second waits, says so, and finds them.
fn at_once(context: &Context) -> Result<()> {
    std::fs::create_dir(context.path("bin"))?;
    for name in ["apt-get", "apt-cache", "dpkg-deb"] {
        let program = context.file(&format!("bin/{name}"), APT)?;
        std::fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    let path = format!("{}:{}", context.path("bin"), std::env::var("PATH").unwrap_or_default());
    let fetch = |guest: &str| {
        let mut command = Command::new(&context.pal);
        command.args(["kernel", "--guest", guest]).env("PATH", &path);
        command.env("CARGO_TARGET_DIR", context.path("target"));
        context.wait_for(command, Duration::from_secs(120))?.status(0)
    };
    let [one, other] = thread::scope(|scope| {
        let started = ["debian-amd64", "debian-amd64-generic"].map(|guest| scope.spawn(move || fetch(guest)));
        started.map(|run| run.join().expect("no thread panics"))
    });
    let (one, other) = (one?.has("/boot/vmlinuz-linux-image-cloud-amd64")?, other?);
    let other = other.has("/boot/vmlinuz-linux-image-amd64")?;
    let waited = [&one, &other].map(|run| run.stderr.contains("waiting for another pal"));
    ensure!(waited[0] != waited[1], "who waited: {waited:?}");
    Ok(())
}
