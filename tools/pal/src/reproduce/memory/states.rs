//! Figure 72 of the memory-region thesis: what a program gets done while the E-state of its VM goes from E7, an eighth of the fast memory,
//! to E0, all of it. The program is memlat as a store that several VCPUs ask for as much as they can; its memory fits the fast memory.
//! E-states are set from outside, by `pal tier`. Fast memory is M0 of the thesis' table 7, slow memory M1 and M2, in latency and bandwidth.
//! The thesis has 512 MiB of it; here it is smaller, and with it the last cache, or that would hold a quarter of the store.

use std::{
    fmt::Write,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Bench, Curve, Record, Setting, line, publish};
use crate::{
    project::Project,
    reproduce::{
        ReproduceArgs,
        verdict::{Claim, claim, claims_text},
    },
    run::fast::FIRST,
    ui::Ui,
};

pub const NAME: &str = "memory-fig72";
pub const SHOWS: &str = "throughput as the share of fast memory grows in eight steps";
/// How many times the throughput of E7 the thesis has at E0.
const THESIS: f64 = 4.3;
/// How long an operation takes there at E0, in milliseconds.
const AT_E0_MS: u64 = 8;
/// What M0 carries in MB/s: three channels of DDR3-1333, by Intel's specification of the thesis' X5650 and of the X5660.
const M0_MB_S: u64 = 32_000;
/// Fast memory of the thesis in MiB.
const THESIS_MIB: u64 = 512;
/// Slow memory: its latency and bandwidth in thousandths of M0's, by the thesis' table 7.
#[derive(Clone, Copy)]
struct Slow {
    name: &'static str,
    latency: u64,
    bandwidth: u64,
    /// How long an operation takes in the thesis without fast memory, in milliseconds.
    none_ms: u64,
}
const M1: Slow = Slow { name: "M1", latency: 2500, bandwidth: 420, none_ms: 34 };
const M2: Slow = Slow { name: "M2", latency: 5200, bandwidth: 200, none_ms: 42 };

impl Slow {
    fn mb_s(self) -> u64 {
        M0_MB_S * self.bandwidth / 1000
    }

    /// How many times as long a program takes at most that does nothing but wait for memory.
    fn most(self) -> f64 {
        (self.latency as f64 / 1000.0).max(1000.0 / self.bandwidth as f64)
    }
}
/// VCPUs, each with a thread of the program.
const CPUS: u32 = 2;
/// Lines of a value of the store: 1 KiB, about a record of YCSB.
const LINES: u64 = 16;
/// E-states, from the least memory to the most.
const STATES: usize = 8;
/// Intervals of memlat in which no page has been hot for long enough to move; the last of them is that without fast memory.
const NONE: usize = 3;
/// Intervals of each state: pages move in the first one, and the last one is its own.
const EACH: usize = 2;
const INTERVALS: usize = NONE + STATES * EACH;
/// Milliseconds of an interval: a page that moves was hot for 2.2 s, longer than the intervals without fast memory take.
const INTERVAL_MS: u64 = 700;
/// Fast memory beside the program's in MiB, for what else is hot.
const BESIDE: u64 = 8;
/// Between two attempts to reach a machine that boots.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs it, and says whether the claim holds.
///
/// # Errors
/// As for the table.
pub fn run(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (bench, mut kept) = Bench::new(NAME, args, project, ui)?;
    let (lab, mib) = (&bench.lab, if args.quick { 48 } else { 64 });
    let fast = mib + BESIDE;
    let cache = project.cache("reproduce")?;
    let files = [M2, M1].map(|slow| with_slow(lab, slow, mib, &cache));
    let [m2, m1] = files;
    let slow = [(M2, m2?), (M1, m1?)];
    let all = slow.iter().flat_map(|slow| ["nested", "shadow"].map(|mode| (mode, slow)));
    let all: Vec<_> = all.take(if args.quick { 2 } else { 4 }).collect();
    let memlat = format!("lookups {mib} {} {INTERVALS} {CPUS} {LINES}", INTERVALS as u64 * INTERVAL_MS);
    let set: Vec<_> = (0..=INTERVALS).map(state_after).collect();
    let sessions = all.iter().map(|(mode, (slow, lab))| {
        let setting = Setting { mode, cpus: CPUS, ..Setting::nested("static", fast) };
        bench.session(&format!("{mode}, {}", slow.name), lab, setting, &memlat, &format!("{set:?}"))
    });
    let sessions = sessions.collect::<Result<Vec<_>>>()?;
    let records = kept.each(NAME, &sessions, 1, ui, |session| {
        let name = format!("fig72-{}", std::process::id());
        bench.perform(session, Some(&name), |run| step(&name, run))
    })?;
    let run = |((mode, (slow, lab)), record): (&(&str, &(Slow, String)), &Record)| {
        let curve = record.said.lines().filter_map(line).collect();
        let pages = ["fast_frames", "hot_waiting"].map(|key| record.tiers[key].as_u64().unwrap_or(0));
        Ok(Run {
            name: format!("{mode}, {}", slow.name),
            memory: memory(lab)?,
            slow: *slow,
            curve,
            pages,
            channels: record.channels.clone(),
            regions: record.regions.clone(),
        })
    };
    let curves = all.iter().zip(&records).map(run).collect::<Result<Vec<_>>>()?;
    let claims: Vec<Claim> =
        curves.iter().map(judge).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    publish(NAME, args, &text(lab, mib, &curves, &claims))?;
    Ok(0)
}

