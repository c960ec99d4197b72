//! Media for real machines, on emulated ones: a PC's BIOS and UEFI load them, the guest runs and powers off.

use std::{path::Path, process::Command};

use anyhow::{Result, ensure};

use super::{Case, only};
use crate::context::{BOCHS_TIMEOUT, Context, Finished, PATIENCE};

pub const CASES: &[Case] = &[
    only("qemu-svm", "an ISO image boots on BIOS", iso_bios),
    only("qemu-svm", "an ISO image boots on UEFI", iso_uefi),
    only("qemu-svm", "an ISO image boots from a USB stick on BIOS", iso_stick_bios).at_length(),
    only("qemu-svm", "an ISO image boots from a USB stick on UEFI", iso_stick).at_length(),
    only("qemu-svm", "an ISO image boots a guest without the hypervisor", iso_native),
    only("qemu-svm", "a USB image boots on BIOS", usb_bios).at_length(),
    only("qemu-svm", "a USB image boots on UEFI", usb_uefi),
    only("bochs-vtx", "an ISO image boots from a CD", |c| {
        intel(c, "iso", "type=cdrom, status=inserted", "cdrom")
    }),
    only("bochs-vtx", "an ISO image boots from a disk", |c| intel(c, "iso", "type=disk, mode=flat", "disk")),
    only("bochs-vtx", "a USB image boots from a disk", |c| intel(c, "usb", "type=disk, mode=flat", "disk")),
    only("qemu-svm", "iPXE boots from the network on BIOS", net_bios).at_length(),
    only("qemu-svm", "iPXE boots from the network on UEFI", net_uefi),
    only("qemu-svm", "the loader boots from the network on BIOS without the script", net_bios_loader),
    only("qemu-svm", "the loader boots from the network on UEFI without iPXE", net_uefi_loader),
    only("qemu-svm", "the menu's report on the machine, on UEFI", probe),
    only("qemu-svm", "a description makes an image with two guests", description),
    only("qemu-svm", "an image starts two guests together", together),
    only("native", "the same image is made twice", same),
    only("native", "unusable descriptions of images", bad_descriptions),
    only("native", "any file can be inspected", inspect_anything),
];

/// What the guest does before it powers off.
const COMMAND: &str = "echo the sum is $((40 + 2)); uname -r";
/// What it prints.
const PRINTED: &str = "the sum is 42";

/// The firmware of a machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Firmware {
    Bios,
    Uefi,
}

/// Makes an image whose guest runs [`COMMAND`].
fn make(context: &Context, kind: &str, name: &str, options: &[&str]) -> Result<String> {
    let path = context.path(name);
    let guest = ["--append", "quiet", "--exec", COMMAND];
    context.pal([&["image", kind, "-o", &path], &guest[..], options].concat(), None)?.status(0)?;
    Ok(path)
}

/// Starts a machine, waits until it switches itself off, and looks at what the guest printed.
fn boot(context: &Context, firmware: Firmware, medium: &[&str]) -> Result<Finished> {
    start(context, firmware, medium)?.has(PRINTED)
}

/// Starts a machine and waits until it switches itself off.
fn start(context: &Context, firmware: Firmware, medium: &[&str]) -> Result<Finished> {
    let mut machine = Command::new("qemu-system-x86_64");
    let parts = "-machine q35 -accel tcg -cpu EPYC,+svm,+npt -m 512 -nodefaults -display none -vga none -serial stdio -no-reboot";
    machine.args(parts.split(' '));
    if firmware == Firmware::Uefi {
        machine.args(["-bios", "/usr/share/ovmf/OVMF.fd"]);
    }
    machine.args(medium);
    // It is there so that nothing stays behind.
    let finished = context.wait_for(machine, PATIENCE)?.status(0)?;
    // OVMF and the iPXE in it write on the serial port what they start; a BIOS does not.
    let uefi = ["BdsDxe: starting Boot", "x64.efi... ok"].iter().any(|line| finished.stdout().contains(line));
    ensure!(uefi == (firmware == Firmware::Uefi), "the other firmware booted\n{}", finished.stdout());
    Ok(finished)
}

