//! The default guest: Debian's kernel and the generated initramfs.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, PipeReader, Read as _, pipe},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Case, SHADOW, both, hypervisor, only,
    person::{children, is_gone},
};
use crate::context::Context;

pub const CASES: &[Case] = &[
    both("exec prints the output and nothing else", exec).also(&["switch=1"]).more(&[
        "shadow",
        "switch=7",
        "switch=50",
    ]),
    only("qemu-svm", "shadow tables are checked while a guest boots", audited),
    only("qemu-svm", "a boot with few shadow pages", small_pool),
    only("qemu-svm", "a boot with many shadow pages", large_pool),
    only("qemu-svm", "a large guest on shadow tables", large_guest).at_length(),
    both("text, files and input reach a command; its output and status come back", all_ways),
    hypervisor("output comes out before the session ends", last_words),
    only("native", "a reader that comes late gets all of it", late_reader),
    hypervisor("put adds a large file, and there is the memory that was asked for", large_file).more(SHADOW),
    hypervisor("piped input reaches the shell", shell).more(SHADOW),
    hypervisor("the end of the input does not end the guest", input_ends),
    only("qemu-svm", "a time limit ends a sleeping guest", timeout),
    only("qemu-svm", "a flood of output ends with the time limit", flood),
    hypervisor("the reader of the output goes away", closed_output),
    hypervisor("a panic of the guest's kernel is a death", kernel_panic).more(SHADOW),
    hypervisor("a reset during exec is a death", reset).more(SHADOW),
    hypervisor("a power-off during exec is not a success", early_power_off).more(SHADOW),
    hypervisor("more than 4 GiB of memory", much_memory).at_length(),
    hypervisor("deterministic time, with the guest's boot shown", icount).more(&["switch=50"]),
    both("fifty boots in a row", |c| boots(c, 50)).at_length(),
    only("qemu-svm", "every boot protocol of a bzImage", protocols).more(SHADOW),
    only("qemu-svm", "statistics; the guest sees the hypervisor and no SVM", stats),
    only("qemu-svm", "changes of the mode are counted and logged", changes),
    only("native", "several processors, and statistics of a native run", native_stats),
    only("qemu-svm", "Linux without x2APIC", without_x2apic).more(SHADOW),
];

/// Linux with the older local APIC, whose timer counts, and with a few more features hidden.
fn without_x2apic(context: &Context) -> Result<()> {
    let command = "for f in x2apic tsc_deadline_timer avx avx2 fma smep apic sse4_2; do \
                   grep -qw $f /proc/cpuinfo && echo has $f; done; grep -c 'LOC:.*[1-9]' /proc/interrupts";
    let options = [
        "--without",
        "x2apic,tsc_deadline_timer,avx",
        "--without",
        "smep",
        "--vcpus",
        "2",
        "--exec",
        command,
    ];
    context.run(&options)?.status(0)?.prints("has apic\nhas sse4_2\n1\n")?;
    Ok(())
}

/// In each of these the shadow tables are filled, emptied and searched for mistakes.
fn audited(context: &Context) -> Result<()> {
    for mode in ["shadow", "switch=7"] {
        // A prime, so that no rhythm of exits evades it.
        let options = ["--audit-shadow=29", "--shadow-pages", "512", "--exec", "echo checked"];
        context.run(&[&["--mode", mode], &options[..]].concat())?.status(0)?.prints("checked\n")?;
    }
    Ok(())
}

/// So few that tables are evicted all the time.
fn small_pool(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let options = ["--mode", "shadow", "--shadow-pages", "24", "--stats", &path];
    context.run(&[&options[..], &["--exec", "echo small"]].concat())?.status(0)?.prints("small\n")?;
    let stats = read_stats(&path)?;
    let evictions = stats["guests"][0]["paging"]["shadow"]["evictions"].as_u64();
    ensure!(evictions > Some(100), "{stats}");
    Ok(())
}

/// As many as a guest of 4 GiB gets. No piece of their memory must be large, and as long as few are used it is little.
fn large_pool(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let options = ["--mode", "shadow", "--mem", "512", "--shadow-pages", "17000", "--stats", &path];
    context.run(&[&options[..], &["--exec", "echo large"]].concat())?.status(0)?.prints("large\n")?;
    let stats = read_stats(&path)?;
    let counted = |name: &str| stats["guests"][0]["paging"]["shadow"][name].as_u64();
    ensure!(counted("pool") == Some(17_000) && counted("most_bytes") < Some(20 << 20), "{stats}");
    Ok(())
}

