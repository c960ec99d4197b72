//! `pal doctor`: what is installed on this machine, what is missing, what to type.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::{
    cli::Guest,
    host::{ext4, find_program, guests::Architecture, needs},
    project::Project,
    ui::Ui,
};

/// One thing to look for.
struct Item {
    name: &'static str,
    purpose: String,
    found: Option<String>,
    /// What to type if it is missing; `None` for what pal fetches by itself when it needs it.
    remedy: Option<&'static str>,
}

/// Prints the table; the status is 1 if something that cannot be fetched is missing.
///
/// # Errors
/// The cache directory cannot be created.
pub fn run(project: &Project, _ui: &Ui) -> Result<u8> {
    let items = [
        program("cargo", "builds everything", Some("install Rust with rustup: https://rustup.rs")),
        program("cc", "links; builds the test kernels", Some("apt-get install gcc libc6-dev")),
        program("c++", "builds the fuzz targets (cargo pal test)", Some("apt-get install g++")),
        program(needs::QEMU, "emulates AMD machines", Some("apt-get install qemu-system-x86")),
        bochs(),
        media(),
        Item {
            name: "UEFI for QEMU",
            purpose: "boot tests (cargo pal test)".into(),
            found: Some(needs::OVMF.to_owned()).filter(|path| Path::new(path).exists()),
            remedy: Some("apt-get install ovmf"),
        },
        Item {
            name: "mke2fs",
            purpose: "disks of directories (run --root DIR)".into(),
            found: ext4::find_admin_program("mke2fs").map(|path| path.display().to_string()),
            remedy: Some("apt-get install e2fsprogs"),
        },
        Item {
            name: "depmod",
            purpose: "modules of a kernel for run --root".into(),
            found: ext4::find_admin_program("depmod").map(|path| path.display().to_string()),
            remedy: None,
        },
        program("make", "builds the guest kit (run --kit)", Some("apt-get install make")),
        program("mmdebstrap", "makes distributions (cargo pal root)", None),
        program("python3", "trains policies, sweeps (cargo pal train)", None),
        program("apt-get", "fetches what is missing", None),
        program("dpkg-deb", "unpacks packages", None),
    ];
    let mut guests = vec![busybox(project)?];
    for guest in Guest::NAMED {
        guests.push(Item {
            name: "kernel",
            purpose: format!("the guest {}", guest),
            found: needs::cached_kernel(&project.cache(&guest.source().kernel_cache)?)
                .map(|path| path.display().to_string()),
            remedy: None,
        });
    }
    let hypervisor = Item {
        name: "hypervisor",
        purpose: "built by every run".into(),
        found: Some(project.hypervisor()).filter(|path| path.exists()).map(|path| path.display().to_string()),
        remedy: None,
    };
    let is_root = rustix::process::geteuid().is_root();
    let mut missing = false;
    for item in items.iter().chain(&guests).chain([&hypervisor]) {
        let state = match (&item.found, item.remedy) {
            (Some(found), _) => found.clone(),
            (None, Some(remedy)) => {
                missing = true;
                format!("MISSING: {}", to_type(remedy, is_root))
            }
            (None, None) => "not here yet: fetched or built when needed".to_owned(),
        };
        println!("{:<21}  {:<40}  {state}", item.name, item.purpose);
    }
    let next = if missing {
        "Install what is missing, then type: cargo pal run"
    } else {
        "Everything is here. Type: cargo pal run"
    };
    println!("\n{next}");
    Ok(u8::from(missing))
}

/// What a person types to get something: apt needs root's rights.
fn to_type(remedy: &str, is_root: bool) -> String {
    if remedy.starts_with("apt-get ") && !is_root { format!("sudo {remedy}") } else { remedy.to_owned() }
}

/// What makes boot media.
fn media() -> Item {
    let found = bootimg::Tools::find(bootimg::Firmware::Both).is_ok();
    Item {
        name: "GRUB, xorriso, mtools",
        purpose: "make boot media (cargo pal image)".into(),
        found: found.then(|| "here".to_owned()),
        remedy: Some("apt-get install grub-common grub-pc-bin grub-efi-amd64-bin xorriso mtools"),
    }
}

fn program(name: &'static str, purpose: &'static str, remedy: Option<&'static str>) -> Item {
    // The cargo that runs us need not be in PATH.
    let ours = if name == "cargo" { std::env::var_os("CARGO") } else { None };
    let path = ours.and_then(|path| find_program(&path.to_string_lossy())).or_else(|| find_program(name));
    let found = path.map(|path| {
        let output = Command::new(&path).arg("--version").output();
        let text =
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.lines().next().map_or_else(|| path.display().to_string(), str::to_owned)
    });
    Item { name, purpose: purpose.into(), found, remedy }
}

/// The Intel machine as a whole, with what makes its boot medium. pal installs it when it is asked for.
fn bochs() -> Item {
    let missing = needs::missing_for_bochs();
    let found = find_program(needs::BOCHS).filter(|_| missing.is_empty());
    let purpose = if missing.is_empty() {
        "emulates an Intel machine".into()
    } else {
        format!("emulates an Intel machine; lacks {}", missing.join(", "))
    };
    Item { name: "bochs", purpose, found: found.map(|path| path.display().to_string()), remedy: None }
}

fn busybox(project: &Project) -> Result<Item> {
    let cached = project.cache("busybox")?.join("busybox-static");
    let installed = find_program("busybox").filter(|path| needs::is_static_elf(path, Architecture::Amd64));
    let found =
        installed.or(Some(cached).filter(|path| path.exists())).map(|path| path.display().to_string());
    Ok(Item { name: "busybox, static", purpose: "the default guest".into(), found, remedy: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_needs_no_sudo() {
        assert_eq!(to_type("apt-get install gcc", true), "apt-get install gcc");
        assert_eq!(to_type("apt-get install gcc", false), "sudo apt-get install gcc");
        assert_eq!(to_type("install Rust with rustup", false), "install Rust with rustup");
    }
}
