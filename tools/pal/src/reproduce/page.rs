//! A figure as a page of Markdown.

use std::fmt::Write;

use super::{Part, ReproduceArgs, figures::Figure, verdict::Claim};
use crate::compare::{
    results::{short, shortened},
    table::percent,
};

/// The page.
pub fn page(figure: &Figure, args: &ReproduceArgs, parts: &[(&Part, Vec<Claim>)]) -> String {
    let quick = if args.quick { "Quick: short runs of few workloads.\n" } else { "" };
    let mut text = format!(
        "# {}: {}\n\nAfter {}.\n{quick}All figures are *modelled*: the machine is a [lab machine](../lab.md).\n\
         The workloads [stand in](../policies.md#comparing) for the paper's.\n\n```console\n$ {}\n```\n\n\
         Made with Palimpsest {}.\n",
        figure.name,
        figure.shows,
        figure.paper,
        command(args),
        env!("CARGO_PKG_VERSION"),
    );
    for (part, claims) in parts {
        let policies = part.comparison.policies();
        let about = part.comparison.about();
        let _ = write!(
            text,
            "\n## {}\n\nScale {}, seeds {}, nested pages {}.\n\n| claim | here | shape |\n|---|---|---|\n",
            part.lab,
            part.comparison.scales(),
            about["seeds"],
            about["nested_page"].as_str().unwrap_or_default(),
        );
        for Claim { paper, ours, holds } in claims {
            let _ = writeln!(
                text,
                "| {paper} | {ours} | {} |",
                if *holds { "holds" } else { "**does not hold**" }
            );
        }
        text += "\n| workload | policy | Mcycles | to the better static mode | changes | shadow |\n|---|---|---|---|---|---|\n";
        for row in part.rows() {
            let _ = writeln!(
                text,
                "| {} | {} | {:.1} | {} | {} | {:.0} % |",
                row.workload,
                short(row.policy, policies),
                row.median.cycles() as f64 / 1e6,
                percent(row.relative),
                row.median.changes,
                100.0 * row.median.shadow_share(),
            );
        }
        let shortened = shortened(policies);
        if !shortened.is_empty() {
            text += "\nParameters:\n\n";
            for policy in shortened {
                let (name, parameters) = policy.split_once(',').unwrap_or((policy, ""));
                let parameters: Vec<_> = parameters.split(',').map(|word| format!("`{word}`")).collect();
                let _ = writeln!(text, "- `{name}`:\n  {}", parameters.join(",\n  "));
            }
        }
    }
    text
}

/// The command that made it, without where its files lie.
fn command(args: &ReproduceArgs) -> String {
    let mut command = format!("cargo pal reproduce {}", args.name.as_deref().unwrap_or_default());
    if args.quick {
        command += " --quick";
    }
    if !args.workloads.is_empty() {
        let _ = write!(command, " --workloads {}", args.workloads.join(","));
    }
    if let Some(milli) = args.scale {
        let _ = write!(command, " --scale {}", f64::from(milli) / 1000.0);
    }
    if args.seeds != 1 {
        let _ = write!(command, " --seeds {}", args.seeds);
    }
    if args.no_kit {
        command += " --no-kit";
    }
    if let Some(lab) = &args.lab {
        let _ = write!(command, " --lab {lab}");
    }
    command
}
