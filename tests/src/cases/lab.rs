//! The lab machine: its translations against QEMU's own, and its descriptions.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Case, only, stress};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "lab machine: descriptions", descriptions),
    only("qemu-svm", "lab machine: equal, switch=50, two processors", processes),
    only("qemu-svm", "lab machine: equal, switch=50, two processors, at length", |c| {
        equal(c, &stress::AMD64, "all", "1", &[TWO, TRANSLATIONS, FROM_SESSION].concat(), 50_000_000)
    })
    .at_length(),
    only("qemu-svm", "lab machine: a broken model is found", broken),
    only("qemu-svm", "lab machine: equal, PAE tables, nested", |c| {
        equal(c, &stress::PAE, "miss", "1", &[TRANSLATIONS, FROM_SESSION].concat(), 10_000)
    })
    .at_length(),
    // The same in each run, so that what it finds can be found again.
    only("qemu-svm", "lab machine: equal, agile paging", |c| agile(c, &["--deterministic"])),
    only("qemu-svm", "lab machine: equal, agile paging, interrupts at other times", |c| agile(c, &[]))
        .at_length(),
    only("qemu-svm", "lab machine: counters, switch=50", |c| counters(c, FROM_SESSION)),
    only("qemu-svm", "lab machine: packages of two caches, and more than 16 processors", many),
    only("qemu-svm", "lab machine: counters from the machine's start on", |c| counters(c, &[])).at_length(),
    only("native", "lab machine: equal, without hypervisor", native),
    only("qemu-svm", "lab machine: two deterministic runs are equal", deterministic),
    only("qemu-svm", "lab machine: equal, 4-level tables, nested", |c| {
        equal(c, &stress::AMD64, "all", "2", &["--mode", "nested"], 300_000_000)
    })
    .at_length(),
    only("qemu-svm", "lab machine: equal, 4-level tables, shadow", |c| {
        equal(c, &stress::AMD64, "all", "2", &["--mode", "shadow"], 300_000_000)
    })
    .at_length(),
    only("qemu-svm", "lab machine: equal, 2-level tables, switch=50", |c| {
        equal(c, &stress::I686, "all", "2", &["--mode", "switch=50"], 500_000_000)
    })
    .at_length(),
    only("qemu-svm", "lab machine: equal, PAE tables, shadow", |c| {
        equal(c, &stress::PAE, "all", "2", &["--mode", "shadow"], 500_000_000)
    })
    .at_length(),
];

/// Agile paging in which tables move often.
const AGILE: &[&str] = &["--mode", "agile,window_ms=20,timeout_ms=20,start_ms=20", "--nested-page", "4K"];

/// Without the caches, which have no part in what a translation is: whether a case compares all that it would with
/// them, its least number tells. The comparisons of `--full`, and the one without the hypervisor, have them.
const TRANSLATIONS: &[&str] = &["--lab-model", "tlb"];

/// Without a model of the guest's boot, which is most of a short run: where a case is not about that.
pub const FROM_SESSION: &[&str] = &["--lab-from", "session"];

/// Two processors of a guest, on tables that change.
const TWO: &[&str] = &["--mode", "switch=50", "--pcpus", "2", "--vcpus", "2"];

/// Processes that come and go on both processors. The threads of a lab machine wait for each other, which on a busy machine costs
/// more than what they do: so it is less than the stress program.
fn processes(context: &Context) -> Result<()> {
    let report = context.path("report.json");
    let lab = ["--lab", "westmere-x5660", "--lab-check", "all", "--lab-report", &report];
    let work = "for n in 1 2; do seq 1000 | md5sum & (x=1); seq 1000 | md5sum; wait; done | sort -u";
    let run = context.run(&[&lab[..], TWO, TRANSLATIONS, FROM_SESSION, &["--exec", work]].concat())?;
    run.status(0)?.prints("53d025127ae99ab79e8502aae2d9bea6  -\n")?;
    compared(&report, 5_000_000).map(drop)
}

/// That many rounds of the stress program in this guest, with at least `least` translations compared, and all of
/// them equal.
fn equal(
    context: &Context,
    guest: &stress::Guest,
    check: &str,
    rounds: &str,
    options: &[&str],
    least: u64,
) -> Result<()> {
    let report = context.path("report.json");
    let lab = ["--lab", "westmere-x5660", "--lab-check", check, "--lab-report", &report];
    stress::stress(context, guest, &["1", rounds], &[&lab, options].concat())?;
    compared(&report, least).map(drop)
}

