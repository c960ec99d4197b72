//! Options of `pal workload`.

use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  cargo pal workload list
  cargo pal workload run gups --lab westmere-x5660 --mode shadow
  cargo pal workload run phases --scale 2 --lab zen3 --policy dav2m
  cargo pal compare --workloads gups phases    several policies (docs/policies.md)";

/// Options of `pal workload`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct WorkloadArgs {
    /// What to do
    #[command(subcommand)]
    pub command: WorkloadCommand,
}

const RUN_EXAMPLES: &str = "\
Examples:
  cargo pal workload run chase                  instructions, guest and hypervisor
  cargo pal workload run chase --lab zen3       modelled cycles (docs/lab.md)
  cargo pal workload run chase --scale 0.1 --lab zen3 --deterministic --mode shadow
  cargo pal workload run fork-exec --lab zen3 --samples samples.jsonl
                                                and `cargo pal report samples.jsonl`
  cargo pal workload run gcc --lab opteron-2350 --deterministic --nested-page 4K
                                                a program of Debian's, which is fetched once

What follows the scale are options of `cargo pal run`, but for those that choose another guest. Without --lab time is counted in \
instructions; with --kit the guest counts its page faults (docs/guest-kit.md).

Exit status: 0; that of `cargo pal run` if the run failed; 1 if the guest did not do the work; 2 usage.";

/// What `pal workload` does.
#[derive(Subcommand)]
pub enum WorkloadCommand {
    /// List the workloads: what each does, and which published one it stands in for
    List,
    /// Run one as a guest, and print its time, its checksum and the changes of the mode meanwhile
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunWorkload),
}

/// Options of `pal workload run`.
#[derive(Args)]
pub struct RunWorkload {
    /// The workload, by its name in the list
    pub name: String,
    /// How much work, as a multiple of what the list says: from 0.001 to 1000
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = scale)]
    pub scale: u32,
    /// Options of `pal run`: --lab, --mode, --deterministic, …
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
}

/// Reads a scale: thousandths.
///
/// # Errors
/// It is no number, or out of range.
pub fn scale(text: &str) -> Result<u32, String> {
    let milli = text.parse::<f64>().map_err(|error| error.to_string())? * 1000.0;
    let (least, most) = (f64::from(*workloads::SCALES.start()), f64::from(*workloads::SCALES.end()));
    if (least..=most).contains(&milli) {
        Ok(milli.round() as u32)
    } else {
        Err("a number from 0.001 to 1000".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_thousandths() {
        assert_eq!(
            ["1", "0.05", "1000", ".001", "2.5"].map(|text| scale(text).unwrap()),
            [1000, 50, 1_000_000, 1, 2500]
        );
        for wrong in ["0", "-1", "x", "", "1001", "NaN", "inf", "0.0001"] {
            assert!(scale(wrong).is_err(), "{wrong}");
        }
    }
}
