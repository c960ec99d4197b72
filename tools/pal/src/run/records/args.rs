//! Options of `pal run` for samples and traces.

use std::path::PathBuf;

use clap::Args;

/// The options.
#[derive(Args)]
pub struct RecordArgs {
    /// Write what each guest has done in every 10 ms to FILE as JSON lines: exits, faults, mode, processor time, performance
    /// counters if there are any (docs/telemetry.md)
    #[arg(long, value_name = "FILE", help_heading = "Samples and traces")]
    pub samples: Option<PathBuf>,
    /// Milliseconds between samples
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60_000), help_heading = "Samples and traces")]
    pub sample_ms: u32,
    /// Write every exit, every decision of the scheduler and every change of the mode to FILE, for https://ui.perfetto.dev
    #[arg(long, value_name = "FILE", help_heading = "Samples and traces")]
    pub trace: Option<PathBuf>,
    /// Take samples without a file, for `cargo pal top` in another shell. A run with a --name or a person at its console does
    /// so anyway, unless its time is deterministic
    #[arg(long, help_heading = "Samples and traces")]
    pub watch: bool,
    /// Show what the guests do on this terminal, as `cargo pal top` does; q leaves it for the console
    #[arg(long, help_heading = "Samples and traces")]
    pub top: bool,
}

impl RecordArgs {
    /// Whether samples were asked for.
    pub fn is_on(&self) -> bool {
        self.samples.is_some() || self.trace.is_some() || self.watch || self.top
    }
}
