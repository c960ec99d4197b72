//! Options of `pal top`.

use clap::Args;

/// The options.
#[derive(Args)]
#[command(after_help = crate::cli::help::TOP)]
pub struct TopArgs {
    /// The machine, by its name in `cargo pal ps`. Default: the only one
    pub name: Option<String>,
    /// Seconds between refreshes, 0.1 to 3600
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_delay)]
    pub delay: f64,
    /// Print each refresh as text, one after the other; so it is without a terminal, too
    #[arg(short, long)]
    pub batch: bool,
    /// Print one refresh as text and end, like -b -n 1
    #[arg(long, conflicts_with = "iterations")]
    pub once: bool,
    /// End after this number of refreshes
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: Option<u64>,
}

impl TopArgs {
    /// Refreshes until the end.
    pub fn refreshes(&self) -> u64 {
        if self.once { 1 } else { self.iterations.unwrap_or(u64::MAX) }
    }
}

/// Reads a delay.
///
/// # Errors
/// What it can be.
pub fn parse_delay(word: &str) -> Result<f64, String> {
    let seconds = word.trim().parse().ok().filter(|seconds: &f64| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "a delay is 0.1 to 3600 seconds".into())
}
