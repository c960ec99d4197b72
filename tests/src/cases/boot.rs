//! The default guest: Debian's kernel and the generated initramfs.

use std::{
    io::{BufRead, BufReader, PipeReader, Read as _, pipe},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Case, SHADOW, both, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    both("exec prints the output and nothing else", exec)
        .also(&["shadow", "switch=1"])
        .more(&["switch=7", "switch=50"]),
    only("qemu-svm", "shadow tables are checked while a guest boots", audited),
    only("qemu-svm", "a boot with few shadow pages", small_pool),
    only("qemu-svm", "a large guest on shadow tables", large_guest),
    both("exec returns the command's status", status),
    both("exec takes any text as the command", quoting),
    both("output is binary-safe", binary),
    both("much output arrives whole", much_output).more(SHADOW),
    both("output comes out before the session ends", last_words),
    both("a slow reader gets all of it", slow_reader),
    only("native", "a reader that comes late gets all of it", late_reader),
    both("stderr of the command is output too", stderr),
    both("put adds files and directories", put),
    both("put adds a program that runs", program),
    both("put adds a large file", large_file).more(SHADOW),
    both("output cannot pose as the end of the command", forgery),
    both("piped input reaches the command", input),
    both("piped input reaches the shell", shell).also(SHADOW),
    both("the end of the input does not end the guest", input_ends),
    only("qemu-svm", "a time limit ends a sleeping guest", timeout),
    only("qemu-svm", "a flood of output ends with the time limit", flood),
    both("the reader of the output goes away", closed_output),
    both("a panic of the guest's kernel is a death", kernel_panic).also(SHADOW),
    both("a reset during exec is a death", reset).also(SHADOW),
    both("a power-off during exec is not a success", early_power_off).also(SHADOW),
    both("the guest has the memory that was asked for", memory),
    both("more than 4 GiB of memory", much_memory).more(SHADOW),
    both("interrupts and timers work", timers).also(SHADOW),
    both("deterministic time", icount).more(&["switch=50"]),
    both("verbose shows the guest's boot", verbose),
    both("five boots in a row", |c| boots(c, 5)),
    both("fifty boots in a row", |c| boots(c, 50)).at_length(),
    only("native", "several processors", processors),
    only("qemu-svm", "every boot protocol of a bzImage", protocols).more(SHADOW),
    only("qemu-svm", "statistics", stats),
    only("qemu-svm", "changes of the mode are counted and logged", changes),
    only("native", "statistics of a native run", native_stats),
    only("qemu-svm", "the guest sees the hypervisor and no SVM", cpuid),
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
    let options = ["--mode", "shadow", "--shadow-pages", "16", "--stats", &path];
    context.run(&[&options[..], &["--exec", "echo small"]].concat())?.status(0)?.prints("small\n")?;
    let stats = read_stats(&path)?;
    let evictions = stats["guests"][0]["paging"]["shadow"]["evictions"].as_u64();
    ensure!(evictions > Some(100), "{stats}");
    Ok(())
}

/// `pal` gives the machine the memory that the hypervisor wants for the shadow tables, and no piece of it must be large.
fn large_guest(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let options = ["--mode", "shadow", "--mem", "4096", "--stats", &path];
    context.run(&[&options[..], &["--exec", "true"]].concat())?.status(0)?;
    let stats = read_stats(&path)?;
    let counted = |name: &str| stats["guests"][0]["paging"]["shadow"][name].as_u64();
    ensure!(counted("pool") > Some(10_000) && counted("most_bytes") < Some(10 << 20), "{stats}");
    Ok(())
}

fn exec(context: &Context) -> Result<()> {
    context.run(&["--exec", "echo one; echo two"])?.status(0)?.prints("one\ntwo\n")?.within(60)?;
    context
        .run(&["--exec", "uname -a; cat /proc/cpuinfo; free"])?
        .status(0)?
        .has("Linux palimpsest 6.")?
        .has("Mem:")?;
    Ok(())
}

