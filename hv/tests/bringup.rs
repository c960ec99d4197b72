//! The host comes up on an emulated machine, its parts work, and every broken rule is reported as a panic.
//!
//! Runs the image that `cargo hv` built last (built if there is none) in QEMU, as `pal run` does.

#[allow(dead_code)]
mod grub;
mod image;
mod qemu;

use std::io::Write;
use std::process::Stdio;

/// Longer than any run takes, on slow and busy machines too: it is there so that nothing stays behind.
const SECONDS: u32 = 240;
/// QEMU's console, and the device by which the hypervisor ends it.
const CONSOLE: [&str; 4] = ["-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"];

/// Runs the hypervisor with these options on its command line and of QEMU; returns its output and QEMU's status.
fn run(append: &str, machine: &[&str], input: Option<&[u8]>) -> (String, i32) {
    let mut command = qemu::machine(SECONDS);
    command.args(CONSOLE).args(["-append", append]).args(machine).arg("-kernel").arg(image::path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("timeout (coreutils) and qemu-system-x86_64 are needed");
    let mut stdin = child.stdin.take().unwrap();
    if let Some(input) = input {
        std::thread::sleep(std::time::Duration::from_secs(3));
        stdin.write_all(input).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text, output.status.code().unwrap())
}

/// QEMU's status when the hypervisor writes this to isa-debug-exit.
const fn qemu_status(status: i32) -> i32 {
    status << 1 | 1
}

#[test]
fn the_parts_work() {
    let machines: [&[&str]; 4] = [
        &["-icount", "shift=0,sleep=off"],
        &["-m", "5G", "-smp", "2"],
        &["-m", "20"],
        &["-machine", "pc", "-cpu", "max"],
    ];
    for machine in machines {
        let (text, status) = run("exit=isa-debug:0xf4 selftest=quick", machine, None);
        assert!(text.contains("[hv] selftest: passed"), "{machine:?}: {text}");
        assert!(!text.contains("panic"), "{machine:?}: {text}");
        assert_ne!(status, 124, "{machine:?}: {text}");
    }
}

/// All PCPUs start, work at once, and can switch virtualization on.
#[test]
fn many_pcpus_work() {
    for (topology, pcpus) in [("1", 1), ("2", 2), ("4,sockets=2,cores=2", 4), ("16", 16)] {
        let (text, status) = run("exit=isa-debug:0xf4 selftest=smp", &["-smp", topology], None);
        assert_eq!(status, qemu_status(0), "{topology}: {text}");
        assert!(text.contains(&format!("[hv] selftest: passed on {pcpus} PCPUs")), "{topology}: {text}");
        assert!(!text.contains("warning"), "{topology}: {text}");
        let said =
            |n| text.lines().filter(|line| line.starts_with(&format!("[hv] selftest: PCPU {n} of "))).count();
        assert!((0..pcpus).all(|n| said(n) == 1), "{topology}: {text}");
    }
    let (text, status) = run("exit=isa-debug:0xf4 selftest=smp pcpus=2", &["-smp", "3"], None);
    assert_eq!(status, qemu_status(0), "{text}");
    assert!(text.contains("2 of 3 PCPUs") && text.contains("passed on 2 PCPUs"), "{text}");
}

#[test]
fn a_pcpu_that_does_not_start_is_left_out() {
    let (text, status) = run("exit=isa-debug:0xf4 selftest=absent-pcpu", &["-smp", "3"], None);
    assert_eq!(status, qemu_status(0), "{text}");
    assert!(text.contains("the PCPU with APIC ID 253 is not used: it did not start"), "{text}");
    assert!(text.contains("3 of 4 PCPUs") && text.contains("passed on 3 PCPUs"), "{text}");
}

/// Two PCPUs panic, two are at work: there is one report, and nothing after it.
#[test]
fn a_panic_stops_all_pcpus() {
    let (text, status) = run("exit=isa-debug:0xf4 selftest=panic-elsewhere", &["-smp", "4"], None);
    assert_eq!(status, qemu_status(4), "{text}");
    assert_eq!(text.matches("panicked at").count(), 1, "{text}");
    let end = text.lines().skip_while(|line| !line.contains("panicked at")).collect::<Vec<_>>();
    assert!(end.iter().all(|line| line.starts_with("[hv] panic: ")), "{end:#?}");
    assert!(end.last().is_some_and(|line| line.contains("backtrace: 0x")), "{end:#?}");
}

#[test]
fn broken_rules_are_reported() {
    let rules = [
        ("panic", "panicked at"),
        ("null", "page fault, vector 14, error 0x0"),
        ("write-code", "page fault, vector 14, error 0x3"),
        ("execute-data", "page fault, vector 14, error 0x11"),
        ("sse", "CR0.TS is its tripwire"),
        ("stack", "double fault"),
        ("heap", "memory allocation of 70368744177664 bytes failed"),
    ];
    for (test, message) in rules {
        let (text, status) = run(&format!("exit=isa-debug:0xf4 selftest={test}"), &[], None);
        assert_eq!(status, qemu_status(4), "{test}: {text}");
        assert!(text.contains(message) && text.contains("backtrace:"), "{test}: {text}");
    }
}

#[test]
fn console_input_arrives_by_interrupt() {
    let (text, status) = run("exit=isa-debug:0xf4 selftest=console", &[], Some(b"hello q"));
    assert_eq!(status, qemu_status(0), "{text}");
    assert!(text.contains("got 0x68") && text.contains("got 0x71"), "{text}");
}

/// GRUB reads the multiboot2 header and passes modules with their command lines.
#[test]
fn grub_starts_it_by_multiboot2() {
    if !grub::can_make_media(grub::BIOS) {
        return;
    }
    let entry = "multiboot2 /boot/palimpsest exit=isa-debug:0xf4 selftest=quick
                 module2 /boot/one first module
                 module2 /boot/palimpsest second";
    let text = start_by_grub(entry, &[("one", &[1; 5000])]);
    assert!(text.contains("started by GRUB") && text.contains("selftest: passed"), "{text}");
    assert!(text.contains("first module") && text.contains("second"), "{text}");
}

/// GRUB loads the image there without a look at the memory map. What firmware keeps there serves calls that the hypervisor
/// never makes.
#[test]
fn it_starts_in_memory_that_firmware_keeps() {
    if !grub::can_make_media(grub::BIOS) {
        return;
    }
    let entry = "insmod mmap
                 cutmem 2M 4M
                 multiboot2 /boot/palimpsest exit=isa-debug:0xf4 selftest=quick loglevel=debug";
    let text = start_by_grub(entry, &[]);
    assert!(
        text.contains("range: 1048576..2097152, kind: Usable }, Region { range: 4194304.."),
        "no memory was cut: {text}"
    );
    assert!(text.contains("selftest: passed"), "{text}");
}

/// Boots by these lines of GRUB's, with these files in `/boot`; returns the output.
fn start_by_grub(entry: &str, files: &[(&str, &[u8])]) -> String {
    let iso = grub::Iso::new(grub::BIOS, entry, files);
    let mut command = qemu::machine(SECONDS);
    command.args(CONSOLE).arg("-cdrom").arg(iso.path());
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Packages and last-level caches by CPUID, memory nodes by SRAT and SLIT.
#[test]
fn the_shape_of_the_machine_is_found() {
    let say = |machine: &[&str]| {
        let (text, status) = run("exit=isa-debug:0xf4 probe", machine, None);
        assert_eq!(status, qemu_status(0), "{text}");
        text
    };
    let text = say(&["-smp", "4,sockets=2,cores=2"]);
    let two = "4 cores in 2 packages, last-level caches of PCPUs 0-1, 2-3, 1 memory node";
    assert!(text.contains(&format!("\n  {two}\r\n")), "{text}");
    let text = say(&["-smp", "8,sockets=1,cores=4,threads=2", "-cpu", "Skylake-Client"]);
    let one = "4 cores in 1 package, last-level cache of PCPUs 0-7, 1 memory node";
    assert!(text.contains(&format!("\n  {one}\r\n")), "{text}");
    let text = say(&[
        "-smp",
        "4,sockets=2,cores=2",
        "-object",
        "memory-backend-ram,size=64M,id=a",
        "-object",
        "memory-backend-ram,size=192M,id=b",
        "-numa",
        "node,nodeid=0,cpus=0-1,memdev=a",
        "-numa",
        "node,nodeid=1,cpus=2-3,memdev=b",
        "-numa",
        "dist,src=0,dst=1,val=31",
    ]);
    assert!(text.contains("PCPUs 0-1, 2-3, 2 memory nodes"), "{text}");
    assert!(text.contains("memory node 0: ") && text.contains("distances 10, 31"), "{text}");
    assert!(text.contains("memory node 1: 192 MiB, distances 31, 10"), "{text}");
}