/// The guest ran on the hypervisor, which saw it power off.
fn on_hypervisor(finished: Finished) -> Result<Finished> {
    finished.has("[hv] Palimpsest ")?.has("started by GRUB")?.has("[hv] debian-amd64: power-off")
}

fn stick(path: &str) -> [String; 6] {
    let drive = format!("if=none,id=stick,file={path},format=raw,snapshot=on");
    ["-drive", &drive, "-device", "qemu-xhci", "-device", "usb-storage,drive=stick"].map(str::to_owned)
}

fn boot_stick(context: &Context, firmware: Firmware, path: &str) -> Result<Finished> {
    boot(context, firmware, &stick(path).each_ref().map(String::as_str))
}

/// The rest of a machine that boots `file` from the network. The directory of the image is not the server's root, as on
/// most servers.
fn network(context: &Context, rom: &str, file: &str) -> [String; 6] {
    let net = format!("user,id=net,tftp={},bootfile=lab/pal/{file}", context.path("server"));
    let card = format!("virtio-net-pci,netdev=net{rom}");
    ["-netdev", &net, "-device", &card, "-boot", "n"].map(str::to_owned)
}

/// Makes an image with a small guest, for where Linux takes too long.
fn make_small(context: &Context, kind: &str, name: &str) -> Result<String> {
    let (path, kit) = (context.path(name), context.kit.to_string_lossy());
    let guest = ["--kernel", &kit, "--append", "print=hello", "--mem", "64", "--timeout", "0"];
    context.pal([&["image", kind, "-o", &path], &guest[..]].concat(), None)?.status(0)?;
    Ok(path)
}

/// The small guest ran on the hypervisor.
fn small_ran(finished: Finished) -> Result<()> {
    finished.has("started by GRUB")?.has("kit: hello")?.has("[hv] guest: power-off")?;
    Ok(())
}

/// What takes time here is the network.
fn boot_small(context: &Context, firmware: Firmware, rom: &str, file: &str) -> Result<()> {
    std::fs::create_dir_all(context.path("server/lab"))?;
    make_small(context, "netboot", "server/lab/pal")?;
    small_ran(start(context, firmware, &network(context, rom, file).each_ref().map(String::as_str))?)
}

/// Bochs' machine for a guest without the hypervisor, with the medium in it: the guest that is named is never read.
fn intel(context: &Context, kind: &str, drive: &str, order: &str) -> Result<()> {
    let (path, kit) = (make_small(context, kind, "medium")?, context.kit.to_string_lossy());
    let lines = [format!("ata0-master: {drive}, path={path}"), format!("boot: {order}")];
    let medium = ["--bochs-line", &lines[0], "--bochs-line", &lines[1], "--timeout", BOCHS_TIMEOUT];
    let machine = ["run", "--machine", "bochs-native", "--kernel", &kit];
    small_ran(context.pal([&machine[..], &medium].concat(), None)?.status(0)?)
}

/// The menu is on the serial port.
fn iso_bios(context: &Context) -> Result<()> {
    let path = make(context, "iso", "boot.iso", &["--timeout", "1"])?;
    let finished = on_hypervisor(boot(context, Firmware::Bios, &["-cdrom", &path])?)?;
    finished.has("GNU GRUB")?.has("debian-amd64 switch=50")?.has("probe")?;
    Ok(())
}

fn iso_uefi(context: &Context) -> Result<()> {
    let path = make(context, "iso", "boot.iso", &["--timeout", "0", "--default", "debian-amd64 shadow"])?;
    on_hypervisor(boot(context, Firmware::Uefi, &["-cdrom", &path])?)?;
    Ok(())
}

fn iso_stick_bios(context: &Context) -> Result<()> {
    let stick = stick(&make_small(context, "iso", "boot.iso")?);
    small_ran(start(context, Firmware::Bios, &stick.each_ref().map(String::as_str))?)
}

