//! Runs of memlat in a guest, for the figures of memory in tiers: what they say is kept as it was said, so that a figure may take another
//! look at it.

use std::{
    env,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::LAB;
use crate::{
    host::{lock::lock, needs::Needs},
    project::Project,
    reproduce::{
        ReproduceArgs, check_files, compile,
        kept::{self, Kept},
    },
    run::end_with_pal,
    status::Usage,
    ui::Ui,
};

/// What their file of results is called.
const KIND: &str = "memory";
/// How long a run may take.
const TIMEOUT_SECONDS: u32 = 1800;
/// Milliseconds of the machine's time between samples.
const SAMPLE_MS: u32 = 100;

/// What is the same for all runs of a figure.
pub struct Bench {
    /// The lab machine.
    pub lab: String,
    program: PathBuf,
    hypervisor: PathBuf,
    /// Hash of the files that runs depend on.
    files: String,
    yes: bool,
    _lock: File,
}

/// How a machine is run: its fast memory is `fast` MiB, of which no description gives the guest any.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub mode: &'static str,
    /// How guests share the fast memory; `static`: this one has none, and nothing moves.
    pub sharing: &'static str,
    pub fast: u64,
    /// What says which pages leave.
    pub evict: &'static str,
    /// What says which pages are hot.
    pub policy: &'static str,
    /// VCPUs, and processors for them.
    pub cpus: u32,
}

/// A run of memlat.
pub struct Session {
    name: String,
    lab: String,
    words: Vec<String>,
    inputs: String,
}

/// What a run has said, and what was said of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// What memlat said.
    pub said: String,
    /// The lines of the samples that are of tiers.
    pub samples: String,
    /// The statistics of the guest's tiers.
    pub tiers: Value,
    /// What came through channels of the machine's memory; null if that has none.
    pub channels: Value,
    /// What each processor of the machine counted in the regions that memlat marks, one after the other.
    pub regions: Vec<Value>,
}

impl Bench {
    /// Checks the options, and makes the program; with what is kept of earlier runs. Others are kept from the folder meanwhile.
    ///
    /// # Errors
    /// [`Usage`] for options that change nothing here; something is missing on this machine.
    pub fn new(name: &str, args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<(Bench, Kept)> {
        if args.seeds != 1
            || args.no_kit
            || args.jobs.is_some()
            || args.scale.is_some()
            || !args.workloads.is_empty()
        {
            let text = format!(
                "{name}: its program is memlat; only --quick, --lab, --json, --again and --output change it"
            );
            return Err(Usage::new(text).into());
        }
        let lab = args.lab.clone().unwrap_or_else(|| LAB.to_owned());
        crate::lab::find(&lab)?;
        check_files([args.output.as_ref()])?;
        let cache = project.cache("reproduce")?;
        let _lock = lock(&cache, ui)?;
        let kept = Kept::open(KIND, args, &cache, ui)?;
        let needs = Needs { project, ui, yes: args.yes };
        let (program, hypervisor) = (compile(project, ui, &cache, "memlat")?, needs.hypervisor()?);
        // Each run has its own machine.
        let files = kept::inputs(&needs, &hypervisor, &program, "")?;
        Ok((Bench { lab, program, hypervisor, files, yes: args.yes, _lock }, kept))
    }

    /// A run of memlat with these words on a lab machine. `more`: what else its outcome depends on.
    ///
    /// # Errors
    /// There is no such machine.
    pub fn session(
        &self,
        name: &str,
        lab: &str,
        setting: Setting,
        memlat: &str,
        more: &str,
    ) -> Result<Session> {
        let (description, _) = crate::lab::find(lab)?;
        let words = setting.words(memlat);
        let inputs = format!("{} {description} {words:?} {SAMPLE_MS} {more}", self.files);
        let inputs = bootimg::sha256(inputs.as_bytes());
        Ok(Session { name: name.to_owned(), lab: lab.to_owned(), words, inputs })
    }

    /// Performs a run, which may be `named` for the monitor; `listen` takes what memlat says, and returns all of it.
    ///
    /// # Errors
    /// It failed, or memlat has not found its memory as it left it.
    pub fn perform(
        &self,
        session: &Session,
        named: Option<&str>,
        listen: impl FnOnce(&mut Child) -> Result<String>,
    ) -> Result<Record> {
        let dir = tempfile::tempdir().context("cannot make a folder")?;
        let [stats, samples, report] =
            ["stats.json", "samples.jsonl", "report.json"].map(|name| dir.path().join(name));
        let mut pal = Command::new(env::current_exe().context("cannot find pal's own program")?);
        pal.args(["run", "--lab", &session.lab]).args(&session.words);
        pal.args(["--timeout", &TIMEOUT_SECONDS.to_string(), "--sample-ms", &SAMPLE_MS.to_string()]);
        pal.arg("--put").arg(format!("{}:/memlat", self.program.display()));
        pal.arg("--stats").arg(&stats).arg("--samples").arg(&samples).arg("--lab-report").arg(&report);
        pal.args(named.map(|name| ["--name", name]).into_iter().flatten()).args(self.yes.then_some("--yes"));
        pal.env("PALIMPSEST_HV", &self.hypervisor).stdin(Stdio::null()).stdout(Stdio::piped());
        end_with_pal(&mut pal, Signal::TERM);
        let mut run = Running(pal.spawn().context("cannot run pal")?);
        let said = listen(&mut run.0)?;
        let status = run.0.wait()?;
        if !status.success() || !said.contains(", right") {
            bail!("{status}: {said}");
        }
        let text = |path: &Path| fs::read_to_string(path).context("what is said of the run cannot be read");
        let read = |path| serde_json::from_str(&text(path)?).context("what is said of the run is not whole");
        let (stats, report): (Value, Value) = (read(&stats)?, read(&report)?);
        let of_tiers = |line: &&str| line.contains("\"t\":\"tiers\"");
        let samples = text(&samples)?.lines().filter(of_tiers).map(|line| format!("{line}\n")).collect();
        Ok(Record {
            said,
            samples,
            tiers: stats["guests"][0]["paging"]["tiers"].clone(),
            channels: report["channels"].clone(),
            regions: regions(&report),
        })
    }
}

/// What is counted of regions in a lab machine's report.
fn regions(report: &Value) -> Vec<Value> {
    let pcpus = report["pcpus"].as_array().into_iter().flatten();
    pcpus.filter_map(|pcpu| pcpu["regions"].as_array()).flatten().cloned().collect()
}

/// Takes all that memlat says.
///
/// # Errors
/// It cannot be read.
pub fn listen(run: &mut Child) -> Result<String> {
    let (mut output, mut said) = (run.stdout.take().context("the run has no output")?, Vec::new());
    output.read_to_end(&mut said).context("the run's output cannot be read")?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// A run that is ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _status = self.0.wait();
    }
}

