//! `--stats FILE`: what the hypervisor counted, as JSON. `docs/telemetry.md` is the schema.

use std::{
    fs::{self, OpenOptions},
    path::Path,
};

use abi::telemetry::EndReason;
use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{session::Outcome, telemetry};
use crate::{
    cli::{RunArgs, value_name},
    status::Usage,
};

/// Finds out early whether the file can be written.
///
/// # Errors
/// [`Usage`].
pub fn check(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|error| Usage::new(format!("--stats {}: {error}", path.display())))?;
    Ok(())
}

/// Writes the file.
///
/// # Errors
/// No space, no permission.
pub fn write(path: &Path, args: &RunArgs, outcome: &Outcome, status: u8) -> Result<()> {
    let hypervisor = args.machine.has_hypervisor();
    // Of several guests each may have another, which their statistics tell.
    let one = hypervisor && args.config.is_none();
    let mode = if one { Value::String(args.mode.to_string()) } else { Value::Null };
    let vms: Vec<_> = outcome
        .seen
        .guests
        .iter()
        .map(|guest| {
            let end = guest.end.as_ref().map(|end| end.reason.map_or("other", EndReason::name));
            json!({ "name": guest.name, "end": end, "command": guest.command_status })
        })
        .collect();
    let document = json!({
        "schema": telemetry::VERSION,
        "machine": value_name(args.machine),
        "mode": mode,
        "icount": args.has_icount() || args.machine.is_bochs(),
        "status": status,
        "host": outcome.host,
        "vms": if hypervisor { vms } else { Vec::new() },
        "guests": outcome.stats,
    });
    let text = serde_json::to_string_pretty(&document)? + "\n";
    fs::write(path, text).with_context(|| format!("--stats {}", path.display()))
}
