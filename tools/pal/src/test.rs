//! `pal test`: everything that CI runs, one line per step.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context, Result};

use crate::{
    cli::{Guest, TestArgs},
    fuzz,
    host::needs::Needs,
    project::Project,
    replace,
    run::children,
    status::Usage,
    train,
    ui::Ui,
};

/// One step. Its counts are those of the tests that it ran, or 1 for a step that is a single check.
struct Step {
    name: &'static str,
    what: &'static str,
    work: Work,
}

/// What a step does.
enum Work {
    /// It runs programs, and counts what they say.
    Run(fn(&Surroundings, log: &Path) -> Result<Counts>),
    /// The end-to-end cases of these machines. All steps of this kind are one queue of cases, so that no processor is idle while the
    /// last case of one of them ends; and the queue runs beside other steps, which leave processors idle ([`BESIDE_GUESTS`]).
    Guests(&'static [&'static str]),
}

impl Step {
    fn machines(&self) -> Option<&'static [&'static str]> {
        match self.work {
            Work::Guests(machines) => Some(machines),
            Work::Run(_) => None,
        }
    }
}

const STEPS: [Step; 10] = [
    Step {
        name: "format",
        what: "the source is formatted",
        work: Work::Run(|at, log| at.check(log, at.project.cargo().args(["fmt", "--all", "--check"]))),
    },
    Step { name: "lint", what: "clippy and rustdoc have nothing to say", work: Work::Run(lint) },
    Step {
        name: "image",
        what: "the hypervisor builds",
        work: Work::Run(|at, log| at.check(log, &mut at.project.build_hypervisor())),
    },
    Step { name: "unit", what: "unit and property tests; the image is free of SSE", work: Work::Run(unit) },
    Step { name: FUZZ, what: "a short run of every fuzz target", work: Work::Run(short_fuzz) },
    Step {
        name: "train",
        what: "the trainer of policies, on logs with a known answer",
        work: Work::Run(trainer),
    },
    Step { name: REPLACE, what: "page replacement, against another library", work: Work::Run(replacement) },
    // Cases that take long come first, so that none of them is alone at the end.
    Step {
        name: "bochs-vtx",
        what: "end to end, on an Intel processor",
        work: Work::Guests(&["bochs-native", "bochs-vtx"]),
    },
    Step { name: "native", what: "end to end, without the hypervisor", work: Work::Guests(&["native"]) },
    Step { name: "qemu-svm", what: "end to end, on the hypervisor", work: Work::Guests(&["qemu-svm"]) },
];

/// The steps that start emulated machines.
const NEED_QEMU: [&str; 3] = ["unit", "native", "qemu-svm"];
/// Steps beside which the end-to-end cases run. Those before them build what the cases need.
const BESIDE_GUESTS: [&str; 4] = ["unit", FUZZ, TRAIN, REPLACE];
/// The step that builds everything once more, with libFuzzer's instrumentation, which takes longer than its runs. So it is only
/// there when it is named, and with `--full`; `unit` has random inputs for each target.
const FUZZ: &str = "fuzz";
/// The step that needs the trainer's environment. A person without a network goes without it.
const TRAIN: &str = "train";
/// The step that needs the environment of the simulator's oracle, likewise.
const REPLACE: &str = "replace";
/// What a whole run on a clean checkout leaves in `target/`, in bytes, with some room for the machines' disks.
const DISK_BYTES: u64 = 6 << 30;
/// How many of the most expensive end-to-end cases are listed.
const MOST_EXPENSIVE: usize = 10;
/// Seconds for each fuzz target: enough to see that it starts and that what is found at once is not there. For more there is
/// `cargo pal fuzz`, whose corpora stay.
const FUZZ_SECONDS: u32 = 1;