/// What came out on one machine.
struct Run {
    name: String,
    /// Cycles of an access to fast and to slow memory.
    memory: [u64; 2],
    slow: Slow,
    curve: Curve,
    /// Pages in fast memory at the end, and hot ones in slow memory.
    pages: [u64; 2],
    /// What came through the channels of memory.
    channels: Value,
    /// What was counted in the intervals.
    regions: Vec<Value>,
}

/// Cycles of an access to fast and to slow memory.
fn memory(lab: &str) -> Result<[u64; 2]> {
    let (_, machine) = crate::lab::find(lab)?;
    let memory = machine.memory.get_ref();
    Ok([memory.local, memory.slow])
}

/// A file that describes the same machine with M0 for a store of `mib` MiB, where `pal run --fast-mem` has fast memory, and slow memory
/// otherwise. The last cache has the part of its size that the store has of the thesis' fast memory.
fn with_slow(lab: &str, slow: Slow, mib: u64, cache: &Path) -> Result<String> {
    let (description, machine) = crate::lab::find(lab)?;
    let fast = mib + BESIDE;
    let size = last_cache_kib(&machine);
    let cycles = memory(lab)?[0] * slow.latency / 1000;
    let line = |line: &str| match line.split_once(" = ") {
        Some(("slow", _)) => format!("slow = {cycles}\n"),
        Some(("size_kib", kib)) if kib.parse() == Ok(size) => {
            format!("size_kib = {}\n", size * mib as usize / THESIS_MIB as usize)
        }
        _ => format!("{line}\n"),
    };
    let name = Path::new(lab).file_stem().and_then(|name| name.to_str()).unwrap_or(super::LAB);
    let path = cache.join(format!("{name}-fig72-{}.toml", slow.name.to_lowercase()));
    let mut text: String = description.lines().map(line).collect();
    for (from, to, node, mb_s) in [
        (0, FIRST, "", slow.mb_s()),
        (FIRST, FIRST + fast, "node = 0\n", M0_MB_S),
        (FIRST + fast, 1 << 20, "", slow.mb_s()),
    ] {
        let _ = write!(
            text,
            "\n[[memory.range]]\nfrom_mib = {from}\nto_mib = {to}\n{node}bandwidth_mb_s = {mb_s}\n"
        );
    }
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.display().to_string())
}

/// The size of the largest cache in KiB: the last one.
fn last_cache_kib(machine: &labsim::machine::Machine) -> usize {
    machine.cache.iter().map(|cache| cache.get_ref().size_kib).max().unwrap_or(0)
}

/// Gives the guest of a machine an E-state; false: it cannot be reached.
fn set(name: &str, state: usize) -> Result<bool> {
    let mut pal = Command::new(std::env::current_exe().context("cannot find pal's own program")?);
    pal.args(["tier", name, "guest", &format!("E{state}")]);
    let output = pal.output().context("cannot run pal")?;
    Ok(output.status.success())
}