fn iso_stick(context: &Context) -> Result<()> {
    let path = make(context, "iso", "boot.iso", &["--timeout", "0"])?;
    on_hypervisor(boot_stick(context, Firmware::Uefi, &path)?)?;
    Ok(())
}

fn iso_native(context: &Context) -> Result<()> {
    // On a busy machine Linux alone may miss the ticks that it looks for.
    let options = ["--timeout", "0", "--default", "debian-amd64 native", "--append", "no_timer_check"];
    let path = make(context, "iso", "boot.iso", &options)?;
    boot(context, Firmware::Bios, &["-cdrom", &path])?.lacks("[hv]")?;
    Ok(())
}

/// It needs no guest; without one, GRUB's own information is the first thing in memory, and ACPI is found by it.
fn probe(context: &Context) -> Result<()> {
    let config = context.file("probe.toml", "version = 1\ntimeout = 0\n")?;
    let path = context.path("probe.iso");
    context.pal(["image", "iso", "-o", &path, "--config", &config], None)?.status(0)?.says("1 menu entry")?;
    let finished = start(context, Firmware::Uefi, &["-cdrom", &path])?;
    finished.has("on UEFI")?.has("virtualization: AMD-V")?.has("1 in the MADT")?.has("end of the report")?;
    Ok(())
}

/// The hypervisor's debug log comes out of the same port, in the middle of the guest's lines.
fn usb_bios(context: &Context) -> Result<()> {
    let options = ["--timeout", "0", "--default", "debian-amd64 switch=50", "--hv-arg", "loglevel=debug"];
    let path = make(context, "usb", "disk.img", &options)?;
    let finished = start(context, Firmware::Bios, &stick(&path).each_ref().map(String::as_str))?;
    let text = finished.stdout();
    let mut pieces = text.split("[hv] debug: ");
    let first = pieces.next().unwrap_or_default().to_owned();
    let guest = pieces.filter_map(|piece| piece.split_once('\n')).fold(first, |text, (_, rest)| text + rest);
    ensure!(guest.contains(PRINTED), "no {PRINTED:?} in\n{text}");
    on_hypervisor(finished)?.has("VCPU 0 uses shadow tables, after")?;
    Ok(())
}

fn usb_uefi(context: &Context) -> Result<()> {
    let path = make(context, "usb", "disk.img", &["--timeout", "0"])?;
    on_hypervisor(boot_stick(context, Firmware::Uefi, &path)?)?;
    Ok(())
}

fn net_bios(context: &Context) -> Result<()> {
    std::fs::create_dir_all(context.path("server/lab"))?;
    make(context, "netboot", "server/lab/pal", &["--timeout", "0"])?;
    let network = network(context, "", "palimpsest.ipxe");
    on_hypervisor(boot(context, Firmware::Bios, &network.each_ref().map(String::as_str))?)?;
    Ok(())
}

fn net_uefi(context: &Context) -> Result<()> {
    boot_small(context, Firmware::Uefi, "", "palimpsest.ipxe")
}

/// iPXE starts it as any other PXE client does.
fn net_bios_loader(context: &Context) -> Result<()> {
    boot_small(context, Firmware::Bios, "", "boot/grub/bios.0")
}

/// Without iPXE.
fn net_uefi_loader(context: &Context) -> Result<()> {
    boot_small(context, Firmware::Uefi, ",romfile=", "boot/grub/x64.efi")
}

