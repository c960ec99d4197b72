//! Why the guest stopped, in words of the architecture: raw vendor codes never leave `virt`.

use crate::arch::addr::{Gpa, Gva};
use crate::arch::task::TaskSwitch;
use crate::arch::{Access, Exception, RegMove, vector};

/// Exceptions that exit in every mode, one bit for each vector. Machine checks are the host's. The deliveries of the others can raise
/// them again (a data breakpoint on the stack; an unaligned stack in user mode), without end and without a guest instruction in
/// between (CVE-2015-8104, CVE-2015-5307): so each of them has to exit.
pub const EXCEPTIONS: u64 = 1 << vector::DB | 1 << vector::AC | 1 << vector::MC;

/// An access to a control register as one number: that of the register, and whether it is written.
pub mod control {
    use crate::arch::RegMove;
    use crate::arch::state::Gpr;

    /// The access writes.
    pub const WRITE: u8 = 1 << 4;
    /// A read of CR3.
    pub const CR3_READ: u8 = 3;
    /// A write of CR3.
    pub const CR3_WRITE: u8 = WRITE | 3;

    /// The number of an access.
    #[inline(always)]
    pub fn number(access: RegMove) -> u8 {
        access.index | if access.write { WRITE } else { 0 }
    }

    /// The access of a number.
    #[inline(always)]
    pub fn access(number: u8, gpr: Option<Gpr>) -> RegMove {
        RegMove { index: number & 0xf, write: number & WRITE != 0, gpr }
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
    /// RDTSC, only where time is modelled. QEMU's emulation reports RDTSCP as this, too.
    Rdtsc,
    /// RDTSCP
    Rdtscp,
    /// PAUSE (filter count exceeded)
    Pause,
    /// MONITOR or MWAIT
    Mwait,
    /// A hardware task switch, which is to be executed in software.
    TaskSwitch(TaskSwitch),
    /// LTR, where the TSS in use has a [guarded page](super::Virt::guarded_page).
    LoadTask,
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
