//! What a case works with: the pal program, a scratch directory, and the checks on what came out.

use std::{
    ffi::OsStr,
    fs::File,
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::kit::{Kits, Sdk};

/// The machines of `pal run --machine`.
pub const MACHINES: [&str; 4] = ["bochs-native", "bochs-vtx", "native", "qemu-svm"];
/// No run of a case takes longer, whatever pal does about its own time limit, nor does another program: a busy machine stays far from it.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// The same on Bochs, which is slow.
const BOCHS_PATIENCE: Duration = Duration::from_secs(1800);
/// The time limit of its runs in seconds: nothing should come near it, however slow this machine is.
pub const BOCHS_TIMEOUT: &str = "1700";
/// A run that is to end by itself, and not by a limit, has ended by then. What takes
/// seconds takes minutes where other programs want the processors.
const SOON: Duration = Duration::from_secs(300);
/// The memory of the kits' guests in MiB, more than they use. Clearing the 256 MiB of a default guest, which the
/// hypervisor and the development machine's kernel do for each run, takes as long as most kits do.
const KIT_MEMORY: &str = "64";
/// The longest time limit of [`Context::until_limit`], in seconds.
const LONGEST_LIMIT: u64 = 400;
/// Linux checks the certificates that are built into it at each boot, a tenth of the way to a shell on an emulated processor.
const QUICK_BOOT: &[&str] = &["--append", "initcall_blacklist=load_system_certificate_list"];
/// Options that say what a guest is, or what its kernel is told.
const OWN_GUEST: &[&str] = &["--append", "--config", "--guest", "--kernel", "--root"];

/// The surroundings of one case.
pub struct Context {
    /// The pal program.
    pub pal: PathBuf,
    /// The multiboot1 kit.
    pub kit: PathBuf,
    /// The long-mode kit.
    pub long_mode: PathBuf,
    /// The stress program, for 64-bit and 32-bit guests.
    pub stress: [PathBuf; 2],
    /// The program that measures time.
    pub clock: PathBuf,
    /// The hostile kit.
    pub hostile: PathBuf,
    /// The program that misuses the guest kit's device.
    pub regions: PathBuf,
    /// The program whose memory is two regions.
    pub memlat: PathBuf,
    /// Its first form, for 32-bit guests.
    pub memlat32: PathBuf,
    /// The stand-ins of SPEC CPU2006.
    pub standins: PathBuf,
    /// A web server, and the load for one.
    pub server: PathBuf,
    pub webload: PathBuf,
    /// The programs with the guest kit's libraries.
    pub sdk: Sdk,
    /// The machine to run on.
    pub machine: &'static str,
    /// The mode of the hypervisor, unless it is the default.
    pub mode: Option<&'static str>,
    scratch: TempDir,
}

/// What spares the default guest a part of its boot.
pub fn quick_boot(options: &[&str]) -> &'static [&'static str] {
    let is_own = options.iter().any(|option| OWN_GUEST.contains(option));
    if is_own { &[] } else { QUICK_BOOT }
}

impl Context {
    /// A context with a scratch directory of its own.
    pub fn new(pal: &Path, kits: &Kits, machine: &'static str, mode: Option<&'static str>) -> Result<Self> {
        Ok(Self {
            pal: pal.to_owned(),
            kit: kits.multiboot1.clone(),
            long_mode: kits.long_mode.clone(),
            stress: kits.stress.clone(),
            clock: kits.clock.clone(),
            hostile: kits.hostile.clone(),
            regions: kits.regions.clone(),
            memlat: kits.memlat.clone(),
            memlat32: kits.memlat32.clone(),
            standins: kits.standins.clone(),
            server: kits.server.clone(),
            webload: kits.webload.clone(),
            sdk: kits.sdk.clone(),
            machine,
            mode,
            scratch: tempfile::tempdir()?,
        })
    }

    /// True if the guest runs on the hypervisor.
    pub fn nested(&self) -> bool {
        !self.machine.ends_with("native")
    }

    /// True if Bochs emulates the machine.
    pub fn on_bochs(&self) -> bool {
        self.machine.starts_with("bochs")
    }

