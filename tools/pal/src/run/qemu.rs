//! QEMU as the machine: its arguments, how it is connected to pal, and what its log says.

use std::{
    fs::File,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::Command,
};

use anyhow::Result;

use crate::guest::disk::MappedFile;

use super::{
    machine::{self, Emulator, Machine},
    pcpus::Pcpus,
    records::Memory,
};
use crate::lab::attach::Lab;

/// The processor of every machine that QEMU emulates: the hypervisor runs on it, and `--machine native` measures against it.
const CPU: &str = "EPYC,+svm,+npt";
/// Which processors share a cache is in leaf 4, that QEMU leaves empty for AMD's; their own leaf needs what its emulation lacks. Where there
/// are dies QEMU has leaf 1Fh, and version 10.0 ends itself when it is asked for a level beyond the last one.
const WITH_SHARED_CACHES: &str = "x-vendor-cpuid-only=off,level=0xd";
/// Its name alone.
const MODEL: &str = "EPYC";

/// Where mapped disks begin, far above the memory of a machine.
const DISKS: u64 = 64 << 30;
/// Their addresses are multiples of this, so that the hypervisor maps them by large pages.
const DISK_ALIGNMENT: u64 = 2 << 20;

/// A file that lies in the machine's memory and is a disk of a guest's.
pub struct MappedDisk {
    /// The file, in QEMU's syntax.
    pub path: String,
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// What is written goes to the file.
    pub write_back: bool,
}

/// Gives mapped disks places in the machine's memory.
pub fn place<'a>(files: impl Iterator<Item = &'a MappedFile>) -> Vec<MappedDisk> {
    let mut next = DISKS;
    let disk = |file: &MappedFile| {
        let address = next;
        next = (next + file.bytes).next_multiple_of(DISK_ALIGNMENT);
        let path = escape_commas(&file.path.to_string_lossy());
        MappedDisk { path, address, bytes: file.bytes, write_back: file.write_back }
    };
    files.map(disk).collect()
}

/// What to emulate.
pub struct Spec<'a> {
    /// The QEMU program.
    pub qemu: &'a Path,
    /// Machine memory in MiB.
    pub memory_mib: u64,
    /// Disks that are files mapped into its memory.
    pub disks: &'a [MappedDisk],
    /// Processors.
    pub cpus: Pcpus,
    /// There is one more before them.
    pub spare_cpu: bool,
    /// `-kernel`.
    pub kernel: &'a Path,
    /// `-initrd`, in QEMU's syntax.
    pub initrd: Option<String>,
    /// `-append`.
    pub append: &'a str,
    /// A second serial port for telemetry.
    pub telemetry: bool,
    /// The device whose port 0xf4 ends QEMU.
    pub exit_device: bool,
    /// The rest of the test device, as QEMU has it.
    pub test_device: bool,
    /// Arguments for the guest's virtio devices, where QEMU has them.
    pub devices: Vec<String>,
    /// The console is a virtio console, and the serial port is a second stream.
    pub virtio_console: bool,
    /// What models the machine while it runs.
    pub lab: Option<Lab>,
    /// The memory for samples and traces.
    pub records: Option<Memory>,
    /// Deterministic time.
    pub icount: bool,
    /// What random numbers come from, and a clock that begins at a fixed date.
    pub seed: Option<u64>,
    /// A reset ends QEMU.
    pub no_reboot: bool,
    /// The person's own arguments.
    pub extra: &'a [String],
}

