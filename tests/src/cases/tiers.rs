//! Memory in tiers: hot pages of a guest move to fast memory, and the guest does not see it.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::regions::{QUICK_BOOT, reproduced, with_cache};
use super::{Case, SHADOW, boot::read_stats, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "tiers: hot pages move, nested", |c| moves(c, "nested")),
    only("qemu-svm", "tiers: hot pages move, shadow", |c| moves(c, "shadow")),
    only("qemu-svm", "tiers: hot pages move while engines change", engines),
    only("qemu-svm", "tiers: hot pages move, agile", |c| moves(c, AGILE)).at_length(),
    only("qemu-svm", "tiers: hot pages move, by address space", |c| moves(c, BY_SPACE)).at_length(),
    only("qemu-svm", "tiers: hot pages move, in turns", |c| moves(c, IN_TURNS)).at_length(),
    only("qemu-svm", "tiers: an access takes less time in fast memory, by modelled cycles", gains)
        .also(SHADOW),
    only("qemu-svm", "tiers: the latency of memory falls, table 9 of the thesis, its quick form", |c| {
        reproduced(c, "memory-table9", 3, &c.path("memory.json"))
    })
    .at_length(),
    only("qemu-svm", "tiers: pages leave by a policy of page replacement", evicted),
    only("qemu-svm", "tiers: pages leave by each policy, shadow", each_evicts).at_length(),
    only("qemu-svm", "tiers: pages of two guests leave by a policy, with pieces and in turns", two_evict)
        .at_length(),
    only("qemu-svm", "tiers: pieces of 2 MiB move, nested", |c| pieces(c, "nested")),
    only("qemu-svm", "tiers: pieces of 2 MiB move, shadow", |c| pieces(c, "shadow")),
    only("qemu-svm", "tiers: the machine's tables name the fast memory", named),
    only("qemu-svm", "tiers: what is only read is discarded, nested", |c| reads(c, "nested")).at_length(),
    only("qemu-svm", "tiers: what is only read is discarded, shadow", |c| reads(c, "shadow")).at_length(),
    only("qemu-svm", "tiers: of two guests the one in need gets more", |c| needs(c, "estate-qos")),
    only("qemu-svm", "tiers: of two guests the one in need gets more, resources first", |c| {
        needs(c, "estate-resource")
    })
    .at_length(),
    only("qemu-svm", "tiers: two guests share by weights and by working sets", divided).at_length(),
    only("qemu-svm", "tiers: a guest says what it wants", targets),
    only("qemu-svm", "tiers: what cannot be is named", mistakes),
];

/// Modes that change tables while pages move, with times that are short enough for that.
const AGILE: &str = "agile,start_ms=100,timeout_ms=100";
const BY_SPACE: &str = "agile,machine=commodity,start_ms=100,window_ms=10,retry_ms=100";
const IN_TURNS: &str = "switch=50";

/// Runs memlat, which writes all over its memory and finds all of it as it left it; the statistics of the guest's tiers. Its pages are
/// hot after 2.2 seconds where each is accessed in each sample, and later on a busy machine, which accesses fewer.
fn of_memlat(context: &Context, machine: &[&str]) -> Result<Value> {
    let path = context.path("stats.json");
    let put = format!("{}:/memlat", context.memlat.display());
    let program = ["--stats", &path, "--put", &put, "--exec", "/memlat latency 8 4400"];
    context.run(&[machine, &program].concat())?.status(0)?.has(", right")?;
    Ok(read_stats(&path)?["guests"][0]["paging"]["tiers"].clone())
}

/// With `rotate` a pass moves this many pages or more, and none is lost. The first passes find few pages, and a fast machine is done after
/// some.
pub fn rotate(tiers: &Value, least: u64) -> Result<()> {
    let count = |key: &str| tiers[key].as_u64().unwrap_or(0);
    let moved = count("moved_in") + count("moved_out");
    ensure!(moved >= least * count("passes").saturating_sub(3).max(1), "{tiers}");
    ensure!(count("moved_in") == count("moved_out") + count("fast_frames"), "{tiers}");
    Ok(())
}