/// With `--full`: how many random cases the unit tests try of each property, by the variable that says so, and of each oracle of the
/// paging engines. Only then: the variable also overrides the numbers of those properties whose cases take long.
const MORE_CASES: &[(&str, &str)] = &[("PROPTEST_CASES", "1024"), ("ORACLE_CASES", "300")];

/// What a step works with.
struct Surroundings<'a> {
    project: &'a Project,
    ui: &'a Ui,
    /// Also what takes long.
    full: bool,
}

/// Passed and failed tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Runs the steps; the status is 1 if anything failed.
///
/// # Errors
/// [`Usage`] for an unknown step; a log that cannot be written.
pub fn run(args: &TestArgs, project: &Project, ui: &Ui) -> Result<u8> {
    if let Some(name) = args.step.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        return Err(Usage::new(format!("no step {name}; the steps are {}", names.join(", "))).into());
    }
    let wanted = |step: &&Step| match args.step.is_empty() {
        true => args.full || step.name != FUZZ,
        false => args.step.iter().any(|name| name == step.name),
    };
    // Asked for before a spinner turns.
    let needs = Needs { project, ui, yes: args.yes };
    if STEPS.iter().filter(wanted).any(|step| NEED_QEMU.contains(&step.name)) {
        needs.qemu(None)?;
        needs.boot_tests()?;
    }
    if STEPS.iter().filter(wanted).any(|step| step.name == "bochs-vtx") {
        needs.bochs(None)?;
    }
    let environment = |step: &Step| match step.name {
        TRAIN => needs.trainer().err(),
        REPLACE => needs.python_of(&replace::ORACLE).err(),
        _ => None,
    };
    let missing = |step: &Step| Some((step.name, environment(step)?));
    // In CI it is a failure of the step, not something to be missed.
    let may_skip = std::env::var_os("CI").is_none();
    let skipped: Vec<_> = STEPS.iter().filter(wanted).filter(|_| may_skip).filter_map(missing).collect();
    let wanted = |step: &&Step| wanted(step) && skipped.iter().all(|(name, _)| *name != step.name);
    let logs = project.cache("test")?;
    warn_of_a_full_disk(&logs, ui);
    let start = Instant::now();
    let mut total = Counts::default();
    let builds = STEPS.iter().filter(wanted).filter_map(|step| builds_alone(step.name, project)).collect();
    let ahead = thread::spawn(|| build_ahead(builds));
    let at = Surroundings { project, ui, full: args.full };
    let (guests, alone): (Vec<_>, Vec<_>) =
        STEPS.iter().filter(wanted).partition(|step| step.machines().is_some());
    thread::scope(|scope| {
        let mut beside = None;
        let cases = || (!guests.is_empty()).then(|| at.timed(&guests, &logs));
        for step in &alone {
            // From here on, what the machines run is built, and the processors would be idle for a third of the time: steps wait
            // for one compiler, for one test, for packages from the network.
            if BESIDE_GUESTS.contains(&step.name) && beside.is_none() {
                beside = Some(scope.spawn(cases));
            }
            total.add(report(&at.timed(&[step], &logs)));
        }
        let ended = match beside {
            Some(cases) => cases.join().expect("a step returns its errors"),
            None => cases(),
        };
        ended.iter().for_each(|ended| total.add(report(ended)));
    });
    for (step, why) in &skipped {
        println!("skipped {step}: {why:#}");
    }
    // Each build has been waited for by its step.
    let _nothing_failed_here = ahead.join();
    if !guests.is_empty() {
        let cases = std::fs::read_to_string(logs.join(format!("{GUESTS}.log"))).unwrap_or_default();
        for (cost, case) in most_expensive(&cases) {
            println!("{:<7} expensive {:>12} {:>9} {cost:>7.1} s of processors  {case}", "", "", "");
        }
    }
    // The tally is a line of its own, the last one: CI reads it.
    let time = Time { seconds: start.elapsed().as_secs_f32(), processors: processor_seconds() };
    println!("{}", line("", "all", None, Some(&time), ""));
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(u8::from(total.failed > 0))
}

