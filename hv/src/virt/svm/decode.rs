//! From the VMCB's exit code and information words to [`Exit`] (AMD APM 2, appendix C and 15.9 to 15.25).

use super::vmcb::{Vmcb, event, exit_code as code};
use crate::arch::addr::{Gpa, Gva};
use crate::arch::state::Gpr;
use crate::arch::task::{TaskSource, TaskSwitch};
use crate::arch::{Access, Exception, RegMove, vector};
use crate::virt::Ended;
use crate::virt::exit::{Exit, IoExit, control};

/// The exits that have fast paths.
#[inline(always)]
pub fn ended(vmcb: &Vmcb, assists: bool) -> Ended {
    const CPUID: u32 = code::CPUID as u32;
    const LAST_CR: u32 = code::LAST_CR as u32;
    let raw = vmcb.exit_code;
    // In this order, and by the lower half of the code, so that the compiler does not make one search of all.
    match raw as u32 {
        CPUID => return Ended::Cpuid,
        // Only with shadow tables is it intercepted (and while an IRET is stepped over).
        _ if raw == code::PAGE_FAULT => {
            return Ended::PageFault(Gva(vmcb.exit_info2), vmcb.exit_info1 as u32);
        }
        // As the processor numbers them.
        access @ ..=LAST_CR => {
            return Ended::ControlReg { access: access as u8, gpr: operand(vmcb, assists) };
        }
        _ => {}
    }
    match raw {
        code::CR0_SEL_WRITE => Ended::ControlReg { access: control::WRITE, gpr: operand(vmcb, assists) },
        code::IOIO => Ended::Io(io(vmcb)),
        _ => Ended::Other,
    }
}

/// Decodes the exit that `vmcb` reports. `assists`: the processor has decode assists, so that the information words
/// of register moves and INVLPG are valid.
#[inline]
pub fn exit(vmcb: &Vmcb, assists: bool) -> Exit {
    match vmcb.exit_code {
        code::CPUID => Exit::Cpuid,
        code::IOIO => Exit::Io(io(vmcb)),
        // The exit code is the same for both directions.
        code::MSR if vmcb.exit_info1 & 1 != 0 => Exit::Wrmsr,
        code::MSR => Exit::Rdmsr,
        code::HLT => Exit::Hlt,
        code::NESTED_FAULT => nested_fault(vmcb),
        code::CR_READ..=code::LAST_CR => {
            Exit::ControlReg(reg_move(vmcb, vmcb.exit_code & 0x10 != 0, assists))
        }
        code::CR0_SEL_WRITE => Exit::ControlReg(RegMove { index: 0, ..reg_move(vmcb, true, assists) }),
        code::INVLPG => Exit::Invlpg(assists.then_some(Gva(vmcb.exit_info1))),
        code::INTR => Exit::Interrupt,
        code::VINTR => Exit::InterruptWindow,
        _ => rare(vmcb, assists),
    }
}

#[cold]
#[inline(never)]
fn rare(vmcb: &Vmcb, assists: bool) -> Exit {
    let raw = vmcb.exit_code;
    // QEMU's emulation writes only the lower half of VMEXIT_INVALID.
    if raw as u32 == code::INVALID_LOW {
        return Exit::InvalidState;
    }
    match raw {
        code::DR_READ..=code::LAST_DR => Exit::DebugReg(RegMove {
            gpr: assists.then(|| Gpr::from_encoding(vmcb.exit_info1 as u8)),
            index: (raw & 0xf) as u8,
            write: raw >= code::DR_WRITE,
        }),
        code::EXCEPTION..=code::LAST_EXCEPTION => {
            Exit::Exception(exception(vmcb, (raw - code::EXCEPTION) as u8))
        }
        code::NMI => Exit::Nmi,
        code::INIT => Exit::Init,
        code::TR_WRITE => Exit::LoadTask,
        code::RDPMC => Exit::Rdpmc,
        code::RDTSC => Exit::Rdtsc,
        code::RDTSCP => Exit::Rdtscp,
        // It is intercepted only while an NMI waits for the end of another's handler.
        code::IRET => Exit::NmiWindow,
        code::INVD | code::WBINVD => Exit::Wbinvd,
        code::PAUSE => Exit::Pause,
        code::TASK_SWITCH => Exit::TaskSwitch(task_switch(vmcb)),
        code::SHUTDOWN => Exit::Shutdown,
        code::VMMCALL => Exit::Hypercall,
        code::INVLPGA | code::VMRUN | code::VMLOAD..=code::SKINIT | code::RDPRU => Exit::VirtInstruction,
        // The armed MWAIT has a code of its own (APM 2, appendix C), and the guest must not get at either.
        code::MONITOR | code::MWAIT | code::MWAIT_ARMED => Exit::Mwait,
        code::XSETBV => Exit::Xsetbv,
        code::INVPCID => Exit::Invpcid,
        _ => Exit::Unknown { code: raw, info1: vmcb.exit_info1, info2: vmcb.exit_info2 },
    }
}

