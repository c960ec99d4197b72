//! The table's rows: what is measured, what other hypervisors need for it, and our goals.
//!
//! The peers' figures were measured on the machine that `pal` emulates (QEMU 7.2, TCG, `-icount shift=0`): KVM of Debian's
//! Linux 6.1 with `mitigations=off`, and Xen 4.17, running the same guest kernel. A figure is either ticks for one
//! operation or a multiple of the native figure of the same measurement.

use serde::Serialize;

use crate::{
    cli::{Machine, Mode},
    status::Usage,
};

/// A cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Ticks of the time-stamp counter per operation; here a tick is an instruction.
    Ticks(f64),
    /// A multiple of the native figure.
    Times(f64),
}

impl Figure {
    /// The limit that this figure is, in ticks.
    pub fn ticks(self, native: f64) -> f64 {
        match self {
            Self::Ticks(ticks) => ticks,
            Self::Times(times) => times * native,
        }
    }
}

/// What a mode's figures are compared with.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Comparison {
    /// KVM in the same mode.
    pub kvm: Option<Figure>,
    /// Xen in the same mode.
    pub xen: Option<Figure>,
    /// The most that we allow ourselves.
    pub goal: Option<Figure>,
}

/// The row of CPUID.
const CPUID: &str = "cpuid";
/// The row of port I/O.
pub const PCI_READ: &str = "pci-read";
/// Its goal on VT-x, where reading the exit takes VMREADs.
static VTX_CPUID: Comparison = Comparison { kvm: None, xen: None, goal: Some(Figure::Ticks(140.0)) };
/// No other hypervisor changes its mode.
static NOTHING: Comparison = Comparison { kvm: None, xen: None, goal: None };

/// How often an operation leaves the guest on shadow tables.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ExitFigures {
    /// KVM's shadow MMU, for the same operation of the same guest.
    pub kvm: Option<f64>,
    /// The most that we allow ourselves.
    pub goal: f64,
}

/// What exits are compared with: the name of the row, KVM on AMD-V, our goals on AMD-V and VT-x (0: none).
const EXITS: [(&str, f64, f64, f64); 7] = [
    ("fork-wait", 58.0, 35.0, 0.0),
    ("fork-exec", 196.0, 135.0, 166.0),
    ("mmap-touch-munmap", 3.0, 3.05, 2.1),
    ("first-touch", 2.0, 2.05, 1.1),
    ("mprotect-256", 6.3, 5.0, 0.0),
    ("fork-cow", 830.0, 805.0, 820.0),
    ("ping-pong", 2.0, 2.05, 0.0),
];

/// One row.
#[derive(Debug)]
pub struct Row {
    /// Its name in the guest's records, on the command line and in JSON.
    pub name: &'static str,
    /// What a person reads.
    pub title: &'static str,
    /// The native figure that the peers' multiples are of. Their guests had address randomization, so that ours takes less.
    pub peers_native: Option<f64>,
    nested: Comparison,
    shadow: Comparison,
}

impl Row {
    /// What to compare a mode's exits for each operation with.
    pub fn exits(&self, machine: Machine, mode: Mode) -> Option<ExitFigures> {
        let (_, kvm, svm, vtx) =
            EXITS.iter().find(|(name, ..)| *name == self.name && mode == Mode::Shadow)?;
        let (kvm, goal) = if machine.is_bochs() { (None, *vtx) } else { (Some(*kvm), *svm) };
        (goal > 0.0).then_some(ExitFigures { kvm, goal })
    }

    /// What to compare a mode's figures with. No other hypervisor was measured on Bochs, and its ticks count differently.
    pub fn comparison(&self, machine: Machine, mode: Mode) -> &Comparison {
        match mode {
            Mode::Nested | Mode::Shadow if machine.is_bochs() => {
                if self.name == CPUID {
                    &VTX_CPUID
                } else {
                    &NOTHING
                }
            }
            Mode::Nested => &self.nested,
            Mode::Shadow => &self.shadow,
            _ => &NOTHING,
        }
    }
}

/// A row whose figures are multiples of the native one: what that was for KVM and Xen, then those of KVM, Xen and our goal.
const fn times(
    name: &'static str,
    title: &'static str,
    peers_native: f64,
    nested: [f64; 3],
    shadow: [f64; 3],
) -> Row {
    const fn comparison([kvm, xen, goal]: [f64; 3]) -> Comparison {
        let [kvm, xen, goal] = [Figure::Times(kvm), Figure::Times(xen), Figure::Times(goal)];
        Comparison { kvm: Some(kvm), xen: Some(xen), goal: Some(goal) }
    }
    Row {
        name,
        title,
        peers_native: Some(peers_native),
        nested: comparison(nested),
        shadow: comparison(shadow),
    }
}

/// A comparison without a figure of Xen's.
const fn without_xen(kvm: Figure, goal: Figure) -> Comparison {
    Comparison { kvm: Some(kvm), xen: None, goal: Some(goal) }
}

/// A comparison in ticks.
const fn ticks(kvm: f64, xen: f64, goal: f64) -> Comparison {
    let [kvm, xen, goal] = [Figure::Ticks(kvm), Figure::Ticks(xen), Figure::Ticks(goal)];
    Comparison { kvm: Some(kvm), xen: Some(xen), goal: Some(goal) }
}