/// The same with agile paging: the walks that were compared left the shadow tables at their end, at each level, and at the root.
fn agile(context: &Context, options: &[&str]) -> Result<()> {
    equal(context, &stress::AMD64, "miss", "1", &[AGILE, TRANSLATIONS, options].concat(), 100_000)?;
    let report: Value = serde_json::from_str(&std::fs::read_to_string(context.path("report.json"))?)?;
    let agile = &report["pcpus"][0]["agile"];
    let walks: Vec<u64> = agile["walks"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    // 4, 8, 12, 16, 20 and 24 references: a root becomes nested by its first time alone, which counts as 24.
    ensure!(walks.len() == 6 && walks[..3].iter().chain(&walks[5..]).all(|walks| *walks > 100), "{agile}");
    // A stand-in that is older than the guest's table, for which the guest owes a flush, says nothing of the walk.
    ensure!(agile["checks_stale"].as_u64().is_some_and(|stale| stale < 1000), "{agile}");
    Ok(())
}

/// A model that does not see INVLPG differs, also where several processors race: a child that writes to a page which it shares
/// with its parent gets another frame there.
fn broken(context: &Context) -> Result<()> {
    let lab = ["--lab", "westmere-x5660", "--lab-check", "all", "--lab-broken", "invlpg"];
    let several = ["--pcpus", "2", "--vcpus", "2", "--mode", "nested", "--exec", "(x=1); (x=2); (x=3)"];
    let run = context.run(&[&lab[..], TRANSLATIONS, FROM_SESSION, &several].concat())?.status(1)?;
    run.says("translations differ from QEMU's: ")?.says("the model has frame")?;
    Ok(())
}

/// The sum of a counter over the report's processors and sides.
fn sum(report: &Value, counter: &str) -> u64 {
    let pcpus = report["pcpus"].as_array().into_iter().flatten();
    let sides =
        pcpus.flat_map(|pcpu| ["host", "guest_nested", "guest_shadow"].map(|side| &pcpu[side][counter]));
    sides.filter_map(Value::as_u64).sum()
}

fn compared(path: &str, least: u64) -> Result<Value> {
    let text = std::fs::read_to_string(path).context("there is no report")?;
    let report: Value = serde_json::from_str(&text)?;
    let [equal, differ, faults] =
        ["checks_equal", "checks_differ", "walk_faults"].map(|name| sum(&report, name));
    let alone = report["pcpus"].as_array().is_some_and(|pcpus| pcpus.len() == 1);
    ensure!(equal >= least && differ == 0, "{equal} translations are equal, {differ} differ");
    // On one processor there are no races. On several a processor that the host stops in the middle of a change
    // may keep others with what was for as long.
    let raced = sum(&report, "checks_raced");
    ensure!(raced <= if alone { 0 } else { equal / 100 }, "{raced} translations differ by a race");
    // What is accessed is mapped, unless another processor has just taken it away.
    ensure!(faults <= if alone { 1000 } else { equal / 100 }, "{faults} walks found nothing");
    // Code was compared, too. QEMU tells a plugin only where the first byte of an instruction is: of the second page of one
    // that crosses pages it says nothing. Where the linker puts such an instruction into the path of an exit, that is one in
    // a hundred of a comparison at misses. Without any answer for code it would be a third.
    let unanswered = sum(&report, "checks_unanswered");
    let few = unanswered < equal / 20;
    ensure!(few, "of {unanswered} translations QEMU does not say where they lead, {equal} are equal");
    Ok(report)
}

/// Without the hypervisor everything is the host's, and no walk has two dimensions.
fn native(context: &Context) -> Result<()> {
    let report = context.path("report.json");
    let lab = ["--lab", "zen3", "--lab-check", "miss", "--lab-report", &report];
    context.run(&[&lab[..], &["--exec", "echo it runs"]].concat())?.status(0)?.prints("it runs\n")?;
    let report = compared(&report, 5_000)?;
    ensure!(report["machine"] == "zen3" && report["pcpus"][0]["guest_nested"]["instructions"] == 0);
    let host = &report["pcpus"][0]["host"];
    ensure!(
        host["vmruns"] == 0
            && host["walk_refs"].as_u64() > Some(5_000)
            && host["l2_misses"].as_u64() > Some(0)
    );
    Ok(())
}

/// What the hypervisor reads while it runs is what the model says at the end. With a model from the session on it has all
/// instructions, and of the rest what came after the period of samples in which that began. Nested pages are as small as was asked
/// for. Without a lab machine QEMU's processor pretends to have counters: they do not advance, and are absent.
fn counters(context: &Context, from: &[&str]) -> Result<()> {
    let (report, stats) = (context.path("report.json"), context.path("stats.json"));
    let lab = ["--lab", "zen3", "--lab-report", &report, "--mode", "switch=50", "--nested-page", "4K"];
    let lab = [&lab[..], from].concat();
    let samples = context.path("samples.jsonl");
    let files = ["--stats", &stats, "--samples", &samples, "--exec", "true"];
    context.run(&[&lab[..], &files].concat())?.status(0)?;
    super::report::check_lab(context, &samples)?;
    let read = |path: &str| -> Result<Value> { Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?) };
    let (model, read_by_it) = (read(&report)?, read(&stats)?["guests"][0]["counters"].clone());
    let of = |sides: &[&str], names: &[&str]| -> u64 {
        let values = sides.iter().flat_map(|side| names.iter().map(move |name| (side, name)));
        values.filter_map(|(side, name)| model["pcpus"][0][side][name].as_u64()).sum()
    };
    let guest = ["guest_nested", "guest_shadow"];
    let [small, large] = ["walks_4k_4k", "walks_4k_2m"].map(|walks| of(&["guest_nested"], &[walks]));
    ensure!(small > 0 && large == 0, "nested pages of 4 KiB: {small} walks, of 2 MiB: {large}");
    for (key, names) in [
        ("instructions", &["instructions"][..]),
        ("cycles", &["cycles"]),
        ("walks", &["dtlb_misses", "itlb_misses"]),
        ("walk_refs", &["walk_refs"]),
        ("llc_misses", &["llc_misses"]),
        ("memory_local", &["memory_local"]),
    ] {
        let (ours, theirs) = (read_by_it["guest"][key].as_u64(), of(&guest, names));
        // A walk that found nothing has missed, but has not come to an end.
        let slack = if key == "walks" { of(&guest, &["walk_faults"]) } else { 0 };
        let slack = if from.is_empty() || key == "instructions" { slack } else { theirs };
        let close = ours.is_some_and(|ours| ours > 0 && ours <= theirs && theirs - ours <= slack);
        ensure!(close, "guest {key}: the hypervisor read {ours:?}, the model has {theirs}");
    }
    let (ours, theirs) = (read_by_it["host"]["instructions"].as_u64(), of(&["host"], &["instructions"]));
    // The hypervisor's own start is of no VM.
    ensure!(ours > Some(0) && ours < Some(theirs), "host: {ours:?} of {theirs}");
    let plain = ["--hv-arg", "counters=on", "--stats", &stats, "--exec", "true"];
    context.run(&plain)?.status(0)?.says("do not advance")?;
    let absent = &read(&stats)?["guests"][0]["counters"];
    ensure!(absent.is_null(), "counters that do not advance are reported: {absent}");
    Ok(())
}

