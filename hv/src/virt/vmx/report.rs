//! What the VMCS says about the last exit, or about an entry that failed.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;

use super::Vmx;
use super::cache::{Field, Part};
use super::controls::{entry, secondary};
use super::decode::reason;
use super::field::{control, exit};
use super::instr::{FAIL_INVALID, FAIL_VALID, vmread};
use super::rules::{GuestArea, SegmentFields, broken};
use crate::virt::state::ALL_SEGMENTS;

impl Vmx {
    /// The fields that describe the last exit; after a failed entry, the rules that it broke.
    pub(super) fn report(&self) -> String {
        if !self.live.get() {
            return "not entered yet".into();
        }
        if self.reason == FAIL_INVALID {
            return "VMCS: no VMCS is current".into();
        }
        // SAFETY: the VMCS is current since the first entry.
        let read = |field| unsafe { vmread(field) };
        let mut text = format!(
            "VMCS: exit {:#x} qualification {:#x} interruption {:#x} vectoring {:#x} interruptibility {:#x}",
            self.reason,
            read(exit::QUALIFICATION),
            read(exit::INTERRUPTION),
            self.vectoring,
            self.cache.get(Field::Interruptibility),
        );
        // Writing to a string cannot fail.
        let _ = match self.reason {
            FAIL_VALID => {
                let error = read(exit::INSTRUCTION_ERROR);
                write!(text, "; VM-instruction error {error}: {}", instruction_error(error))
            }
            failed if failed & reason::ENTRY_FAILED != 0 => self.write_broken_rules(&mut text),
            _ => Ok(()),
        };
        text
    }

    fn write_broken_rules(&self, text: &mut String) -> core::fmt::Result {
        let found = broken(&self.guest_area());
        let first = found.first().copied().unwrap_or("no rule that is known here");
        write!(text, "; broken: {first}")?;
        found.iter().skip(1).try_for_each(|rule| write!(text, "; {rule}"))
    }

    fn guest_area(&self) -> GuestArea {
        let get = |field| self.cache.get(field);
        // SAFETY: the VMCS is current since the first entry.
        let read = |field| unsafe { vmread(field) };
        GuestArea {
            cr0: get(Field::Cr0),
            cr3: get(Field::Cr3),
            cr4: get(Field::Cr4),
            efer: if self.features.switches_efer { get(Field::Efer) } else { 0 },
            dr7: get(Field::Dr7),
            rip: get(Field::Rip),
            rflags: get(Field::Rflags),
            interruptibility: get(Field::Interruptibility),
            pending_debug: get(Field::PendingDebug),
            tables: [
                [get(Field::GdtrBase), get(Field::GdtrLimit)],
                [get(Field::IdtrBase), get(Field::IdtrLimit)],
            ],
            segments: ALL_SEGMENTS.map(|seg| SegmentFields {
                selector: self.cache.segment(seg, Part::Selector),
                limit: self.cache.segment(seg, Part::Limit),
                rights: self.cache.segment(seg, Part::Rights),
                base: self.cache.segment(seg, Part::Base),
            }),
            event: read(control::ENTRY_INTERRUPTION),
            ia32e: read(control::ENTRY_CONTROLS) & u64::from(entry::IA32E_GUEST) != 0,
            unrestricted: get(Field::Secondary) & u64::from(secondary::UNRESTRICTED) != 0,
            cr0_ones: self.features.cr0_ones,
            cr4_ones: self.features.cr4_ones,
            cr4_allowed: self.features.cr4_allowed,
            physical_bits: self.features.physical_bits,
        }
    }
}

/// SDM 3, 30.4.
fn instruction_error(number: u64) -> &'static str {
    match number {
        4 => "VMLAUNCH with a VMCS that is not clear",
        5 => "VMRESUME with a VMCS that was not launched",
        7 => "invalid control fields",
        8 => "invalid host-state fields",
        26 => "events blocked by MOV SS",
        _ => "see the manual",
    }
}
