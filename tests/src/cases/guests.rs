//! Debian's unmodified kernels, one for each kind of page tables.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, ExitStatus},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::{Case, hypervisor, only, remote::wait_until, virtio};
use crate::context::Context;

pub const CASES: &[Case] = &[
    hypervisor("a 32-bit guest with two levels of page tables, by another kernel", two_levels),
    hypervisor("a 32-bit guest with PAE page tables", pae),
    hypervisor("a kernel of the backports, and modules of a kernel of one's own", backports),
    only("native", "names of guests", names),
    only("native", "two pals fetch kernels at once", at_once),
];

/// What the kernel says about NX tells whether it uses PAE.
const COMMAND: &str = "uname -m; dmesg | grep -o 'NX (Execute Disable) protection.*'\n\
    echo \"$(uname -r | grep -o -e '-686.*') \"; cat /root/taken";

fn boot(context: &Context, options: &[&str], printed: &str) -> Result<()> {
    let file = context.file("taken", "along\n")?;
    let put = format!("{file}:/root/taken");
    let finished = context.run(&[options, &["--put", &put, "--exec", COMMAND]].concat())?.status(0)?;
    finished.prints(printed)?.soon()?;
    Ok(())
}

/// `--kernel` takes the place of the guest's kernel; its busybox stays. (`stress` boots this guest by its name.)
fn two_levels(context: &Context) -> Result<()> {
    let kernel = context.pal(["kernel", "--guest", "debian-686"], None)?.status(0)?.stdout();
    let options = ["--guest", "debian-686-pae", "--kernel", kernel.trim()];
    boot(
        context,
        &options,
        "i686\nNX (Execute Disable) protection cannot be enabled: non-PAE kernel!\n-686 \nalong\n",
    )
}

fn pae(context: &Context) -> Result<()> {
    let guest = ["--guest", "debian-686-pae"];
    boot(context, &guest, "i686\nNX (Execute Disable) protection: active\n-686-pae \nalong\n")
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
        fs::copy(kernel, &copy)?;
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
    fs::create_dir(&empty)?;
    context.run(&["--modules", &empty])?.status(2)?.says("make modules_install")?;
    context.pal(["run", "--help"], None)?.status(0)?.has("debian-amd64-rt")?.has("--modules <DIR>")?;
    Ok(())
}

/// Stands in for apt and dpkg: apt-get takes for the lists until it is told to go on, and gives up at once when another does so, as
/// the real one.
const APT: &str = r#"#!/bin/sh
for word; do case "$word" in Dir::State::Lists=*) lists=${word#*=};; esac; done
case "$0 $*" in
*apt-cache*show*) [ -e "${lists:-/none}/here" ] && echo "Package: x";;
*apt-cache*depends*) ;;
*apt-get*indextargets*) ;;
*apt-get*update*)
    mkdir "$lists/held" 2>/dev/null || { echo "E: Could not get lock $lists/lock" >&2; exit 100; }
    touch "$HOLD/updates"; until [ -e "$HOLD/go" ]; do sleep 0.1; done
    touch "$lists/here"; rmdir "$lists/held";;
*apt-get*download*) for word; do package=$word; done; echo "$package" > "$package.deb";;
*dpkg-deb*--show*) echo "$(cat "$3") 1";;
*dpkg-deb*) for word; do tree=$word; done; mkdir -p "$tree/boot" && cp "$2" "$tree/boot/vmlinuz-$(cat "$2")";;
esac
"#;

/// Both need the same lists of packages, which no run has fetched yet. The second waits, says so, and finds them.
fn at_once(context: &Context) -> Result<()> {
    fs::create_dir(context.path("bin"))?;
    for name in ["apt-get", "apt-cache", "dpkg-deb"] {
        let program = context.file(&format!("bin/{name}"), APT)?;
        fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    let path = format!("{}:{}", context.path("bin"), std::env::var("PATH").unwrap_or_default());
    let fetch = |guest: &str| {
        let mut command = Command::new(&context.pal);
        command.args(["kernel", "--guest", guest]).env("PATH", &path).env("HOLD", context.path("bin"));
        command.env("CARGO_TARGET_DIR", context.path("target"));
        command
    };
    thread::scope(|scope| {
        let first = fetch("debian-amd64");
        let first = scope.spawn(move || context.wait_for(first, Duration::from_secs(300)));
        let (output, messages) = (context.path("output"), context.path("messages"));
        let both = || -> Result<ExitStatus> {
            wait_until(|| Ok(Path::new(&context.path("bin/updates")).exists()), "the first one's update")?;
            let mut second = fetch("debian-amd64-generic");
            second.stdout(File::create(&output)?).stderr(File::create(&messages)?);
            let mut second = second.spawn()?;
            let waits = || Ok(fs::read_to_string(&messages)?.contains("waiting for another pal"));
            let waited = wait_until(waits, "the second one's word that it waits");
            fs::write(context.path("bin/go"), "")?;
            let status = second.wait()?;
            waited.and(Ok(status))
        };
        let second = both();
        // The first one ends in any case.
        fs::write(context.path("bin/go"), "")?;
        let first = first.join().expect("no thread panics")?.status(0)?;
        first.has("/boot/vmlinuz-linux-image-cloud-amd64")?;
        let (status, output) = (second?, fs::read_to_string(&output)?);
        ensure!(status.success() && output.contains("/boot/vmlinuz-linux-image-amd64"), "{status}: {output}");
        Ok(())
    })
}
