//! A guest as a person describes it: by a `[[vm]]` table of a TOML file (docs/configuration.md), or by options.
//!
//! [`Vm::check`] finds what the hypervisor would refuse, here where file, line and key can still be named.

use std::{fmt::Display, ops::RangeInclusive, path::Path, path::PathBuf, rc::Rc, str::FromStr};

pub use abi::config::{Console, MAX_VMS, Mitigations, NestedPage, Replacement};
use abi::{
    config::{
        MAX_DISKS, MAX_MEMORY_MIB, MAX_NETWORKS, MAX_OVERCOMMIT_MIB, MAX_PCPUS, MAX_SHADOW_PAGES, MAX_VCPUS,
        MAX_WEIGHT, MIN_MEMORY_MIB, MIN_RESIDENT_MIB, MIN_SHADOW_PAGES, MIN_WEIGHT, Protocol, is_name,
        max_cap,
    },
    feature::FeatureSet,
    mode::Mode,
    regions::Regions,
};
use serde::{Deserialize, Deserializer, de::Error as _};
use toml::de::{DeTable, DeValue};

use super::bundle;
use crate::{cli::Guest, host::guests::Architecture, status::Usage};

/// What a guest's memory is between, in MiB.
const MEMORY: RangeInclusive<u64> = MIN_MEMORY_MIB..=MAX_MEMORY_MIB;

/// A guest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// One of the guests that are fetched.
    #[serde(default, deserialize_with = "fetched")]
    pub guest: Option<Guest>,
    /// A kernel file in its place.
    pub kernel: Option<PathBuf>,
    /// Where that kernel's modules are.
    pub kernel_modules: Option<PathBuf>,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Files for a PVH or multiboot kernel.
    #[serde(default)]
    pub modules: Vec<Module>,
    /// The kernel's command line, instead of the default words.
    pub cmdline: Option<String>,
    /// Words after it.
    #[serde(default, deserialize_with = "words")]
    pub append: Vec<String>,
    /// The command line without the hypervisor.
    pub native_cmdline: Option<String>,
    /// What the default guest runs.
    pub exec: Option<String>,
    /// What is added to it.
    #[serde(default)]
    pub put: Vec<String>,
    /// What it sends back at its end.
    #[serde(default)]
    pub get: Vec<String>,
    /// Where files that it sends go unless they say it themselves.
    #[serde(skip)]
    pub folder: PathBuf,
    /// It loads the guest kit, which counts its page faults.
    #[serde(default)]
    pub kit: bool,
    /// RAM in MiB.
    #[serde(default = "memory")]
    pub memory_mib: u64,
    /// Processors.
    #[serde(default = "one")]
    pub vcpus: u32,
    /// Its share beside other guests.
    pub weight: Option<u32>,
    /// The most time that it gets, in percent of one processor.
    pub cap: Option<u32>,
    /// The processors that may run it.
    pub affinity: Option<Vec<u32>>,
    /// How its memory is virtualized.
    #[serde(default, deserialize_with = "mode")]
    pub mode: Option<Mode>,
    /// The largest pages of its nested tables.
    #[serde(default, deserialize_with = "nested_page")]
    pub nested_page: Option<NestedPage>,
    /// Whether regions of its memory are found and mapped to caches, and how.
    #[serde(default, deserialize_with = "from_word")]
    pub regions: Regions,
    /// Pages of shadow tables at most.
    pub shadow_pages: Option<u32>,
    /// N: shadow tables are checked before every N-th entry.
    pub audit_shadow: Option<u32>,
    /// How the kernel is started.
    #[serde(default = "auto", deserialize_with = "from_word")]
    pub protocol: Protocol,
    /// Unknown MSRs read as zero.
    #[serde(default)]
    pub permissive_msr: bool,
    /// The test device is there.
    #[serde(default)]
    pub test_device: bool,
    /// The clock for hypervisors' guests is there.
    #[serde(default = "yes")]
    pub pv_clock: bool,
    /// It is restarted when it dies.
    #[serde(default)]
    pub restart: bool,
    /// What is done against leaks by speculation.
    #[serde(default, deserialize_with = "mitigations")]
    pub mitigations: Option<Mitigations>,
    /// Its processor.
    #[serde(default)]
    pub cpu: Cpu,
    /// The root file system that it boots: the first disk, or a directory that one is made of.
    pub root: Option<Disk>,
    /// Its disks.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// A network card at the switch of each name.
    #[serde(default)]
    pub networks: Vec<String>,
    /// What a person's input goes to.
    #[serde(default, deserialize_with = "from_word")]
    pub console: Console,
    /// The guest has a source of random numbers.
    #[serde(default)]
    pub entropy: bool,
    /// Its memory may be more than the machine has for it.
    #[serde(default)]
    pub overcommit: bool,
    /// With that: MiB that are in frames of the machine at a time.
    pub resident_mib: Option<u64>,
    /// With that: the policy by which pages are evicted.
    #[serde(default, deserialize_with = "replacement")]
    pub replacement: Option<Replacement>,
    /// With that: it has a balloon.
    #[serde(default)]
    pub balloon: bool,
    /// MiB of the machine's fast memory that it may have. Default: the machine divides it.
    pub fast_mib: Option<u64>,
    /// Where the description is, for messages.
    #[serde(skip)]
    pub place: Place,
}

