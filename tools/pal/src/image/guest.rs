//! A guest on an image: its files, its configuration for each mode, and its menu entries.

use anyhow::Result;
use bootimg::{Boot, Entry, Image};

use super::{args::Port, spec::Spec};
use crate::{
    cli::Mode,
    guest::{
        bundle,
        disk::Contents,
        files::Files,
        image::{Elf, Image as Kernel},
        vm::Vm,
    },
    host::needs::Needs,
    status::Usage,
};

/// Modules that the hypervisor takes at most (`hv/src/boot/info.rs`).
const MOST_MODULES: usize = 16;
/// The configuration that starts all guests at once.
const TOGETHER: &str = "boot/together.toml";

/// A file on the image, and the name by which the hypervisor gets it.
struct Placed {
    path: String,
    name: String,
}

/// A guest whose files are on the image.
pub struct Ready<'a> {
    vm: &'a Vm,
    folder: String,
    kernel: Placed,
    initrd: Option<Placed>,
    /// Modules with their command lines.
    modules: Vec<(Placed, String)>,
    /// Disks, and whether they are only read.
    disks: Vec<(Placed, bool)>,
    cmdline: String,
    native_cmdline: String,
    /// What boots it without the hypervisor, if GRUB can.
    multiboot1: Option<bool>,
}

/// Reads and checks a guest's files, fetches the default ones, and puts them on the image.
///
/// # Errors
/// [`Usage`], with the description, the guest and the key at fault.
pub fn add<'a>(spec: &Spec, vm: &'a Vm, needs: &Needs, image: &mut Image) -> Result<Ready<'a>> {
    vm.check()?;
    // Configuration, kernel and initrd are three.
    let (count, most) = (vm.modules.len() + vm.disks.len(), MOST_MODULES - 3);
    if count > most {
        return Err(vm.wrong("modules", format!(" and disks are {count}; {most} are the most on an image")));
    }
    let Files { kernel, kind, initrd, ours, gets: _, modules: files, disks } = Files::read(vm, needs, false)?;

    let folder = format!("guests/{}", plain(&vm.name));
    let mut put = |name: &str, contents| -> Result<Placed> {
        let placed = Placed { path: format!("{folder}/{name}"), name: name.to_owned() };
        let name = || format!("{}: vm {:?}", spec.source, vm.name);
        image.add(&placed.path, contents).map_err(|error| Usage::new(format!("{}: {error}", name())))?;
        Ok(placed)
    };
    let kernel = put(&plain(&kernel.name), kernel.contents)?;
    let initrd = initrd.map(|initrd| put("initrd", initrd.contents)).transpose()?;
    let mut modules = Vec::new();
    for (index, module) in files.into_iter().enumerate() {
        modules.push((put(&format!("module{index}"), module.contents)?, module.cmdline));
    }
    let mut placed_disks = Vec::new();
    for (index, disk) in disks.into_iter().enumerate() {
        if let Contents::Read(contents) = disk.contents {
            placed_disks.push((put(&format!("disk{index}"), contents)?, disk.source.read_only));
        }
    }
    let words = |console: &str| command_line(vm, console, kind.is_linux(), ours);
    let console = match spec.serial {
        Port(Some(unit)) => format!("console=tty0 console=ttyS{unit}"),
        Port(None) => "console=tty0".to_owned(),
    };
    let native_cmdline = vm.native_cmdline.clone().unwrap_or_else(|| words(&console));
    let multiboot1 = match kind {
        Kernel::BzImage { .. } => Some(false),
        Kernel::Elf(Elf { multiboot1, .. }) => multiboot1.then_some(true),
    };
    Ok(Ready {
        vm,
        folder,
        kernel,
        initrd,
        modules,
        disks: placed_disks,
        cmdline: words(if vm.has_virtio_console() { "console=ttyS0 console=hvc0" } else { "console=ttyS0" }),
        native_cmdline,
        multiboot1,
    })
}

/// The command line of the description, or the default words, and then the options'.
fn command_line(vm: &Vm, console: &str, linux: bool, ours: bool) -> String {
    let mut words = match &vm.cmdline {
        Some(line) => vec![line.clone()],
        None if linux => vec![console.to_owned()],
        None => vec![],
    };
    if vm.cmdline.is_none() && ours {
        words.push("pal.term=vt100".to_owned());
    }
    if vm.cmdline.is_none() && vm.exec.is_some() {
        // A dead kernel resets the machine instead of halting it.
        words.push("panic=10".to_owned());
    }
    words.extend(vm.append.iter().cloned());
    words.join(" ")
}

