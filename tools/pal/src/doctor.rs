//! `pal doctor`: what is installed on this machine, what is missing, what to type.

use std::process::Command;

use anyhow::Result;

use crate::{
    host::{find_program, needs},
    project::Project,
    ui::Ui,
};

/// One thing to look for.
struct Item {
    name: &'static str,
    purpose: &'static str,
    found: Option<String>,
    /// The package to install by hand; `None` for what pal fetches by itself when it needs it.
    package: Option<&'static str>,
}

/// Prints the table; the status is 1 if something that cannot be fetched is missing.
///
/// # Errors
/// The cache directory cannot be created.
pub fn run(project: &Project, _ui: &Ui) -> Result<u8> {
    let items = [
        program("cargo", "builds everything", Some("rustup (https://rustup.rs)")),
        program("cc", "links; builds the test kernels", Some("gcc")),
        program(needs::QEMU, "emulates the machines", Some("qemu-system-x86")),
        program("apt-get", "fetches what is missing", None),
        program("dpkg-deb", "unpacks packages", None),
        busybox(project)?,
        Item {
            name: "default kernel",
            purpose: "the default guest",
            found: needs::cached_kernel(&project.cache("kernel")?).map(|path| path.display().to_string()),
            package: None,
        },
        Item {
            name: "hypervisor",
            purpose: "built by every run",
            found: Some(project.hypervisor())
                .filter(|path| path.exists())
                .map(|path| path.display().to_string()),
            package: None,
        },
    ];
    let mut missing = Vec::new();
    for item in &items {
        let state = match (&item.found, item.package) {
            (Some(found), _) => found.clone(),
            (None, Some(package)) => {
                missing.push(package);
                format!("MISSING: install {package}")
            }
            (None, None) => "not here yet; fetched or built when needed".to_owned(),
        };
        println!("{:<20} {:<32} {state}", item.name, item.purpose);
    }
    if missing.is_empty() {
        println!("\nEverything is here. Type: cargo pal run");
        return Ok(0);
    }
    println!("\nMissing. On Debian and Ubuntu type: sudo apt-get install {}", missing.join(" "));
    Ok(1)
}

fn program(name: &'static str, purpose: &'static str, package: Option<&'static str>) -> Item {
    let found = find_program(name).map(|path| {
        let output = Command::new(&path).arg("--version").output();
        let text =
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.lines().next().map_or_else(|| path.display().to_string(), str::to_owned)
    });
    Item { name, purpose, found, package }
}

fn busybox(project: &Project) -> Result<Item> {
    let cached = project.cache("busybox")?.join("busybox-static");
    let installed = find_program("busybox").filter(|path| needs::is_static_elf(path));
    let found =
        installed.or(Some(cached).filter(|path| path.exists())).map(|path| path.display().to_string());
    Ok(Item { name: "busybox, static", purpose: "the default guest", found, package: None })
}
