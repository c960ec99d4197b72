//! The command line of `pal image`.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Subcommand};

use crate::cli::{Guest, Mode, Protocol, protocol};

const EXAMPLES: &str = "\
Examples:
  cargo pal image iso -o boot.iso                        the default guest, with a menu entry for each mode
  cargo pal image usb -o disk.img --guest debian-686-pae
  cargo pal image netboot -o /srv/tftp/palimpsest --serial com2 --timeout never
  cargo pal image iso -o boot.iso --exec 'dmesg; free'   runs one command and powers off
  cargo pal image iso -o boot.iso --kernel bzImage --initrd initrd.img --append 'console=ttyS0'
  cargo pal image iso -o boot.iso --config lab.toml      several guests, and everything else (docs/media.md)
  cargo pal image inspect boot.iso

The same inputs give the same bytes. SOURCE_DATE_EPOCH in the environment is the time of all files.

Exit status: 0; 1 if pal failed or something is missing; 2 for unknown options and unusable files.";

/// Options of `pal image`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ImageArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// What `pal image` does.
#[derive(Subcommand)]
pub enum ImageCommand {
    /// Make a CD image; it boots from disks and USB sticks, too
    #[command(after_help = EXAMPLES)]
    Iso(Box<MakeArgs>),
    /// Make a disk image for a USB stick, with files that can be changed afterwards
    #[command(after_help = EXAMPLES)]
    Usb(Box<MakeArgs>),
    /// Make a directory for a TFTP server, with a script for iPXE
    #[command(after_help = EXAMPLES)]
    Netboot(Box<MakeArgs>),
    /// Show what an image holds
    Inspect(InspectArgs),
}

/// Options of `pal image inspect`.
#[derive(Args)]
pub struct InspectArgs {
    /// An ISO image, a disk image, a disk, or a directory of `pal image netboot`
    pub file: PathBuf,
}

/// Options of `pal image iso`, `usb` and `netboot`.
#[derive(Args, Default)]
pub struct MakeArgs {
    /// Where to write it
    #[arg(short, long, value_name = "PATH")]
    pub output: PathBuf,
    /// A description of the guests and the menu (docs/media.md); the options below win over what it says about the menu
    #[arg(long, value_name = "FILE", conflicts_with_all = ["guest", "kernel", "initrd", "append", "protocol", "put", "exec", "mem"])]
    pub config: Option<PathBuf>,

    /// The guest to fetch, by a name as of `pal run --guest`. Default: debian-amd64
    #[arg(long, value_name = "NAME", help_heading = "Guest")]
    pub guest: Option<Guest>,
    /// Another kernel for it: a Linux bzImage, a PVH ELF file or a multiboot1 ELF32 file
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub kernel: Option<PathBuf>,
    /// The initial RAM disk. Default for Linux kernels: a generated one with a busybox shell
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub initrd: Option<PathBuf>,
    /// Words for the kernel's command line, after the default ones; may be repeated
    #[arg(long, value_name = "STR", allow_hyphen_values = true, help_heading = "Guest")]
    pub append: Vec<String>,
    /// Guest memory in MiB. Default: 256
    #[arg(long, value_name = "MiB", help_heading = "Guest")]
    pub mem: Option<u64>,
    /// How the hypervisor starts the kernel. Default: auto
    #[arg(long, value_parser = protocol(), help_heading = "Guest")]
    pub protocol: Option<Protocol>,
    /// Add a file or directory to the default guest, by default in its root directory; may be repeated
    #[arg(long, value_name = "FILE[:GUESTPATH]", help_heading = "Guest")]
    pub put: Vec<String>,
    /// Let the default guest run one shell command and power off
    #[arg(long, value_name = "CMD", allow_hyphen_values = true, help_heading = "Guest")]
    pub exec: Option<String>,

    /// The modes that get a menu entry for each guest. Default: nested shadow switch=50
    #[arg(long, value_name = "MODE", num_args = 1.., help_heading = "Menu")]
    pub mode: Vec<Mode>,
    /// The entry that boots by itself, by its title. Default: the first one
    #[arg(long, value_name = "TITLE", help_heading = "Menu")]
    pub default: Option<String>,
    /// Seconds until it boots; 0 is at once, without a menu. Default: 5
    #[arg(long, value_name = "SECONDS|never", help_heading = "Menu")]
    pub timeout: Option<Timeout>,
    /// The serial port for the menu, the hypervisor and the guest's console. Default: com1
    #[arg(long, value_name = "com1…com4|none", help_heading = "Menu")]
    pub serial: Option<Port>,
    /// A word for the hypervisor's command line; may be repeated
    #[arg(long, value_name = "STR", allow_hyphen_values = true, help_heading = "Menu")]
    pub hv_arg: Vec<String>,
    /// The volume's name
    #[arg(long, value_name = "NAME", help_heading = "Menu")]
    pub label: Option<String>,
    /// Leave out UEFI
    #[arg(long, help_heading = "Menu")]
    pub bios_only: bool,
    /// Install missing packages without asking
    #[arg(short, long)]
    pub yes: bool,
}

/// Seconds until the default entry boots; `None` is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Option<u32>);

impl FromStr for Timeout {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let seconds =
            |word: &str| word.parse().map(Some).map_err(|_| "use a number of seconds, or never".to_owned());
        if word == "never" { Ok(Timeout(None)) } else { seconds(word).map(Timeout) }
    }
}

/// A serial port of the machine that boots, 0 for COM1; `None` is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port(pub Option<u8>);

impl FromStr for Port {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let unit = match word {
            "com1" => 0,
            "com2" => 1,
            "com3" => 2,
            "com4" => 3,
            "none" => return Ok(Port(None)),
            _ => return Err("use com1, com2, com3, com4 or none".to_owned()),
        };
        Ok(Port(Some(unit)))
    }
}