/// Sets the states while memlat says how long its accesses took; all that it said.
fn step(name: &str, run: &mut Child) -> Result<String> {
    let output = run.stdout.take().context("the run has no output")?;
    // Until it boots there is no monitor.
    while !set(name, STATES - 1)? {
        if run.try_wait()?.is_some() {
            bail!("the run has ended before its monitor could be reached");
        }
        sleep(PAUSE);
    }
    let (mut said, mut intervals) = (String::new(), 0);
    for text in BufReader::new(output).lines() {
        let text = text.context("the run's output cannot be read")?;
        said = said + &text + "\n";
        if line(&text).is_none() {
            continue;
        }
        intervals += 1;
        if let Some(next) = state_after(intervals)
            && !set(name, next)?
        {
            bail!("E{next} cannot be set");
        }
    }
    Ok(said)
}

/// The state that is set when this many intervals are over.
fn state_after(intervals: usize) -> Option<usize> {
    let over = intervals.checked_sub(NONE)?;
    let states = (over % EACH == 0).then_some(over / EACH)?;
    (STATES - 1).checked_sub(states).filter(|_| states > 0)
}

/// Cycles of an access without fast memory, and in each state from E7 on, when all that fits has moved.
fn states(curve: &Curve) -> Option<(u64, [u64; STATES])> {
    let mut cycles = [0; STATES];
    for (n, to) in cycles.iter_mut().enumerate() {
        *to = curve.get(NONE + EACH * (n + 1) - 1)?.1;
    }
    let none = curve.get(NONE - 1)?.1;
    (none > 0 && cycles.iter().all(|cycles| *cycles > 0)).then_some((none, cycles))
}

/// What came through the channel of slow memory that has the program's: the share of the time in which it was busy in percent, and how
/// many cycles an access waited for it. All of the run counts.
fn channel(run: &Run) -> Option<(f64, f64)> {
    let channel = run.channels.as_array()?.iter().max_by_key(|channel| channel["to_mib"].as_u64())?;
    let of = |key: &str| channel[key].as_u64().map(|number| number as f64);
    Some((100.0 * of("busy_cycles")? / of("cycles")?.max(1.0), of("wait_cycles")? / of("lines")?.max(1.0)))
}

/// Shares of the cycles of the last interval, which is that of E0: instructions of the program, walks of page tables, the hypervisor, and
/// what the rest waits for, data.
fn shares(regions: &[Value]) -> Option<[f64; 4]> {
    let last = regions.iter().filter(|region| region["region"] == INTERVALS - 1);
    let sum = |sides: &[&str], key: &str| -> u64 {
        last.clone().flat_map(|region| sides.iter().filter_map(move |side| region[*side][key].as_u64())).sum()
    };
    let guest = ["guest_nested", "guest_shadow"];
    let (host, cycles) = (sum(&["host"], "cycles"), sum(&guest, "cycles"));
    let (loops, walks) = (sum(&guest, "instructions"), sum(&guest, "walk_cycles"));
    let all = (host + cycles) as f64;
    let data = cycles.checked_sub(loops + walks)?;
    (all > 0.0).then(|| [loops, walks, host, data].map(|part| part as f64 / all))
}

fn judge(run: &Run) -> Result<[Claim; 2]> {
    let Run { name, slow, curve, .. } = run;
    let (Some((none, cycles)), Some((busy, waited))) = (states(curve), channel(run)) else {
        bail!("{name}: memlat or the lab machine's report has said too little, and nothing is claimed");
    };
    let (first, last) = (cycles[0], cycles[STATES - 1]);
    let grows = cycles.windows(2).all(|pair| pair[1] <= pair[0] + pair[0] / 20);
    let steps = if grows { "no step" } else { "a step" };
    let ours = |was: u64, what: &str| {
        let times = was as f64 / last as f64;
        (
            format!("{name}: {was} cycles of a lookup {what}, {last} at E0, {times:.2} times the throughput"),
            times,
        )
    };
    let (of_states, times) = ours(first, "at E7");
    let (of_none, times_of_none) = ours(none, "without fast memory");
    let wanted = slow.none_ms as f64 / AT_E0_MS as f64;
    Ok([
        claim(
            "Throughput grows gradually to 4.3 times from E7 to E0",
            format!("{of_states}; {steps} takes more than 5 % away"),
            times >= THESIS && grows,
        ),
        claim(
            &format!(
                "An operation takes {} ms without fast memory ({}) and {AT_E0_MS} ms at E0: {wanted:.2} times the throughput",
                slow.none_ms, slow.name
            ),
            format!(
                "{of_none}; latency and bandwidth of slow memory allow {:.2} times; in the whole run it is busy {busy:.1} % of the \
                 time, and an access waits {waited:.1} cycles for it",
                slow.most()
            ),
            times_of_none >= wanted,
        ),
    ])
}

