//! Table 9 of the memory-region thesis: the latency of memory while hot pages move to the fast tier. The program is memlat (tests/kits),
//! the machine a lab machine whose memory is slow but for the fast tier; time follows its cycles. [`states`] has figure 72, [`slow`]
//! figure 70, [`load`] those of a store whose size changes, [`evict`] what policies of eviction change; [`bench`] runs memlat.

mod bench;
mod evict;
mod load;
mod slow;
pub mod states;

use std::fmt::Write;

use anyhow::{Result, bail};

use self::bench::{Bench, Record, Setting, listen};
use super::{
    ReproduceArgs,
    verdict::{Claim, claim, claims_text},
};
use crate::{compare::store, project::Project, ui::Ui};

const NAME: &str = "memory-table9";
const SHOWS: &str = "latency of memory while hot pages move to the fast tier";
const PAPER: &str = "Lee, Ph.D. thesis, Georgia Tech 2013";
const LAB: &str = "westmere-x5660";
/// What the thesis measured: cycles at the beginning and from 20 s on.
const THESIS: [f64; 2] = [900.0, 367.0];
/// Milliseconds in which the latency is to have fallen as far.
const WITHIN_MS: u64 = 10_000;

/// Pages are hot that the share has room for, as in Memtis; the paper has no such row, and nothing is claimed of it.
const HISTOGRAM: &str = "histogram";

/// Runs a figure.
type Run = fn(&ReproduceArgs, &Project, &Ui) -> Result<u8>;

/// All of them: the name, what it shows, whose it is, and what runs it.
const FIGURES: [(&str, &str, &str, Run); 8] = [
    (NAME, SHOWS, PAPER, run),
    (load::SIZES, load::SIZES_SHOW, PAPER, load::run_sizes),
    (load::SIZES_TOO, load::SIZES_TOO_SHOWS, PAPER, load::run_sizes),
    (load::HISTOGRAM, load::HISTOGRAM_SHOWS, PAPER, load::run_histogram),
    (slow::NAME, slow::SHOWS, PAPER, slow::run),
    (states::NAME, states::SHOWS, PAPER, states::run),
    (load::SAVING, load::SAVING_SHOWS, PAPER, load::run_saving),
    (evict::NAME, evict::SHOWS, "beyond the papers", evict::run),
];

/// With these MiB of fast memory.
fn settings(fast: u64) -> [Setting; 5] {
    let nested = ["shares", "static"].map(|sharing| Setting::nested(sharing, fast));
    let [moves, stays] = nested;
    let by_histogram = Setting { policy: HISTOGRAM, ..moves };
    [moves, Setting { mode: "shadow", ..moves }, by_histogram, stays, Setting { mode: "shadow", ..stays }]
}

/// Latencies in cycles by the time in milliseconds at which they were known.
type Curve = Vec<(u64, u64)>;

/// The names of all.
pub fn names() -> impl Iterator<Item = &'static str> {
    FIGURES.iter().map(|figure| figure.0)
}

/// The list of figures.
pub fn list() -> String {
    let lines = FIGURES.iter().map(|(name, shows, paper, _)| format!("{name:<12} {shows} ({paper})\n"));
    lines.collect()
}

/// Runs the figure of this name, if it is one of these.
pub fn find(name: &str) -> Option<Run> {
    FIGURES.iter().find(|figure| figure.0 == name).map(|figure| figure.3)
}

/// Runs it, and says whether the claim holds.
///
/// # Errors
/// [`Usage`] for options that change nothing here; a run failed.
fn run(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (bench, mut kept) = Bench::new(NAME, args, project, ui)?;
    // The region is several times as large as the last cache.
    let (mib, ms) = if args.quick { (48, 10_000) } else { (64, 12_000) };
    let settings = settings(mib + 8);
    // The first one without migration is the control of all.
    let settings = &settings[..if args.quick { 4 } else { 5 }];
    let session = |setting: &Setting| {
        // By half of the time the others have fallen, or nearly.
        let ms = if args.quick && !setting.moves() { ms / 2 } else { ms };
        bench.session(&name(*setting), &bench.lab, *setting, &format!("latency {mib} {ms}"), "")
    };
    let sessions = settings.iter().map(session).collect::<Result<Vec<_>>>()?;
    let records = kept.each(NAME, &sessions, 1, ui, |session| bench.perform(session, None, listen))?;
    let curve = |record: &Record| record.said.lines().filter_map(line).collect();
    let curves: Vec<_> = settings.iter().copied().zip(records.iter().map(curve)).collect();
    let of_paper = curves.iter().filter(|(setting, _)| setting.policy != HISTOGRAM);
    let claims = of_paper.map(|(setting, curve)| judge(*setting, curve)).collect::<Result<Vec<_>>>()?;
    publish(NAME, args, &text(&bench.lab, mib, &curves, &claims))?;
    Ok(0)
}

/// Prints what came out, and writes it down where that is wanted.
fn publish(name: &str, args: &ReproduceArgs, text: &str) -> Result<()> {
    let figure = FIGURES.iter().find(|figure| figure.0 == name);
    let (shows, paper) = figure.map_or(("", ""), |figure| (figure.1, figure.2));
    let text = format!("{name}: {shows} ({paper})\n{text}");
    print!("{text}");
    if let Some(path) = &args.output {
        let command = format!("cargo pal reproduce {name}{}", if args.quick { " --quick" } else { "" });
        let page = format!("# {name}\n\nBy `{command}` on a modelled machine.\n\n```text\n{text}```\n");
        store::write(path, page.as_bytes())?;
    }
    Ok(())
}

/// What it is called.
fn name(setting: Setting) -> String {
    let more = match setting {
        _ if !setting.moves() => ", nothing moves",
        Setting { policy: HISTOGRAM, .. } => ", by the histogram",
        _ => "",
    };
    format!("{}{more}", setting.mode)
}

/// `memlat: 700 ms: 900 cycles`.
fn line(text: &str) -> Option<(u64, u64)> {
    let (ms, cycles) = text.trim().strip_prefix("memlat: ")?.split_once(" ms: ")?;
    Some((ms.parse().ok()?, cycles.strip_suffix(" cycles")?.parse().ok()?))
}

fn judge(setting: Setting, curve: &Curve) -> Result<Claim> {
    let (Some((_, first)), Some((_, last))) = (curve.first(), curve.last()) else {
        bail!("{}: memlat has said nothing, and nothing is claimed", name(setting));
    };
    let part = |cycles: u64| cycles as f64 / *first as f64;
    let wanted = THESIS[1] / THESIS[0];
    let name = name(setting);
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
        let _ = write!(text, "{:<24}", name(*setting));
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
        let settings = settings(56);
        let holds = |setting, curve: &[(u64, u64)]| judge(setting, &curve.to_vec()).unwrap().holds;
        assert!(holds(settings[0], &curve) && !holds(settings[3], &curve));
        assert!(!holds(settings[1], &[(1000, 900), (11_000, 300)]), "too late");
        assert!(!holds(settings[1], &[(1000, 900), (2000, 300), (3000, 500)]), "not for long");
        assert!(holds(settings[4], &[(1000, 900), (2000, 890)]));
        assert!(judge(settings[0], &Vec::new()).is_err());
    }
}