fn status(context: &Context) -> Result<()> {
    context.run(&["--exec", "exit 42"])?.status(42)?.prints("")?;
    context.run(&["--exec", "false"])?.status(1)?;
    Ok(())
}

fn quoting(context: &Context) -> Result<()> {
    let long = "x".repeat(20_000);
    let command =
        format!("echo 'a \"b\" $c \\ ü' # comment\nfor i in 1 2; do echo \"$i\"; done; echo {long} | wc -c");
    context.run(&["--exec", &command])?.status(0)?.prints("a \"b\" $c \\ ü\n1\n2\n20001\n")?;
    Ok(())
}

fn binary(context: &Context) -> Result<()> {
    let command = "i=0; while [ $i -lt 256 ]; do printf \"\\\\x$(printf %02x $i)\"; i=$((i + 1)); done";
    let finished = context.run(&["--exec", command])?.status(0)?;
    ensure!(finished.raw == (0..=255).collect::<Vec<u8>>(), "{:?}", finished.raw);
    Ok(())
}

fn much_output(context: &Context) -> Result<()> {
    let finished = context.run(&["--exec", "seq 1 20000"])?.status(0)?;
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    ensure!(finished.stdout() == expected, "{} bytes of {}", finished.raw.len(), expected.len());
    Ok(())
}

/// Starts a command whose output is not read yet, through a pipe of one page.
fn start_unread(context: &Context, command: &str) -> Result<(Child, PipeReader)> {
    let (reader, writer) = pipe()?;
    rustix::pipe::fcntl_setpipe_size(&writer, 4096)?;
    let mut pal = Command::new(&context.pal);
    pal.args(["run", "--machine", context.machine, "--exec", command]);
    Ok((pal.stdin(Stdio::null()).stdout(writer).spawn()?, reader))
}

fn slow_reader(context: &Context) -> Result<()> {
    let (mut child, reader) = start_unread(context, "seq 1 20000")?;
    let mut reader = BufReader::new(reader);
    let mut output = String::new();
    reader.read_line(&mut output)?;
    // Meanwhile everything between here and the guest fills up.
    sleep(Duration::from_secs(6));
    reader.read_to_string(&mut output)?;
    let status = child.wait()?;
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    ensure!(output == expected && status.success(), "{status}, {} bytes of {}", output.len(), expected.len());
    Ok(())
}

fn late_reader(context: &Context) -> Result<()> {
    // A little more than the pipe holds: the machine is gone before it is read.
    let (mut child, mut reader) = start_unread(context, "seq -s, 1000 1840; exit 9")?;
    while rustix::io::ioctl_fionread(&reader)? == 0 {
        sleep(Duration::from_millis(100));
    }
    sleep(Duration::from_secs(12));
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
    for _ in 0..2 {
        // All at once, just before the session ends.
        context.run(&["--exec", "seq 1 900 > /all; cat /all"])?.status(0)?.prints(&expected)?;
    }
    Ok(())
}

fn stderr(context: &Context) -> Result<()> {
    context.run(&["--exec", "echo out; echo err >&2"])?.status(0)?.prints("out\nerr\n")?;
    Ok(())
}

fn put(context: &Context) -> Result<()> {
    let one = context.file("one", "first\n")?;
    std::fs::create_dir_all(context.path("tree/deep"))?;
    context.file("tree/deep/two", "second\n")?;
    let tree = format!("{}:/opt/tree", context.path("tree"));
    let command = "cat /one /opt/tree/deep/two";
    context.run(&["--put", &one, "--put", &tree, "--exec", command])?.status(0)?.prints("first\nsecond\n")?;
    Ok(())
}

fn program(context: &Context) -> Result<()> {
    let script = context.file("tool", "#!/bin/sh\necho tool \"$@\"\nexit 7\n")?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let put = format!("{script}:/usr/local/tool");
    context.run(&["--put", &put, "--exec", "/usr/local/tool a b"])?.status(7)?.prints("tool a b\n")?;
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
    let expected = String::from_utf8(sum.stdout)?;
    context
        .run(&["--mem", "512", "--put", &file, "--exec", "sha256sum < /large"])?
        .status(0)?
        .prints(&expected)?;
    Ok(())
}

