//! Disks whose files keep what a guest writes, also when the run is killed.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{Case, only, virtio::ext4};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "disks: a file keeps what is written, and is in memory once", lasting),
    only("qemu-svm", "disks: a run that is killed leaves a file that can be repaired", killed),
    only("qemu-svm", "disks: files that cannot be written back", refused),
];

/// A program of e2fsprogs, which Debian has in a folder of the administrator's.
fn e2fs(program: &str, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(arguments).env("PATH", path).output();
    let output = output.with_context(|| format!("{program}, of Debian's package e2fsprogs"))?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// The second disk is larger than all other memory. What is written to it is lost; to the first it lasts, over two runs.
fn lasting(context: &Context) -> Result<()> {
    let (image, _) = ext4(context)?;
    let large = context.path("large");
    fs::File::create(&large)?.set_len(1 << 30)?;
    let back = format!("{image}:rw");
    let options = ["--disk", &back, "--append", "root=/dev/vda", "--verbose"];
    let command = "echo one >> /kept; seq 9 | dd of=/dev/vdb bs=512 seek=2000000 conv=sync 2>/dev/null\n\
                   dd if=/dev/vdb bs=512 skip=2000000 count=1 2>/dev/null | head -c 4";
    let finished =
        context.run(&[&options[..], &["--disk", &large, "--exec", command]].concat())?.status(0)?;
    let finished = finished.prints("1\n2\n")?;
    // 256 MiB for the guest and the rest for the hypervisor, but nothing for the disks.
    let words: Vec<_> = finished.stderr.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "-m").context("no -m")?;
    let memory = words[at + 1].split_once('M').and_then(|(mib, _)| mib.parse::<u64>().ok());
    ensure!(memory.is_some_and(|mib| mib < 700), "the machine has {memory:?} MiB");
    context.run(&[&options[..], &["--exec", "cat /kept; echo two >> /kept"]].concat())?.prints("one\n")?;
    ensure!(e2fs("debugfs", &["-R", "cat /kept", &image])?.1 == "one\ntwo\n", "the file has not kept it");
    ensure!(e2fs("e2fsck", &["-fn", &image])?.0 == Some(0), "the file system is damaged");
    ensure!(fs::metadata(&large)?.blocks() == 0, "the other file has changed");
    Ok(())
}

/// Files are written and removed all the time; one has been synced when it is said. Killed are pal, and QEMU with it.
fn killed(context: &Context) -> Result<()> {
    let (image, _) = ext4(context)?;
    let command = "n=0; while :; do n=$((n + 1))\n\
                   head -c $((n * 3001 % 90000)) /blob > /file$((n % 7)); mkdir -p /d$((n % 5))/e; rm -rf /d$((n % 3))\n\
                   if [ $n = 20 ]; then cp /etc/motd /safe; sync; echo safe; fi; done";
    let disk = format!("{image}:rw");
    kill_a_run(context, &["--disk", &disk, "--append", "root=/dev/vda"], command, "safe")?;
    let (status, said) = e2fs("e2fsck", &["-fy", &image])?;
    ensure!(matches!(status, Some(0 | 1)), "e2fsck: {status:?}\n{said}");
    ensure!(e2fs("e2fsck", &["-fn", &image])?.0 == Some(0), "not repaired");
    ensure!(e2fs("debugfs", &["-R", "cat /safe", &image])?.1 == "from the disk\n", "what was synced is lost");
    let (_, listed) = e2fs("debugfs", &["-R", "ls -p /", &image])?;
    ensure!(listed.contains("/file3/"), "what was written before that is lost\n{listed}");
    Ok(())
}

/// Runs a guest until it prints `line`, and kills pal a moment later, while the guest goes on; QEMU ends with it.
pub fn kill_a_run(context: &Context, options: &[&str], command: &str, line: &str) -> Result<()> {
    let scratch = context.path("scratch");
    fs::create_dir_all(&scratch)?;
    let mut child = Command::new(&context.pal)
        .arg("run")
        .args(context.place())
        .args(options)
        .args(["--exec", command])
        .env("TMPDIR", &scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut first = String::new();
    BufReader::new(child.stdout.take().context("no output")?).read_line(&mut first)?;
    sleep(Duration::from_millis(500));
    let has_ended = child.try_wait()?;
    child.kill()?;
    child.wait()?;
    ensure!(first.strip_suffix('\n') == Some(line) && has_ended.is_none(), "{first:?}, {has_ended:?}");
    let start = Instant::now();
    while runs_with(&scratch) {
        ensure!(start.elapsed() < Duration::from_secs(120), "QEMU outlives pal");
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether a process has this word in its command line.
fn runs_with(word: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.into_iter().any(|line| String::from_utf8_lossy(&line).contains(word))
}

fn refused(context: &Context) -> Result<()> {
    let odd = context.file("odd", [0; 700])?;
    let whole = context.file("whole", [0; 4096])?;
    let (odd, back) = (format!("{odd}:rw"), format!("{whole}:rw"));
    context.run(&["--disk", &odd, "--exec", "true"])?.status(2)?.says("truncate -s %4096")?;
    for disks in [["--disk", &back, "--disk", &back], ["--disk", &back, "--disk", &whole]] {
        context.run(&disks)?.status(2)?.says("another disk of this one")?;
    }
    let bochs = ["run", "--machine", "bochs-vtx", "--disk", &back];
    context.pal(bochs, None)?.status(2)?.says("--machine qemu-svm, native")?;
    let missing = context.path("none");
    let config = format!("version = 1\n[[vm]]\nname = \"a\"\ndisks = [{{ file = \"{missing}\" }}]\n");
    let config = context.file("lab.toml", config)?;
    context.run(&["--config", &config])?.status(2)?.says("line 4: vm \"a\": `disks`")?;
    Ok(())
}