impl Setting {
    /// On nested tables, with what the hypervisor does by itself.
    pub const fn nested(sharing: &'static str, fast: u64) -> Setting {
        Setting { mode: "nested", sharing, fast, evict: "lazy", policy: "threshold", cpus: 1 }
    }

    /// Whether pages move.
    pub fn moves(self) -> bool {
        self.sharing != "static"
    }

    fn words(self, memlat: &str) -> Vec<String> {
        let Setting { mode, sharing, fast, evict, policy, cpus } = self;
        let cpus = cpus.to_string();
        let fast = fast.to_string();
        let mut words = vec!["--lab-from", "session", "--lab-time", "--nested-page", "4K", "--mode", mode];
        words.extend([
            "--fast-mem",
            &fast,
            "--fast-sharing",
            sharing,
            "--fast-evict",
            evict,
            "--fast-policy",
            policy,
        ]);
        if self.cpus > 1 {
            words.extend(["--vcpus", &cpus, "--pcpus", &cpus]);
        }
        let exec = format!("/memlat {memlat}");
        words.into_iter().chain(["--exec", &exec]).map(str::to_owned).collect()
    }
}

impl kept::Run for Session {
    type Outcome = Record;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn inputs(&self) -> &str {
        &self.inputs
    }

    fn document(&self, record: &Record) -> Value {
        json!({ "lab": self.lab, "words": self.words, "said": record.said, "samples": record.samples, "tiers": record.tiers,
            "channels": record.channels, "regions": record.regions })
    }

    fn outcome(&self, document: &Value) -> Option<Record> {
        let text = |key: &str| document[key].as_str().map(str::to_owned);
        let tiers = document["tiers"].as_object()?.clone().into();
        let channels = document["channels"].clone();
        let regions = document["regions"].as_array()?.clone();
        Some(Record { said: text("said")?, samples: text("samples")?, tiers, channels, regions })
    }

    fn says(&self, record: &Record) -> String {
        let mut lines = record.said.lines().filter(|line| line.ends_with(" cycles"));
        lines.next_back().unwrap_or_default().trim_start_matches("memlat: ").to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{kept::Run, *};

    fn session(files: &str, setting: Setting, memlat: &str, more: &str) -> Session {
        let bench = Bench {
            lab: LAB.into(),
            program: "memlat".into(),
            hypervisor: "palimpsest".into(),
            files: files.into(),
            yes: false,
            _lock: tempfile::tempfile().unwrap(),
        };
        bench.session("a run", LAB, setting, memlat, more).unwrap()
    }

    #[test]
    fn runs_of_another_build_or_with_other_words_are_others() {
        let setting = Setting::nested("shares", 64);
        let same = || session("a", setting, "load 1 2", "");
        assert_eq!(same().inputs(), same().inputs());
        let others = [
            same(),
            session("b", setting, "load 1 2", ""),
            session("a", Setting { fast: 65, ..setting }, "load 1 2", ""),
            session("a", Setting { mode: "shadow", ..setting }, "load 1 2", ""),
            session("a", Setting { sharing: "static", ..setting }, "load 1 2", ""),
            session("a", Setting { evict: "clock", ..setting }, "load 1 2", ""),
            session("a", Setting { policy: "histogram", ..setting }, "load 1 2", ""),
            session("a", Setting { cpus: 2, ..setting }, "load 1 2", ""),
            session("a", setting, "load 1 3", ""),
            session("a", setting, "load 1 2", "E7"),
        ];
        let mut inputs: Vec<_> = others.iter().map(|session| session.inputs().to_owned()).collect();
        inputs.sort();
        inputs.dedup();
        assert_eq!(inputs.len(), others.len());
    }

    #[test]
    fn what_was_said_comes_back() {
        let said = "memlat: 24 MiB: 300 cycles\r\nmemlat: 5 accesses, right\r\n".to_owned();
        let record = Record {
            said,
            samples: "{}\n".into(),
            tiers: json!({ "moved_in": 3 }),
            channels: json!([{ "lines": 5 }]),
            regions: regions(&json!({ "pcpus": [{ "regions": [{ "region": 0 }] }, { "spare": true }] })),
        };
        assert_eq!(record.regions, [json!({ "region": 0 })]);
        let session = session("a", Setting::nested("shares", 64), "load 1 2", "");
        let document = session.document(&record);
        assert_eq!(session.outcome(&document), Some(record.clone()));
        assert_eq!(session.says(&record), "24 MiB: 300 cycles");
        for key in ["said", "samples", "tiers", "regions"] {
            let mut less = document.clone();
            less[key] = Value::Null;
            assert_eq!(session.outcome(&less), None, "{key}");
        }
    }
}
