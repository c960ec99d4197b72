//! Virtio devices, with Linux's own drivers: disks, network cards, the console, random numbers.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::{Case, SHADOW, only};
use crate::context::Context;

/// Shadow tables see what devices write; changes of the mode meet devices at work.
const MODES: &[&str] = &["shadow", "switch=50"];

pub const CASES: &[Case] = &[
    only("qemu-svm", "virtio: an ext4 root file system on a disk", root).also(&["switch=50"]).more(SHADOW),
    only("qemu-svm", "virtio: disks keep what is written, and their files stay", disks).more(MODES),
    only("qemu-svm", "virtio: disks without messages, with a line", lines),
    only("qemu-svm", "virtio: a disk of a 32-bit guest", |c| disks_32(c, "debian-686")),
    only("qemu-svm", "virtio: a disk of a guest with PAE tables", |c| disks_32(c, "debian-686-pae"))
        .at_length(),
    only("qemu-svm", "virtio: a source of random numbers", entropy),
    only("qemu-svm", "virtio: a console", console).more(MODES),
    only("qemu-svm", "virtio: a console that two processors serve", console_of_two),
    only("qemu-svm", "virtio: input reaches the console", console_input),
    only("qemu-svm", "virtio: network cards and a switch", network).more(MODES),
    only("native", "virtio: QEMU's devices stand in for the hypervisor's", native),
];

/// A file of `kib` KiB of numbers that do not repeat.
fn noise(context: &Context, name: &str, kib: u32) -> Result<String> {
    let mut state = 0x2545_f491_u32;
    let bytes = (0..kib * 1024).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    context.file(name, bytes.collect::<Vec<_>>())
}

