//! The virtual machine control block (AMD APM 2, appendix B): layout and bit names only.
#![allow(dead_code)] // the manual's names, used or not

use core::mem::{offset_of, size_of};

use crate::arch::state::Segment;

/// The 4 KiB block that VMRUN reads and #VMEXIT writes.
#[repr(C, align(4096))]
#[allow(missing_docs)]
pub struct Vmcb {
    // Control area (table B-1)
    /// Bits 15:0 reads of CR0..15, bits 31:16 writes.
    pub intercept_cr: u32,
    /// Bits 15:0 reads of DR0..15, bits 31:16 writes.
    pub intercept_dr: u32,
    pub intercept_exceptions: u32,
    pub intercept_misc1: u32,
    pub intercept_misc2: u32,
    pub intercept_misc3: u32,
    _reserved_018: [u8; 0x24],
    pub pause_filter_threshold: u16,
    pub pause_filter_count: u16,
    pub iopm_base: u64,
    pub msrpm_base: u64,
    pub tsc_offset: u64,
    pub asid: u32,
    pub tlb_control: u32,
    pub int_ctl: u64,
    /// Bit 0: interrupt shadow.
    pub int_state: u64,
    pub exit_code: u64,
    pub exit_info1: u64,
    pub exit_info2: u64,
    pub exit_int_info: u64,
    /// Bit 0: nested paging.
    pub np_control: u64,
    _reserved_098: [u64; 2],
    pub event_inj: u64,
    pub nested_cr3: u64,
    pub lbr_control: u64,
    pub clean: u64,
    pub next_rip: u64,
    pub fetched_len: u8,
    pub fetched: [u8; 15],
    _reserved_0e0: [u8; 0x300],
    /// For the hypervisor's own use; the processor ignores it.
    pub agile: abi::agile::Words,
    // State save area (table B-2)
    pub es: Segment,
    pub cs: Segment,
    pub ss: Segment,
    pub ds: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub gdtr: Segment,
    pub ldtr: Segment,
    pub idtr: Segment,
    pub tr: Segment,
    _reserved_4a0: [u8; 0x2b],
    pub cpl: u8,
    _reserved_4cc: [u8; 4],
    pub efer: u64,
    _reserved_4d8: [u8; 0x70],
    pub cr4: u64,
    pub cr3: u64,
    pub cr0: u64,
    pub dr7: u64,
    pub dr6: u64,
    pub rflags: u64,
    pub rip: u64,
    _reserved_580: [u8; 0x58],
    pub rsp: u64,
    pub s_cet: u64,
    pub ssp: u64,
    pub isst_addr: u64,
    pub rax: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub cr2: u64,
    _reserved_648: [u8; 0x20],
    pub g_pat: u64,
    pub dbgctl: u64,
    pub br_from: u64,
    pub br_to: u64,
    pub last_exc_from: u64,
    pub last_exc_to: u64,
    _reserved_698: [u8; 0x48],
    /// The guest's SPEC_CTRL, where VMRUN switches it.
    pub spec_ctrl: u64,
    _reserved_6e8: [u8; 0x918],
}

const _: () = {
    assert!(size_of::<Vmcb>() == 0x1000);
    assert!(size_of::<Segment>() == 16);
    assert!(offset_of!(Vmcb, pause_filter_threshold) == 0x3c);
    assert!(offset_of!(Vmcb, iopm_base) == 0x40);
    assert!(offset_of!(Vmcb, asid) == 0x58);
    assert!(offset_of!(Vmcb, tlb_control) == 0x5c);
    assert!(offset_of!(Vmcb, int_ctl) == 0x60);
    assert!(offset_of!(Vmcb, exit_code) == 0x70);
    assert!(offset_of!(Vmcb, exit_int_info) == 0x88);
    assert!(offset_of!(Vmcb, np_control) == 0x90);
    assert!(offset_of!(Vmcb, event_inj) == 0xa8);
    assert!(offset_of!(Vmcb, nested_cr3) == 0xb0);
    assert!(offset_of!(Vmcb, clean) == 0xc0);
    assert!(offset_of!(Vmcb, next_rip) == 0xc8);
    assert!(offset_of!(Vmcb, fetched) == 0xd1);
    assert!(offset_of!(Vmcb, agile) == abi::agile::VMCB_OFFSET);
    assert!(offset_of!(Vmcb, es) == 0x400);
    assert!(offset_of!(Vmcb, tr) == 0x490);
    assert!(offset_of!(Vmcb, cpl) == 0x4cb);
    assert!(offset_of!(Vmcb, efer) == 0x4d0);
    assert!(offset_of!(Vmcb, cr4) == 0x548);
    assert!(offset_of!(Vmcb, rip) == 0x578);
    assert!(offset_of!(Vmcb, rsp) == 0x5d8);
    assert!(offset_of!(Vmcb, rax) == 0x5f8);
    assert!(offset_of!(Vmcb, kernel_gs_base) == 0x620);
    assert!(offset_of!(Vmcb, cr2) == 0x640);
    assert!(offset_of!(Vmcb, g_pat) == 0x668);
    assert!(offset_of!(Vmcb, last_exc_to) == 0x690);
    assert!(offset_of!(Vmcb, spec_ctrl) == 0x6e0);
};