/// A module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// The file.
    pub file: PathBuf,
    /// Its command line; the file's name if there is none.
    pub cmdline: Option<String>,
}

/// The processor as a guest sees it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// CPUID features that are hidden, by the names of `/proc/cpuinfo`.
    #[serde(default)]
    pub without: Vec<String>,
}

/// A disk.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The file with its contents.
    pub file: PathBuf,
    /// The guest cannot write it.
    #[serde(default)]
    pub read_only: bool,
    /// What the guest writes goes to the file, which otherwise stays as it is.
    #[serde(default)]
    pub write_back: bool,
}

/// Where a guest's description is.
#[derive(Clone, Default)]
pub enum Place {
    /// In options.
    #[default]
    Options,
    /// In the `[[vm]]` table of this number in a file.
    Table {
        /// What messages call the file.
        source: Rc<str>,
        /// What it holds.
        text: Rc<str>,
        /// Counted from 0.
        number: usize,
    },
}

/// A mistake: the key, and what is wrong with it.
type Mistake = (&'static str, String);

fn memory() -> u64 {
    256
}
fn one() -> u32 {
    1
}
fn yes() -> bool {
    true
}
fn auto() -> Protocol {
    Protocol::Auto
}

/// A value that is one word.
pub fn from_word<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Mode>, D::Error> {
    from_word(from).map(Some)
}

fn fetched<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Guest>, D::Error> {
    from_word(from).map(Some)
}

fn words<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(vec![String::deserialize(from)?])
}

fn mitigations<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Mitigations>, D::Error> {
    from_word(from).map(Some)
}

fn replacement<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Replacement>, D::Error> {
    from_word(from).map(Some)
}

fn nested_page<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NestedPage>, D::Error> {
    from_word(from).map(Some)
}

impl Vm {
    /// A guest with this name and nothing else said.
    pub fn named(name: impl Into<String>) -> Vm {
        Vm {
            name: name.into(),
            guest: None,
            kernel: None,
            kernel_modules: None,
            initrd: None,
            modules: Vec::new(),
            cmdline: None,
            append: Vec::new(),
            native_cmdline: None,
            exec: None,
            put: Vec::new(),
            get: Vec::new(),
            kit: false,
            folder: PathBuf::new(),
            memory_mib: memory(),
            vcpus: one(),
            weight: None,
            cap: None,
            affinity: None,
            mode: None,
            nested_page: None,
            regions: Regions::Off,
            shadow_pages: None,
            audit_shadow: None,
            protocol: auto(),
            permissive_msr: false,
            test_device: false,
            pv_clock: true,
            restart: false,
            mitigations: None,
            cpu: Cpu::default(),
            root: None,
            disks: Vec::new(),
            networks: Vec::new(),
            console: Console::Serial,
            entropy: false,
            overcommit: false,
            fast_mib: None,
            resident_mib: None,
            replacement: None,
            balloon: false,
            place: Place::Options,
        }
    }

