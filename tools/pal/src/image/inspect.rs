//! `pal image inspect`: what an image holds, for people.

use std::{fmt::Write, path::Path};

use anyhow::Result;
use bootimg::inspect::{self, Command, Inspection, Kind, MenuFound};

use super::usage;

/// The largest file that is read to be shown: its hash, or what it says about itself.
const LARGEST: u64 = 4 << 30;
/// The largest configuration.
const LARGEST_CONFIG: u64 = 1 << 20;

/// Prints what the image at `path` holds.
///
/// # Errors
/// [`crate::status::Usage`] if it is no image, or damaged.
pub fn run(path: &Path) -> Result<u8> {
    let image = inspect::inspect(path).map_err(usage)?;
    let mut text = head(path, &image);
    match image.menu() {
        Some(menu) => menu_text(&image, &menu, &mut text),
        None => text.push_str("\nno menu: boot/grub/grub.cfg is not there\n"),
    }
    text.push_str("\nfiles\n");
    for (path, size) in &image.files {
        let hash = match image.read(path, LARGEST) {
            Ok(bytes) => bootimg::sha256(&bytes),
            Err(error) => format!("unreadable: {error}"),
        };
        let _ = writeln!(text, "{size:>12}  {hash}  {}", path.escape_default());
    }
    print!("{text}");
    Ok(0)
}

fn head(path: &Path, image: &Inspection) -> String {
    let kind = match image.kind {
        Kind::Iso => "ISO image",
        Kind::Disk => "disk image",
        Kind::Netboot => "directory for the network",
    };
    let boots = match (image.bios, image.uefi) {
        (true, true) => "boots on BIOS and UEFI",
        (true, false) => "boots on BIOS",
        (false, true) => "boots on UEFI",
        (false, false) => "does not boot",
    };
    let label = if image.label.is_empty() { String::new() } else { format!(" {}", image.label) };
    format!("{}: {kind}{label}, {} KiB, {boots}\n", path.display(), image.size.div_ceil(1024))
}

fn menu_text(image: &Inspection, menu: &MenuFound, text: &mut String) {
    let wait = match menu.timeout.as_str() {
        "0" => "boots at once".to_owned(),
        "-1" => "waits".to_owned(),
        seconds => format!("waits {} s", seconds.escape_default()),
    };
    let serial = menu
        .serial
        .as_ref()
        .map_or(String::new(), |serial| format!(", serial port {}", serial.escape_default()));
    let _ = writeln!(text, "\nmenu: {wait}{serial}");
    for (index, entry) in menu.entries.iter().enumerate() {
        let mark = if menu.default == index.to_string() { '*' } else { ' ' };
        let _ = writeln!(text, "{mark} {}", entry.title.escape_default());
        for command in &entry.commands {
            let _ = writeln!(text, "    {}", line(image, command));
        }
    }
    text.push_str("\nguests\n");
    let mut seen = Vec::new();
    let modules = menu.entries.iter().flat_map(|entry| &entry.commands);
    for command in
        modules.filter(|command| command.words.first().is_some_and(|word| word == "palimpsest.toml"))
    {
        if !seen.contains(&&command.file) {
            seen.push(&command.file);
            let _ = writeln!(text, "  {}: {}", command.file.escape_default(), guests(image, &command.file));
        }
    }
    if seen.is_empty() {
        text.push_str("  none\n");
    }
}

/// A command of an entry, and what is known about its file.
fn line(image: &Inspection, command: &Command) -> String {
    let mut text = format!("{} {}", command.name, command.file);
    for word in &command.words {
        text += " ";
        text += word;
    }
    let mut text: String = text.escape_default().collect();
    if !image.files.iter().any(|(path, _)| *path == command.file) {
        text += "  MISSING";
    } else if command.name == "multiboot2" {
        let identity = image.read(&command.file, LARGEST).ok().and_then(|bytes| bootimg::identity(&bytes));
        text += &identity.map_or("  of unknown version".to_owned(), |identity| {
            format!("  Palimpsest {}, build {}", identity.version, identity.build_id)
        });
    }
    text
}

/// The guests of a configuration in a line.
fn guests(image: &Inspection, path: &str) -> String {
    let text = match image.read(path, LARGEST_CONFIG) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("unreadable: {error}"),
    };
    let Ok(table) = text.parse::<toml::Table>() else { return "no valid TOML".to_owned() };
    let vms = table.get("vm").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let describe = |vm: &toml::Value| {
        let value = |key: &str| {
            vm.get(key).map_or("-".to_owned(), |value| value.to_string().escape_default().to_string())
        };
        let strip = |text: String| text.replace("\\\"", "").replace('"', "");
        format!(
            "{}, {}, kernel {}, initrd {}, {} MiB, {} VCPU, command line {}",
            strip(value("name")),
            strip(value("mode")),
            strip(value("kernel")),
            strip(value("initrd")),
            value("memory_mib"),
            value("vcpus"),
            value("cmdline").replace("\\\"", "\"")
        )
    };
    vms.iter().map(describe).collect::<Vec<_>>().join("; ")
}
