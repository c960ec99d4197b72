//! A folder with a file for each cell, and the list of the cells: what a workflow takes that runs them one by one, on other machines
//! maybe (`tools/sweep`). The comparison itself then finds all of them there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    cell::{Cell, Plan},
    plan::{Comparison, Request},
    store,
};
use crate::status::Usage;

/// The folder.
#[derive(Clone, Debug)]
pub struct Cells(PathBuf);

impl Cells {
    /// Makes it, if it is not there.
    ///
    /// # Errors
    /// [`Usage`]: it cannot be made.
    pub fn new(path: &Path) -> Result<Cells, Usage> {
        let made = fs::create_dir_all(path);
        made.map_err(|error| {
            Usage::new(format!("--cells {}: {error}; choose another place", path.display()))
        })?;
        Ok(Cells(path.to_owned()))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(file_name(name))
    }

    /// The folder for logs that policies learn from: beside the cells that they are of, where all machines find them.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn logs(&self) -> Result<PathBuf> {
        let logs = self.0.join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        Ok(logs)
    }

    /// The cells of a comparison that are there.
    ///
    /// # Errors
    /// [`Usage`]: a file is damaged, or something else.
    pub fn read(&self, comparison: &Comparison) -> Result<Vec<Cell>, Usage> {
        self.of(&comparison.cells())
    }

    /// Those of these cells that are there.
    ///
    /// # Errors
    /// [`Usage`]: a file is damaged, or something else.
    pub fn of(&self, plans: &[Plan]) -> Result<Vec<Cell>, Usage> {
        let mut cells = Vec::new();
        for plan in plans {
            cells.extend(store::read(&self.file(&plan.name))?);
        }
        Ok(cells)
    }

    /// Keeps a cell.
    ///
    /// # Errors
    /// No space, no permission.
    pub fn write(&self, plan: &Plan, cell: &Cell) -> Result<()> {
        let about = json!({ "name": plan.name, "options": plan.options });
        let document = store::document(&about, std::slice::from_ref(cell), &[], &[], &[]);
        store::write(&self.file(&plan.name), (document.to_string() + "\n").as_bytes())
    }

    /// Keeps a cell that came from elsewhere. A file that is there keeps its age: a workflow takes what is younger than what was
    /// made of it for a reason to make that again.
    ///
    /// # Errors
    /// Those of [`Cells::write`].
    pub fn add(&self, plan: &Plan, cell: &Cell) -> Result<()> {
        let path = self.file(&plan.name);
        let is_there = store::read(&path).is_ok_and(|cells| cells.iter().any(|it| it.inputs == cell.inputs));
        if is_there { Ok(()) } else { self.write(plan, cell) }
    }

    /// One line for each cell of a comparison, in an order in which they can be run.
    pub fn lines(&self, comparison: &Comparison) -> Vec<Value> {
        let line = |plan: Plan| {
            let mut command = self.command(comparison.request());
            command.extend(["--cell".to_owned(), plan.name.clone()]);
            json!({ "cell": plan.name, "file": file_name(&plan.name), "workload": plan.workload, "policy": plan.policy,
                "seed": plan.seed, "after": comparison.comes_after(&plan), "command": command })
        };
        comparison.cells().into_iter().map(line).collect()
    }

    /// The arguments of `pal` that ask for the same comparison.
    fn command(&self, request: &Request) -> Vec<String> {
        let Request { policies, workloads, seeds, scale_milli, is_quick, lab, nested_page, .. } = request;
        let Request { lab_time, no_kit, yes, .. } = request;
        let mut command: Vec<String> = ["compare", "--policies"].map(str::to_owned).into();
        command.extend(policies.iter().cloned());
        let mut add = |option: &str, value: String| command.extend([format!("--{option}"), value]);
        add("workloads", workloads.join(","));
        add("seeds", seeds.to_string());
        if let Some(milli) = scale_milli {
            add("scale", format!("{}.{:03}", milli / 1000, milli % 1000));
        }
        add("lab", lab.clone());
        add("nested-page", nested_page.name().to_owned());
        add("cells", self.0.display().to_string());
        command.extend(is_quick.then(|| "--quick".to_owned()));
        command.extend(lab_time.then(|| "--lab-time".to_owned()));
        command.extend(no_kit.then(|| "--no-kit".to_owned()));
        command.extend(yes.then(|| "--yes".to_owned()));
        command
    }
}

