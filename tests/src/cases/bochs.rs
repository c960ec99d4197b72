//! Intel VT-x, on Bochs: the torture of page tables and the long-mode kit in each mode, Linux, and processors with fewer
//! features. Bochs is slow, so that cases are few; those that take longest come first, because runs go side by side.

use anyhow::{Result, ensure};

use super::long_mode::{exits, write_back};
use super::stress::{AMD64, stress};
use super::{Case, boot::read_stats, only, tiers::moves, virtio};
use crate::context::{BOCHS_TIMEOUT, Context};
use crate::pty::Person;

pub const CASES: &[Case] = &[
    only("bochs-vtx", "Linux, shadow", |c| linux(c, "shadow")).at_length(),
    only("bochs-vtx", "Linux, switch=200", |c| linux(c, "switch=200")).at_length(),
    only("bochs-vtx", "Linux, agile paging", |c| linux(c, AGILE)).at_length(),
    only("bochs-vtx", "Linux, agile paging, machine=commodity", |c| linux(c, COMMODITY)).at_length(),
    only("bochs-vtx", "Linux with PAE tables, nested", pae).at_length(),
    only("bochs-vtx", "Linux with a disk and network cards", devices).at_length(),
    only("bochs-vtx", "stress on two processors", |c| {
        stress(c, &AMD64, &["1", "1", "2"], &["--vcpus", "2", "--pcpus", "2"])
    })
    .at_length(),
    only("bochs-vtx", "hot pages move to fast memory, nested", |c| moves(c, "nested")).at_length(),
    only("bochs-vtx", "hot pages move to fast memory during the torture, shadow", torture_moves).at_length(),
    only("bochs-vtx", "hot pages move to fast memory, shadow", |c| moves(c, "shadow")).at_length(),
    only("bochs-vtx", "pages of an overcommitted guest leave and come back, shadow", pages_leave).at_length(),
    only("bochs-vtx", "a hostile guest", hostile).at_length(),
    only("bochs-vtx", "benchmark: CPUID", benchmark).at_length(),
    only("bochs-vtx", "a person sees that Bochs is at work", at_work).at_length(),
    only("bochs-vtx", "Linux, nested", |c| linux(c, "nested")),
    // The whole torture runs on QEMU. Here is what VT-x does otherwise: a part of the random scripts finds it, and all of them with
    // `--full`. Nested paging leaves the guest's tables to the processor, so that there is less to find. The RTC's seconds are seconds of
    // Bochs' time, too, and the device is the same as on QEMU.
    only("bochs-vtx", "the long-mode kit with the torture, shadow", |c| {
        kit(c, "shadow all thin=48 -timers.rtc", &["--mode", "shadow"])
    }),
    only("bochs-vtx", "torture: page tables, switch=7", |c| {
        kit(c, "torture exits thin=32", &["--mode", "switch=7"])
    }),
    only("bochs-vtx", "torture: page tables, agile paging", |c| {
        kit(c, "torture exits thin=64", &["--mode", AGILE])
    }),
    only("bochs-vtx", "torture: page tables, agile paging, machine=commodity", |c| {
        kit(c, "torture exits thin=32", &["--mode", COMMODITY])
    })
    .at_length(),
    only("bochs-vtx", "the long-mode kit with the torture, nested", |c| {
        kit(c, "all thin=48 -timers.rtc", &["--mode", "nested"])
    }),
    only("bochs-vtx", "the real-time clock", |c| kit(c, "timers.rtc", &["--mode", "nested"])).at_length(),
    only("bochs-vtx", "the whole torture, shadow", |c| kit(c, "shadow torture", &["--mode", "shadow"]))
        .at_length(),
    only("bochs-vtx", "the whole torture, switch=7", |c| kit(c, "torture exits", &["--mode", "switch=7"]))
        .at_length(),
    only("bochs-vtx", "the whole torture, nested", |c| kit(c, "torture", &["--mode", "nested"])).at_length(),
    only("bochs-vtx", "two processors of a guest on two, shadow", |c| {
        kit(c, "shadow shared", &["--mode", "shadow", "--vcpus", "2", "--pcpus", "2"])
    }),
    only("bochs-vtx", "two processors of a guest on two, nested", |c| {
        kit(c, "smp shared", &["--vcpus", "2", "--pcpus", "2"])
    })
    .at_length(),
    only("bochs-vtx", "two processors of a guest on two, shadow, at length", |c| {
        kit(c, "shadow smp", &["--mode", "shadow", "--vcpus", "2", "--pcpus", "2"])
    })
    .at_length(),
    only("bochs-vtx", "without accessed bits of EPT", |c| {
        model(c, "corei7_sandy_bridge_2600k", "nested", "torture")
    }),
    only("bochs-vtx", "without unrestricted guests", |c| {
        model(c, "corei5_lynnfield_750", "nested", "torture")
    }),
    only("bochs-vtx", "without EPT", |c| model(c, "core2_penryn_t9600", "shadow", "torture")),
    only("bochs-vtx", "without VT-x", no_vtx),
    // Of the emulator and the kit alone.
    only("bochs-native", "torture: page tables", |c| kit(c, "torture", &[])).at_length(),
    only("bochs-vtx", "a guest's own page faults, shadow", own_page_faults),
    only("bochs-vtx", "no guest writes back the host's caches", write_back),
    only("bochs-vtx", "real mode", real_mode),
    only("bochs-vtx", "torture: CR3 outside of memory", dies),
    only("bochs-vtx", "options that cannot work", options),
];

