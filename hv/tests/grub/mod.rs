//! Boot media with GRUB on them, for the hypervisor that `cargo hv` built last.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::image;

/// GRUB for machines with a PC BIOS.
pub const BIOS: &str = "/usr/lib/grub/i386-pc";
/// GRUB for machines with UEFI.
pub const UEFI: &str = "/usr/lib/grub/x86_64-efi";

/// What grub-mkrescue needs to make a medium with this GRUB; many machines have a part of it only.
pub fn can_make_media(grub: &str) -> bool {
    let runs = |name: &str| {
        let mut command = Command::new(name);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let can = ["grub-mkrescue", "xorriso", "mformat"].iter().all(|name| runs(name))
        && std::path::Path::new(grub).exists();
    if !can {
        eprintln!("skipped: needs grub-mkrescue, {grub}, xorriso and mtools");
    }
    can
}

/// An ISO image that is removed when dropped, with the directory that it lies in.
pub struct Iso(PathBuf);

impl Iso {
    /// An image that starts the hypervisor, `/boot/palimpsest`, at once by these lines of GRUB's menu. The files are in
    /// `/boot` too.
    pub fn new(grub: &str, entry: &str, files: &[(&str, &[u8])]) -> Iso {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("palimpsest-grub-{}-{count}", std::process::id()));
        let boot = dir.join("tree/boot");
        std::fs::create_dir_all(boot.join("grub")).unwrap();
        std::fs::copy(image::path(), boot.join("palimpsest")).unwrap();
        files.iter().for_each(|(name, contents)| std::fs::write(boot.join(name), contents).unwrap());
        let menu = format!("set timeout=0\nmenuentry hv {{\n{entry}\n}}\n");
        std::fs::write(boot.join("grub/grub.cfg"), menu).unwrap();
        let iso = Iso(dir);
        let mut make = Command::new("grub-mkrescue");
        make.args(["-d", grub, "-o"]).arg(iso.path()).arg(iso.0.join("tree")).stderr(Stdio::null());
        assert!(make.status().unwrap().success(), "grub-mkrescue failed");
        iso
    }

    /// The image.
    pub fn path(&self) -> PathBuf {
        self.0.join("boot.iso")
    }

    /// A path beside it.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Iso {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