/// The hypervisor finds the last-level caches that the model has: two in each of four packages. The counters of all processors are right:
/// QEMU moves them in its memory when the seventeenth comes.
fn many(context: &Context) -> Result<()> {
    let (report, stats) = (context.path("report.json"), context.path("stats.json"));
    let lab = ["--lab", "clovertown-x5365", "--lab-report", &report, "--pcpus", "16,sockets=4"];
    context.kit("print=hello", &[&lab[..], &["--stats", &stats]].concat())?.status(0)?.has("hello")?;
    let read = |path: &str| -> Result<Value> { Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?) };
    let (report, stats) = (read(&report)?, read(&stats)?);
    let places = stats["host"]["topology"].as_array().context("no topology")?;
    let numbers = |key: &str| -> Vec<u64> { places.iter().filter_map(|place| place[key].as_u64()).collect() };
    let (packages, caches) = (numbers("package"), numbers("llc"));
    let are_apart = |all: &[u64], each: usize| {
        all.len() == 16 && (1..16).all(|n| (all[n] == all[n - 1]) == (n % each != 0))
    };
    ensure!(are_apart(&packages, 4) && are_apart(&caches, 2), "{packages:?}, {caches:?}");
    let domains = report["domains"].as_array().map_or(0, Vec::len);
    ensure!(domains == 8, "the model has {domains} last caches");
    let count = |pcpu: &Value| pcpu["host"]["instructions"].as_u64().unwrap_or(0);
    let counts: Vec<u64> = report["pcpus"].as_array().into_iter().flatten().map(count).collect();
    ensure!(counts.len() == 17 && counts.iter().all(|count| (1000..1 << 36).contains(count)), "{counts:?}");
    Ok(())
}

