//! `pal workload`: a fixed amount of work in a guest, and what it took. The work is a program of `bench/workloads`; [`runner`]
//! runs it, here and for `pal compare`.

pub mod args;
pub mod counted;
pub mod programs;
pub mod record;
pub mod runner;

use anyhow::Result;
use workloads::Workload;

use crate::{host::needs::Needs, project::Project, status::Usage, ui::Ui};
use args::{RunWorkload, WorkloadArgs, WorkloadCommand};
use runner::{Measured, Setup};

/// `pal workload`.
///
/// # Errors
/// [`Usage`] for unknown names and options; the run failed.
pub fn run(args: &WorkloadArgs, project: &Project, ui: &Ui) -> Result<u8> {
    match &args.command {
        WorkloadCommand::List => print!("{}", list()),
        WorkloadCommand::Run(args) => run_one(args, project, ui)?,
    }
    Ok(0)
}

/// The workload of this name.
///
/// # Errors
/// [`Usage`]: there is none.
pub fn find(name: &str) -> Result<&'static Workload, Usage> {
    workloads::find(name)
        .ok_or_else(|| Usage::new(format!("{name}: no such workload; there are {}", names(|_| true))))
}

/// The names of some workloads.
fn names(of: impl Fn(&Workload) -> bool) -> String {
    workloads::all().filter(|one| of(one)).map(|one| one.name).collect::<Vec<_>>().join(", ")
}

/// The table of workloads.
fn list() -> String {
    let lines = workloads::all().map(|Workload { name, kind, work, stands_for, .. }| {
        format!("{name:<14} {:<13} {work}\n{:29}for {stands_for}\n", kind.name(), "")
    });
    let head =
        format!("{:<14} {:<13} {}\n", "workload", "kind", "work at scale 1, and what it stands in for");
    let note = "SPEC CPU, with which the policies were published, is licensed and absent: the first workloads have one of its \
                programs' traits each.\n";
    let real = format!(
        "{} are programs of Debian's, fetched by apt when first used, and not installed.\n",
        names(|workload| workload.programs.is_some())
    );
    head + &lines.collect::<String>() + note + &real
}

fn run_one(args: &RunWorkload, project: &Project, ui: &Ui) -> Result<()> {
    let workload = find(&args.name)?;
    let options = runner::options(&args.options)?;
    let needs = Needs { project, ui, yes: options.yes };
    let scratch = tempfile::Builder::new().prefix("pal-").tempdir()?;
    let setup = Setup::new(&needs, options.lab.lab.is_some(), options.kit, scratch.path())?;
    // The module is in the workload's own RAM disk.
    let words: Vec<String> = args.options.iter().filter(|word| *word != "--kit").cloned().collect();
    let measured = {
        let _step = ui.step(&format!("running {}", workload.name));
        runner::perform(&setup, workload, args.scale, &words)?
    };
    let ticks = if options.pcpus == crate::run::pcpus::Pcpus::ONE && !options.machine.is_bochs() {
        "instructions"
    } else {
        "ticks of the time-stamp counter"
    };
    print!("{}", lines(&measured, ticks));
    if let Some(packages) = setup.packages(workload)? {
        println!("packages  {}", packages.join(", "));
    }
    Ok(())
}

/// What a person reads of a run. `ticks`: what the guest's time-stamp counter counts without a lab machine.
fn lines(measured: &Measured, ticks: &str) -> String {
    let record = &measured.record;
    let time = match measured.cycles {
        Some(cycles) => {
            let share = 100.0 * cycles.host as f64 / cycles.all().max(1) as f64;
            format!("{} modelled cycles, {share:.1} % of them the hypervisor's", cycles.all())
        }
        None => format!("{} {ticks}", record.tsc_end - record.tsc_begin),
    };
    let instructions =
        measured.instructions.map(|count| format!("guest     {count} instructions\n")).unwrap_or_default();
    let changes = measured.changes().map_or_else(|| "not counted".to_owned(), |changes| changes.to_string());
    format!(
        "workload  {}, scale {}\ntime      {time}\n{instructions}checksum  {}\nchanges   {changes} of the mode\n",
        record.workload,
        f64::from(record.scale_milli) / 1000.0,
        record.checksum
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Run, Sample};
    use record::Record;
    use runner::Cycles;

    #[test]
    fn each_workload_is_in_the_list() {
        let list = list();
        assert!(
            workloads::all()
                .all(|workload| list.contains(workload.name) && list.contains(workload.stands_for))
        );
        assert!(list.contains("SPEC CPU") && list.contains("absent"));
        assert!(find("gup").err().unwrap().to_string().contains("gups, chase"));
    }

    #[test]
    fn a_run_in_words() {
        let record = Record {
            workload: "gups".into(),
            scale_milli: 50,
            checksum: "ff".into(),
            tsc_begin: 5,
            tsc_end: 25,
        };
        let sample = Sample { switches: 2, ..Sample::default() };
        let samples = Run { samples: vec![sample.clone(), sample], ..Run::default() };
        let mut measured = Measured {
            walk_cycles: None,
            switches: None,
            counted: counted::Counted::default(),
            record,
            cycles: None,
            instructions: None,
            samples: None,
            begin_ns: None,
            end_ns: None,
            command: vec![],
        };
        let text = lines(&measured, "instructions");
        assert!(
            text.contains("20 instructions") && text.contains("not counted") && text.contains("scale 0.05"),
            "{text}"
        );
        measured.cycles = Some(Cycles { host: 25, nested: 75, shadow: 0 });
        measured.samples = Some(samples);
        measured.instructions = Some(17);
        let text = lines(&measured, "");
        assert!(text.contains("100 modelled cycles, 25.0 %") && text.contains("changes   4"), "{text}");
        assert!(text.contains("guest     17 instructions"), "{text}");
    }
}