/// Agile paging in which tables move often.
const AGILE: &str = "agile,window_ms=20,timeout_ms=20,start_ms=5";
/// The same of whole address spaces.
const COMMODITY: &str = "agile,machine=commodity,start_ms=2,window_ms=1,cost_milli=1,retry_ms=3";

/// Linux boots, sees the machine that it should, and gets what is typed.
fn linux(context: &Context, mode: &str) -> Result<()> {
    let command = "read word; echo \"got $word\"; grep -m1 flags /proc/cpuinfo";
    let path = context.path("stats.json");
    let options = ["--mode", mode, "--timeout", BOCHS_TIMEOUT, "--stats", &path, "--exec", command];
    let finished = context.run_with(&options, Some(b"typed\n"))?.status(0)?.has("got typed\n")?;
    finished.has(" hypervisor")?.has(" constant_tsc")?.lacks(" vmx")?;
    let stats = read_stats(&path)?;
    ensure!(stats["machine"] == "bochs-vtx" && stats["icount"] == true && stats["mode"] == mode, "{stats}");
    let guest = &stats["guests"][0];
    ensure!(stats["host"]["vendor"] == "intel" && guest["tsc"].as_u64() > Some(0), "{stats}");
    // Counted where they are few.
    let exits: u64 = guest["exits"]
        .as_array()
        .iter()
        .flat_map(|all| all.iter())
        .filter_map(|it| it["count"].as_u64())
        .sum();
    let [reads, writes] = ["reads", "writes"].map(|name| guest["vmcs"][name].as_u64().unwrap_or(0));
    ensure!((exits..exits * 20).contains(&reads) && (1..exits * 10).contains(&writes), "{stats}");
    Ok(())
}

/// A 32-bit kernel, whose page-directory pointers the processor keeps.
fn pae(context: &Context) -> Result<()> {
    let options = ["--guest", "debian-686-pae", "--mode", "nested", "--timeout", BOCHS_TIMEOUT];
    context.run(&[&options[..], &["--exec", "uname -rm"]].concat())?.status(0)?.has("-686-pae i686\n")?;
    Ok(())
}

/// Virtio's disk, and two of its network cards.
fn devices(context: &Context) -> Result<()> {
    let (disk, sum) = virtio::noise_and_sum(context, "disk", 1024)?;
    let command = format!(
        "md5sum < /dev/vda; dd if=/dev/zero of=/dev/vda bs=512 seek=3 count=400 conv=fsync 2>/dev/null\n\
         echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda bs=512 skip=3 count=400 2>/dev/null | tr -d '\\0' | wc -c\n{}",
        virtio::NETWORK
    );
    let options = ["--disk", &disk, "--net", "lan", "--net", "lan", "--timeout", BOCHS_TIMEOUT];
    let expected = format!("{sum}  -\n0\n3 packets received\nsame\n");
    context.run(&[&options[..], &["--exec", &command]].concat())?.status(0)?.prints(&expected)?;
    Ok(())
}

/// It restarts whenever it has ended its virtual machine, until the time is up; nothing else ends.
fn hostile(context: &Context) -> Result<()> {
    let kernel = context.hostile.to_string_lossy();
    let config = context.file(
        "lab.toml",
        format!(
            "version = 1\n[[vm]]\nname = \"hostile\"\nkernel = \"{kernel}\"\ncmdline = \"seed=1 memory=32\"\n\
             memory_mib = 32\nvcpus = 2\nrestart = true\nnetworks = [\"lan\"]\nentropy = true\n"
        ),
    )?;
    let options = ["--config", &config, "--pcpus", "2", "--timeout", "240"];
    let finished = context.run(&options)?.status(124)?.has("hostile: seed=1 round=0")?;
    let rounds = finished.stdout().matches("hostile: seed=1 round=").count();
    ensure!(rounds >= 2 && !finished.stderr.contains("panic"), "{rounds} rounds\n{}", finished.stderr);
    Ok(())
}

fn benchmark(context: &Context) -> Result<()> {
    let options = ["bench", "--machine", "bochs-vtx", "--only", "cpuid", "--mode", "nested"];
    let finished = context.pal(options, None)?.status(0)?;
    finished.has("operation")?.has("CPUID")?.has("≤ 140  met")?.has("1 of 1 goals met")?;
    Ok(())
}

