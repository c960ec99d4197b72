//! The figures of the thesis on APR: stand-in programs run here, their page traces are simulated. [`verdict`] has the claims;
//! [`guest`] is a figure of our own, which runs a guest.

pub mod guest;
mod verdict;

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use pagesim::{
    figures::{Measured, measure},
    simulation::{Choice, Kind},
};
use workloads::science::{PROGRAMS, Program};

use super::{
    ReproduceArgs,
    verdict::{Claim, claims_text},
};
use crate::{
    compare::{store, table::percent},
    status::Usage,
    ui::Ui,
};

const PAPER: &str = "Lee, M.S. thesis, Seoul National University 2020";

/// What a figure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Page faults of the policies.
    Faults,
    /// Distances from an eviction to the next access.
    RefaultDistance,
    /// The decay factor.
    Decay,
}

/// A figure.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name on command lines.
    pub name: &'static str,
    /// What it shows.
    pub shows: &'static str,
    /// What it is about.
    pub subject: Subject,
    policies: &'static [&'static str],
    programs: &'static [&'static str],
}

/// What the thesis compares, then what came later.
const POLICIES: &[&str] = &["opt", "clock", "clock-pro", "seq", "apr", "lru", "s3-fifo", "sieve"];
const DECAYS: &[&str] =
    &["clock", "clock-pro", "seq", "apr:decay=0.1", "apr:decay=0.3", "apr:decay=0.5", "apr", "apr:decay=0.9"];

const fn figure(name: &'static str, shows: &'static str, subject: Subject) -> Figure {
    Figure { name, shows, subject, policies: POLICIES, programs: &[] }
}

/// All of them.
pub const FIGURES: [Figure; 3] = [
    figure("apr-fig41", "page faults of OPT, CLOCK, CLOCK-Pro, SEQ, APR and later policies", Subject::Faults),
    figure("apr-fig42", "the mean refault distance, relative to CLOCK's", Subject::RefaultDistance),
    Figure {
        policies: DECAYS,
        programs: &["water-nsquared", "lu-ncb", "lu-cb"],
        ..figure("apr-fig43", "the effect of APR's decay factor", Subject::Decay)
    },
];

/// The figure of this name, if it is one of these.
pub fn find(name: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.name == name)
}

/// The list of figures.
pub fn list() -> String {
    let own = format!("{:<12} {} (beyond the papers)\n", guest::NAME, guest::SHOWS);
    let figures = FIGURES.iter().map(|figure| format!("{:<12} {} ({PAPER})\n", figure.name, figure.shows));
    figures.chain([own]).collect()
}

/// Sizes of memory, in percent of a program's pages; for the figure of distances the mean of them.
fn sizes(subject: Subject, quick: bool) -> &'static [u32] {
    match (subject, quick) {
        (Subject::RefaultDistance, _) => &[50],
        (_, true) => &[10, 30, 50, 70, 90],
        (_, false) => &[10, 20, 30, 40, 50, 60, 70, 80, 90],
    }
}