fn file_name(name: &str) -> String {
    format!("{name}.json")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command as Subcommand};

    fn comparison(words: impl IntoIterator<Item = String>) -> Comparison {
        let line = ["pal".to_owned()].into_iter().chain(words);
        let Subcommand::Compare(args) = Cli::try_parse_from(line).unwrap().command else { panic!("compare") };
        Comparison::new(Request::of(&args)).unwrap()
    }

    fn asked_for(words: &str) -> Comparison {
        comparison(format!("compare {words}").split(' ').map(str::to_owned))
    }

    const WORDS: &str = "--policies nested,dsp-sample,interval_ms=20 asp-svm,train=pooled --workloads gups,matmul \
                         --seeds 2 --scale 0.05 --lab zen3 --nested-page 2M --lab-time --no-kit";

    #[test]
    fn a_command_of_the_plan_asks_for_its_cell_of_the_same_comparison() {
        let dir = tempfile::tempdir().unwrap();
        let cells = Cells::new(dir.path()).unwrap();
        let quick = asked_for("--quick --policies nested --workloads chase");
        let lines = cells.lines(&quick);
        let words: Vec<String> = serde_json::from_value(lines[0]["command"].clone()).unwrap();
        assert_eq!(comparison(words).cells(), quick.cells());
        let all = asked_for(WORDS);
        let lines = cells.lines(&all);
        // Two seeds of three policies; asp-svm learns from shadow, too, with one.
        assert_eq!(lines.len(), 2 * (3 * 2 + 1));
        for (line, plan) in lines.iter().zip(all.cells()) {
            let words: Vec<String> = serde_json::from_value(line["command"].clone()).unwrap();
            let alone = comparison(words);
            let sources = alone.comes_after(&plan);
            let planned = alone.cells();
            assert_eq!(planned.last(), Some(&plan), "{line}");
            let before: Vec<_> = planned[..planned.len() - 1].iter().map(|plan| plan.name.clone()).collect();
            assert_eq!(before, sources, "what it learns from, and nothing else");
            assert_eq!(line["after"], json!(sources));
        }
        let after = |line: &Value| line["after"].as_array().map_or(0, Vec::len);
        assert_eq!(lines.iter().filter(|line| after(line) == 4).count(), 4, "pooled: of both workloads");
    }

    #[test]
    fn names_tell_cells_apart() {
        let names =
            |words: &str| asked_for(words).cells().into_iter().map(|plan| plan.name).collect::<Vec<_>>();
        let mut all = names(WORDS);
        all.extend(names(&WORDS.replace("zen3", "icelake-sp")));
        all.extend(names(&WORDS.replace("0.05", "0.06")));
        all.extend(names(&WORDS.replace("2M", "4K")));
        all.extend(names(&WORDS.replace(" --no-kit", "")));
        all.extend(names(&WORDS.replace("interval_ms=20", "interval_ms=21")));
        let before = all.len();
        all.sort();
        all.dedup();
        // The last one shares the cells that lack that policy.
        assert_eq!(all.len(), before - 10);
        assert!(all.iter().all(|name| !name.contains('/')), "{all:?}");
        // One model of two workloads is another one than that of one.
        let trained = |words: &str| names(words).pop().unwrap();
        assert_ne!(
            trained("--policies asp-svm,train=pooled --workloads gups"),
            trained("--policies asp-svm,train=pooled --workloads matmul,gups")
        );
        let refused = Comparison::new(Request {
            cell: Some("gups-nested".into()),
            ..asked_for(WORDS).request().clone()
        });
        assert!(refused.err().unwrap().to_string().contains("--plan"));
    }

    #[test]
    fn cells_come_back_from_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let cells = Cells::new(&dir.path().join("new")).unwrap();
        let comparison = asked_for(WORDS);
        assert_eq!(cells.read(&comparison).unwrap(), []);
        let plan = &comparison.cells()[1];
        let cell = |inputs: &str| Cell { inputs: inputs.into(), ..Cell::default() };
        cells.add(plan, &cell("a")).unwrap();
        let age = || fs::metadata(cells.file(&plan.name)).unwrap().modified().unwrap();
        let before = age();
        cells.add(plan, &cell("a")).unwrap();
        assert_eq!((cells.read(&comparison).unwrap(), age()), (vec![cell("a")], before));
        cells.add(plan, &cell("b")).unwrap();
        assert_eq!(cells.read(&comparison).unwrap(), [cell("b")]);
        fs::write(cells.file(&plan.name), "{}").unwrap();
        assert!(cells.read(&comparison).unwrap_err().to_string().contains("no comparison"));
        assert!(Cells::new(Path::new("/dev/null/x")).is_err());
    }
}
