//! The stress program inside Linux, with each kind of page tables, in each way of virtualizing memory.
//!
//! `tests/kits/stress` says what it does. It checks itself; its sum must also be that of the same program on this machine.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::{Case, boot::read_stats, only};
use crate::context::{BOCHS_TIMEOUT, Context};

/// The program's arguments: seed and rounds. It takes seconds.
const ARGUMENTS: [&str; 2] = ["1", "1"];

/// A guest, with the bits of its programs.
pub struct Guest {
    name: &'static str,
    bits: usize,
}

/// 4-level tables.
pub const AMD64: Guest = Guest { name: "debian-amd64", bits: 64 };
/// Two-level tables.
pub const I686: Guest = Guest { name: "debian-686", bits: 32 };
/// PAE tables.
pub const PAE: Guest = Guest { name: "debian-686-pae", bits: 32 };

/// Lists the cases: the guests of each machine and mode, with `at_length` those for `--full`.
macro_rules! cases {
    ($($machine:literal, $mode:literal, $options:tt: $($tables:literal $guest:ident $($length:ident)?),*;)*) => {
        pub const CASES: &[Case] = &[$($(
            only($machine, concat!("stress, ", $tables, " tables, ", $mode), |c| stress(c, &$guest, &ARGUMENTS, &$options))
                $(.$length())?,
        )*)*];
    };
}

cases! {
    "native", "alone", []: "4-level" AMD64 at_length, "2-level" I686 at_length, "PAE" PAE at_length;
    "qemu-svm", "nested", ["--mode", "nested"]: "4-level" AMD64, "2-level" I686 at_length, "PAE" PAE at_length;
    "qemu-svm", "shadow", ["--mode", "shadow"]: "4-level" AMD64, "2-level" I686 at_length, "PAE" PAE at_length;
    "qemu-svm", "switch=1", ["--mode", "switch=1"]: "4-level" AMD64 at_length, "2-level" I686 at_length, "PAE" PAE;
    "qemu-svm", "switch=7", ["--mode", "switch=7"]: "4-level" AMD64 at_length, "2-level" I686 at_length, "PAE" PAE at_length;
    "qemu-svm", "switch=100", ["--mode", "switch=100"]: "4-level" AMD64 at_length, "2-level" I686, "PAE" PAE at_length;
    "qemu-svm", "agile", ["--mode", "agile,window_ms=50,timeout_ms=50,start_ms=20"]:
        "4-level" AMD64 at_length, "2-level" I686 at_length, "PAE" PAE at_length;
    "qemu-svm", "switch=50,engines=all", ["--mode", "switch=50,engines=all"]: "4-level" AMD64, "PAE" PAE at_length;
    "qemu-svm", "switch=1,engines=all", ["--mode", "switch=1,engines=all"]: "4-level" AMD64 at_length;
}

/// Runs the program with these arguments in the guest, and on this machine: both say the same.
pub fn stress(context: &Context, guest: &Guest, arguments: &[&str], options: &[&str]) -> Result<()> {
    let [wide, narrow] = &context.stress;
    let program = if guest.bits == 64 { wide } else { narrow };
    let put = format!("{}:/stress", program.display());
    // With so little memory Linux uses no huge pages by itself, and without PAE it has none.
    let command = format!(
        "echo madvise 2> /dev/null > /sys/kernel/mm/transparent_hugepage/enabled; /stress {}",
        arguments.join(" ")
    );
    let limit = if context.on_bochs() { BOCHS_TIMEOUT } else { "500" };
    let base = ["--guest", guest.name, "--put", &put, "--exec", &command, "--timeout", limit];
    let (path, here) = (context.path("stats.json"), here(program, arguments)?);
    if !options.contains(&"shadow") {
        context.run(&[&base, options].concat())?.status(0)?.prints(&here)?;
        return Ok(());
    }
    context.run(&[&base, options, &["--stats", &path]].concat())?.status(0)?.prints(&here)?;
    // The default limit is a fiftieth of the guest's 256 MiB; this takes less, and nothing is evicted.
    let stats = read_stats(&path)?;
    let counted = |name: &str| stats["guests"][0]["paging"]["shadow"][name].as_u64();
    let most = counted("most_bytes").is_some_and(|most| (1 << 20..(256 << 20) / 50).contains(&most));
    ensure!(most && counted("evictions") == Some(0), "{stats}");
    Ok(())
}

/// What the program prints on this machine.
pub fn here(program: &Path, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(arguments).output().context("cannot run the stress program here")?;
    Ok(String::from_utf8(output.stdout)?)
}