/// Runs the programs, simulates, and says whether the claims hold.
///
/// # Errors
/// [`Usage`] for options that these figures do not have; a trace cannot be made.
pub fn run(figure: &Figure, args: &ReproduceArgs, ui: &Ui) -> Result<u8> {
    let modelled = args.lab.is_some() || args.seeds != 1 || args.no_kit || args.json.is_some();
    if modelled || args.jobs.is_some() || !args.workloads.is_empty() {
        return Err(Usage::new(format!(
            "{}: it is simulated, of traces of its own programs; only --quick, --scale and --output change it",
            figure.name
        ))
        .into());
    }
    if let Some(path) = &args.output {
        let created = std::fs::File::options().create(true).append(true).open(path);
        created.map_err(|error| Usage::new(format!("{}: {error}; choose another place", path.display())))?;
    }
    let scale = args.scale.unwrap_or(if args.quick { 500 } else { 1000 });
    let choices = figure.policies.iter().map(|name| name.parse().map_err(anyhow::Error::msg));
    let choices = choices.collect::<Result<Vec<Choice>>>()?;
    let wanted = |program: &&Program| figure.programs.is_empty() || figure.programs.contains(&program.name);
    let mut all = Vec::new();
    for program in PROGRAMS.iter().filter(wanted) {
        let _step = ui.step(&format!("{}: {}", figure.name, program.name));
        let sizes = sizes(figure.subject, args.quick);
        let measured = measure(program, scale, &choices, sizes);
        all.push(
            measured.with_context(|| format!("{}: nothing is claimed of {}", program.name, figure.name))?,
        );
    }
    let claims = match verdict::claims(figure.subject, &all, &choices) {
        Ok(claims) => claims,
        Err(why) => bail!("{why}: nothing is claimed of {}", figure.name),
    };
    print!("{}", text(figure, &all, &choices, &claims));
    if let Some(path) = &args.output {
        store::write(path, page(figure, args, scale, &all, &choices, &claims).as_bytes())?;
    }
    Ok(0)
}

/// The cells of a program's row: each policy relative to CLOCK, in the mean over sizes; for OPT as well.
fn cells(subject: Subject, measured: &Measured, choices: &[Choice]) -> Vec<String> {
    let relative = |choice: &Choice| match subject {
        Subject::RefaultDistance => verdict::distance(measured, choice),
        _ => verdict::faults(measured, choice),
    };
    choices.iter().map(|choice| percent(relative(choice))).collect()
}

/// What a person reads.
fn text(figure: &Figure, all: &[Measured], choices: &[Choice], claims: &[Claim]) -> String {
    let mut text =
        format!("{}: {} ({PAPER})\nsimulated, relative to CLOCK\n\n{:<15}", figure.name, figure.shows, "");
    choices.iter().for_each(|choice| text += &format!(" {:>13}", choice.name()));
    text.push('\n');
    for measured in all {
        let _ = write!(text, "{:<15}", measured.program.name);
        for cell in cells(figure.subject, measured, choices) {
            let _ = write!(text, " {cell:>13}");
        }
        text.push('\n');
    }
    text + &claims_text(claims, "simulated")
}

/// The figure as a page of Markdown.
fn page(
    figure: &Figure,
    args: &ReproduceArgs,
    scale: u32,
    all: &[Measured],
    choices: &[Choice],
    claims: &[Claim],
) -> String {
    let quick = if args.quick { " --quick" } else { "" };
    let own = args.scale.map_or(String::new(), |scale| format!(" --scale {}", f64::from(scale) / 1000.0));
    let sizes: Vec<_> = sizes(figure.subject, args.quick).iter().map(u32::to_string).collect();
    let mut text = format!(
        "# {}: {}\n\nAfter {PAPER}.\nAll figures are *simulated*: [stand-ins](../replacement.md#programs) of the programs \
         ran,\nand page traces of them were replayed. In the hypervisor the policies evict pages of\n\
         [overcommitted guests](../design/0029-overcommit.md) and from\n\
         [fast memory](../design/0032-fast-eviction.md), and have the guest's regions as objects there.\n\n\
         ```console\n$ cargo pal reproduce {}{quick}{own}\n```\n\nMade with Palimpsest {}.\n\n\
         Scale {}. Memories of {} % of a program's pages.\n\n| claim | here | shape |\n|---|---|---|\n",
        figure.name,
        figure.shows,
        figure.name,
        env!("CARGO_PKG_VERSION"),
        f64::from(scale) / 1000.0,
        sizes.join(", "),
    );
    for Claim { paper, ours, holds } in claims {
        let _ =
            writeln!(text, "| {paper} | {ours} | {} |", if *holds { "holds" } else { "**does not hold**" });
    }
    let what = match figure.subject {
        Subject::RefaultDistance => "The mean refault distance relative to CLOCK's: more is better.",
        _ => "Faults that evict a page relative to CLOCK's, in the mean over the memories: fewer is better.",
    };
    let names: Vec<_> = choices.iter().map(Choice::name).collect();
    let _ = write!(
        text,
        "\n{what}\n\n| program | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for measured in all {
        let cells = cells(figure.subject, measured, choices).join(" | ");
        let _ = writeln!(text, "| {} | {cells} |", measured.program.name);
    }
    if figure.subject == Subject::Faults {
        text += &beyond(all, choices);
    }
    text += "\nThe traces:\n\n| program | references | pages | objects | checksum |\n|---|---|---|---|---|\n";
    for Measured { program, checksum, about, .. } in all {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {checksum:016x} |",
            program.name, about.references, about.pages, about.objects
        );
    }
    if figure.subject != Subject::RefaultDistance {
        text += &counts(all, choices);
    }
    text
}

