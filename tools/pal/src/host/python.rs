//! Python programs of this checkout, each in an environment of its own under `target/pal`, with the packages that its lists pin by
//! version and hash. An environment is made once, and again when a list or the Python changes; nothing else of the machine is touched.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{apt::Apt, find_program, guests::Architecture, lock::lock, needs::Needs};

/// The oldest Python that the pinned packages have.
const OLDEST: (u32, u32) = (3, 11);
/// The file that says for which lists and which Python an environment was made; it is written last.
const MARK: &str = "made-for";

/// An environment.
pub struct Environment {
    /// The folder under `target/pal`.
    pub cache: &'static str,
    /// What people know it as: "the trainer".
    pub of: &'static str,
    /// Lists of packages in the checkout, in the order of their installation: what is built here is built with what is there by then.
    pub lists: &'static [&'static str],
}

impl Needs<'_> {
    /// The Python of an environment, which is made if needed.
    ///
    /// # Errors
    /// No suitable Python, no venv, no network; the error says what to do.
    pub fn python_of(&self, environment: &Environment) -> Result<PathBuf> {
        let Environment { cache, of, lists } = environment;
        let cache = self.project.cache(cache)?;
        let _lock = lock(&cache, self.ui)?;
        let lists: Vec<PathBuf> = lists.iter().map(|list| self.project.root.join(list)).collect();
        let folder = cache.join("environment");
        let python = folder.join("bin/python");
        let base = self.python(of)?;
        let mut made_for = base.1;
        for list in &lists {
            let pinned =
                fs::read_to_string(list).with_context(|| format!("cannot read {}", list.display()))?;
            made_for += &format!("\n{pinned}");
        }
        let mark = folder.join(MARK);
        // A Python that was taken away leaves a link to nowhere.
        if python.exists() && fs::read_to_string(&mark).is_ok_and(|text| text == made_for) {
            return Ok(python);
        }
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot replace {}", folder.display()))?;
        }
        let mut venv = Command::new(&base.0);
        self.ui.run(&format!("making {of}'s environment"), venv.args(["-m", "venv"]).arg(&folder))?;
        for list in &lists {
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--require-hashes"]);
            // Python compiles the modules that are used, a small part of them all, at their first use.
            pip.arg("--no-compile");
            // What a list excepts from the rule of ready-made packages is built with what the list before has, not with whatever
            // pip finds.
            pip.args(["--only-binary", ":all:", "--no-build-isolation", "--no-deps", "--requirement"])
                .arg(list);
            self.ui.run(&format!("fetching {of}'s packages"), &mut pip).with_context(|| {
                format!(
                    "{of} needs the packages of {}, which pip fetches once: this takes a network, \
                     or an index that pip is set up for (`pip config list`); then type the command again",
                    list.display()
                )
            })?;
        }
        fs::write(&mark, made_for)?;
        Ok(python)
    }

    /// A Python that can make environments, and its version.
    fn python(&self, of: &str) -> Result<(PathBuf, String)> {
        let oldest = format!("{}.{}", OLDEST.0, OLDEST.1);
        let why = format!("{of} needs Python with venv");
        let install = |packages: &[&str]| match Apt::find(self.project, self.ui, Architecture::Amd64)? {
            Some(apt) => apt.install(packages, &why, self.yes),
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
                "{} is Python {}.{}, and {of} needs {oldest} or newer: put one first in PATH",
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