/// More than 4 GiB, on shadow tables: `pal` gives the machine the memory that the hypervisor wants for them, and no piece of it must
/// be large.
fn large_guest(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let options = ["--mode", "shadow", "--mem", "4608", "--stats", &path];
    context
        .run(&[&options[..], &["--exec", &has_memory(4250, 4590)]].concat())?
        .status(0)?
        .prints("fits\n")?;
    let stats = read_stats(&path)?;
    let counted = |name: &str| stats["guests"][0]["paging"]["shadow"][name].as_u64();
    ensure!(counted("pool") > Some(10_000) && counted("most_bytes") < Some(10 << 20), "{stats}");
    Ok(())
}

/// The kernel's clock and sleeping agree. No sleep ends early; on a busy machine some end late.
const SLEEP: &str = "up() { cut -d. -f1 /proc/uptime; }\n\
    for try in 1 2 3 4 5 6 7 8 9; do begin=$(up); sleep 3; slept=$(($(up) - begin))\n\
    [ $slept -lt 3 ] && echo early; [ $slept -le 4 ] && break; done; echo slept $slept s";

fn exec(context: &Context) -> Result<()> {
    let finished = context.run(&["--exec", &format!("echo one; echo two\n{SLEEP}")])?.status(0)?.soon()?;
    let rest = finished.stdout().replacen("one\ntwo\n", "", 1);
    ensure!(["slept 3 s\n", "slept 4 s\n"].contains(&rest.as_str()), "{}", finished.stdout());
    Ok(())
}

/// Prints whether the guest has this much memory, in MiB.
fn has_memory(least: u32, most: u32) -> String {
    format!(
        "awk '/MemTotal/ {{ has = int($2 / 1024); print (has >= {least} && has <= {most}) ? \"fits\" : has }}' /proc/meminfo"
    )
}

/// Files, quoted text and input into a small guest; errors, all bytes, and what looks like the end out of it.
fn all_ways(context: &Context) -> Result<()> {
    let one = context.file("one", "first\n")?;
    std::fs::create_dir_all(context.path("tree/deep"))?;
    context.file("tree/deep/two", "second\n")?;
    let script = context.file("tool", "#!/bin/sh\necho tool \"$@\"\nexit 7\n")?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let (tree, tool) = (format!("{}:/opt/tree", context.path("tree")), format!("{script}:/usr/local/tool"));
    let long = "x".repeat(20_000);
    let memory = has_memory(40, 90);
    let command = format!(
        "cat /one /opt/tree/deep/two; uname -sn; free | grep -c Mem:; {memory}\n\
         echo 'a \"b\" $c \\ ü' # comment\nfor i in 1 2; do echo \"$i\"; done; echo {long} | wc -c\n\
         echo out; echo err >&2; read first; read second; echo \"$second $first\"\n\
         i=0; while [ $i -lt 256 ]; do printf \"\\\\x$(printf %02x $i)\"; i=$((i + 1)); done\n\
         printf '\\036pal 0123456789abcdef end 0\\036\\036pal x'\n/usr/local/tool a b"
    );
    let text = "first\nsecond\nLinux palimpsest\n1\nfits\na \"b\" $c \\ ü\n1\n2\n20001\nout\nerr\ntwo one\n";
    let bytes: Vec<u8> = (0..=255).collect();
    let expected = [text.as_bytes(), &bytes, b"\x1epal 0123456789abcdef end 0\x1e\x1epal x", b"tool a b\n"];
    let options = ["--mem", "96", "--put", &one, "--put", &tree, "--put", &tool, "--exec", &command];
    let finished = context.run_with(&options, Some(b"one\ntwo\n"))?.status(7)?;
    ensure!(finished.raw == expected.concat(), "{:?}", finished.stdout());
    Ok(())
}

