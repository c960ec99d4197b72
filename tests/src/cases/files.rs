//! Files on their way into guests and out of them: `--get`.

use std::fs;

use anyhow::{Result, ensure};

use super::{Case, hypervisor};
use crate::context::Context;

pub const CASES: &[Case] = &[hypervisor("files come out of a guest", get)];

/// Any bytes, a folder, what is missing, and a file that was there before.
fn get(context: &Context) -> Result<()> {
    let bytes: Vec<u8> = (0..8192_u32).map(|n| ((n * n) >> 3) as u8).collect();
    let noise = context.file("noise", &bytes)?;
    let [back, folder, old] = ["back", "folder.tar", "old"].map(|name| context.path(name));
    fs::write(&old, "old")?;
    let command = "cp /noise /copy; mkdir -p '/a b/c'; echo deep > '/a b/c/d'; mkfifo /pipe; echo said";
    let gets = [
        format!("/copy:{back}"),
        format!("/a b:{folder}"),
        format!("/none:{old}"),
        "/pipe".to_owned(),
        "/proc/version".to_owned(),
    ];
    let mut options = vec!["--put", &noise, "--exec", command];
    gets.iter().for_each(|get| options.extend(["--get", get]));
    // The command has done well, and the files have not all come.
    context
        .run(&options)?
        .status(1)?
        .prints("said\n")?
        .says("--get /none: there is no such file in the guest")?
        .says("--get /pipe: it is neither a file nor a directory")?;
    ensure!(fs::read(&back)? == bytes, "the bytes have changed");
    ensure!(fs::read(&old)? == b"old", "what was there before is gone");
    ensure!(fs::read_to_string(context.path("version"))?.starts_with("Linux version"), "no version");
    let mut tar = std::process::Command::new("tar");
    let tar = tar.args(["-x", "-O", "-f", &folder, "a b/c/d"]).output()?;
    ensure!(tar.stdout == b"deep\n", "{tar:?}");
    // A command's own status stays.
    context.run(&["--exec", "exit 7", "--get", "/none"])?.status(7)?.says("no such file")?;
    Ok(())
}
