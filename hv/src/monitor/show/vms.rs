//! All VMs, a line for each.

use core::fmt::{self, Write};

use super::{Bytes, Seconds};
use crate::monitor::vms::Vms;

/// The list. A star is before the one that is looked at, and `console` behind the one that has it.
pub fn list(vms: &mut impl Vms, selected: usize, answer: &mut dyn Write) -> fmt::Result {
    writeln!(
        answer,
        "  {:<16} {:<8} {:>9} {:>5} {:>12} {:>12} {:>12}  mode",
        "name", "state", "memory", "VCPUs", "uptime", "CPU time", "exits"
    )?;
    for vm in 0..vms.count() {
        let summary = vms.summary(vm);
        let (state, khz) = (vms.state(vm), vms.tsc_khz());
        write!(answer, "{} {:<16} {state:<8}", if vm == selected { '*' } else { ' ' }, vms.name(vm))?;
        if let Some(summary) = summary {
            let seconds = |ticks| Seconds { ticks, khz };
            write!(
                answer,
                " {:>9} {:>5} {:>12} {:>12} {:>12}  {}",
                Bytes(summary.memory_bytes),
                summary.vcpus,
                seconds(summary.uptime),
                seconds(summary.ran),
                summary.exits,
                summary.mode
            )?;
        }
        writeln!(answer, "{}", if vms.count() > 1 && vm == vms.console() { "  console" } else { "" })?;
    }
    Ok(())
}
