//! From the exit reason, qualification and information fields to [`Exit`] (Intel SDM 3, 27.2 and appendix C).

use super::field::exit as field;
use crate::arch::addr::{Gpa, Gva};
use crate::arch::state::Gpr;
use crate::arch::task::{TaskSource, TaskSwitch};
use crate::arch::{Access, Exception, RegMove, vector};
pub use crate::virt::event;
use crate::virt::exit::{Exit, IoExit};

/// Basic exit reasons.
#[allow(missing_docs)]
pub mod reason {
    pub const EXCEPTION: u32 = 0;
    pub const INTERRUPT: u32 = 1;
    pub const TRIPLE_FAULT: u32 = 2;
    pub const INIT: u32 = 3;
    pub const INTERRUPT_WINDOW: u32 = 7;
    pub const NMI_WINDOW: u32 = 8;
    pub const TASK_SWITCH: u32 = 9;
    pub const CPUID: u32 = 10;
    pub const GETSEC: u32 = 11;
    pub const HLT: u32 = 12;
    pub const INVD: u32 = 13;
    pub const INVLPG: u32 = 14;
    pub const RDPMC: u32 = 15;
    pub const VMCALL: u32 = 18;
    pub const VMXON: u32 = 27;
    pub const CONTROL_REGISTER: u32 = 28;
    pub const DEBUG_REGISTER: u32 = 29;
    pub const IO: u32 = 30;
    pub const RDMSR: u32 = 31;
    pub const WRMSR: u32 = 32;
    pub const BAD_MSR: u32 = 34;
    pub const MWAIT: u32 = 36;
    pub const MONITOR: u32 = 39;
    pub const PAUSE: u32 = 40;
    pub const MACHINE_CHECK: u32 = 41;
    pub const TPR_BELOW_THRESHOLD: u32 = 43;
    pub const EPT_VIOLATION: u32 = 48;
    pub const EPT_MISCONFIGURATION: u32 = 49;
    pub const INVEPT: u32 = 50;
    pub const PREEMPTION_TIMER: u32 = 52;
    pub const INVVPID: u32 = 53;
    pub const WBINVD: u32 = 54;
    pub const XSETBV: u32 = 55;
    pub const INVPCID: u32 = 58;
    /// The entry failed. Also set in our own codes for VMLAUNCH and VMRESUME that failed.
    pub const ENTRY_FAILED: u32 = 1 << 31;
}

/// Whether an exit for this reason can interrupt the delivery of an event (SDM 3, 27.2.4).
#[inline(always)]
pub fn may_interrupt_delivery(reason: u32) -> bool {
    matches!(
        reason,
        reason::EXCEPTION | reason::TASK_SWITCH | reason::EPT_VIOLATION | reason::EPT_MISCONFIGURATION
    )
}

/// Decodes an exit; `read` reads a read-only field.
pub fn exit(reason: u32, read: impl Fn(u32) -> u64) -> Exit {
    match reason {
        reason::CPUID => Exit::Cpuid,
        reason::WRMSR => Exit::Wrmsr,
        reason::RDMSR => Exit::Rdmsr,
        reason::HLT => Exit::Hlt,
        // No linear address is needed: the emulator walks the guest's tables itself.
        reason::EPT_VIOLATION => violation(read(field::QUALIFICATION), Gpa(read(field::GUEST_PHYSICAL))),
        reason::CONTROL_REGISTER => control_register(read(field::QUALIFICATION)),
        reason::INVLPG => Exit::Invlpg(Some(Gva(read(field::QUALIFICATION)))),
        // The timer bounds how late an interrupt can be on processors that overlook it.
        reason::INTERRUPT | reason::PREEMPTION_TIMER => Exit::Interrupt,
        reason::INTERRUPT_WINDOW | reason::TPR_BELOW_THRESHOLD => Exit::InterruptWindow,
        _ => rare(reason, read),
    }
}

#[cold]
#[inline(never)]
fn rare(reason: u32, read: impl Fn(u32) -> u64) -> Exit {
    match reason {
        reason::EXCEPTION => exception(read),
        reason::DEBUG_REGISTER => debug_register(read(field::QUALIFICATION)),
        reason::TRIPLE_FAULT => Exit::Shutdown,
        reason::INIT => Exit::Init,
        reason::NMI_WINDOW => Exit::NmiWindow,
        reason::TASK_SWITCH => Exit::TaskSwitch(task_switch(read)),
        // INVD exits always; both do nothing, for no guest has a device that goes past the caches.
        reason::INVD | reason::WBINVD => Exit::Wbinvd,
        reason::RDPMC => Exit::Rdpmc,
        reason::VMCALL => Exit::Hypercall,
        reason::GETSEC | 19..=reason::VMXON | reason::INVEPT | reason::INVVPID => Exit::VirtInstruction,
        reason::MWAIT | reason::MONITOR => Exit::Mwait,
        reason::PAUSE => Exit::Pause,
        reason::XSETBV => Exit::Xsetbv,
        reason::INVPCID => Exit::Invpcid,
        failed if failed & reason::ENTRY_FAILED != 0 => Exit::InvalidState,
        _ => Exit::Unknown {
            code: reason.into(),
            info1: read(field::QUALIFICATION),
            info2: read(field::GUEST_PHYSICAL),
        },
    }
}

