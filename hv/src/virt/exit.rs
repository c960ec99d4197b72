//! Why the guest stopped, in words of the architecture: raw vendor codes never leave `virt`.

use crate::paging::addr::{Gpa, Gva};
use crate::virt::state::Gpr;

/// What an access to guest memory did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// A write (or a read-modify-write).
    pub write: bool,
    /// An instruction fetch.
    pub execute: bool,
    /// Made at CPL 3 (explicit user access).
    pub user: bool,
}

impl Access {
    /// A supervisor data read.
    pub const READ: Access = Access { write: false, execute: false, user: false };
    /// A supervisor data write.
    pub const WRITE: Access = Access { write: true, execute: false, user: false };
    /// A supervisor instruction fetch.
    pub const FETCH: Access = Access { write: false, execute: true, user: false };

    /// The same access made with user privilege.
    pub const fn user(self) -> Access {
        Access { user: true, ..self }
    }
}

/// Exception vectors that the hypervisor names.
#[allow(missing_docs)]
pub mod vector {
    pub const DE: u8 = 0;
    pub const DB: u8 = 1;
    pub const NMI: u8 = 2;
    pub const BP: u8 = 3;
    pub const OF: u8 = 4;
    pub const BR: u8 = 5;
    pub const UD: u8 = 6;
    pub const NM: u8 = 7;
    pub const DF: u8 = 8;
    pub const TS: u8 = 10;
    pub const NP: u8 = 11;
    pub const SS: u8 = 12;
    pub const GP: u8 = 13;
    pub const PF: u8 = 14;
    pub const MF: u8 = 16;
    pub const AC: u8 = 17;
    pub const MC: u8 = 18;
    pub const XM: u8 = 19;
}

/// Exceptions that exit in every mode, one bit for each vector. Machine checks are the host's. The deliveries of the others can raise
/// them anew (a data breakpoint on the stack; a stack in user mode that is not aligned), for ever and without an instruction of the
/// guest's between (CVE-2015-8104, CVE-2015-5307): each of them has to pass the hypervisor.
pub const EXCEPTIONS: u64 = 1 << vector::DB | 1 << vector::AC | 1 << vector::MC;

/// An exception to be delivered to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Vector, 0 to 31.
    pub vector: u8,
    /// Error code, if this vector pushes one.
    pub error: Option<u32>,
    /// New CR2, for #PF.
    pub cr2: Option<u64>,
}

impl Exception {
    /// #UD
    pub const UD: Exception = Exception { vector: vector::UD, error: None, cr2: None };
    /// #GP(0)
    pub const GP0: Exception = Exception { vector: vector::GP, error: Some(0), cr2: None };
    /// #SS(0)
    pub const SS0: Exception = Exception { vector: vector::SS, error: Some(0), cr2: None };

    /// #PF with this error code at this address.
    pub const fn page_fault(gva: Gva, error: u32) -> Exception {
        Exception { vector: vector::PF, error: Some(error), cr2: Some(gva.0) }
    }
}

/// An IN, OUT, INS or OUTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoExit {
    /// The port.
    pub port: u16,
    /// 1, 2 or 4 bytes.
    pub size: u8,
    /// IN or INS.
    pub input: bool,
    /// INS or OUTS: the emulator executes the instruction.
    pub string: bool,
    /// RIP of the next instruction, if the processor reported it.
    pub next_rip: Option<u64>,
}

/// A MOV to or from a control or debug register, with its operand if the processor reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegMove {
    /// Number of the control or debug register.
    pub index: u8,
    /// MOV to the special register.
    pub write: bool,
    /// The general-purpose operand; `None` where the instruction must be decoded (no decode assists, CLTS, LMSW).
    pub gpr: Option<Gpr>,
}

/// Why the guest stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// CPUID
    Cpuid,
    /// HLT
    Hlt,
    /// IN, OUT, INS, OUTS
    Io(IoExit),
    /// RDMSR; ECX names the MSR
    Rdmsr,
    /// WRMSR
    Wrmsr,
    /// The nested tables do not allow an access.
    NestedFault {
        /// The guest-physical address.
        gpa: Gpa,
        /// What the access was.
        access: Access,
        /// The nested entry was present (a permission was missing).
        present: bool,
        /// The access was one of the guest page walk's own.
        walk: bool,
    },
    /// An intercepted exception (not delivered to the guest).
    Exception(Exception),
    /// MOV to or from a control register, CLTS, LMSW, SMSW
    ControlReg(RegMove),
    /// MOV to or from a debug register
    DebugReg(RegMove),
    /// XSETBV
    Xsetbv,
    /// INVLPG, with the linear address if the processor reported it
    Invlpg(Option<Gva>),
    /// INVPCID (to be decoded)
    Invpcid,
    /// VMCALL/VMMCALL
    Hypercall,
    /// A host interrupt is pending (served when the host opens its interrupts).
    Interrupt,
    /// The guest can take an external interrupt now.
    InterruptWindow,
    /// The guest has finished its NMI handler (IRET).
    NmiWindow,
    /// A host NMI
    Nmi,
    /// Host INIT
    Init,
    /// Triple fault
    Shutdown,
    /// INVD, WBINVD or WBNOINVD
    Wbinvd,
    /// RDPMC
    Rdpmc,
    /// PAUSE (filter count exceeded)
    Pause,
    /// MONITOR or MWAIT
    Mwait,
    /// A hardware task switch
    TaskSwitch,
    /// A virtualization instruction (VMRUN, VMLOAD, CLGI, VMXON, …): #UD for a guest without nested virtualization
    VirtInstruction,
    /// The processor refused to enter the guest: its state is inconsistent.
    InvalidState,
    /// None of the above: raw code and both information words, for the report only.
    Unknown {
        /// The vendor's exit code.
        code: u64,
        /// First information word.
        info1: u64,
        /// Second information word.
        info2: u64,
    },
}
