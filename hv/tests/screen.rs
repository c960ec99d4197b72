//! The screen of a machine shows what the hypervisor says: booted by GRUB in QEMU, photographed by QEMU, and read back with
//! the hypervisor's own glyphs.

mod grub;
mod image;
mod qemu;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hv::screen::font;

/// No run takes longer, on slow and busy machines too.
const PATIENCE: Duration = Duration::from_secs(300);
/// A running machine, and QEMU's machine protocol.
struct Machine {
    /// `timeout`, whose child is QEMU.
    qemu: Child,
    protocol: BufReader<UnixStream>,
    iso: grub::Iso,
}

impl Machine {
    /// Boots the hypervisor with these words on its command line, and these commands of GRUB's.
    fn boot(commands: &str, words: &str, machine: &[&str]) -> Machine {
        Machine::boot_with(grub::BIOS, &[], commands, words, machine)
    }

    /// The same with this GRUB, and with files in `/boot`.
    fn boot_with(
        grub: &str,
        files: &[(&str, &[u8])],
        commands: &str,
        words: &str,
        machine: &[&str],
    ) -> Machine {
        let iso = grub::Iso::new(grub, &format!("multiboot2 /boot/palimpsest {words}\n{commands}"), files);
        let socket = iso.beside("qmp");
        let mut command = qemu::machine(330);
        command.args(["-nodefaults", "-vga", "std", "-cdrom"]).arg(iso.path()).args(machine);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", socket.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let qemu = command.spawn().expect("timeout (coreutils) and qemu-system-x86_64 are needed");
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
                Err(why) => panic!("QEMU does not listen: {why}"),
            }
        };
        let mut machine = Machine { qemu, protocol: BufReader::new(stream), iso };
        machine.ask(r#"{"execute":"qmp_capabilities"}"#);
        machine
    }

    /// Performs a command of QEMU's machine protocol.
    fn ask(&mut self, command: &str) {
        writeln!(self.protocol.get_mut(), "{command}").unwrap();
        let mut line = String::new();
        while !line.contains("\"return\"") {
            line.clear();
            assert_ne!(self.protocol.read_line(&mut line).expect("QEMU talks"), 0, "QEMU is gone");
            assert!(!line.contains("\"error\""), "{command}: {line}");
        }
    }

    /// Asks for a file and reads it.
    fn file(&mut self, command: &str) -> Vec<u8> {
        let path = self.iso.beside("file");
        self.ask(&command.replace("FILE", &path.to_string_lossy()));
        std::fs::read(path).unwrap()
    }

    /// The text on the screen, from a picture of it.
    fn picture(&mut self) -> Vec<String> {
        let picture = self.file(r#"{"execute":"screendump","arguments":{"filename":"FILE"}}"#);
        read_picture(&picture)
    }

    /// The text on the screen, from the memory of the adapter's text mode.
    fn characters(&mut self) -> Vec<String> {
        let dump = r#"{"execute":"pmemsave","arguments":{"val":753664,"size":4000,"filename":"FILE"}}"#;
        let memory = self.file(dump);
        let line = |row: &[u8]| row.chunks(2).map(|cell| cell[0] as char).collect::<String>();
        memory.chunks(160).map(|row| line(row).trim_end().to_owned()).collect()
    }

    /// Looks until a line has all of these, and returns all lines.
    fn wait_for(&mut self, look: fn(&mut Machine) -> Vec<String>, texts: &[&str]) -> Vec<String> {
        let start = Instant::now();
        loop {
            let lines = look(self);
            if texts.iter().all(|text| lines.iter().any(|line| line.contains(text))) {
                return lines;
            }
            assert!(start.elapsed() < PATIENCE, "no {texts:?} on the screen:\n{}", lines.join("\n"));
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It hands a signal on to QEMU, which it could not do with SIGKILL.
        let _ = Command::new("kill").arg(self.qemu.id().to_string()).status();
        let _ = self.qemu.wait();
    }
}

/// Reads a picture (PPM, binary) cell by cell. A cell that is no glyph in one colour on black reads as `?`.
fn read_picture(picture: &[u8]) -> Vec<String> {
    let mut fields = picture.splitn(4, |byte| byte.is_ascii_whitespace());
    let mut word = || String::from_utf8(fields.next().unwrap_or_default().to_vec()).unwrap_or_default();
    assert_eq!(word(), "P6");
    let (width, height): (usize, usize) = (word().parse().unwrap(), word().parse().unwrap());
    let pixels = &picture[picture.len() - width * height * 3..];
    let cell = |column: usize, row: usize| {
        let row_of = |y: usize| {
            (0..8).fold(0u8, |bits, x| {
                let at = ((row * 16 + y) * width + column * 8 + x) * 3;
                bits << 1 | u8::from(pixels[at..at + 3].iter().all(|colour| *colour > 0x60))
            })
        };
        let rows: Vec<u8> = (0..16).map(row_of).collect();
        let is = |character: &u8| rows.iter().zip(0..).all(|(row, y)| *row == font::row(*character, y));
        (b' '..0x7f).find(is).map_or('?', char::from)
    };
    let line = |row| (0..width / 8).map(|column| cell(column, row)).collect::<String>();
    (0..height / 16).map(|row| line(row).trim_end().to_owned()).collect()
}

/// The report at start, line by line, beside a serial port that works.
#[test]
fn the_log_is_on_the_screen() {
    if !grub::can_make_media(grub::BIOS) {
        return;
    }
    let mut machine = Machine::boot("", "selftest=quick exit=halt", &["-serial", "null"]);
    let lines = machine.wait_for(Machine::picture, &["[hv] selftest: passed"]);
    for start in ["[hv] Palimpsest 0.1.0, started by GRUB 2.", "[hv] processor: AMD", "[hv] time: TSC at "] {
        assert!(lines.iter().any(|line| line.starts_with(start)), "{}", lines.join("\n"));
    }
    assert!(lines.iter().all(|line| !line.contains('?')), "{}", lines.join("\n"));
}

/// Nothing is lost on a machine without a serial port, a panic least of all.
#[test]
fn a_panic_is_on_the_screen_of_a_machine_without_serial_ports() {
    if !grub::can_make_media(grub::BIOS) {
        return;
    }
    let mut machine = Machine::boot("", "selftest=panic exit=halt", &["-serial", "none"]);
    let lines = machine.wait_for(Machine::picture, &["panicked at", "on request", "backtrace: 0x"]);
    assert!(lines.iter().any(|line| line.contains("Palimpsest 0.1.0")), "{}", lines.join("\n"));
}

/// As on a machine whose adapter GRUB has no driver for.
#[test]
fn text_mode_is_used_where_there_is_no_other() {
    if !grub::can_make_media(grub::BIOS) {
        return;
    }
    let mut machine = Machine::boot("set gfxpayload=text", "selftest=quick exit=halt", &["-serial", "none"]);
    machine.wait_for(Machine::characters, &["[hv] Palimpsest 0.1.0", "[hv] selftest: passed"]);
}

/// A multiboot 1 kernel, flat: writes a line to COM1 and stops for ever.
fn talker(text: &str) -> Vec<u8> {
    const MAGIC: u32 = 0x1bad_b002;
    const ADDRESS_FIELDS: u32 = 1 << 16;
    const BASE: u32 = 0x10_0000;
    let checksum = 0u32.wrapping_sub(MAGIC).wrapping_sub(ADDRESS_FIELDS);
    let header = [MAGIC, ADDRESS_FIELDS, checksum, BASE, BASE, 0, 0, BASE + 32];
    let mut kernel: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    kernel.push(0xbe); // mov esi, text
    kernel.extend((BASE + 32 + 19).to_le_bytes());
    // mov dx, 0x3f8; 1: lodsb; test al, al; jz 2f; out dx, al; jmp 1b; 2: cli; hlt
    kernel.extend([0x66, 0xba, 0xf8, 0x03, 0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, 0xfa, 0xf4]);
    kernel.extend(text.bytes().chain([0]));
    kernel
}

/// Without a serial port, or if told so, the screen is the guest's console, between the lines of the log.
#[test]
fn a_guest_s_output_is_on_the_screen() {
    if !grub::can_make_media(grub::BIOS) {
        return;
    }
    let kernel = talker("\x1b[32mhello from the guest\x1b[0m\r\nand again");
    let config = "version = 1\n[[vm]]\nname = \"talker\"\nkernel = \"talker\"\nmemory_mib = 20\n";
    let files: [(&str, &[u8]); 2] = [("talker", &kernel), ("palimpsest.toml", config.as_bytes())];
    let modules = "module2 /boot/talker talker\nmodule2 /boot/palimpsest.toml palimpsest.toml";
    for (words, port) in [("exit=halt", "none"), ("exit=halt console=screen", "null")] {
        let mut machine = Machine::boot_with(grub::BIOS, &files, modules, words, &["-serial", port]);
        let lines =
            machine.wait_for(Machine::picture, &["hello from the guest", "and again", "halted-forever"]);
        assert!(lines.iter().any(|line| line == "hello from the guest"), "{}", lines.join("\n"));
    }
}

/// The full report, complete on one screen.
#[test]
fn the_hardware_report_is_on_the_screen() {
    if !grub::can_make_media(grub::BIOS) {
        return;
    }
    let mut machine = Machine::boot("", "probe exit=halt", &["-serial", "none"]);
    let last = "end of the report; this machine can be switched off";
    let lines = machine.wait_for(Machine::picture, &["hardware report of Palimpsest", last]);
    for part in
        ["on a PC BIOS", "virtualization: AMD-V", "serial ports: none at COM1, COM2", " pixels of 32 bits, "]
    {
        assert!(lines.iter().any(|line| line.contains(part)), "no {part:?}:\n{}", lines.join("\n"));
    }
}

/// UEFI has no text mode, and machines that have it seldom have a serial port. GRUB loads no driver by itself there.
#[test]
fn uefi_leaves_a_screen() {
    const OVMF: &str = "/usr/share/ovmf/OVMF.fd";
    if !grub::can_make_media(grub::UEFI) || !std::path::Path::new(OVMF).exists() {
        return;
    }
    let machine = ["-serial", "none", "-bios", OVMF];
    let mut machine = Machine::boot_with(grub::UEFI, &[], "insmod all_video", "probe exit=halt", &machine);
    machine.wait_for(
        Machine::picture,
        &["on UEFI", "firmware: EFI Development Kit II / OVMF", "end of the report"],
    );
}

#[test]
fn pictures_are_read_with_the_same_glyphs() {
    let text = "Hi";
    let mut picture = format!("P6\n{} 16\n255\n", text.len() * 8).into_bytes();
    for y in 0..16 {
        for byte in text.bytes() {
            let row = font::row(byte, y);
            (0..8).for_each(|x| picture.extend([if row & 0x80 >> x != 0 { 0xc0 } else { 0 }; 3]));
        }
    }
    assert_eq!(read_picture(&picture), ["Hi"]);
    let last = picture.len() - 1;
    picture[last - 2..].fill(0xff);
    assert_eq!(read_picture(&picture), ["H?"]);
}
