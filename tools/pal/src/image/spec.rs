//! What an image is to hold, or a machine to run: read from a TOML file (docs/configuration.md), or made from options.

use std::{
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

use anyhow::Result;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::args::{MakeArgs, Port, Timeout};
use crate::{
    cli::{Guest, Mode, Protocol},
    guest::vm::{Place, Vm, check_all, from_word},
    status::Usage,
};

/// The description. `pal run` has no use for the menu.
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
    /// Whether there is an entry that starts all guests at once.
    #[serde(default)]
    pub together: bool,
    /// The guest that has the console first.
    pub console: Option<String>,
    /// The guests.
    #[serde(default)]
    pub vm: Vec<Vm>,
    /// How messages call this description.
    #[serde(skip)]
    pub source: String,
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
fn yes() -> bool {
    true
}
fn from_words<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Mode>, D::Error> {
    let words = Vec::<String>::deserialize(from)?;
    words.iter().map(|word| word.parse().map_err(D::Error::custom)).collect()
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
            spec.vm.push(from_options(args));
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

    /// From a file.
    ///
    /// # Errors
    /// [`Usage`], with file and line.
    pub fn read(path: &Path) -> Result<Spec> {
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
        let text: Rc<str> = text.into();
        for (number, vm) in spec.vm.iter_mut().enumerate() {
            vm.relative_to(dir);
            vm.place = Place::Table { source: source.into(), text: text.clone(), number };
        }
        check_all(&spec.vm)?;
        if let Some(name) = &spec.console {
            spec.find("`console`", name)?;
        }
        Ok(spec)
    }
}

impl Spec {
    /// The number of the guest that has the console first.
    ///
    /// # Errors
    /// [`Usage`]: none has that name.
    pub fn find(&self, key: &str, name: &str) -> Result<usize> {
        self.vm.iter().position(|vm| vm.name == name).ok_or_else(|| {
            let names: Vec<_> = self.vm.iter().map(|vm| vm.name.as_str()).collect();
            let known = names.join(", ");
            Usage::new(format!("{}: {key}: no guest is called {name:?}; there are {known}", self.source))
                .into()
        })
    }
}

/// The guest that the options describe.
fn from_options(args: &MakeArgs) -> Vm {
    let name = match (args.guest, &args.kernel) {
        (None, Some(_)) => "guest".to_owned(),
        // Names of packages may be longer than a guest's can be.
        (Some(Guest::Package(_)), _) => "guest".to_owned(),
        (guest, _) => guest.unwrap_or(Guest::DebianAmd64).to_string(),
    };
    let mut vm = Vm {
        guest: args.guest,
        kernel: args.kernel.clone(),
        initrd: args.initrd.clone(),
        append: args.append.clone(),
        exec: args.exec.clone(),
        put: args.put.clone(),
        protocol: args.protocol.unwrap_or(Protocol::Auto),
        ..Vm::named(name)
    };
    vm.memory_mib = args.mem.unwrap_or(vm.memory_mib);
    vm
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
             together = true\nconsole = \"a\"\ntimeout = \"never\"\ndefault = \"a shadow\"\nmodes = [\"shadow\", \"switch=7\"]\nnative = false\nprobe = false\n\
             [[vm]]\nname = \"a\"\nguest = \"debian-amd64-rt\"\nkernel = \"k\"\ncmdline = \"c\"\nappend = \"d\"\nnative_cmdline = \"n\"\n\
             exec = \"e\"\nput = [\"p:/q\"]\nweight = 512\ncap = 50\naffinity = [1]\nnetworks = [\"lan\"]\n\
             kit = true\ndisks = [{ file = \"d\" }]\nconsole = \"virtio\"\nentropy = true\nmemory_mib = 64\nvcpus = 1\nmode = \"nested\"\nnested_page = \"2M\"\nshadow_pages = 16\naudit_shadow = 13\n\
             protocol = \"pvh\"\npermissive_msr = true\ntest_device = true\npv_clock = false\nrestart = true\novercommit = true\nresident_mib = 32\nreplacement = \"sieve\"\nballoon = true\nfast_mib = 0\n\
             modules = [{ file = \"m\", cmdline = \"m x\" }]\n",
        )
        .unwrap();
        assert_eq!((spec.serial, spec.timeout), (Port(Some(1)), Timeout(None)));
        assert_eq!(spec.hypervisor.as_deref(), Some(Path::new("/lab/hv")));
        let vm = &spec.vm[0];
        assert_eq!((vm.guest, vm.mode, vm.protocol), (Some(Guest::Rt), Some(Mode::Nested), Protocol::Pvh));
        assert_eq!(vm.kernel.as_deref(), Some(Path::new("/lab/k")));
        assert!(vm.kit && spec.together && spec.console.as_deref() == Some("a"));
        assert_eq!((vm.append.concat(), vm.weight, vm.cap), ("d".to_owned(), Some(512), Some(50)));
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
            ("version = 1\nconsole = \"b\"\n[[vm]]\nname = \"a\"", &["`console`", "\"b\"; there are a"]),
            ("version = 1\n[[vm]]\nname = \"a\"\n[[vm]]\nname = \"a\"", &["line 5", "`name` is taken"]),
            ("version = 1\n[[vm]]\nname = \"a\"\nweight = 0", &["line 4", "`weight` is 0"]),
            ("version", &["line 1"]),
        ] {
            let message = parse(text).err().unwrap();
            assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message}");
        }
    }
}
