//! What the processors of one VM lose to each other in the hypervisor: the same work on page tables by N processes in one VM of N
//! VCPUs, and by one in each of N VMs, on the same processors of the machine. The emulator's own lock, under which QEMU handles
//! every exit, is the same in both, and so is what else this machine does: a ratio is that of two runs, one after the other.
//!
//! Beside it stands what the hypervisor itself takes for a page fault by its statistics: there its own waiting shows, which is a
//! small part of the time of an operation.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    guests::{APPEND, Files, TIMEOUT_SECONDS},
    results::{Series, column_name},
    table::{percent, times},
};
use crate::{
    bench::{
        record::Records,
        table::{align, dash, grouped, verdict},
    },
    cli::Mode,
};

/// What `--only` calls all of this.
pub const NAME: &str = "spaces";
/// Processors, and the most that one VM may take as a multiple of several, with shadow tables.
const SIZES: [(usize, f64); 2] = [(2, 1.03), (4, 1.08)];
/// The most that a page fault may take in the hypervisor in one VM, as a multiple of several.
const HANDLER_GOAL: f64 = 1.5;
/// On a lab machine processors are this close to each other, in cycles: less than a page fault takes in the hypervisor, so that one
/// waits for another one's lock about as long as the model says.
pub const LAB_STEP: &str = "2000";
/// A run on a lab machine takes minutes.
const LAB_TIMEOUT_SECONDS: &str = "3000";
/// Memory of a VM in MiB: for itself, and for each process.
const MEMORY_MIB: [usize; 2] = [128, 128];

/// Whether this is wanted, and the names that are left of those after `--only`.
pub fn take(names: &[String]) -> (bool, Vec<String>) {
    let rest: Vec<_> = names.iter().filter(|name| *name != NAME).cloned().collect();
    (names.is_empty() || rest.len() < names.len(), rest)
}

/// Where the guests run.
pub enum Where<'a> {
    /// On QEMU's processors, in real time.
    Emulator,
    /// On this lab machine, in modelled time, with this QEMU if it is not the usual one.
    Lab(&'a str, Option<&'a Path>),
}

impl Where<'_> {
    /// The options of `pal run`.
    fn options(&self, files: &Files) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        match self {
            Where::Emulator => {
                let emulator = files.setup.emulator.display().to_string();
                words(&["--qemu", &emulator, "--timeout", &TIMEOUT_SECONDS.to_string()])
            }
            Where::Lab(machine, qemu) => {
                let mut options =
                    words(&["--lab", machine, "--lab-time", "--lab-from", "session", "--lab-step", LAB_STEP]);
                options.extend(words(&["--timeout", LAB_TIMEOUT_SECONDS]));
                if let Some(qemu) = qemu {
                    options.extend(["--qemu".to_owned(), qemu.display().to_string()]);
                }
                options
            }
        }
    }
}

/// One comparison: a number of processors in a mode.
pub struct Comparison {
    processors: usize,
    /// `None` with nested tables, where it is no figure of the hypervisor's.
    goal: Option<f64>,
    mode: Mode,
    /// Ticks of an operation in one VM, and in several, in each round that has both.
    rounds: Vec<[f64; 2]>,
    /// The same of the hypervisor's ticks for a page fault; none with nested tables, where it sees none.
    faults: Vec<[f64; 2]>,
    /// What went wrong.
    pub trouble: String,
}

impl Comparison {
    /// All of them, not measured yet.
    pub fn all(modes: &[Mode]) -> Vec<Self> {
        let sizes = |&mode: &Mode| {
            SIZES.map(|(processors, goal)| {
                let goal = (mode != Mode::Nested).then_some(goal);
                Self {
                    processors,
                    goal,
                    mode,
                    rounds: Vec::new(),
                    faults: Vec::new(),
                    trouble: String::new(),
                }
            })
        };
        modes.iter().flat_map(sizes).collect()
    }

    /// What a person reads while it is measured.
    pub fn name(&self) -> String {
        let Self { mode, processors, .. } = self;
        format!("{mode}, {processors} processes in one VM and in {processors}")
    }

    /// Measures one more round; in every other one the VMs of one VCPU come first.
    ///
    /// # Errors
    /// `pal` does not start; files that cannot be written or read.
    pub fn measure(
        &mut self,
        files: &Files,
        on: &Where,
        scratch: &Path,
        round: u32,
        quick: bool,
    ) -> Result<()> {
        let (mut ticks, mut faults) = ([0.0; 2], [None; 2]);
        let order = if round.is_multiple_of(2) { [1, 0] } else { [0, 1] };
        for which in order {
            let vms = if which == 0 { 1 } else { self.processors };
            match self.run(files, on, scratch, vms, quick)? {
                Ok(figures) => (ticks[which], faults[which]) = figures,
                Err(trouble) => {
                    self.trouble = trouble;
                    return Ok(());
                }
            }
        }
        self.rounds.push(ticks);
        if let [Some(one), Some(several)] = faults {
            self.faults.push([one, several]);
        }
        Ok(())
    }

