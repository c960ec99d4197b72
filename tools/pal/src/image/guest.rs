//! A guest on an image: its files, its configuration for each mode, and its menu entries.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use bootimg::{Boot, Entry, Image};

use super::{
    args::Port,
    spec::{Spec, Vm},
};
use crate::{
    cli::{Guest, Mode, value_name},
    guest::{
        bundle,
        image::{Elf, Image as Kernel},
        initramfs::{self, Contents, Put},
    },
    host::needs::Needs,
    status::Usage,
};

/// Modules that the hypervisor takes at most (`hv/src/boot/info.rs`): configuration, kernel and initrd are three.
const MOST_MODULES: usize = 16 - 3;
/// Virtual processors that a guest can have (`hv/src/guest/config`).
const MOST_VCPUS: u32 = 64;
/// What a guest's memory is between, in MiB.
const MEMORY: std::ops::RangeInclusive<u64> = 20..=1 << 30;

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
    let who = format!("{}: vm {:?}", spec.source, vm.name);
    let wrong = |text: String| anyhow::Error::from(Usage::new(format!("{who}: {text}")));
    check(vm).map_err(wrong)?;
    let read = |key: &str, path: &Path| {
        fs::read(path).map_err(|error| wrong(format!("`{key}` {}: {error}", path.display())))
    };
    let guest = vm.guest.unwrap_or(Guest::DebianAmd64);
    let path = vm.kernel.clone().map_or_else(|| needs.kernel(guest), Ok)?;
    let kernel = read("kernel", &path)?;
    let kind =
        Kernel::identify(&kernel).map_err(|what| wrong(format!("`kernel` {}: {what}", path.display())))?;
    let own = vm.initrd.as_deref().map(|path| read("initrd", path)).transpose()?;
    let ours = kind.is_linux() && own.is_none();
    if !ours && (vm.exec.is_some() || !vm.put.is_empty()) {
        return Err(wrong(
            "`exec` and `put` are for a Linux kernel with the default initramfs: leave out `initrd`".into(),
        ));
    }
    let initrd = if ours {
        let puts = vm
            .put
            .iter()
            .map(|put| Put::parse(put))
            .collect::<Result<Vec<_>>>()
            .with_context(|| who.clone())?;
        let busybox = needs.busybox(guest)?;
        Some(initramfs::build(&Contents {
            busybox: &busybox,
            puts: &puts,
            modules: &[],
            command: vm.exec.as_deref(),
        })?)
    } else {
        own
    };
    if let Kernel::BzImage { end } = kind {
        let needed = (end + initrd.as_ref().map_or(0, |initrd| initrd.len() as u64)).div_ceil(1 << 20);
        if vm.memory_mib < needed {
            return Err(wrong(format!("`memory_mib` is {}; kernel and initrd need {needed}", vm.memory_mib)));
        }
        if !vm.modules.is_empty() {
            return Err(wrong("`modules`: a Linux bzImage takes an initrd and no modules".into()));
        }
    }

    let folder = format!("guests/{}", plain(&vm.name));
    let mut put = |name: &str, contents| -> Result<Placed> {
        let placed = Placed { path: format!("{folder}/{name}"), name: name.to_owned() };
        image.add(&placed.path, contents).map_err(|error| wrong(error.to_string()))?;
        Ok(placed)
    };
    let kernel = put(&plain(&path.file_name().unwrap_or_default().to_string_lossy()), kernel)?;
    let initrd = initrd.map(|initrd| put("initrd", initrd)).transpose()?;
    let mut modules = Vec::new();
    for (index, module) in vm.modules.iter().enumerate() {
        let name = module.file.file_name().unwrap_or_default().to_string_lossy().replace(' ', "_");
        let placed = put(&format!("module{index}"), read("modules.file", &module.file)?)?;
        modules.push((placed, module.cmdline.clone().unwrap_or(name)));
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
        cmdline: words("console=ttyS0"),
        native_cmdline,
        multiboot1,
    })
}

fn check(vm: &Vm) -> Result<(), String> {
    if vm.name.is_empty() || vm.name.len() > 32 || !vm.name.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("`name` must be 1 to 32 printable ASCII characters without blanks".into());
    }
    if !MEMORY.contains(&vm.memory_mib) {
        return Err(format!(
            "`memory_mib` is {}; it can be {} to {}",
            vm.memory_mib,
            MEMORY.start(),
            MEMORY.end()
        ));
    }
    if !(1..=MOST_VCPUS).contains(&vm.vcpus) {
        return Err(format!("`vcpus` is {}; it can be 1 to {MOST_VCPUS}", vm.vcpus));
    }
    if vm.paranoid == Some(0) {
        return Err("`paranoid` is 0; it can be 1 (each entry is checked) and more".into());
    }
    if let Some(pages) = vm.shadow_pages.filter(|pages| !(16..=1 << 20).contains(pages)) {
        return Err(format!("`shadow_pages` is {pages}; it can be 16 to 1048576"));
    }
    if vm.modules.len() > MOST_MODULES {
        return Err(format!("`modules` has {} entries; {MOST_MODULES} are the most", vm.modules.len()));
    }
    Ok(())
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
        // A dead kernel resets the machine instead of standing still.
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
        let vm = self.vm;
        let modules = self.modules.iter();
        let config = bundle::Vm {
            name: &vm.name,
            kernel: self.kernel.name.clone(),
            initrd: self.initrd.as_ref().map(|initrd| initrd.name.clone()),
            cmdline: &self.cmdline,
            memory_mib: vm.memory_mib,
            vcpus: vm.vcpus,
            mode: &mode.to_string(),
            shadow_pages: vm.shadow_pages,
            paranoid: vm.paranoid,
            protocol: &value_name(vm.protocol),
            permissive_msr: vm.permissive_msr,
            test_device: vm.test_device,
            pv_clock: vm.pv_clock,
            networks: &[],
            console: None,
            entropy: None,
            disks: vec![],
            modules: modules
                .map(|(placed, cmdline)| bundle::ModuleEntry { file: placed.name.clone(), cmdline })
                .collect(),
        }
        .config()?;
        let path = format!("{}/{}.toml", self.folder, mode.to_string().replace('=', "-"));
        image.add(&path, config.into_bytes()).map_err(|error| Usage::new(error.to_string()))?;
        let files = [&self.kernel]
            .into_iter()
            .chain(&self.initrd)
            .chain(self.modules.iter().map(|(placed, _)| placed));
        let files =
            files.map(|placed| bootimg::Module { file: placed.path.clone(), cmdline: placed.name.clone() });
        let config = bootimg::Module { file: path, cmdline: "palimpsest.toml".into() };
        let boot = Boot::Hypervisor {
            file: hypervisor.into(),
            cmdline: cmdline.into(),
            modules: std::iter::once(config).chain(files).collect(),
        };
        Ok(Entry { title: format!("{} {mode}", vm.name), boot })
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

/// A name with only the characters of paths on images.
fn plain(name: &str) -> String {
    let ok = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    let name: String = name.chars().map(|c| if ok(c) { c } else { '-' }).take(64).collect();
    name.trim_start_matches('.').to_owned()
}