/// The second guest is a multiboot kernel of our own, with a module, and boots by itself.
fn description(context: &Context) -> Result<()> {
    std::fs::copy(&context.kit, context.path("kit.elf"))?;
    context.file("module one.txt", "contents")?;
    let text = "version = 1\nlabel = \"LAB\"\ntimeout = 0\ndefault = \"kit shadow\"\nmodes = [\"nested\", \"switch=7\"]\n\
                [[vm]]\nname = \"linux\"\nexec = \"uname -m\"\n\
                [[vm]]\nname = \"kit\"\nkernel = \"kit.elf\"\nmode = \"shadow\"\nmemory_mib = 32\ncmdline = \"print=hello\"\n\
                modules = [{ file = \"module one.txt\", cmdline = \"one x\" }]\n";
    let config = context.file("lab.toml", text)?;
    let path = context.path("lab.iso");
    context
        .pal(["image", "iso", "-o", &path, "--config", &config], None)?
        .status(0)?
        .says("5 menu entries")?;
    let shown = context.pal(["image", "inspect", &path], None)?.status(0)?;
    let shown =
        shown.has("ISO image LAB")?.has("* kit shadow")?.has("  linux switch=7")?.has("linux native")?;
    shown.has(" 32 MiB, 1 VCPU, command line \"print=hello\"")?;
    let finished = start(context, Firmware::Bios, &["-cdrom", &path])?;
    finished
        .has("kit: module 0 size 8 ")?
        .has("line one x")?
        .has("kit: hello")?
        .has("[hv] kit: power-off")?;
    Ok(())
}

/// Both guests are kernels of our own; the second has the console.
fn together(context: &Context) -> Result<()> {
    std::fs::copy(&context.kit, context.path("kit.elf"))?;
    let vm = |name: &str, more: &str| {
        let cmdline = format!("cmdline = \"print=hello-{name}\"\n");
        format!("[[vm]]\nname = \"{name}\"\nkernel = \"kit.elf\"\nmemory_mib = 32\n{cmdline}{more}\n")
    };
    let head = "version = 1\ntimeout = 0\ndefault = \"together\"\ntogether = true\nconsole = \"b\"\nmodes = [\"nested\"]\n";
    let (a, b) =
        (vm("a", "mode = \"shadow\"\nnetworks = [\"lan\"]"), vm("b", "disks = [{ file = \"kit.elf\" }]"));
    let config = context.file("lab.toml", format!("{head}{a}{b}"))?;
    let path = context.path("lab.iso");
    context
        .pal(["image", "iso", "-o", &path, "--config", &config], None)?
        .status(0)?
        .says("5 menu entries")?;
    let shown = context.pal(["image", "inspect", &path], None)?.status(0)?.has("* together")?;
    shown.has("command line \"print=hello-a\"")?.has("command line \"print=hello-b\"")?;
    let finished = start(context, Firmware::Bios, &["-cdrom", &path])?;
    let finished = finished.has("[hv] a: power-off")?.has("[hv] b: power-off")?;
    // What the hypervisor says of one guest may come in the middle of another one's line.
    let output = finished.stdout();
    let guests: String = output
        .split_inclusive('\n')
        .map(|line| line.split_once("[hv] ").map_or(line, |(before, _)| before))
        .collect();
    ensure!(guests.contains("kit: hello-b"), "{output}");
    Ok(())
}

/// In other directories and seconds.
fn same(context: &Context) -> Result<()> {
    for kind in ["iso", "usb"] {
        let first = make(context, kind, "first", &["--put", &context.file("file", "x")?])?;
        std::fs::create_dir_all(context.path("some/where"))?;
        let second = make(context, kind, "some/where/second", &["--put", &context.file("file", "x")?])?;
        ensure!(std::fs::read(first)? == std::fs::read(second)?, "{kind}: the bytes differ");
    }
    let [first, second] = ["net", "some/where/net"].map(|name| make(context, "netboot", name, &[]));
    let (first, second) = (first?, second?);
    let mut compare = Command::new("diff");
    compare.args(["-r", &first, &second]);
    context.wait_for(compare, PATIENCE)?.status(0)?;
    Ok(())
}

