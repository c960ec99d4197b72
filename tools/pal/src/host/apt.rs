//! Packages through apt, on Debian and its relatives.
//!
//! Downloads never touch the system: when the system's package lists are empty or old, or name another architecture's
//! packages, or Debian's backports are wanted, pal keeps lists of its own under `target/pal/apt*`, which needs no privileges. apt
//! gives up at once when another one uses its lists; so one pal at a time works with those of a directory, from the first look
//! at them until the [`Apt`] is dropped. Only [`Apt::install`] changes the machine, and only after the person agreed.

use std::{
    env,
    fs::{self, File},
    io::{BufRead, IsTerminal, Write, stderr, stdin},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{backports, find_program, guests::Architecture, lock::lock};
use crate::{project::Project, ui::Ui};

/// Access to the package manager.
pub struct Apt<'a> {
    ui: &'a Ui,
    architecture: Architecture,
    state: PathBuf,
    /// Lists of pal's own are in use.
    private_lists: bool,
    /// They were fetched just now.
    fresh: bool,
    /// A list of sources in the system's place.
    sources: Option<PathBuf>,
    /// Keeps other pals out of `state` while it is in use.
    lock: Option<File>,
}

impl<'a> Apt<'a> {
    /// Access to the packages of an architecture. `None` where there is no apt.
    ///
    /// # Errors
    /// The cache directory cannot be created.
    pub fn find(project: &Project, ui: &'a Ui, architecture: Architecture) -> Result<Option<Self>> {
        if ["apt-get", "apt-cache", "dpkg-deb"].iter().any(|program| find_program(program).is_none()) {
            return Ok(None);
        }
        let (state, private_lists) = match architecture {
            Architecture::Amd64 => ("apt", false),
            Architecture::I386 => ("apt-i386", true),
        };
        let state = prepare(project, state)?;
        Ok(Some(Self { ui, architecture, state, private_lists, fresh: false, sources: None, lock: None }))
    }

    /// Looks at Debian's backports from now on, by sources and lists of pal's own beside the system's, which stay as they are.
    ///
    /// # Errors
    /// This is not Debian; there is no keyring to check the backports with.
    pub fn use_backports(&mut self, project: &Project) -> Result<()> {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let codename = backports::codename(&release)
            .context("backports are Debian's, and /etc/os-release does not say which Debian this is")?;
        if !Path::new(backports::KEYRING).exists() {
            bail!(
                "{} is missing, with which apt checks the backports: install debian-archive-keyring",
                backports::KEYRING
            );
        }
        // The mirror that this machine uses, if it has Debian's lists.
        let mut targets = Command::new("apt-get");
        let targets =
            targets.args(["indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"]);
        let targets = targets.env("LC_ALL", "C").output().context("cannot run apt-get")?;
        let mirror = backports::mirror(&String::from_utf8_lossy(&targets.stdout), codename);
        let suffix = if self.architecture == Architecture::I386 { "-i386" } else { "" };
        self.lock = None;
        self.state = prepare(project, &format!("apt-backports{suffix}"))?;
        self.lock()?;
        let sources = self.state.join("sources.list");
        fs::write(&sources, backports::sources(&mirror, codename))
            .with_context(|| format!("cannot write {}", sources.display()))?;
        (self.sources, self.private_lists, self.fresh) = (Some(sources), true, false);
        Ok(())
    }