/// The access of an I/O exit, without the next RIP. SDM 3, table 27-5.
#[inline(always)]
pub fn io(qualification: u64, next_rip: u64) -> IoExit {
    IoExit {
        port: (qualification >> 16) as u16,
        size: (qualification & 7) as u8 + 1,
        input: qualification & 1 << 3 != 0,
        string: qualification & 1 << 4 != 0,
        next_rip: Some(next_rip),
    }
}

/// SDM 3, table 27-7. With accessed and dirty bits a walk counts as a write, and bit 0 may be clear for it.
fn violation(qualification: u64, gpa: Gpa) -> Exit {
    const LINEAR_VALID: u64 = 1 << 7;
    const TRANSLATED: u64 = 1 << 8;
    Exit::NestedFault {
        gpa,
        access: Access {
            write: qualification & 1 << 1 != 0,
            execute: qualification & 1 << 2 != 0,
            // EPT tells user from supervisor nowhere, and nothing below asks.
            user: false,
        },
        present: qualification & 7 << 3 != 0,
        walk: qualification & (LINEAR_VALID | TRANSLATED) == LINEAR_VALID,
    }
}

/// SDM 3, table 27-3.
fn control_register(qualification: u64) -> Exit {
    let gpr = Gpr::from_encoding((qualification >> 8) as u8);
    let index = (qualification & 0xf) as u8;
    Exit::ControlReg(match qualification >> 4 & 3 {
        0 => RegMove { index, write: true, gpr: Some(gpr) },
        1 => RegMove { index, write: false, gpr: Some(gpr) },
        // CLTS and LMSW: both write CR0, and are decoded from memory, as on AMD-V without decode assists.
        _ => RegMove { index: 0, write: true, gpr: None },
    })
}

/// SDM 3, table 27-4.
fn debug_register(qualification: u64) -> Exit {
    Exit::DebugReg(RegMove {
        index: (qualification & 7) as u8,
        write: qualification & 1 << 4 == 0,
        gpr: Some(Gpr::from_encoding((qualification >> 8) as u8)),
    })
}

/// The address and error code, if this is a page fault.
#[inline(always)]
pub fn page_fault(interruption: u32, read: impl Fn(u32) -> u64) -> Option<(Gva, u32)> {
    const PAGE_FAULT: u32 = event::VALID | event::HARDWARE_EXCEPTION | vector::PF as u32;
    let is_fault = interruption & (event::VALID | event::TYPE | event::VECTOR) == PAGE_FAULT;
    is_fault.then(|| (Gva(read(field::QUALIFICATION)), read(field::INTERRUPTION_ERROR) as u32))
}

/// SDM 3, table 27-2.
fn task_switch(read: impl Fn(u32) -> u64) -> TaskSwitch {
    let qualification = read(field::QUALIFICATION);
    let source = match qualification >> 30 & 3 {
        0 => TaskSource::Call,
        1 => TaskSource::Iret,
        2 => TaskSource::Jump,
        _ => {
            // Which gate, the event says whose delivery the switch is part of.
            let word = read(field::VECTORING) as u32;
            let error = (word & event::ERROR_VALID != 0).then(|| read(field::VECTORING_ERROR) as u32);
            TaskSource::Gate(event::of_gate(word, error))
        }
    };
    TaskSwitch { selector: qualification as u16, source }
}