/// All rows, in order.
#[expect(clippy::approx_constant, reason = "a measured figure")]
pub static ROWS: [Row; 13] = [
    Row {
        name: CPUID,
        title: "CPUID",
        peers_native: Some(6.0),
        nested: ticks(2860.0, 6186.0, 120.0),
        shadow: ticks(2827.0, 3311.0, 120.0),
    },
    Row {
        name: PCI_READ,
        title: "PCI config read through sysfs",
        peers_native: Some(2080.0),
        nested: without_xen(Figure::Ticks(13143.0), Figure::Ticks(2700.0)),
        shadow: without_xen(Figure::Ticks(13139.0), Figure::Ticks(2700.0)),
    },
    times("fork-wait", "fork, wait", 147418.0, [1.01, 1.01, 1.01], [4.69, 9.11, 1.50]),
    times("fork-exec", "fork, exec, wait", 506426.0, [1.21, 1.45, 1.02], [3.76, 6.61, 1.45]),
    times(
        "mmap-touch-munmap",
        "mmap, touch, munmap one page",
        18671.0,
        [1.01, 1.01, 1.01],
        [1.65, 1.99, 1.13],
    ),
    times("first-touch", "first touch of a fresh 4 KiB page", 3278.0, [1.24, 1.00, 1.02], [3.28, 5.43, 1.37]),
    times("touch-again", "touch again after MADV_DONTNEED", 3100.0, [1.01, 1.01, 1.01], [3.14, 5.33, 1.37]),
    times(
        "huge-touch",
        "first touch of 4 KiB in a huge page",
        1102.0,
        [2.00, 1.01, 1.02],
        [2.03, 2.24, 1.05],
    ),
    times("mprotect-1", "mprotect toggle, 1 page", 13750.0, [1.00, 1.05, 1.01], [1.92, 2.37, 1.12]),
    times("mprotect-256", "mprotect toggle, 256 pages", 92297.0, [0.99, 0.99, 1.01], [4.78, 8.45, 1.50]),
    times("fork-cow", "fork, 256 copy-on-write faults", 1532686.0, [1.01, 1.00, 1.01], [3.38, 4.83, 1.40]),
    times("ping-pong", "pipe ping-pong, two processes", 12161.0, [1.01, 1.02, 1.01], [1.57, 2.43, 1.12]),
    Row {
        name: "first-instruction",
        title: "first user instruction, from the guest's start",
        peers_native: Some(1.587e9),
        nested: without_xen(Figure::Times(1.37), Figure::Times(1.05)),
        shadow: without_xen(Figure::Times(1.51), Figure::Times(1.15)),
    },
];

/// The row that the guest's program knows before it performs anything.
pub fn first_instruction() -> &'static Row {
    &ROWS[ROWS.len() - 1]
}

/// The rows with these names, in the table's order; all for no names.
///
/// # Errors
/// [`Usage`] for a name that there is not.
pub fn select(names: &[String]) -> Result<Vec<&'static Row>, Usage> {
    if let Some(unknown) = names.iter().find(|name| !ROWS.iter().any(|row| row.name == **name)) {
        let known: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        return Err(Usage::new(format!(
            "--only {unknown}: no such row; there are {}, scheduler",
            known.join(", ")
        )));
    }
    Ok(ROWS.iter().filter(|row| names.is_empty() || names.iter().any(|name| name == row.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_selected_by_name_in_order() {
        let names = |rows: Vec<&Row>| rows.iter().map(|row| row.name).collect::<Vec<_>>();
        assert_eq!(select(&[]).unwrap().len(), ROWS.len());
        let chosen = select(&["ping-pong".into(), "cpuid".into(), "cpuid".into()]).unwrap();
        assert_eq!(names(chosen), ["cpuid", "ping-pong"]);
        assert!(select(&["cpu".into()]).unwrap_err().to_string().contains("cpuid, pci-read"));
    }

    #[test]
    fn exits_are_compared_in_rows_that_there_are() {
        assert!(EXITS.iter().all(|(name, ..)| ROWS.iter().any(|row| row.name == *name)));
    }

    #[test]
    fn the_last_row_performs_nothing() {
        assert_eq!(first_instruction().name, "first-instruction");
    }

    #[test]
    fn names_are_unique_words_for_a_kernel_command_line() {
        let mut names = ROWS.each_ref().map(|row| row.name);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        // A word with a dot or an equals sign would not reach the first process as an argument.
        assert!(
            names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
        );
    }

    #[test]
    fn each_mode_has_its_own_goals() {
        for row in &ROWS {
            let limit =
                |mode| row.comparison(Machine::QemuSvm, mode).goal.map(|goal| goal.ticks(1e4)).unwrap();
            assert!(limit(Mode::Shadow) >= limit(Mode::Nested), "{}", row.name);
            assert!(row.comparison(Machine::QemuSvm, "switch=50".parse().unwrap()).goal.is_none());
        }
    }

    #[test]
    fn goals_in_ticks() {
        assert_eq!(Figure::Ticks(120.0).ticks(6.0), 120.0);
        assert_eq!(Figure::Times(1.5).ticks(1000.0), 1500.0);
    }
}
