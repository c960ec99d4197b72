//! What the scheduler costs: the hypervisor's statistics of guests whose VCPUs take turns on one PCPU, by an interrupt and HLT
//! (`turns.ring` of `tests/kits/long-mode`). So each turn is a decision and a switch between VCPUs. Time is counted in
//! instructions.

use std::{fs, path::Path, thread};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    column::{Run, Setup},
    program,
    table::{align, grouped, verdict},
};
use crate::host::needs::Needs;

/// What `--only` calls all of this.
pub const NAME: &str = "scheduler";
/// The kit's memory in MiB, and how long a run may take.
const MEMORY_MIB: u64 = 64;
const TIMEOUT_SECONDS: u64 = 600;
/// What is counted: decisions, and from there to the entry of another VCPU.
const WHAT: [&str; 2] = ["decision", "switch between VCPUs"];
/// Instructions that they may take: on average, because the first ones of a VCPU and those that a timer's interrupt falls into
/// take longer.
const GOALS: [f64; 2] = [300.0, 1550.0];

/// One guest.
struct Scenario {
    name: &'static str,
    title: &'static str,
    vcpus: u32,
    /// More keys of its description.
    keys: &'static str,
    /// Its VCPUs must be kept off the PCPU by their cap for some of the time.
    is_throttled: bool,
    /// Instructions of a decision and of a switch on average, at most.
    goals: [f64; 2],
}

/// The guests: few VCPUs and more, and with what decisions have to look at besides.
const SCENARIOS: [Scenario; 4] = [
    Scenario { name: "turns-2", title: "2 VCPUs", vcpus: 2, keys: "", is_throttled: false, goals: GOALS },
    Scenario {
        name: "turns-8",
        title: "8 VCPUs, with an affinity",
        vcpus: 8,
        keys: "affinity = [0]\n",
        is_throttled: false,
        goals: GOALS,
    },
    // Each run is charged; the cap is so large that no VCPU is throttled.
    Scenario {
        name: "turns-capped",
        title: "4 VCPUs, with a cap",
        vcpus: 4,
        keys: "cap = 100\n",
        is_throttled: false,
        goals: GOALS,
    },
    // Decisions find that the cap is spent, halt the PCPU, and let the VCPUs run again in the next period.
    Scenario {
        name: "turns-throttled",
        title: "4 VCPUs, throttled",
        vcpus: 4,
        keys: "cap = 5\n",
        is_throttled: true,
        // Most decisions find nothing to run and look at all queues before the PCPU halts: they delay no VCPU.
        goals: [1150.0, 1700.0],
    },
];

/// What something took, of all VCPUs of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    count: u64,
    ticks: u64,
    longest: u64,
}

impl Cost {
    fn add(&mut self, [count, ticks, longest]: [u64; 3]) {
        self.count += count;
        self.ticks += ticks;
        self.longest = self.longest.max(longest);
    }

    fn mean(&self) -> f64 {
        self.ticks as f64 / self.count.max(1) as f64
    }

    fn met(&self, goal: f64) -> bool {
        self.count > 0 && self.mean() <= goal
    }
}

/// What was measured of one guest: decisions, switches.
pub struct Measured {
    scenario: &'static Scenario,
    costs: [Cost; 2],
    command: Vec<String>,
    /// Why there may be nothing.
    pub trouble: String,
}

