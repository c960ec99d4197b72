//! The list of cases.

mod bad_input;
mod bench;
mod bochs;
mod boot;
mod compare;
mod disks;
mod figures;
mod files;
mod guest_kit;
mod guests;
mod isolation;
mod kit;
mod lab;
mod lab_time;
mod long_mode;
mod media;
mod monitor;
mod overcommit;
pub mod person;
mod policies;
mod probe;
mod records;
mod region_figures;
mod regions;
mod remote;
mod replace;
mod report;
mod resets;
mod root;
mod smp;
mod speculation;
mod stress;
mod tiers;
mod torture;
mod virtio;
mod vms;
mod watch;

use anyhow::Result;

use crate::context::Context;

/// The machines on which a case makes sense.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// QEMU's two.
    Both,
    /// Both, but the one without the hypervisor only if everything is asked for: what is checked is `pal`'s, and the same on both.
    Hypervisor,
    /// Only this one.
    Only(&'static str),
}

/// One test.
pub struct Case {
    /// Its name, unique.
    pub name: &'static str,
    /// Where it runs.
    pub on: On,
    /// Modes of the hypervisor in which it runs, too.
    pub modes: &'static [&'static str],
    /// More of them, if everything is asked for.
    pub more_modes: &'static [&'static str],
    /// It takes long, and runs only if everything is asked for.
    pub full: bool,
    /// Does something and looks at what comes out.
    pub check: fn(&Context) -> Result<()>,
}

impl Case {
    /// The same case, also in these modes of the hypervisor.
    const fn also(self, modes: &'static [&'static str]) -> Case {
        Case { modes, ..self }
    }

    /// The same case, also in these modes if everything is asked for.
    const fn more(self, more_modes: &'static [&'static str]) -> Case {
        Case { more_modes, ..self }
    }

    /// The same case, but only if everything is asked for.
    const fn at_length(self) -> Case {
        Case { full: true, ..self }
    }
}

/// For [`Case::also`].
const SHADOW: &[&str] = &["shadow"];

/// A case for QEMU's machines.
const fn both(name: &'static str, check: fn(&Context) -> Result<()>) -> Case {
    Case { name, on: On::Both, modes: &[], more_modes: &[], full: false, check }
}

/// A case for QEMU's machine with the hypervisor, and at length for the one without.
const fn hypervisor(name: &'static str, check: fn(&Context) -> Result<()>) -> Case {
    Case { on: On::Hypervisor, ..both(name, check) }
}

/// A case for one machine.
const fn only(machine: &'static str, name: &'static str, check: fn(&Context) -> Result<()>) -> Case {
    Case { name, on: On::Only(machine), modes: &[], more_modes: &[], full: false, check }
}

/// All cases.
pub fn all() -> impl Iterator<Item = &'static Case> {
    // What takes longest comes first, so that short cases keep all processors busy until the end.
    let cases = [
        bochs::CASES,
        isolation::CASES,
        lab::CASES,
        compare::CASES,
        policies::CASES,
        bench::CASES,
        lab_time::CASES,
        stress::CASES,
        smp::CASES,
        root::CASES,
        vms::CASES,
        torture::CASES,
        virtio::CASES,
        media::CASES,
        boot::CASES,
        disks::CASES,
        figures::CASES,
        files::CASES,
        guest_kit::CASES,
        guests::CASES,
        person::CASES,
        probe::CASES,
        remote::CASES,
        replace::CASES,
        resets::CASES,
        speculation::CASES,
        monitor::CASES,
        overcommit::CASES,
        records::CASES,
        region_figures::CASES,
        regions::CASES,
        tiers::CASES,
        watch::CASES,
        long_mode::CASES,
        kit::CASES,
        bad_input::CASES,
    ];
    cases.into_iter().flatten()
}