/// APM 2, 15.10.2.
#[inline(always)]
pub fn io(vmcb: &Vmcb) -> IoExit {
    let info = vmcb.exit_info1;
    IoExit {
        port: (info >> 16) as u16,
        // Bits 4, 5, 6 say 1, 2 or 4 bytes.
        size: (info >> 4 & 7) as u8,
        input: info & 1 != 0,
        string: info & 1 << 2 != 0,
        // Every processor stores it for I/O, also one without NRIP save (APM 2, 15.10.2).
        next_rip: Some(vmcb.exit_info2),
    }
}

/// APM 2, 15.25.6: bits 4:0 are those of a page fault's error code, bit 33 tells a walk of the guest's tables from the access
/// that needed it.
#[inline(always)]
fn nested_fault(vmcb: &Vmcb) -> Exit {
    let info = vmcb.exit_info1;
    Exit::NestedFault {
        gpa: Gpa(vmcb.exit_info2),
        access: Access { write: info & 1 << 1 != 0, execute: info & 1 << 4 != 0, user: info & 1 << 2 != 0 },
        present: info & 1 != 0,
        walk: info & 1 << 33 != 0,
    }
}

#[inline(always)]
fn reg_move(vmcb: &Vmcb, write: bool, assists: bool) -> RegMove {
    RegMove { index: (vmcb.exit_code & 0xf) as u8, write, gpr: operand(vmcb, assists) }
}

/// APM 2, 15.8.1: with decode assists bit 63 marks a MOV, bits 3:0 name its operand.
#[inline(always)]
fn operand(vmcb: &Vmcb, assists: bool) -> Option<Gpr> {
    let is_mov = assists && vmcb.exit_info1 >> 63 != 0;
    is_mov.then(|| Gpr::from_encoding(vmcb.exit_info1 as u8))
}

/// Information of a task switch: IRET asks for it.
const TASK_RETURN: u64 = 1 << 36;

/// Makes the exit of an IRET that of the task switch that it is. To which task, the back link says.
pub fn make_task_return(vmcb: &mut Vmcb) {
    vmcb.exit_code = code::TASK_SWITCH;
    (vmcb.exit_info1, vmcb.exit_info2) = (0, TASK_RETURN);
}

/// APM 2, 15.14.1.
fn task_switch(vmcb: &Vmcb) -> TaskSwitch {
    const JUMP: u64 = 1 << 38;
    const HAS_ERROR: u64 = 1 << 44;
    let (selector, info) = (vmcb.exit_info1 as u16, vmcb.exit_info2);
    let event = vmcb.exit_int_info;
    let source = match () {
        () if info & TASK_RETURN != 0 => TaskSource::Iret,
        () if info & JUMP != 0 => TaskSource::Jump,
        () if event & event::VALID != 0 => {
            let error = (info & HAS_ERROR != 0).then_some(info as u32);
            TaskSource::Gate(crate::virt::event::of_gate(event as u32, error))
        }
        () => TaskSource::Call,
    };
    TaskSwitch { selector, source }
}

fn exception(vmcb: &Vmcb, number: u8) -> Exception {
    let pushes_error = matches!(
        number,
        vector::DF | vector::TS | vector::NP | vector::SS | vector::GP | vector::PF | vector::AC
    );
    Exception {
        vector: number,
        error: pushes_error.then_some(vmcb.exit_info1 as u32),
        cr2: (number == vector::PF).then_some(vmcb.exit_info2),
    }
}

