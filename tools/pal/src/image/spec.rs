//! What an image is to hold: read from a TOML file (docs/media.md), or made from options.

use std::{
    fmt::Display,
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Result;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::args::{MakeArgs, Port, Timeout};
use crate::{
    cli::{Guest, Mode, Protocol, value_name},
    status::Usage,
};
use clap::ValueEnum;

/// The description of an image.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// 1.
    version: u32,
    /// The volume's name.
    #[serde(default = "label")]
    pub label: String,
    /// The hypervisor's file; without one it is built.
    pub hypervisor: Option<PathBuf>,
    /// More words for its command line.
    #[serde(default)]
    pub hypervisor_cmdline: String,
    /// The serial port.
    #[serde(default = "com1", deserialize_with = "from_word")]
    pub serial: Port,
    /// Seconds until the default entry boots.
    #[serde(default = "five", deserialize_with = "timeout")]
    pub timeout: Timeout,
    /// The default entry's title.
    pub default: Option<String>,
    /// Modes that get entries for each guest that names none.
    #[serde(default = "modes", deserialize_with = "from_words")]
    pub modes: Vec<Mode>,
    /// Whether there is an entry that boots the first guest without the hypervisor.
    #[serde(default = "yes")]
    pub native: bool,
    /// Whether there is an entry that reports on the machine.
    #[serde(default = "yes")]
    pub probe: bool,
    /// The guests.
    #[serde(default)]
    pub vm: Vec<Vm>,
    /// How messages call this description.
    #[serde(skip)]
    pub source: String,
}

/// A guest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// One of the guests that are fetched.
    #[serde(default, deserialize_with = "guest")]
    pub guest: Option<Guest>,
    /// A kernel file in its place.
    pub kernel: Option<PathBuf>,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Files for a PVH or multiboot kernel.
    #[serde(default)]
    pub modules: Vec<Module>,
    /// The kernel's command line, instead of the default words.
    pub cmdline: Option<String>,
    /// Words after it, from options.
    #[serde(skip)]
    pub append: Vec<String>,
    /// The command line without the hypervisor.
    pub native_cmdline: Option<String>,
    /// What the default guest runs.
    pub exec: Option<String>,
    /// What is added to it.
    #[serde(default)]
    pub put: Vec<String>,
    /// RAM in MiB.
    #[serde(default = "memory")]
    pub memory_mib: u64,
    /// Processors.
    #[serde(default = "one")]
    pub vcpus: u32,
    /// The only mode.
    #[serde(default, deserialize_with = "mode")]
    pub mode: Option<Mode>,
    /// Pages of shadow tables at most.
    pub shadow_pages: Option<u32>,
    /// Shadow tables are checked before every so many entries.
    pub paranoid: Option<u32>,
    /// How the kernel is started.
    #[serde(default = "auto", deserialize_with = "protocol")]
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

fn label() -> String {
    "PALIMPSEST".into()
}
fn com1() -> Port {
    Port(Some(0))
}
fn five() -> Timeout {
    Timeout(Some(5))
}
fn modes() -> Vec<Mode> {
    let switch = Mode::Switch(std::num::NonZeroU32::new(50).expect("50 is not 0"));
    vec![Mode::Nested, Mode::Shadow, switch]
}
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
fn from_word<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Mode>, D::Error> {
    from_word(from).map(Some)
}

fn from_words<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Mode>, D::Error> {
    let words = Vec::<String>::deserialize(from)?;
    words.iter().map(|word| word.parse().map_err(D::Error::custom)).collect()
}

fn choice<'de, D: Deserializer<'de>, T: ValueEnum>(from: D) -> Result<T, D::Error> {
    let word = String::deserialize(from)?;
    T::from_str(&word, false).map_err(|_| {
        let names: Vec<_> = T::value_variants().iter().map(|value| value_name(value.clone())).collect();
        D::Error::custom(format!("{word:?} is not one of {}", names.join(", ")))
    })
}

fn guest<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Guest>, D::Error> {
    choice(from).map(Some)
}

fn protocol<'de, D: Deserializer<'de>>(from: D) -> Result<Protocol, D::Error> {
    choice(from)
}

/// A number, or the word "never".
fn timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Timeout, D::Error> {
    match toml::Value::deserialize(from)? {
        toml::Value::Integer(seconds) => seconds.to_string().parse(),
        toml::Value::String(word) => word.parse(),
        _ => Err("use a number of seconds, or \"never\"".to_owned()),
    }
    .map_err(D::Error::custom)
}

impl Spec {
    /// From the options, and the file that they name.
    ///
    /// # Errors
    /// [`Usage`], with file and line, or with the option.
    pub fn new(args: &MakeArgs) -> Result<Spec> {
        let mut spec = match &args.config {
            Some(path) => Spec::read(path)?,
            None => Spec::parse("version = 1", "pal image", Path::new(""))?,
        };
        if args.config.is_none() {
            spec.vm.push(Vm::from_options(args));
        }
        if !args.mode.is_empty() {
            spec.modes.clone_from(&args.mode);
            spec.vm.iter_mut().for_each(|vm| vm.mode = None);
        }
        spec.default = args.default.clone().or(spec.default);
        spec.timeout = args.timeout.unwrap_or(spec.timeout);
        spec.serial = args.serial.unwrap_or(spec.serial);
        spec.label = args.label.clone().unwrap_or(spec.label);
        for word in &args.hv_arg {
            spec.hypervisor_cmdline += &format!(" {word}");
        }
        Ok(spec)
    }

