//! The rules that a VM entry checks (Intel SDM 3, 26.2 to 26.4): which of them are broken. For the report after an entry that
//! failed; plain functions of the fields and of what the processor says about itself.
//!
//! What the backend never asks for (APIC virtualization, posted interrupts, VM functions) has no rules here.

mod controls;
mod guest;
mod host;
mod segments;
#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::controls::processor;
use super::decode::reason;
use super::features::{Features, control_words, index};
use super::field::control;
use crate::arch::state::SegReg;

/// What the rules depend on beside the fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// The processor's features.
    pub features: Features,
    /// What it accepts in controls: pin-based, primary, exit, entry, secondary. The lower half must be 1, the upper half may be.
    pub words: [u64; 5],
    /// Activity states other than the active one that it has: HLT, shutdown, wait for SIPI.
    pub activities: u64,
    /// Exceptions are delivered with or without an error code, as one likes.
    pub free_error_codes: bool,
    /// Class of the virtual task priority.
    pub task_priority: u8,
}

impl Facts {
    /// Of the processor whose MSRs `rdmsr` reads.
    pub fn read(features: Features, task_priority: u8, rdmsr: impl Fn(u32) -> u64) -> Facts {
        let [pin, primary, exit, entry] = control_words(&rdmsr);
        let secondary =
            if (primary >> 32) as u32 & processor::SECONDARY != 0 { rdmsr(index::SECONDARY) } else { 0 };
        Facts {
            features,
            words: [pin, primary, exit, entry, secondary],
            activities: rdmsr(index::MISC) >> 6 & 7,
            free_error_codes: rdmsr(index::BASIC) & 1 << 56 != 0,
            task_priority,
        }
    }
}

/// The control or host-state rules that the VMCS breaks, for VM-instruction errors 7 and 8; empty if it breaks none of those that
/// are known here, or if the error is another one.
pub fn of_instruction_error(error: u64, read: &dyn Fn(u32) -> u64, facts: &Facts) -> Vec<String> {
    let mut check = Check { read, facts, found: Vec::new() };
    match error {
        7 => controls::check(&mut check),
        8 => host::check(&mut check),
        _ => {}
    }
    check.found
}

/// The rules that an entry broke which ended as an exit for this reason.
pub fn of_exit(failed: u32, qualification: u64, read: &dyn Fn(u32) -> u64, facts: &Facts) -> Vec<String> {
    match failed & 0xffff {
        reason::BAD_MSR => vec![format!("MSR number {qualification} of the entry's list cannot be loaded")],
        reason::MACHINE_CHECK => vec!["a machine check struck during the entry".to_string()],
        _ => {
            let mut check = Check { read, facts, found: Vec::new() };
            guest::check(&mut check);
            if check.found.is_empty() {
                check.found.extend(hint(qualification).map(str::to_string));
            }
            check.found
        }
    }
}

/// What the qualification says, where the fields do not tell (26.8).
fn hint(qualification: u64) -> Option<&'static str> {
    match qualification {
        2 => Some("the page-directory pointers at CR3 have reserved bits"),
        3 => Some("an NMI is delivered in an interrupt shadow"),
        4 => Some("the VMCS link pointer names no VMCS of this processor"),
        _ => None,
    }
}

/// The rules on their way through the fields.
struct Check<'a> {
    read: &'a dyn Fn(u32) -> u64,
    facts: &'a Facts,
    found: Vec<String>,
}

impl Check<'_> {
    fn get(&self, field: u32) -> u64 {
        (self.read)(field)
    }

    fn has(&self, field: u32, bit: u32) -> bool {
        self.get(field) & u64::from(bit) != 0
    }

    /// Whether a secondary control is set and counts.
    fn secondary(&self, bit: u32) -> bool {
        self.has(control::PROCESSOR_BASED, processor::SECONDARY) && self.has(control::SECONDARY, bit)
    }

    fn rule(&mut self, holds: bool, what: &str) {
        if !holds {
            self.found.push(what.to_string());
        }
    }

    fn rule_of(&mut self, seg: SegReg, holds: bool, what: &str) {
        if !holds {
            self.found.push(format!("{}: {what}", format!("{seg:?}").to_uppercase()));
        }
    }

    /// Whether these are the bits of a physical address.
    fn is_physical(&self, address: u64) -> bool {
        address >> self.facts.features.physical_bits.min(52) == 0
    }

    /// Whether this is the physical address of a page.
    fn is_page(&self, address: u64) -> bool {
        address & 0xfff == 0 && self.is_physical(address)
    }
}

/// Whether each byte of a PAT is a memory type.
fn is_pat(value: u64) -> bool {
    value.to_le_bytes().iter().all(|kind| matches!(kind, 0 | 1 | 4..=7))
}
