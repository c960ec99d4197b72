//! `pal`: everything a person does with Palimpsest.

mod bench;
mod cli;
mod compare;
mod doctor;
mod fuzz;
mod guest;
mod host;
mod image;
mod kit;
mod lab;
mod progress;
mod project;
mod replace;
mod report;
mod reproduce;
mod root;
mod run;
mod samples;
mod status;
mod sweep;
mod test;
mod top;
mod train;
mod ui;
mod workload;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use cli::{Cli, Command};
use project::Project;
use run::remote;
use ui::Ui;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ui = Ui::new(match &cli.command {
        Command::Run(args) => args.verbose,
        _ => 0,
    });
    match Project::locate().and_then(|project| perform(&cli.command, &project, &ui)) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            ui.error(&format!("{error:#}"));
            ExitCode::from(status::of(&error))
        }
    }
}

fn perform(command: &Command, project: &Project, ui: &Ui) -> Result<u8> {
    match command {
        Command::Run(args) => run::run(args, project, ui),
        Command::Test(args) => test::run(args, project, ui),
        Command::Fuzz(args) => fuzz::run(args, project, ui),
        Command::Bench(args) => bench::run(args, project, ui),
        Command::Image(args) => image::run(args, project, ui),
        Command::Lab(args) => lab::run(args, project, ui),
        Command::Workload(args) => workload::run(args, project, ui),
        Command::Compare(args) => compare::run(args, project, ui),
        Command::Sweep(args) => sweep::run(args, project, ui),
        Command::Reproduce(args) => reproduce::run(args, project, ui),
        Command::Calibrate(args) => reproduce::region::calibrate::run(args, project, ui),
        Command::Replace(args) => replace::run(args, ui),
        Command::Kernel(args) => {
            println!("{}", host::needs::Needs { project, ui, yes: false }.kernel(args.guest)?.display());
            Ok(0)
        }
        Command::Kit(args) => kit::run(args, &host::needs::Needs { project, ui, yes: args.yes }),
        Command::Root(args) => root::run(args, project, ui),
        Command::Report(args) => report::run(args, ui),
        Command::Train(args) => train::train(args, project, ui),
        Command::Evaluate(args) => train::evaluate(args, project, ui),
        Command::Top(args) => top::run(args, project, ui),
        Command::Ps => remote::client::list(project, ui),
        Command::Console(args) => remote::client::console(args.name.as_deref(), project, ui),
        Command::Monitor(args) => remote::client::monitor(args.name.as_deref(), &args.command, project, ui),
        Command::Tier(args) => remote::client::tier(args, project, ui),
        Command::Stop(args) => remote::client::stop(args.name.as_deref(), project, ui),
        Command::Doctor => doctor::run(project, ui),
    }
}
