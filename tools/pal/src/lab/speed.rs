//! `pal lab speed`: the processor time that QEMU takes with the model of a machine beside it, and without.
//!
//! User time of QEMU's process is compared, not the clock, because other work may be going on; but that makes processor
//! time longer as well. So the runs of each round follow each other, ratios are taken within a round, and the median over
//! the rounds counts.

use anyhow::{Result, bail};
use clap::Parser;

use super::{args::SpeedArgs, find};
use crate::{
    cli::{Cli, Command},
    host::{needs::Needs, qemu::Emulator},
    project::Project,
    run,
    ui::Ui,
};

/// What the guest does after it has booted. The second fills a table of awk's, which is many small pieces of memory, in an
/// order that no cache likes, and reads it in another.
const WORKS: [(&str, &str); 2] = [
    ("boot", "true"),
    (
        "memory",
        "awk 'BEGIN { n = 100003; \
         for (i = 0; i < n; i++) a[i * 7919 % n] = i; \
         for (i = 0; i < n; i++) s += a[i * 104729 % n]; \
         exit s < 0 }'",
    ),
];
/// Without the lab machine; TLBs and walks; everything.
const MODELS: [&str; 3] = ["plain", "tlb", "full"];

/// Measures and prints.
///
/// # Errors
/// A run fails, or what it takes is missing.
pub fn run(args: &SpeedArgs, project: &Project, ui: &Ui) -> Result<u8> {
    find(&args.machine)?;
    let needs = Needs { project, ui, yes: args.yes };
    let qemu = Emulator::with_plugins(args.qemu.as_deref(), &needs)?;
    let mut times = WORKS.map(|_| MODELS.map(|_| Vec::new()));
    for round in 1..=args.rounds {
        for ((name, command), times) in WORKS.iter().zip(&mut times) {
            for (model, times) in MODELS.iter().zip(times) {
                let milliseconds = once(args, &qemu, command, model, project)?;
                ui.say(&format!("round {round}, {name}, {model}: {milliseconds} ms"));
                times.push(milliseconds);
            }
        }
    }
    print!("{}", table(args, &times));
    Ok(0)
}

/// One run; QEMU's user time in milliseconds.
fn once(args: &SpeedArgs, qemu: &Emulator, command: &str, model: &str, project: &Project) -> Result<u64> {
    let mode = args.mode.to_string();
    let mut words = vec!["pal", "run", "--exec", command, "--mode", &mode, "--timeout", "1200"];
    if args.deterministic {
        words.push("--deterministic");
    }
    let (program, data) = (qemu.program.to_string_lossy(), qemu.data());
    match model {
        // What `--lab` gives QEMU beside the model.
        "plain" => {
            words.extend(["--qemu", &program]);
            words.extend(data.iter().flat_map(|word| ["--qemu-arg", word]));
        }
        _ => {
            words.extend(["--lab", &args.machine, "--lab-model", model]);
            if qemu.data().is_empty() {
                words.extend(["--qemu", &program]);
            }
        }
    }
    let Command::Run(run) = Cli::try_parse_from(&words)?.command else { bail!("{words:?}: not a run") };
    let (status, milliseconds) = run::measured(&run, project, &Ui::quiet())?;
    if status != 0 {
        bail!("`{}` ended with status {status}", words.join(" "));
    }
    Ok(milliseconds)
}

fn table(args: &SpeedArgs, times: &[[Vec<u64>; 3]; 2]) -> String {
    let icount = if args.deterministic { ", deterministic time" } else { "" };
    let mut text = format!(
        "{}, {}{icount}: user time of QEMU in ms, {} rounds\n{:<8} {:<6} {:>8} {:>8} {:>12} {:>15}\n",
        args.machine,
        args.mode,
        args.rounds,
        "guest",
        "model",
        "median",
        "least",
        "times plain",
        "least to most"
    );
    for ((name, _), times) in WORKS.iter().zip(times) {
        for (model, of) in MODELS.iter().zip(times) {
            let sorted = sorted(of.iter().copied());
            let ratios = sorted_ratios(of, &times[0]);
            text += &format!("{name:<8} {model:<6} {:>8} {:>8}", median(&sorted), sorted[0]);
            if *model != "plain" {
                let ends = format!("{} to {}", hundredths(ratios[0]), hundredths(ratios[ratios.len() - 1]));
                text += &format!(" {:>12} {ends:>15}", hundredths(median(&ratios)));
            }
            text += "\n";
        }
    }
    text
}

fn sorted(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values
}

/// Hundredths of what the same round took plainly.
fn sorted_ratios(of: &[u64], plain: &[u64]) -> Vec<u64> {
    sorted(of.iter().zip(plain).map(|(of, plain)| of * 100 / (*plain).max(1)))
}

/// The middle one, or the lower one of two.
fn median(sorted: &[u64]) -> u64 {
    sorted[(sorted.len() - 1) / 2]
}

fn hundredths(value: u64) -> String {
    format!("{}.{:02}", value / 100, value % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_each_round() {
        let line = ["pal", "lab", "speed", "zen3", "--rounds", "3"];
        let Command::Lab(lab) = Cli::try_parse_from(line).unwrap().command else { panic!() };
        let super::super::args::LabCommand::Speed(args) = lab.command else { panic!() };
        // The second round was on a busy machine.
        let of = |times: [u64; 3]| times.to_vec();
        let one = [of([1000, 2000, 1100]), of([1500, 3100, 1650]), of([2000, 4000, 2310])];
        let text = table(&args, &[one.clone(), one]);
        let line = |start: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap();
            line.split_whitespace().skip(2).map(str::to_owned).collect()
        };
        assert_eq!(line("boot     plain"), ["1100", "1000"]);
        assert_eq!(line("boot     tlb"), ["1650", "1500", "1.50", "1.50", "to", "1.55"]);
        assert_eq!(line("memory   full"), ["2310", "2000", "2.00", "2.00", "to", "2.10"]);
    }
}
