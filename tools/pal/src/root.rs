//! `pal root`: makes the root file system of a distribution for `pal run --root`, by mmdebstrap.
//!
//! mmdebstrap needs no root rights where the kernel lets people have user namespaces. mke2fs runs inside it, as a hook, where
//! files have the owners that they shall have in the guest.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    cli::{Distribution, RootArgs},
    host::{ext4, needs::Needs},
    project::Project,
    status::Usage,
    ui::{Ui, shell_word},
};

/// What a guest is more than apt: an init, what finds its modules, its network commands.
const PACKAGES: [&str; 4] = ["systemd-sysv", "kmod", "iproute2", "iputils-ping"];

/// Makes the image.
///
/// # Errors
/// [`Usage`] for names that cannot be; mmdebstrap or mke2fs is missing or fails.
pub fn run(args: &RootArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let needs = Needs { project, ui, yes: args.yes };
    let Distribution::Debian = args.distribution;
    let packages = packages(&args.packages)?;
    if !is_name(&args.name) {
        return Err(Usage::new(format!("{}: not the name of a release, such as bookworm", args.name)).into());
    }
    let mmdebstrap = needs.mmdebstrap()?;
    let mke2fs = ext4::find_admin_program("mke2fs").context("mke2fs is missing: install e2fsprogs")?;
    // Writable for all, since a user namespace maps the owners of files to other users.
    let scratch = tempfile::Builder::new().prefix("pal-").tempdir()?;
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777))?;
    let image = scratch.path().join("root.ext4");
    let mut command = Command::new(mmdebstrap);
    command.args(["--variant=minbase", "--format=null", &format!("--include={}", packages.join(","))]);
    for hook in hooks(&mke2fs, &image, args.free) {
        command.arg(format!("--customize-hook={hook}"));
    }
    command.arg(&args.name).arg("/dev/null");
    command.args(args.mirror.iter());
    let text = format!("making Debian {}: {} and what they need", args.name, packages.join(", "));
    ui.run(&text, &mut command)?;
    // A copy, because the file may belong to another user; its holes stay.
    let place = |error: std::io::Error| Usage::new(format!("-o {}: {error}", args.output.display()));
    let unfinished = PathBuf::from(format!("{}.part", args.output.display()));
    fs::File::create(&unfinished).map_err(place)?;
    ui.run("writing the image", Command::new("cp").arg("--sparse=always").arg(&image).arg(&unfinished))?;
    fs::rename(&unfinished, &args.output).map_err(place)?;
    let image = args.output.to_string_lossy();
    ui.say(&format!("{image}: boot it by `cargo pal run --root {} --mem 512`", shell_word(&image)));
    Ok(0)
}

/// The packages to install, without repetitions.
fn packages(more: &[String]) -> Result<Vec<&str>> {
    let mut packages = PACKAGES.to_vec();
    for name in more {
        if !is_name(name) {
            return Err(Usage::new(format!("--packages: {name:?} is not the name of a package")).into());
        }
        if !packages.contains(&name.as_str()) {
            packages.push(name);
        }
    }
    Ok(packages)
}

/// Whether Debian could call a package or a release so.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"+-.".contains(&c);
    name.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric()) && name.bytes().all(allowed)
}

/// What is done to the new system, which is `$1`: a login without a password, a name, nothing that waits for a network or is
/// not needed any more; and then the image, of a view without the file systems that are mounted in it.
fn hooks(mke2fs: &Path, image: &Path, free_mib: u64) -> [String; 3] {
    let [mke2fs, image] = [mke2fs, image].map(Path::to_string_lossy);
    let (mke2fs, image) = (shell_word(&mke2fs), shell_word(&image));
    [
        r#"chroot "$1" passwd -d root > /dev/null"#.to_owned(),
        r#"echo palimpsest > "$1/etc/hostname"; printf '127.0.0.1 localhost\n127.0.1.1 palimpsest\n' > "$1/etc/hosts"; rm -rf "$1"/var/cache/apt/archives/*.deb"#
            .to_owned(),
        format!(
            r#"set -e; m=$(mktemp -d); mount --bind "$1" "$m"; mib=$(du -sm "$m" | cut -f1); {mke2fs} -q -F -t ext4 -E root_owner=0:0 -d "$m" {image} $((mib * 11 / 10 + {free_mib} + 16))M; umount "$m"; rmdir "$m"; chmod 644 {image}"#
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_hooks_are_quoted() {
        let more = ["stress-ng", "kmod", "g++"].map(String::from);
        let packages = packages(&more).unwrap();
        assert_eq!(packages[4..], ["stress-ng", "g++"]);
        for bad in ["", "-x", "a b", "a,b", "A", "a;b"] {
            assert!(super::packages(&[bad.to_owned()]).unwrap_err().is::<Usage>(), "{bad}");
        }
        let [.., last] = hooks(Path::new("/sbin/mke2fs"), Path::new("/a'b"), 7);
        assert!(last.contains(r#""/a'b" $(("#) && last.contains("+ 7 + 16"), "{last}");
    }
}