/// Starts `pal run` with these options, whose output is not read yet, through a pipe of one page.
pub fn start_unread(
    context: &Context,
    options: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<(Child, PipeReader)> {
    let (reader, writer) = pipe()?;
    rustix::pipe::fcntl_setpipe_size(&writer, 4096)?;
    let mut pal = Command::new(&context.pal);
    pal.arg("run").args(context.place()).args(options);
    Ok((pal.stdin(Stdio::null()).stdout(writer).spawn()?, reader))
}

fn late_reader(context: &Context) -> Result<()> {
    // A little more than the pipe holds: the machine is gone before it is read.
    let (mut child, mut reader) = start_unread(context, ["--exec", "seq -s, 1000 1840; exit 9"])?;
    let mut machine = Vec::new();
    while machine.is_empty() || rustix::io::ioctl_fionread(&reader)? == 0 {
        ensure!(child.try_wait()?.is_none(), "pal has ended before its output was read");
        let now = children(child.id());
        // It may be gone when its output comes.
        machine = if now.is_empty() { machine } else { now };
        sleep(Duration::from_millis(50));
    }
    let start = Instant::now();
    while !machine.iter().all(|&pid| is_gone(pid)) {
        ensure!(start.elapsed() < Duration::from_secs(120), "the machine waits for the reader");
        sleep(Duration::from_millis(100));
    }
    // What pal still does then, it has done.
    sleep(Duration::from_secs(1));
    let mut output = String::new();
    reader.read_to_string(&mut output)?;
    let status = child.wait()?;
    let expected = (1000..=1840).map(|number| number.to_string()).collect::<Vec<_>>().join(",") + "\n";
    ensure!(
        output == expected && status.code() == Some(9),
        "{status}, {} bytes of {}",
        output.len(),
        expected.len()
    );
    Ok(())
}

fn last_words(context: &Context) -> Result<()> {
    let expected: String = (1..=900).map(|number| format!("{number}\n")).collect();
    // All at once, just before the session ends.
    context.run(&["--exec", "seq 1 900 > /all; cat /all"])?.status(0)?.prints(&expected)?;
    Ok(())
}

fn large_file(context: &Context) -> Result<()> {
    let contents: Vec<u8> =
        (0..40_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let file = context.file("large", contents)?;
    let sum = Command::new("sha256sum")
        .stdin(std::fs::File::open(&file)?)
        .output()
        .context("cannot run sha256sum")?;
    let expected = String::from_utf8(sum.stdout)? + "fits\n";
    let command = format!("sha256sum < /large; {}", has_memory(920, 1015));
    context.run(&["--mem", "1024", "--put", &file, "--exec", &command])?.status(0)?.prints(&expected)?;
    Ok(())
}

fn shell(context: &Context) -> Result<()> {
    let finished =
        context.run_with(&[], Some(b"echo sum $((40 + 2))\nexit\n"))?.status(0)?.has("sum 42\n")?;
    ensure!(!finished.raw.contains(&b'\r'), "carriage returns in a file");
    Ok(())
}

fn input_ends(context: &Context) -> Result<()> {
    context
        .run_with(&["--exec", "sleep 2; echo still here; false"], Some(b""))?
        .status(1)?
        .prints("still here\n")?;
    Ok(())
}

fn timeout(context: &Context) -> Result<()> {
    let command = ["--exec", "echo before; sleep 1000"];
    context.until_limit(12, |limit| context.run(&[limit, &command].concat()), |said| said == "before\n")?;
    Ok(())
}

fn flood(context: &Context) -> Result<()> {
    let run = |limit: &[&str]| context.run(&[limit, &["--exec", "yes"]].concat());
    context.until_limit(12, run, |said| said.contains("y\ny\ny\n"))?;
    Ok(())
}

fn closed_output(context: &Context) -> Result<()> {
    let mut command = Command::new(&context.pal);
    command.arg("run").args(context.place()).args(["--exec", "yes"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line)?;
    let status = child.wait()?;
    ensure!(line == "y\n" && status.code() == Some(141), "{line:?} {status}");
    Ok(())
}

fn kernel_panic(context: &Context) -> Result<()> {
    let finished = context.run(&["--exec", "echo c > /proc/sysrq-trigger"])?.status(3)?;
    finished.has("Kernel panic")?.says("the guest's kernel panicked: sysrq triggered crash")?;
    Ok(())
}

fn reset(context: &Context) -> Result<()> {
    context.run(&["--exec", "echo once; reboot -f"])?.status(3)?.has("once\n")?.says("reset")?;
    Ok(())
}

fn early_power_off(context: &Context) -> Result<()> {
    context.run(&["--exec", "poweroff -f"])?.status(3)?.says("before the command")?;
    Ok(())
}

fn much_memory(context: &Context) -> Result<()> {
    context.run(&["--mem", "4608", "--exec", &has_memory(4250, 4590)])?.status(0)?.prints("fits\n")?;
    Ok(())
}

fn icount(context: &Context) -> Result<()> {
    let finished = context.run(&["--icount", "--verbose", "--exec", "echo counted"])?.status(0)?;
    finished.prints("counted\n")?.says("Linux version 6.")?;
    Ok(())
}

fn boots(context: &Context, count: u32) -> Result<()> {
    for number in 1..=count {
        let command = format!("echo boot {number}");
        context.run(&["--exec", &command])?.status(0)?.prints(&format!("boot {number}\n"))?;
    }
    Ok(())
}

fn protocols(context: &Context) -> Result<()> {
    for protocol in ["linux64", "linux32", "pvh"] {
        let finished = context.run(&["--protocol", protocol, "--exec", "echo started"])?;
        finished.status(0)?.prints("started\n").with_context(|| format!("--protocol {protocol}"))?;
    }
    context.run(&["--protocol", "multiboot1", "--exec", "true"])?.status(2)?.says("multiboot")?;
    Ok(())
}

/// The file of `--stats`.
pub fn read_stats(path: &str) -> Result<Value> {
    Ok(serde_json::from_slice(&std::fs::read(Path::new(path))?)?)
}

/// Fails unless each of these counts is as large as it says, or larger.
pub fn at_least(counts: &Value, least: &[(&str, u64)]) -> Result<()> {
    let few = least.iter().find(|(key, least)| counts[*key].as_u64().is_none_or(|count| count < *least));
    ensure!(few.is_none(), "{few:?}: {counts}");
    Ok(())
}

fn stats(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let command = "grep -m1 flags /proc/cpuinfo; exit 3";
    let finished = context.run(&["--stats", &path, "--exec", command])?.status(3)?;
    finished.has(" hypervisor")?.has(" constant_tsc")?.lacks(" svm")?;
    let stats = read_stats(&path)?;
    ensure!(stats["schema"] == 2 && stats["machine"] == "qemu-svm" && stats["status"] == 3, "{stats}");
    let guest = &stats["guests"][0];
    ensure!(guest["tsc"].as_u64().is_some_and(|tsc| tsc > 0), "{stats}");
    let exits = guest["exits"].as_array().map_or(&[][..], Vec::as_slice);
    let cpuid = exits.iter().find(|exit| exit["reason"] == "cpuid");
    ensure!(
        cpuid.is_some_and(|exit| exit["count"].as_u64() > Some(0) && exit["ticks"].as_u64() > Some(0)),
        "{stats}"
    );
    ensure!(guest["injections"]["external_interrupt"].as_u64() > Some(0), "{stats}");
    let paging = &guest["paging"];
    ensure!(paging["mode"] == "nested" && paging["switches"]["to_nested"] == 0, "{stats}");
    ensure!(paging.get("shadow").is_none(), "{stats}");
    Ok(())
}

fn changes(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let options = ["--mode", "switch=200", "--verbose", "--hv-arg", "loglevel=debug"];
    let more = ["--stats", &path, "--exec", "echo changed"];
    let finished = context.run(&[&options[..], &more].concat())?.status(0)?.prints("changed\n")?;
    finished.says("VCPU 0 uses nested tables, after ")?.says("VCPU 0 uses shadow tables, after ")?;
    let stats = read_stats(&path)?;
    let paging = &stats["guests"][0]["paging"];
    ensure!(paging["mode"] == "switch=200" && stats["mode"] == "switch=200", "{stats}");
    let changes = |direction: &str| paging["switches"][direction].as_u64().unwrap_or_default();
    ensure!(changes("to_nested") > 5 && changes("to_shadow") - changes("to_nested") <= 1, "{stats}");
    let counted = |name: &str| paging["shadow"][name].as_u64().unwrap_or_default();
    ensure!(counted("pool") == 818 && counted("filled") > 0 && counted("pages") > 0, "{stats}");
    Ok(())
}

fn native_stats(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    // Where they have threads of their own, QEMU may execute instructions that Linux overwrites at each boot, for ever (docs/qemu.md).
    let threads = ["--qemu-arg=-accel", "--qemu-arg=tcg,thread=single"];
    let run = ["--vcpus", "2", "--stats", &path, "--exec", "nproc"];
    context.run(&[&threads[..], &run].concat())?.status(0)?.prints("2\n")?;
    let stats = read_stats(&path)?;
    ensure!(stats["schema"] == 2 && stats["machine"] == "native" && stats["mode"].is_null(), "{stats}");
    Ok(())
}