/// A program that writes all over its memory finds all of it as it left it, while half of that moves. Small leaves, because the pages of a
/// large one are known apart only after two seconds more.
pub fn moves(context: &Context, mode: &str) -> Result<()> {
    let tiers = of_memlat(context, &["--mode", mode, "--nested-page", "4K", "--fast-mem", "4"])?;
    let count = |key: &str| tiers[key].as_u64().unwrap_or(0);
    ensure!(count("moved_in") >= 500 && count("fast_frames") >= 500, "{tiers}");
    // Page tables have a 16th of it, a guest without others half of that, and its pages the rest.
    ensure!(count("fast_tables") == 32 && count("fast_share") == 1024 - 32, "{tiers}");
    ensure!(count("fast_frames") <= count("fast_share"), "{tiers}");
    ensure!(count("moved_in") == count("moved_out") + count("fast_frames"), "{tiers}");
    ensure!(count("discarded") <= count("moved_out"), "{tiers}");
    Ok(())
}

/// A program accesses 2 MiB at random, with a last-level cache of 256 KiB, on a lab machine whose slow memory takes four times as long as
/// the fast one. Its time follows the modelled cycles. The threshold of `histogram` is met within the first second on nested tables; on
/// shadow tables the thesis' is met sooner, after 2.2 seconds.
fn gains(context: &Context) -> Result<()> {
    let (policy, ms) = if context.mode.is_none() { ("histogram", 2000) } else { ("threshold", 3200) };
    let lab = with_cache(context, "westmere-x5660", 12288, 256)?;
    let put = format!("{}:/memlat", context.memlat.display());
    let machine = ["--lab", &lab, "--lab-from", "session", "--lab-time", "--lab-check", "off"];
    let fast = ["--nested-page", "4K", "--fast-mem", "8", "--fast-policy", policy];
    let program = format!("/memlat latency 2 {ms} 8");
    let program = ["--append", QUICK_BOOT, "--put", &put, "--exec", &program];
    let run = context.run(&[&machine[..], &fast, &program].concat())?.status(0)?.has(", right")?;
    let said = run.stdout();
    let cycles = |line: &str| line.rsplit_once(" ms: ")?.1.strip_suffix(" cycles")?.parse::<u64>().ok();
    let curve: Vec<u64> = said.lines().filter_map(cycles).collect();
    ensure!(curve.len() == 8, "{said}");
    // From some 850 cycles to 250 or 310.
    ensure!(2 * curve[7] < curve[0], "{curve:?} cycles of an access");
    Ok(())
}

/// The same in two guests at once, whose engines change meanwhile: one has all three in turn, the other one by address space. Each of the
/// modes alone is a case of its own, at length. Pages are hot within the first second.
fn engines(context: &Context) -> Result<()> {
    let guest = |name: &str, mode: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nmemory_mib = 96\nmode = \"{mode}\"\nnested_page = \"4K\"\n\
             put = [\"{}:/memlat\"]\nexec = \"/memlat latency 2 4000\"\n",
            context.memlat.display()
        )
    };
    let guests = [("by-space", BY_SPACE), ("in-turns", "switch=50,engines=all")];
    let text = format!("version = 1\n{}", guests.map(|(name, mode)| guest(name, mode)).concat());
    let config = context.file("engines.toml", text)?;
    let (stats, logs) = (context.path("stats.json"), context.path("logs"));
    let machine = ["run", "--config", &config, "--fast-mem", "12", "--fast-policy", "histogram"];
    context.pal([&machine[..], &["--stats", &stats, "--log-dir", &logs]].concat(), None)?.status(0)?;
    let stats = read_stats(&stats)?;
    for (name, _) in guests {
        let log = std::fs::read_to_string(format!("{logs}/{name}.log"))?;
        ensure!(log.contains(", right"), "{name}: {log}");
        let guest = stats["guests"].as_array().into_iter().flatten().find(|guest| guest["vm"] == name);
        let paging = &guest.with_context(|| format!("no {name}"))?["paging"];
        let tiers = &paging["tiers"];
        let count = |key: &str| tiers[key].as_u64().unwrap_or(0);
        ensure!(count("moved_in") >= 300, "{name}: {tiers}");
        ensure!(count("moved_in") == count("moved_out") + count("fast_frames"), "{name}: {tiers}");
        let changed = |group: &str, key: &str| paging[group][key].as_u64().unwrap_or(0);
        let changes = match name {
            "by-space" => changed("spaces", "spaces_to_shadow"),
            _ => changed("switches", "to_shadow").min(changed("switches", "to_agile")),
        };
        ensure!(changes >= 3, "{name}: {paging}");
    }
    Ok(())
}

