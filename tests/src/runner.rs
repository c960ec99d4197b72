//! Runs the cases, each in a process of its own, some at a time, and says what they cost.
//!
//! A process of its own has its own account: the processor time of a case is what the kernel has counted for it and for everything
//! that it has started and waited for. A case that panics takes no other one along. No case runs a second time.

use std::{
    collections::VecDeque,
    env, fs,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, kill_process};

use crate::{Context, Kits, Run, cases::person::children};

/// How many of the most expensive cases are listed at the end.
const MOST_EXPENSIVE: usize = 10;
/// For this long processors are watched before another case begins beside others.
const SETTLE: Duration = Duration::from_millis(150);
/// What a case's process prints last.
const COST: &str = "cost ";

/// Cases at a time, at most. A guest waits for about a third of its run: for its own clock, for time limits, for what is typed.
pub fn jobs() -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    processors + processors.div_ceil(2)
}

/// What each case's process is told.
pub struct Places<'a> {
    /// The pal program.
    pub pal: &'a Path,
    /// Where the kits have been built.
    pub kits: &'a Path,
}

/// What came of a case.
struct Report {
    name: String,
    /// By processors, also those of children.
    cost: Duration,
    passed: bool,
}

/// Runs a case in this process, and prints why it failed and what it cost. True if it passed.
pub fn perform(run: &Run, pal: &Path, kits: &Kits) -> bool {
    // The runner may be killed; and where pal is, its emulator becomes a child of this process, which accounts for it.
    let _it_runs_on = rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .and_then(|()| rustix::process::set_child_subreaper(Some(rustix::process::getpid())));
    let result =
        Context::new(pal, kits, run.machine, run.mode).and_then(|context| (run.case.check)(&context));
    reap();
    if let Err(error) = &result {
        println!("{error:#}");
    }
    println!("{COST}{}", processor_time().map_or(0, |time| time.as_millis()));
    result.is_ok()
}

/// Waits for what the case has left behind: emulators that have just been killed. A case that has failed may have left a `pal` that
/// runs on, with this process's output as its own, for whose end the runner would wait: it is killed.
fn reap() {
    for attempt in 0..200 {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => continue,
            Ok(None) if attempt == 100 => {
                for pid in children(std::process::id()) {
                    let pid = Pid::from_raw(pid.cast_signed()).expect("a process has an id");
                    let _it_may_have_ended = kill_process(pid, Signal::KILL);
                }
            }
            Ok(None) => {}
            Err(_there_is_none) => return,
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The next of the cases, when a processor has time for it, or nothing else runs. More processes than processors take longer
/// together than one after the other: the processors of an emulated machine wait for each other in loops.
fn next(queue: &Mutex<VecDeque<String>>, running: &AtomicUsize) -> Option<String> {
    // One case at a time begins, so that the next one sees what it uses.
    let mut queue = queue.lock().expect("no thread panics with the lock");
    while !queue.is_empty() && running.load(Relaxed) > 0 && !has_idle_processor(SETTLE) {}
    let name = queue.pop_front()?;
    running.fetch_add(1, Relaxed);
    Some(name)
}

/// Whether all processors together were idle for more than half of this time, which passes meanwhile. True where that is not known.
fn has_idle_processor(time: Duration) -> bool {
    let before = idle_time();
    thread::sleep(time);
    let idle = before.zip(idle_time()).map(|(before, after)| after.saturating_sub(before));
    idle.is_none_or(|idle| idle > time / 2)
}

/// For how long processors have been idle, all together, in proc_stat(5).
fn idle_time() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    // User, nice, system, idle, waiting for a device.
    let of_all = stat.lines().next()?.split_whitespace().skip(4).take(2);
    let ticks: u64 = of_all.map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Runs the cases of these names in their order, up to `jobs` at a time; how many failed.
pub fn run_all(names: VecDeque<String>, places: &Places, jobs: usize) -> Result<usize> {
    let start = Instant::now();
    let queue = Mutex::new(names);
    let running = AtomicUsize::new(0);
    let reports = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        while let Some(name) = next(&queue, &running) {
            let report = run_one(name, places);
            running.fetch_sub(1, Relaxed);
            reports.lock().expect("no thread panics with the lock").push(report?);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    let mut reports = reports.into_inner().expect("the threads have ended");
    let failed = reports.iter().filter(|report| !report.passed);
    failed.clone().for_each(|report| println!("FAILED {}", report.name));
    let failed = failed.count();
    reports.sort_by_key(|report| std::cmp::Reverse(report.cost));
    let cost: Duration = reports.iter().map(|report| report.cost).sum();
    println!("most expensive, of {:.0} s of processor time:", cost.as_secs_f32());
    for report in reports.iter().take(MOST_EXPENSIVE) {
        println!("{:>9.1} s {}", report.cost.as_secs_f32(), report.name);
    }
    let seconds = start.elapsed().as_secs();
    println!("e2e: {} passed, {failed} failed in {seconds} s", reports.len() - failed);
    Ok(failed)
}

/// Runs a case in a process of its own, and prints what came of it.
fn run_one(name: String, places: &Places) -> Result<Report> {
    let start = Instant::now();
    let mut case = Command::new(env::current_exe()?);
    case.args(["--only", &name, "--kits"]).arg(places.kits).arg("--pal").arg(places.pal);
    let output = case.stdin(Stdio::null()).output().context("cannot start a case")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let cost = said.lines().find_map(|line| line.strip_prefix(COST)?.parse().ok()).map(Duration::from_millis);
    let passed = output.status.success() && cost.is_some();
    let rest: String =
        said.lines().filter(|line| !line.starts_with(COST)).fold(String::new(), |all, line| {
            // Not indented where the case has passed: then it is a part of the report, and no detail of a failure.
            all + if passed { "" } else { "    " } + line + "\n"
        });
    let (verdict, cost) = (if passed { "ok    " } else { "FAILED" }, cost.unwrap_or_default());
    let times = format!("{:.1} s, of processors {:.1} s", start.elapsed().as_secs_f32(), cost.as_secs_f32());
    // In one piece: another case may end at the same time.
    print!("{verdict} {name} ({times})\n{rest}");
    Ok(Report { name, cost, passed })
}

/// What this process and those children that it has waited for have used of processors.
fn processor_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").context("no end of the name")?;
    // User and system time, then the children's, in proc_pid_stat(5).
    let ticks: Vec<u64> = fields.split(' ').skip(11).take(4).map(str::parse).collect::<Result<_, _>>()?;
    let [_, _, _, _] = ticks[..] else { bail!("too few fields") };
    Ok(Duration::from_millis(ticks.iter().sum::<u64>() * 1000 / rustix::param::clock_ticks_per_second()))
}
