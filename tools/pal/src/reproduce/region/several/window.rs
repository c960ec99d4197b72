//! What the samples of a run say of its programs: pure.
//!
//! On a machine with several processors at work a guest's clock has the time of waiting for others in it, too. Each VCPU's cycles are
//! its own, in the samples. `memlat beats` executes CPUID after each number of loads in the part of it that is to be
//! measured: exits that the same samples count.

use crate::samples::{Run, Sample};

/// The least beats of a measurement.
const LEAST: u64 = 20;

/// What a VM did in the part that is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Vm {
    /// Beats of its program.
    pub beats: u64,
    /// Cycles of the guest, and of the hypervisor for it.
    pub cycles: u64,
    /// Instructions of the guest.
    pub instructions: u64,
    /// Misses of the last cache.
    pub misses: u64,
    /// Time that it had a processor, in nanoseconds.
    pub ran_ns: u64,
    /// The cache that most of its memory was mapped to.
    pub cache: Option<u64>,
    /// Bytes of that, at the moment when they were most.
    pub held: u64,
    /// Moves of its VCPU, in all of the run.
    pub moves: u64,
}

/// When a sample begins.
fn begin(sample: &Sample) -> u64 {
    sample.machine_ns.saturating_sub(sample.span_ns)
}

fn beats(run: &Run, sample: &Sample) -> u64 {
    let reason = run.names.reasons.iter().position(|reason| reason == "cpuid");
    let of = sample.exits.iter().filter(|(why, _)| Some(*why) == reason).map(|(_, count)| *count);
    of.fold(0, u64::saturating_add)
}

fn of_vm<'a>(run: &'a Run, name: &str) -> Vec<&'a Sample> {
    let vm = run.names.vms.iter().position(|known| known == name);
    run.samples.iter().filter(|sample| Some(sample.vm) == vm).collect()
}

/// The part of a run in which a program beats: after the longest time without, which is its warm-up of at least half of `warm_ns`, until
/// there is none for `rest_ns` / 2. Samples that are whole within, from nanosecond to nanosecond of the machine.
fn beating(run: &Run, name: &str, warm_ns: u64, rest_ns: u64) -> Result<(u64, u64), String> {
    let beating: Vec<_> = of_vm(run, name).into_iter().filter(|sample| beats(run, sample) > 0).collect();
    let gap = |pair: &[&Sample]| begin(pair[1]).saturating_sub(pair[0].machine_ns);
    let longest = beating.windows(2).enumerate().max_by_key(|(_, pair)| gap(pair));
    let Some((at, _)) = longest.filter(|(_, pair)| gap(pair) >= warm_ns / 2) else {
        return Err(format!("{name}: the samples show no warm-up of its program"));
    };
    let part = &beating[at + 1..];
    let end = part.windows(2).position(|pair| gap(pair) >= rest_ns / 2).map_or(part.len(), |at| at + 1);
    // The first and the last one are of other parts, too.
    Ok((part[0].machine_ns, begin(part[end - 1])))
}

/// The cache that had most of a VM's memory in this time, and how much at the most.
fn place(run: &Run, name: &str, (from, to): (u64, u64)) -> (Option<u64>, u64) {
    let vm = run.names.vms.iter().position(|known| known == name);
    let lines = run.regions.iter().filter(|it| Some(it.vm) == vm && (from..=to).contains(&it.machine_ns));
    let held = lines.flat_map(|it| (0..).zip(&it.caches)).map(|(cache, (held, _))| (*held, cache));
    held.filter(|(held, _)| *held > 0).max().map_or((None, 0), |(held, cache)| (Some(cache), held))
}

