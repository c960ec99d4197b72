//! From the options, or the description that they name, to guests with their files, checked before anything is started.

use std::{
    collections::HashSet,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::{pcpus::Pcpus, terminal};
use crate::{
    cli::{MODEL, Machine, Protocol, RunArgs},
    guest::{
        bundle, devices,
        disk::{Contents, Disk, MappedFile},
        files::Files,
        image::{Elf, Image},
        vm::{Console, Cpu, Module, Vm, check_all},
    },
    host::needs::Needs,
    image::spec::Spec,
    lab::args::ModelFrom,
    status::Usage,
};

/// The name of the one guest that options describe.
const GUEST: &str = "guest";
/// The file in `--log-dir` that no guest's may be.
pub const HYPERVISOR_LOG: &str = "hypervisor";

/// A guest that is ready to run.
pub struct Guest {
    /// What was described.
    pub vm: Vm,
    /// Its files.
    pub files: Files,
    /// The kernel's command line.
    pub cmdline: String,
    /// The word in the default guest's marks; `None` for guests with an initrd of their own.
    pub nonce: Option<String>,
}

/// What a machine is to run.
pub struct Prepared {
    /// The guests: one, or with `--config` several.
    pub guests: Vec<Guest>,
    /// The number of the one that has the console first.
    pub console: usize,
    /// The hypervisor's file; without one it is built.
    pub hypervisor: Option<PathBuf>,
    /// More words for its command line.
    pub words: String,
}

/// Finds options that cannot work together.
///
/// # Errors
/// [`Usage`].
pub fn check(args: &RunArgs) -> Result<()> {
    let wrong = |text: &str| Err(Usage::new(text).into());
    if args.machine.is_bochs() {
        if args.lab.lab.is_some() {
            return wrong("--lab models machines that QEMU emulates: take --machine qemu-svm or native");
        }
        if args.deterministic.is_some() {
            return wrong(
                "--deterministic: QEMU's machines only; Bochs takes random numbers and its date from this machine",
            );
        }
        if args.qemu.is_some() || !args.qemu_arg.is_empty() {
            return wrong(
                "--qemu and --qemu-arg: Bochs emulates this machine; --bochs and --bochs-line are for it",
            );
        }
        if !args.model.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return wrong(&format!("--model {}: not a name of Bochs', such as {MODEL}", args.model));
        }
    } else if args.bochs.is_some() || !args.bochs_line.is_empty() || args.model != MODEL {
        return wrong("--bochs, --bochs-line and --model are for --machine bochs-vtx and bochs-native");
    }
    if !args.machine.has_hypervisor() && (args.config.is_some() || args.log_dir.is_some()) {
        return wrong("--config and --log-dir need the hypervisor, and there is none on this machine");
    }
    if args.lab.lab_time && args.lab.lab.is_none() {
        return wrong(
            "--lab-time: time follows the cycles of a lab machine; choose one by --lab NAME (`cargo pal lab list`)",
        );
    }
    if args.lab.lab_time && !args.machine.has_hypervisor() {
        return wrong(
            "--lab-time: it is the hypervisor that keeps modelled time, and there is none on this machine; --lab-report has its cycles",
        );
    }
    if let Some(name) = &args.lab.lab {
        // Mistakes in a description are found before anything is built.
        crate::lab::find(name)?;
    }
    super::fast::check(args)?;
    super::page_disk::check(args)?;
    match args.machine {
        Machine::Native | Machine::BochsNative if args.pcpus != Pcpus::ONE => {
            wrong("--pcpus: without the hypervisor the machine's processors are the guest's: --vcpus")
        }
        Machine::BochsVtx if args.pcpus.has_dies() => {
            wrong("--pcpus: Bochs has no dies; say sockets, or leave --machine out")
        }
        Machine::Native | Machine::BochsNative if args.protocol != Protocol::Auto => wrong(
            "--protocol is for the hypervisor's loader; without the hypervisor QEMU or GRUB chooses how to start a kernel",
        ),
        Machine::Native | Machine::BochsNative if args.kit => {
            wrong("--kit: the module counts for the hypervisor, and there is none on this machine")
        }
        Machine::Native | Machine::BochsNative if args.probe => {
            wrong("--probe: it is the hypervisor that reports, and there is none on this machine")
        }
        Machine::Native | Machine::BochsNative if !args.without.is_empty() => wrong(
            "--without hides features of the processor from guests of the hypervisor; leave it out, or choose another --machine",
        ),
        Machine::Native if args.deterministic.is_some() && args.vcpus > 1 => {
            wrong("--deterministic: the machine has one processor: leave --vcpus out")
        }
        Machine::BochsNative if args.has_devices() => wrong(
            "--disk, --net, --virtio-console, --entropy and --balloon: Bochs has no such devices; --machine native has",
        ),
        Machine::Native | Machine::BochsNative if !args.hv_arg.is_empty() => {
            wrong("--hv-arg: there is no hypervisor on this machine")
        }
        Machine::BochsNative if args.test_device => wrong(
            "--test-device: Bochs has none; a kernel ends its machine by writing the letters of Shutdown to port 0x8900",
        ),
        _ => Ok(()),
    }
}

