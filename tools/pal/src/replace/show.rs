//! What a simulation came to: a table of miss ratios, JSON, and curves.

use std::fmt::Write;

use anyhow::Result;
use pagesim::simulation::{About, Choice, Outcome};
use serde_json::{Value, json};

use crate::report::chart;

/// Faults of all references.
fn miss_ratio(outcome: &Outcome) -> f64 {
    outcome.counts.faults as f64 / outcome.counts.references.max(1) as f64
}

/// Digits behind the point, so that small ratios show three.
fn percent(ratio: f64) -> String {
    let percent = 100.0 * ratio;
    if percent >= 1.0 { format!("{percent:.2} %") } else { format!("{percent:.4} %") }
}

/// The table: a row for each memory, a column for each policy.
pub fn table(about: &About, choices: &[Choice], frames: &[u32], outcomes: &[Outcome]) -> String {
    let About { references, pages, objects, .. } = about;
    let plural = if *objects == 1 { "" } else { "s" };
    let mut text = format!(
        "simulated: {references} references, {pages} pages, {objects} object{plural}; miss ratios\n\n"
    );
    let names: Vec<String> = choices.iter().map(Choice::name).collect();
    let width = |name: &String| name.len().max(10);
    let _ = write!(text, "{:>10}", "frames");
    names.iter().for_each(|name| text += &format!("  {name:>0$}", width(name)));
    text.push('\n');
    for (row, frames) in frames.iter().enumerate() {
        let _ = write!(text, "{frames:>10}");
        for (column, name) in names.iter().enumerate() {
            let outcome = &outcomes[column * (outcomes.len() / names.len()) + row];
            let _ = write!(text, "  {:>1$}", percent(miss_ratio(outcome)), width(name));
        }
        text.push('\n');
    }
    text
}

/// All that was counted.
pub fn json(about: &About, outcomes: &[Outcome], seconds: f64) -> Value {
    let results = outcomes.iter().map(|outcome| {
        let counts = &outcome.counts;
        json!({
            "policy": outcome.choice.name(),
            "frames": outcome.frames,
            "faults": counts.faults,
            "evictions": counts.evictions,
            "refaults": counts.refaults,
            "mean_refault_distance": counts.refault_distance as f64 / counts.refaults.max(1) as f64,
            "miss_ratio": miss_ratio(outcome),
            "ghosts": counts.ghosts,
            "policy_bytes": outcome.policy_bytes,
        })
    });
    json!({
        "format": "palimpsest-replace",
        "version": 1,
        "references": about.references,
        "pages": about.pages,
        "objects": about.objects,
        "seconds": seconds,
        "results": results.collect::<Vec<_>>(),
    })
}

/// The curves.
///
/// # Errors
/// The library cannot draw them.
pub fn plot(about: &About, choices: &[Choice], outcomes: &[Outcome]) -> Result<String> {
    let each = outcomes.len() / choices.len().max(1);
    let curves = choices.iter().zip(outcomes.chunks(each.max(1))).map(|(choice, outcomes)| {
        let point = |outcome: &Outcome| (f64::from(outcome.frames), 100.0 * miss_ratio(outcome));
        (choice.name(), outcomes.iter().map(point).collect())
    });
    let curves: Vec<(String, Vec<(f64, f64)>)> = curves.collect();
    chart::curves(&curves, &format!("page frames ({} pages)", about.pages), "misses in percent of references")
}

#[cfg(test)]
mod tests {
    use pagesim::{memory::Counts, simulation::Kind};

    use super::*;

    fn sample() -> (About, Vec<Choice>, Vec<u32>, Vec<Outcome>) {
        let about = About { references: 1000, runs: 9, pages: 30, objects: 2 };
        let choices = vec![Choice::new(Kind::Clock), "apr:decay=0.5".parse().unwrap()];
        let frames = vec![10, 20];
        let outcome = |choice: &Choice, frames: u32, faults| Outcome {
            choice: *choice,
            frames,
            counts: Counts {
                references: 1000,
                faults,
                refaults: 2,
                refault_distance: 7,
                ..Counts::default()
            },
            policy_bytes: 5,
        };
        let of = |choice| [outcome(choice, 10, 300), outcome(choice, 20, 4)];
        let outcomes = choices.iter().flat_map(of).collect();
        (about, choices, frames, outcomes)
    }

    #[test]
    fn rows_are_memories() {
        let (about, choices, frames, outcomes) = sample();
        let text = table(&about, &choices, &frames, &outcomes);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[2], ["frames", "clock", "apr:decay=0.5"]);
        assert_eq!(rows[3], ["10", "30.00", "%", "30.00", "%"]);
        assert_eq!(rows[4], ["20", "0.4000", "%", "0.4000", "%"]);
        let json = json(&about, &outcomes, 1.0);
        assert_eq!(json["results"][1]["miss_ratio"], 0.004);
        assert_eq!(json["results"][3]["mean_refault_distance"], 3.5);
    }

    #[test]
    fn curves_have_names() {
        let (about, choices, _, outcomes) = sample();
        let svg = plot(&about, &choices, &outcomes).unwrap();
        assert!(
            svg.contains("apr:decay=0.5")
                && svg.contains("page frames")
                && svg.matches("<polyline").count() >= 2
        );
        assert!(svg.contains("--s0:") && svg.contains("var(--s1)"), "colours are in the file");
    }
}