impl Spec<'_> {
    /// QEMU's arguments, without those that connect it to pal.
    pub fn arguments(&self) -> Vec<String> {
        let machine = if self.lab.is_some() { "q35,memory-backend=lab" } else { "q35" };
        let cpu = if self.cpus.has_dies() { format!("{CPU},{WITH_SHARED_CACHES}") } else { CPU.into() };
        let mut arguments: Vec<String> =
            ["-machine", machine, "-cpu", &cpu, "-display", "none", "-nodefaults"].map(String::from).into();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
        // QEMU takes the first of several.
        if self.extra.iter().all(|word| word != "-accel") {
            add(&["-accel", "tcg"]);
        }
        add(&["-m", &self.memory()]);
        arguments.extend(self.cpus.qemu(MODEL, self.spare_cpu));
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
        for (number, disk) in self.disks.iter().enumerate() {
            let MappedDisk { path, address, bytes, write_back } = disk;
            let share = if *write_back { "on" } else { "off" };
            let backend =
                format!("memory-backend-file,id=pal-disk{number},size={bytes},share={share},mem-path={path}");
            add(&["-object", &backend]);
            add(&["-device", &format!("pc-dimm,memdev=pal-disk{number},addr={address:#x}")]);
        }
        if let Some(records) = &self.records {
            add(&records.arguments().each_ref().map(String::as_str));
        }
        if self.icount {
            add(&["-icount", "shift=0,sleep=off"]);
        }
        if let Some(seed) = self.seed {
            add(&["-seed", &seed.to_string(), "-rtc", "base=2000-01-01T00:00:00,clock=vm"]);
        }
        if self.no_reboot {
            add(&["-no-reboot"]);
        }
        if self.test_device {
            add(&["-device", "pc-testdev"]);
        }
        if self.exit_device {
            add(&["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        }
        arguments.extend(self.devices.iter().cloned());
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
        add(&["-kernel", &self.kernel.to_string_lossy()]);
        if let Some(initrd) = &self.initrd {
            add(&["-initrd", initrd]);
        }
        if !self.append.is_empty() {
            add(&["-append", self.append]);
        }
        arguments.extend(self.extra.iter().cloned());
        arguments
    }

    /// The machine's memory. Mapped disks, and the counters of a lab machine, are memory modules in slots of their own, which
    /// no memory map mentions; the region for them reaches from the memory's end to that of the last one.
    fn memory(&self) -> String {
        let own = format!("{}M", self.memory_mib);
        let slots = self.disks.len()
            + self.lab.as_ref().map_or(0, Lab::modules)
            + usize::from(self.records.is_some());
        if slots == 0 {
            return own;
        }
        // The other modules are below the disks.
        let end = self.disks.last().map_or(DISKS, |last| last.address + last.bytes);
        let most = end.div_ceil(1 << 30) + self.memory_mib.div_ceil(1 << 10);
        format!("{own},slots={slots},maxmem={most}G")
    }

    /// Starts QEMU with the machine halted until QMP says `cont`. QEMU dies with pal, whatever happens to pal.
    ///
    /// # Errors
    /// The program does not start.
    pub fn start(mut self) -> Result<Machine> {
        let scratch = machine::scratch()?;
        let log = scratch.path().join("qemu.log");
        let stderr = scratch.path().join("stderr");
        let (console, console_end) = UnixStream::pair()?;
        let (qmp, qmp_end) = UnixStream::pair()?;
        let telemetry = self.telemetry.then(UnixStream::pair).transpose()?;
        let serial = self.virtio_console.then(UnixStream::pair).transpose()?;

        let mut command = Command::new(self.qemu);
        command.args(self.arguments()).arg("-S");
        let mut ends: Vec<OwnedFd> = Vec::new();
        ends.extend(self.records.take().map(Memory::into_file));
        let lab = self.lab.take();
        if let Some(lab) = &lab {
            let memory = lab.memory(self.memory_mib)?;
            command.args(lab.arguments(&memory));
            ends.extend(memory.files());
        }
        let mut connect = |id: &str, end: UnixStream| {
            command.arg("-chardev").arg(format!("socket,id={id},fd={}", end.as_raw_fd()));
            ends.push(OwnedFd::from(end));
        };
        connect("pal-console", console_end);
        connect("pal-qmp", qmp_end);
        let mut connect_more = |id: &str, pair: Option<(UnixStream, UnixStream)>| {
            let (ours, end) = pair?;
            connect(id, end);
            Some(File::from(OwnedFd::from(ours)))
        };
        let telemetry = connect_more("pal-telemetry", telemetry);
        let serial = connect_more("pal-serial", serial);
        command.args(["-mon", "chardev=pal-qmp,mode=control"]);
        if self.virtio_console {
            command.args(["-serial", "chardev:pal-serial", "-device", "virtio-serial-pci"]);
            command.args(["-device", "virtconsole,chardev=pal-console"]);
        } else {
            command.args(["-serial", "chardev:pal-console"]);
        }
        if self.telemetry {
            command.args(["-serial", "chardev:pal-telemetry"]);
        }
        // The log holds the processor's registers at each reset, and the words "Triple fault".
        command.args(["-d", "cpu_reset", "-D"]).arg(&log);
        let child = machine::start(command, ends, &stderr)?;
        let (emulator, console) = (Emulator::Qemu, File::from(OwnedFd::from(console)));
        Ok(Machine {
            emulator,
            child,
            console,
            serial,
            qmp: Some(qmp),
            telemetry,
            log,
            stderr,
            lab,
            _scratch: scratch,
        })
    }
}

/// What QEMU complains about. TCG lacks some features of the EPYC model and says so at every start.
pub fn complaints_in(stderr: &str) -> String {
    let lines = stderr.lines().filter(|line| !line.contains("TCG doesn't support requested feature"));
    lines.take(40).collect::<Vec<_>>().join("\n")
}

/// Finds a triple fault in QEMU's log. The firmware, too, ends in one when it is asked for a reset: those in the first
/// MiB do not count.
pub fn triple_fault_in(log: &str) -> Option<String> {
    log.split("Triple fault").skip(1).find_map(|dump| {
        let registers =
            dump.lines().skip_while(|line| !line.starts_with("RAX=") && !line.starts_with("EAX="));
        let registers: Vec<_> = registers.take_while(|line| !line.starts_with("CCS=")).take(24).collect();
        let (_, rest) = registers.iter().find_map(|line| line.split_once("IP="))?;
        let ip = u64::from_str_radix(rest.split(' ').next()?, 16).ok()?;
        (ip >= 1 << 20).then(|| registers.join("\n"))
    })
}

/// A file name inside QEMU's comma-separated lists.
pub fn escape_commas(text: &str) -> String {
    text.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(ip: &str) -> String {
        format!(
            "Triple fault\nCPU Reset (CPU 0)\nEAX=00000001 EBX=00000002\n{ip} EFL=00000046\nCCS=1\nEFER=0\n"
        )
    }

    #[test]
    fn triple_faults_of_guests_and_of_the_firmware() {
        assert_eq!(triple_fault_in("CPU Reset (CPU 0)\nEAX=00000000\nEIP=00200000\n"), None);
        assert_eq!(triple_fault_in(&dump("EIP=000efaad")), None);
        let expected = "EAX=00000001 EBX=00000002\nEIP=00100010 EFL=00000046";
        assert_eq!(triple_fault_in(&dump("EIP=00100010")).as_deref(), Some(expected));
        let both = dump("EIP=000efaad") + &dump("RIP=ffffffff81000000");
        assert!(triple_fault_in(&both).unwrap().contains("RIP=ffffffff81000000"));
        assert_eq!(triple_fault_in("Triple fault\nCPU Re"), None);
    }

    #[test]
    fn arguments() {
        let file = |path: &str, bytes, write_back| MappedFile {
            path: path.into(),
            bytes,
            write_back,
            _lock: tempfile::tempfile().unwrap(),
            made: None,
        };
        let disks = place([file("a,b", 4096, true), file("c", 3 << 30, false)].iter());
        let spec = Spec {
            qemu: Path::new("qemu"),
            memory_mib: 64,
            disks: &disks,
            cpus: "4,sockets=2".parse().unwrap(),
            spare_cpu: false,
            kernel: Path::new("k"),
            initrd: Some(escape_commas("a,b")),
            append: "x y",
            telemetry: true,
            exit_device: true,
            test_device: false,
            devices: vec!["-device".into(), "virtio-rng-pci".into()],
            virtio_console: false,
            lab: None,
            records: None,
            icount: true,
            seed: Some(7),
            no_reboot: true,
            extra: &["-trace".into(), "x".into()],
        };
        let line = spec.arguments().join(" ");
        for part in [
            "-m 64M,slots=2,maxmem=69G",
            "-object memory-backend-file,id=pal-disk0,size=4096,share=on,mem-path=a,,b",
            "-device pc-dimm,memdev=pal-disk0,addr=0x1000000000",
            "size=3221225472,share=off,mem-path=c",
            "memdev=pal-disk1,addr=0x1000200000",
            "-smp 4,sockets=2,dies=1,cores=2,threads=1",
            "-icount shift=0,sleep=off",
            "-seed 7 -rtc base=2000-01-01T00:00:00,clock=vm",
            "-no-reboot",
            "-initrd a,,b",
            "-append x y",
            "-cpu EPYC,+svm,+npt",
            "-device virtio-rng-pci",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(line.ends_with("-trace x") && !line.contains("pc-testdev"));
        assert!(line.contains("-accel tcg"), "{line}");
        let extra = ["-accel".into(), "tcg,thread=single".into()];
        let line = Spec { disks: &[], extra: &extra, ..spec }.arguments().join(" ");
        assert!(line.ends_with("-accel tcg,thread=single") && line.matches("-accel").count() == 1, "{line}");
        assert!(line.contains("-m 64M -smp") && !line.contains("pc-dimm"), "{line}");
    }
}
