//! The features that a guest may see if the host has them. What is not listed is hidden: before a
//! feature is added here, check that all of its state is switched, and that the MSRs that it promises exist.
//!
//! Hidden on purpose: VMX, SVM, SMX and SGX (no nested virtualization), MONITOR and MWAITX (exit on every
//! idle loop), performance counters, debug store, IBS (host state), LA57 (4-level walkers), PKU, CET, AMX,
//! MPX, PT (state that is not switched), TSX (deprecated), TOPOEXT (flat topology).

/// A mask with these bits.
const fn bits(list: &[u32]) -> u32 {
    let (mut mask, mut i) = (0, 0);
    while i < list.len() {
        mask |= 1 << list[i];
        i += 1;
    }
    mask
}

/// Leaf 1 ECX.
pub mod leaf1_ecx {
    /// `IA32_TSC_DEADLINE`; always offered, our local APIC has it.
    pub const TSC_DEADLINE: u32 = 1 << 24;
    /// x2APIC; always offered.
    pub const X2APIC: u32 = 1 << 21;
    pub const PCID: u32 = 1 << 17;
    pub const XSAVE: u32 = 1 << 26;
    pub const AVX: u32 = 1 << 28;
    /// Mirrors CR4.OSXSAVE.
    pub const OSXSAVE: u32 = 1 << 27;
    /// A hypervisor is present; always set.
    pub const HYPERVISOR: u32 = 1 << 31;
    /// SSE3, PCLMULQDQ, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, MOVBE, POPCNT, AES, RDRAND.
    pub const ALLOWED: u32 = super::bits(&[0, 1, 9, 13, 19, 20, 22, 23, 25, 30]) | PCID | XSAVE;
    /// FMA, AVX, F16C.
    pub const NEED_AVX: u32 = super::bits(&[12, 28, 29]);
}

/// Leaf 1 EDX.
pub mod leaf1_edx {
    pub const VME: u32 = 1 << 1;
    pub const DE: u32 = 1 << 2;
    pub const PSE: u32 = 1 << 3;
    pub const TSC: u32 = 1 << 4;
    pub const PAE: u32 = 1 << 6;
    pub const MCE: u32 = 1 << 7;
    pub const APIC: u32 = 1 << 9;
    pub const SEP: u32 = 1 << 11;
    pub const MTRR: u32 = 1 << 12;
    pub const PGE: u32 = 1 << 13;
    pub const MCA: u32 = 1 << 14;
    pub const PAT: u32 = 1 << 16;
    pub const FXSR: u32 = 1 << 24;
    pub const SSE: u32 = 1 << 25;
    /// More than one logical processor in the package.
    pub const HTT: u32 = 1 << 28;
    /// FPU, VME, DE, PSE, TSC, MSR, PAE, MCE, CX8, APIC, SEP, MTRR, PGE, MCA, CMOV, PAT, PSE36, CLFSH, MMX,
    /// FXSR, SSE, SSE2.
    pub const ALLOWED: u32 =
        super::bits(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 19, 23, 24, 25, 26]);
    /// Emulated here, whatever the host has.
    pub const ALWAYS: u32 = APIC | MTRR;
}

/// Leaf 7, sub-leaf 0.
pub mod leaf7 {
    pub const EBX_FSGSBASE: u32 = 1 << 0;
    pub const EBX_SMEP: u32 = 1 << 7;
    pub const EBX_AVX512F: u32 = 1 << 16;
    pub const EBX_SMAP: u32 = 1 << 20;
    pub const ECX_UMIP: u32 = 1 << 2;
    pub const ECX_RDPID: u32 = 1 << 22;
    /// FSGSBASE, BMI1, FDP_EXCPTN_ONLY, SMEP, BMI2, ERMS, INVPCID, FCS/FDS deprecated, RDSEED, ADX, SMAP,
    /// CLFLUSHOPT, CLWB, SHA.
    pub const EBX: u32 = super::bits(&[0, 3, 6, 7, 8, 9, 10, 13, 18, 19, 20, 23, 24, 29]);
    /// AVX2.
    pub const EBX_NEED_AVX: u32 = 1 << 5;
    /// F, DQ, IFMA, CD, BW, VL.
    pub const EBX_NEED_AVX512: u32 = super::bits(&[16, 17, 21, 28, 30, 31]);
    /// UMIP, GFNI, RDPID, MOVDIRI, MOVDIR64B.
    pub const ECX: u32 = super::bits(&[2, 8, 22, 27, 28]);
    /// VAES, VPCLMULQDQ.
    pub const ECX_NEED_AVX: u32 = super::bits(&[9, 10]);
    /// VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ.
    pub const ECX_NEED_AVX512: u32 = super::bits(&[1, 6, 11, 12, 14]);
    pub const EDX_IBRS_IBPB: u32 = 1 << 26;
    pub const EDX_STIBP: u32 = 1 << 27;
    pub const EDX_FLUSH_L1D: u32 = 1 << 28;
    pub const EDX_ARCH_CAPABILITIES: u32 = 1 << 29;
    pub const EDX_SSBD: u32 = 1 << 31;
    /// FSRM, MD_CLEAR, SERIALIZE; speculation control.
    pub const EDX: u32 = super::bits(&[4, 10, 14])
        | EDX_IBRS_IBPB
        | EDX_STIBP
        | EDX_FLUSH_L1D
        | EDX_ARCH_CAPABILITIES
        | EDX_SSBD;
    /// Sub-leaf 1 EAX: fast short REP forms.
    pub const SUB1_EAX: u32 = super::bits(&[10, 11, 12]);
    /// Sub-leaf 1 EAX: AVX-VNNI.
    pub const SUB1_EAX_NEED_AVX: u32 = 1 << 4;
}