/// Steps that have come to an end together, and how.
struct Ended<'a> {
    steps: &'a [&'a Step],
    /// One for each step.
    outcomes: Vec<Counts>,
    time: Time,
    /// Why they could not be performed at all, or empty.
    note: String,
    log: PathBuf,
}

/// Prints what came of steps, with the end of their log if something failed.
fn report(ended: &Ended) -> Counts {
    let Ended { steps, outcomes, time, note, log } = ended;
    let mut total = Counts::default();
    for (step, counts) in steps.iter().zip(outcomes) {
        total.add(*counts);
        let verdict = if counts.failed == 0 { "ok" } else { "FAILED" };
        let time = (steps.len() == 1).then_some(time);
        println!("{}", line(verdict, step.name, Some(counts.passed), time, step.what));
    }
    if steps.len() > 1 {
        println!("{}", line("", "", None, Some(time), "these steps, as one"));
    }
    if total.failed > 0 {
        println!("{note}{}\nThe whole log: {}\n", end_of(log), log.display());
    }
    total
}

/// What something took.
struct Time {
    /// By the clock.
    seconds: f32,
    /// Of all processors, in seconds.
    processors: f32,
}

/// The log of the end-to-end cases, of all machines.
const GUESTS: &str = "guests";

fn log_name(step: &Step) -> &'static str {
    step.machines().map_or(step.name, |_| GUESTS)
}

/// A line of the table that a run prints.
fn line(verdict: &str, name: &str, passed: Option<u64>, time: Option<&Time>, what: &str) -> String {
    let passed = passed.map_or_else(String::new, |passed| format!("{passed} passed"));
    let time = time.map_or_else(String::new, |time| {
        format!("{:>7.1} s {:>7.1} s of processors", time.seconds, time.processors)
    });
    format!("{verdict:<7} {name:<9} {passed:>12} {time:<33}  {what}").trim_end().to_owned()
}

/// What a step builds in a folder of its own, beside what cargo builds elsewhere.
fn builds_alone(step: &str, project: &Project) -> Option<Command> {
    match step {
        "image" => Some(project.build_hypervisor()),
        FUZZ => Some(fuzz::build(project)),
        _ => None,
    }
}

