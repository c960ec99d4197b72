//! Fast memory of the machine: where it is, for the hypervisor's command line and for the model of a lab machine. A person names it, or
//! the lab machine's description, by saying what memory is of the slow tier.

use std::{fmt, str::FromStr};

use abi::tiers::{FastRange, MAX_FAST_RANGES, NotARange};
use anyhow::Result;

use crate::{
    cli::{Machine, RunArgs},
    lab,
    status::Usage,
};

/// What a person asks for: some MiB, or a range of the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastMem {
    /// That much, besides the memory that the machine has otherwise.
    More(u64),
    /// A part of the machine's memory.
    Part(FastRange),
}

impl FromStr for FastMem {
    type Err = NotARange;

    fn from_str(text: &str) -> Result<FastMem, NotARange> {
        if text.contains('@') {
            return text.parse().map(FastMem::Part);
        }
        text.parse().ok().filter(|mib| (1..=1 << 20).contains(mib)).map(FastMem::More).ok_or(NotARange)
    }
}

impl fmt::Display for FastMem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FastMem::More(mib) => mib.fmt(f),
            FastMem::Part(range) => range.fmt(f),
        }
    }
}

/// What a machine has of its memory below 4 GiB in MiB: all if it is less than the first number, otherwise the second; the rest is from
/// 4 GiB on.
const fn split(machine: Machine) -> (u64, u64) {
    // Bochs' chipset, and QEMU's q35.
    if machine.is_bochs() { (3072, 3072) } else { (2816, 2048) }
}

/// The hypervisor's image is below; QEMU loads the guests' files, and SeaBIOS has its tables, at the end of low memory. Where other
/// machines have the files, the hypervisor takes that part out.
pub const FIRST: u64 = 32;

/// The machine's memory in MiB with the fast memory, where that is, and where all memory ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub memory_mib: u64,
    pub range: FastRange,
    pub end_mib: u64,
}

/// Finds a place for the fast memory of such a machine with `memory_mib` MiB otherwise.
///
/// # Errors
/// There is none.
pub fn place(wanted: FastMem, machine: Machine, memory_mib: u64) -> Result<Layout> {
    let (memory_mib, mib) = match wanted {
        FastMem::More(mib) => (memory_mib + mib, Some(mib)),
        FastMem::Part(_) => (memory_mib, None),
    };
    let (split, low) = split(machine);
    let (start_mib, end_mib) =
        if memory_mib < split { (FIRST, memory_mib) } else { (4096, 4096 + memory_mib - low) };
    let range = match (wanted, mib) {
        (FastMem::Part(range), _) => range,
        (FastMem::More(mib), _) => FastRange { start_mib, mib },
    };
    if range.end_mib() > end_mib {
        let text = format!(
            "--fast-mem: {range} is not in one piece in the machine's memory, which ends at {end_mib} MiB; choose another size or place, or another --host-mem"
        );
        return Err(Usage::new(text).into());
    }
    Ok(Layout { memory_mib, range, end_mib })
}

/// The ranges of the slow tier that a lab machine's description names, in order.
fn slow_ranges(args: &RunArgs) -> Result<Vec<(u64, u64)>> {
    let Some(name) = &args.lab.lab else { return Ok(Vec::new()) };
    let (_, machine) = lab::find(name)?;
    let ranges = machine.memory.get_ref().range.iter().map(|range| range.get_ref());
    let mut slow: Vec<_> =
        ranges.filter(|range| range.node.is_none()).map(|range| (range.from_mib, range.to_mib)).collect();
    slow.sort_unstable();
    Ok(slow)
}

/// What `slow` leaves of a machine's memory of `memory_mib` MiB.
fn rest(slow: &[(u64, u64)], machine: Machine, memory_mib: u64) -> Vec<FastRange> {
    let (split, low) = split(machine);
    let ram = if memory_mib < split {
        [(FIRST, memory_mib), (0, 0)]
    } else {
        [(FIRST, low), (4096, 4096 + memory_mib - low)]
    };
    let mut fast = Vec::new();
    for (mut from, end) in ram {
        for (slow_from, slow_end) in slow.iter().copied().chain([(end, end)]) {
            let to = slow_from.min(end);
            if from < to {
                fast.push(FastRange { start_mib: from, mib: to - from });
            }
            from = from.max(slow_end);
        }
    }
    fast
}

/// The machine's fast memory: what a person asks for, or else what a lab machine's description says that is not of the slow tier.
///
/// # Errors
/// [`Usage`]: the description calls slow what is asked for, or has too many ranges.
pub fn ranges(args: &RunArgs, layout: Option<Layout>, memory_mib: u64) -> Result<Vec<FastRange>> {
    let slow = slow_ranges(args)?;
    let is_slow = |range: FastRange| {
        slow.iter().any(|(from, to)| range.overlaps(&FastRange { start_mib: *from, mib: to - from }))
    };
    match layout {
        Some(Layout { range, .. }) if is_slow(range) => {
            let text = format!(
                "--fast-mem: the lab machine's description has memory of the slow tier at {range} MiB ([[memory.range]] without a \
                 node); leave --fast-mem out, which takes what is not slow, or name another range, as MIB@MIB"
            );
            Err(Usage::new(text).into())
        }
        Some(Layout { range, .. }) => Ok(vec![range]),
        None if slow.is_empty() => Ok(Vec::new()),
        None => {
            let fast = rest(&slow, args.machine, memory_mib);
            if fast.len() > MAX_FAST_RANGES {
                let text = format!(
                    "--lab: the description leaves {} pieces of fast memory between ranges of the slow tier; the hypervisor takes \
                     {MAX_FAST_RANGES} at most",
                    fast.len()
                );
                return Err(Usage::new(text).into());
            }
            Ok(fast)
        }
    }
}

