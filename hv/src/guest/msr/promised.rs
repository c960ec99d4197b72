//! MSRs that the manuals promise without a CPUID bit and that do nothing here: they answer with one value.
//!
//! A kernel may touch these without looking at CPUID first, because every processor of the vendor has them (AMD APM 2,
//! appendix A, and the register references of each family; Intel SDM 4, tables 2-2 and 2-3). #GP would be wrong, and kernels
//! that read them without a handler would die. `docs/msrs.md` lists all MSRs with their answers; a test compares it with the
//! code.

use core::ops::RangeInclusive;

use Answer::{Fixed, Ignored, Name, WriteOnly};
use Vendor::{Amd, Any, Intel};

/// Whose processors have the MSR.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vendor {
    Amd,
    Intel,
    Any,
}

/// How an MSR without state answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Reads as this value; writes are accepted and change nothing.
    Ignored(u64),
    /// Reads as this value; writing is #GP(0).
    Fixed(u64),
    /// Reading is #GP(0); writes are accepted and change nothing.
    WriteOnly,
    /// Reads as these eight bytes (0 to 5) of CPUID's brand string; writes are accepted and change nothing.
    Name(u8),
}

/// A microcode level for guests to print; it is that of no real processor.
const PATCH_LEVEL: u64 = 0x0100_0000;
/// `DE_CFG`: LFENCE is dispatch serializing.
const DE_CFG: u64 = 1 << 1;
/// `VM_CR`: SVM is disabled and that is locked.
const VM_CR: u64 = 1 << 3 | 1 << 4;
/// `SMBASE` after RESET.
const SMBASE: u64 = 0x3_0000;

/// Sorted by number.
const TABLE: &[(RangeInclusive<u32>, Vendor, Answer)] = &[
    // P5_MC_ADDR and P5_MC_TYPE; on AMD, other names for address and status of machine-check bank 0.
    (0x0..=0x1, Any, Ignored(0)),
    // PLATFORM_ID: which microcode updates fit.
    (0x17..=0x17, Intel, Fixed(0)),
    // EBL_CR_POWERON: bus options of the P6.
    (0x2a..=0x2a, Intel, Ignored(0)),
    // FEATURE_CONTROL: locked, without VMX.
    (0x3a..=0x3a, Intel, Fixed(1)),
    // BIOS_UPDT_TRIG: a microcode update of the guest's is not loaded, and BIOS_SIGN_ID says so.
    (0x79..=0x79, Intel, WriteOnly),
    // BIOS_SIGN_ID, which is written before it is read; PATCH_LEVEL.
    (0x8b..=0x8b, Intel, Ignored(PATCH_LEVEL << 32)),
    (0x8b..=0x8b, Amd, Ignored(PATCH_LEVEL)),
    // PERFCTR0 and 1 of the P6, and what they count.
    (0xc1..=0xc2, Intel, Ignored(0)),
    (0x186..=0x187, Intel, Ignored(0)),
    // PERF_STATUS and PERF_CTL: one operating point.
    (0x198..=0x198, Intel, Fixed(0)),
    (0x199..=0x199, Intel, Ignored(0)),
    // The last branch and the last interrupt, which are recorded only while DEBUGCTL.LBR has an effect.
    (0x1db..=0x1de, Any, Fixed(0)),
    // PERF_LEGACY_CTL0 to 3 and PERF_LEGACY_CTR0 to 3. There is no virtual PMU: nothing counts.
    (0xc001_0000..=0xc001_0007, Amd, Ignored(0)),
    // SYSCFG: the ranges below and encryption are off.
    (0xc001_0010..=0xc001_0010, Amd, Ignored(0)),
    // IORR_BASE and IORR_MASK; TOP_MEM.
    (0xc001_0016..=0xc001_001a, Amd, Ignored(0)),
    // TOP_MEM2, and NB_CFG.
    (0xc001_001d..=0xc001_001d, Amd, Ignored(0)),
    (0xc001_001f..=0xc001_001f, Amd, Ignored(0)),
    // PATCH_LOADER: as BIOS_UPDT_TRIG.
    (0xc001_0020..=0xc001_0020, Amd, WriteOnly),
    // The processor's name, which firmware writes.
    (0xc001_0030..=0xc001_0030, Amd, Name(0)),
    (0xc001_0031..=0xc001_0031, Amd, Name(1)),
    (0xc001_0032..=0xc001_0032, Amd, Name(2)),
    (0xc001_0033..=0xc001_0033, Amd, Name(3)),
    (0xc001_0034..=0xc001_0034, Amd, Name(4)),
    (0xc001_0035..=0xc001_0035, Amd, Name(5)),
    // INT_PENDING_MSG and MMIO_CONF_BASE: off. The ACPI tables say where configuration space is.
    (0xc001_0055..=0xc001_0055, Amd, Ignored(0)),
    (0xc001_0058..=0xc001_0058, Amd, Ignored(0)),
    // SMBASE, and the memory of system management: none.
    (0xc001_0111..=0xc001_0111, Amd, Ignored(SMBASE)),
    (0xc001_0112..=0xc001_0113, Amd, Ignored(0)),
    (0xc001_0114..=0xc001_0114, Amd, Fixed(VM_CR)),
    // IGNNE; SMM_CTL.
    (0xc001_0115..=0xc001_0115, Amd, Ignored(0)),
    (0xc001_0116..=0xc001_0116, Amd, WriteOnly),
    // PERF_CTL0 to 5 and PERF_CTR0 to 5. Kernels that go by family instead of CPUID read them.
    (0xc001_0200..=0xc001_020b, Amd, Ignored(0)),
    // DC_CFG and TW_CFG (BU_CFG); DE_CFG; BU_CFG2 and EX_CFG. LS_CFG is not among them: a kernel that could read it would
    // believe that it disables the bypass of stores with it.
    (0xc001_1022..=0xc001_1023, Amd, Ignored(0)),
    (0xc001_1029..=0xc001_1029, Amd, Ignored(DE_CFG)),
    (0xc001_102a..=0xc001_102a, Amd, Ignored(0)),
    (0xc001_102c..=0xc001_102c, Amd, Ignored(0)),
];

/// The answer of `msr` on a processor of this vendor; `None` if it is none of these.
pub fn answer(msr: u32, amd: bool) -> Option<Answer> {
    let of = if amd { Amd } else { Intel };
    let fits = |vendor: Vendor| vendor == Any || vendor == of;
    TABLE.iter().find(|(msrs, vendor, _)| msrs.contains(&msr) && fits(*vendor)).map(|(.., answer)| *answer)
}