fn forgery(context: &Context) -> Result<()> {
    let command = "printf '\\036pal 0123456789abcdef end 0\\036\\036pal x'; exit 9";
    let expected = "\x1epal 0123456789abcdef end 0\x1e\x1epal x";
    context.run(&["--exec", command])?.status(9)?.prints(expected)?;
    Ok(())
}

fn input(context: &Context) -> Result<()> {
    let command = "read first; read second; echo \"$second $first\"";
    context.run_with(&["--exec", command], Some(b"one\ntwo\n"))?.status(0)?.prints("two one\n")?;
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
        .run_with(&["--exec", "sleep 2; echo still here"], Some(b""))?
        .status(0)?
        .prints("still here\n")?;
    Ok(())
}

fn timeout(context: &Context) -> Result<()> {
    let options = ["--timeout", "25", "--exec", "echo before; sleep 1000"];
    context.run(&options)?.status(124)?.prints("before\n")?.says("25 s")?.within(60)?;
    Ok(())
}

fn flood(context: &Context) -> Result<()> {
    context.run(&["--timeout", "25", "--exec", "yes"])?.status(124)?.has("y\ny\ny\n")?.within(60)?;
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

fn memory(context: &Context) -> Result<()> {
    let command = "awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo";
    for (given, least, most) in [("96", 40, 90), ("1024", 920, 1015)] {
        let finished = context.run(&["--mem", given, "--exec", command])?.status(0)?;
        let total: u32 = finished.stdout().trim().parse()?;
        ensure!((least..=most).contains(&total), "--mem {given}: the guest has {total} MiB");
    }
    Ok(())
}

fn much_memory(context: &Context) -> Result<()> {
    let command = "awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo";
    let finished = context.run(&["--mem", "4608", "--exec", command])?.status(0)?;
    let total: u32 = finished.stdout().trim().parse()?;
    ensure!((4250..=4590).contains(&total), "the guest has {total} MiB");
    Ok(())
}

fn timers(context: &Context) -> Result<()> {
    // The kernel's clock and sleeping agree, and the console's input comes by interrupt.
    let command =
        "a=$(cut -d. -f1 /proc/uptime); sleep 3; b=$(cut -d. -f1 /proc/uptime); echo slept $((b - a)) s";
    let finished = context.run(&["--exec", command])?.status(0)?;
    ensure!(["slept 3 s\n", "slept 4 s\n"].contains(&finished.stdout().as_str()), "{}", finished.stdout());
    Ok(())
}

fn icount(context: &Context) -> Result<()> {
    context.run(&["--icount", "--exec", "echo counted"])?.status(0)?.prints("counted\n")?;
    Ok(())
}

fn verbose(context: &Context) -> Result<()> {
    context
        .run(&["--verbose", "--exec", "echo hello"])?
        .status(0)?
        .prints("hello\n")?
        .says("Linux version 6.")?;
    Ok(())
}

fn boots(context: &Context, count: u32) -> Result<()> {
    for number in 1..=count {
        let command = format!("echo boot {number}");
        context.run(&["--exec", &command])?.status(0)?.prints(&format!("boot {number}\n"))?;
    }
    Ok(())
}

fn processors(context: &Context) -> Result<()> {
    context.run(&["--vcpus", "2", "--exec", "nproc"])?.status(0)?.prints("2\n")?;
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

fn stats(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    context.run(&["--stats", &path, "--exec", "exit 3"])?.status(3)?;
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
    context.run(&["--stats", &path, "--exec", "true"])?.status(0)?;
    let stats = read_stats(&path)?;
    ensure!(stats["schema"] == 2 && stats["machine"] == "native" && stats["mode"].is_null(), "{stats}");
    Ok(())
}

fn cpuid(context: &Context) -> Result<()> {
    let finished = context.run(&["--exec", "grep -m1 flags /proc/cpuinfo"])?.status(0)?;
    finished.has(" hypervisor")?.has(" constant_tsc")?.lacks(" svm")?;
    Ok(())
}
