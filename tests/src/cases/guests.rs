//! Debian's unmodified kernels, one for each kind of page tables.

use anyhow::Result;

use super::{Case, both};
use crate::context::Context;

pub const CASES: &[Case] = &[
    both("a 32-bit guest with two levels of page tables", two_levels),
    both("a 32-bit guest with PAE page tables", pae),
    both("another kernel for a 32-bit guest", other_kernel),
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