/// A program uses one half of its memory, then the other one, and finds all as it left it. Fast memory has room for little more than a half:
/// pages of the first half leave for those of the second before they are inactive, as CLOCK says.
fn evicted(context: &Context) -> Result<()> {
    in_turns(context, "nested", "clock")
}

/// The same by the other policies, on shadow tables.
fn each_evicts(context: &Context) -> Result<()> {
    ["clock-pro", "seq", "apr", "lru", "s3-fifo", "sieve"]
        .into_iter()
        .try_for_each(|policy| in_turns(context, "shadow", policy))
}

fn in_turns(context: &Context, mode: &str, policy: &str) -> Result<()> {
    let path = context.path("stats.json");
    let put = format!("{}:/memlat", context.memlat.display());
    let machine = ["--mode", mode, "--nested-page", "4K", "--fast-mem", "3", "--fast-evict", policy];
    let program = ["--stats", &path, "--put", &put, "--exec", "/memlat 500 2800000 3"];
    context.run(&[&machine[..], &program].concat())?.status(0)?.has(", right")?;
    let tiers = read_stats(&path)?["guests"][0]["paging"]["tiers"].clone();
    let count = |key: &str| tiers[key].as_u64().unwrap_or(0);
    ensure!(tiers["evict_by"] == policy && count("evictions") >= 200, "{tiers}");
    ensure!(
        count("moved_out") <= count("evictions") && count("fast_frames") <= count("fast_share"),
        "{tiers}"
    );
    ensure!(count("moved_in") == count("moved_out") + count("fast_frames"), "{tiers}");
    ensure!(count("moved_in") >= 700, "{tiers}");
    Ok(())
}

/// The same in two guests at once: one has large leaves, which are split when more looks hot than there is room for; the engines of the other
/// change.
fn two_evict(context: &Context) -> Result<()> {
    let guest = |name: &str, keys: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nmemory_mib = 96\n{keys}\nput = [\"{}:/memlat\"]\nexec = \"/memlat 500 2800000 3\"\n",
            context.memlat.display()
        )
    };
    let guests =
        [("large", "mode = \"nested\""), ("in-turns", "mode = \"switch=200\"\nnested_page = \"4K\"")];
    let text = format!("version = 1\n{}", guests.map(|(name, keys)| guest(name, keys)).concat());
    let config = context.file("evict.toml", text)?;
    let (stats, logs) = (context.path("stats.json"), context.path("logs"));
    let machine =
        ["run", "--config", &config, "--pcpus", "2", "--fast-mem", "6", "--fast-evict", "clock-pro"];
    context.pal([&machine[..], &["--stats", &stats, "--log-dir", &logs]].concat(), None)?.status(0)?;
    let stats = read_stats(&stats)?;
    for (name, _) in guests {
        let log = std::fs::read_to_string(format!("{logs}/{name}.log"))?;
        ensure!(log.contains(", right"), "{name}: {log}");
        let guest = stats["guests"].as_array().into_iter().flatten().find(|guest| guest["vm"] == name);
        let paging = &guest.with_context(|| format!("no {name}"))?["paging"];
        let tiers = &paging["tiers"];
        let count = |key: &str| tiers[key].as_u64().unwrap_or(0);
        ensure!(tiers["evict_by"] == "clock-pro" && count("evictions") >= 100, "{name}: {tiers}");
        ensure!(count("moved_in") == count("moved_out") + count("fast_frames"), "{name}: {tiers}");
    }
    Ok(())
}

/// The same with large leaves and room for all of them: they move as they are, and stay so.
fn pieces(context: &Context, mode: &str) -> Result<()> {
    let tiers = of_memlat(context, &["--mode", mode, "--fast-mem", "96"])?;
    let count = |key: &str| tiers[key].as_u64().unwrap_or(0);
    ensure!(count("pieces_in") >= 2 && count("pieces") >= 2, "{tiers}");
    ensure!(count("moved_in") >= 512 * count("pieces_in"), "{tiers}");
    let longest = count("piece_move_longest");
    ensure!(0 < longest && longest <= count("piece_move_ticks"), "{tiers}");
    ensure!(count("moved_in") == count("moved_out") + count("fast_frames"), "{tiers}");
    ensure!(count("fast_frames") >= 512 * count("pieces"), "{tiers}");
    Ok(())
}

