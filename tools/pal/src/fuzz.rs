//! `pal fuzz`: builds the fuzz targets with libFuzzer's instrumentation, on the stable compiler, and runs them.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Mutex,
    thread,
};

use anyhow::{Context, Result, ensure};

use crate::{cli::FuzzArgs, project::Project, status::Usage, ui::Ui};

/// The instrumentation that libFuzzer needs. An explicit target keeps it off build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const FLAGS: &str = "target.x86_64-unknown-linux-gnu.rustflags=['-Cpasses=sancov-module',\
    '-Cllvm-args=-sanitizer-coverage-level=4','-Cllvm-args=-sanitizer-coverage-inline-8bit-counters',\
    '-Cllvm-args=-sanitizer-coverage-pc-table','-Cllvm-args=-sanitizer-coverage-trace-compares','-Ccodegen-units=1']";

/// Inputs of a short run: with fewer what is found at once may be missed; most targets take a tenth of a second for these.
const SHORT: u32 = 4096;

/// Targets that ran, and those among them that found something.
pub struct Tally {
    /// How many ran.
    pub total: u64,
    /// How many failed.
    pub failed: u64,
}

/// Runs one target until it fails or the time is over, or lists the targets.
///
/// # Errors
/// [`Usage`] for an unknown target; the build fails.
pub fn run(args: &FuzzArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let fuzzer = Fuzzer::build(project, ui)?;
    let names = fuzzer.targets()?;
    let Some(name) = &args.target else {
        println!("{}", names.join("\n"));
        return Ok(0);
    };
    if !names.contains(name) {
        return Err(Usage::new(format!("no fuzz target {name}; `cargo pal fuzz` lists them")).into());
    }
    let status = fuzzer.command(name, args.seconds)?.status().context("cannot start the fuzzer")?;
    Ok(u8::from(!status.success()))
}

/// Runs every target for `seconds` or for [`SHORT`] inputs, as many at a time as there are processors, with their output in `log`.
///
/// # Errors
/// The build fails.
pub fn run_all(project: &Project, ui: &Ui, seconds: u32, log: &mut (impl Write + Send)) -> Result<Tally> {
    let fuzzer = Fuzzer::build(project, ui)?;
    let names = fuzzer.targets()?;
    let total = names.len() as u64;
    let queue = Mutex::new(names.into_iter());
    let outcome = Mutex::new((log, Tally { total, failed: 0 }));
    let work = || -> Result<()> {
        while let Some(name) = { queue.lock().expect("no thread panics with the lock").next() } {
            let output = fuzzer
                .command(&name, seconds)?
                .arg(format!("-runs={SHORT}"))
                .output()
                .context("cannot start the fuzzer")?;
            let mut outcome = outcome.lock().expect("no thread panics with the lock");
            let verdict = if output.status.success() { "ok" } else { "FAILED" };
            writeln!(outcome.0, "{verdict} {name}")?;
            if !output.status.success() {
                outcome.0.write_all(&output.stderr)?;
                outcome.1.failed += 1;
            }
        }
        Ok(())
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("the worker does not panic"))
    })?;
    Ok(outcome.into_inner().expect("the threads have ended").1)
}

/// The cargo that builds all targets.
pub fn build(project: &Project) -> Command {
    let mut build = project.cargo();
    let what = ["build", "--quiet", "--package", "fuzz", "--features", "libfuzzer", "--profile", "fuzz"];
    build.args(what).args(["--target", TARGET]).args(["--config", FLAGS]);
    build
}

struct Fuzzer {
    program: PathBuf,
    dir: PathBuf,
}

impl Fuzzer {
    fn build(project: &Project, ui: &Ui) -> Result<Self> {
        ui.run("building the fuzz targets", &mut build(project))
            .context("the fuzz targets need a C++ compiler (package g++)")?;
        Ok(Self { program: project.target.join(TARGET).join("fuzz/fuzz"), dir: project.cache("fuzz")? })
    }

    fn targets(&self) -> Result<Vec<String>> {
        let output = Command::new(&self.program).env("PALIMPSEST_FUZZ", "list").output()?;
        ensure!(output.status.success(), "the fuzzer does not list its targets");
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    /// One run of a target, with its corpus and what it finds under `target/pal/fuzz`.
    fn command(&self, name: &str, seconds: u32) -> Result<Command> {
        let corpus = self.dir.join(name);
        fs::create_dir_all(&corpus)?;
        let mut command = Command::new(&self.program);
        command.env("PALIMPSEST_FUZZ", name).stdin(Stdio::null()).current_dir(&self.dir);
        command.arg(format!("-max_total_time={seconds}")).args([
            "-max_len=4096",
            "-timeout=10",
            "-rss_limit_mb=2048",
        ]);
        command.arg(format!("-artifact_prefix={name}-")).arg(corpus);
        Ok(command)
    }
}
