//! Encodings of VMCS fields (Intel SDM 3, appendix B): the manual's numbers and names only.
#![allow(dead_code, missing_docs)] // the manual's names, used or not

/// Control fields.
pub mod control {
    pub const VPID: u32 = 0x0000;
    pub const IO_BITMAP_A: u32 = 0x2000;
    pub const IO_BITMAP_B: u32 = 0x2002;
    pub const MSR_BITMAP: u32 = 0x2004;
    pub const EXIT_MSR_STORE_LIST: u32 = 0x2006;
    pub const EXIT_MSR_LOAD_LIST: u32 = 0x2008;
    pub const ENTRY_MSR_LOAD_LIST: u32 = 0x200a;
    pub const TSC_OFFSET: u32 = 0x2010;
    pub const VIRTUAL_APIC: u32 = 0x2012;
    pub const EPT_POINTER: u32 = 0x201a;
    pub const PIN_BASED: u32 = 0x4000;
    pub const PROCESSOR_BASED: u32 = 0x4002;
    pub const EXCEPTION_BITMAP: u32 = 0x4004;
    pub const PAGE_FAULT_MASK: u32 = 0x4006;
    pub const PAGE_FAULT_MATCH: u32 = 0x4008;
    pub const CR3_TARGETS: u32 = 0x400a;
    pub const EXIT_CONTROLS: u32 = 0x400c;
    pub const EXIT_MSR_STORES: u32 = 0x400e;
    pub const EXIT_MSR_LOADS: u32 = 0x4010;
    pub const ENTRY_CONTROLS: u32 = 0x4012;
    pub const ENTRY_MSR_LOADS: u32 = 0x4014;
    pub const ENTRY_INTERRUPTION: u32 = 0x4016;
    pub const ENTRY_ERROR_CODE: u32 = 0x4018;
    pub const ENTRY_INSTRUCTION_LENGTH: u32 = 0x401a;
    pub const TPR_THRESHOLD: u32 = 0x401c;
    pub const SECONDARY: u32 = 0x401e;
    pub const PAUSE_GAP: u32 = 0x4020;
    pub const PAUSE_WINDOW: u32 = 0x4022;
    pub const CR0_MASK: u32 = 0x6000;
    pub const CR4_MASK: u32 = 0x6002;
    pub const CR0_SHADOW: u32 = 0x6004;
    pub const CR4_SHADOW: u32 = 0x6006;
}

/// Read-only fields: what the last exit was.
pub mod exit {
    pub const GUEST_PHYSICAL: u32 = 0x2400;
    pub const INSTRUCTION_ERROR: u32 = 0x4400;
    pub const REASON: u32 = 0x4402;
    pub const INTERRUPTION: u32 = 0x4404;
    pub const INTERRUPTION_ERROR: u32 = 0x4406;
    pub const VECTORING: u32 = 0x4408;
    pub const VECTORING_ERROR: u32 = 0x440a;
    pub const INSTRUCTION_LENGTH: u32 = 0x440c;
    pub const INSTRUCTION_INFO: u32 = 0x440e;
    pub const QUALIFICATION: u32 = 0x6400;
    pub const GUEST_LINEAR: u32 = 0x640a;
}

/// Guest-state fields. Of the segment registers those of ES; the others follow at steps of 2, in the order of
/// [`SegReg`](crate::arch::SegReg).
pub mod guest {
    pub const ES_SELECTOR: u32 = 0x0800;
    pub const LINK_POINTER: u32 = 0x2800;
    pub const DEBUGCTL: u32 = 0x2802;
    pub const PAT: u32 = 0x2804;
    pub const EFER: u32 = 0x2806;
    pub const PERF_GLOBAL_CTRL: u32 = 0x2808;
    pub const POINTER_0: u32 = 0x280a;
    pub const POINTER_3: u32 = 0x2810;
    pub const ES_LIMIT: u32 = 0x4800;
    pub const GDTR_LIMIT: u32 = 0x4810;
    pub const IDTR_LIMIT: u32 = 0x4812;
    pub const ES_RIGHTS: u32 = 0x4814;
    pub const INTERRUPTIBILITY: u32 = 0x4824;
    pub const ACTIVITY: u32 = 0x4826;
    pub const SYSENTER_CS: u32 = 0x482a;
    pub const PREEMPTION_TIMER: u32 = 0x482e;
    pub const CR0: u32 = 0x6800;
    pub const CR3: u32 = 0x6802;
    pub const CR4: u32 = 0x6804;
    pub const ES_BASE: u32 = 0x6806;
    pub const GDTR_BASE: u32 = 0x6816;
    pub const IDTR_BASE: u32 = 0x6818;
    pub const DR7: u32 = 0x681a;
    pub const RSP: u32 = 0x681c;
    pub const RIP: u32 = 0x681e;
    pub const RFLAGS: u32 = 0x6820;
    pub const PENDING_DEBUG: u32 = 0x6822;
    pub const SYSENTER_ESP: u32 = 0x6824;
    pub const SYSENTER_EIP: u32 = 0x6826;
}

/// Host-state fields.
pub mod host {
    pub const ES_SELECTOR: u32 = 0x0c00;
    pub const CS_SELECTOR: u32 = 0x0c02;
    pub const SS_SELECTOR: u32 = 0x0c04;
    pub const DS_SELECTOR: u32 = 0x0c06;
    pub const FS_SELECTOR: u32 = 0x0c08;
    pub const GS_SELECTOR: u32 = 0x0c0a;
    pub const TR_SELECTOR: u32 = 0x0c0c;
    pub const PAT: u32 = 0x2c00;
    pub const EFER: u32 = 0x2c02;
    pub const PERF_GLOBAL_CTRL: u32 = 0x2c04;
    pub const SYSENTER_CS: u32 = 0x4c00;
    pub const CR0: u32 = 0x6c00;
    pub const CR3: u32 = 0x6c02;
    pub const CR4: u32 = 0x6c04;
    pub const FS_BASE: u32 = 0x6c06;
    pub const GS_BASE: u32 = 0x6c08;
    pub const TR_BASE: u32 = 0x6c0a;
    pub const GDTR_BASE: u32 = 0x6c0c;
    pub const IDTR_BASE: u32 = 0x6c0e;
    pub const SYSENTER_ESP: u32 = 0x6c10;
    pub const SYSENTER_EIP: u32 = 0x6c12;
    pub const RSP: u32 = 0x6c14;
    pub const RIP: u32 = 0x6c16;
}