/// A line says so until there is output.
fn at_work(context: &Context) -> Result<()> {
    let kit = context.long_mode.to_string_lossy();
    let options = ["--kernel", &kit, "--append", "bochs cpuid", "--test-device", "--timeout", BOCHS_TIMEOUT];
    let mut person = Person::start(context, &options)?;
    person.sees("on Bochs that takes")?;
    person.sees("ok cpuid.vendor")?;
    let before = person.shown.len();
    person.sees(", 0 failed")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    ensure!(!person.shown[before..].contains("Bochs"), "{}", person.shown);
    Ok(())
}

/// These cases of the kit, all of which pass.
fn kit(context: &Context, words: &str, options: &[&str]) -> Result<()> {
    context.long_mode(words, options)?.has(", 0 failed")?.lacks("FAIL")?.status(0)?;
    Ok(())
}

/// Pages of the kit move while it makes tables.
fn torture_moves(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    kit(context, "shadow torture thin=32", &["--mode", "shadow", "--fast-mem", "4", "--stats", &path])?;
    let tiers = &read_stats(&path)?["guests"][0]["paging"]["tiers"];
    ensure!(tiers["moved_in"].as_u64() >= Some(20), "{tiers}");
    Ok(())
}

/// The kit uses 12 MiB several times, of which less than half are in frames. Shadow leaves go with their pages, and what the
/// processor has set in the guest's entries stays.
fn pages_leave(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let memory = ["--mode", "shadow", "--overcommit", "--resident", "6", "--stats", &path];
    context
        .long_mode("shadow bulk mib=12", &memory)?
        .has("ok bulk.contents")?
        .has("ok bulk.bits")?
        .status(0)?;
    let pager = &read_stats(&path)?["guests"][0]["paging"]["pager"];
    let counted = |name: &str| pager[name].as_u64().unwrap_or(0);
    // `contents` alone goes over all of the 3072 pages nine times; each time most of them are not in frames.
    ensure!(counted("went_out") > 18_000 && counted("refaults") > 18_000, "{pager}");
    ensure!(counted("resident") <= counted("resident_frames") * 4 / 3, "{pager}");
    Ok(())
}

/// Two thousand page faults that are the guest's own reach it without an exit.
fn own_page_faults(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    kit(context, "delivery.own-page-faults", &["--mode", "shadow", "--stats", &path])?;
    let stats = read_stats(&path)?;
    ensure!((1..500).contains(&exits(&stats, "page-fault")), "{stats}");
    Ok(())
}

/// Real mode and back, with nested tables in between where shadow tables are wanted; refused without unrestricted guests.
fn real_mode(context: &Context) -> Result<()> {
    for mode in ["nested", "shadow"] {
        let finished = context.kit("real ud", &["--mode", mode])?.status(0)?;
        finished.has("kit: real mode 1111\n")?.has("kit: ud2 1\n")?;
    }
    let refused = context.kit("real", &["--model", "corei5_lynnfield_750"])?.status(3)?;
    refused.has("kit: real mode\n")?.says("real mode")?.lacks("kit: real mode 1111")?;
    Ok(())
}

/// A part of the torture on a processor that lacks something.
fn model(context: &Context, model: &str, mode: &str, words: &str) -> Result<()> {
    kit(context, &format!("{words} thin=32"), &["--model", model, "--mode", mode])
}

fn no_vtx(context: &Context) -> Result<()> {
    let finished = context.long_mode("torture", &["--model", "p4_prescott_celeron_336"])?;
    finished.status(5)?.says("VT-x")?;
    Ok(())
}

/// Guests without page tables end, and nothing else does.
fn dies(context: &Context) -> Result<()> {
    for mode in ["nested", "shadow"] {
        let finished = context.long_mode("dies.cr3-in-hole", &["--mode", mode])?.status(3)?;
        finished.has("kit: CR3\n")?.lacks("kit: lives")?.says("the guest died")?.says("RIP")?;
    }
    Ok(())
}

/// Nothing is started.
fn options(context: &Context) -> Result<()> {
    for (options, word) in [
        (&["--qemu-arg", "x"][..], "--bochs-line"),
        (&["--model", "a b"], "--model"),
        (&["--bochs", "/nonexistent"], "--bochs"),
        (&["--vcpus", "65"], "--vcpus"),
    ] {
        context.run(&[options, &["--exec", "true"]].concat())?.status(2)?.says(word)?;
    }
    let native = ["run", "--machine", "bochs-native", "--exec", "true"];
    context.pal([&native[..], &["--test-device"]].concat(), None)?.status(2)?.says("0x8900")?;
    let qemu = ["run", "--machine", "native", "--model", "core2_penryn_t9600", "--exec", "true"];
    context.pal(qemu, None)?.status(2)?.says("bochs-vtx")?;
    // Bochs' own words about what it does not know.
    context.run(&["--model", "none", "--exec", "true"])?.status(1)?.says("'model'")?;
    Ok(())
}
