//! MSR numbers, by the manuals' names (AMD APM 2, appendix A; Intel SDM 4, chapter 2).
#![allow(missing_docs)]

pub const TSC: u32 = 0x10;
pub const APIC_BASE: u32 = 0x1b;
pub const SPEC_CTRL: u32 = 0x48;
pub const PRED_CMD: u32 = 0x49;
pub const MTRR_CAP: u32 = 0xfe;
pub const ARCH_CAPABILITIES: u32 = 0x10a;
pub const FLUSH_CMD: u32 = 0x10b;
pub const SYSENTER_CS: u32 = 0x174;
pub const SYSENTER_ESP: u32 = 0x175;
pub const SYSENTER_EIP: u32 = 0x176;
pub const MCG_CAP: u32 = 0x179;
pub const MCG_STATUS: u32 = 0x17a;
pub const MISC_ENABLE: u32 = 0x1a0;
pub const DEBUGCTL: u32 = 0x1d9;
pub const PAT: u32 = 0x277;
pub const MTRR_DEF_TYPE: u32 = 0x2ff;
pub const TSC_DEADLINE: u32 = 0x6e0;
pub const X2APIC_FIRST: u32 = 0x800;
pub const X2APIC_LAST: u32 = 0x8ff;
pub const KVM_WALL_CLOCK: u32 = 0x4b56_4d00;
pub const KVM_SYSTEM_TIME: u32 = 0x4b56_4d01;
pub const EFER: u32 = 0xc000_0080;
pub const STAR: u32 = 0xc000_0081;
pub const LSTAR: u32 = 0xc000_0082;
pub const CSTAR: u32 = 0xc000_0083;
pub const SFMASK: u32 = 0xc000_0084;
pub const FS_BASE: u32 = 0xc000_0100;
pub const GS_BASE: u32 = 0xc000_0101;
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
pub const TSC_AUX: u32 = 0xc000_0103;
pub const HWCR: u32 = 0xc001_0015;
pub const VIRT_SPEC_CTRL: u32 = 0xc001_011f;
