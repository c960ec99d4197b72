//! A run of a program in a guest: `pal run` in a process of its own, on a lab machine with a processor in each of two packages.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;

use super::point::Setup;
use crate::{run::end_with_pal, ui::shell_word};

/// How long a run may take.
pub const TIMEOUT_SECONDS: u32 = 1800;
/// Words for the guest's kernel that make its boot shorter.
pub const APPEND: &str = "mitigations=off initcall_blacklist=load_system_certificate_list";

/// Runs `exec`, whose first word is the name of `program` after a slash; samples go to a file, if there is one. Returns the line in
/// which the program says that all of it was right, and the statistics.
///
/// # Errors
/// The run failed, or the program found something wrong: what both said.
pub fn run(
    setup: &Setup,
    program: &Path,
    exec: &str,
    regions: &str,
    samples: Option<&Path>,
) -> Result<(String, Value)> {
    let dir = tempfile::Builder::new().prefix("session-").tempdir_in(setup.scratch())?;
    let stats = dir.path().join("stats.json");
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut words: Vec<String> = [
        "run",
        "--lab",
        &setup.lab,
        "--lab-time",
        "--lab-from",
        "session",
        "--lab-check",
        "off",
        "--pcpus",
        "2,sockets=2",
        "--regions",
        regions,
        "--timeout",
        &TIMEOUT_SECONDS.to_string(),
        "--stats",
        &stats.display().to_string(),
        "--put",
        &format!("{}:/{name}", program.display()),
        "--append",
        APPEND,
        "--exec",
        exec,
    ]
    .map(str::to_owned)
    .into();
    if let Some(samples) = samples {
        words.extend(["--samples".to_owned(), samples.display().to_string()]);
    }
    let mut pal = Command::new(env::current_exe().context("cannot find my own program")?);
    pal.args(&words).env("PALIMPSEST_HV", setup.hypervisor()).stdin(Stdio::null());
    end_with_pal(&mut pal, Signal::TERM);
    let output = pal.output().context("cannot start pal")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let beginning = format!("{name}: ");
    let line = said.lines().find(|line| line.starts_with(&beginning) && line.ends_with(" right"));
    let (Some(line), true) = (line, output.status.success()) else {
        let words: Vec<_> = words.iter().map(|word| shell_word(word)).collect();
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{}\n{said}{errors}pal {}", output.status, words.join(" "));
    };
    let stats = serde_json::from_str(&fs::read_to_string(&stats)?).context("the statistics are not whole")?;
    Ok((line.to_owned(), stats))
}

/// A number that a line of words `key=number` has.
pub fn number(line: &str, key: &str) -> Option<u64> {
    let word = line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    word?.parse().ok()
}
