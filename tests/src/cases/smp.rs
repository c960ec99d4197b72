//! Guests with several processors, on as many of the machine's or on fewer.

use anyhow::Result;

use super::long_mode::group;
use super::{Case, both, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    both("manuals: page tables that processors share", |c| kit(c, "shared")).also(&["shadow", "switch=50"]),
    only("qemu-svm", "four processors of a guest on four in two packages", four).also(&["shadow"]),
    only("qemu-svm", "four processors of a guest take turns on one", turns),
];

/// Cases of the kit with four processors.
fn kit(context: &Context, cases: &str) -> Result<()> {
    let machine: &[&str] = if context.nested() { &["--pcpus", "4,sockets=2"] } else { &[] };
    group(context, cases, &[&["--vcpus", "4"], machine].concat())
}

/// Four processes that compute the same checksum, and one line when each is done.
const SUMS: &str = "nproc; for i in 1 2 3 4; do (seq 20000 | md5sum) & done; wait";

/// What each of them says.
const SUM: &str = "e071f707df7bbeee2a6a1eb48011ddd0";

fn sums(context: &Context, options: &[&str]) -> Result<()> {
    let expected = format!("4\n{}", format!("{SUM}  -\n").repeat(4));
    let mut all = vec!["--vcpus", "4", "--timeout", "600", "--exec", SUMS];
    all.extend(options);
    context.run(&all)?.status(0)?.prints(&expected)?;
    Ok(())
}

fn four(context: &Context) -> Result<()> {
    sums(context, &["--pcpus", "4,sockets=2"])
}

fn turns(context: &Context) -> Result<()> {
    sums(context, &[])
}