impl Prepared {
    /// Reads and checks the files, fetching the default ones if needed.
    ///
    /// # Errors
    /// [`Usage`] for files that cannot work, others for default files that are not to be had.
    pub fn new(args: &RunArgs, needs: &Needs) -> Result<Self> {
        let Some(path) = &args.config else {
            let vm = from_options(args)?;
            check_all(std::slice::from_ref(&vm))?;
            let guests = vec![Guest::new(args, vm, needs)?];
            check_gets(&guests)?;
            check_sessions(args, &guests)?;
            return Ok(Prepared { guests, console: 0, hypervisor: None, words: String::new() });
        };
        let spec = Spec::read(path)?;
        let console = match (&args.console, &spec.console) {
            (Some(name), _) => spec.find("--console", name)?,
            (None, Some(name)) => spec.find("`console`", name)?,
            (None, None) => 0,
        };
        if spec.vm.is_empty() {
            let text = "there is no [[vm]]; add one with a `name`";
            return Err(Usage::new(format!("{}: {text}", spec.source)).into());
        }
        for vm in &spec.vm {
            let beyond = vm.affinity.iter().flatten().find(|pcpu| **pcpu >= args.pcpus.count);
            if let Some(pcpu) = beyond {
                let count = args.pcpus.count;
                let text =
                    format!(" names processor {pcpu}; the machine has {count}, from 0 on (see --pcpus)");
                return Err(vm.wrong("affinity", text));
            }
            let is_file = !vm.name.contains('/') && !vm.name.starts_with('.') && vm.name != HYPERVISOR_LOG;
            if args.log_dir.is_some() && !is_file {
                let text = format!(": --log-dir: {}.log cannot be its log; give it another name", vm.name);
                return Err(vm.wrong("name", text));
            }
        }
        let guests: Vec<_> =
            spec.vm.into_iter().map(|vm| Guest::new(args, vm, needs)).collect::<Result<_>>()?;
        check_gets(&guests)?;
        check_sessions(args, &guests)?;
        Ok(Prepared { guests, console, hypervisor: spec.hypervisor, words: spec.hypervisor_cmdline })
    }

    /// The disks that are mapped, in the order of guests and disks.
    pub fn mapped(&self) -> impl Iterator<Item = &MappedFile> {
        self.guests.iter().flat_map(|guest| &guest.files.disks).filter_map(Disk::mapped)
    }

    /// The disks' files, which the machine goes on using; the rest is not needed once it runs.
    pub fn into_mapped(self) -> Vec<MappedFile> {
        let disks = self.guests.into_iter().flat_map(|guest| guest.files.disks);
        let file = |disk: Disk| match disk.contents {
            Contents::Mapped(file) => Some(file),
            Contents::Read(_) => None,
        };
        disks.filter_map(file).collect()
    }

    /// The guests as the hypervisor gets them, with mapped disks at these addresses.
    ///
    /// # Errors
    /// Files of 4 GiB and more.
    pub fn bundle(&self, addresses: impl IntoIterator<Item = u64>) -> Result<Vec<u8>> {
        let guests = self.guests.iter();
        let guests: Vec<_> =
            guests.map(|Guest { vm, files, cmdline, .. }| bundle::Guest { vm, files, cmdline }).collect();
        let console = (self.console != 0).then(|| self.guests[self.console].vm.name.as_str());
        bundle::pack(&guests, console, addresses)
    }
}

/// Finds files of guests that would overwrite each other.
fn check_gets(guests: &[Guest]) -> Result<()> {
    let mut taken = HashSet::new();
    for (vm, get) in guests.iter().flat_map(|guest| guest.files.gets.iter().map(move |get| (&guest.vm, get)))
    {
        if !taken.insert(&get.file) {
            let text = format!(" {}: another file goes to {}, too", get.guest_path, get.file.display());
            return Err(vm.wrong("get", text));
        }
    }
    Ok(())
}

/// A lab machine that waits for a session needs a guest that has one. A program of an initial RAM disk that was named may mark its
/// beginning, too.
fn check_sessions(args: &RunArgs, guests: &[Guest]) -> Result<()> {
    let may_begin = |guest: &Guest| guest.nonce.is_some() || guest.vm.initrd.is_some();
    if args.lab.lab_from == ModelFrom::Session && !guests.iter().any(may_begin) {
        let text = "--lab-from session: no guest here has an initramfs, whose session it waits for; leave it out, and \
                    everything from the boot on is modelled";
        return Err(Usage::new(text).into());
    }
    Ok(())
}

