//! `pal report`: files of samples as one page of HTML, which needs no network: timelines, tables, a comparison of the runs, and
//! what ran.
//!
//! [`crate::samples`] reads files, [`figures`] says what is shown of them, [`chart`] draws, [`page`] puts it together.

pub mod chart;
pub mod figures;
pub mod heat;
mod misses;
pub mod page;
mod regions;
mod tiers;

use std::{fs, path::PathBuf};

use anyhow::Result;
use clap::Args;

use crate::{
    samples::Run,
    status::Usage,
    ui::{Ui, shell_word},
};

/// Options of `pal report`.
#[derive(Args)]
#[command(after_help = crate::cli::help::REPORT)]
pub struct ReportArgs {
    /// Files of samples (`cargo pal run --samples FILE`)
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Miss ratios of traces to show as well (`cargo pal replace --json FILE`)
    #[arg(long, value_name = "FILE")]
    pub miss_ratios: Vec<PathBuf>,
    /// The page
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
}

/// Writes the page.
///
/// # Errors
/// [`Usage`] for files that are none of samples, and where the page cannot be written.
pub fn run(args: &ReportArgs, ui: &Ui) -> Result<u8> {
    let mut runs = args.runs.iter().map(|path| Run::open(path)).collect::<Result<Vec<_>, _>>()?;
    name_apart(&mut runs);
    for run in runs.iter().filter(|run| run.end.is_none() || run.broken + run.later > 0) {
        ui.warn(&format!("{}: {}", run.name, run.ending()));
    }
    let misses = args.miss_ratios.iter().map(|path| misses::Misses::open(path));
    let misses = misses.collect::<Result<Vec<_>, _>>()?;
    let page = page::page(&runs, &misses)?;
    let output = args.output.display();
    fs::write(&args.output, page)
        .map_err(|error| Usage::new(format!("--output {output}: {error}; choose another place")))?;
    let word = args.output.to_string_lossy();
    ui.say(&format!("open the report in a browser: xdg-open {}", shell_word(&word)));
    Ok(0)
}

/// Files of one name in several folders get numbers.
fn name_apart(runs: &mut [Run]) {
    let names: Vec<_> = runs.iter().map(|run| run.name.clone()).collect();
    for (at, run) in runs.iter_mut().enumerate() {
        let same = names[..at].iter().filter(|name| **name == run.name).count();
        if same > 0 {
            run.name += &format!(" ({})", same + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_name_are_told_apart() {
        let mut runs: Vec<_> =
            ["a", "b", "a", "a"].map(|name| Run { name: name.into(), ..Run::default() }).into();
        name_apart(&mut runs);
        let names: Vec<_> = runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "a (2)", "a (3)"]);
    }
}
