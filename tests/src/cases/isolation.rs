//! A hostile guest beside one that works: what the one does, the other must not notice.
//!
//! `tests/kits/hostile` does random things to its virtual machine, and is restarted whenever that ends it. Linux computes
//! checksums meanwhile. They must be right; Linux must get its share of the processors, by the hypervisor's own accounts, to which
//! a busy development machine makes no difference, and roughly by what it gets done; and the hypervisor must not need more and more memory.

use std::{
    env,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{Case, only};
use crate::context::{Context, dies_with_this};

pub const CASES: &[Case] = &[
    only("qemu-svm", "a hostile guest beside one that works", short).also(&["shadow"]),
    only("qemu-svm", "a hostile guest beside one that works, at length", long)
        .also(&["shadow", "switch=200"])
        .at_length(),
];

/// `seq 20000 | md5sum`
const SUM: &str = "e071f707df7bbeee2a6a1eb48011ddd0";
/// Processors of the machine, and its packages, each with a last-level cache.
const MACHINE: [usize; 2] = [6, 2];
/// Those that run the guests, two of each package: fewer than VCPUs. The machine's first processor is not among them, and has no
/// number: the hypervisor keeps guests off it on this emulation (docs/design/0006).
const PCPUS: [u64; 4] = [0, 1, 2, 3];
/// Weights of the guests: Linux, the hostile one.
const WEIGHTS: [u64; 2] = [512, 256];
/// Of Linux. A clock that it came to distrust under load would make it change its own code while it runs, which the emulator may mix
/// up (docs/design/0006).
const COMMAND_LINE: &str = "console=ttyS0 panic=10 quiet tsc=reliable";
/// How often the hostile guest restarts, at least.
const ROUNDS: usize = 2;
/// How regions are looked for in the hostile guest: often, and small ones too.
const REGIONS: &str = "balance,q_us=1000,period_ms=40,phase_ms=5,cache_kib=64";
/// Fast memory of the machine, of which the hostile guest asks for more or less all the time. On nested tables: moves split large leaves of
/// shadow tables, which then grow to their limit, and that would hide what is lost.
const FAST: &str = "fast-mem=16@480 fast-sharing=estate-qos";
/// VCPUs of Linux.
const VCPUS: u64 = 4;
/// VCPUs of the hostile guest.
const HOSTILE_VCPUS: u64 = 4;
/// Linux gets at least this percentage of the time that is due to it.
const LEAST_PERCENT: u64 = 80;
/// Linux computes for this many seconds without the hostile guest,
const ALONE: u64 = 2;
/// and beside it does at least this percentage of the work that it then did in the same time of real processors. 67 % are due
/// to it. The bound is lower because there may be fewer real processors than PCPUs: a PCPU that does not run then may have what
/// others wait for, and they take time in which nothing is done; the more so the more else the real processors do.
const LEAST_WORK_PERCENT: u64 = 25;
/// The measurement is made this often at most: another load passes, a guest that is kept from its share stays.
const ATTEMPTS: usize = 3;
/// The hypervisor's heap may grow by this much from the first start of the hostile guest to the last, in bytes: it grows by
/// 2 MiB at a time.
const GROWTH: u64 = 4 << 20;
/// When nothing has been heard of the hostile guest for this time, it is restarted from the monitor: it may have put all of its processors
/// to sleep, or into a loop without interrupts, and would leave Linux alone for the rest of the time.
const SILENCE: Duration = Duration::from_secs(10);
/// What is typed for that. Its processors' states are kept in the machine's console.
const NUDGE: &[u8] = b"\x01pvcpus\rrestart hostile\rquit\r";
/// What is typed again and again while Linux computes: regions that the hostile guest makes are mapped to one cache and the other, those with
/// its code, stacks, tables and descriptors too. A region that there is not is an error of the monitor's.
const CLOSE: &[u8] =
    b"\x01pregions 1 0\rregions 2 1\rregions 3 0\rregions 4 1\rregions 5 0\rregions 6 1\rquit\r";
/// How often.
const CLOSE_EVERY: Duration = Duration::from_millis(900);
/// A busy machine may take this many times as long as the guest is meant to run, plus this time.
const PATIENCE: (u32, Duration) = (10, Duration::from_secs(900));

/// Two seconds of the guests' time: each VCPU runs for many time slices.
fn short(context: &Context) -> Result<()> {
    isolation(context, 2, 1)
}

/// For `ISOLATION_MINUTES` minutes, or 30, with the seed `ISOLATION_SEED`, or one of the clock's.
fn long(context: &Context) -> Result<()> {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let clock = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() % 1_000_000;
    let minutes = number("ISOLATION_MINUTES").unwrap_or(30);
    isolation(context, minutes * 60, number("ISOLATION_SEED").unwrap_or(clock))
}

/// Loops on all VCPUs that compute sums for `seconds` of the guest's time, one at least, and count them.
fn work(seconds: u64) -> String {
    format!(
        "up() {{ read up rest < /proc/uptime; up=${{up%%.*}}; }}\n\
         up; end=$((up + {seconds}))\n\
         work() {{ good=0; bad=0; while up; [ $up -lt $end ] || [ $((good + bad)) -eq 0 ]; do\n\
         if [ \"$(seq 20000 | md5sum)\" = '{SUM}  -' ]; then good=$((good + 1)); else bad=$((bad + 1)); fi; done\n\
         echo worker: $good right, $bad wrong; }}\n\
         echo at work; {workers}wait",
        workers = "work & ".repeat(VCPUS as usize)
    )
}

fn isolation(context: &Context, seconds: u64, seed: u64) -> Result<()> {
    let again = format!(
        "to see it again: ISOLATION_SEED={seed} ISOLATION_MINUTES={} cargo run -p e2e -- --full 'hostile guest'",
        seconds.div_ceil(60)
    );
    let mut done = vec![];
    while done.len() < ATTEMPTS {
        let percent = attempt(context, seconds, seed).with_context(|| again.clone())?;
        if percent >= LEAST_WORK_PERCENT {
            return Ok(());
        }
        done.push(format!("{percent} %"));
    }
    bail!("of what Linux does alone it has done {} beside the hostile guest; {again}", done.join(", "))
}

/// Runs Linux alone and beside the hostile guest; the percentage of its work that it gets done there. Accounts may err: this must be its
/// share as well.
fn attempt(context: &Context, seconds: u64, seed: u64) -> Result<u64> {
    let alone = Machine::new(context, ALONE, None)?.run(PATIENCE.1)?;
    let machine = Machine::new(context, seconds, Some(seed))?;
    let patience = Duration::from_secs(seconds) * PATIENCE.0 + PATIENCE.1;
    let (records, time) = machine.run(patience)?;
    judge(&records)?;
    let (alone, beside) = (sums(&alone.0) * time, sums(&records) * alone.1);
    ensure!(alone > 0, "Linux has done nothing alone");
    Ok(beside * 100 / alone)
}

/// How many sums Linux's workers have computed.
fn sums(records: &[Value]) -> u64 {
    let figure = |line: &str| line.strip_prefix("worker: ")?.split(' ').next()?.parse::<u64>().ok();
    console(records).lines().filter_map(figure).sum()
}

/// What Linux has said.
fn console(records: &[Value]) -> String {
    let linux = records.iter().filter(|record| is(record, "console", "linux"));
    linux.filter_map(|record| record["text"].as_str()).collect()
}

/// The last things that the hypervisor told, without what the guests did.
fn last_records(records: &[Value]) -> String {
    let mut last: Vec<_> = records.iter().rev().filter(|record| record["t"] != "console").take(8).collect();
    last.reverse();
    format!("the last records: {}", last.iter().map(|record| format!("\n{record}")).collect::<String>())
}

/// A machine with both guests, or with Linux alone, that has not been started.
struct Machine {
    command: Command,
    telemetry: PathBuf,
    console: PathBuf,
    /// How often the hostile guest must restart.
    rounds: usize,
}

impl Machine {
    /// `seed`: of the hostile guest.
    fn new(context: &Context, seconds: u64, seed: Option<u64>) -> Result<Self> {
        let image = context.path(if seed.is_some() { "image" } else { "image-alone" });
        let guest = ["--append", "quiet", "--exec", &work(seconds)];
        context.pal([&["image", "netboot", "-o", &image], &guest[..]].concat(), None)?.status(0)?;
        let folder = Path::new(&image).join("guests/debian-amd64");
        let kernel = fs::read_dir(&folder)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .find(|name| name.starts_with("vmlinuz"))
            .context("no kernel in the image")?;
        let mode = context.mode.unwrap_or("nested");
        let [linux, hostile] = WEIGHTS;
        // The guest that has the console is paused while the monitor is used.
        let focus = seed.map_or("", |_| "console = \"hostile\"\n");
        let mut description = format!(
            "version = 1\n{focus}\
             [[vm]]\nname = \"linux\"\nkernel = \"vmlinuz\"\ninitrd = \"initrd\"\n\
             cmdline = \"{COMMAND_LINE}\"\n\
             memory_mib = 192\nvcpus = {VCPUS}\nweight = {linux}\naffinity = {PCPUS:?}\nmode = \"{mode}\"\n"
        );
        if let Some(seed) = seed {
            description += &format!(
                "[[vm]]\nname = \"hostile\"\nkernel = \"hostile\"\ncmdline = \"seed={seed} memory=32\"\nrestart = true\n\
             memory_mib = 32\nvcpus = {HOSTILE_VCPUS}\nweight = {hostile}\naffinity = {PCPUS:?}\nmode = \"{mode}\"\n\
             disks = [{{ file = \"disk\" }}]\nnetworks = [\"lan\"]\nconsole = \"virtio\"\nentropy = true\nregions = \"{REGIONS}\"\n"
            );
        }
        let files = [
            ("palimpsest.toml", description.into_bytes()),
            ("vmlinuz", fs::read(folder.join(kernel))?),
            ("initrd", fs::read(folder.join("initrd"))?),
            ("hostile", fs::read(&context.hostile)?),
            ("disk", vec![0x5a; 1 << 20]),
        ];
        let bundle = context.file("bundle.cpio", archive(&files))?;
        let (telemetry, console) = (context.path("telemetry"), context.path("console"));
        let mut command = Command::new("qemu-system-x86_64");
        command.args(
            "-machine q35 -accel tcg -cpu EPYC,+svm,+npt -m 768 -nodefaults -display none -no-reboot"
                .split(' '),
        );
        let [pcpus, packages] = MACHINE;
        command.args(["-smp", &format!("{pcpus},sockets={packages}"), "-initrd", &bundle]);
        command.arg("-kernel").arg(Path::new(&image).join("boot/palimpsest"));
        let words = "loglevel=info exit=isa-debug:0xf4 telemetry=com2 stats=on consoles=on";
        let fast = if context.mode.is_none() { FAST } else { "" };
        command.args(["-append", &format!("{words} {fast}")]);
        command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        command.args(["-serial", "stdio", "-serial", &format!("file:{telemetry}")]);
        let output = File::create(&console).context("cannot create a file for the console")?;
        command.stdin(Stdio::piped()).stderr(output.try_clone()?).stdout(output);
        let rounds = if seed.is_some() { ROUNDS } else { 0 };
        Ok(Self { command, telemetry: telemetry.into(), console: console.into(), rounds })
    }

    /// Runs it until Linux has ended and the hostile guest has restarted a few times; what the hypervisor has told until then, and the
    /// processor time that it took while Linux computed.
    fn run(mut self, patience: Duration) -> Result<(Vec<Value>, u64)> {
        dies_with_this(&mut self.command);
        let mut qemu = Running(self.command.spawn().context("cannot start qemu-system-x86_64")?);
        let start = Instant::now();
        let (mut first, mut last) = (None, 0);
        let (mut heard, mut heard_at, mut nudges) = (0, start, 0);
        let mut closed_at = start;
        loop {
            sleep(Duration::from_millis(300));
            let now = qemu.processor_time();
            let ended = qemu.0.try_wait()?;
            let records = self.records();
            let said = console(&records);
            if said.contains("at work") && !said.contains("worker: ") {
                first = first.or(now);
                last = now.unwrap_or(last);
            }
            let rounds = records.iter().filter(|record| is(record, "reset", "hostile")).count();
            let words = rounds + records.iter().filter(|record| is(record, "console", "hostile")).count();
            if words != heard {
                (heard, heard_at) = (words, Instant::now());
            } else if self.rounds > 0 && first.is_some() && heard_at.elapsed() > SILENCE {
                qemu.types(NUDGE)?;
                (heard_at, nudges) = (Instant::now(), nudges + 1);
            } else if self.rounds > 0 && first.is_some() && closed_at.elapsed() > CLOSE_EVERY {
                qemu.types(CLOSE)?;
                closed_at = Instant::now();
            }
            if records.iter().any(|record| is(record, "end", "linux")) && rounds >= self.rounds + nudges {
                return Ok((records, last - first.unwrap_or(last)));
            }
            let late = start.elapsed() > patience;
            if ended.is_some() || late || records.iter().any(|record| record["t"] == "panic") {
                let console = fs::read(&self.console).unwrap_or_default();
                let console =
                    String::from_utf8_lossy(&console[console.len().saturating_sub(4000)..]).into_owned();
                let what = match ended {
                    Some(status) => format!("QEMU has ended with {status}"),
                    None if late => "there is no end".into(),
                    None => "the hypervisor has panicked".into(),
                };
                bail!("{what}; {}\n--- console\n{console}", last_records(&records));
            }
        }
    }

    fn records(&self) -> Vec<Value> {
        let bytes = fs::read(&self.telemetry).unwrap_or_default();
        // The last line may not be whole yet.
        bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

/// QEMU, which ends with this.
struct Running(Child);

impl Running {
    fn types(&mut self, text: &[u8]) -> Result<()> {
        let input = self.0.stdin.as_mut().context("QEMU has no input")?;
        input.write_all(text).context("cannot type to QEMU")
    }

    /// The processor time that it has taken, in the system's clock ticks: fields 14 and 15 of proc(5)'s stat.
    fn processor_time(&self) -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).ok()?;
        let (_, fields) = stat.rsplit_once(") ")?;
        fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().ok()).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _the_status_says_nothing = self.0.wait();
    }
}

