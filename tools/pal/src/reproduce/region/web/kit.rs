//! The guest with its server, and a run of it.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;
use workloads::Programs;

use super::{
    super::{
        super::compile,
        point::{Pace, Setup},
        session::{APPEND, TIMEOUT_SECONDS, number},
    },
    Point,
    runs::{Measured, OPEN, PROGRAM, UNIFY, is_off},
};
use crate::{
    host::{ext4, needs::Needs},
    run::end_with_pal,
    samples::Run,
    workload::programs,
};

/// The programs of Debian's, and the names that their files are kept under.
const PROGRAMS: [(&str, Programs); 3] = [
    ("nginx-web", Programs { package: "nginx", with: &["nginx-"], files: &["nginx"] }),
    ("python", Programs { package: "python3", with: &["python3", "libpython3"], files: &["python3"] }),
    ("redis-web", Programs { package: "redis-server", with: &["redis-"], files: &["redis-server"] }),
];
/// What guests get of the packages: neither documentation nor settings.
const TAKEN: [&str; 6] = ["lib", "lib64", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64"];
/// Where the sources of the load, the page and the script are.
const SOURCES: &str = "tests/kits/webload";
/// What the monitor is told for a set: its region is the guest's first, and goes to the second cache.
const MAP_SET: &[&str] = &["regions 1 1"];
/// And for the page's own two regions.
const MAP_PROGRAM: &[&str] = &["regions 1 0", "regions 2 1"];

/// What all runs use.
pub struct Kit {
    /// Folders to put into the guest, as `--put` has them.
    puts: Vec<String>,
    disk: PathBuf,
    project: PathBuf,
    packages: Vec<String>,
    inputs: String,
}

impl Kit {
    /// Fetches the packages and makes the disk.
    ///
    /// # Errors
    /// They are not to be had; a program is missing here.
    pub fn new(needs: &Needs, setup: &Setup) -> Result<Kit> {
        let (mut packages, root) = (Vec::new(), setup.scratch().join("web"));
        for (name, programs) in PROGRAMS {
            let (folder, list) = programs::fetch_as(needs, name, &programs)?;
            for taken in TAKEN.iter().filter(|taken| folder.join(taken).is_dir()) {
                let to = root.join(taken);
                fs::create_dir_all(&to)?;
                let mut copy = Command::new("cp");
                needs
                    .ui
                    .run("copying programs", copy.arg("-a").arg(folder.join(taken).join(".")).arg(&to))?;
            }
            packages.extend(list);
        }
        packages.sort();
        packages.dedup();
        let sources = needs.project.root.join(SOURCES);
        let webload = compile(needs.project, needs.ui, setup.scratch(), "webload")?;
        let mut puts = vec![format!("{}:/webload", webload.display())];
        puts.extend(["page.py", "serve.sh"].map(|name| format!("{}:/{name}", sources.join(name).display())));
        puts.extend(["lib", "lib64", "usr"].map(|name| format!("{}:/{name}", root.join(name).display())));
        let (empty, disk) = (setup.scratch().join("empty"), setup.scratch().join("srv.ext4"));
        fs::create_dir_all(&empty)?;
        ext4::make(&empty, &disk, 32, needs.ui)?;
        let mut inputs = packages.join(" ");
        for name in ["webload.c", "page.py", "serve.sh"] {
            inputs +=
                &bootimg::sha256(&fs::read(sources.join(name)).with_context(|| format!("{SOURCES}/{name}"))?);
        }
        for name in ["regions.c", "slab_names.c"] {
            inputs += &bootimg::sha256(&fs::read(needs.project.root.join("guest-kits/linux").join(name))?);
        }
        Ok(Kit { puts, disk, project: needs.project.root.clone(), packages, inputs })
    }

    /// Names and versions of the packages.
    pub fn packages(&self) -> &[String] {
        &self.packages
    }

    /// What runs depend on besides those of the setup.
    pub fn inputs(&self) -> &str {
        &self.inputs
    }

    /// Runs a point.
    ///
    /// # Errors
    /// The run failed, or its region could not be mapped: what was said.
    pub fn perform(&self, setup: &Setup, point: &Point) -> Result<Measured> {
        let dir = tempfile::Builder::new().prefix("web-").tempdir_in(setup.scratch())?;
        let [stats, samples, disk, errors] =
            ["stats.json", "samples.jsonl", "disk", "errors"].map(|name| dir.path().join(name));
        // Each guest makes its files itself.
        fs::copy(&self.disk, &disk)?;
        let machine = format!("reproduce-web-{}", std::process::id());
        let program = env::current_exe().context("cannot find my own program")?;
        let mut pal = Command::new(&program);
        pal.args(self.words(setup, point, &machine))
            .arg("--stats")
            .arg(&stats)
            .arg("--samples")
            .arg(&samples);
        pal.arg("--disk").arg(&disk).env("PALIMPSEST_HV", setup.hypervisor()).current_dir(&self.project);
        pal.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(fs::File::create(&errors)?);
        end_with_pal(&mut pal, Signal::TERM);
        let mut child = pal.spawn().context("cannot start pal")?;
        let mut said = BufReader::new(child.stdout.take().context("it has an output")?);
        let mut text = String::new();
        let mapped = loop {
            let begin = text.len();
            if said.read_line(&mut text)? == 0 {
                break Ok(());
            }
            if text[begin..].trim() == "ready" {
                let commands = match point.regions {
                    regions if is_off(regions) || regions == UNIFY => &[],
                    PROGRAM => MAP_PROGRAM,
                    _ => MAP_SET,
                };
                break commands
                    .iter()
                    .try_for_each(|command| map(&program, &machine, &self.project, command));
            }
        };
        said.read_to_string(&mut text)?;
        let status = child.wait()?;
        mapped?;
        let line = text.lines().find(|line| line.starts_with("webload: ") && line.ends_with(" right"));
        let (Some(line), true) = (line, status.success()) else {
            bail!("{status}\n{text}{}", fs::read_to_string(&errors).unwrap_or_default());
        };
        let stats =
            serde_json::from_str(&fs::read_to_string(&stats)?).context("the statistics are not whole")?;
        measured(setup.mhz(), point, line, &stats, &Run::open(&samples)?, &text)
            .with_context(|| format!("{line}: not what it says"))
    }

    fn words(&self, setup: &Setup, point: &Point, machine: &str) -> Vec<String> {
        let Point { kind, vcpus, regions, ms: [warm, measured], .. } = point;
        let set = match *regions {
            OPEN => PROGRAM,
            regions if is_off(regions) || regions == UNIFY => "none",
            set => set,
        };
        // Index and documents are as the regions of figure 18: larger than a cache together, and smaller than two.
        let kib = setup.cache_kib() * 6 / 8;
        let policy = match *regions {
            UNIFY => format!("unify,{}", super::super::parameters(setup, Pace::DENSE)),
            _ => "off".into(),
        };
        let exec = format!("sh /serve.sh {} {vcpus} {set} {kib} {warm} {measured}", kind.name());
        let mut words: Vec<String> = [
            "run",
            "--lab",
            &setup.lab,
            "--lab-time",
            "--lab-from",
            "session",
            "--lab-check",
            "off",
            "--pcpus",
            "4,sockets=2",
            "--vcpus",
            &vcpus.to_string(),
            "--mem",
            "384",
            "--kit",
            "--name",
            machine,
            "--regions",
            &policy,
            "--timeout",
            &TIMEOUT_SECONDS.to_string(),
            "--append",
            APPEND,
            "--exec",
            &exec,
        ]
        .map(str::to_owned)
        .into();
        words.extend(self.puts.iter().flat_map(|put| ["--put".to_owned(), put.clone()]));
        words
    }
}

/// Has the monitor map a region of the guest's to a cache: `regions REGION CACHE`.
fn map(program: &Path, machine: &str, project: &Path, command: &str) -> Result<()> {
    let output =
        Command::new(program).args(["monitor", "--name", machine, command]).current_dir(project).output();
    let output = output.context("cannot start pal")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !is_mapped(&said, command) {
        bail!("{command}: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Whether a list of the monitor's says that `regions REGION CACHE` has been done.
fn is_mapped(said: &str, command: &str) -> bool {
    let words: Vec<_> = command.split(' ').skip(1).collect();
    let [region, cache] = words[..] else { return false };
    said.lines().any(|line| {
        let cells: Vec<_> = line.split_whitespace().take(3).collect();
        cells == [region, "local", cache]
    })
}

/// What a run has shown. Cycles and misses are those of its last part, in which it was measured.
fn measured(mhz: u32, point: &Point, line: &str, stats: &Value, run: &Run, text: &str) -> Option<Measured> {
    let (ns, requests) = (number(line, "ns")?, number(line, "measured")?);
    let end = run.samples.iter().map(|sample| sample.machine_ns).max()?;
    let (mut cycles, mut ran_ns, mut misses, mut calls, mut all_calls) = (0u64, 0u64, 0u64, 0u64, 0u64);
    let reason = run.names.reasons.iter().position(|reason| reason == "hypercall");
    for sample in &run.samples {
        let own = sample.exits.iter().filter(|(why, _)| Some(*why) == reason).map(|(_, count)| *count);
        let own = own.fold(0, u64::saturating_add);
        all_calls = all_calls.saturating_add(own);
        if sample.machine_ns + ns > end {
            calls = calls.saturating_add(own);
            let all = sample.counter("cycles")?.saturating_add(sample.host_cycles.unwrap_or(0));
            cycles = cycles.saturating_add(all);
            ran_ns = ran_ns.saturating_add(sample.all_ran_ns());
            misses = misses.saturating_add(sample.counter("llc_misses")?);
        }
    }
    let moments = run.regions.iter().filter(|line| line.machine_ns + ns > end);
    let (moves, opened) = moments.fold((0u64, 0u64), |(moves, opened), line| {
        (moves.saturating_add(line.moves), opened.saturating_add(line.globalised).saturating_add(line.opened))
    });
    // Absent without regions.
    let paging = &stats["guests"][0]["paging"]["regions"];
    let count = |key: &str| paging[key].as_u64().unwrap_or(0);
    // `region NAME NUMBER FRAMES REFUSED`, `program NUMBER PROCESS FRAMES MAPPINGS`
    let of = |line: &str| {
        let cells = line.strip_prefix("region ").or_else(|| line.strip_prefix("program "))?;
        cells.split(' ').nth(2)?.parse::<u64>().ok()
    };
    let frames = text.lines().filter_map(of).fold(0, u64::saturating_add);
    Some(Measured {
        kind: point.kind,
        vcpus: point.vcpus,
        regions: point.regions,
        ns,
        mhz,
        requests,
        cycles,
        ran_ns,
        misses,
        moves,
        opened,
        all_moves: count("region_moves"),
        all_opened: count("regions_opened") + count("regions_globalised"),
        calls,
        all_calls,
        frames,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::runs::Kind, *};
    use crate::samples::tests::ABOUT;

    #[test]
    fn the_monitor_says_what_it_has_mapped() {
        let said = "region  kind     cache  frames\n     1  local    0       768  3 MiB\n     2  regular  all     768\n";
        assert!(is_mapped(said, "regions 1 0") && !is_mapped(said, "regions 1 1"));
        assert!(
            !is_mapped(said, "regions 2 1") && !is_mapped(said, "regions") && !is_mapped("", "regions 1 0")
        );
        assert!(MAP_SET.iter().chain(MAP_PROGRAM).all(|command| command.split(' ').count() == 3));
    }

    #[test]
    fn the_end_of_a_run_is_measured() {
        const MS: u64 = 1_000_000;
        let sample = |ms: u64, calls: u64| {
            json!({ "v": 1, "t": "sample", "vm": "a", "machine_ns": ms * MS, "span_ns": 10 * MS, "exits": { "hypercall": calls, "io": 4 },
                "guest": { "cycles": 900, "llc_misses": 7 }, "host": { "cycles": 100 },
                "vcpus": [{ "ran_ns": 10 * MS }, { "ran_ns": 5 * MS }] })
            .to_string()
                + "\n"
        };
        let regions = |ms: u64| {
            json!({ "v": 1, "t": "regions", "vm": "a", "machine_ns": ms * MS, "span_ns": 10 * MS, "moves": 4, "opened": 1, "map": "..",
                "caches": [], "regions": [] })
            .to_string()
                + "\n"
        };
        let lines = [sample(10, 300), regions(10), sample(20, 1), regions(20), sample(30, 2)].concat();
        let run = Run::read(format!("{ABOUT}{lines}").as_bytes()).unwrap();
        let point = Point { kind: Kind::Static, vcpus: 2, regions: "fs-core", run: 0, ms: [10, 20] };
        let line = "webload: warm_ns=1 measured=50 ns=20000000 right";
        let stats = json!({ "guests": [{ "paging": { "regions": { "region_moves": 8, "regions_opened": 2, "regions_globalised": 1 } } }] });
        let text = format!("ready\n{line}\nregion fs-core 1 40 0\nprogram 2 77 60 1\n");
        let measured = measured(3000, &point, line, &stats, &run, &text).unwrap();
        assert_eq!(
            (measured.requests, measured.ns, measured.cycles, measured.misses),
            (50, 20 * MS, 2000, 14)
        );
        assert_eq!((measured.ran_ns, measured.calls, measured.all_calls), (30 * MS, 3, 303));
        assert_eq!((measured.moves, measured.opened, measured.all_moves, measured.all_opened), (4, 1, 8, 3));
        assert_eq!(measured.frames, 100);
        assert!(super::measured(3000, &point, "webload: right", &stats, &run, "").is_none());
    }
}