fn bad_descriptions(context: &Context) -> Result<()> {
    let iso = context.path("x.iso");
    for (text, parts) in [
        ("version = 1\nkernle = 3", &["lab.toml", "line 2", "kernle"][..]),
        ("version = 1\nlabel = \"lower\"", &["lab.toml", "label", "\"lower\""]),
        ("version = 1\nprobe = false", &["lab.toml", "nothing to boot"]),
        ("version = 1\ndefault = \"x\"", &["lab.toml", "`default` \"x\"", "\"probe\""]),
        (
            "version = 1\n[[vm]]\nname = \"a\"\nkernel = \"none\"",
            &["lab.toml", "vm \"a\"", "`kernel`", "none"],
        ),
        ("version = 1\n[[vm]]\nname = \"a\"\nvcpus = 65", &["vm \"a\"", "`vcpus` is 65"]),
        ("version = 1\n[[vm]]\nname = \"a\"\nmemory_mib = 19", &["vm \"a\"", "`memory_mib` is 19"]),
        ("version = 1\n[[vm]]\nname = \"a\"\ninitrd = \"lab.toml\"\nexec = \"x\"", &["vm \"a\"", "`exec`"]),
        ("version = 1\n[[vm]]\nname = \"a\"\n[[vm]]\nname = \"A\"", &["vm \"A\"", "taken"]),
        ("version = 1\n[[vm]]\nname = \"a\"\ncmdline = \"x='y'\"", &["\"a native\"", "quote"]),
    ] {
        let config = context.file("lab.toml", text)?;
        let finished = context.pal(["image", "iso", "-o", &iso, "--config", &config], None)?.status(2)?;
        let _ = parts.iter().try_fold(finished, |finished, part| finished.says(part))?;
    }
    for (options, part) in [
        (&["--kernel", "/no/such/kernel"][..], "/no/such/kernel"),
        (&["--config", "/no/such.toml"], "/no/such.toml"),
        (&["--config", "x.toml", "--kernel", "y"], "--kernel"),
        (&["--label", "too long a label"], "label"),
        (&["--timeout", "soon"], "never"),
        (&["--serial", "ttyS0"], "com4"),
        (&["--hv-arg", "a='b'"], "quote"),
    ] {
        context.pal([&["image", "iso", "-o", &iso], options].concat(), None)?.status(2)?.says(part)?;
    }
    context.pal(["image", "iso"], None)?.status(2)?.says("--output")?;
    ensure!(!Path::new(&iso).exists(), "an image was made of nothing");
    Ok(())
}

fn inspect_anything(context: &Context) -> Result<()> {
    for (name, contents) in [("empty", vec![]), ("text", b"hello".to_vec()), ("zeros", vec![0; 1 << 20])] {
        let file = context.file(name, contents)?;
        context.pal(["image", "inspect", &file], None)?.status(2)?.says(&file)?;
    }
    let path = make(context, "iso", "whole.iso", &[])?;
    let finished = context.pal(["image", "inspect", &path], None)?.status(0)?;
    let finished =
        finished.has("PALIMPSEST")?.has("boots on BIOS and UEFI")?.has("* debian-amd64 nested\n")?;
    finished.has("  Palimpsest 0.")?.has("console=ttyS0 pal.term=vt100")?.has("  probe\n")?;
    let bytes = std::fs::read(&path)?;
    for size in [0x8100, 0x9000, 0x10000, bytes.len() / 2] {
        let file = context.file("cut.iso", &bytes[..size])?;
        let finished = context.pal(["image", "inspect", &file], None)?;
        ensure!(matches!(finished.status, Some(0 | 2)), "{size}: {:?}\n{}", finished.status, finished.stderr);
    }
    for (path, part) in [
        ("/no/such/file", "/no/such/file"),
        ("/dev/null", "neither a file nor a disk"),
        ("/", "palimpsest.ipxe"),
    ] {
        context.pal(["image", "inspect", path], None)?.status(2)?.says(part)?.soon()?;
    }
    context.pal(["image", "iso", "-o", "/no/such/dir/x.iso"], None)?.status(2)?.says("/no/such/dir/x.iso")?;
    Ok(())
}