/// Builds while steps before work: the compiler uses one processor for most of the time. What fails here fails again in its step,
/// which waits for cargo's lock, and tells why.
fn build_ahead(builds: Vec<Command>) {
    for mut build in builds {
        let _the_step_sees_it =
            build.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

fn lint(at: &Surroundings, log: &Path) -> Result<Counts> {
    let arguments = ["clippy", "--all-targets", "--", "-D", "warnings"];
    let clippy = at.check(log, at.project.cargo().args(arguments))?;
    if clippy.failed > 0 {
        return Ok(clippy);
    }
    let mut rustdoc = at.project.cargo();
    rustdoc.args(["doc", "--package", "hv", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    let documented = at.check(log, &mut rustdoc)?;
    Ok(Counts { passed: clippy.passed + documented.passed, ..documented })
}

fn unit(at: &Surroundings, log: &Path) -> Result<Counts> {
    let mut tests = at.project.cargo();
    tests.args(["test", "--no-fail-fast"]);
    let cases = if at.full { MORE_CASES } else { &[] };
    for (name, cases) in cases.iter().filter(|(name, _)| std::env::var_os(name).is_none()) {
        tests.env(name, cases);
    }
    let succeeded = at.run(log, &mut tests)?;
    Ok(counted(&std::fs::read_to_string(log)?, succeeded))
}

/// The trainer's own tests, beside the hypervisor's policies.
fn trainer(at: &Surroundings, log: &Path) -> Result<Counts> {
    let needs = Needs { project: at.project, ui: at.ui, yes: false };
    let python = needs.trainer()?;
    let mut command = train::python::command(at.project, &python);
    command.args(["unittest", "discover", "--start-directory", "tests", "--top-level-directory", "."]);
    command.current_dir(at.project.root.join(train::python::TRAINER));
    let succeeded = at.run(log, command.env("POLICY_REPLAY", needs.policy_replay()?))?;
    Ok(counted(&std::fs::read_to_string(log)?, succeeded))
}

/// Miss counts of the simulator beside those of an independent library.
fn replacement(at: &Surroundings, log: &Path) -> Result<Counts> {
    let needs = Needs { project: at.project, ui: at.ui, yes: false };
    let mut command = Command::new(needs.python_of(&replace::ORACLE)?);
    command.args(["-B", "-m", "unittest", "discover", "--start-directory", "tools/pagesim/oracle"]);
    command.current_dir(&at.project.root).env("PAL", std::env::current_exe()?);
    let succeeded = at.run(log, &mut command)?;
    Ok(counted(&std::fs::read_to_string(log)?, succeeded))
}

fn short_fuzz(at: &Surroundings, log: &Path) -> Result<Counts> {
    let failed = fuzz::run_all(at.project, at.ui, FUZZ_SECONDS, &mut File::create(log)?)?;
    Ok(Counts { passed: failed.total - failed.failed, failed: failed.failed })
}

impl Surroundings<'_> {
    /// A step that succeeds or fails as a whole.
    fn check(&self, log: &Path, command: &mut Command) -> Result<Counts> {
        let succeeded = self.run(log, command)?;
        Ok(Counts { passed: u64::from(succeeded), failed: u64::from(!succeeded) })
    }

    /// Performs these steps as one, and says what that took. What other steps start meanwhile and wait for counts, too.
    fn timed<'b>(&self, steps: &'b [&'b Step], logs: &Path) -> Ended<'b> {
        let log = logs.join(format!("{}.log", log_name(steps[0])));
        let (begin, spent) = (Instant::now(), processor_seconds());
        let result = {
            let names: Vec<_> = steps.iter().map(|step| step.name).collect();
            let _step = self.ui.step(&format!("{}: {}", names.join(", "), steps[0].what));
            self.perform(steps, &log)
        };
        let time = Time { seconds: begin.elapsed().as_secs_f32(), processors: processor_seconds() - spent };
        let (outcomes, note) = match result {
            Ok(outcomes) => (outcomes, String::new()),
            Err(error) => (vec![Counts { passed: 0, failed: 1 }], format!("{error:#}\n")),
        };
        Ended { steps, outcomes, time, note, log }
    }

    /// What came of these steps: one, or some with end-to-end cases.
    fn perform(&self, steps: &[&Step], log: &Path) -> Result<Vec<Counts>> {
        if let [Step { work: Work::Run(run), .. }] = steps {
            return Ok(vec![run(self, log)?]);
        }
        let machines: Vec<_> = steps.iter().filter_map(|step| step.machines()).collect();
        // Everything that the cases need is here before they start, so that downloads do not count for the time of any case.
        let needs = Needs { project: self.project, ui: self.ui, yes: false };
        for guest in Guest::TESTED {
            needs.kernel(guest)?;
            needs.busybox(guest)?;
        }
        if machines.concat() != ["native"] {
            needs.hypervisor()?;
        }
        let mut cases = self.project.cargo();
        // Named so, and not by its package: with the features of all packages, whose libraries the unit tests have built.
        cases.args(["run", "--quiet", "--bin", "e2e", "--"]);
        cases.args(machines.concat().iter().flat_map(|machine| ["--machine", machine]));
        cases.args(self.full.then_some("--full"));
        cases.env("PAL", std::env::current_exe()?).env("PALIMPSEST_HV", self.project.hypervisor());
        let succeeded = self.run(log, &mut cases)?;
        let said = std::fs::read_to_string(log)?;
        let mut outcomes: Vec<_> = machines.iter().map(|machines| of_machines(&said, machines)).collect();
        // A runner that dies does not count.
        if !succeeded && outcomes.iter().all(|counts| counts.failed == 0) {
            outcomes[0].failed = 1;
        }
        Ok(outcomes)
    }

    /// Runs a program with its output in the log; true if it succeeded.
    fn run(&self, log: &Path, command: &mut Command) -> Result<bool> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let name = command.get_program().to_string_lossy().into_owned();
        Ok(command.status().with_context(|| format!("cannot start {name}"))?.success())
    }
}

/// Adds up the lines that test harnesses end with: "N passed" and "N failed" in one line. Python's says "Ran N tests in" and then
/// "FAILED (failures=N, errors=N)".
fn counted(log: &str, succeeded: bool) -> Counts {
    let mut counts = Counts::default();
    for line in log.lines().filter(|line| line.starts_with("test result:") || line.starts_with("e2e: ")) {
        let number_before = |word: &str| -> u64 {
            let before = line.split(word).next().unwrap_or_default();
            before.split_whitespace().last().and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        counts.passed += number_before(" passed");
        counts.failed += number_before(" failed");
    }
    let number_after = |text: &str, word: &str| -> u64 {
        let after = text.split(word).nth(1).unwrap_or_default();
        after.split(|c: char| !c.is_ascii_digit()).next().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    for line in log.lines().filter(|line| line.starts_with("Ran ") && line.contains(" test")) {
        counts.passed += number_after(line, "Ran ");
    }
    for line in log.lines().filter(|line| line.starts_with("FAILED (")) {
        let failed = number_after(line, "failures=") + number_after(line, "errors=");
        counts.failed += failed;
        counts.passed = counts.passed.saturating_sub(failed);
    }
    // A harness that dies does not count.
    if !succeeded && counts.failed == 0 {
        counts.failed = 1;
    }
    counts
}

/// How the end-to-end cases of these machines ended: a line each, whose name begins with the machine. What is listed once more at the
/// end has no times.
fn of_machines(log: &str, machines: &[&str]) -> Counts {
    let ended = |verdict: &str| {
        let of = |line: &&str| {
            let name = line.strip_prefix(verdict).map(str::trim_start).and_then(|rest| rest.split_once('/'));
            name.is_some_and(|(machine, _)| machines.contains(&machine)) && line.ends_with(" s)")
        };
        log.lines().filter(of).count() as u64
    };
    Counts { passed: ended("ok "), failed: ended("FAILED ") }
}

/// What this process and the children that it has waited for have used of processors, in seconds: what a step costs, also on a machine
/// that is busy with something else. What is built ahead counts for the step during which that ends.
fn processor_seconds() -> f32 {
    children::all_milliseconds() as f32 / 1000.0
}

/// The end-to-end cases of a log that took the most of processors, and how many seconds.
fn most_expensive(log: &str) -> Vec<(f32, String)> {
    let case = |line: &str| {
        let (name, times) = line.strip_prefix("ok ")?.trim_start().rsplit_once(" (")?;
        let cost = times.split_once("of processors ")?.1.strip_suffix(" s)")?;
        Some((cost.parse().ok()?, name.to_owned()))
    };
    let mut cases: Vec<(f32, String)> = log.lines().filter_map(case).collect();
    cases.sort_by(|a, b| b.0.total_cmp(&a.0));
    cases.truncate(MOST_EXPENSIVE);
    cases
}

/// Says it before anything is built: a compiler or an emulator that meets a full disk gives reasons that mislead.
fn warn_of_a_full_disk(folder: &Path, ui: &Ui) {
    let Ok(disk) = rustix::fs::statvfs(folder) else { return };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < DISK_BYTES {
        ui.warn(&format!(
            "{} has {} MiB left, and a whole run on a clean checkout takes about {} MiB: make room if a step fails",
            folder.display(),
            free >> 20,
            DISK_BYTES >> 20
        ));
    }
}

/// The part of a log that explains a failure, without the tests that passed and the packages that were compiled.
fn end_of(log: &Path) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<_> = text.lines().filter(|line| !expected(line)).collect();
    lines[lines.len().saturating_sub(100)..].join("\n")
}

/// A line of a log that says that something went as it should.
fn expected(line: &str) -> bool {
    const CARGO: [&str; 6] =
        ["Compiling ", "Checking ", "Downloading ", "Downloaded ", "Documenting ", "Blocking "];
    line.starts_with("ok ")
        || line.starts_with("test ") && line.ends_with("... ok")
        || line.starts_with(' ') && CARGO.iter().any(|word| line.trim_start().starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_shown_without_what_went_well() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let compiled = "   Compiling syn v2.0.119\n".repeat(200);
        let text = format!(
            "error: could not compile `hv`\n{compiled}test a ... ok\nok      b\ntest c ... FAILED\n  left: 1\n"
        );
        std::fs::write(log.path(), text).unwrap();
        assert_eq!(end_of(log.path()), "error: could not compile `hv`\ntest c ... FAILED\n  left: 1");
    }

    #[test]
    fn the_most_expensive_cases_are_found() {
        let log = "ok     a (b) (2.0 s, of processors 1.5 s)\n    note (1 s)\n\
                   FAILED c (1.0 s, of processors 9.0 s)\n\
                   ok     d (1.0 s, of processors 10.0 s)\nmost expensive, of 9 s\n";
        let found = most_expensive(log);
        assert_eq!(found, [(10.0, "d".to_owned()), (1.5, "a (b)".to_owned())]);
        // The kernel counts in hundredths.
        assert!((0..1_000_000).any(|_| processor_seconds() > 0.0), "looking takes none");
    }

    #[test]
    fn cases_are_counted_by_machine() {
        let log = "ok     native/a (2.0 s, of processors 1.5 s)\n    a note of native/a (1 s)\n\
                   FAILED bochs-vtx/b, shadow (1.0 s, of processors 9.0 s)\n\
                   ok     bochs-native/c (1.0 s, of processors 10.0 s)\nFAILED bochs-vtx/b, shadow\n\
                   e2e: 2 passed, 1 failed in 3 s\n";
        let of = |machines: &[&str]| of_machines(log, machines);
        assert_eq!(of(&["native"]), Counts { passed: 1, failed: 0 });
        assert_eq!(of(&["bochs-native", "bochs-vtx"]), Counts { passed: 1, failed: 1 });
        assert_eq!(of(&["qemu-svm"]), Counts::default());
    }

    #[test]
    fn a_line_has_what_is_known() {
        let time = Time { seconds: 1.0, processors: 2.0 };
        let whole = line("ok", "unit", Some(5), Some(&time), "tests");
        assert_eq!(whole, "ok      unit          5 passed     1.0 s     2.0 s of processors  tests");
        let at = |line: &str| line.find("tests").unwrap();
        assert_eq!(at(&line("", "", None, None, "tests")), at(&whole));
    }

    #[test]
    fn counts_come_from_the_harnesses() {
        let log = "running 3 tests\ntest a passed ... ok\n\
                   test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n\
                   test result: FAILED. 10 passed; 2 failed; 0 ignored\ne2e: 5 passed, 1 failed in 7 s\n";
        assert_eq!(counted(log, false), Counts { passed: 18, failed: 3 });
        let python = "..F\nRan 30 tests in 9.1s\n\nFAILED (failures=1, errors=2)\n";
        assert_eq!(counted(python, false), Counts { passed: 27, failed: 3 });
        assert_eq!(counted("Ran 1 test in 0.1s\n\nOK\n", true), Counts { passed: 1, failed: 0 });
        assert_eq!(counted("error: does not compile", false), Counts { passed: 0, failed: 1 });
    }
}