    /// Files are relative to this folder.
    pub fn relative_to(&mut self, dir: &Path) {
        let files = [&mut self.kernel, &mut self.kernel_modules, &mut self.initrd].into_iter().flatten();
        let modules = self.modules.iter_mut().map(|module| &mut module.file);
        let disks = self.root.iter_mut().chain(&mut self.disks).map(|disk| &mut disk.file);
        files.chain(modules).chain(disks).for_each(|path| *path = dir.join(&*path));
        self.folder = dir.to_owned();
        let puts = self.put.iter_mut().filter(|put| !put.starts_with('/'));
        puts.for_each(|put| *put = dir.join(&*put).display().to_string());
    }

    /// The guest that is fetched, in whole or as the surroundings of a kernel.
    pub fn guest(&self) -> Guest {
        self.guest.unwrap_or(Guest::DebianAmd64)
    }

    /// A key that is there and means something to the default initramfs only.
    pub fn asks_of_default_guest(&self) -> Option<&'static str> {
        let keys = [
            ("exec", self.exec.is_some()),
            ("put", !self.put.is_empty()),
            ("get", !self.get.is_empty()),
            ("root", self.root.is_some()),
            ("kit", self.kit),
        ];
        keys.into_iter().find(|(_, given)| *given).map(|(key, _)| key)
    }

    /// Whether it has virtio devices.
    pub fn has_devices(&self) -> bool {
        self.root.is_some()
            || !self.disks.is_empty()
            || !self.networks.is_empty()
            || self.has_virtio_console()
            || self.entropy
            || self.balloon
    }

    /// Whether its console is a virtio console.
    pub fn has_virtio_console(&self) -> bool {
        self.console == Console::Virtio
    }

    /// A complaint about a key, with what the person called it and where.
    pub fn wrong(&self, key: &str, text: impl Display) -> anyhow::Error {
        let Place::Table { source, text: file, number } = &self.place else {
            return Usage::new(format!("{}{text}", self.called(key))).into();
        };
        let line = line_of(file, *number, key).map_or(String::new(), |line| format!(", line {line}"));
        Usage::new(format!("{source}{line}: vm {:?}: {}{text}", self.name, self.called(key))).into()
    }

    /// What the person calls a key.
    pub fn called(&self, key: &str) -> String {
        let option = match key {
            _ if matches!(self.place, Place::Table { .. }) => return format!("`{key}`"),
            "memory_mib" => "mem",
            "modules" => "module",
            "kernel_modules" => "modules",
            "disks" => "disk",
            "networks" => "net",
            "nested_page" => "nested-page",
            "shadow_pages" => "shadow-pages",
            "audit_shadow" => "audit-shadow",
            "resident_mib" => "resident",
            "cpu" => "without",
            other => other,
        };
        format!("--{option}")
    }

    /// Finds what cannot work, without looking at files.
    ///
    /// # Errors
    /// [`Usage`], with the place and the key.
    pub fn check(&self) -> anyhow::Result<()> {
        self.find_mistake().map_or(Ok(()), |(key, text)| Err(self.wrong(key, text)))
    }

    fn overcommit_mistake(&self) -> Option<Mistake> {
        let lonely = [
            ("resident_mib", self.resident_mib.is_some()),
            ("replacement", self.replacement.is_some()),
            ("balloon", self.balloon),
        ];
        if let Some((key, _)) = lonely.into_iter().find(|(_, given)| *given && !self.overcommit) {
            return Some((
                key,
                format!(" is for guests with {}; add that, or leave it out", self.called("overcommit")),
            ));
        }
        let memory = self.memory_mib;
        if self.overcommit && memory > MAX_OVERCOMMIT_MIB {
            let overcommit = self.called("overcommit");
            return Some((
                "memory_mib",
                format!(" is {memory}; with {overcommit} the most is {MAX_OVERCOMMIT_MIB}"),
            ));
        }
        let resident = self.resident_mib.filter(|mib| !(MIN_RESIDENT_MIB..=memory).contains(mib))?;
        Some((
            "resident_mib",
            format!(" is {resident}; it can be {MIN_RESIDENT_MIB} to {memory}, the guest's memory"),
        ))
    }

    fn find_mistake(&self) -> Option<Mistake> {
        let out_of = |key, value: u64, least: u64, most: u64| {
            let fits = (least..=most).contains(&value);
            (!fits).then(|| (key, format!(" is {value}; it can be {least} to {most}")))
        };
        let only = "must be 1 to 32 printable ASCII characters without blanks";
        let too_many = |key, count: usize, most: usize| {
            (count > most).then(|| (key, format!(" has {count} entries; the most is {most}")))
        };
        let share = || {
            let weight = self
                .weight
                .and_then(|weight| out_of("weight", weight.into(), MIN_WEIGHT.into(), MAX_WEIGHT.into()));
            let cap = u64::from(self.cap.unwrap_or(0));
            let most = u64::from(max_cap(self.vcpus));
            let cap = (cap > most).then(|| {
                let vcpus = self.vcpus;
                (
                    "cap",
                    format!(" is {cap}; it is percent of one processor, for {vcpus} VCPUs {most} at most"),
                )
            });
            weight.or(cap).or_else(|| self.affinity_mistake())
        };
        let zero = || {
            let modules = self.modules.iter().filter_map(|module| module.cmdline.as_ref());
            let modules = modules.map(|line| ("modules", line));
            let lines = self.cmdline.iter().chain(&self.append).map(|line| ("cmdline", line));
            let bad = lines.chain(modules).find(|(_, line)| line.contains('\0'));
            bad.map(|(key, _)| (key, " holds a zero byte, which would end it; remove it".to_owned()))
        };
        (!is_name(&self.name))
            .then(|| ("name", format!(" {only}")))
            .or_else(|| {
                let text = format!(
                    " is {}; a guest can have {MIN_MEMORY_MIB} MiB to {MAX_MEMORY_MIB} MiB",
                    self.memory_mib
                );
                (!MEMORY.contains(&self.memory_mib)).then_some(("memory_mib", text))
            })
            .or_else(|| out_of("vcpus", self.vcpus.into(), 1, MAX_VCPUS.into()))
            .or_else(share)
            .or_else(|| {
                self.shadow_pages.and_then(|n| {
                    out_of("shadow_pages", n.into(), MIN_SHADOW_PAGES.into(), MAX_SHADOW_PAGES.into())
                })
            })
            .or_else(|| {
                let text = " is 0; it can be 1 (each entry is checked) and more".to_owned();
                (self.audit_shadow == Some(0)).then_some(("audit_shadow", text))
            })
            .or_else(|| self.overcommit_mistake())
            .or_else(|| self.cpu_mistake())
            .or_else(|| {
                let text =
                    ": the guest kit is built for 64-bit guests; a 32-bit one can build guest-kits/linux itself, by its Makefile";
                let is_32 = self.guest().source().architecture == Architecture::I386;
                (self.kit && is_32).then(|| ("kit", text.to_owned()))
            })
            .or_else(|| {
                // The root file system and the modules of the kernel are disks, too.
                let most = if self.root.is_some() { MAX_DISKS - 2 } else { MAX_DISKS };
                too_many("disks", self.disks.len(), most)
            })
            .or_else(|| {
                let lonely = self.root.is_some() && self.exec.is_none() && !self.get.is_empty();
                let (exec, root) = (self.called("exec"), self.called("root"));
                lonely
                    .then(|| ("get", format!(" needs {exec} beside {root}: it is done when that has ended")))
            })
            .or_else(|| {
                let both = self.root.iter().chain(&self.disks).any(|disk| disk.read_only && disk.write_back);
                let text = ": `read_only` and `write_back` exclude each other; leave one of them out";
                both.then(|| ("disks", text.to_owned()))
            })
            .or_else(|| too_many("networks", self.networks.len(), MAX_NETWORKS))
            .or_else(|| {
                let named = self.networks.iter().all(|name| is_name(name));
                (!named).then(|| ("networks", format!(": the names of switches {only}")))
            })
            .or_else(zero)
            .or_else(|| {
                let initrd = "initrd";
                let text = |other: &str| {
                    format!(": {} is for the default initramfs; leave one of them out", self.called(other))
                };
                let other = self.asks_of_default_guest().filter(|_| self.initrd.is_some());
                other.map(|other| (initrd, text(other)))
            })
    }

    fn cpu_mistake(&self) -> Option<Mistake> {
        match FeatureSet::parse(self.cpu.without.iter().map(String::as_str)) {
            Err(unknown) => Some(("cpu", format!(": {unknown}"))),
            Ok(hidden) if self.vcpus > 1 && hidden.names().any(|name| name == "apic") => {
                Some(("cpu", " hides the local APIC (apic), without which a guest has one processor".into()))
            }
            Ok(_) => None,
        }
    }

    fn affinity_mistake(&self) -> Option<Mistake> {
        let pcpus = self.affinity.as_ref()?;
        if pcpus.is_empty() {
            return Some(("affinity", " is empty; name processors, or leave it out for all".into()));
        }
        let far = pcpus.iter().find(|n| **n >= MAX_PCPUS)?;
        Some(("affinity", format!(" names processor {far}; they are counted from 0 to {}", MAX_PCPUS - 1)))
    }
}

