//! What is measured of guests with several processors, and where. `bench/guest/src/smp` performs it in Linux,
//! `tests/kits/long-mode/src/cases/measure.rs` without.

use crate::status::Usage;

/// Processors of the emulated machine, and of a guest that has one for each of its own.
pub const PROCESSORS: usize = 4;

/// What the processors of a guest are put on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Four, on four of the machine's.
    Spread,
    /// Two, which take turns on one of the machine's.
    Packed,
    /// Four on four, and the guest is not Linux but the long-mode kit.
    Kit,
}

/// Rows that differ in the number of threads only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// What they do.
    pub work: &'static str,
    /// How many they are.
    pub threads: usize,
}

/// One row.
#[derive(Debug)]
pub struct Row {
    /// Its name on the command line and in JSON.
    pub name: &'static str,
    /// What a person reads.
    pub title: &'static str,
    /// Where it runs on the hypervisor.
    pub place: Place,
    /// What the guest's program calls it natively and on the hypervisor.
    records: [&'static str; 2],
    /// The rows that it belongs to.
    pub workers: Option<Workers>,
}

impl Row {
    /// What the guest's program calls it.
    pub fn record(&self, native: bool) -> &'static str {
        self.records[usize::from(!native)]
    }
}

const fn spread(name: &'static str, title: &'static str) -> Row {
    Row { name, title, place: Place::Spread, records: [name; 2], workers: None }
}

const fn workers(name: &'static str, title: &'static str, work: &'static str, threads: usize) -> Row {
    Row { workers: Some(Workers { work, threads }), ..spread(name, title) }
}

/// A row of the kit's.
const fn kit(name: &'static str, title: &'static str, ours: &'static str) -> Row {
    // The machine that QEMU emulates has no x2APIC.
    Row { name, title, place: Place::Kit, records: ["ipi-xapic", ours], workers: None }
}

/// The work of the rows of [`Workers`].
pub const WORKS: [(&str, &str); 2] = [("compute", "compute"), ("faults", "page faults")];

/// All rows, in order.
pub static ROWS: [Row; 13] = [
    kit("ipi", "IPI to a running VCPU and one back, xAPIC", "ipi-xapic"),
    kit("ipi-x2apic", "IPI and one back, x2APIC (natively: xAPIC)", "ipi-x2apic"),
    spread("call", "Linux calls a function on a running VCPU"),
    spread("wake", "wake-up on a halted VCPU"),
    Row {
        name: "switch",
        title: "switch between two VCPUs (natively: two threads)",
        place: Place::Packed,
        records: ["turns-1", "turns-2"],
        workers: None,
    },
    workers("compute-1", "a thousand steps, 1 thread", "compute", 1),
    workers("compute-2", "a thousand steps, 2 threads", "compute", 2),
    workers("compute-3", "a thousand steps, 3 threads", "compute", 3),
    workers("compute-4", "a thousand steps, 4 threads", "compute", 4),
    workers("faults-1", "a page fault, 1 thread", "faults", 1),
    workers("faults-2", "a page fault, 2 threads", "faults", 2),
    workers("faults-3", "a page fault, 3 threads", "faults", 3),
    workers("faults-4", "a page fault, 4 threads", "faults", 4),
];

/// The rows of these names, or of these works, in the table's order; all if there is no name.
///
/// # Errors
/// [`Usage`] for an unknown name.
pub fn select(names: &[String]) -> Result<Vec<&'static Row>, Usage> {
    let is = |row: &Row, name: &String| {
        row.name == name || row.workers.is_some_and(|workers| workers.work == name)
    };
    if let Some(name) = names.iter().find(|name| !ROWS.iter().any(|row| is(row, name))) {
        let known: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        return Err(Usage::new(format!(
            "--only {name}: no such row with --smp; there are {}, compute and faults for all of theirs, and spaces",
            known.join(", ")
        )));
    }
    Ok(ROWS.iter().filter(|row| names.is_empty() || names.iter().any(|name| is(row, name))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_selected_by_name_and_by_work() {
        let names = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            select(&words).map(|rows| rows.iter().map(|row| row.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), ROWS.len());
        assert_eq!(names(&["wake", "ipi", "wake"]).unwrap(), ["ipi", "wake"]);
        assert_eq!(names(&["faults"]).unwrap(), ["faults-1", "faults-2", "faults-3", "faults-4"]);
        let error = names(&["cpuid"]).unwrap_err().to_string();
        assert!(error.contains("cpuid") && error.contains("ipi, ipi-x2apic, call"), "{error}");
    }

    #[test]
    fn every_work_has_all_numbers_of_threads() {
        for (work, _) in WORKS {
            let threads = ROWS.iter().filter_map(|row| row.workers.filter(|workers| workers.work == work));
            assert!(threads.map(|workers| workers.threads).eq(1..=PROCESSORS), "{work}");
        }
    }
}