/// The words for the hypervisor's command line.
pub fn words(args: &RunArgs, ranges: &[FastRange]) -> String {
    let mut words: String = ranges.iter().map(|range| format!(" fast-mem={range}")).collect();
    if ranges.is_empty() {
        return words;
    }
    if let Some(sharing) = args.fast_sharing {
        words += &format!(" fast-sharing={sharing}");
    }
    if let Some(policy) = args.fast_policy {
        words += &format!(" fast-policy={policy}");
    }
    if let Some(eviction) = args.fast_evict {
        words += &format!(" fast-evict={eviction}");
    }
    words
}

/// The description of a lab machine whose memory is slow but for the fast memory. One that says which memory is where stays as it is.
pub fn describe(text: &str, Layout { range, end_mib, .. }: Layout) -> String {
    if text.lines().any(|line| line.trim() == "[[memory.range]]") {
        return text.to_owned();
    }
    let slow = |from: u64, to: u64| {
        if from < to {
            format!("\n[[memory.range]]\nfrom_mib = {from}\nto_mib = {to}\n")
        } else {
            String::new()
        }
    };
    let (start, end) = (range.start_mib, range.end_mib());
    let fast = format!("\n[[memory.range]]\nfrom_mib = {start}\nto_mib = {end}\nnode = 0\n");
    [text, &slow(0, start), &fast, &slow(end, end_mib)].concat()
}

/// Refuses options that the machine cannot follow.
///
/// # Errors
/// [`Usage`].
pub fn check(args: &RunArgs) -> Result<()> {
    let wrong = |text: &str| Err(Usage::new(text).into());
    let how = [
        ("--fast-sharing", args.fast_sharing.is_some()),
        ("--fast-policy", args.fast_policy.is_some()),
        ("--fast-evict", args.fast_evict.is_some()),
    ];
    let given = how.into_iter().find(|(_, is_given)| *is_given && args.fast_mem.is_none());
    if let Some((option, _)) = given.filter(|_| slow_ranges(args).is_ok_and(|slow| slow.is_empty())) {
        return wrong(&format!(
            "{option}: this machine has no fast memory; add --fast-mem, or a lab machine whose description has memory of the slow tier"
        ));
    }
    match args.fast_mem {
        Some(_) if matches!(args.machine, Machine::Native | Machine::BochsNative) => {
            wrong("--fast-mem: the hypervisor divides it; take --machine qemu-svm or bochs-vtx")
        }
        Some(_) if args.overcommit => {
            wrong("--fast-mem: pages of a guest with --overcommit get none; leave one of the two out")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_memory_is_in_one_piece() {
        let range = |text: &str| text.parse::<FastRange>().unwrap();
        let on = |machine, wanted: &str, mib| {
            let placed = place(wanted.parse().unwrap(), machine, mib);
            placed.ok().map(|at| (at.memory_mib, at.range, at.end_mib))
        };
        let placed = |wanted, mib| on(Machine::QemuSvm, wanted, mib);
        assert_eq!(placed("64", 500), Some((564, range("64@32"), 564)));
        assert_eq!(placed("64", 3000), Some((3064, range("64@4096"), 5112)));
        assert_eq!(placed("2000", 1000), None, "it would lie on both sides of the hole");
        assert_eq!(placed("32@100", 500), Some((500, range("32@100"), 500)));
        assert_eq!(placed("32@480", 500), None);
        assert_eq!(on(Machine::BochsVtx, "64", 3000), Some((3064, range("64@32"), 3064)));
        assert_eq!(on(Machine::BochsVtx, "64", 3100), Some((3164, range("64@4096"), 4188)));
        assert!("0".parse::<FastMem>().is_err() && "x@1".parse::<FastMem>().is_err());
    }

    #[test]
    fn a_lab_machine_is_slow_elsewhere() {
        let (text, _) = crate::lab::find("westmere-x5660").unwrap();
        let placed = |wanted: &str, mib| place(wanted.parse().unwrap(), Machine::QemuSvm, mib).unwrap();
        let described = describe(&text, placed("64", 500));
        let machine = labsim::machine::read(&described, "it").unwrap();
        let ranges: Vec<_> = machine.memory.get_ref().range.iter().map(|range| range.get_ref()).collect();
        assert_eq!(
            ranges.iter().map(|range| (range.from_mib, range.node)).collect::<Vec<_>>(),
            [(0, None), (32, Some(0)), (96, None)]
        );
        assert_eq!(describe(&described, placed("1@1", 10)), described);
    }

    #[test]
    fn what_is_not_slow_is_fast() {
        let rest = |slow: &[(u64, u64)], mib| -> Vec<String> {
            rest(slow, Machine::QemuSvm, mib).iter().map(FastRange::to_string).collect()
        };
        assert_eq!(rest(&[(0, 64), (96, 1 << 20)], 500), ["32@64"]);
        assert_eq!(rest(&[(100, 200), (200, 300), (400, 450)], 500), ["68@32", "100@300", "50@450"]);
        assert_eq!(rest(&[(0, 1 << 20)], 500), [""; 0]);
        // A hole below 4 GiB; memory ends at 5120 MiB.
        assert_eq!(rest(&[(0, 2000)], 3072), ["48@2000", "1024@4096"]);
        assert_eq!(rest(&[(0, 4100), (5000, 6000)], 3072), ["900@4100"]);
    }
}
