//! GRUB's side: the menu in its language, and its core images, which carry all modules that the menu needs.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use crate::{Boot, Error, Image, Menu, Module, Tools};

/// Where the loader's own files are on every image.
pub(crate) const FOLDER: &str = "boot/grub";
/// Modules for every image: what menus do, what is booted.
const MODULES: &str = "normal configfile echo test sleep ls cat lsmmap minicmd halt reboot serial terminal gzio multiboot multiboot2 \
                       linux boot all_video";
/// Where files are on disks.
const DISKS: &str = "search search_fs_file part_msdos part_gpt iso9660 fat";
/// Where files are in networks.
const NETWORK: &str = "net tftp http memdisk tar regexp eval";

/// A core image's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Core {
    /// For a BIOS that boots a CD.
    Cd,
    /// For a BIOS that boots a disk: sectors that follow the boot sector.
    Disk,
    /// For 64-bit UEFI that boots a disk or a CD.
    Efi,
    /// For a BIOS that boots from the network.
    Pxe,
    /// For 64-bit UEFI that boots from the network.
    EfiNet,
}

impl Core {
    /// GRUB's name of the format, and the modules that only it has.
    fn kind(self) -> (&'static str, &'static str) {
        match self {
            Core::Cd => ("i386-pc-eltorito", "biosdisk vbe vga"),
            Core::Disk => ("i386-pc", "biosdisk vbe vga"),
            Core::Efi => ("x86_64-efi", "efi_gop efi_uga"),
            Core::Pxe => ("i386-pc-pxe", "pxe vbe vga"),
            Core::EfiNet => ("x86_64-efi", "efinet efi_gop efi_uga"),
        }
    }

    fn is_network(self) -> bool {
        matches!(self, Core::Pxe | Core::EfiNet)
    }
}

/// The file whose path tells the medium apart from all others.
pub(crate) fn marker(id: &str) -> String {
    format!("boot/{id}.id")
}

/// What a loader from the network runs first. `cmdpath` is where the boot file of DHCP's answer is: iPXE's script, or the
/// loader itself where firmware knows no scripts. iPXE may also leave the address of its script instead.
const NETWORK_SCRIPT: &str = "set base=\"$cmdpath\"
regexp --set=1:base '^(.*)/boot/grub$' \"$base\"
regexp --set=1:base '^(.*[)])boot/grub$' \"$base\"
eval \"set file=\\$net_${net_default_interface}_boot_file\"
if regexp --set=1:scheme --set=2:server --set=3:folder '^(tftp|http)://([^/]+)(/.*)?/[^/]*$' \"$file\"; then
  set base=\"($scheme,$server)$folder\"
fi
export base
configfile \"$base/boot/grub/grub.cfg\"
";

/// Writes a core image to `into`. It finds the medium by its marker, or where the network says, and reads the menu there.
pub(crate) fn core(
    image: &Image,
    tools: &Tools,
    core: Core,
    id: &str,
    scratch: &Path,
    into: &Path,
) -> Result<(), Error> {
    let (format, modules) = core.kind();
    let script = scratch.join("script");
    let (option, prefix, contents, place) = if core.is_network() {
        ("-m", "(memdisk)/boot/grub", tar("boot/grub/grub.cfg", NETWORK_SCRIPT.as_bytes()), NETWORK)
    } else {
        // GRUB's simple parser reads this.
        let text =
            format!("search --no-floppy --set=root --file /{}\nset prefix=($root)/boot/grub\n", marker(id));
        ("-c", "/boot/grub", text.into_bytes(), DISKS)
    };
    fs::write(&script, contents).map_err(Error::file(&script))?;
    let options = ["-O", format, "-p", prefix, option].map(PathBuf::from);
    let files = [script, "-o".into(), into.into()];
    let modules = [MODULES, place, modules].into_iter().flat_map(str::split_whitespace).map(PathBuf::from);
    tools.run(image, "grub-mkimage", options.into_iter().chain(files).chain(modules))
}

/// An archive of one file (POSIX.1-1988, "ustar").
fn tar(name: &str, contents: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", contents.len()));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = [&header, contents].concat();
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}

/// The text of grub.cfg. On disks `base` is empty and files are on the root device.
pub(crate) fn config(menu: &Menu) -> String {
    let mut text = String::from("# Made by Palimpsest.\n");
    if let Some(serial) = menu.serial {
        // A machine without that port keeps its screen and keyboard.
        let _ = write!(
            text,
            "if serial --unit={} --speed={}; then\n  terminal_input console serial\n  terminal_output console serial\nfi\n",
            serial.unit, serial.baud
        );
    }
    let _ = writeln!(text, "set default={}", menu.default);
    match menu.timeout_s {
        Some(seconds) => drop(writeln!(text, "set timeout={seconds}")),
        None => text.push_str("set timeout=-1\n"),
    }
    for entry in &menu.entries {
        let _ = writeln!(text, "\nmenuentry {} {{", quote(&entry.title));
        text.push_str(&commands(&entry.boot));
        text.push_str("}\n");
    }
    text
}

fn commands(boot: &Boot) -> String {
    let mut text = String::new();
    let mut line = |command: &str, file: &str, words: &str| {
        let _ = write!(text, "  {command} \"$base/{file}\"");
        for word in words.split_ascii_whitespace() {
            let _ = write!(text, " {}", quote(word));
        }
        text.push('\n');
    };
    let mut with_modules = |command: [&str; 2], kernel: &str, cmdline: &str, modules: &[Module]| {
        line(command[0], kernel, cmdline);
        modules.iter().for_each(|module| line(command[1], &module.file, &module.cmdline));
    };
    match boot {
        Boot::Hypervisor { file, cmdline, modules } => {
            with_modules(["multiboot2", "module2"], file, cmdline, modules)
        }
        Boot::Multiboot1 { kernel, cmdline, modules } => {
            with_modules(["multiboot", "module"], kernel, cmdline, modules)
        }
        Boot::Linux { kernel, cmdline, initrd } => {
            line("linux", kernel, cmdline);
            initrd.iter().for_each(|file| line("initrd", file, ""));
        }
    }
    text
}

/// A word for GRUB's shell.
fn quote(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_=.,/:+".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
