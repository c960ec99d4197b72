//! A medium that boots the hypervisor with one bundle, by GRUB and multiboot2.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::ui::Ui;

/// Makes the medium in `dir`.
///
/// # Errors
/// No space; grub-mkrescue fails.
pub fn make(dir: &Path, hypervisor: &Path, words: &str, bundle: &[u8], ui: &Ui) -> Result<PathBuf> {
    let boot = dir.join("medium/boot");
    fs::create_dir_all(boot.join("grub")).context("cannot create a directory for the medium")?;
    fs::copy(hypervisor, boot.join("palimpsest"))
        .with_context(|| format!("cannot copy {}", hypervisor.display()))?;
    fs::write(boot.join("bundle.cpio"), bundle)?;
    fs::write(boot.join("grub/grub.cfg"), menu(words))?;
    let iso = dir.join("medium.iso");
    let mut command = Command::new("grub-mkrescue");
    command.args(["--directory", "/usr/lib/grub/i386-pc", "--output"]).arg(&iso).arg(dir.join("medium"));
    ui.run("making a boot medium", &mut command)?;
    Ok(iso)
}

/// GRUB's menu of one entry, which starts at once.
fn menu(words: &str) -> String {
    let words: Vec<_> = words.split_whitespace().map(quote).collect();
    format!(
        "set timeout=0\nmenuentry palimpsest {{\n  multiboot2 /boot/palimpsest {}\n  \
         module2 /boot/bundle.cpio bundle.cpio\n}}\n",
        words.join(" ")
    )
}

/// A word that GRUB takes as it is.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "=-_.,:/".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_grub() {
        assert!(menu("exit=poweroff a;b it's").contains(" exit=poweroff 'a;b' 'it'\\''s'\n"));
    }
}
