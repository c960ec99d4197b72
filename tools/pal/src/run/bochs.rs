//! Bochs as the machine, an Intel processor with VT-x: its configuration, how it is connected to pal, what it says.
//!
//! Bochs executes one instruction per tick of its clock, so that time is deterministic, and has no screen here. It offers
//! serial ports as TCP clients only where nothing may be lost: pal listens on the loopback interface, for these two
//! connections and no longer. What happened to the machine is in Bochs' log.

use std::{
    fs::File,
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    machine::{self, Emulator, Machine},
    pcpus::Pcpus,
    qmp::Report,
};

/// Instructions in a second of the machine's time: about as many as Bochs manages in a second of ours.
const INSTRUCTIONS_PER_SECOND: u32 = 100_000_000;
/// Bochs keeps this much of the machine's memory in its own, and the rest in a file.
const HOST_MIB: u64 = 2048;
/// The machine's wall clock at power-on: 2000-01-01, so that runs repeat.
const START: u32 = 946_684_800;
/// How long Bochs may take to connect its serial ports.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to emulate.
pub struct Spec<'a> {
    /// The Bochs program.
    pub bochs: &'a Path,
    /// The processor, by Bochs' name for it.
    pub model: &'a str,
    /// Processors.
    pub cpus: Pcpus,
    /// Machine memory in MiB.
    pub memory_mib: u64,
    /// MSRs that Bochs does not know read as 0 instead of raising #GP: Linux alone reads IA32_MISC_ENABLE before it can
    /// catch anything.
    pub permissive_msr: bool,
    /// The medium in the CD drive, from which the machine boots.
    pub medium: PathBuf,
    /// The person's own lines for the configuration.
    pub extra: &'a [String],
}

impl Spec<'_> {
    /// The configuration, with the TCP ports that the two serial ports connect to. Later lines win.
    pub fn configuration(&self, ports: [u16; 2]) -> String {
        let (model, cpus) = (self.model, self.cpus.bochs());
        let (guest, host) = (self.memory_mib, self.memory_mib.min(HOST_MIB));
        let ([console, telemetry], msrs) = (ports, u8::from(self.permissive_msr));
        // Processors take turns after as many instructions as Bochs allows, and its BIOS does not wait for a key: both take a run with two
        // processors, which is never idle to Bochs, half of its time.
        // A guest alone may ask what it likes of its APIC. The terminal on which Bochs shows the screen is not read: with one update in each
        // second of the machine's time its buffer does not fill; otherwise Bochs would block for ever.
        let mut text = format!(
            "plugin_ctrl: unmapped=1, biosdev=1, speaker=0, extfpuirq=1, parallel=0, serial=1, gameport=0, sb16=0, es1370=0\n\
             display_library: term\n\
             vga: extension=none, update_freq=1, realtime=0\n\
             sound: driver=dummy\n\
             cpu: model={model}, count={cpus}, ips={INSTRUCTIONS_PER_SECOND}, quantum=32, reset_on_triple_fault=0, ignore_bad_msrs={msrs}\n\
             clock: sync=none, time0={START}\n\
             memory: guest={guest}, host={host}\n\
             romimage: file=/usr/share/bochs/BIOS-bochs-latest, options=fastboot\n\
             vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest\n\
             ata0-master: type=cdrom, path=medium.iso, status=inserted\n\
             boot: cdrom\n\
             com1: enabled=1, mode=socket-client, dev=127.0.0.1:{console}\n\
             com2: enabled=1, mode=socket-client, dev=127.0.0.1:{telemetry}\n\
             log: bochs.log\n\
             panic: action=fatal, apic0=report, ioapic=report\n\
             error: action=report\n\
             info: action=report\n\
             debug: action=ignore\n"
        );
        for line in self.extra {
            text += line;
            text += "\n";
        }
        text
    }

    /// Starts Bochs; it dies with pal, whatever happens to pal.
    ///
    /// # Errors
    /// The program does not start, or refuses the configuration.
    pub fn start(&self) -> Result<Machine> {
        let scratch = machine::scratch()?;
        let dir = scratch.path();
        let no_loopback = "Bochs' serial ports need the loopback interface (127.0.0.1)";
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(no_loopback);
        let listeners = [listen()?, listen()?];
        let [console, telemetry] = &listeners;
        let ports = [console.local_addr()?.port(), telemetry.local_addr()?.port()];
        // Names in the configuration are relative to the scratch directory, so that none needs quoting.
        std::os::unix::fs::symlink(std::path::absolute(&self.medium)?, dir.join("medium.iso"))?;
        machine::scratch_file(dir, "bochsrc", self.configuration(ports).as_bytes())?;
        // Debian's Bochs starts in its debugger, which reads this.
        machine::scratch_file(dir, "debugger", b"c\nq\n")?;

        let mut command = Command::new(self.bochs);
        command.args(["-q", "-f", "bochsrc", "-rc", "debugger"]).current_dir(dir);
        // Its screen goes nowhere; the library that draws it wants to know a terminal's commands all the same.
        command.env("TERM", "linux").env_remove("BXSHARE").env_remove("BOCHSRC");
        let (log, stderr) = (dir.join("bochs.log"), dir.join("stderr"));
        let child = machine::start(command, Vec::new(), &stderr)?;
        let mut starting = Starting { child: Some(child), stderr: stderr.clone() };
        let console = starting.accept(console)?;
        let telemetry = Some(starting.accept(telemetry)?);
        let child = starting.child.take().context("Bochs is gone")?;
        Ok(Machine {
            emulator: Emulator::Bochs,
            child,
            console,
            serial: None,
            qmp: None,
            telemetry,
            log,
            stderr,
            lab: None,
            _scratch: scratch,
        })
    }
}

