//! The guests that measure the rows: a guest guest on the bare machine, and on the hypervisor in its modes and places.

use std::{fmt::Display, iter, path::PathBuf};

use anyhow::Result;

use super::rows::{PROCESSORS, Place, Row};
use crate::{
    bench::column::{Run, Setup},
    cli::{Machine, Mode, value_name},
};

/// Guest memory in MiB, Linux' and the kit's.
const MEMORY_MIB: [u64; 2] = [512, 64];
/// Words for the guest's kernel: as for guests with one processor, but the amount of output need not be equal.
pub const APPEND: &str = "loglevel=4 panic=-1 mitigations=off nokaslr norandmaps";
/// Far beyond what a run takes on a busy machine.
pub const TIMEOUT_SECONDS: u64 = 500;
/// VCPUs of a guest that is [`Place::Packed`].
const PACKED_VCPUS: usize = 2;

/// What the guests are made of.
pub struct Files {
    /// Linux, its program, and what all guests share.
    pub setup: Setup,
    /// The long-mode kit.
    pub kit: PathBuf,
}

/// One guest of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The hypervisor's mode; `None` for the guest alone.
    pub mode: Option<Mode>,
    /// Where its processors are.
    pub place: Place,
}

impl Guest {
    /// The guests of a round, in order: native first, then mode by mode.
    pub fn all(rows: &[&Row], modes: &[Mode]) -> Vec<Self> {
        let modes = iter::once(None).chain(modes.iter().copied().map(Some));
        let places = [Place::Kit, Place::Spread, Place::Packed];
        let all = modes.flat_map(|mode| places.map(|place| Self { mode, place }));
        all.filter(|guest| !guest.records(rows).is_empty()).collect()
    }

    /// Whose figures of a row are those of a mode.
    pub fn of(row: &Row, mode: Option<Mode>) -> Self {
        match (mode, row.place) {
            (None, Place::Packed) => Self { mode, place: Place::Spread },
            (mode, place) => Self { mode, place },
        }
    }

    /// The names in the guest's records of what it has to measure.
    pub fn records(self, rows: &[&Row]) -> Vec<&'static str> {
        let here = rows.iter().filter(|row| Self::of(row, self.mode) == self);
        let mut records: Vec<_> = here.map(|row| row.record(self.mode.is_none())).collect();
        records.dedup();
        records
    }

    /// What a person reads while it runs, and in JSON.
    pub fn name(self) -> String {
        let processors = match (self.mode, self.place) {
            (None, _) => format!("native, {PROCESSORS} processors"),
            (Some(mode), Place::Packed) => format!("{mode}, {PACKED_VCPUS} VCPUs on one PCPU"),
            (Some(mode), _) => format!("{mode}, {PROCESSORS} VCPUs on {PROCESSORS} PCPUs"),
        };
        processors + if self.place == Place::Kit { ", the kit" } else { "" }
    }

    /// The arguments of `pal`. The emulated machine is the same for all; a packed guest's hypervisor uses one processor of it.
    pub fn command(self, files: &Files, rows: &[&Row], quick: bool) -> Vec<String> {
        let mut command = vec!["run".to_owned()];
        let mut add =
            |option: &str, value: &dyn Display| command.extend([option.to_owned(), value.to_string()]);
        let packed = self.place == Place::Packed;
        match self.mode {
            None => {
                add("--machine", &value_name(Machine::Native));
                // A native guest that resets would start again.
                add("--qemu-arg", &"-no-reboot");
            }
            Some(mode) => {
                add("--mode", &mode);
                add("--pcpus", &PROCESSORS);
                if packed {
                    add("--hv-arg", &"pcpus=1");
                }
            }
        }
        add("--vcpus", if packed { &PACKED_VCPUS } else { &PROCESSORS });
        add("--timeout", &TIMEOUT_SECONDS);
        add("--qemu", &files.setup.emulator.display());
        let records = self.records(rows);
        if self.place == Place::Kit {
            add("--mem", &MEMORY_MIB[1]);
            add("--kernel", &files.kit.display());
            let cases: Vec<_> = records.iter().map(|record| format!("measure.{record}")).collect();
            add("--append", &format!("tcg {}", cases.join(" ")));
            // It ends the run through this.
            command.push("--test-device".to_owned());
        } else {
            add("--mem", &MEMORY_MIB[0]);
            add("--kernel", &files.setup.kernel.display());
            add("--initrd", &files.setup.initrd.display());
            // What follows two dashes is for the first process.
            let quick = if quick { " quick" } else { "" };
            add("--append", &format!("{APPEND} -- {}{quick}", records.join(" ")));
        }
        command
    }

    /// Runs it.
    ///
    /// # Errors
    /// `pal` does not start.
    pub fn run(self, files: &Files, rows: &[&Row], quick: bool) -> Result<Run> {
        // The kit says by its exit status that it came to its end.
        let expected = (self.place != Place::Kit).then(|| self.records(rows).len());
        Ok(files.setup.perform(self.command(files, rows, quick), expected)?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::smp::rows;

    #[test]
    fn each_row_has_its_place() {
        let rows = rows::select(&["ipi", "ipi-x2apic", "call", "switch"].map(String::from)).unwrap();
        let guests = Guest::all(&rows, &[Mode::Nested, Mode::Shadow]);
        let records: Vec<_> = guests.iter().map(|guest| guest.records(&rows)).collect();
        let native: [&[_]; 2] = [&["ipi-xapic"], &["call", "turns-1"]];
        let mode: [&[_]; 3] = [&["ipi-xapic", "ipi-x2apic"], &["call"], &["turns-2"]];
        assert_eq!(records, [&native[..], &mode, &mode].concat());
        assert_eq!(Guest::all(&rows[2..3], &[Mode::Nested]).len(), 2, "only guests that have rows");
        assert_eq!(guests[4], Guest::of(rows[3], Some(Mode::Nested)));
        assert_eq!(guests[4].name(), "nested, 2 VCPUs on one PCPU");
        assert_eq!(guests[0].name(), "native, 4 processors, the kit");
    }
}
