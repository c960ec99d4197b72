//! Guests with several processors, on as many of the machine's or on fewer.

use anyhow::{Result, ensure};

use super::boot::{at_least, read_stats};
use super::long_mode::group;
use super::stress::{AMD64, I686, PAE, stress};
use super::tiers::rotate;
use super::{Case, SHADOW, both, hypervisor, only};
use crate::context::{Context, Finished};

pub const CASES: &[Case] = &[
    both("manuals: several processors", |c| kit(c, "smp")).also(&["shadow"]),
    hypervisor("manuals: page tables that processors share", |c| kit(c, "shared")).more(&[
        "shadow",
        "switch=50",
        "switch=200",
    ]),
    only("qemu-svm", "task switches while the mode changes", |c| tasks(c, &["switch=7"])),
    only("qemu-svm", "task switches while the mode changes, at length", |c| {
        tasks(c, &["switch=1", "switch=100"])
    })
    .at_length(),
    only("qemu-svm", "four processors of a guest on four in two packages", four).also(&["shadow"]),
    only("qemu-svm", "four processors of a guest take turns on one", turns),
    only("qemu-svm", "sixteen processors of a guest on four", sixteen).also(&["shadow"]).at_length(),
    only("qemu-svm", "a processor that cannot run guests is left out", unfit),
    only("native", "stress on four processors", |c| storm(c, &[])).at_length(),
    only("qemu-svm", "stress on four processors, changes", |c| {
        storm(c, &[&TWO_DOMAINS[..], &["--mode", "switch=200"]].concat())
    }),
    only("qemu-svm", "stress on four processors", on_four).more(SHADOW).at_length(),
    only("qemu-svm", "stress on four processors, regions", regions).more(SHADOW),
    only("qemu-svm", "stress on four processors, fast memory", tiers)
        .more(&["shadow", "switch=50,engines=all"]),
    only("qemu-svm", "stress on two processors, agile paging", agile).at_length(),
    only("qemu-svm", "stress on one processor, agile paging, machine=commodity", |c| spaces(c, "1"))
        .at_length(),
    only("qemu-svm", "stress on two processors, agile paging, machine=commodity", |c| spaces(c, "2")),
    only("qemu-svm", "stress on four processors, at length", at_length)
        .also(&["shadow", "switch=200"])
        .at_length(),
    only("qemu-svm", "stress on four processors, other tables", other_tables)
        .also(&["shadow", "switch=200"])
        .at_length(),
];

/// A machine of two packages, which are two domains of the last-level cache.
const TWO_DOMAINS: [&str; 2] = ["--pcpus", "4,sockets=2"];

/// Cases of the kit with four processors.
fn kit(context: &Context, cases: &str) -> Result<()> {
    let machine: &[&str] = if context.nested() { &TWO_DOMAINS } else { &[] };
    group(context, cases, &[&["--vcpus", "4"], machine].concat())
}

/// On one processor, on several at once, and under sabotage. (In the first two modes `manuals` has them.)
fn tasks(context: &Context, modes: &[&str]) -> Result<()> {
    for mode in modes {
        let options = ["--vcpus", "4", "--mode", *mode];
        group(context, "tasks smp.tasks", &[&options[..], &TWO_DOMAINS].concat())?;
    }
    Ok(())
}

/// Four processes that compute the same checksum, and one line when each is done.
const SUMS: &str = "nproc; for i in 1 2 3 4; do (seq 20000 | md5sum) & done; wait";
/// The same with sixteen.
const MANY: &str =
    "nproc; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do (seq 20000 | md5sum) & done; wait";

/// What each of them says.
const SUM: &str = "e071f707df7bbeee2a6a1eb48011ddd0";

fn sums(context: &Context, count: usize, command: &str, options: &[&str]) -> Result<Finished> {
    let expected = format!("{count}\n{}", format!("{SUM}  -\n").repeat(count));
    let vcpus = count.to_string();
    let mut all = vec!["--vcpus", &vcpus, "--timeout", "600", "--exec", command];
    all.extend(options);
    context.run(&all)?.status(0)?.prints(&expected)
}

/// The person is told before it takes long.
fn four(context: &Context) -> Result<()> {
    let finished = sums(context, 4, SUMS, &TWO_DOMAINS)?;
    if context.mode == Some("shadow") {
        finished.says("--mode shadow with 4 virtual processors is slow on QEMU")?;
    }
    Ok(())
}

fn turns(context: &Context) -> Result<()> {
    sums(context, 4, SUMS, &[]).map(drop)
}

fn sixteen(context: &Context) -> Result<()> {
    sums(context, 16, MANY, &TWO_DOMAINS).map(drop)
}

