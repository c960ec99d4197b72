//! APR in a guest, beyond the thesis: a program goes over more than its guest has in frames, and the hypervisor counts what comes back.
//! Beside it the simulator's count of the same program with as many frames, which has no kernel.

use std::{
    env,
    fmt::Write,
    fs,
    process::{Command, Stdio},
};

use abi::config::Replacement;
use anyhow::{Context, Result, ensure};
use pagesim::{figures::measure, simulation::Choice};
use rustix::process::Signal;
use serde_json::Value;
use workloads::science::{self, PASSES};

use super::super::{
    ReproduceArgs, check_files,
    verdict::{Claim, claim, claims_text},
};
use crate::{compare::store, host::needs::Needs, project::Project, run::end_with_pal, status::Usage, ui::Ui};

pub const NAME: &str = "apr-guest";
pub const SHOWS: &str = "pages that come back in a guest that goes over more than its memory, by policy";
/// Thousandths of the program's extent: 32 MiB that are gone over and 2 MiB beside them.
const SCALE: u32 = 500;
/// The guest's memory in MiB, and what of it is in frames.
const MEMORY: &str = "192";
const RESIDENT: &str = "28";
/// Frames of the simulator in percent of the program's pages: what the guest's kernel leaves of its frames, roughly.
const SIMULATED: u32 = 60;
const QUICK: [&str; 2] = ["clock", "apr"];
/// How many pages less have to come back with `apr` than with `clock`: the thesis has 22.0 % fewer faults in the mean.
const THESIS: f64 = 0.22;

/// What came of a policy in a mode.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    mode: &'static str,
    policy: &'static str,
    refaults: u64,
    went_out: u64,
}

/// Runs it, and says whether the claims hold.
///
/// # Errors
/// [`Usage`] for options that change nothing here; a run failed, or its checksum is wrong.
pub fn run(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let other = args.lab.is_some() || args.seeds != 1 || args.no_kit || args.json.is_some() || args.again;
    if other || args.jobs.is_some() || args.scale.is_some() || !args.workloads.is_empty() {
        let text = format!("{NAME}: its program is {}; only --quick and --output change it", PASSES.name);
        return Err(Usage::new(text).into());
    }
    check_files([args.output.as_ref()])?;
    let hypervisor = Needs { project, ui, yes: args.yes }.hypervisor()?;
    let sum = format!("checksum  {:016x}", science::run(&PASSES, SCALE, &()));
    let policies = if args.quick { &QUICK[..] } else { Replacement::WORDS };
    let mut outcomes = Vec::new();
    for mode in ["nested", "shadow"] {
        for policy in policies {
            let _step = ui.step(&format!("{NAME}: {mode}, {policy}"));
            let dir = tempfile::tempdir().context("cannot make a folder")?;
            let path = dir.path().join("stats.json");
            let mut pal = Command::new(env::current_exe().context("cannot find pal's own program")?);
            pal.args(["workload", "run", PASSES.name, "--scale", &(f64::from(SCALE) / 1000.0).to_string()]);
            pal.args(["--kit", "--mode", mode, "--mem", MEMORY, "--overcommit", "--resident", RESIDENT]);
            pal.args(["--replacement", policy, "--stats"]).arg(&path).args(args.yes.then_some("--yes"));
            pal.env("PALIMPSEST_HV", &hypervisor).stdin(Stdio::null()).stderr(Stdio::inherit());
            end_with_pal(&mut pal, Signal::TERM);
            let output = pal.output().context("cannot run pal")?;
            let said = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success() && said.contains(&sum), "{mode}, {policy}: {said}");
            let stats: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
            outcomes.push(outcome(mode, policy, &stats).with_context(|| format!("no pager in {stats}"))?);
        }
    }
    let simulated = simulated(policies)?;
    let claims = ["nested", "shadow"].map(|mode| judge(mode, &outcomes));
    let claims = claims.into_iter().collect::<Option<Vec<_>>>().context("a policy was not run")?;
    let text = text(&outcomes, &simulated, &claims);
    print!("{text}");
    if let Some(path) = &args.output {
        let quick = if args.quick { " --quick" } else { "" };
        let page = format!("# {NAME}\n\nBy `cargo pal reproduce {NAME}{quick}`.\n\n```text\n{text}```\n");
        store::write(path, page.as_bytes())?;
    }
    Ok(0)
}