impl Vmcb {
    /// An all-zero block on the heap.
    pub fn new_boxed() -> alloc::boxed::Box<Vmcb> {
        let zeroed = alloc::boxed::Box::<Vmcb>::new_zeroed();
        // SAFETY: every field is an integer or an array of integers, for which zero is valid.
        unsafe { zeroed.assume_init() }
    }
}

/// Bits of [`Vmcb::intercept_misc1`]; the exit code is 0x60 + bit number.
#[allow(missing_docs)]
pub mod misc1 {
    pub const INTR: u32 = 1 << 0;
    pub const NMI: u32 = 1 << 1;
    pub const INIT: u32 = 1 << 3;
    pub const VINTR: u32 = 1 << 4;
    /// Writes of CR0 that change more than TS and MP.
    pub const CR0_SEL_WRITE: u32 = 1 << 5;
    pub const TR_WRITE: u32 = 1 << 13;
    pub const RDTSC: u32 = 1 << 14;
    pub const RDPMC: u32 = 1 << 15;
    pub const CPUID: u32 = 1 << 18;
    pub const IRET: u32 = 1 << 20;
    pub const INVD: u32 = 1 << 22;
    pub const PAUSE: u32 = 1 << 23;
    pub const HLT: u32 = 1 << 24;
    pub const INVLPG: u32 = 1 << 25;
    pub const INVLPGA: u32 = 1 << 26;
    pub const IOIO: u32 = 1 << 27;
    pub const MSR: u32 = 1 << 28;
    pub const TASK_SWITCH: u32 = 1 << 29;
    pub const SHUTDOWN: u32 = 1 << 31;
    /// What no guest does by itself.
    pub const ALWAYS: u32 =
        INTR | NMI | INIT | RDPMC | CPUID | INVD | HLT | INVLPGA | IOIO | MSR | TASK_SWITCH | SHUTDOWN;
}

/// Bits of [`Vmcb::intercept_misc2`]; the exit code is 0x80 + bit number.
#[allow(missing_docs)]
pub mod misc2 {
    pub const VMRUN: u32 = 1 << 0;
    pub const VMMCALL: u32 = 1 << 1;
    pub const VMLOAD: u32 = 1 << 2;
    pub const VMSAVE: u32 = 1 << 3;
    pub const STGI: u32 = 1 << 4;
    pub const CLGI: u32 = 1 << 5;
    pub const SKINIT: u32 = 1 << 6;
    pub const RDTSCP: u32 = 1 << 7;
    /// WBNOINVD, too.
    pub const WBINVD: u32 = 1 << 9;
    pub const MONITOR: u32 = 1 << 10;
    pub const MWAIT: u32 = 1 << 11;
    pub const XSETBV: u32 = 1 << 13;
    pub const RDPRU: u32 = 1 << 14;
}

/// Bits of [`Vmcb::intercept_misc3`]; the exit code is 0xa0 + bit number.
#[allow(missing_docs)]
pub mod misc3 {
    pub const INVPCID: u32 = 1 << 2;
}

/// Bits of [`Vmcb::intercept_cr`].
#[allow(missing_docs)]
pub mod cr {
    pub const READS: u32 = 0xffff;
    pub const CR0_READ: u32 = 1 << 0;
    pub const CR3_READ: u32 = 1 << 3;
    pub const CR4_READ: u32 = 1 << 4;
    pub const CR0_WRITE: u32 = 1 << 16;
    pub const CR3_WRITE: u32 = 1 << 19;
    pub const CR4_WRITE: u32 = 1 << 20;
    pub const CR8_WRITE: u32 = 1 << 24;
}

/// Bits of [`Vmcb::int_ctl`] (APM 2, 15.21.4).
#[allow(missing_docs)]
pub mod int_ctl {
    pub const V_TPR: u64 = 0xff;
    pub const V_IRQ: u64 = 1 << 8;
    pub const V_NMI_PENDING: u64 = 1 << 11;
    pub const V_NMI_MASK: u64 = 1 << 12;
    pub const V_INTR_PRIO_SHIFT: u32 = 16;
    pub const V_INTR_PRIO: u64 = 0xf << V_INTR_PRIO_SHIFT;
    pub const V_IGN_TPR: u64 = 1 << 20;
    pub const V_INTR_MASKING: u64 = 1 << 24;
    pub const V_NMI_ENABLE: u64 = 1 << 26;
    pub const V_INTR_VECTOR_SHIFT: u32 = 32;
    pub const V_INTR_VECTOR: u64 = 0xff << V_INTR_VECTOR_SHIFT;
}