/// Measures all guests, side by side.
///
/// # Errors
/// `pal` does not start; a kit that does not build.
pub fn measure(setup: &Setup, needs: &Needs<'_>, scratch: &Path) -> Result<Vec<Measured>> {
    let Needs { project, ui, .. } = needs;
    let kit = program::kit(project, ui, scratch)?;
    let _step = ui.step("measuring the scheduler");
    thread::scope(|scope| {
        let threads: Vec<_> =
            SCENARIOS.iter().map(|scenario| scope.spawn(|| scenario.run(setup, &kit, scratch))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

impl Scenario {
    fn run(&'static self, setup: &Setup, kit: &Path, scratch: &Path) -> Result<Measured> {
        let [description, stats] = ["toml", "json"].map(|end| scratch.join(format!("{}.{end}", self.name)));
        fs::write(&description, self.description(kit))
            .with_context(|| format!("cannot write {}", description.display()))?;
        let options = [
            ("--config", description.display().to_string()),
            ("--stats", stats.display().to_string()),
            ("--timeout", TIMEOUT_SECONDS.to_string()),
            ("--qemu", setup.emulator.display().to_string()),
        ];
        let command = ["run", "--icount"].map(String::from).into_iter();
        let command: Vec<_> =
            command.chain(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value])).collect();
        let (Run { mut trouble, command, .. }, success) = setup.perform(command, None)?;
        let mut costs = [Cost::default(); 2];
        if success {
            let text = fs::read(&stats).with_context(|| format!("cannot read {}", stats.display()))?;
            let stats = serde_json::from_slice(&text).context("pal run wrote unreadable statistics")?;
            costs = totals(&stats);
            if costs[1].count == 0 {
                trouble = "the hypervisor counted no switches".to_owned();
            } else if self.is_throttled && capped(&stats) == 0 {
                trouble = format!("{}: no VCPU was throttled", self.name);
            }
        }
        Ok(Measured { scenario: self, costs, command, trouble })
    }

    fn description(&self, kit: &Path) -> String {
        let Scenario { vcpus, keys, .. } = self;
        format!(
            "version = 1\n\n[[vm]]\nname = \"kit\"\nkernel = {:?}\ncmdline = \"kit tcg turns.ring\"\nmemory_mib = {MEMORY_MIB}\n\
             vcpus = {vcpus}\ntest_device = true\n{keys}",
            kit.display().to_string()
        )
    }
}

/// Decisions and switches in a document of `pal run --stats`.
fn totals(stats: &Value) -> [Cost; 2] {
    #[derive(Deserialize)]
    struct Counts {
        decisions: u64,
        decision_ticks: u64,
        decision_longest: u64,
        switches: u64,
        switch_ticks: u64,
        switch_longest: u64,
    }
    let mut costs = [Cost::default(); 2];
    let vcpus = stats["guests"].as_array().into_iter().flatten();
    for counts in vcpus.filter_map(|vcpu| Counts::deserialize(&vcpu["scheduling"]).ok()) {
        costs[0].add([counts.decisions, counts.decision_ticks, counts.decision_longest]);
        costs[1].add([counts.switches, counts.switch_ticks, counts.switch_longest]);
    }
    costs
}

/// Ticks for which caps have kept VCPUs off the PCPU, in a document of `pal run --stats`.
fn capped(stats: &Value) -> u64 {
    let vcpus = stats["guests"].as_array().into_iter().flatten();
    vcpus.filter_map(|vcpu| vcpu["time"]["capped"].as_u64()).sum()
}

/// The table for people.
pub fn table(all: &[Measured]) -> String {
    let mut lines = vec![["on one PCPU", "", "times", "mean", "longest", "goal", ""].map(String::from)];
    for measured in all {
        for ((cost, goal), what) in measured.costs.iter().zip(measured.scenario.goals).zip(WHAT) {
            lines.push([
                measured.scenario.title.to_owned(),
                what.to_owned(),
                cost.count.to_string(),
                grouped(cost.mean()),
                grouped(cost.longest as f64),
                format!("≤ {}", grouped(goal)),
                verdict(cost.met(goal)).to_owned(),
            ]);
        }
    }
    align(&lines, &[0, 1, 6])
}

/// For the file of `--json`.
pub fn json(all: &[Measured]) -> Value {
    let cost = |cost: &Cost, goal: f64| {
        json!({
            "count": cost.count,
            "mean": cost.mean(),
            "longest": cost.longest,
            "goal": goal,
            "met": cost.met(goal),
        })
    };
    let guest = |measured: &Measured| {
        let [decisions, switches] = [0, 1].map(|i| cost(&measured.costs[i], measured.scenario.goals[i]));
        json!({
            "name": measured.scenario.name,
            "guest": measured.scenario.title,
            "description": measured.scenario.description(Path::new("kit")),
            "command": measured.command,
            "trouble": measured.trouble,
            "decisions": decisions,
            "switches": switches,
        })
    };
    all.iter().map(guest).collect()
}

/// The goals that are missed.
pub fn missed(all: &[Measured]) -> Vec<String> {
    let goals = |measured: &Measured| {
        let costs = measured.costs.into_iter().zip(measured.scenario.goals).zip(WHAT);
        let missed = costs.filter(|((cost, goal), _)| !cost.met(*goal));
        missed.map(|(_, what)| format!("{}: {what}", measured.scenario.name)).collect::<Vec<_>>()
    };
    all.iter().flat_map(goals).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(stats: &Value) -> Measured {
        Measured { scenario: &SCENARIOS[0], costs: totals(stats), command: vec![], trouble: String::new() }
    }

    #[test]
    fn vcpus_are_summed_and_means_are_judged() {
        let vcpu = |switches: u64| {
            json!({"scheduling": {
                "decisions": 100, "decision_ticks": 29_000, "decision_longest": 500,
                "switches": switches, "switch_ticks": 1551 * switches, "switch_longest": 1551,
            }})
        };
        let all = [measured(&json!({"guests": [vcpu(10), vcpu(30), {"vm": "another"}]}))];
        let costs = [(200, 58_000, 500), (40, 62_040, 1551)];
        assert_eq!(all[0].costs, costs.map(|(count, ticks, longest)| Cost { count, ticks, longest }));
        assert_eq!(missed(&all), ["turns-2: switch between VCPUs"]);
        let table = table(&all);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[1].contains(" 200 ") && lines[1].ends_with("≤ 300  met"), "{table}");
        assert!(lines[2].contains(" 1 551 ") && lines[2].ends_with("≤ 1 550  MISSED"), "{table}");
        let document = json(&all);
        assert_eq!(document[0]["decisions"]["met"], true);
        assert_eq!(document[0]["switches"]["mean"], 1551.0);
    }

    #[test]
    fn time_at_the_cap_is_summed() {
        let vcpu = |capped: u64| json!({"time": {"ran": 5, "capped": capped}});
        assert_eq!(capped(&json!({"guests": [vcpu(3), vcpu(4), {}]})), 7);
        assert_eq!(capped(&Value::Null), 0);
    }

    #[test]
    fn nothing_measured_is_a_miss() {
        assert_eq!(missed(&[measured(&Value::Null)]).len(), 2);
    }
}