fn text(lab: &str, mib: u64, runs: &[Run], claims: &[Claim]) -> String {
    let fast = runs.first().map_or(0, |run| run.memory[0]);
    let mut text = format!(
        "{lab}, a store of {mib} MiB: {CPUS} VCPUs read values of {} bytes at random; {} MiB of fast memory\n\
         as in the thesis: latency and bandwidth, eight states, the last cache's share of {THESIS_MIB} MiB of fast memory\n\
         ours: how large all that is, VCPUs, values, keys at random, a store in every eighth lookup, {} ms of a state\n\
         M0 (fast): {fast} cycles, {M0_MB_S} MB/s; ",
        64 * LINES,
        mib + BESIDE,
        EACH as u64 * INTERVAL_MS,
    );
    let mut said = Vec::new();
    for Run { slow, memory, .. } in runs {
        if !said.contains(&slow.name) {
            let _ = write!(text, "{}: {} cycles, {} MB/s; ", slow.name, memory[1], slow.mb_s());
            said.push(slow.name);
        }
    }
    let _ = write!(text, "by table 7\n\n{:<22}  none", "throughput of E7's");
    for state in (0..STATES).rev() {
        let _ = write!(text, "    E{state}");
    }
    text.push('\n');
    for run in runs {
        let Some((none, cycles)) = states(&run.curve) else { continue };
        let _ = write!(text, "{:<22}", run.name);
        for one in [none].iter().chain(&cycles) {
            let _ = write!(text, " {:>5.2}", cycles[0] as f64 / *one as f64);
        }
        text.push('\n');
    }
    text.push('\n');
    for Run { name, pages: [fast, waiting], .. } in runs {
        let _ = writeln!(text, "{name}: at E0 {fast} pages are in fast memory, {waiting} hot ones are not");
    }
    for run in runs {
        if let (Some((_, cycles)), Some(shares)) = (states(&run.curve), shares(&run.regions)) {
            let [loops, walks, host, data] = shares.map(|share| share * cycles[STATES - 1] as f64);
            let _ = writeln!(
                text,
                "{}: of a lookup's cycles at E0 {loops:.0} are its instructions, {walks:.0} walks, {data:.0} data, {host:.0} the \
                 hypervisor's",
                run.name
            );
        }
    }
    text + &claims_text(claims, "modelled")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A run with these cycles without fast memory and in the states.
    fn run(none: u64, states: [u64; STATES]) -> Run {
        let mut curve: Curve = vec![(0, 1), (0, 1), (0, none)];
        states.iter().for_each(|cycles| curve.extend([(0, 5000), (0, *cycles)]));
        let channels = json!([
            { "to_mib": 32, "lines": 5, "wait_cycles": 900, "busy_cycles": 50, "cycles": 1000 },
            { "to_mib": 4096, "lines": 10, "wait_cycles": 25, "busy_cycles": 400, "cycles": 1000 },
        ]);
        let side = |instructions, walks, cycles| json!({ "instructions": instructions, "walk_cycles": walks, "cycles": cycles });
        let region =
            |n, cycles| json!({ "region": n, "guest_nested": side(20, 10, cycles), "host": side(1, 0, 10) });
        let regions = vec![region(INTERVALS - 1, 90), region(0, 5000), region(INTERVALS - 1, 90)];
        Run {
            name: "nested, M1".into(),
            memory: [200, 500],
            slow: M1,
            curve,
            pages: [12_400, 3],
            channels,
            regions,
        }
    }

    #[test]
    fn each_state_has_its_intervals() {
        let set: Vec<_> = (0..=INTERVALS).filter_map(|over| Some((over, state_after(over)?))).collect();
        assert_eq!(set, [(5, 6), (7, 5), (9, 4), (11, 3), (13, 2), (15, 1), (17, 0)]);
        let cycles = [910, 820, 730, 640, 550, 460, 370, 190];
        let Run { mut curve, .. } = run(950, cycles);
        assert_eq!((curve.len(), states(&curve)), (INTERVALS, Some((950, cycles))));
        curve.pop();
        assert_eq!((states(&curve), states(&vec![(1, 0); INTERVALS])), (None, None));
    }

    #[test]
    fn a_run_is_judged_by_its_ends() {
        let of = |none, last| run(none, [900, 800, 700, 600, 500, 400, 300, last]);
        let holds = |run: &Run| judge(run).unwrap().map(|claim| claim.holds);
        assert_eq!(holds(&of(900, 200)), [true, true]);
        assert_eq!(holds(&of(1070, 250)), [false, true]);
        assert_eq!(holds(&Run { slow: M2, ..of(1070, 250) }), [false, false], "42 to 8");
        let less = judge(&of(1000, 250)).unwrap();
        assert_eq!(
            less[0].ours,
            "nested, M1: 900 cycles of a lookup at E7, 250 at E0, 3.60 times the throughput; no step takes more than 5 % away"
        );
        assert!(
            less[1].ours.ends_with(
                "; latency and bandwidth of slow memory allow 2.50 times; in the whole run it is busy 40.0 % of the time, and an \
                 access waits 2.5 cycles for it"
            ) && !less[1].holds,
            "{}",
            less[1].ours
        );
        assert_eq!(M2.most(), 5.2);
        let not_gradual = run(900, [900, 800, 700, 600, 900, 400, 300, 200]);
        assert_eq!(holds(&not_gradual), [false, true]);
        assert!(judge(&Run { curve: Curve::new(), ..of(900, 200) }).is_err());
        assert!(judge(&Run { channels: Value::Null, ..of(900, 200) }).is_err());
        let text = text("lab", 48, &[of(1000, 225)], &less);
        assert!(
            text.contains("nested, M1              0.90  1.00  1.12  1.29  1.50  1.80  2.25  3.00  4.00\n"),
            "{text}"
        );
        assert!(
            text.contains("M0 (fast): 200 cycles, 32000 MB/s; M1: 500 cycles, 13440 MB/s; by table 7\n"),
            "{text}"
        );
        assert!(text.contains("shape  does not hold"));
        assert!(
            text.contains(
                "\nnested, M1: of a lookup's cycles at E0 45 are its instructions, 22 walks, 135 data, 22 the hypervisor's\n"
            ),
            "{text}"
        );
        assert_eq!((shares(&[]), shares(&[json!({ "region": INTERVALS - 1 })])), (None, None));
        assert!(
            text.contains("\nnested, M1: at E0 12400 pages are in fast memory, 3 hot ones are not\n"),
            "{text}"
        );
    }

    #[test]
    fn a_machine_has_slower_slow_memory() {
        let cache = tempfile::tempdir().unwrap();
        let [fast, _] = memory(super::super::LAB).unwrap();
        let path = with_slow(super::super::LAB, M2, 48, cache.path()).unwrap();
        assert_eq!(memory(&path).unwrap(), [fast, fast * 52 / 10]);
        let (_, machine) = crate::lab::find(&path).unwrap();
        let caches: Vec<_> = machine.cache.iter().map(|cache| cache.get_ref().size_kib).collect();
        assert_eq!(caches, [32, 32, 256, 12288 * 48 / 512]);
        let ranges = machine.memory.get_ref().range.iter().map(|range| range.get_ref());
        let ranges: Vec<_> = ranges.map(|range| (range.from_mib, range.node, range.bandwidth_mb_s)).collect();
        assert_eq!(ranges, [(0, None, Some(6400)), (32, Some(0), Some(32_000)), (88, None, Some(6400))]);
    }
}
