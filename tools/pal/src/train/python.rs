//! The trainer's environment: a Python of its own under `target/pal/train`, with the packages that `tools/train/requirements.txt`
//! pins by version and hash. It is made once, and again when that list or the Python changes; nothing else of the machine is touched.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    host::{apt::Apt, find_program, guests::Architecture, lock::lock, needs::Needs},
    project::Project,
};

/// Where the trainer is in the checkout.
pub const TRAINER: &str = "tools/train";
/// The oldest Python that the pinned packages have.
const OLDEST: (u32, u32) = (3, 11);
/// The file that says for which list and which Python an environment was made; it is written last.
const MARK: &str = "made-for";

impl Needs<'_> {
    /// The Python of the trainer's environment, which is made if needed.
    ///
    /// # Errors
    /// No suitable Python, no venv, no network; the error says what to do.
    pub fn trainer(&self) -> Result<PathBuf> {
        let cache = self.project.cache("train")?;
        let _lock = lock(&cache, self.ui)?;
        let list = self.project.root.join(TRAINER).join("requirements.txt");
        let pinned = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
        let environment = cache.join("environment");
        let python = environment.join("bin/python");
        let base = self.python()?;
        let made_for = format!("{}\n{pinned}", base.1);
        let mark = environment.join(MARK);
        // A Python that was taken away leaves a link to nowhere.
        if python.exists() && fs::read_to_string(&mark).is_ok_and(|text| text == made_for) {
            return Ok(python);
        }
        if environment.exists() {
            fs::remove_dir_all(&environment)
                .with_context(|| format!("cannot replace {}", environment.display()))?;
        }
        let mut venv = Command::new(&base.0);
        self.ui.run("making the trainer's environment", venv.args(["-m", "venv"]).arg(&environment))?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--require-hashes"]);
        pip.args(["--only-binary", ":all:", "--no-deps", "--requirement"]).arg(&list);
        self.ui.run("fetching the trainer's packages", &mut pip).with_context(|| {
            format!(
                "the trainer needs the packages of {}, which pip fetches once: this takes a network, \
                 or an index that pip is set up for (`pip config list`); then type the command again",
                list.display()
            )
        })?;
        fs::write(&mark, made_for)?;
        Ok(python)
    }

    /// A Python that can make environments, and its version.
    fn python(&self) -> Result<(PathBuf, String)> {
        let (oldest, why) = (format!("{}.{}", OLDEST.0, OLDEST.1), "the trainer needs Python with venv");
        let install = |packages: &[&str]| match Apt::find(self.project, self.ui, Architecture::Amd64)? {
            Some(apt) => apt.install(packages, why, self.yes),
            None => bail!("{why}: install Python {oldest} or newer, with its modules venv and ensurepip"),
        };
        if find_program("python3").is_none() {
            install(&["python3", "python3-venv"])?;
        }
        let path = find_program("python3").context("python3 is still not in PATH after the installation")?;
        if !can_make_environments(&path) {
            install(&["python3-venv"])?;
        }
        if !can_make_environments(&path) {
            bail!(
                "{} has no venv or ensurepip: install them, or put another python3 first in PATH",
                path.display()
            );
        }
        let mut ask = Command::new(&path);
        ask.args(["-c", "import sys; print(*sys.version_info[:3], sys.executable)"]).stdin(Stdio::null());
        let told = String::from_utf8_lossy(&ask.output()?.stdout).trim().to_owned();
        let mut numbers = told.split(' ').filter_map(|word| word.parse().ok());
        let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version < OLDEST {
            bail!(
                "{} is Python {}.{}, and the trainer needs {oldest} or newer: put one first in PATH",
                path.display(),
                version.0,
                version.1
            );
        }
        Ok((path, told))
    }
}

fn can_make_environments(python: &Path) -> bool {
    let mut command = Command::new(python);
    command
        .args(["-c", "import venv, ensurepip"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A command of the trainer: what its package's `__main__` takes follows.
pub fn command(project: &Project, python: &Path) -> Command {
    let mut command = Command::new(python);
    command.arg("-m").env("PYTHONPATH", project.root.join(TRAINER)).env("PYTHONDONTWRITEBYTECODE", "1");
    // Its tables have signs of mathematics.
    command.env("PYTHONIOENCODING", "utf-8").stdin(Stdio::null());
    command
}
