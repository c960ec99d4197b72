//! Table 9 of the memory-region thesis: the latency of memory while hot pages move to the fast tier. The program is memlat (tests/kits),
//! the machine a lab machine whose memory is slow but for the fast tier; time follows its cycles. [`states`] has figure 72, [`slow`]
//! figure 70, [`load`] those of a store whose size changes.

mod load;
mod slow;
pub mod states;

use std::{
    fmt::Write,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{
    ReproduceArgs, compile,
    verdict::{Claim, claim, claims_text},
};
use crate::{compare::store, host::lock::lock, project::Project, status::Usage, ui::Ui};

const NAME: &str = "memory-table9";
const SHOWS: &str = "latency of memory while hot pages move to the fast tier";
const PAPER: &str = "Lee, Ph.D. thesis, Georgia Tech 2013";
const LAB: &str = "westmere-x5660";
/// What the thesis measured: cycles at the beginning and from 20 s on.
const THESIS: [f64; 2] = [900.0, 367.0];
/// Milliseconds in which the latency is to have fallen as far.
const WITHIN_MS: u64 = 10_000;

/// Runs a figure.
type Run = fn(&ReproduceArgs, &Project, &Ui) -> Result<u8>;

/// All of them: the name, what it shows, and what runs it.
const FIGURES: [(&str, &str, Run); 6] = [
    (NAME, SHOWS, run),
    (load::SIZES, load::SIZES_SHOW, load::run_sizes),
    (load::HISTOGRAM, load::HISTOGRAM_SHOWS, load::run_histogram),
    (slow::NAME, slow::SHOWS, slow::run),
    (states::NAME, states::SHOWS, states::run),
    (load::SAVING, load::SAVING_SHOWS, load::run_saving),
];

/// How a machine is run.
#[derive(Clone, Copy, Debug)]
struct Setting {
    mode: &'static str,
    /// How guests share the fast memory; `static`: it has none, and nothing moves.
    sharing: &'static str,
}

const SETTINGS: [Setting; 4] = [
    Setting { mode: "nested", sharing: "shares" },
    Setting { mode: "shadow", sharing: "shares" },
    Setting { mode: "nested", sharing: "static" },
    Setting { mode: "shadow", sharing: "static" },
];

/// Latencies in cycles by the time in milliseconds at which they were known.
type Curve = Vec<(u64, u64)>;

/// The list of figures.
pub fn list() -> String {
    let lines = FIGURES.iter().map(|(name, shows, _)| format!("{name:<12} {shows} ({PAPER})\n"));
    lines.collect()
}

/// Runs the figure of this name, if it is one of these.
pub fn find(name: &str) -> Option<Run> {
    FIGURES.iter().find(|figure| figure.0 == name).map(|figure| figure.2)
}

/// Runs it, and says whether the claim holds.
///
/// # Errors
/// [`Usage`] for options that change nothing here; a run failed.
fn run(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (lab, program, _lock) = prepare(NAME, args, project, ui)?;
    // The region is several times as large as the last cache.
    let (mib, ms) = if args.quick { (48, 7000) } else { (64, 12_000) };
    let settings = &SETTINGS[..if args.quick { 2 } else { 4 }];
    let mut curves = Vec::new();
    for setting in settings {
        let _step = ui.step(&format!("{NAME}: {}", setting.name()));
        curves.push((*setting, measure(*setting, &lab, &program, mib, ms, args.yes)?));
    }
    let claims = curves.iter().map(|(setting, curve)| judge(*setting, curve)).collect::<Result<Vec<_>>>()?;
    publish(NAME, args, &text(&lab, mib, &curves, &claims))?;
    Ok(0)
}

/// Checks the options, and makes the program; the lab machine, the program, and the lock that keeps others from it.
fn prepare(name: &str, args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<(String, PathBuf, File)> {
    if args.seeds != 1
        || args.no_kit
        || args.json.is_some()
        || args.jobs.is_some()
        || args.scale.is_some()
        || !args.workloads.is_empty()
    {
        let text = format!("{name}: its program is memlat; only --quick, --lab and --output change it");
        return Err(Usage::new(text).into());
    }
    let lab = args.lab.as_deref().unwrap_or(LAB);
    crate::lab::find(lab)?;
    if let Some(path) = &args.output {
        let created = File::options().create(true).append(true).open(path);
        created.map_err(|error| Usage::new(format!("{}: {error}; choose another place", path.display())))?;
    }
    let cache = project.cache("reproduce")?;
    let lock = lock(&cache, ui)?;
    let program = compile(project, ui, &cache, "memlat")?;
    Ok((lab.to_owned(), program, lock))
}

/// Prints what came out, and writes it down where that is wanted.
fn publish(name: &str, args: &ReproduceArgs, text: &str) -> Result<()> {
    let shows = FIGURES.iter().find(|figure| figure.0 == name).map_or("", |figure| figure.1);
    let text = format!("{name}: {shows} ({PAPER})\n{text}");
    print!("{text}");
    if let Some(path) = &args.output {
        let command = format!("cargo pal reproduce {name}{}", if args.quick { " --quick" } else { "" });
        let page = format!("# {name}\n\nBy `{command}` on a modelled machine.\n\n```text\n{text}```\n");
        store::write(path, page.as_bytes())?;
    }
    Ok(())
}

impl Setting {
    fn name(self) -> String {
        format!("{}{}", self.mode, if self.moves() { "" } else { ", nothing moves" })
    }

    fn moves(self) -> bool {
        self.sharing != "static"
    }

    /// memlat with these arguments on a machine with `fast` MiB of fast memory, of which no description gives the guest any.
    fn command(self, lab: &str, program: &Path, fast: u64, memlat: &str, yes: bool) -> Result<Command> {
        let mut pal = Command::new(std::env::current_exe().context("cannot find pal's own program")?);
        pal.args(["run", "--lab", lab, "--lab-from", "session", "--lab-time", "--nested-page", "4K"]);
        pal.args(["--mode", self.mode, "--fast-mem", &fast.to_string(), "--fast-sharing", self.sharing]);
        pal.args(["--put", &format!("{}:/memlat", program.display())]);
        pal.args(["--exec", &format!("/memlat {memlat}"), "--timeout", "1800"]);
        pal.args(yes.then_some("--yes"));
        Ok(pal)
    }
}

fn measure(setting: Setting, lab: &str, program: &Path, mib: u64, ms: u64, yes: bool) -> Result<Curve> {
    let mut pal = setting.command(lab, program, mib + 8, &format!("latency {mib} {ms}"), yes)?;
    let output = pal.stderr(std::process::Stdio::inherit()).output().context("cannot run pal")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !text.contains(", right") {
        bail!("{} failed, and nothing is claimed: {}{}", setting.name(), output.status, text);
    }
    Ok(text.lines().filter_map(line).collect())
}

/// `memlat: 700 ms: 900 cycles`.
fn line(text: &str) -> Option<(u64, u64)> {
    let (ms, cycles) = text.trim().strip_prefix("memlat: ")?.split_once(" ms: ")?;
    Some((ms.parse().ok()?, cycles.strip_suffix(" cycles")?.parse().ok()?))
}

fn judge(setting: Setting, curve: &Curve) -> Result<Claim> {
    let (Some((_, first)), Some((_, last))) = (curve.first(), curve.last()) else {
        bail!("{}: memlat has said nothing, and nothing is claimed", setting.name());
    };
    let part = |cycles: u64| cycles as f64 / *first as f64;
    let wanted = THESIS[1] / THESIS[0];
    let name = setting.name();
    if !setting.moves() {
        let ours = format!("{name}: {first} cycles, then {last}");
        return Ok(claim("Without migration the latency stays", ours, part(*last) > 0.9));
    }
    let there = curve.iter().find(|(ms, cycles)| *ms <= WITHIN_MS && part(*cycles) <= wanted);
    let after = there.map_or(String::new(), |(ms, _)| format!("; as low as in the thesis after {ms} ms"));
    let ours = format!("{name}: {first} cycles, then {last}, {:.0} %{after}", 100.0 * part(*last));
    Ok(claim(
        "Memory latency falls from 900 cycles to 367 (41 %) within 20 s; here that is to take 10 s at most",
        ours,
        there.is_some() && part(*last) <= wanted,
    ))
}

fn text(lab: &str, mib: u64, curves: &[(Setting, Curve)], claims: &[Claim]) -> String {
    let mut text = format!("{lab}, {mib} MiB accessed at random, cycles of an access\n\n");
    for (setting, curve) in curves {
        let _ = write!(text, "{:<24}", setting.name());
        for (ms, cycles) in curve {
            let _ = write!(text, " {:>4.1}s {cycles:>4}", *ms as f64 / 1000.0);
        }
        text.push('\n');
    }
    text + &claims_text(claims, "modelled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_judged_by_how_far_and_how_soon_it_falls() {
        let text = "memlat: 1000 ms: 900 cycles\r\nmemlat: 2000 ms: 500 cycles\nmemlat: 3000 ms: 360 cycles\nmemlat: 5 stores, right\n";
        let curve: Curve = text.lines().filter_map(line).collect();
        assert_eq!(curve, [(1000, 900), (2000, 500), (3000, 360)]);
        let holds = |setting, curve: &[(u64, u64)]| judge(setting, &curve.to_vec()).unwrap().holds;
        assert!(holds(SETTINGS[0], &curve) && !holds(SETTINGS[2], &curve));
        assert!(!holds(SETTINGS[1], &[(1000, 900), (11_000, 300)]), "too late");
        assert!(!holds(SETTINGS[1], &[(1000, 900), (2000, 300), (3000, 500)]), "not for long");
        assert!(holds(SETTINGS[3], &[(1000, 900), (2000, 890)]));
        assert!(judge(SETTINGS[0], &Vec::new()).is_err());
    }
}