fn is(record: &Value, kind: &str, vm: &str) -> bool {
    record["t"] == kind && record["vm"] == vm
}

/// Looks at what both guests have done.
fn judge(records: &[Value]) -> Result<()> {
    let of = |kind: &'static str, vm: &'static str| records.iter().filter(move |record| is(record, kind, vm));
    let text = console(records);
    let workers: Vec<_> = text.lines().filter(|line| line.starts_with("worker: ")).collect();
    let right = |line: &&str| line.contains(" right, 0 wrong") && !line.contains(": 0 right");
    let end = of("end", "linux").next().context("Linux has not ended")?;
    let ended = format!("Linux ended: {end}; {}\nit said:\n{text}", last_records(records));
    ensure!(end["reason"] == "power-off", "{ended}");
    ensure!(workers.len() == VCPUS as usize && workers.iter().all(right), "{ended}");

    // The hostile guest was there all the time.
    ensure!(
        of("end", "hostile").next().is_none(),
        "the hostile guest ended: {:?}",
        of("end", "hostile").next_back()
    );

    // Memory: at its first new start, and at the last.
    let memory = |record: &Value, what: &str| record["host"][what].as_u64();
    let (first, last) = (of("stats", "hostile").next(), of("stats", "hostile").next_back());
    let (first, last) = first.zip(last).context("no statistics")?;
    let frames = memory(first, "free_frames").zip(memory(last, "free_frames")).context("no frames")?;
    let heap = memory(first, "heap_bytes").zip(memory(last, "heap_bytes")).context("no heap")?;
    ensure!(heap.1 <= heap.0 + GROWTH, "the heap has grown from {} to {} bytes", heap.0, heap.1);
    let lost = frames.0.saturating_sub(frames.1) * 4096;
    ensure!(lost <= GROWTH, "free memory has gone from {} to {} frames", frames.0, frames.1);

    // Phases of regioning were among what it met.
    let paging = |record: &Value, key: &str| record["paging"]["regions"][key].as_u64().unwrap_or(0);
    let most = |key: &str| of("stats", "hostile").map(|record| paging(record, key)).max().unwrap_or(0);
    ensure!(
        most("rounds") > 0 && most("touches") > 0,
        "no regions were looked for in the hostile guest: {}",
        last["paging"]["regions"]
    );

    // Memory that is closed in a cache was, too, on tables of either kind.
    let count = |key: &str| of("stats", "hostile").map(|record| paging(record, key)).sum::<u64>();
    let [faults, moves, globalised] = ["closed_faults", "region_moves", "regions_globalised"].map(count);
    ensure!(moves > 0, "closed memory: {faults} touches, {moves} moves, {globalised} regions globalised");
    let said = of("console", "hostile").filter_map(|record| record["text"].as_str());
    let wrong: Vec<_> = said.filter(|text| text.contains("WRONG")).collect();
    ensure!(wrong.is_empty(), "hypercalls had wrong answers: {wrong:?}");

    // Time: while all want to run, each VCPU of Linux gets this part of a processor; while not all do, it gets more.
    let stats: Vec<_> = of("stats", "linux").collect();
    let time = |what: &str| stats.iter().filter_map(|record| record["time"][what].as_u64()).sum::<u64>();
    let (ran, wanted) = (time("ran"), time("ran") + time("waited"));
    let due = wanted * (WEIGHTS[0] * PCPUS.len() as u64) / (WEIGHTS.iter().sum::<u64>() * VCPUS);
    ensure!(
        wanted > 0 && ran >= due / 100 * LEAST_PERCENT,
        "Linux ran for {ran} ticks; it wanted {wanted}, and {due} were due to it"
    );
    Ok(())
}

/// A cpio archive in newc format.
fn archive(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, contents) in files.iter().chain([&("TRAILER!!!", Vec::new())]) {
        let fields = [0, 0o100_644, 0, 0, 1, 0, contents.len(), 0, 0, 0, 0, name.len() + 1, 0];
        bytes.extend(b"070701");
        fields.iter().for_each(|field| bytes.extend(format!("{field:08X}").bytes()));
        bytes.extend(name.bytes().chain([0]));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(contents);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}
