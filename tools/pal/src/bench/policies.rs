//! What policies cost: instructions of the hypervisor for a sample and the decision after it, on a lab machine, whose counters
//! policies compare. Time is counted in instructions.
//!
//! Each policy is told not to change the engine, because what a change costs is another figure, and decides after each sample. The
//! same work with a sample each second, and no policy, is what it is compared with.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    column::{Run, Setup},
    table::{align, grouped, verdict},
};
use crate::{host::needs::Needs, ui::Ui};

/// What `--only` calls all of this.
pub const NAME: &str = "policies";
/// The lab machine.
const LAB: &str = "zen3";
/// A guest that computes, writes through a pipe, and starts processes.
const WORK: &str = "seq 20000 | md5sum";
const TIMEOUT_SECONDS: u64 = 600;
/// Instructions that a sample with its decision may take on average, and the share of the guest's in thousandths.
const MOST: f64 = 20_000.0;
const MOST_MILLI: f64 = 10.0;
/// Milliseconds between samples: the default.
const SAMPLE_MS: u32 = 10;
/// The same where next to none are taken.
const RARE_MS: u32 = 1000;

/// What is measured: names of rows, with the modes.
const ROWS: [(&str, &str); 7] = [
    ("samples alone", "nested"),
    ("threshold", "threshold,misses=4294967295,interval_ms=10"),
    ("dsp-sample", "dsp-sample,interval_ms=60000"),
    ("dav2m", "dav2m,window_inst=1000,threshold_tmiss=1000000000000"),
    ("dsp-offset", "dsp-offset,bias=-6553600000,interval_ms=10"),
    ("bandit", "bandit,explore_milli=0,interval_ms=10"),
    ("oracle", "oracle,changes=4294967294:4294967295"),
];

/// Sums over the samples of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    samples: u64,
    host: u64,
    guest: u64,
    shadow: u64,
}

/// What was measured of one policy.
pub struct Measured {
    name: &'static str,
    with: Sums,
    without: Sums,
    command: Vec<String>,
    /// Why there may be nothing.
    pub trouble: String,
}

impl Measured {
    /// Instructions of a sample and a decision.
    fn mean(&self) -> f64 {
        let more = self.with.samples.saturating_sub(self.without.samples).max(1);
        self.with.host.saturating_sub(self.without.host) as f64 / more as f64
    }

    /// As a share of the guest's instructions, in thousandths.
    fn milli(&self) -> f64 {
        self.with.host.saturating_sub(self.without.host) as f64 * 1000.0 / self.with.guest.max(1) as f64
    }

    fn met(&self) -> bool {
        let measured = self.trouble.is_empty() && self.with.host > self.without.host;
        measured && self.mean() <= MOST && self.milli() <= MOST_MILLI
    }
}

/// Measures all policies, one after the other: QEMU with the model takes a processor by itself.
///
/// # Errors
/// `pal` does not start; the lab machine's plugin does not build.
pub fn measure(setup: &Setup, needs: &Needs<'_>, scratch: &Path) -> Result<Vec<Measured>> {
    // Built before, so that no run builds it.
    needs.lab_plugin()?;
    let run = |name: &str, mode: &str, ms: u32, ui: &Ui| -> Result<(Sums, Vec<String>, String)> {
        let _step = ui.step(&format!("measuring policies: {name}"));
        let samples = scratch.join(format!("policies.{ms}.{name}.jsonl"));
        let options = [
            ("--lab", LAB.to_owned()),
            ("--lab-model", "tlb".to_owned()),
            ("--policy", mode.to_owned()),
            ("--sample-ms", ms.to_string()),
            ("--samples", samples.display().to_string()),
            ("--timeout", TIMEOUT_SECONDS.to_string()),
            ("--exec", WORK.to_owned()),
        ];
        let command = ["run", "--deterministic"].map(String::from).into_iter();
        let options = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        let (Run { mut trouble, command, .. }, success) =
            setup.perform(command.chain(options).collect(), None)?;
        let mut sums = Sums::default();
        if success {
            let text =
                fs::read_to_string(&samples).with_context(|| format!("cannot read {}", samples.display()))?;
            sums = sums_of(&text);
            if sums.host == 0 || sums.shadow > 0 {
                trouble = format!("{name}: no counters in its samples, or it changed the engine");
            }
        }
        Ok((sums, command, trouble))
    };
    let (without, _, wrong) = run("without", "nested", RARE_MS, needs.ui)?;
    let mut all = Vec::new();
    for (name, mode) in ROWS {
        let (with, command, trouble) = run(name, mode, SAMPLE_MS, needs.ui)?;
        let trouble = if wrong.is_empty() { trouble } else { wrong.clone() };
        all.push(Measured { name, with, without, command, trouble });
    }
    Ok(all)
}

