//! What the processors of one VM lose to each other in the hypervisor: the same work on page tables by N processes in one VM of N
//! VCPUs, and by one in each of N VMs, on the same processors of the machine. The emulator's own lock, under which QEMU handles
//! every exit, is the same in both, and so is what else this machine does: a ratio is that of two runs, one after the other.

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
/// Memory of a VM in MiB: for itself, and for each process.
const MEMORY_MIB: [usize; 2] = [128, 128];

/// Whether this is wanted, and the names that are left of those after `--only`.
pub fn take(names: &[String]) -> (bool, Vec<String>) {
    let rest: Vec<_> = names.iter().filter(|name| *name != NAME).cloned().collect();
    (names.is_empty() || rest.len() < names.len(), rest)
}

/// One comparison: a number of processors in a mode.
pub struct Comparison {
    processors: usize,
    /// `None` with nested tables, where it is no figure of the hypervisor's.
    goal: Option<f64>,
    mode: Mode,
    /// Ticks of an operation in one VM, and in several, in each round that has both.
    rounds: Vec<[f64; 2]>,
    /// What went wrong.
    pub trouble: String,
}

impl Comparison {
    /// All of them, not measured yet.
    pub fn all(modes: &[Mode]) -> Vec<Self> {
        let sizes = |&mode: &Mode| {
            SIZES.map(|(processors, goal)| {
                let (rounds, trouble) = (Vec::new(), String::new());
                let goal = (mode != Mode::Nested).then_some(goal);
                Self { processors, goal, mode, rounds, trouble }
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
    pub fn measure(&mut self, files: &Files, scratch: &Path, round: u32, quick: bool) -> Result<()> {
        let mut ticks = [0.0; 2];
        let order = if round.is_multiple_of(2) { [1, 0] } else { [0, 1] };
        for which in order {
            let vms = if which == 0 { 1 } else { self.processors };
            match self.run(files, scratch, vms, quick)? {
                Ok(figure) => ticks[which] = figure,
                Err(trouble) => {
                    self.trouble = trouble;
                    return Ok(());
                }
            }
        }
        self.rounds.push(ticks);
        Ok(())
    }

    /// Ticks of an operation with all processes in this many VMs: the mean of their medians. Or what went wrong.
    fn run(&self, files: &Files, scratch: &Path, vms: usize, quick: bool) -> Result<Result<f64, String>> {
        let (description, logs) = (scratch.join("apart.toml"), scratch.join("apart"));
        if logs.exists() {
            fs::remove_dir_all(&logs).with_context(|| format!("cannot remove {}", logs.display()))?;
        }
        fs::write(&description, self.description(files, vms, quick))
            .with_context(|| format!("cannot write {}", description.display()))?;
        let options = [
            ("--config", description.display().to_string()),
            ("--pcpus", self.processors.to_string()),
            ("--timeout", TIMEOUT_SECONDS.to_string()),
            ("--log-dir", logs.display().to_string()),
            ("--qemu", files.setup.emulator.display().to_string()),
        ];
        let command = ["run".to_owned()].into_iter();
        let command = command.chain(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        let (run, success) = files.setup.perform(command.collect(), Some(1))?;
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
        Ok(Ok(sum / vms as f64))
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

    fn series(&self, of: impl Fn(&[f64; 2]) -> f64) -> Series {
        self.rounds.iter().map(of).collect()
    }

    fn ratio(&self) -> Series {
        self.series(|[one, several]| one / several)
    }

    fn met(&self) -> Option<bool> {
        Some(self.ratio().median()? <= self.goal?)
    }

    /// What `--json` says of it.
    pub fn json(&self) -> Value {
        let series = |series: &Series| json!({ "median": series.median(), "spread": series.spread(), "rounds": series.values() });
        json!({
            "name": NAME,
            "mode": self.mode.to_string(),
            "processors": self.processors,
            "one_vm": series(&self.series(|ticks| ticks[0])),
            "several_vms": series(&self.series(|ticks| ticks[1])),
            "ratio": series(&self.ratio()),
            "goal": self.goal,
            "met": self.met(),
            "trouble": self.trouble,
        })
    }
}

/// The name of the guest's record for this many processes.
fn record(processes: usize) -> String {
    format!("{NAME}-{processes}")
}

/// The table that a person reads.
pub fn table(comparisons: &[Comparison]) -> String {
    let heading = ["16 MiB mapped, touched, unmapped", "one VM", "several", "ratio", "spread", "goal", ""];
    let mut lines = vec![heading.map(String::from).to_vec()];
    for comparison in comparisons {
        let median =
            |which: usize| comparison.series(|ticks| ticks[which]).median().map_or_else(dash, grouped);
        let ratio = comparison.ratio();
        lines.push(vec![
            format!("{} processes, {}", comparison.processors, column_name(Some(comparison.mode))),
            median(0),
            median(1),
            times(ratio.median()),
            percent(&ratio),
            comparison.goal.map_or_else(dash, |goal| format!("≤ {goal:.2}×")),
            comparison.met().map_or_else(dash, |met| verdict(met).to_owned()),
        ]);
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
        assert_eq!(comparison.ratio().median(), Some(1.02));
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
    fn it_is_selected_by_name() {
        let take = |words: &[&str]| take(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(take(&[]), (true, vec![]));
        assert_eq!(take(&["spaces", "ipi"]), (true, vec!["ipi".to_owned()]));
        assert_eq!(take(&["ipi"]), (false, vec!["ipi".to_owned()]));
    }
}