/// The MD5 sum of a file on this machine.
fn sum(path: &str) -> Result<String> {
    let output = Command::new("md5sum").arg(path).output().context("md5sum")?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

/// Such a file, and its sum.
pub fn noise_and_sum(context: &Context, name: &str, kib: u32) -> Result<(String, String)> {
    let path = noise(context, name, kib)?;
    let sum = sum(&path)?;
    Ok((path, sum))
}

/// An image of an ext4 file system with a file `motd` and a file of noise, and that file's sum.
pub fn ext4(context: &Context) -> Result<(String, String)> {
    let root = context.path("root");
    fs::create_dir_all(format!("{root}/etc"))?;
    fs::write(format!("{root}/etc/motd"), "from the disk\n")?;
    let blob = noise(context, "root/blob", 3000)?;
    let image = context.path("root.ext4");
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-d", &root, &image, "16M"]).env("PATH", path);
    mke2fs.stdout(std::process::Stdio::null());
    let status = mke2fs.status().context("mke2fs, of Debian's package e2fsprogs")?;
    ensure!(status.success(), "mke2fs failed");
    Ok((image, sum(&blob)?))
}

fn root(context: &Context) -> Result<()> {
    let (image, blob) = ext4(context)?;
    let before = sum(&image)?;
    let command = "cat /etc/motd; md5sum < /blob; grep -c ' / ext4 rw' /proc/mounts\n\
                   dd if=/blob of=/copy bs=7k 2>/dev/null; sync; echo 3 > /proc/sys/vm/drop_caches\n\
                   md5sum < /copy; rm /copy; mount -o remount,ro / && echo clean";
    context
        .run(&["--disk", &image, "--append", "root=/dev/vda", "--exec", command, "--get", "/etc/motd"])?
        .status(0)?
        .prints(&format!("from the disk\n{blob}  -\n1\n{blob}  -\nclean\n"))?;
    ensure!(sum(&image)? == before, "the image has changed");
    ensure!(fs::read(context.path("motd"))? == b"from the disk\n", "the file that it sends");
    Ok(())
}

fn disks(context: &Context) -> Result<()> {
    // The second ends within a page.
    let (a, b) = (noise(context, "a", 4096)?, noise(context, "b", 3)?);
    let command = "md5sum < /dev/vda; md5sum < /dev/vdb; cat /sys/block/vd?/ro /sys/block/vda/serial; echo\n\
                   dd if=/dev/zero of=/dev/vdb bs=512 count=1 conv=fsync 2>/dev/null || echo refused\n\
                   dd if=/dev/zero of=/dev/vda bs=512 seek=3 count=4000 conv=fsync 2>/dev/null\n\
                   echo 3 > /proc/sys/vm/drop_caches\n\
                   dd if=/dev/vda bs=512 skip=3 count=4000 2>/dev/null | tr -d '\\0' | wc -c\n\
                   dd if=/dev/vda bs=512 count=3 2>/dev/null | md5sum\n\
                   dd if=/dev/vda bs=512 skip=4003 2>/dev/null | md5sum";
    let bytes = fs::read(&a)?;
    let parts = [&bytes[..3 * 512], &bytes[4003 * 512..]];
    let mut sums = vec![sum(&a)?, sum(&b)?];
    for part in parts {
        sums.push(sum(&context.file("part", part)?)?);
    }
    let [sum_a, sum_b, head, tail] = &sums[..] else { unreachable!() };
    context
        .run(&["--disk", &a, "--disk", &format!("{b}:ro"), "--exec", command])?
        .status(0)?
        .prints(&format!("{sum_a}  -\n{sum_b}  -\n0\n1\ndisk0\nrefused\n0\n{head}  -\n{tail}  -\n"))?;
    ensure!(sum(&a)? == *sum_a, "the file has changed");
    Ok(())
}

fn lines(context: &Context) -> Result<()> {
    let disk = noise(context, "disk", 2048)?;
    let command = "for i in 1 2 3 4; do dd if=/dev/vda of=/dev/null bs=4k iflag=direct 2> /dev/null & done; wait\n\
                   md5sum < /dev/vda; grep -c 'IO-APIC.*fasteoi *virtio0' /proc/interrupts";
    let expected = format!("{}  -\n1\n", sum(&disk)?);
    let options = ["--disk", &disk, "--append", "pci=nomsi", "--exec", command];
    context.run(&[&["--vcpus", "4", "--pcpus", "2"], &options[..]].concat())?.status(0)?.prints(&expected)?;
    Ok(())
}

fn disks_32(context: &Context, guest: &str) -> Result<()> {
    let (image, blob) = ext4(context)?;
    let options = ["--guest", guest, "--disk", &image, "--append", "root=/dev/vda"];
    context
        .run(&[&options[..], &["--exec", "cat /etc/motd; md5sum < /blob"]].concat())?
        .status(0)?
        .prints(&format!("from the disk\n{blob}  -\n"))?;
    Ok(())
}

fn entropy(context: &Context) -> Result<()> {
    let command = "cat /sys/class/misc/hw_random/rng_current\n\
                   head -c 4096 /dev/hwrng > /a; head -c 4096 /dev/hwrng > /b\n\
                   wc -c < /a; cmp -s /a /b || echo different; gzip < /a > /z; [ $(wc -c < /z) -gt 4000 ] && echo random";
    context
        .run(&["--entropy", "--exec", command])?
        .status(0)?
        .prints("virtio_rng.0\n4096\ndifferent\nrandom\n")?;
    Ok(())
}

fn console(context: &Context) -> Result<()> {
    let lines: String = (1..=4_000).map(|n| format!("{n}\n")).collect();
    context
        .run(&["--virtio-console", "--exec", "tty; seq 1 4000"])?
        .status(0)?
        .prints(&format!("/dev/hvc0\n{lines}"))?;
    Ok(())
}

/// The other processor is busy with exits, and finds the console waiting at each.
fn console_of_two(context: &Context) -> Result<()> {
    // Some thousand buffers: each one is a race of its own, and takes both processors for milliseconds.
    let lines: String = (1..=3_000).map(|n| format!("{n}\n")).collect();
    let command = "while :; do cat /proc/cpuinfo; done > /dev/null & seq 1 3000";
    context
        .run(&["--virtio-console", "--vcpus", "2", "--pcpus", "2", "--exec", command])?
        .status(0)?
        .prints(&lines)?;
    Ok(())
}

fn console_input(context: &Context) -> Result<()> {
    context
        .run_with(&["--virtio-console", "--exec", "read a b; echo $b $a"], Some(b"one two\n"))?
        .status(0)?
        .prints("two one\n")?;
    Ok(())
}

/// For two cards of one guest at the same switch, each in a network of its own.
pub const NETWORK: &str = "unshare -n sleep 1000 & other=$!\n\
    until [ $(readlink /proc/$other/ns/net) != $(readlink /proc/self/ns/net) ]; do sleep 0.1; done\n\
    there() { nsenter -t $other -n \"$@\"; }\n\
    ip link set eth1 netns $other\n\
    ip addr add 10.0.0.1/24 dev eth0; ip link set eth0 up\n\
    there ip addr add 10.0.0.2/24 dev eth1; there ip link set eth1 up\n\
    ping -c 3 -w 30 10.0.0.2 | grep -o '[0-9]* packets received'\n\
    head -c 2000000 /dev/urandom > /sent\n\
    tail -f /dev/null | there nc -l -p 5000 > /received &\n\
    until there grep -qs :1388 /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done\n\
    nc 10.0.0.2 5000 < /sent; until [ $(wc -c < /received) -ge 2000000 ]; do sleep 0.1; done\n\
    cmp /sent /received && echo same; kill $other";

fn network(context: &Context) -> Result<()> {
    let command = &format!("cat /sys/class/net/eth?/address\n{NETWORK}");
    let finished = context.run(&["--net", "lan", "--net", "lan", "--exec", command])?.status(0)?;
    let finished = finished.has("3 packets received\nsame\n")?;
    let addresses: Vec<_> = finished.stdout().lines().take(2).map(str::to_owned).collect();
    ensure!(
        addresses.iter().all(|mac| mac.starts_with("52:")) && addresses[0] != addresses[1],
        "{addresses:?}"
    );
    Ok(())
}

/// QEMU's devices look the same to a guest: all of them in one run.
fn native(context: &Context) -> Result<()> {
    let (a, b) = (noise(context, "a", 512)?, noise(context, "b,c", 3)?);
    let command = &format!(
        "tty; md5sum < /dev/vda; md5sum < /dev/vdb; cat /sys/block/vd?/ro /sys/block/vda/serial; echo\n\
         dd if=/dev/zero of=/dev/vdb bs=512 count=1 conv=fsync 2>/dev/null || echo refused\n\
         dd if=/dev/zero of=/dev/vda bs=512 count=4 conv=fsync 2>/dev/null; echo 3 > /proc/sys/vm/drop_caches\n\
         dd if=/dev/vda bs=512 count=4 2>/dev/null | tr -d '\\0' | wc -c\n\
         cat /sys/class/misc/hw_random/rng_current; head -c 4096 /dev/hwrng | wc -c\n{NETWORK}\nread a b; echo $b $a"
    );
    let (sum_a, sum_b) = (sum(&a)?, sum(&b)?);
    let read_only = format!("{b}:ro");
    let devices =
        ["--disk", &a, "--disk", &read_only, "--net", "lan", "--net", "lan", "--virtio-console", "--entropy"];
    let finished =
        context.run_with(&[&devices[..], &["--exec", command]].concat(), Some(b"one two\n"))?.status(0)?;
    finished.prints(&format!(
        "/dev/hvc0\n{sum_a}  -\n{sum_b}  -\n0\n1\ndisk0\nrefused\n0\nvirtio_rng.0\n4096\n3 packets received\nsame\ntwo one\n"
    ))?;
    ensure!(sum(&a)? == sum_a, "the file has changed");
    Ok(())
}