impl Ready<'_> {
    /// The entry that runs it on the hypervisor in a mode. Its configuration goes to the image.
    ///
    /// # Errors
    /// The same mode twice.
    pub fn entry(&self, mode: Mode, hypervisor: &str, cmdline: &str, image: &mut Image) -> Result<Entry> {
        let config = bundle::config(None, &[self.described(Some(mode), |placed| placed.name.clone())])?;
        let path = format!("{}/{}.toml", self.folder, mode.to_string().replace('=', "-"));
        image.add(&path, config.into_bytes()).map_err(|error| Usage::new(error.to_string()))?;
        let boot = boot(hypervisor, cmdline, path, self.files().map(|placed| (placed, placed.name.clone())));
        Ok(Entry { title: format!("{} {mode}", self.vm.name), boot })
    }

    /// The guest in a mode, else in its own, with the names of its files.
    fn described(&self, mode: Option<Mode>, name: impl Fn(&Placed) -> String) -> bundle::Vm<'_> {
        let entry = self.vm.entry(&self.cmdline);
        let modules = self.modules.iter();
        let disks = self.disks.iter();
        bundle::Vm {
            kernel: name(&self.kernel),
            initrd: self.initrd.as_ref().map(&name),
            mode: mode.map_or(entry.mode.clone(), |mode| mode.to_string()),
            modules: modules
                .map(|(placed, cmdline)| bundle::ModuleEntry { file: name(placed), cmdline })
                .collect(),
            disks: disks
                .map(|(placed, read_only)| bundle::DiskEntry {
                    file: Some(name(placed)),
                    read_only: *read_only,
                    ..bundle::DiskEntry::default()
                })
                .collect(),
            ..entry
        }
    }

    fn files(&self) -> impl Iterator<Item = &Placed> {
        let modules = self.modules.iter().map(|(placed, _)| placed);
        let disks = self.disks.iter().map(|(placed, _)| placed);
        [&self.kernel].into_iter().chain(&self.initrd).chain(modules).chain(disks)
    }

    /// The entry that boots it without the hypervisor; `None` if GRUB cannot.
    pub fn native(&self) -> Option<Entry> {
        let (kernel, cmdline) = (self.kernel.path.clone(), self.native_cmdline.clone());
        let initrd = self.initrd.as_ref().map(|initrd| initrd.path.clone());
        let boot = if self.multiboot1? {
            let initrd = initrd.map(|file| bootimg::Module { file, cmdline: String::new() });
            let modules = self
                .modules
                .iter()
                .map(|(placed, words)| bootimg::Module { file: placed.path.clone(), cmdline: words.clone() });
            Boot::Multiboot1 { kernel, cmdline, modules: initrd.into_iter().chain(modules).collect() }
        } else {
            Boot::Linux { kernel, cmdline, initrd }
        };
        Some(Entry { title: format!("{} native", self.vm.name), boot })
    }
}

/// The entry that starts all guests at once, each in its own mode.
///
/// # Errors
/// [`Usage`]: they have too many files.
pub fn together(
    spec: &Spec,
    guests: &[Ready],
    hypervisor: &str,
    cmdline: &str,
    image: &mut Image,
) -> Result<Entry> {
    let entries: Vec<_> =
        guests.iter().map(|guest| guest.described(None, |placed| placed.path.clone())).collect();
    let config = bundle::config(spec.console.as_deref(), &entries)?;
    let files: Vec<_> = guests.iter().flat_map(Ready::files).collect();
    let count = files.len() + 1;
    if count > MOST_MODULES {
        let text =
            format!("{}: `together`: the guests have {count} files with the configuration", spec.source);
        return Err(Usage::new(format!("{text}; {MOST_MODULES} are the most")).into());
    }
    let path = TOGETHER.to_owned();
    image.add(&path, config.into_bytes()).map_err(|error| Usage::new(error.to_string()))?;
    let boot = boot(hypervisor, cmdline, path, files.into_iter().map(|placed| (placed, placed.path.clone())));
    Ok(Entry { title: "together".into(), boot })
}

/// What boots the hypervisor with this configuration and these files, each with a name.
fn boot<'a>(
    hypervisor: &str,
    cmdline: &str,
    config: String,
    files: impl Iterator<Item = (&'a Placed, String)>,
) -> Boot {
    let config = bootimg::Module { file: config, cmdline: "palimpsest.toml".into() };
    let files = files.map(|(placed, name)| bootimg::Module { file: placed.path.clone(), cmdline: name });
    let modules = std::iter::once(config).chain(files).collect();
    Boot::Hypervisor { file: hypervisor.into(), cmdline: cmdline.into(), modules }
}

/// A name with only the characters of paths on images.
fn plain(name: &str) -> String {
    let ok = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    let name: String = name.chars().map(|c| if ok(c) { c } else { '-' }).take(64).collect();
    name.trim_start_matches('.').to_owned()
}