/// A machine with two nodes, of which its HMAT calls the second one faster: that is the fast memory, and pages move there. One whose nodes
/// are alike has none, and says so.
fn named(context: &Context) -> Result<()> {
    let machine = |fast: &str| -> Vec<String> {
        let mut words: Vec<String> =
            ["--host-mem", "768", "--hv-arg", "fast-mem=auto"].map(str::to_owned).into();
        let latency = |node, ns| {
            format!(
                "hmat-lb,initiator=0,target={node},hierarchy=memory,data-type=access-latency,latency={ns}"
            )
        };
        for (option, value) in [
            ("-machine", "hmat=on".to_owned()),
            ("-object", "memory-backend-ram,size=640M,id=slow".to_owned()),
            ("-object", "memory-backend-ram,size=128M,id=fast".to_owned()),
            ("-numa", "node,nodeid=0,memdev=slow,initiator=0".to_owned()),
            ("-numa", "node,nodeid=1,memdev=fast,initiator=0".to_owned()),
            ("-numa", "cpu,node-id=0,socket-id=0".to_owned()),
            ("-numa", latency(0, "300")),
            ("-numa", latency(1, fast)),
        ] {
            words.extend([format!("--qemu-arg={option}"), format!("--qemu-arg={value}")]);
        }
        words
    };
    let of = |fast: &str, more: &[&str]| -> Vec<String> {
        machine(fast).into_iter().chain(more.iter().copied().map(str::to_owned)).collect()
    };
    let words = of("100", &["--nested-page", "4K"]);
    let tiers = of_memlat(context, &words.iter().map(String::as_str).collect::<Vec<_>>())?;
    let count = |key: &str| tiers[key].as_u64().unwrap_or(0);
    // Firmware and the guest's files have a part of the node's 128 MiB.
    ensure!((24_000..=32_768).contains(&count("fast_share")) && count("moved_in") >= 500, "{tiers}");
    let words = of("300", &["--exec", "true"]);
    let run = context.run(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
    run.status(0)?.says("no memory that is faster")?;
    Ok(())
}

/// A file is read again and again, and then another one that takes its room: pages of the first leave without a copy, and both are as
/// they were. In fast memory there is room for one of them beside what else is hot, and time is that of instructions.
fn reads(context: &Context, mode: &str) -> Result<()> {
    let path = context.path("stats.json");
    let script = "up() { read up rest < /proc/uptime; up=${up%%.*}; }
        reads() { up; end=$((up + $2)); while up; [ $up -lt $end ]; do md5sum $1 $1 > /dev/null; done; }
        for f in a b; do dd if=/dev/urandom of=/$f bs=64k count=160 2>/dev/null; done; md5sum /a /b > /sums
        reads /a 4; reads /b 6; md5sum -c /sums";
    let machine = ["--mode", mode, "--nested-page", "4K", "--fast-mem", "14", "--deterministic"];
    let rest = ["--stats", &path, "--exec", script];
    context.run(&[&machine[..], &rest].concat())?.status(0)?.has("/a: OK\n/b: OK\n")?;
    let tiers = read_stats(&path)?["guests"][0]["paging"]["tiers"].clone();
    let count = |key: &str| tiers[key].as_u64().unwrap_or(0);
    // Of the file's 2560 pages nearly all that have left. Shadow tables have large leaves: a piece of 2 MiB may have moved, and was written.
    let written = if mode == "shadow" { 512 + 100 } else { 100 };
    let (discarded, out) = (count("discarded"), count("moved_out"));
    ensure!(discarded >= 1000 && discarded <= out && out - discarded <= written, "{tiers}");
    Ok(())
}

/// Fast memory of the machine with two guests, in frames.
const SHARED: u64 = 16 << 8;

/// Two guests share fast memory: `needy` writes all over 8 MiB for `ms` milliseconds, `idle` executes this. What the
/// statistics say of their tiers. `options`: more of the machine.
fn two(context: &Context, sharing: &str, ms: u64, idle: &str, options: &[&str]) -> Result<[Value; 2]> {
    let vm = |name: &str, weight: u64, exec: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nmemory_mib = 96\nweight = {weight}\nmode = \"{}\"\nnested_page = \"4K\"\n\
             put = [\"{}:/memlat\"]\nexec = \"{exec}\"\n",
            context.mode.unwrap_or("nested"),
            context.memlat.display()
        )
    };
    let needy = format!("/memlat latency 8 {ms}");
    let text = format!("version = 1\n{}{}", vm("idle", 768, idle), vm("needy", 256, &needy));
    let config = context.file("two.toml", text)?;
    let (stats, logs) = (context.path("stats.json"), context.path("logs"));
    let fast = (SHARED >> 8).to_string();
    let machine = ["run", "--config", &config, "--fast-mem", &fast, "--fast-sharing", sharing];
    context
        .pal([&machine[..], options, &["--stats", &stats, "--log-dir", &logs]].concat(), None)?
        .status(0)?;
    let log = std::fs::read_to_string(format!("{logs}/needy.log"))?;
    ensure!(log.contains(", right"), "{log}");
    let stats = read_stats(&stats)?;
    let guests = stats["guests"].as_array().context("no guests")?;
    // In the order in which they have ended.
    let of = |name: &str| {
        let guest = guests.iter().find(|guest| guest["vm"] == name);
        guest.map(|guest| guest["paging"]["tiers"].clone()).with_context(|| format!("no {name}"))
    };
    Ok([of("idle")?, of("needy")?])
}