    fn lock(&mut self) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(lock(&self.state, self.ui)?);
        }
        Ok(())
    }

    /// The first of `packages` that the package lists know; fetches lists if they know none.
    ///
    /// # Errors
    /// No package is known even after an update.
    pub fn first_known(&mut self, packages: &[&str]) -> Result<String> {
        self.lock()?;
        // An update that failed in part may do all the same.
        let mut updated = Ok(());
        loop {
            for package in packages {
                let mut show = self.command("apt-cache");
                let output = show
                    .args(["show", "--no-all-versions", package])
                    .output()
                    .context("cannot run apt-cache")?;
                if output.status.success() && !output.stdout.is_empty() {
                    return Ok((*package).to_owned());
                }
            }
            if self.fresh {
                updated?;
                let what = match self.architecture {
                    Architecture::Amd64 => "",
                    Architecture::I386 => " for i386",
                };
                let packages = packages.join(" or ");
                match &self.sources {
                    None => bail!("no package {packages}{what} in the lists of /etc/apt/sources.list"),
                    Some(own) => {
                        let list = fs::read_to_string(own).unwrap_or_default();
                        bail!("no package {packages}{what} there: {}", list.trim())
                    }
                }
            }
            updated = self.update();
        }
    }

    /// The package that `package` depends on and whose name starts with `prefix`, if there is one.
    ///
    /// # Errors
    /// `apt-cache` fails.
    pub fn dependency(&self, package: &str, prefix: &str) -> Result<Option<String>> {
        let output =
            self.ui.run("looking up packages", self.command("apt-cache").args(["depends", package]))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut dependencies = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(dependencies.find(|name| name.starts_with(prefix)).map(str::to_owned))
    }

    /// What the lists say of packages; those that they do not know are left out.
    ///
    /// # Errors
    /// `apt-cache` cannot be run.
    pub fn show(&self, packages: &[&str]) -> Result<String> {
        let mut show = self.command("apt-cache");
        let output = show.args(["show", "--no-all-versions"]).args(packages).output();
        // Its status is an error if one of them is unknown.
        Ok(String::from_utf8_lossy(&output.context("cannot run apt-cache")?.stdout).into_owned())
    }

    /// Downloads `package` and unpacks it into the directory `into`, which exists only if that succeeded.
    ///
    /// # Errors
    /// No network, no such package, no space.
    pub fn fetch(&mut self, package: &str, into: &Path) -> Result<()> {
        self.fetch_all(&[package], into).map(drop)
    }

    /// The same with several packages, one over the other; each with its version, as `NAME VERSION`.
    ///
    /// # Errors
    /// As above.
    pub fn fetch_all(&mut self, packages: &[&str], into: &Path) -> Result<Vec<String>> {
        self.lock()?;
        let parent = into.parent().context("a directory needs a parent")?;
        let scratch =
            tempfile::tempdir_in(parent).with_context(|| format!("cannot write to {}", parent.display()))?;
        if let Err(error) = self.download(packages, scratch.path()) {
            // Old lists name versions that are gone from the server.
            if self.fresh {
                return Err(error);
            }
            let updated = self.update();
            self.download(packages, scratch.path()).or_else(|error| updated.and(Err(error)))?;
        }
        let files = fs::read_dir(scratch.path())?.filter_map(|entry| Some(entry.ok()?.path()));
        let debs = files.filter(|path| path.extension().is_some_and(|extension| extension == "deb"));
        let mut debs: Vec<_> = debs.collect();
        debs.sort();
        let names = packages.join(", ");
        if debs.len() != packages.len() {
            bail!("apt-get download {names} left {} .deb files", debs.len());
        }
        let tree = scratch.path().join("tree");
        let mut versions = Vec::new();
        for deb in debs {
            let mut unpack = Command::new("dpkg-deb");
            self.ui.run(&format!("unpacking {names}"), unpack.arg("-x").arg(&deb).arg(&tree))?;
            let mut show = Command::new("dpkg-deb");
            show.args(["--show", "--showformat=${Package} ${Version}"]).arg(&deb);
            let output = self.ui.run(&format!("unpacking {names}"), &mut show)?;
            versions.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        fs::rename(&tree, into).with_context(|| format!("cannot create {}", into.display()))?;
        Ok(versions)
    }

    fn download(&self, packages: &[&str], into: &Path) -> Result<()> {
        let mut download = self.command("apt-get");
        let text = format!("downloading {}", packages.join(", "));
        self.ui.run(&text, download.arg("download").args(packages).current_dir(into))?;
        Ok(())
    }

    fn update(&mut self) -> Result<()> {
        self.private_lists = true;
        self.fresh = true;
        // Without the option a server that does not answer is no error.
        let options = ["-o", "APT::Update::Error-Mode=any", "update"];
        self.ui.run("fetching package lists", self.command("apt-get").args(options))?;
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LC_ALL", "C").args(["-q", "-o", "APT::Sandbox::User=root"]);
        if self.private_lists {
            command.arg("-o").arg(format!("Dir::State::Lists={}", self.state.join("lists").display()));
            command.arg("-o").arg(format!("Dir::Cache={}", self.state.join("cache").display()));
        }
        if let Some(sources) = &self.sources {
            command.arg("-o").arg(format!("Dir::Etc::SourceList={}", sources.display()));
            command.args(["-o", "Dir::Etc::SourceParts=/dev/null"]);
        }
        if self.architecture == Architecture::I386 {
            // Apart from the packages that are installed here, which have nothing to do with a guest's.
            let apart = ["APT::Architecture=i386", "APT::Architectures=i386", "Dir::State::status=/dev/null"];
            command.args(apart.iter().flat_map(|option| ["-o", option]));
        }
        command
    }

    /// Installs packages on this machine: at once as root or with `yes`, otherwise after asking.
    ///
    /// # Errors
    /// The person declined or cannot be asked (the error says what to type), or apt failed.
    pub fn install(&self, packages: &[&str], why: &str, yes: bool) -> Result<()> {
        let root = rustix::process::geteuid().is_root();
        let line = format!("apt-get install {}", packages.join(" "));
        if !root && find_program("sudo").is_none() {
            bail!("{why}: type `{line}` as root");
        }
        let line = if root { line } else { format!("sudo {line}") };
        let advice = format!("{why}: type `{line}`");
        if !(root || yes || ask(&format!("pal: {why}. Run `{line}`?"))?) {
            bail!("{advice}, or run pal again with --yes");
        }
        let apt_get = |arguments: &[&str], text: &str| {
            let mut command = Command::new(if root { "apt-get" } else { "sudo" });
            if !root {
                command.args(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
            }
            // Another installation may be under way.
            let wait = ["-o", "DPkg::Lock::Timeout=300"];
            command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y"]).args(wait).args(arguments);
            self.ui.run(text, &mut command)
        };
        if !root {
            // sudo may ask for a password, which a spinner would hide.
            let status = Command::new("sudo").arg("-v").status().context("cannot run sudo")?;
            if !status.success() {
                bail!("{advice}");
            }
        }
        let install = [&["install", "--no-install-recommends"], packages].concat();
        let text = format!("installing {}", packages.join(" "));
        if apt_get(&install, &text).is_err() {
            apt_get(&["update"], "fetching package lists")?;
            apt_get(&install, &text)?;
        }
        Ok(())
    }
}

/// A place for lists of pal's own.
fn prepare(project: &Project, name: &str) -> Result<PathBuf> {
    let state = project.cache(name)?;
    for dir in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(state.join(dir))
            .with_context(|| format!("cannot write to {}", state.display()))?;
    }
    Ok(state)
}

fn ask(question: &str) -> Result<bool> {
    if !stdin().is_terminal() || !stderr().is_terminal() || env::var_os("CI").is_some() {
        return Ok(false);
    }
    eprint!("{question} [y/N] ");
    stderr().flush()?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