    fn read(path: &Path) -> Result<Spec> {
        let name = format!("--config {}", path.display());
        let text = fs::read_to_string(path).map_err(|error| Usage::new(format!("{name}: {error}")))?;
        Spec::parse(&text, &name, path.parent().unwrap_or(Path::new("")))
    }

    /// `dir` is what files in the text are relative to.
    fn parse(text: &str, source: &str, dir: &Path) -> Result<Spec> {
        let mut spec: Spec =
            toml::from_str(text).map_err(|error| Usage::new(format!("{source}: {error}")))?;
        let wrong = |text: String| Err(Usage::new(format!("{source}: {text}")).into());
        spec.source = source.to_owned();
        if spec.version != 1 {
            return wrong(format!("`version` is {}; this pal knows 1", spec.version));
        }
        if spec.modes.is_empty() {
            return wrong("`modes` is empty; leave it out for nested, shadow and switch=50".to_owned());
        }
        spec.hypervisor = spec.hypervisor.map(|path| dir.join(path));
        for vm in &mut spec.vm {
            let files = [&mut vm.kernel, &mut vm.initrd].into_iter().flatten();
            files.chain(vm.modules.iter_mut().map(|m| &mut m.file)).for_each(|path| *path = dir.join(&*path));
            vm.put
                .iter_mut()
                .filter(|put| !put.starts_with('/'))
                .for_each(|put| *put = dir.join(&*put).display().to_string());
        }
        Ok(spec)
    }
}

impl Vm {
    fn from_options(args: &MakeArgs) -> Vm {
        let name = match (args.guest, &args.kernel) {
            (None, Some(_)) => "guest".to_owned(),
            (guest, _) => value_name(guest.unwrap_or(Guest::DebianAmd64)),
        };
        Vm {
            name,
            guest: args.guest,
            kernel: args.kernel.clone(),
            initrd: args.initrd.clone(),
            modules: Vec::new(),
            cmdline: None,
            append: args.append.clone(),
            native_cmdline: None,
            exec: args.exec.clone(),
            put: args.put.clone(),
            memory_mib: args.mem.unwrap_or_else(memory),
            vcpus: 1,
            mode: None,
            shadow_pages: None,
            paranoid: None,
            protocol: args.protocol.unwrap_or(Protocol::Auto),
            permissive_msr: false,
            test_device: false,
            pv_clock: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Spec, String> {
        Spec::parse(text, "lab.toml", Path::new("/lab")).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read_and_files_are_found_beside_the_description() {
        let spec = parse(
            "version = 1\nlabel = \"LAB\"\nhypervisor = \"hv\"\nhypervisor_cmdline = \"stats=on\"\nserial = \"com2\"\n\
             timeout = \"never\"\ndefault = \"a shadow\"\nmodes = [\"shadow\", \"switch=7\"]\nnative = false\nprobe = false\n\
             [[vm]]\nname = \"a\"\nguest = \"debian-686\"\nkernel = \"k\"\ninitrd = \"/i\"\ncmdline = \"c\"\nnative_cmdline = \"n\"\n\
             exec = \"e\"\nput = [\"p:/q\"]\nmemory_mib = 64\nvcpus = 1\nmode = \"nested\"\nshadow_pages = 16\nparanoid = 13\n\
             protocol = \"pvh\"\npermissive_msr = true\ntest_device = true\npv_clock = false\n\
             modules = [{ file = \"m\", cmdline = \"m x\" }]\n",
        )
        .unwrap();
        assert_eq!((spec.serial, spec.timeout), (Port(Some(1)), Timeout(None)));
        assert_eq!(spec.hypervisor.as_deref(), Some(Path::new("/lab/hv")));
        let vm = &spec.vm[0];
        assert_eq!(
            (vm.guest, vm.mode, vm.protocol),
            (Some(Guest::Debian686), Some(Mode::Nested), Protocol::Pvh)
        );
        assert_eq!(vm.kernel.as_deref(), Some(Path::new("/lab/k")));
        assert_eq!(vm.initrd.as_deref(), Some(Path::new("/i")));
        assert_eq!((vm.put[0].as_str(), vm.modules[0].file.as_path()), ("/lab/p:/q", Path::new("/lab/m")));
    }

    #[test]
    fn mistakes_are_named_with_file_and_key() {
        for (text, parts) in [
            ("version = 2", &["lab.toml", "`version` is 2"][..]),
            ("version = 1\nmemroy = 3", &["lab.toml", "line 2", "memroy"]),
            ("version = 1\n[[vm]]\nkernel = \"k\"", &["lab.toml", "name"]),
            ("version = 1\n[[vm]]\nname = \"a\"\nmemory_mib = \"much\"", &["line 4", "memory_mib"]),
            ("version = 1\nserial = \"tty\"", &["line 2", "com4"]),
            ("version = 1\ntimeout = -3", &["line 2", "never"]),
            ("version = 1\nmodes = []", &["`modes`"]),
            ("version = 1\nmodes = [\"both\"]", &["line 2", "switch=N"]),
            ("version = 1\n[[vm]]\nname = \"a\"\nguest = \"beos\"", &["line 4", "beos", "debian-686-pae"]),
            ("version", &["line 1"]),
        ] {
            let message = parse(text).err().unwrap();
            assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message}");
        }
    }
}