/// Bits of [`Vmcb::clean`]: what has not changed since the last VMRUN (APM 2, 15.15.3).
#[allow(missing_docs)]
pub mod clean {
    /// Intercept vectors, TSC offset, pause filter.
    pub const INTERCEPTS: u64 = 1 << 0;
    pub const PERMISSION_MAPS: u64 = 1 << 1;
    pub const ASID: u64 = 1 << 2;
    pub const INTERRUPT: u64 = 1 << 3;
    pub const NESTED_PAGING: u64 = 1 << 4;
    /// CR0, CR3, CR4, EFER.
    pub const CONTROL_REGS: u64 = 1 << 5;
    /// DR6, DR7.
    pub const DEBUG_REGS: u64 = 1 << 6;
    /// GDTR, IDTR.
    pub const TABLES: u64 = 1 << 7;
    /// CS, DS, SS, ES, CPL.
    pub const SEGMENTS: u64 = 1 << 8;
    pub const CR2: u64 = 1 << 9;
    /// Everything that this hypervisor lets the processor cache.
    pub const ALL: u64 = (1 << 10) - 1;
}

/// Values of [`Vmcb::tlb_control`] (APM 2, 15.16.2).
#[allow(missing_docs)]
pub mod tlb_control {
    pub const NOTHING: u32 = 0;
    pub const FLUSH_ALL: u32 = 1;
    pub const FLUSH_ASID: u32 = 3;
}

/// Exit codes that are not an intercept bit's (APM 2, appendix C).
#[allow(missing_docs)]
pub mod exit_code {
    pub const CR_READ: u64 = 0x00;
    pub const CR3_READ: u64 = 0x03;
    pub const CR_WRITE: u64 = 0x10;
    pub const CR3_WRITE: u64 = 0x13;
    pub const LAST_CR: u64 = 0x1f;
    pub const DR_READ: u64 = 0x20;
    pub const DR_WRITE: u64 = 0x30;
    pub const LAST_DR: u64 = 0x3f;
    pub const EXCEPTION: u64 = 0x40;
    pub const PAGE_FAULT: u64 = EXCEPTION + 14;
    pub const LAST_EXCEPTION: u64 = 0x5f;
    pub const INTR: u64 = 0x60;
    pub const NMI: u64 = 0x61;
    pub const SMI: u64 = 0x62;
    pub const INIT: u64 = 0x63;
    pub const VINTR: u64 = 0x64;
    pub const CR0_SEL_WRITE: u64 = 0x65;
    pub const TR_WRITE: u64 = 0x6d;
    pub const RDTSC: u64 = 0x6e;
    pub const RDPMC: u64 = 0x6f;
    pub const CPUID: u64 = 0x72;
    pub const IRET: u64 = 0x74;
    pub const INVD: u64 = 0x76;
    pub const PAUSE: u64 = 0x77;
    pub const HLT: u64 = 0x78;
    pub const INVLPG: u64 = 0x79;
    pub const INVLPGA: u64 = 0x7a;
    pub const IOIO: u64 = 0x7b;
    pub const MSR: u64 = 0x7c;
    pub const TASK_SWITCH: u64 = 0x7d;
    pub const SHUTDOWN: u64 = 0x7f;
    pub const VMRUN: u64 = 0x80;
    pub const VMMCALL: u64 = 0x81;
    pub const VMLOAD: u64 = 0x82;
    pub const SKINIT: u64 = 0x86;
    pub const RDTSCP: u64 = 0x87;
    pub const WBINVD: u64 = 0x89;
    pub const MONITOR: u64 = 0x8a;
    pub const MWAIT: u64 = 0x8b;
    pub const MWAIT_ARMED: u64 = 0x8c;
    pub const XSETBV: u64 = 0x8d;
    pub const RDPRU: u64 = 0x8e;
    pub const INVPCID: u64 = 0xa2;
    pub const NESTED_FAULT: u64 = 0x400;
    /// VMEXIT_INVALID is −1; some emulators write only the low half.
    pub const INVALID_LOW: u32 = 0xffff_ffff;
}

/// EVENTINJ and EXITINTINFO (APM 2, 15.20).
#[allow(missing_docs)]
pub mod event {
    use crate::virt::event;

    pub const VECTOR: u64 = event::VECTOR as u64;
    pub const TYPE: u64 = event::TYPE as u64;
    pub const TYPE_INTR: u64 = event::EXTERNAL as u64;
    pub const TYPE_EXCEPTION: u64 = event::HARDWARE_EXCEPTION as u64;
    pub const ERROR_VALID: u64 = event::ERROR_VALID as u64;
    pub const VALID: u64 = event::VALID as u64;
    pub const ERROR_SHIFT: u32 = 32;
}
