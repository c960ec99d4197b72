//! The programs and files of the host that images are made with, and how they are run.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Error, Firmware, Image};

/// Where Debian and most others keep GRUB's modules.
const GRUB: &str = "/usr/lib/grub";

/// Programs that are known to be there.
#[derive(Clone, Debug)]
pub struct Tools {
    grub: PathBuf,
}

/// What is needed, and the package that has it.
const PROGRAMS: [(&str, &str); 2] = [("grub-mkimage", "grub-common"), ("xorriso", "xorriso")];
const FOR_UEFI: [(&str, &str); 3] = [("mformat", "mtools"), ("mmd", "mtools"), ("mcopy", "mtools")];

impl Tools {
    /// Looks for what it takes to make images for this firmware.
    ///
    /// # Errors
    /// [`Error::Missing`], with the packages to install.
    pub fn find(firmware: Firmware) -> Result<Tools, Error> {
        let uefi = firmware == Firmware::Both;
        let programs = PROGRAMS.iter().chain(FOR_UEFI.iter().filter(|_| uefi));
        let programs =
            programs.filter(|(name, _)| !in_path(name)).map(|(name, package)| ((*name).into(), *package));
        let folders = [("i386-pc", "grub-pc-bin", true), ("x86_64-efi", "grub-efi-amd64-bin", uefi)];
        let folders =
            folders.iter().filter(|(name, _, needed)| *needed && !Path::new(GRUB).join(name).is_dir());
        let folders = folders.map(|(name, package, _)| (format!("{GRUB}/{name}"), *package));
        let (what, mut packages): (Vec<String>, Vec<&'static str>) = programs.chain(folders).unzip();
        packages.dedup();
        if what.is_empty() { Ok(Tools { grub: GRUB.into() }) } else { Err(Error::Missing { what, packages }) }
    }

    /// A file of GRUB's.
    pub(crate) fn grub_file(&self, name: &str) -> PathBuf {
        self.grub.join(name)
    }

    /// Runs a program on behalf of an image, with nothing of the surroundings that could show in its output.
    pub(crate) fn run(
        &self,
        image: &Image,
        program: &str,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<(), Error> {
        let mut command = Command::new(program);
        command.args(arguments).env("SOURCE_DATE_EPOCH", image.epoch.to_string());
        command.env("TZ", "UTC").env("LC_ALL", "C").env_remove("MTOOLSRC").stdin(Stdio::null());
        let output = command.output().map_err(Error::file(program))?;
        if output.status.success() {
            return Ok(());
        }
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        Err(Error::Program {
            program: program.into(),
            status: output.status.to_string(),
            output: lines[lines.len().saturating_sub(20)..].join("\n"),
        })
    }
}

fn in_path(name: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}