/// The guest that the options describe.
fn from_options(args: &RunArgs) -> Result<Vm> {
    Ok(Vm {
        guest: Some(args.guest),
        kernel: args.kernel.clone(),
        kernel_modules: args.modules.clone(),
        initrd: args.initrd.clone(),
        modules: args.module.iter().map(|module| read_module(module)).collect(),
        append: args.append.clone(),
        exec: args.exec.clone(),
        put: args.put.clone(),
        get: args.get.clone(),
        kit: args.kit,
        memory_mib: args.mem,
        vcpus: args.vcpus,
        mode: Some(args.mode),
        nested_page: args.nested_page,
        regions: args.regions,
        shadow_pages: args.shadow_pages,
        audit_shadow: args.audit_shadow,
        protocol: args.protocol,
        permissive_msr: args.permissive_msr,
        cpu: Cpu { without: args.without.clone() },
        test_device: args.test_device,
        root: args.root.as_deref().map(|root| devices::disk("--root", root)).transpose()?,
        disks: args.disk.iter().map(|disk| devices::disk("--disk", disk)).collect::<Result<_>>()?,
        networks: args.net.clone(),
        console: if args.virtio_console { Console::Virtio } else { Console::Serial },
        entropy: args.entropy,
        balloon: args.balloon,
        overcommit: args.overcommit,
        resident_mib: args.resident,
        replacement: args.replacement,
        ..Vm::named(GUEST)
    })
}

impl Guest {
    fn new(args: &RunArgs, vm: Vm, needs: &Needs) -> Result<Guest> {
        let files = Files::read(&vm, needs, !args.machine.is_bochs())?;
        check_image(args, &files)?;
        // A distribution without a command shows all that its console says, from its boot on.
        let marked = files.ours && (vm.root.is_none() || vm.exec.is_some());
        let nonce = marked.then(|| nonce(args.deterministic)).transpose()?;
        let cmdline = command_line(args, &vm, &files.kind, nonce.as_deref());
        Ok(Guest { vm, files, cmdline, nonce })
    }
}

fn check_image(args: &RunArgs, files: &Files) -> Result<()> {
    let wrong = |text: &str| Err(Usage::new(text).into());
    let Image::Elf(Elf { multiboot1, .. }) = files.kind else { return Ok(()) };
    if args.machine == Machine::BochsNative && !multiboot1 {
        return wrong(
            "--kernel: on --machine bochs-native GRUB starts Linux bzImages and multiboot1 kernels only",
        );
    }
    if args.machine == Machine::Native && !multiboot1 && !files.modules.is_empty() {
        return wrong("--module: with --machine native QEMU passes modules to multiboot1 kernels only");
    }
    Ok(())
}

/// The default words for Linux unless the description has others, then the person's.
fn command_line(args: &RunArgs, vm: &Vm, image: &Image, nonce: Option<&str>) -> String {
    let mut words: Vec<String> = vm.cmdline.iter().cloned().collect();
    if image.is_linux() && vm.cmdline.is_none() {
        words.push("console=ttyS0".to_owned());
        if vm.has_virtio_console() {
            words.push("console=hvc0".to_owned());
        }
        if args.verbose == 0 {
            words.push("quiet".to_owned());
        }
        // Linux tests its ciphers at each start, which takes more than half of the time of a boot.
        words.push("cryptomgr.notests".to_owned());
        if vm.vcpus == 1 {
            // Linux would take the lock prefixes out of its code, each by two loads of CR3: on shadow tables a third of the boot's time.
            words.push("noreplace-smp".to_owned());
        }
        if vm.root.is_some() {
            // Cards have the names of this documentation.
            words.push("net.ifnames=0".to_owned());
            if vm.exec.is_some() {
                words.push("systemd.show_status=false".to_owned());
            }
        }
        if vm.exec.is_some() {
            // A dead kernel ends the run at once.
            words.push("panic=-1".to_owned());
        }
        if vm.vcpus > 1 {
            // A clock that Linux came to distrust, because a busy machine let a processor wait, would make it change its own code while
            // all processors run it, which QEMU may mix up (docs/qemu.md): they would meet a breakpoint for ever that is gone.
            words.push("tsc=reliable".to_owned());
        }
        if args.machine == Machine::Native && !args.has_icount() {
            // Linux wants to see ticks within some milliseconds of the TSC, in which a busy machine may not run QEMU at all.
            // On the hypervisor it knows that it is a guest, and trusts the timer.
            words.push("no_timer_check".to_owned());
        }
    }
    if let Some(nonce) = nonce {
        let terminal = if args.deterministic.is_some() { String::new() } else { terminal::describe() };
        words.push(format!("pal.nonce={nonce}{terminal}"));
    }
    words.extend(vm.append.iter().cloned());
    words.join(" ")
}

/// A word that cannot be guessed; or, for a run that repeats, the one of its seed.
fn nonce(seed: Option<u64>) -> Result<String> {
    if let Some(seed) = seed {
        return Ok(format!("{seed:016x}"));
    }
    let mut bytes = [0; 8];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// `FILE[ WORDS]`; a file whose own name holds a blank wins over the split.
fn read_module(argument: &str) -> Module {
    let file = match argument.split_once(' ') {
        Some((file, _)) if !Path::new(argument).exists() => file,
        _ => argument,
    };
    let name =
        Path::new(file).file_name().map_or_else(String::new, |name| name.to_string_lossy().replace(' ', "_"));
    Module { file: file.into(), cmdline: Some(format!("{name}{}", &argument[file.len()..])) }
}