/// Both begin with an eighth of the fast memory. The one whose hot pages find no room there gets more, step by step; the other keeps an
/// eighth, and uses little of it.
fn needs(context: &Context, sharing: &str) -> Result<()> {
    let [idle, needy] = two(context, sharing, 5500, "sleep 7", &[])?;
    let count = |tiers: &Value, key: &str| tiers[key].as_u64().unwrap_or(u64::MAX);
    let share = |tiers: &Value| count(tiers, "fast_share");
    // Shares are parts of what page tables leave, which is 15 of 16 frames at least; those of a guest that ends are free again.
    let parts = |eighths: u64| SHARED * 15 / 16 * eighths / 8..=SHARED * eighths / 8;
    ensure!(count(&idle, "e_state") == 7 && parts(1).contains(&share(&idle)), "{idle}");
    ensure!(count(&needy, "e_state") <= 5 && share(&needy) >= *parts(3).start(), "{needy}");
    // It has what it was given.
    let fast = count(&needy, "fast_frames");
    ensure!(
        fast > SHARED / 4 && fast <= share(&needy) && count(&idle, "fast_frames") <= SHARED / 8,
        "{needy}"
    );
    Ok(())
}

/// A guest that idles until the one in need has ended, and then runs long enough to hear of that: shares are asked for when a sample is
/// taken, by its own time.
const ENDS_LAST: &str = "sleep 12; /memlat latency 1 500";

/// The one in need ends first. Until then it has a quarter by its weight, and most of it by working sets; then all is the other one's. Time is
/// that of instructions: how fast the machine is that runs this decides nothing.
fn divided(context: &Context) -> Result<()> {
    let count = |tiers: &Value, key: &str| tiers[key].as_u64().unwrap_or(0);
    let share = |tiers: &Value| count(tiers, "fast_share");
    let [idle, needy] = two(context, "shares", 5500, ENDS_LAST, &["--deterministic"])?;
    // What page tables leave; at its end the idle one has all of it.
    let left = |tiers: &Value| SHARED - count(tiers, "fast_tables");
    ensure!([share(&idle), share(&needy)] == [left(&idle), left(&needy) / 4], "{idle} {needy}");
    ensure!(left(&needy) < left(&idle) && left(&idle) < SHARED, "{idle} {needy}");
    ensure!(count(&needy, "fast_frames") > SHARED / 5 && count(&needy, "hot_waiting") > 0, "{needy}");
    let [idle, needy] = two(context, "wss", 5500, ENDS_LAST, &["--deterministic"])?;
    ensure!(share(&idle) == left(&idle), "{idle}");
    ensure!(share(&needy) > SHARED / 2 && share(&needy) < left(&needy), "{idle} {needy}");
    ensure!(count(&needy, "fast_frames") > SHARED / 3, "{needy}");
    Ok(())
}