/// Sums over the samples in a file.
fn sums_of(text: &str) -> Sums {
    let mut sums = Sums::default();
    for sample in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if sample["t"] != "sample" {
            continue;
        }
        let count = |side: &str| sample[side]["instructions"].as_u64().unwrap_or(0);
        sums.samples += 1;
        sums.host = sums.host.saturating_add(count("host"));
        sums.guest = sums.guest.saturating_add(count("guest"));
        sums.shadow += u64::from(sample["engine"] == "shadow");
    }
    sums
}

/// The table for people.
pub fn table(all: &[Measured]) -> String {
    let heading =
        ["a sample, and a decision", "samples", "instructions", "goal", "of the guest's", "goal", ""];
    let mut lines = vec![heading.map(String::from)];
    for measured in all {
        lines.push([
            measured.name.to_owned(),
            measured.with.samples.to_string(),
            grouped(measured.mean()),
            format!("≤ {}", grouped(MOST)),
            format!("{:.2} %", measured.milli() / 10.0),
            format!("≤ {} %", MOST_MILLI / 10.0),
            verdict(measured.met()).to_owned(),
        ]);
    }
    align(&lines, &[0, 6])
}

/// For the file of `--json`.
pub fn json(all: &[Measured]) -> Value {
    let row = |measured: &Measured| {
        let figures: BTreeMap<&str, f64> =
            [("instructions", measured.mean()), ("milli", measured.milli())].into_iter().collect();
        json!({
            "name": measured.name,
            "samples": measured.with.samples,
            "figures": figures,
            "met": measured.met(),
            "command": measured.command,
            "trouble": measured.trouble,
        })
    };
    all.iter().map(row).collect()
}

/// The goals that are missed.
pub fn missed(all: &[Measured]) -> Vec<String> {
    let missed = all.iter().filter(|measured| !measured.met());
    missed.map(|measured| format!("policies: {}", measured.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(host: u64) -> Measured {
        let without = Sums { samples: 2, host: 1_000_000, guest: 900_000_000, shadow: 0 };
        let with = Sums { samples: 102, host, guest: 900_000_000, shadow: 0 };
        Measured { name: "bandit", with, without, command: vec![], trouble: String::new() }
    }

    #[test]
    fn what_samples_take_is_judged_by_itself_and_beside_the_guest() {
        let good = measured(2_000_000);
        assert_eq!((good.mean(), good.met()), (10_000.0, true));
        assert!((good.milli() - 1.111).abs() < 0.001);
        assert!(!measured(3_100_000).met(), "21 000 instructions");
        let busy = Measured { with: Sums { guest: 50_000_000, ..good.with }, ..measured(2_000_000) };
        assert!(!busy.met(), "a fiftieth of the guest's");
        assert!(!measured(1_000_000).met(), "nothing was measured");
        assert_eq!(missed(&[good, measured(0)]), ["policies: bandit"]);
        let table = table(&[measured(2_000_000)]);
        let line = table.lines().nth(1).unwrap();
        assert!(line.contains(" 10 000 ") && line.contains(" 0.11 %") && line.ends_with("met"), "{table}");
        assert_eq!(json(&[measured(2_000_000)])[0]["figures"]["instructions"], 10_000.0);
    }

    #[test]
    fn samples_are_summed() {
        let sample = |engine: &str| {
            json!({"t": "sample", "engine": engine, "host": {"instructions": 5}, "guest": {"instructions": 7}}).to_string()
        };
        let text = [json!({"t": "run"}).to_string(), sample("nested"), sample("shadow"), "broken".to_owned()]
            .join("\n");
        assert_eq!(sums_of(&text), Sums { samples: 2, host: 10, guest: 14, shadow: 1 });
    }

    #[test]
    fn rows_are_policies() {
        for (name, mode) in ROWS {
            let parsed: abi::mode::Mode = mode.parse().unwrap();
            assert!(parsed.to_string().starts_with(name) || name == "samples alone", "{name}");
        }
    }
}