/// What each of the VMs did while all of `programs` were measured, in the order of `vms`.
///
/// # Errors
/// What the samples do not have.
pub fn measured(
    run: &Run,
    vms: &[&str],
    programs: &[&str],
    warm_ns: u64,
    rest_ns: u64,
) -> Result<Vec<Vm>, String> {
    let mut all = (0, u64::MAX);
    for name in programs {
        let (from, to) = beating(run, name, warm_ns, rest_ns)?;
        all = (all.0.max(from), all.1.min(to));
    }
    let of = |name: &&str| {
        let mut vm = Vm::default();
        (vm.cache, vm.held) = place(run, name, all);
        let number = run.names.vms.iter().position(|known| known == name);
        let moves = run.regions.iter().filter(|it| Some(it.vm) == number).map(|it| it.moves);
        vm.moves = moves.fold(0, u64::saturating_add);
        for sample in of_vm(run, name) {
            if begin(sample) < all.0 || sample.machine_ns > all.1 {
                continue;
            }
            let counter =
                |key: &str| sample.counter(key).ok_or_else(|| format!("{name}: {key} are not counted"));
            vm.beats += beats(run, sample);
            vm.cycles += counter("cycles")? + sample.host_cycles.unwrap_or(0);
            vm.instructions += counter("instructions")?;
            vm.misses += counter("llc_misses")?;
            vm.ran_ns += sample.all_ran_ns();
        }
        if programs.contains(name) && vm.beats < LEAST {
            return Err(format!("{name}: only {} beats are in the part that is measured", vm.beats));
        }
        Ok(vm)
    };
    vms.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::tests::ABOUT;

    const MS: u64 = 1_000_000;

    /// Samples of 10 ms of a VM that beats three times in each of those of these times.
    fn samples(vm: &str, ends: u64, beating: impl Fn(u64) -> bool) -> String {
        let line = |n: u64| {
            let beats = if beating(n * 10) { json!({ "cpuid": 3, "io": 1 }) } else { json!({ "io": 1 }) };
            json!({ "v": 1, "t": "sample", "vm": vm, "machine_ns": n * 10 * MS, "span_ns": 10 * MS, "exits": beats,
                "guest": { "cycles": 900, "instructions": 50, "llc_misses": 7 }, "host": { "cycles": 100 },
                "vcpus": [{ "ran_ns": 10 * MS }] })
            .to_string()
                + "\n"
        };
        (1..=ends / 10).map(line).collect()
    }

    fn run(text: &str) -> Run {
        let regions = json!({ "v": 1, "t": "regions", "vm": "a", "machine_ns": 950 * MS, "span_ns": MS, "moves": 4, "map": "..",
            "caches": [{ "frames": 1, "working_set": 1 }, { "frames": 8, "working_set": 8 }], "regions": [] });
        Run::read(format!("{ABOUT}{text}{regions}\n").as_bytes()).unwrap()
    }

    #[test]
    fn the_part_that_all_programs_beat_in_is_measured() {
        // Boot with some, warm-up, the part, rest, power-off with some.
        let a = samples("a", 1500, |ms| ms < 200 || (800..=1300).contains(&ms) || ms > 1450);
        let b = samples("b", 1500, |ms| ms < 250 || (900..=1400).contains(&ms));
        let run = run(&(a + &b + &samples("noisy", 1500, |_| false)));
        let vms = measured(&run, &["noisy", "a", "b"], &["a", "b"], 500 * MS, 100 * MS).unwrap();
        // From 900, where b's first such sample ends, until a's last one begins at 1290.
        let [noisy, a, b] = vms[..] else { panic!("{vms:?}") };
        assert_eq!(
            (a.beats, a.cycles, a.instructions, a.misses, a.ran_ns),
            (117, 39_000, 1950, 273, 390 * MS)
        );
        assert_eq!((b.beats, noisy.beats, noisy.cycles), (117, 0, 39_000));
        assert_eq!((a.cache, a.held, a.moves, b.cache), (Some(1), 8 * 4096, 4, None));
    }

    #[test]
    fn a_run_that_shows_nothing_is_refused() {
        let error = |text: String, programs: &[&str]| {
            measured(&run(&text), &["a"], programs, 500 * MS, 100 * MS).unwrap_err()
        };
        assert!(error(samples("a", 900, |_| true), &["a"]).contains("no warm-up"));
        assert!(error(samples("a", 900, |_| true), &["b"]).contains("b: the samples show no warm-up"));
        let short = samples("a", 900, |ms| !(100..=850).contains(&ms));
        assert!(error(short, &["a"]).contains("only 9 beats"));
        let uncounted = samples("a", 900, |ms| !(100..=500).contains(&ms)).replace("llc_misses", "l2_misses");
        assert!(error(uncounted, &["a"]).contains("llc_misses are not counted"));
    }
}