/// A Bochs that has yet to connect its serial ports; killed and reaped if it does not.
struct Starting {
    child: Option<Child>,
    stderr: PathBuf,
}

impl Starting {
    fn accept(&mut self, listener: &TcpListener) -> Result<File> {
        listener.set_nonblocking(true)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    // A key is one byte, and a person waits for its echo.
                    stream.set_nodelay(true)?;
                    return Ok(File::from(OwnedFd::from(stream)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(child) = &mut self.child
                && child.try_wait()?.is_some()
            {
                let said = std::fs::read(&self.stderr).unwrap_or_default();
                bail!("Bochs did not start the machine: {}", complaints_in(&String::from_utf8_lossy(&said)));
            }
            ensure!(Instant::now() < deadline, "Bochs does not connect its serial ports");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A line of Bochs' log: 11 digits or more of ticks, a letter for the severity, the device in brackets, and the text.
fn severity(line: &str) -> Option<(char, &str)> {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let letter = rest.chars().next().filter(|_| rest.len() < line.len())?;
    let text = rest.get(1..)?;
    text.starts_with('[').then_some((letter, text))
}

/// Errors and panics among the lines that Bochs wrote.
pub fn complaints_in(stderr: &str) -> String {
    let lines = stderr.lines().filter_map(severity);
    let lines = lines
        .filter(|(letter, text)| "ep".contains(*letter) && !text.contains("no bxevent_callback function"));
    lines.map(|(_, text)| text).take(40).collect::<Vec<_>>().join("\n")
}

/// Why the machine ended: QEMU's word for a power-off, or the text of Bochs' last panic.
pub fn shutdown_in(log: &str) -> Option<String> {
    let panic = log.lines().rev().filter_map(severity).find(|(letter, _)| *letter == 'p')?;
    let (_, text) = panic.1.split_once(">>PANIC<< ")?;
    let power_off = text.contains("soft power off") || text.contains("hutdown port");
    Some(if power_off { "guest-shutdown".to_owned() } else { text.to_owned() })
}

/// How often the machine was reset, not counting power-on.
pub fn resets_in(log: &str) -> usize {
    let resets = log.lines().filter(|line| line.contains("[SYS   ] bx_pc_system_c::Reset(HARDWARE) called"));
    resets.count().saturating_sub(1)
}

/// Reports the machine's resets, until the log is gone.
pub fn watch(log: &Path, mut report: impl FnMut(Report)) {
    const PAUSE: Duration = Duration::from_millis(250);
    let mut seen = 0;
    // Bochs opens its log before it connects its serial ports.
    while let Ok(text) = std::fs::read(log) {
        let resets = resets_in(&String::from_utf8_lossy(&text));
        (seen..resets).for_each(|_| report(Report::Reset));
        seen = resets;
        thread::sleep(PAUSE);
    }
}

/// The registers at a triple fault. Those of the firmware, in the first MiB, come of resets.
pub fn triple_fault_in(log: &str) -> Option<String> {
    let after = log
        .lines()
        .filter_map(severity)
        .skip_while(|(letter, text)| *letter != 'p' || !text.contains("exception with no resolution"));
    let registers = after.filter_map(|(_, text)| text.strip_prefix("[CPU0  ] "));
    let registers: Vec<_> = registers.take(40).collect();
    let (_, rest) = registers.iter().find_map(|line| line.split_once("IP="))?;
    let ip = u64::from_str_radix(rest.split(' ').next()?, 16).ok()?;
    (ip >= 1 << 20).then(|| registers.join("\n"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(memory_mib: u64, extra: &[String]) -> Spec<'_> {
        let (bochs, medium) = (Path::new("bochs"), PathBuf::from("m"));
        Spec {
            bochs,
            model: "corei7_sandy_bridge_2600k",
            cpus: Pcpus::ONE,
            permissive_msr: false,
            memory_mib,
            medium,
            extra,
        }
    }

    #[test]
    fn configuration() {
        let extra = ["debug: action=report".to_owned()];
        let text = spec(300, &extra).configuration([4001, 4002]);
        let lines: Vec<_> = text.lines().collect();
        for line in [
            "memory: guest=300, host=300",
            "com1: enabled=1, mode=socket-client, dev=127.0.0.1:4001",
            "com2: enabled=1, mode=socket-client, dev=127.0.0.1:4002",
            "display_library: term",
            "vga: extension=none, update_freq=1, realtime=0",
            "panic: action=fatal, apic0=report, ioapic=report",
        ] {
            assert!(lines.contains(&line), "{line}: {text}");
        }
        assert!(text.contains("cpu: model=corei7_sandy_bridge_2600k, count=1, ips=100000000,"));
        assert_eq!(lines.last(), Some(&"debug: action=report"));
        // Every line is a directive with its arguments.
        assert!(lines.iter().all(|line| line.contains(": ") && !line.starts_with(' ')), "{text}");
        assert!(spec(3100, &[]).configuration([1, 2]).contains("memory: guest=3100, host=2048\n"));
    }

    const LOG: &str = "\
00456105874i[CPU0  ] RSM: Resuming from System Management Mode
00456105892p[ACPI  ] >>PANIC<< ACPI control: soft power off
00456105892i[CPU0  ] CPU is in long mode (active)
";

    #[test]
    fn ends() {
        assert_eq!(shutdown_in(LOG).as_deref(), Some("guest-shutdown"));
        assert_eq!(triple_fault_in(LOG), None);
        let dead = |ip| {
            format!(
                "00000000100i[CPU0  ] earlier\n\
                 123456789012p[CPU0  ] >>PANIC<< exception(): 3rd (13) exception with no resolution\n\
                 123456789012i[CPU0  ] | RAX=0000000000002000\n\
                 123456789012i[CPU0  ] | {ip} (00100a06)\n123456789012i[CMOS  ] Last time\n"
            )
        };
        let registers = triple_fault_in(&dead("RIP=0000000000100a06")).unwrap();
        assert!(registers.contains("RAX=0000000000002000") && !registers.contains("earlier"), "{registers}");
        assert!(!registers.contains("Last time"), "{registers}");
        assert_eq!(triple_fault_in(&dead("EIP=000e1b1b")), None);
        assert!(shutdown_in(&dead("EIP=000e1b1b")).unwrap().contains("3rd (13) exception"));
        assert_eq!(shutdown_in("00000000100i[CPU0  ] alive\n"), None);
    }

    #[test]
    fn resets() {
        let first = "00000000000i[SYS   ] bx_pc_system_c::Reset(HARDWARE) called\n";
        let second = "00452794794i[SYS   ] bx_pc_system_c::Reset(HARDWARE) called\n";
        assert_eq!((resets_in(""), resets_in(first), resets_in(&[first, second].concat())), (0, 0, 1));
    }

    #[test]
    fn complaints() {
        let said = "00000000000i[      ] reading configuration from bochsrc\n\
                    00000000000e[      ] bochsrc:3: wrong value for parameter 'model'\n\
                    00000000000p[      ] >>PANIC<< bochsrc:3: cpu directive malformed.\n\
                    00000000000e[SIM   ] notify called, but no bxevent_callback function is registered\n\
                    =====\nBochs is exiting with the following message:\n";
        let complaints = complaints_in(said);
        assert_eq!(complaints.lines().count(), 2, "{complaints}");
        assert!(complaints.contains("'model'") && complaints.contains("malformed"), "{complaints}");
    }

    proptest! {
        #[test]
        fn no_log_panics(log in "([0-9]{0,12}[epi]?\\[?[A-Zé]{0,4}\\]? ?(>>PANIC<< )?\n?){0,8}") {
            let _ = (complaints_in(&log), shutdown_in(&log), triple_fault_in(&log));
        }
    }
}
