//! What the VMCS says about the last exit, or about an entry that failed.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;

use super::Vmx;
use super::cache::Field;
use super::decode::reason;
use super::field::exit;
use super::instr::{self, FAIL_INVALID, FAIL_VALID, vmread};
use super::rules::{self, Facts};
use crate::virt::Virt;

impl Vmx {
    /// The fields that describe the last exit; after a failed entry, the rules that it broke.
    pub(super) fn report(&self) -> String {
        match &self.last_report {
            _ if self.live.get() => self.current_report(),
            _ if self.home == 0 => "not entered yet".into(),
            Some(report) => report.clone(),
            None => format!(
                "VMCS: exit {:#x} vectoring {:#x} interruptibility {:#x}; on no PCPU since",
                self.reason,
                self.vectoring,
                self.cache.get(Field::Interruptibility)
            ),
        }
    }

    /// Before the VMCS leaves the processor: what only it knows about a failed entry.
    pub(super) fn keep_report(&mut self) {
        let failed = self.reason & reason::ENTRY_FAILED != 0;
        self.last_report = failed.then(|| self.current_report());
    }

    /// The report while the VMCS is current.
    fn current_report(&self) -> String {
        if self.reason == FAIL_INVALID {
            return "VMCS: no VMCS is current".into();
        }
        // SAFETY: the VMCS is current since the first entry.
        let read = |field| if self.lacks(field) { 0 } else { unsafe { vmread(field) } };
        let qualification = read(exit::QUALIFICATION);
        let mut text = format!(
            "VMCS: exit {:#x} qualification {:#x} interruption {:#x} vectoring {:#x} interruptibility {:#x}",
            self.reason,
            qualification,
            read(exit::INTERRUPTION),
            self.vectoring,
            self.cache.get(Field::Interruptibility),
        );
        if self.reason & reason::ENTRY_FAILED == 0 {
            return text;
        }
        // SAFETY: a processor that runs guests has the MSRs that describe VMX.
        let facts = Facts::read(self.features, self.task_priority(), |msr| unsafe { instr::read_msr(msr) });
        let found = if self.reason == FAIL_VALID {
            let error = read(exit::INSTRUCTION_ERROR);
            // Writing to a string cannot fail.
            let _ = write!(text, "; VM-instruction error {error}: {}", instruction_error(error));
            if !matches!(error, 7 | 8) {
                return text;
            }
            rules::of_instruction_error(error, &read, &facts)
        } else {
            rules::of_exit(self.reason, qualification, &read, &facts)
        };
        text.push_str("; broken: ");
        text.push_str(if found.is_empty() { "no rule that is known here" } else { "" });
        text.push_str(&found.join("; "));
        text
    }
}

/// SDM 3, 30.4: those that an entry can end with.
fn instruction_error(number: u64) -> &'static str {
    match number {
        4 => "VMLAUNCH with a VMCS that is not clear",
        5 => "VMRESUME with a VMCS that was not launched",
        6 => "VMRESUME after VMXOFF and VMXON",
        7 => "invalid control fields",
        8 => "invalid host-state fields",
        16 | 17 | 18 | 25 => "the executive VMCS, which is for SMM",
        26 => "events blocked by MOV SS",
        _ => "see the manual",
    }
}