/// A guest says what part of its hot pages it wants in fast memory, by a script and by the library's own tests, and takes it back when the
/// module goes; samples and statistics have it.
fn targets(context: &Context) -> Result<()> {
    let (path, samples) = (context.path("stats.json"), context.path("samples.jsonl"));
    let put = format!("{}:/test", context.sdk.c_tests.display());
    let script = "k=/sys/kernel/palimpsest; cat $k/fast_target; echo 990 > $k/fast_target; cat $k/fast_target; sleep 0.3
        echo 1001 2>/dev/null > $k/fast_target || echo refused; /test 3 50; rmmod palimpsest; insmod /pal/modules/*palimpsest.ko; cat $k/fast_target";
    let machine = [
        "--kit",
        "--fast-mem",
        "4",
        "--fast-sharing",
        "estate-qos",
        "--stats",
        &path,
        "--samples",
        &samples,
        "--put",
        &put,
        "--exec",
        script,
    ];
    let run = context.run(&machine)?.status(0)?;
    let said = run.stdout();
    let lines: Vec<&str> = said.lines().collect();
    ensure!(lines == ["0", "990", "refused", "ok", "0"], "{said}");
    let tiers = read_stats(&path)?["guests"][0]["paging"]["tiers"].clone();
    ensure!(tiers["target_per_mille"] == 0 && tiers["target_calls"].as_u64() >= Some(4), "{tiers}");
    let samples = std::fs::read_to_string(&samples)?;
    let lines = samples.lines().filter(|line| line.contains("\"t\":\"tiers\""));
    let lines: Vec<Value> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines.iter().any(|line| line["target"] == 990), "no line of samples has the target");
    for line in &lines {
        // Each frame of the fast memory is free, a page's or a table's.
        let of = |key: &str| line[key].as_u64().with_context(|| format!("no {key}: {line}"));
        ensure!(of("total")? == of("free")? + of("fast")? + of("tables")? && of("tables")? > 0, "{line}");
    }
    Ok(())
}

/// Ranges that overlap or are no memory end the machine before a guest starts; so does a guest that asks for more than there is.
fn mistakes(context: &Context) -> Result<()> {
    let refused = |arguments: &[&str], why: &str| {
        let more = ["--exec", "true"];
        context.run(&[arguments, &more].concat())?.status(2)?.says(why)?;
        anyhow::Ok(())
    };
    refused(&["--fast-mem", "64@100000"], "memory")?;
    refused(&["--fast-mem", "16", "--hv-arg", "fast-mem=8@40"], "overlap")?;
    refused(&["--fast-mem", "16", "--overcommit"], "--overcommit")?;
    let native = ["run", "--machine", "native", "--fast-mem", "16", "--exec", "true"];
    context.pal(native, None)?.status(2)?.says("bochs-vtx")?;
    refused(&["--fast-evict", "clock"], "no fast memory")?;
    described(context)
}

/// A lab machine's description says what memory is slow: the rest is fast for the hypervisor as well, and `--fast-mem` cannot say otherwise.
fn described(context: &Context) -> Result<()> {
    let text = context.pal(["lab", "show", "--toml", "westmere-x5660"], None)?.status(0)?.stdout();
    let slow =
        "\n[[memory.range]]\nfrom_mib = 0\nto_mib = 100\n[[memory.range]]\nfrom_mib = 164\nto_mib = 100000\n";
    let (lab, stats) = (context.file("slow.toml", text + slow)?, context.path("stats.json"));
    let machine = ["--lab", &lab, "--lab-model", "count"];
    context
        .kit("print=hello", &[&machine[..], &["--stats", &stats]].concat())?
        .status(0)?
        .has("kit: hello")?;
    let tiers = &read_stats(&stats)?["guests"][0]["paging"]["tiers"];
    // Some of the 64 MiB may be in use when the machine starts.
    ensure!(tiers["fast_share"].as_u64().is_some_and(|frames| (8192..=16_384).contains(&frames)), "{tiers}");
    let run = context.kit("print=hello", &[&machine[..], &["--fast-mem", "32@90"]].concat())?;
    run.status(2)?.says("memory of the slow tier at 32@90 MiB").map(drop)
}