fn outcome(mode: &'static str, policy: &'static str, stats: &Value) -> Option<Outcome> {
    let count = |key: &str| stats["guests"][0]["paging"]["pager"][key].as_u64();
    Some(Outcome { mode, policy, refaults: count("refaults")?, went_out: count("went_out")? })
}

/// Faults of the program that evict a page, by the policies, in the simulator.
fn simulated(policies: &[&str]) -> Result<Vec<u64>> {
    let choices = policies.iter().map(|name| name.parse().map_err(anyhow::Error::msg));
    let choices = choices.collect::<Result<Vec<Choice>>>()?;
    let measured = measure(&PASSES, SCALE, &choices, &[SIMULATED]).context("the program has no trace")?;
    let of = |choice| measured.of(choice).next().map(|outcome| outcome.counts.evictions);
    choices.iter().map(of).collect::<Option<_>>().context("a policy was not simulated")
}

fn judge(mode: &str, outcomes: &[Outcome]) -> Option<Claim> {
    let of = |policy| outcomes.iter().find(|outcome| outcome.mode == mode && outcome.policy == policy);
    let (clock, apr) = (of("clock")?.refaults, of("apr")?.refaults);
    let less = (clock as f64 - apr as f64) / clock.max(1) as f64;
    Some(claim(
        "APR has 22.0 % fewer page faults than CLOCK in the mean of its programs; here as much less is to come back",
        format!("{mode}: {clock} by clock, {apr} by apr, {:.1} % fewer", 100.0 * less),
        less >= THESIS,
    ))
}

fn text(outcomes: &[Outcome], simulated: &[u64], claims: &[Claim]) -> String {
    let mut text = format!(
        "{NAME}: {SHOWS}\n{}, scale {}, in {MEMORY} MiB of which {RESIDENT} are in frames; checksums are right\n\n\
         {:<8} {:<11} {:>10} {:>10}\n",
        PASSES.name,
        f64::from(SCALE) / 1000.0,
        "",
        "",
        "came back",
        "went out"
    );
    for Outcome { mode, policy, refaults, went_out } in outcomes {
        let _ = writeln!(text, "{mode:<8} {policy:<11} {refaults:>10} {went_out:>10}");
    }
    let _ = writeln!(text, "\nsimulated with {SIMULATED} % of the program's pages, faults that evict one");
    for (outcome, faults) in outcomes.iter().zip(simulated) {
        let _ = writeln!(text, "{:<8} {:<11} {faults:>10}", "", outcome.policy);
    }
    text + &claims_text(claims, "counted")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(mode: &'static str, policy: &'static str, refaults: u64) -> Outcome {
        let pager = json!({ "refaults": refaults, "went_out": refaults + 1 });
        outcome(mode, policy, &json!({ "guests": [{ "paging": { "pager": pager } }] })).unwrap()
    }

    #[test]
    fn apr_is_to_have_fewer_pages_come_back() {
        let holds = |apr| {
            let all = [of("nested", "clock", 1000), of("nested", "apr", apr), of("shadow", "apr", 1)];
            judge("nested", &all).unwrap().holds
        };
        assert!(holds(780) && !holds(781) && !holds(1000));
        assert!(judge("shadow", &[of("shadow", "apr", 1)]).is_none());
        assert_eq!(outcome("nested", "apr", &json!({ "guests": [] })), None);
    }

    #[test]
    fn what_was_counted_is_said() {
        let all = [of("nested", "clock", 1000), of("nested", "apr", 700)];
        let text = text(&all, &[50, 40], &[judge("nested", &all).unwrap()]);
        assert!(text.contains("\nnested   apr                700        701\n"), "{text}");
        assert!(
            text.contains("apr                 40\n") && text.contains("30.0 % fewer (counted)"),
            "{text}"
        );
        assert!(simulated(&["fifo"]).is_err());
    }
}
