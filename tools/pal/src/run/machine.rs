//! An emulator's process: its birth, its streams, and its certain death.

use std::{
    fs::File,
    io::Write,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::{Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;

use super::{bochs, qemu};
use crate::lab::attach::Lab;

/// The programs that emulate machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emulator {
    /// QEMU, which says by its machine protocol how a machine ended.
    #[default]
    Qemu,
    /// Bochs, whose log says it.
    Bochs,
}

impl Emulator {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Emulator::Qemu => "QEMU",
            Emulator::Bochs => "Bochs",
        }
    }
}

/// A running emulator; killed and reaped when dropped.
pub struct Machine {
    /// Which one.
    pub emulator: Emulator,
    /// Its process.
    pub child: Child,
    /// The guest's console: COM1, or QEMU's virtio console.
    pub console: File,
    /// COM1 where it is not the console: output only.
    pub serial: Option<File>,
    /// QEMU's machine protocol.
    pub qmp: Option<UnixStream>,
    /// The hypervisor's records, COM2.
    pub telemetry: Option<File>,
    /// The emulator's log.
    pub log: PathBuf,
    /// What it wrote to its standard error.
    pub stderr: PathBuf,
    /// What models it while it runs.
    pub lab: Option<Lab>,
    /// Everything that it needs until it ends.
    pub _scratch: TempDir,
}

impl Machine {
    /// Ends the emulator and returns its status. QEMU is asked first, because its plugins write their results then; Bochs
    /// does not listen.
    pub fn stop(&mut self) -> Option<ExitStatus> {
        if self.emulator == Emulator::Bochs {
            let _ = self.child.kill();
        } else if let Ok(None) = self.child.try_wait() {
            let _ = kill_process(rustix::process::Pid::from_child(&self.child), Signal::TERM);
            if let Some(status) = self.wait(Duration::from_secs(2)) {
                return Some(status);
            }
            let _ = self.child.kill();
        }
        self.child.wait().ok()
    }

    /// Waits for the emulator's end, for `patience` at most.
    pub fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                _ => return None,
            }
        }
    }

    /// The registers at a triple fault, if one happened.
    pub fn triple_fault(&self) -> Option<String> {
        let log = self.log();
        match self.emulator {
            Emulator::Qemu => qemu::triple_fault_in(&log),
            Emulator::Bochs => bochs::triple_fault_in(&log),
        }
    }

    /// Why the machine ended, if the emulator's log says so.
    pub fn shutdown(&self) -> Option<String> {
        match self.emulator {
            Emulator::Qemu => None,
            Emulator::Bochs => bochs::shutdown_in(&self.log()),
        }
    }

    /// The emulator's complaints.
    pub fn complaints(&self) -> String {
        let text = String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap_or_default()).into_owned();
        match self.emulator {
            Emulator::Qemu => qemu::complaints_in(&text),
            Emulator::Bochs => bochs::complaints_in(&text),
        }
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts an emulator in a process group of its own (Ctrl-C at a terminal ends pal, and pal ends it), with its standard
/// error in a file and nothing on the other streams. It inherits `ends` and dies with pal, whatever happens to pal.
///
/// # Errors
/// The program does not start.
pub fn start(mut command: Command, ends: Vec<OwnedFd>, stderr: &Path) -> Result<Child> {
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(stderr)?);
    // SAFETY: between fork and exec the closure only makes system calls (fcntl), which are async-signal-safe, and touches no memory
    // that another thread could hold locked.
    unsafe {
        command.pre_exec(move || {
            for end in &ends {
                rustix::io::fcntl_setfd(end.as_fd(), rustix::io::FdFlags::empty())?;
            }
            Ok(())
        });
    }
    end_with_pal(&mut command, Signal::KILL);
    let name = command.get_program().to_string_lossy().into_owned();
    command.spawn().with_context(|| format!("cannot start {name}"))
}

/// Has the command end with pal, whatever happens to pal: it gets `signal` when the thread that starts it ends.
pub fn end_with_pal(command: &mut Command, signal: Signal) {
    let pal = rustix::process::getpid();
    // SAFETY: between fork and exec the closure only makes system calls (prctl, getppid), which are async-signal-safe, and touches
    // no memory that another thread could hold locked.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(signal))?;
            if rustix::process::getppid() != Some(pal) {
                return Err(std::io::Error::other("pal has ended"));
            }
            Ok(())
        });
    }
}

/// A scratch directory for one machine.
///
/// # Errors
/// No space, no permission.
pub fn scratch() -> Result<TempDir> {
    tempfile::Builder::new().prefix("pal-").tempdir().context("cannot create a scratch directory")
}

/// A file in a scratch directory with these contents.
pub fn scratch_file(dir: &Path, name: &str, contents: &[u8]) -> Result<PathBuf> {
    let path = dir.join(name);
    let write = File::create(&path).and_then(|mut file| file.write_all(contents));
    write.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_command_ends_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sleep");
            end_with_pal(&mut command, Signal::TERM);
            command.arg("600").spawn().unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }
}
