//! Debian's unmodified kernels, one for each kind of page tables.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Case, both, only, virtio};
use crate::context::Context;

pub const CASES: &[Case] = &[
    both("a 32-bit guest with two levels of page tables", two_levels),
    both("a 32-bit guest with PAE page tables", pae),
    both("another kernel for a 32-bit guest", other_kernel),
    both("a kernel of the backports, and modules of a kernel of one's own", backports),
    only("native", "names of guests", names),
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

/// Its drivers are modules, which Debian packs. By its name on the hypervisor; on the bare machine as somebody's own, which lies
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