/// Who is ahead of APR where, of the policies that came after the others, and the means of all.
fn beyond(all: &[Measured], choices: &[Choice]) -> String {
    let mut text = "\nMeans of the thesis' twelve, and where a policy is ahead of APR:\n\n".to_owned();
    let Some(apr) = choices.iter().find(|choice| **choice == Choice::new(Kind::Apr)) else {
        return String::new();
    };
    for choice in choices.iter().filter(|choice| *choice != apr) {
        let ahead = all.iter().filter(|measured| {
            let relative = [choice, apr].map(|choice| verdict::faults(measured, choice));
            matches!(relative, [Some(one), Some(aprs)] if one < aprs)
        });
        let names: Vec<_> = ahead.map(|measured| measured.program.name).collect();
        let names = if names.is_empty() { "nowhere".into() } else { names.join(",\n  ") };
        let mean = percent(verdict::mean_of_twelve(all, choice));
        text += &format!("- `{}` {mean}:\n  {names}\n", choice.name());
    }
    text + &format!("- `apr` {}\n", percent(verdict::mean_of_twelve(all, apr)))
}

/// The counts behind the curves.
fn counts(all: &[Measured], choices: &[Choice]) -> String {
    let mut text = "\nFaults that evict a page:\n\n| program | frames |".to_owned();
    choices.iter().for_each(|choice| text += &format!(" {} |", choice.name()));
    let _ = writeln!(text, "\n|---|---|{}", "---|".repeat(choices.len()));
    for measured in all {
        let mut columns: Vec<_> = choices.iter().map(|choice| measured.of(choice)).collect();
        loop {
            let row: Vec<_> = columns.iter_mut().filter_map(Iterator::next).collect();
            let Some(first) = row.first() else { break };
            let _ = write!(text, "| {} | {} |", measured.program.name, first.frames);
            row.iter().for_each(|outcome| text += &format!(" {} |", outcome.counts.evictions));
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_figure_says_what_it_counted() {
        let choices: Vec<Choice> = ["clock", "apr"].iter().map(|name| name.parse().unwrap()).collect();
        let all = [measure(&PROGRAMS[2], 130, &choices, &[50, 80]).unwrap()];
        let claims = [Claim { paper: "p".into(), ours: "o".into(), holds: false }];
        let text = text(&FIGURES[0], &all, &choices, &claims);
        assert!(
            text.contains("simulated") && text.contains("lu-cb") && text.contains("does not hold"),
            "{text}"
        );
        let beyond = beyond(&all, &choices);
        assert!(beyond.contains("- `clock` +0.0 %:\n  nowhere\n- `apr` −"), "{beyond}");
        let counts = counts(&all, &choices);
        let evictions = all[0].outcomes[0].counts.evictions;
        assert!(
            counts.contains(&format!("| lu-cb | {} | {evictions} |", all[0].outcomes[0].frames)),
            "{counts}"
        );
        assert!(list().contains("apr-fig43") && find("apr-fig42").is_some() && find("apr-fig4").is_none());
    }
}
