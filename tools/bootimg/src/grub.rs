//! GRUB's side: the menu in its language, and its core images, which carry all modules that the menu needs.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use crate::{Boot, Error, Image, Menu, Module, Tools};

/// Modules for every image: where files are, what menus do, what is booted.
const MODULES: &str = "normal configfile echo test sleep ls cat minicmd halt reboot serial terminal search search_fs_file \
                       part_msdos part_gpt iso9660 fat gzio multiboot multiboot2 linux boot all_video";

/// A core image's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Core {
    /// For a BIOS that boots a CD.
    Cd,
    /// For 64-bit UEFI.
    Efi,
}

impl Core {
    fn format(self) -> &'static str {
        match self {
            Core::Cd => "i386-pc-eltorito",
            Core::Efi => "x86_64-efi",
        }
    }

    fn modules(self) -> &'static str {
        match self {
            Core::Cd => "biosdisk vbe vga",
            Core::Efi => "efi_gop efi_uga",
        }
    }
}

/// The file whose path tells the medium apart from all others.
pub(crate) fn marker(id: &str) -> String {
    format!("boot/{id}.id")
}

/// Writes a core image to `into`; it finds the medium with this marker and reads the menu there.
pub(crate) fn core(
    image: &Image,
    tools: &Tools,
    core: Core,
    id: &str,
    scratch: &Path,
    into: &Path,
) -> Result<(), Error> {
    let script = scratch.join("early.cfg");
    // Without a module `test` in the way: this is read by GRUB's simple parser.
    let text =
        format!("search --no-floppy --set=root --file /{}\nset prefix=($root)/boot/grub\n", marker(id));
    fs::write(&script, text).map_err(Error::file(&script))?;
    let arguments: [PathBuf; 8] = [
        "-O".into(),
        core.format().into(),
        "-p".into(),
        "/boot/grub".into(),
        "-c".into(),
        script,
        "-o".into(),
        into.into(),
    ];
    let modules = MODULES.split_whitespace().chain(core.modules().split_whitespace()).map(PathBuf::from);
    tools.run(image, "grub-mkimage", arguments.into_iter().chain(modules))
}

/// The text of grub.cfg.
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
        Some(0) => text.push_str("set timeout_style=hidden\nset timeout=0\n"),
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
        let _ = write!(text, "  {command} /{file}");
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