/// The second processor has no AMD-V, as if firmware had locked it there alone.
fn unfit(context: &Context) -> Result<()> {
    let machine = [
        "--qemu-arg=-smp",
        "--qemu-arg=1,maxcpus=2,sockets=2",
        "--qemu-arg=-device",
        "--qemu-arg=EPYC-x86_64-cpu,xlevel=0x80000008,socket-id=1,core-id=0,thread-id=0",
    ];
    let says = "PCPU 1 runs no guests: this processor has no AMD-V";
    let run = |options: &[&str]| context.run(&[&machine, options].concat());
    run(&["--vcpus", "2", "--exec", "nproc"])?.status(0)?.prints("2\n")?.says(says)?;
    let kit = context.kit.to_string_lossy();
    let vm = format!("version = 1\n[[vm]]\nname = \"a\"\nkernel = \"{kit}\"\naffinity = [1]\n");
    let config = context.file("lab.toml", vm)?;
    run(&["--config", &config, "--pcpus", "2"])?.status(2)?.says("runs guests, as 0 of 2 do")?;
    Ok(())
}

/// The stress program on all processors of a guest.
fn storm(context: &Context, options: &[&str]) -> Result<()> {
    stress(context, &AMD64, &["1", "1", "4"], &[&["--vcpus", "4"], options].concat())
}

fn on_four(context: &Context) -> Result<()> {
    storm(context, &TWO_DOMAINS)
}

/// Phases of one VCPU after the other, and memory that is closed to half of them, while all four use it.
fn regions(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let policy = "balance,q_us=1000,period_ms=50,phase_ms=10,least_us=0,cache_kib=64";
    storm(context, &[&TWO_DOMAINS[..], &["--regions", policy, "--stats", &path]].concat())?;
    let regions = &read_stats(&path)?["guests"][0]["paging"]["regions"];
    at_least(regions, &[("rounds", 10), ("touches", 1000), ("regions_placed", 5), ("region_moves", 10)])
}

/// Pages move to fast memory, which has room for some of them, and back, at the highest rate, while four VCPUs use them.
fn tiers(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let fast = ["--nested-page", "4K", "--fast-mem", "2", "--fast-policy", "rotate", "--stats", &path];
    storm(context, &[&TWO_DOMAINS[..], &fast].concat())?;
    let tiers = &read_stats(&path)?["guests"][0]["paging"]["tiers"];
    // Here it is 250 or more.
    rotate(tiers, 100)
}

/// Tables become nested and shadowed again while two processors use them.
fn agile(context: &Context) -> Result<()> {
    let stats = context.path("stats.json");
    let mode = ["--mode", "agile,window_ms=50,timeout_ms=50,start_ms=20", "--stats", &stats];
    stress(context, &AMD64, &["3", "1", "2"], &[&["--vcpus", "2", "--pcpus", "2"], &mode[..]].concat())?;
    let counts = &read_stats(&stats)?["guests"][0]["paging"]["agile"];
    let moved =
        ["stand_ins", "root_hits", "roots_nested", "roots_to_shadow", "tables_to_nested", "tables_to_shadow"];
    let still = moved.iter().find(|name| counts[**name].as_u64().is_none_or(|count| count < 10));
    ensure!(still.is_none(), "{still:?} is too small: {counts}");
    Ok(())
}

/// Address spaces become shadow and nested again, by themselves and while another processor uses its own.
fn spaces(context: &Context, count: &str) -> Result<()> {
    let stats = context.path("stats.json");
    let mode = [
        "--mode",
        "agile,machine=commodity,start_ms=20,window_ms=5,cost_milli=20,retry_ms=10",
        "--stats",
        &stats,
    ];
    let processors = ["--vcpus", count, "--pcpus", count];
    stress(context, &AMD64, &["3", "1", count], &[&processors, &mode[..]].concat())?;
    let paging = &read_stats(&stats)?["guests"][0]["paging"];
    let moved = [("spaces", "spaces_to_shadow"), ("spaces", "nested_cr3_loads"), ("switches", "to_shadow")];
    let still = moved.iter().find(|(of, name)| paging[*of][*name].as_u64().is_none_or(|count| count < 3));
    ensure!(still.is_none(), "{still:?} is too small: {paging}");
    Ok(())
}

/// Other seeds, for longer; and with more processors than there are, so that VCPUs are moved.
fn at_length(context: &Context) -> Result<()> {
    for seed in ["2", "3", "4"] {
        stress(context, &AMD64, &[seed, "3", "4"], &[&["--vcpus", "4"], &TWO_DOMAINS[..]].concat())?;
    }
    stress(context, &AMD64, &["5", "2", "6"], &["--vcpus", "6", "--pcpus", "3,sockets=3"])
}

fn other_tables(context: &Context) -> Result<()> {
    for guest in [&I686, &PAE] {
        stress(context, guest, &["6", "2", "4"], &[&["--vcpus", "4"], &TWO_DOMAINS[..]].concat())?;
    }
    Ok(())
}