/// Leaf 6 EAX: the APIC timer always runs; always set.
pub const LEAF6_EAX_ARAT: u32 = 1 << 2;

/// Leaf 0xd, sub-leaf 1 EAX.
pub mod leaf_d1_eax {
    pub const XSAVEC: u32 = 1 << 1;
    /// XSAVEOPT, XSAVEC, XGETBV with ECX=1. Not XSAVES: IA32_XSS has no bit that we offer.
    pub const ALLOWED: u32 = super::bits(&[0, 1, 2]);
}

/// Leaf 0x8000_0001.
pub mod ext1 {
    /// Cores share a package, on AMD.
    pub const ECX_CMP_LEGACY: u32 = 1 << 1;
    /// LAHF, CR8 in legacy mode, LZCNT, SSE4A, misaligned SSE, PREFETCHW, TBM.
    pub const ECX: u32 = super::bits(&[0, 4, 5, 6, 7, 8, 21]);
    /// XOP, FMA4.
    pub const ECX_NEED_AVX: u32 = super::bits(&[11, 16]);
    pub const EDX_SYSCALL: u32 = 1 << 11;
    pub const EDX_NX: u32 = 1 << 20;
    pub const EDX_FFXSR: u32 = 1 << 25;
    pub const EDX_RDTSCP: u32 = 1 << 27;
    pub const EDX_LM: u32 = 1 << 29;
    /// SYSCALL, NX, 1 GiB pages, RDTSCP, long mode.
    pub const EDX: u32 = EDX_SYSCALL | EDX_NX | EDX_RDTSCP | EDX_LM | 1 << 26;
    /// AMD also: MMX extensions, FFXSR, 3DNow! and its extensions, and the bits that repeat those of leaf 1.
    pub const EDX_AMD: u32 = super::bits(&[22, 30, 31]) | EDX_FFXSR | EDX_AMD_REPEATED;
    pub const EDX_AMD_REPEATED: u32 =
        super::bits(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 23, 24]);
}

/// Leaf 0x8000_0007 EDX: the TSC runs at one rate in all states.
pub const EXT7_EDX_INVARIANT_TSC: u32 = 1 << 8;
/// Leaf 0x8000_0008 EBX.
pub mod ext8 {
    pub const IBPB: u32 = 1 << 12;
    pub const IBRS: u32 = 1 << 14;
    pub const STIBP: u32 = 1 << 15;
    pub const SSBD: u32 = 1 << 24;
    /// VIRT_SPEC_CTRL; offered where there is SSBD, by which it is done.
    pub const VIRT_SSBD: u32 = 1 << 25;
    pub const PSFD: u32 = 1 << 28;
    /// CLZERO, XSAVE saves error pointers, WBNOINVD; speculation control, STIBP always on, SSB_NO, BTC_NO.
    pub const EBX: u32 = super::bits(&[0, 2, 9, 17, 26, 29]) | IBPB | IBRS | STIBP | SSBD | PSFD;
}

/// Leaf 0x8000_0021 EAX: no nested data breakpoints, LFENCE serializes, a null selector clears the base.
pub const EXT21_EAX: u32 = bits(&[0, 2, 6]);

/// KVM feature bits (`Documentation/virt/kvm/x86/cpuid.rst`): I/O delays are not needed, clock source MSRs at
/// the new numbers, the clock does not go backwards between VCPUs.
pub const KVM_FEATURES: u32 = bits(&[1, 3, 24]);