    /// The time limit of the kits' runs in seconds, and this memory, unless a case has its own.
    fn limits(&self, memory: &'static str, options: &[&str]) -> Vec<&'static str> {
        let timeout = if self.on_bochs() { BOCHS_TIMEOUT } else { "500" };
        [("--timeout", timeout), ("--mem", memory)]
            .into_iter()
            .filter(|(option, _)| !options.contains(option))
            .flat_map(|(option, value)| [option, value])
            .collect()
    }

    /// The options of `pal run` that say where the case runs.
    pub fn place(&self) -> Vec<&'static str> {
        let mode = self.mode.into_iter().flat_map(|mode| ["--mode", mode]);
        ["--machine", self.machine].into_iter().chain(mode).collect()
    }

    /// A path in the scratch directory.
    pub fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).to_string_lossy().into_owned()
    }

    /// A file in the scratch directory.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> Result<String> {
        std::fs::write(self.path(name), contents)?;
        Ok(self.path(name))
    }

    /// `pal run` with these options on the case's machine.
    pub fn run(&self, options: &[&str]) -> Result<Finished> {
        self.run_with(options, None)
    }

    /// The same with bytes on standard input.
    pub fn run_with(&self, options: &[&str], input: Option<&[u8]>) -> Result<Finished> {
        // Where a guest is to do something, its boot is not what the case is about.
        let boot = if options.contains(&"--exec") { quick_boot(options) } else { &[] };
        self.pal([&["run"], &self.place()[..], boot, options].concat(), input)
    }

    /// Runs until a time limit ends it, of `seconds` at first. The guest must have said what it should until then: if it has not,
    /// because the machine is busy, it gets a longer one. Each run must end by its limit.
    pub fn until_limit(
        &self,
        mut seconds: u64,
        run: impl Fn(&[&str]) -> Result<Finished>,
        has_said: impl Fn(&str) -> bool,
    ) -> Result<Finished> {
        loop {
            let finished = run(&["--timeout", &seconds.to_string()])?.status(124)?;
            let finished = finished.says(&format!("{seconds} s"))?;
            let limit = Duration::from_secs(seconds);
            let in_time = (limit..limit + SOON).contains(&finished.took);
            ensure!(in_time, "took {:?}, not {limit:?}\n{}", finished.took, finished.describe());
            if has_said(&finished.stdout()) {
                return Ok(finished);
            }
            seconds *= 2;
            ensure!(seconds <= LONGEST_LIMIT, "it does not say what it should\n{}", finished.describe());
        }
    }

    /// `pal run` of the kit with these words on its command line.
    pub fn kit(&self, words: &str, options: &[&str]) -> Result<Finished> {
        let kit = self.kit.to_string_lossy();
        self.run(
            &[&["--kernel", &kit, "--append", words], &self.limits(KIT_MEMORY, options)[..], options]
                .concat(),
        )
    }

    /// `pal run` of the long-mode kit with these cases on its command line.
    pub fn long_mode(&self, cases: &str, options: &[&str]) -> Result<Finished> {
        let all = self.long_mode_options(cases, options);
        self.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The options of `pal run` for that.
    pub fn long_mode_options(&self, cases: &str, options: &[&str]) -> Vec<String> {
        let kit = self.long_mode.to_string_lossy();
        // Mistakes of the emulation are forgiven by its name.
        let emulation = if self.on_bochs() { "bochs" } else { "tcg" };
        let shadow = if self.mode == Some("shadow") { " shadow" } else { "" };
        let line = format!("{emulation}{shadow} {cases}");
        // Bochs' bare machine has no test device: the output tells all.
        let device: &[&str] = if self.machine == "bochs-native" { &[] } else { &["--test-device"] };
        // The limit of shadow pages follows the memory. Cases that shadow many tables keep the default's.
        let many = ["torture", "shared", "all"].iter().any(|word| cases.contains(word));
        let memory = if many { "256" } else { KIT_MEMORY };
        let fixed = ["--kernel", &kit, "--append", &line];
        let limits = self.limits(memory, options);
        [&fixed[..], device, &limits, options].concat().into_iter().map(str::to_owned).collect()
    }

    /// `pal` with any arguments.
    pub fn pal(
        &self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        input: Option<&[u8]>,
    ) -> Result<Finished> {
        let mut command = Command::new(&self.pal);
        command.args(arguments).current_dir(self.scratch.path());
        let patience = if self.on_bochs() { BOCHS_PATIENCE } else { PATIENCE };
        finish(command, input, self.scratch.path(), patience)
    }

    /// Another program, for at most `patience`.
    pub fn wait_for(&self, command: Command, patience: Duration) -> Result<Finished> {
        finish(command, None, self.scratch.path(), patience)
    }
}

