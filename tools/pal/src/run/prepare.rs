//! From the options to the guest's files, checked before anything is started.

use std::{fs, io::Read, path::Path};

use anyhow::{Context, Result};

use super::{pcpus::Pcpus, terminal};
use crate::{
    cli::{MODEL, Machine, Protocol, RunArgs, value_name},
    guest::{
        bundle,
        devices::{self, DiskFile},
        image::{Elf, Image},
        initramfs::{self, Contents, Put},
    },
    host::needs::Needs,
    status::Usage,
};

/// The least memory that a guest can have.
const LEAST_MIB: u64 = 20;

/// A guest's files and command line.
pub struct Prepared {
    /// The kernel file.
    pub kernel: bundle::File,
    /// It is a multiboot1 or PVH kernel, not a bzImage.
    pub elf: bool,
    /// The initial RAM disk.
    pub initrd: Option<bundle::File>,
    /// Modules; a command line starts with the file's name.
    pub modules: Vec<bundle::Module>,
    /// Disks.
    pub disks: Vec<bundle::Disk>,
    /// The kernel's command line.
    pub cmdline: String,
    /// The word in the default guest's marks; `None` for guests with an initrd of their own.
    pub nonce: Option<String>,
}

/// Finds options that cannot work together.
///
/// # Errors
/// [`Usage`].
pub fn check(args: &RunArgs) -> Result<()> {
    let wrong = |text: &str| Err(Usage::new(text).into());
    if args.initrd.is_some() && args.exec.is_some() {
        return wrong("--exec needs the default initramfs: leave out --initrd");
    }
    if args.initrd.is_some() && !args.put.is_empty() {
        return wrong("--put adds to the default initramfs: leave out --initrd");
    }
    if args.mem < LEAST_MIB {
        return wrong(&format!("--mem {}: a guest needs at least {LEAST_MIB} MiB", args.mem));
    }
    if args.machine.is_bochs() {
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
    match args.machine {
        Machine::Native | Machine::BochsNative if args.pcpus != Pcpus::ONE => {
            wrong("--pcpus: without the hypervisor the machine's processors are the guest's: --vcpus")
        }
        Machine::Native | Machine::BochsNative if args.protocol != Protocol::Auto => wrong(
            "--protocol is for the hypervisor's loader; without the hypervisor QEMU or GRUB chooses how to start a kernel",
        ),
        Machine::Native | Machine::BochsNative if args.probe => {
            wrong("--probe: it is the hypervisor that reports, and there is none on this machine")
        }
        Machine::Native | Machine::BochsNative if args.has_devices() => wrong(
            "--disk, --net, --virtio-console and --entropy: it is the hypervisor that has these devices",
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
        // Check what the person gave before fetching anything.
        let given = args.kernel.as_deref().map(|path| read("--kernel", path)).transpose()?;
        let puts = args.put.iter().map(|put| Put::parse(put)).collect::<Result<Vec<_>>>()?;
        let modules = args.module.iter().map(|module| read_module(module)).collect::<Result<Vec<_>>>()?;
        let disks = args.disk.iter().map(|disk| read_disk(disk)).collect::<Result<Vec<_>>>()?;
        let own_initrd = args.initrd.as_deref().map(|path| read_named("--initrd", path)).transpose()?;
        let (path, kernel) = match (given, &args.kernel) {
            (Some(kernel), Some(path)) => (path.clone(), kernel),
            _ => {
                let path = needs.kernel(args.guest)?;
                let kernel = read("the guest's kernel", &path)?;
                (path, kernel)
            }
        };
        let image = Image::identify(&kernel)
            .map_err(|what| Usage::new(format!("--kernel {}: {what}", path.display())))?;
        check_image(args, &image, !modules.is_empty())?;

        let default_guest = image.is_linux() && own_initrd.is_none();
        let nonce = default_guest.then(nonce).transpose()?;
        let initrd = match own_initrd {
            None if default_guest => {
                let busybox = needs.busybox(args.guest)?;
                let drivers = if args.has_devices() { devices::modules(&path)? } else { Vec::new() };
                let contents = initramfs::build(&Contents {
                    busybox: &busybox,
                    puts: &puts,
                    modules: &drivers,
                    command: args.exec.as_deref(),
                })?;
                Some(bundle::File { name: "initramfs".into(), contents })
            }
            own => own,
        };
        let kernel = bundle::File { name: file_name(&path), contents: kernel };
        let elf = matches!(image, Image::Elf(_));
        let prepared = Self {
            cmdline: command_line(args, &image, nonce.as_deref()),
            kernel,
            elf,
            initrd,
            modules,
            disks,
            nonce,
        };
        prepared.check_memory(args, &image)?;
        Ok(prepared)
    }

    /// The guest as the hypervisor gets it.
    pub fn bundle(self: &Prepared, args: &RunArgs) -> Result<bundle::Guest> {
        let modules = self.modules.iter();
        Ok(bundle::Guest {
            kernel: self.kernel.clone(),
            initrd: self.initrd.clone(),
            modules: modules
                .map(|module| bundle::Module {
                    contents: module.contents.clone(),
                    cmdline: module.cmdline.clone(),
                })
                .collect(),
            cmdline: self.cmdline.clone(),
            memory_mib: args.mem,
            vcpus: args.vcpus,
            mode: args.mode.to_string(),
            shadow_pages: args.shadow_pages,
            paranoid: args.paranoid,
            protocol: value_name(args.protocol),
            permissive_msr: args.permissive_msr,
            test_device: args.test_device,
            disks: self.disks.clone(),
            networks: args.net.clone(),
            virtio_console: args.virtio_console,
            entropy: args.entropy,
        })
    }

    fn check_memory(&self, args: &RunArgs, image: &Image) -> Result<()> {
        let Image::BzImage { end } = image else { return Ok(()) };
        let initrd = self.initrd.as_ref().map_or(0, |initrd| initrd.contents.len() as u64);
        let needed = (end + initrd).div_ceil(1 << 20);
        if args.mem < needed {
            let text = format!(
                "--mem {}: this kernel needs {} MiB to start and {} MiB for its initrd; give at least --mem {needed}",
                args.mem,
                end.div_ceil(1 << 20),
                initrd.div_ceil(1 << 20),
            );
            return Err(Usage::new(text).into());
        }
        Ok(())
    }
}

fn check_image(args: &RunArgs, image: &Image, modules: bool) -> Result<()> {
    let wrong = |text: &str| Err(Usage::new(text).into());
    if !image.is_linux() && (args.exec.is_some() || !args.put.is_empty()) {
        return wrong("--exec and --put need a Linux kernel for the default initramfs: leave out --kernel");
    }
    if matches!(image, Image::BzImage { .. }) && modules {
        return wrong("--module: a Linux bzImage takes one --initrd and no modules");
    }
    let Image::Elf(Elf { multiboot1, .. }) = image else { return Ok(()) };
    if args.machine == Machine::BochsNative && !multiboot1 {
        return wrong(
            "--kernel: on --machine bochs-native GRUB starts Linux bzImages and multiboot1 kernels only",
        );
    }
    if args.machine == Machine::Native && !multiboot1 && modules {
        return wrong("--module: with --machine native QEMU passes modules to multiboot1 kernels only");
    }
    Ok(())
}

/// The default words for Linux, then the person's.
fn command_line(args: &RunArgs, image: &Image, nonce: Option<&str>) -> String {
    let mut words = Vec::new();
    if image.is_linux() {
        words.push("console=ttyS0".to_owned());
        if args.virtio_console {
            words.push("console=hvc0".to_owned());
        }
        if args.verbose == 0 {
            words.push("quiet".to_owned());
        }
        if args.exec.is_some() {
            // A dead kernel ends the run at once.
            words.push("panic=-1".to_owned());
        }
        if args.machine == Machine::Native && !args.icount {
            // Linux wants to see ticks within some milliseconds of the TSC, in which a busy machine may not run QEMU at all.
            // On the hypervisor it knows that it is a guest, and trusts the timer.
            words.push("no_timer_check".to_owned());
        }
        if let Some(nonce) = nonce {
            words.push(format!("pal.nonce={nonce}{}", terminal::describe()));
        }
    }
    words.extend(args.append.iter().cloned());
    words.join(" ")
}

/// A word that nobody can guess.
fn nonce() -> Result<String> {
    let mut bytes = [0; 8];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Usage::new(format!("{option} {}: {error}", path.display())).into())
}

/// As [`read`], with the file's name.
fn read_named(option: &str, path: &Path) -> Result<bundle::File> {
    Ok(bundle::File { name: file_name(path), contents: read(option, path)? })
}

/// The last part of a path, as text.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn read_disk(argument: &str) -> Result<bundle::Disk> {
    let disk = DiskFile::parse(argument)?;
    Ok(bundle::Disk { contents: read("--disk", &disk.file)?, read_only: disk.read_only })
}

/// `FILE[ WORDS]`; a file whose own name holds a blank wins over the split.
fn read_module(argument: &str) -> Result<bundle::Module> {
    let file = match argument.split_once(' ') {
        Some((file, _)) if !Path::new(argument).exists() => file,
        _ => argument,
    };
    let contents = read("--module", Path::new(file))?;
    let name =
        Path::new(file).file_name().map_or_else(String::new, |name| name.to_string_lossy().replace(' ', "_"));
    Ok(bundle::Module { contents, cmdline: format!("{name}{}", &argument[file.len()..]) })
}