/// Two runs with one seed leave the same report and statistics, byte for byte, and say the same; the guest's own random
/// numbers are of that seed, too, and another seed has others. Also on a busy machine, where the emulator ends later.
fn deterministic(context: &Context) -> Result<()> {
    let command = "date -u; od -An -N8 -tx8 /dev/urandom; cat /proc/uptime";
    let run = |name: &str, seed: &str| -> Result<[Vec<u8>; 3]> {
        let [report, stats] = ["report", "stats"].map(|file| context.path(&format!("{name}.{file}")));
        let files = ["--lab-report", &report, "--stats", &stats, "--exec", command];
        let options = ["--lab", "zen3", "--mode", "switch=50", seed];
        let said =
            context.run(&[&options[..], TRANSLATIONS, FROM_SESSION, &files].concat())?.status(0)?.stdout();
        Ok([std::fs::read(&report)?, std::fs::read(&stats)?, said.into()])
    };
    let (one, again) = (run("one", "--deterministic")?, run("again", "--deterministic=1")?);
    for (which, (one, again)) in ["reports", "statistics", "outputs"].iter().zip(one.iter().zip(&again)) {
        ensure!(one == again, "two {which} of one seed differ");
    }
    // What depends on the seed needs no model of a processor.
    let other = context.run(&["--deterministic=2", "--exec", command])?.status(0)?.stdout();
    let numbers = |said: &str| said.lines().nth(1).map(str::to_owned);
    let one = String::from_utf8_lossy(&one[2]);
    ensure!(numbers(&other).is_some() && numbers(&other) != numbers(&one), "another seed changes nothing");
    Ok(())
}

fn descriptions(context: &Context) -> Result<()> {
    context.pal(["lab", "list"], None)?.status(0)?.has("westmere-x5660")?.has("zen3")?;
    context.pal(["lab", "show", "zen3"], None)?.status(0)?.has("reach 8 MiB")?.has("[assumed")?;
    let text = context.pal(["lab", "show", "--toml", "zen3"], None)?.status(0)?.stdout();
    let good = context.file("good.toml", &text)?;
    context.pal(["lab", "check", &good], None)?.status(0)?.has("zen3")?;
    let bad = context.file("bad.toml", text.replacen("ways = 16", "ways = 17", 1))?;
    let line = text.lines().take_while(|line| !line.contains("ways = 16")).count();
    let error = context.pal(["lab", "check", &bad], None)?.status(2)?.says("17 ways do not divide")?;
    let named = error.stderr.split("bad.toml:").nth(1).and_then(|rest| rest.split(':').next()?.parse().ok());
    let named: usize = named.context("no line is named")?;
    ensure!((line - 6..=line + 1).contains(&named), "line {named} is named; the mistake is near {line}");
    for words in [&["--lab", "zen33"][..], &["--lab", &bad], &["--lab-check", "all"]] {
        context.run(&[words, &["--exec", "true"]].concat())?.status(2)?;
    }
    // Nothing would say that a session begins.
    let none = ["--lab", "zen3", "--lab-from", "session", "--kernel", &context.kit.display().to_string()];
    context.run(&none)?.status(2)?.says("--lab-from session: no guest here")?;
    let bochs = ["run", "--machine", "bochs-vtx", "--lab", "zen3", "--exec", "true"];
    context.pal(bochs, None)?.status(2)?.says("--lab")?;
    Ok(())
}