fn exception(read: impl Fn(u32) -> u64) -> Exit {
    let info = read(field::INTERRUPTION) as u32;
    if info & event::TYPE == event::NMI {
        return Exit::Nmi;
    }
    let number = (info & event::VECTOR) as u8;
    Exit::Exception(Exception {
        vector: number,
        error: (info & event::ERROR_VALID != 0).then(|| read(field::INTERRUPTION_ERROR) as u32),
        cr2: (number == vector::PF).then(|| read(field::QUALIFICATION)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::task::GateEvent;

    fn decode(reason: u32, fields: &[(u32, u64)]) -> Exit {
        let find = |field| fields.iter().find(|(f, _)| *f == field).map(|(_, value)| *value);
        exit(reason, |field| find(field).unwrap_or_else(|| panic!("reads field {field:#x}")))
    }

    #[test]
    fn io_words() {
        let out = IoExit { port: 0x3f8, size: 1, input: false, string: false, next_rip: Some(0x1234) };
        assert_eq!(io(0x03f8_0000, 0x1234), out);
        let ins = IoExit { port: 0x1f0, size: 4, input: true, string: true, next_rip: Some(7) };
        assert_eq!(io(0x01f0_0000 | 1 << 5 | 1 << 4 | 1 << 3 | 3, 7), ins);
    }

    #[test]
    fn violation_words() {
        let fault = |qualification| {
            decode(48, &[(field::QUALIFICATION, qualification), (field::GUEST_PHYSICAL, 0xfee0_0000)])
        };
        let expect =
            |access, present, walk| Exit::NestedFault { gpa: Gpa(0xfee0_0000), access, present, walk };
        assert_eq!(fault(0x181), expect(Access::READ, false, false));
        assert_eq!(fault(0x182), expect(Access::WRITE, false, false));
        assert_eq!(fault(0x184), expect(Access::FETCH, false, false));
        assert_eq!(fault(0x1aa), expect(Access::WRITE, true, false));
        // A walk, with accessed and dirty bits; one that loads page-directory pointers.
        assert_eq!(fault(0x82), expect(Access::WRITE, false, true));
        assert_eq!(fault(0x01), expect(Access::READ, false, false));
    }

    #[test]
    fn register_moves() {
        let control = |qualification| decode(28, &[(field::QUALIFICATION, qualification)]);
        let to_cr3 = RegMove { index: 3, write: true, gpr: Some(Gpr::R9) };
        assert_eq!(control(0x903), Exit::ControlReg(to_cr3));
        assert_eq!(control(0x913), Exit::ControlReg(RegMove { write: false, ..to_cr3 }));
        let machine_status = RegMove { index: 0, write: true, gpr: None };
        assert_eq!(control(0x20), Exit::ControlReg(machine_status));
        assert_eq!(control(0x1234_0030), Exit::ControlReg(machine_status));
        let dr7 = RegMove { index: 7, write: true, gpr: Some(Gpr::Rbx) };
        assert_eq!(decode(29, &[(field::QUALIFICATION, 0x307)]), Exit::DebugReg(dr7));
        let from = Exit::DebugReg(RegMove { index: 6, write: false, gpr: Some(Gpr::Rax) });
        assert_eq!(decode(29, &[(field::QUALIFICATION, 0x16)]), from);
    }

    #[test]
    fn task_switches() {
        let fields = [
            (field::QUALIFICATION, 3 << 30 | 0x28),
            (field::VECTORING, 0x8000_0b0d),
            (field::VECTORING_ERROR, 0x18),
        ];
        let event = GateEvent { software: false, fault: true, error: Some(0x18) };
        let gate = TaskSwitch { selector: 0x28, source: TaskSource::Gate(event) };
        assert_eq!(decode(9, &fields), Exit::TaskSwitch(gate));
        for (number, source) in [(0, TaskSource::Call), (1, TaskSource::Iret), (2, TaskSource::Jump)] {
            let exit = Exit::TaskSwitch(TaskSwitch { selector: 0x30, source });
            assert_eq!(decode(9, &[(field::QUALIFICATION, number << 30 | 0x30)]), exit);
        }
    }

    #[test]
    fn exceptions_carry_their_words() {
        let pf = [
            (field::INTERRUPTION, 0x8000_0b0e),
            (field::INTERRUPTION_ERROR, 6),
            (field::QUALIFICATION, 0x7000),
        ];
        let expect = Exception { vector: 14, error: Some(6), cr2: Some(0x7000) };
        assert_eq!(decode(0, &pf), Exit::Exception(expect));
        assert_eq!(decode(0, &[(field::INTERRUPTION, 0x8000_0306)]), Exit::Exception(Exception::UD));
        assert_eq!(decode(0, &[(field::INTERRUPTION, 0x8000_0202)]), Exit::Nmi);
        let read = |field| pf.iter().find(|(f, _)| *f == field).unwrap().1;
        assert_eq!(page_fault(0x8000_0b0e, read), Some((Gva(0x7000), 6)));
        assert_eq!(page_fault(0x8000_0202, read), None);
        assert_eq!(page_fault(0x8000_0b0d, read), None);
    }

    #[test]
    fn instructions_of_vmx_and_the_rest() {
        for reason in [11, 19, 20, 21, 22, 23, 24, 25, 26, 27, 50, 53] {
            assert_eq!(decode(reason, &[]), Exit::VirtInstruction, "{reason}");
        }
        assert_eq!(decode(18, &[]), Exit::Hypercall);
        assert_eq!(decode(14, &[(field::QUALIFICATION, 0x1000)]), Exit::Invlpg(Some(Gva(0x1000))));
        assert_eq!(decode(52, &[]), Exit::Interrupt);
        assert_eq!(decode(0x8000_0021, &[]), Exit::InvalidState);
        let info = [(field::QUALIFICATION, 5), (field::GUEST_PHYSICAL, 0x9000)];
        assert_eq!(decode(49, &info), Exit::Unknown { code: 49, info1: 5, info2: 0x9000 });
    }
}
