//! Starts the performance counters of a PCPU: a lab machine's where `lab=` says that there are some, otherwise the processor's.

use alloc::format;
use alloc::string::String;

use super::backend::Backend;
use crate::boot::host::Host;
use crate::boot::{paging, percpu};
use crate::hw::pmu::{Counters, Listed, Pmu, lab::Lab};

/// The counters of the PCPU `index`, which executes this, if `counters=on` asks for them. Without any, the log says why.
pub fn start<B: Backend>(host: &Host, backend: &B, index: u32) -> Option<Counters> {
    if !host.options.counters {
        return None;
    }
    let mut counters = match host.options.lab {
        Some(address) => lab(address, index),
        None => backend.start_counters(),
    };
    let both = counters.read();
    if index == host.cpu.index {
        let (guest, host) = (Listed(&both.guest), Listed(&both.host));
        match counters {
            Counters::None => log::warn!(
                "this processor has no performance counters that tell guests and hypervisor apart: none are reported"
            ),
            _ => log::info!(
                "performance counters: {}; of guests {guest}; of the hypervisor {host}",
                counters.name()
            ),
        }
    }
    Some(counters)
}

fn lab(address: u64, index: u32) -> Counters {
    match map_lab(address, index) {
        Ok((lab, _)) => Counters::Lab(lab),
        Err(why) => {
            log::error!("{why}; no counters are reported");
            Counters::None
        }
    }
}

/// The last guest has ended: what follows on the PCPU that executes this does not count. Only a lab machine cares.
pub fn run_ends(host: &Host) {
    if let (Some(address), Some(index)) = (host.options.lab, percpu::current_index())
        && let Ok((lab, _)) = map_lab(address, index)
    {
        lab.run_ends();
    }
}

/// The lab machine's counters of the PCPU `index`, and the kHz of its cycles; or why there are none.
pub fn map_lab(address: u64, index: u32) -> Result<(Lab, u64), String> {
    if paging::map_memory(address..address.saturating_add(Lab::BYTES)).is_err() {
        return Err(format!("lab={address:#x}: no page can be mapped there"));
    }
    // SAFETY: the pages are mapped and never unmapped, and the command line's addresses are multiples of 4 KiB.
    unsafe { Lab::new(address, index) }.map_err(|why| format!("lab={address:#x}: {why}"))
}
