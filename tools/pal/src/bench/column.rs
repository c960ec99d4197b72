//! A column of the table: the guest's program on one machine in one mode, run through `pal run` in a process of its own,
//! so that columns can run side by side. Time is counted in instructions, so they do not disturb each other.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{record::Records, rows::Row};
use crate::{
    cli::{Machine, Mode, value_name},
    ui::shell_word,
};

/// Guest memory in MiB: Linux turns huge pages off below 512.
const MEMORY_MIB: u64 = 1024;
/// Words for the guest's kernel. The peers' figures were taken with its messages on the console and without mitigations,
/// too. Without address randomization, both kernels and programs lie at the same addresses and need as many page-table
/// pages. A kernel panic ends the run. Ciphers are tested, as they were there: it is more than half of the time of a boot.
const APPEND: &str = "loglevel=7 panic=-1 mitigations=off nokaslr norandmaps cryptomgr.notests=0";
/// More words for Linux alone on Bochs, whose CPUID tells a wrong frequency of the TSC: Linux would wait 35 times too long.
const BOCHS_NATIVE_APPEND: &str = " tsc_early_khz=100000";
pub const TIMEOUT_SECONDS: u64 = 1800;
/// The same on Bochs.
const BOCHS_TIMEOUT_SECONDS: u64 = 7200;
/// An instruction takes 1 ns of the machine's time, as on QEMU.
const BOCHS_AS_FAST_AS_QEMU: &str = "cpu: ips=1000000000";
/// The guest's word for means over a second, as it follows the rows.
const SECOND: &str = " second";

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Where the guest runs.
    pub machine: Machine,
    /// How its memory is virtualized, where it is.
    pub mode: Option<Mode>,
}

impl Column {
    /// The guest alone, on the machine below `machine`'s hypervisor: what the others are compared with.
    pub const fn native(machine: Machine) -> Self {
        let machine = if machine.is_bochs() { Machine::BochsNative } else { Machine::Native };
        Self { machine, mode: None }
    }

    /// The guest on the hypervisor.
    pub const fn hypervisor(machine: Machine, mode: Mode) -> Self {
        Self { machine, mode: Some(mode) }
    }

    /// True if the hypervisor changes its mode while it runs: then its statistics are wanted.
    pub fn switches(self) -> bool {
        matches!(self.mode, Some(Mode::Switch(_)))
    }

    /// The name in headings and in JSON.
    pub fn name(self) -> String {
        self.mode.map_or_else(|| value_name(self.machine), |mode| mode.to_string())
    }
}

/// What every run uses.
pub struct Setup {
    /// The emulator.
    pub emulator: PathBuf,
    /// The guest's kernel.
    pub kernel: PathBuf,
    /// The initial RAM disk with the guest's program.
    pub initrd: PathBuf,
    /// The hypervisor.
    pub hypervisor: PathBuf,
}

/// One run of a column.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the guest reported.
    pub records: Records,
    /// The arguments of `pal`.
    pub command: Vec<String>,
    /// The document of `pal run --stats`, if it was asked for.
    pub stats: Value,
    /// Why rows may be missing; empty if none is.
    pub trouble: String,
}

impl Setup {
    /// Runs a column once, with the means over a second where they are shown. A guest that does not measure everything is no
    /// error: what it did measure counts.
    ///
    /// # Errors
    /// `pal` does not start, or wrote unreadable statistics.
    pub fn run(&self, column: Column, rows: &[&Row], stats: Option<&Path>) -> Result<Run> {
        let words = if column.switches() { "" } else { SECOND };
        self.run_command(self.command(column, rows, stats, words), rows, stats)
    }

    /// Runs one row alone, for its exits. On Bochs the machine executes as many instructions in a second as QEMU's: otherwise
    /// timer interrupts, of which an operation has ten times as many there, would be most of the difference between the two.
    /// `words`: more for the guest's program, each after a space.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub fn run_alone(&self, column: Column, row: &Row, stats: &Path, words: &str) -> Result<Run> {
        let mut command = self.command(column, &[row], Some(stats), words);
        if column.machine.is_bochs() {
            command.extend(["--bochs-line", BOCHS_AS_FAST_AS_QEMU].map(str::to_owned));
        }
        self.run_command(command, &[row], Some(stats))
    }

    fn run_command(&self, command: Vec<String>, rows: &[&Row], stats: Option<&Path>) -> Result<Run> {
        let (mut run, success) = self.perform(command, Some(rows.len()))?;
        if let Some(path) = stats.filter(|_| success) {
            let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            run.stats = serde_json::from_slice(&text).context("pal run wrote unreadable statistics")?;
        }
        Ok(run)
    }

    /// Runs `pal` with these arguments and reads what a guest reports, with the number of rows if it counts them; also whether `pal` said
    /// that all went well.
    ///
    /// # Errors
    /// It does not start.
    pub fn perform(&self, command: Vec<String>, rows: Option<usize>) -> Result<(Run, bool)> {
        let program = env::current_exe().context("cannot find my own program")?;
        let output = Command::new(program)
            .args(&command)
            .env("PALIMPSEST_HV", &self.hypervisor)
            .stdin(Stdio::null())
            .output()
            .context("cannot start pal")?;
        let records = Records::read(&String::from_utf8_lossy(&output.stdout));
        let success = output.status.success();
        let mut trouble: Vec<String> =
            records.errors.iter().map(|error| format!("the guest's program: {error}")).collect();
        if !success {
            trouble.push(format!("pal run: {}", output.status));
        } else if records.done != rows {
            trouble
                .push("the guest's program did not come to its end, or does not know every row".to_owned());
        }
        if !trouble.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr);
            trouble.extend(said.lines().map(str::to_owned));
            let words = command.iter().map(|word| shell_word(word));
            trouble.push(format!("the command was: pal {}", words.collect::<Vec<_>>().join(" ")));
        }
        Ok((Run { records, command, stats: Value::Null, trouble: trouble.join("\n") }, success))
    }

    fn command(&self, column: Column, rows: &[&Row], stats: Option<&Path>, words: &str) -> Vec<String> {
        let mut command = vec!["run".to_owned(), "--icount".to_owned()];
        let bochs = column.machine.is_bochs();
        let mut add = |option: &str, value: String| command.extend([option.to_owned(), value]);
        add("--machine", value_name(column.machine));
        if let Some(mode) = column.mode {
            add("--mode", mode.to_string());
        }
        let limit = if bochs { BOCHS_TIMEOUT_SECONDS } else { TIMEOUT_SECONDS };
        add("--timeout", limit.to_string());
        add(if bochs { "--bochs" } else { "--qemu" }, self.emulator.display().to_string());
        if let Some(path) = stats {
            add("--stats", path.display().to_string());
        }
        let names = rows.iter().map(|row| row.name).collect::<Vec<_>>();
        command.extend(self.guest(column, &names, words));
        command
    }

    /// The arguments of `pal run` for the guest, whose program performs these rows; more words for it each follow a space.
    pub fn guest(&self, column: Column, names: &[&str], words: &str) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
        add("--mem", MEMORY_MIB.to_string());
        if !column.machine.is_bochs() {
            // A native guest that resets would start again.
            add("--qemu-arg", "-no-reboot".to_owned());
        }
        add("--kernel", self.kernel.display().to_string());
        add("--initrd", self.initrd.display().to_string());
        // What follows two dashes is for the first process.
        let more = if column.machine == Machine::BochsNative { BOCHS_NATIVE_APPEND } else { "" };
        add("--append", format!("{APPEND}{more} -- {}{words}", names.join(" ")));
        arguments
    }
}