/// Has the kernel kill the program when the thread that starts it ends: a case that is killed, or dies, leaves nothing behind.
pub fn dies_with_this(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call and touches no memory.
    unsafe {
        command.pre_exec(|| {
            let death = Some(rustix::process::Signal::KILL);
            Ok(rustix::process::set_parent_process_death_signal(death)?)
        });
    }
}

/// Runs a program to its end, with its output in files so that nothing blocks. It dies with this one.
fn finish(mut command: Command, input: Option<&[u8]>, dir: &Path, patience: Duration) -> Result<Finished> {
    let (stdout, stderr) = (tempfile::tempfile_in(dir)?, tempfile::tempfile_in(dir)?);
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    dies_with_this(&mut command);
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    if let (Some(bytes), Some(mut stdin)) = (input, child.stdin.take()) {
        // Short enough for the pipe; closing it is the end of the input.
        stdin.write_all(bytes)?;
    }
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > patience {
            let _ = child.kill();
            let _ = child.wait();
            bail!("it hangs: {command:?}\n{}", text(stderr)?);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let took = start.elapsed();
    Ok(Finished {
        line: format!("{command:?}"),
        status: status.code(),
        raw: bytes(stdout)?,
        stderr: text(stderr)?,
        took,
    })
}

fn bytes(mut file: File) -> Result<Vec<u8>> {
    use std::io::{Read, Seek};
    let mut contents = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut contents)?;
    Ok(contents)
}

fn text(file: File) -> Result<String> {
    Ok(String::from_utf8_lossy(&bytes(file)?).into_owned())
}

/// A run that has ended. The checks return themselves, so that they chain.
pub struct Finished {
    line: String,
    /// Exit status; `None` after a signal.
    pub status: Option<i32>,
    /// Standard output.
    pub raw: Vec<u8>,
    /// Standard error.
    pub stderr: String,
    /// Wall time.
    pub took: Duration,
}

impl Finished {
    /// Standard output as text.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.raw).into_owned()
    }

    /// The exit status is this.
    pub fn status(self, expected: i32) -> Result<Self> {
        ensure!(
            self.status == Some(expected),
            "status {:?}, expected {expected}\n{}",
            self.status,
            self.describe()
        );
        Ok(self)
    }

    /// Standard output is exactly this.
    pub fn prints(self, expected: &str) -> Result<Self> {
        ensure!(self.raw == expected.as_bytes(), "expected the output {expected:?}\n{}", self.describe());
        Ok(self)
    }

    /// Standard output contains this.
    pub fn has(self, part: &str) -> Result<Self> {
        ensure!(self.stdout().contains(part), "no {part:?} in the output\n{}", self.describe());
        Ok(self)
    }

    /// Standard output does not contain this.
    pub fn lacks(self, part: &str) -> Result<Self> {
        ensure!(!self.stdout().contains(part), "{part:?} in the output\n{}", self.describe());
        Ok(self)
    }

    /// Standard error contains this.
    pub fn says(self, part: &str) -> Result<Self> {
        ensure!(self.stderr.contains(part), "no {part:?} in the messages\n{}", self.describe());
        Ok(self)
    }

    /// The run has not waited for anything: it ended long before any limit, as far as a busy machine can tell.
    pub fn soon(self) -> Result<Self> {
        ensure!(self.took < SOON, "took {:?}\n{}", self.took, self.describe());
        Ok(self)
    }

    fn describe(&self) -> String {
        let end = |text: &str| {
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        format!("{}\n--- output\n{}\n--- messages\n{}", self.line, end(&self.stdout()), end(&self.stderr))
    }
}