/// The control block's own words about the last exit.
#[cold]
pub fn report(v: &Vmcb) -> alloc::string::String {
    alloc::format!(
        "VMCB: exit {:#x} info {:#x} {:#x} event {:#x} int_ctl {:#x} shadow {} nCR3 {:#x}",
        v.exit_code,
        v.exit_info1,
        v.exit_info2,
        v.exit_int_info,
        v.int_ctl,
        v.int_state & 1,
        v.nested_cr3
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::task::GateEvent;

    fn decode(raw: u64, info1: u64, info2: u64, assists: bool) -> Exit {
        let mut vmcb = Vmcb::new_boxed();
        vmcb.exit_code = raw;
        vmcb.exit_info1 = info1;
        vmcb.exit_info2 = info2;
        exit(&vmcb, assists)
    }

    #[test]
    fn io_words() {
        let out =
            Exit::Io(IoExit { port: 0x3f8, size: 1, input: false, string: false, next_rip: Some(0x1234) });
        assert_eq!(decode(0x7b, 0x03f8_0000 | 1 << 4, 0x1234, false), out);
        let ins = Exit::Io(IoExit { port: 0x1f0, size: 4, input: true, string: true, next_rip: Some(7) });
        assert_eq!(decode(0x7b, 0x01f0_0000 | 1 << 6 | 1 << 3 | 1 << 2 | 1, 7, false), ins);
    }

    #[test]
    fn nested_fault_words() {
        let exit = decode(0x400, 1 << 33 | 0b110, 0xfee0_0000, false);
        let access = Access { write: true, execute: false, user: true };
        assert_eq!(exit, Exit::NestedFault { gpa: Gpa(0xfee0_0000), access, present: false, walk: true });
    }

    #[test]
    fn register_moves_need_decode_assists() {
        let with = RegMove { index: 4, write: true, gpr: Some(Gpr::R9) };
        assert_eq!(decode(0x14, 1 << 63 | 9, 0, true), Exit::ControlReg(with));
        assert_eq!(decode(0x14, 1 << 63 | 9, 0, false), Exit::ControlReg(RegMove { gpr: None, ..with }));
        // CLTS and LMSW have bit 63 clear.
        let clts = RegMove { index: 0, write: true, gpr: None };
        assert_eq!(decode(0x10, 0, 0, true), Exit::ControlReg(clts));
        let dr7 = RegMove { index: 7, write: true, gpr: Some(Gpr::Rax) };
        assert_eq!(decode(0x37, 0, 0, true), Exit::DebugReg(dr7));
    }

    #[test]
    fn task_switch_words() {
        let of = |info2, event| {
            let mut vmcb = Vmcb::new_boxed();
            (vmcb.exit_code, vmcb.exit_info1) = (code::TASK_SWITCH, 0x28);
            (vmcb.exit_info2, vmcb.exit_int_info) = (info2, event);
            let Exit::TaskSwitch(TaskSwitch { selector: 0x28, source }) = exit(&vmcb, false) else {
                panic!()
            };
            source
        };
        let gate = |software, fault, error| TaskSource::Gate(GateEvent { software, fault, error });
        assert_eq!(of(0, 0), TaskSource::Call);
        assert_eq!(of(1 << 38, 0), TaskSource::Jump);
        assert_eq!(of(1 << 36, 0), TaskSource::Iret);
        assert_eq!(of(1 << 44 | 0x18, 0x8000_0b0d), gate(false, true, Some(0x18)));
        assert_eq!(of(1 << 48, 0x8000_0306), gate(false, true, None));
        assert_eq!(of(0, 0x8000_0301), gate(false, false, None));
        assert_eq!(of(0, 0x8000_0303), gate(true, false, None));
        assert_eq!(of(0, 0x8000_0480), gate(true, false, None));
        assert_eq!(of(0, 0x8000_0040), gate(false, false, None));
        assert_eq!(of(0, 0x8000_0202), gate(false, false, None));
    }

    #[test]
    fn exceptions_carry_their_words() {
        let pf = Exception { vector: 14, error: Some(0x6), cr2: Some(0x7fff_0000) };
        assert_eq!(decode(0x4e, 6, 0x7fff_0000, false), Exit::Exception(pf));
        assert_eq!(decode(0x46, 0, 0, false), Exit::Exception(Exception::UD));
    }

    #[test]
    fn reads_of_the_tsc() {
        assert_eq!([0x6e, 0x87].map(|raw| decode(raw, 0, 0, false)), [Exit::Rdtsc, Exit::Rdtscp]);
    }

    #[test]
    fn invalid_in_either_width_and_unknown() {
        assert_eq!(decode(u64::MAX, 0, 0, true), Exit::InvalidState);
        assert_eq!(decode(0xffff_ffff, 0, 0, true), Exit::InvalidState);
        assert_eq!(decode(0x401, 2, 3, true), Exit::Unknown { code: 0x401, info1: 2, info2: 3 });
    }
}