    /// Ticks of an operation with all processes in this many VMs, the mean of their medians, and those of a page fault. Or what went
    /// wrong.
    fn run(
        &self,
        files: &Files,
        on: &Where,
        scratch: &Path,
        vms: usize,
        quick: bool,
    ) -> Result<Result<(f64, Option<f64>), String>> {
        let (description, logs) = (scratch.join("apart.toml"), scratch.join("apart"));
        let stats = scratch.join("apart.json");
        if logs.exists() {
            fs::remove_dir_all(&logs).with_context(|| format!("cannot remove {}", logs.display()))?;
        }
        fs::write(&description, self.description(files, vms, quick))
            .with_context(|| format!("cannot write {}", description.display()))?;
        let options = [
            ("--config", description.display().to_string()),
            ("--pcpus", self.processors.to_string()),
            ("--log-dir", logs.display().to_string()),
            ("--stats", stats.display().to_string()),
        ];
        let command = ["run".to_owned()].into_iter();
        let command = command.chain(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        let (run, success) = files.setup.perform(command.chain(on.options(files)).collect(), Some(1))?;
        if !success {
            return Ok(Err(run.trouble));
        }
        let mut sum = 0.0;
        for vm in 0..vms {
            let path = logs.join(format!("vm{vm}.log"));
            let output = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let records = Records::read(&String::from_utf8_lossy(&output));
            match records.rows.get(&record(self.processors / vms)) {
                Some(figures) if figures.median > 0.0 => sum += figures.median,
                _ => return Ok(Err(format!("vm{vm}: no figures {}", records.errors.join("; ")))),
            }
        }
        let text = fs::read(&stats).with_context(|| format!("cannot read {}", stats.display()))?;
        let stats = serde_json::from_slice(&text).context("pal run wrote unreadable statistics")?;
        Ok(Ok((sum / vms as f64, ticks_of_a_fault(&stats))))
    }

    /// The description of the guests for `pal run --config`. With as many VMs as processors each has one to itself.
    fn description(&self, files: &Files, vms: usize, quick: bool) -> String {
        let vcpus = self.processors / vms;
        let memory = MEMORY_MIB[0] + MEMORY_MIB[1] * vcpus;
        let quick = if quick { " quick" } else { "" };
        let (kernel, initrd) =
            (files.setup.kernel.display().to_string(), files.setup.initrd.display().to_string());
        let mut text = "version = 1\n".to_owned();
        for vm in 0..vms {
            text += &format!(
                "\n[[vm]]\nname = \"vm{vm}\"\nkernel = {kernel:?}\ninitrd = {initrd:?}\nmemory_mib = {memory}\nvcpus = {vcpus}\n\
                 mode = \"{}\"\ncmdline = \"console=ttyS0 {APPEND} -- {}{quick}\"\n",
                self.mode,
                record(vcpus)
            );
            if vms > 1 {
                text += &format!("affinity = [{vm}]\n");
            }
        }
        text
    }

    fn met(&self) -> Option<bool> {
        Some(ratio(&self.rounds).median()? <= self.goal?)
    }

    fn faults_met(&self) -> Option<bool> {
        Some(ratio(&self.faults).median()? <= HANDLER_GOAL)
    }

    /// What `--json` says of it.
    pub fn json(&self) -> Value {
        let series = |series: &Series| json!({ "median": series.median(), "spread": series.spread(), "rounds": series.values() });
        json!({
            "name": NAME,
            "mode": self.mode.to_string(),
            "processors": self.processors,
            "one_vm": series(&of(&self.rounds, 0)),
            "several_vms": series(&of(&self.rounds, 1)),
            "ratio": series(&ratio(&self.rounds)),
            "goal": self.goal,
            "met": self.met(),
            "fault_one_vm": series(&of(&self.faults, 0)),
            "fault_several_vms": series(&of(&self.faults, 1)),
            "fault_ratio": series(&ratio(&self.faults)),
            "fault_goal": self.goal.map(|_| HANDLER_GOAL),
            "fault_met": self.faults_met(),
            "trouble": self.trouble,
        })
    }
}

/// Those with one VM (0), or with several (1).
fn of(rounds: &[[f64; 2]], which: usize) -> Series {
    rounds.iter().map(|ticks| ticks[which]).collect()
}

fn ratio(rounds: &[[f64; 2]]) -> Series {
    rounds.iter().map(|[one, several]| one / several).collect()
}

/// What the hypervisor takes for a page fault, in the mean over all guests of a document of `pal run --stats`; `None` if it has seen
/// none.
fn ticks_of_a_fault(stats: &Value) -> Option<f64> {
    let guests = stats["guests"].as_array()?.iter();
    let exits = guests.filter_map(|guest| guest["exits"].as_array()).flatten();
    let faults = exits.filter(|exit| exit["reason"] == "page-fault");
    let sum = faults.fold([0, 0], |[count, ticks], exit| {
        [count + exit["count"].as_u64().unwrap_or(0), ticks + exit["ticks"].as_u64().unwrap_or(0)]
    });
    (sum[0] > 0).then(|| sum[1] as f64 / sum[0] as f64)
}

/// The name of the guest's record for this many processes.
fn record(processes: usize) -> String {
    format!("{NAME}-{processes}")
}

/// The table that a person reads.
pub fn table(comparisons: &[Comparison]) -> String {
    let heading = ["16 MiB mapped, touched, unmapped", "one VM", "several", "ratio", "spread", "goal", ""];
    let mut lines = vec![heading.map(String::from).to_vec()];
    let mut line = |name: String, rounds: &[[f64; 2]], goal: Option<f64>, met: Option<bool>| {
        let median = |which: usize| of(rounds, which).median().map_or_else(dash, grouped);
        let ratio = ratio(rounds);
        lines.push(vec![
            name,
            median(0),
            median(1),
            times(ratio.median()),
            percent(&ratio),
            goal.map_or_else(dash, |goal| format!("≤ {goal:.2}×")),
            met.map_or_else(dash, |met| verdict(met).to_owned()),
        ]);
    };
    for comparison in comparisons {
        let Comparison { processors, mode, rounds, faults, goal, .. } = comparison;
        let name = format!("{processors} processes, {}", column_name(Some(*mode)));
        line(name, rounds, *goal, comparison.met());
        if !faults.is_empty() {
            line(
                "  a page fault in the hypervisor".into(),
                faults,
                Some(HANDLER_GOAL),
                comparison.faults_met(),
            );
        }
    }
    align(&lines, &[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rounds: &[[f64; 2]]) -> Comparison {
        let mut all = Comparison::all(&[Mode::Shadow]);
        all[0].rounds = rounds.to_vec();
        all.swap_remove(0)
    }

    #[test]
    fn a_ratio_is_that_of_a_round() {
        let comparison = measured(&[[100.0, 100.0], [330.0, 300.0], [102.0, 100.0]]);
        assert_eq!(ratio(&comparison.rounds).median(), Some(1.02));
        assert_eq!(comparison.met(), Some(true));
        let text = table(&[comparison]);
        assert!(
            text.lines().nth(1).is_some_and(|line| line.contains("1.02×") && line.ends_with("met")),
            "{text}"
        );
        assert_eq!(measured(&[[110.0, 100.0]]).met(), Some(false));
        let json = measured(&[]).json();
        assert_eq!((&json["met"], &json["processors"]), (&Value::Null, &json!(2)));
        // With nested tables there is no goal.
        let nested =
            Comparison { rounds: vec![[110.0, 100.0]], ..Comparison::all(&[Mode::Nested]).swap_remove(0) };
        assert_eq!((nested.met(), &nested.json()["goal"]), (None, &Value::Null));
    }

    #[test]
    fn the_hypervisors_part_is_that_of_all_guests() {
        let exits = |count, ticks| {
            json!({"exits": [
            {"reason": "cpuid", "count": 9, "ticks": 1}, {"reason": "page-fault", "count": count, "ticks": ticks}]})
        };
        assert_eq!(ticks_of_a_fault(&json!({"guests": [exits(1, 100), exits(3, 500)]})), Some(150.0));
        assert_eq!(ticks_of_a_fault(&json!({"guests": [{"exits": []}]})), None);
        assert_eq!(ticks_of_a_fault(&Value::Null), None);
        let faults = vec![[290.0, 200.0], [400.0, 200.0], [280.0, 200.0]];
        let comparison = Comparison { faults, ..measured(&[[100.0, 100.0]]) };
        assert_eq!((comparison.met(), comparison.faults_met()), (Some(true), Some(true)));
        let text = table(&[comparison]);
        let line = text.lines().nth(2).expect("a line of its own");
        assert!(
            line.starts_with("  a page fault") && line.contains("1.45×") && line.ends_with("met"),
            "{text}"
        );
        let slow = Comparison { faults: vec![[310.0, 200.0]], ..measured(&[]) };
        assert_eq!((slow.faults_met(), &slow.json()["fault_met"]), (Some(false), &json!(false)));
        // With nested tables the hypervisor sees none.
        assert_eq!(table(&[measured(&[[100.0, 100.0]])]).lines().count(), 2);
    }

    #[test]
    fn it_is_selected_by_name() {
        let take = |words: &[&str]| take(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(take(&[]), (true, vec![]));
        assert_eq!(take(&["spaces", "ipi"]), (true, vec!["ipi".to_owned()]));
        assert_eq!(take(&["ipi"]), (false, vec!["ipi".to_owned()]));
    }
}