/// Finds guests that have the same name, or are too many.
///
/// # Errors
/// [`Usage`].
pub fn check_all(vms: &[Vm]) -> anyhow::Result<()> {
    for (number, vm) in vms.iter().enumerate() {
        vm.check()?;
        if vms[..number].iter().any(|other| other.name == vm.name) {
            return Err(vm.wrong("name", " is taken; give each guest its own"));
        }
        if number >= MAX_VMS {
            return Err(vm.wrong("name", format!(": there are more than {MAX_VMS} guests")));
        }
    }
    Ok(())
}

/// The line of a key in `[[vm]]` table `number` of a file, or that of the table.
fn line_of(text: &str, number: usize, key: &str) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let DeValue::Array(tables) = root.get_ref().get("vm")?.get_ref() else { return None };
    let table = tables.get(number)?;
    let DeValue::Table(entries) = table.get_ref() else { return None };
    let at = entries.get_key_value(key).map_or(table.span().start, |(key, _)| key.span().start);
    Some(1 + text.get(..at)?.matches('\n').count())
}

/// The words of `palimpsest.toml` for the guest.
impl Vm {
    /// The keys that have nothing to do with files; the rest is the caller's.
    pub fn entry<'a>(&'a self, cmdline: &'a str) -> bundle::Vm<'a> {
        bundle::Vm {
            name: &self.name,
            kernel: String::new(),
            initrd: None,
            cmdline,
            memory_mib: self.memory_mib,
            vcpus: self.vcpus,
            weight: self.weight,
            cap: self.cap,
            affinity: self.affinity.as_deref(),
            mode: self.mode.unwrap_or(Mode::Nested).to_string(),
            nested_page: self.nested_page.map(NestedPage::name),
            regions: (self.regions != Regions::Off).then(|| self.regions.to_string()),
            shadow_pages: self.shadow_pages,
            audit_shadow: self.audit_shadow,
            protocol: self.protocol.name(),
            permissive_msr: self.permissive_msr,
            test_device: self.test_device,
            pv_clock: self.pv_clock,
            restart: self.restart.then_some(true),
            networks: &self.networks,
            console: self.has_virtio_console().then_some(self.console.name()),
            entropy: self.entropy.then_some(true),
            overcommit: self.overcommit.then_some(true),
            resident_mib: self.resident_mib,
            replacement: self.replacement.map(Replacement::name),
            balloon: self.balloon.then_some(true),
            fast_mib: self.fast_mib,
            modules: Vec::new(),
            disks: Vec::new(),
            mitigations: self.mitigations.map(Mitigations::name),
            cpu: (!self.cpu.without.is_empty()).then(|| bundle::CpuEntry { without: &self.cpu.without }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vm {
        let mut vm: Vm = toml::from_str(text).unwrap();
        let text = format!("version = 1\n\n[[vm]]\n{text}");
        vm.place = Place::Table { source: "lab.toml".into(), text: text.into(), number: 0 };
        vm
    }

    #[test]
    fn mistakes_are_named_with_file_line_and_key() {
        for (text, message) in [
            ("name = \"a b\"", "lab.toml, line 4: vm \"a b\": `name` must be 1 to 32"),
            (
                "name = \"a\"\nmemory_mib = 19",
                "lab.toml, line 5: vm \"a\": `memory_mib` is 19; a guest can have 20 MiB to 67108864 MiB",
            ),
            ("name = \"a\"\nvcpus = 65", "line 5: vm \"a\": `vcpus` is 65; it can be 1 to 64"),
            ("name = \"a\"\nweight = 0", "`weight` is 0; it can be 1 to 65535"),
            ("name = \"a\"\nvcpus = 2\ncap = 201", "line 6: vm \"a\": `cap` is 201"),
            ("name = \"a\"\naffinity = []", "`affinity` is empty"),
            ("name = \"a\"\naffinity = [1, 64]", "`affinity` names processor 64"),
            ("name = \"a\"\nshadow_pages = 15", "`shadow_pages` is 15"),
            ("name = \"a\"\naudit_shadow = 0", "`audit_shadow` is 0"),
            (
                "name = \"a\"\ncpu = { without = [\"x2apci\"] }",
                "line 5: vm \"a\": `cpu`: \"x2apci\" is no feature",
            ),
            ("name = \"a\"\nvcpus = 2\ncpu = { without = [\"apic\"] }", "`cpu` hides the local APIC"),
            ("name = \"a\"\nnetworks = [\"a\", \"a\", \"a\", \"a\", \"a\"]", "`networks` has 5 entries"),
            ("name = \"a\"\nnetworks = [\"a b\"]", "`networks`: the names of switches must be"),
            (
                "name = \"a\"\ndisks = [{ file = \"d\", read_only = true, write_back = true }]",
                "`disks`: `read_only` and `write_back` exclude",
            ),
            (
                "name = \"a\"\nguest = \"debian-686\"\nkit = true",
                "line 6: vm \"a\": `kit`: the guest kit is built for",
            ),
            ("name = \"a\"\ninitrd = \"i\"\nkit = true", "`initrd`: `kit` is for"),
            ("name = \"a\"\ncmdline = \"a\\u0000\"", "`cmdline` holds a zero byte"),
            ("name = \"a\"\ninitrd = \"i\"\nexec = \"e\"", "line 5: vm \"a\": `initrd`: `exec` is for"),
            ("name = \"a\"\ninitrd = \"i\"\nget = [\"/e\"]", "line 5: vm \"a\": `initrd`: `get` is for"),
        ] {
            let error = read(text).check().unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(message), "{text}: {error}");
        }
        assert!(read("name = \"a\"\nweight = 1\ncap = 100\naffinity = [0, 63]").check().is_ok());
        let options = Vm { memory_mib: 19, ..Vm::named("guest") };
        assert_eq!(
            options.check().unwrap_err().to_string(),
            "--mem is 19; a guest can have 20 MiB to 67108864 MiB"
        );
    }

    #[test]
    fn names_are_unique() {
        let twins = [Vm::named("a"), Vm::named("b"), Vm::named("a")];
        assert!(check_all(&twins).unwrap_err().to_string().contains("taken"));
        assert!(check_all(&twins[..2]).is_ok());
    }

    #[test]
    fn files_are_found_beside_the_description() {
        let mut vm = read(
            "name = \"a\"\nkernel = \"k\"\ninitrd = \"/i\"\nput = [\"p:/q\", \"/r\"]\nget = [\"/s:t\"]\nconsole = \"virtio\"\n\
             modules = [{ file = \"m\" }]\ndisks = [{ file = \"d\", read_only = true }]",
        );
        vm.relative_to(Path::new("/lab"));
        assert_eq!((vm.kernel.unwrap(), vm.initrd.unwrap()), ("/lab/k".into(), "/i".into()));
        assert_eq!(vm.put, ["/lab/p:/q", "/r"]);
        assert_eq!((vm.get, vm.folder), (vec!["/s:t".to_owned()], "/lab".into()));
        assert_eq!(vm.modules[0].file, Path::new("/lab/m"));
        assert_eq!(vm.disks, [Disk { file: "/lab/d".into(), read_only: true, write_back: false }]);
        assert_eq!(vm.console, Console::Virtio);
    }
}
