//! The architectural state of one VCPU, vendor-neutral.
//!
//! [`VcpuState`] is how everything outside `virt` reads and writes guest registers. A backend implements it over
//! the place where the processor keeps them (the VMCB save area; cached VMCS fields), so that an exit costs
//! only the registers that its handler touches. [`ArchState`] is the plain structure for tests, the fake backend,
//! loaders and register dumps.

/// General-purpose registers, in the order of their encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Gpr {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

impl Gpr {
    /// All registers in encoding order.
    pub const ALL: [Gpr; 16] = [
        Gpr::Rax,
        Gpr::Rcx,
        Gpr::Rdx,
        Gpr::Rbx,
        Gpr::Rsp,
        Gpr::Rbp,
        Gpr::Rsi,
        Gpr::Rdi,
        Gpr::R8,
        Gpr::R9,
        Gpr::R10,
        Gpr::R11,
        Gpr::R12,
        Gpr::R13,
        Gpr::R14,
        Gpr::R15,
    ];

    /// The register with this 4-bit encoding; higher bits are ignored.
    pub const fn from_encoding(n: u8) -> Gpr {
        Gpr::ALL[(n & 15) as usize]
    }
}

/// Segment registers; ES to GS in the order of their encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum SegReg {
    Es,
    Cs,
    Ss,
    Ds,
    Fs,
    Gs,
    Ldtr,
    Tr,
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// The visible selector.
    pub selector: u16,
    /// Bits 7:0 are descriptor bits 47:40 (type, S, DPL, P), bits 11:8 are descriptor bits 55:52 (AVL, L, D/B, G):
    /// the form in which the VMCB holds them.
    pub attributes: u16,
    /// The limit in bytes, already scaled by G.
    pub limit: u32,
    /// The base address.
    pub base: u64,
}

impl Segment {
    /// Present bit of [`Segment::attributes`].
    pub const PRESENT: u16 = 1 << 7;
    /// Code/data (not system) bit of [`Segment::attributes`].
    pub const NON_SYSTEM: u16 = 1 << 4;
    /// 64-bit code bit (L) of [`Segment::attributes`].
    pub const LONG: u16 = 1 << 9;
    /// Default operand size / big stack bit (D/B) of [`Segment::attributes`].
    pub const BIG: u16 = 1 << 10;
    /// Granularity bit (G) of [`Segment::attributes`].
    pub const GRANULAR: u16 = 1 << 11;

    /// The descriptor privilege level, 0 to 3.
    pub const fn dpl(&self) -> u8 {
        (self.attributes >> 5 & 3) as u8
    }

    /// A flat 4 GiB segment with these attributes.
    pub const fn flat(selector: u16, attributes: u16) -> Segment {
        Segment { selector, attributes, limit: 0xffff_ffff, base: 0 }
    }
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableReg {
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes.
    pub limit: u16,
}

/// CR0 bits.
#[allow(missing_docs)]
pub mod cr0 {
    pub const PE: u64 = 1 << 0;
    pub const MP: u64 = 1 << 1;
    pub const EM: u64 = 1 << 2;
    pub const TS: u64 = 1 << 3;
    pub const ET: u64 = 1 << 4;
    pub const NE: u64 = 1 << 5;
    pub const WP: u64 = 1 << 16;
    pub const AM: u64 = 1 << 18;
    pub const NW: u64 = 1 << 29;
    pub const CD: u64 = 1 << 30;
    pub const PG: u64 = 1 << 31;
}

/// CR4 bits.
#[allow(missing_docs)]
pub mod cr4 {
    pub const VME: u64 = 1 << 0;
    pub const PVI: u64 = 1 << 1;
    pub const TSD: u64 = 1 << 2;
    pub const DE: u64 = 1 << 3;
    pub const PSE: u64 = 1 << 4;
    pub const PAE: u64 = 1 << 5;
    pub const MCE: u64 = 1 << 6;
    pub const PGE: u64 = 1 << 7;
    pub const PCE: u64 = 1 << 8;
    pub const OSFXSR: u64 = 1 << 9;
    pub const OSXMMEXCPT: u64 = 1 << 10;
    pub const UMIP: u64 = 1 << 11;
    pub const LA57: u64 = 1 << 12;
    pub const FSGSBASE: u64 = 1 << 16;
    pub const PCIDE: u64 = 1 << 17;
    pub const OSXSAVE: u64 = 1 << 18;
    pub const SMEP: u64 = 1 << 20;
    pub const SMAP: u64 = 1 << 21;
    pub const PKE: u64 = 1 << 22;
}

/// EFER bits.
#[allow(missing_docs)]
pub mod efer {
    pub const SCE: u64 = 1 << 0;
    pub const LME: u64 = 1 << 8;
    pub const LMA: u64 = 1 << 10;
    pub const NXE: u64 = 1 << 11;
    pub const SVME: u64 = 1 << 12;
    pub const FFXSR: u64 = 1 << 14;
}

/// RFLAGS bits.
#[allow(missing_docs)]
pub mod rflags {
    pub const CF: u64 = 1 << 0;
    /// Always one.
    pub const FIXED: u64 = 1 << 1;
    pub const PF: u64 = 1 << 2;
    pub const AF: u64 = 1 << 4;
    pub const ZF: u64 = 1 << 6;
    pub const SF: u64 = 1 << 7;
    pub const TF: u64 = 1 << 8;
    pub const IF: u64 = 1 << 9;
    pub const DF: u64 = 1 << 10;
    pub const OF: u64 = 1 << 11;
    pub const NT: u64 = 1 << 14;
    pub const RF: u64 = 1 << 16;
    pub const VM: u64 = 1 << 17;
    pub const AC: u64 = 1 << 18;
}

/// [`VcpuState::code_segment`] for these attributes of CS and this EFER.
#[inline(always)]
pub const fn code_segment(attributes: u16, efer: u64) -> u64 {
    attributes as u64 | efer << 16
}

/// Read and write access to the registers of one VCPU. Setters store raw values: callers have validated
/// them as the architecture demands.
#[allow(missing_docs)]
pub trait VcpuState {
    fn gpr(&self, reg: Gpr) -> u64;
    fn set_gpr(&mut self, reg: Gpr, value: u64);
    fn rip(&self) -> u64;
    fn set_rip(&mut self, value: u64);
    fn rflags(&self) -> u64;
    fn set_rflags(&mut self, value: u64);
    fn cr0(&self) -> u64;
    fn set_cr0(&mut self, value: u64);
    fn cr2(&self) -> u64;
    fn set_cr2(&mut self, value: u64);
    fn cr3(&self) -> u64;
    fn set_cr3(&mut self, value: u64);
    fn cr4(&self) -> u64;
    fn set_cr4(&mut self, value: u64);
    fn efer(&self) -> u64;
    fn set_efer(&mut self, value: u64);
    fn dr6(&self) -> u64;
    fn set_dr6(&mut self, value: u64);
    fn dr7(&self) -> u64;
    fn set_dr7(&mut self, value: u64);
    fn segment(&self, seg: SegReg) -> Segment;
    fn set_segment(&mut self, seg: SegReg, value: Segment);
    fn gdtr(&self) -> TableReg;
    fn set_gdtr(&mut self, value: TableReg);
    fn idtr(&self) -> TableReg;
    fn set_idtr(&mut self, value: TableReg);

    /// The current privilege level, 0 to 3.
    fn cpl(&self) -> u8;

    /// The page-directory pointers of PAE paging, if it is in use and the processor loaded them into registers with CR3
    /// (VT-x); `None` where they are read from memory in each walk.
    #[inline(always)]
    fn pointers(&self) -> Option<[u64; 4]> {
        None
    }

    /// A number that stands for the address space in caches of what was found there: CR3, or what the processor uses in
    /// its place.
    #[inline(always)]
    fn address_space(&self) -> u64 {
        self.cr3()
    }

    /// What the width of its code follows from, for comparison: the attributes of CS, and EFER, whose LMA counts, above them.
    #[inline(always)]
    fn code_segment(&self) -> u64 {
        code_segment(self.segment(SegReg::Cs).attributes, self.efer())
    }

    /// Whether the VCPU executes 64-bit code (EFER.LMA and CS.L).
    fn is_64bit(&self) -> bool {
        self.efer() & efer::LMA != 0 && self.segment(SegReg::Cs).attributes & Segment::LONG != 0
    }

    /// The default operand and address width of the code segment in bits: 16, 32 or 64.
    fn code_bitness(&self) -> u32 {
        let cs = self.segment(SegReg::Cs);
        if self.efer() & efer::LMA != 0 && cs.attributes & Segment::LONG != 0 {
            64
        } else if cs.attributes & Segment::BIG != 0 {
            32
        } else {
            16
        }
    }
}

/// All of a VCPU's registers as plain data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ArchState {
    /// In encoding order, RSP included.
    pub gprs: [u64; 16],
    pub rip: u64,
    pub rflags: u64,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
    pub dr6: u64,
    pub dr7: u64,
    /// In the order of [`SegReg`].
    pub segments: [Segment; 8],
    pub gdtr: TableReg,
    pub idtr: TableReg,
    pub cpl: u8,
}

impl ArchState {
    /// The state after RESET (AMD APM 2, 14.1.3): real mode at f000:fff0. EDX, which has the processor's signature then, is the caller's.
    pub fn reset() -> ArchState {
        let data = Segment { selector: 0, attributes: 0x93, limit: 0xffff, base: 0 };
        let mut s = ArchState {
            rip: 0xfff0,
            rflags: rflags::FIXED,
            cr0: cr0::CD | cr0::NW | cr0::ET,
            dr6: 0xffff_0ff0,
            dr7: 0x400,
            segments: [data; 8],
            gdtr: TableReg { base: 0, limit: 0xffff },
            idtr: TableReg { base: 0, limit: 0xffff },
            ..ArchState::default()
        };
        s.segments[SegReg::Cs as usize] =
            Segment { selector: 0xf000, attributes: 0x9b, limit: 0xffff, base: 0xffff_0000 };
        s.segments[SegReg::Ldtr as usize] = Segment { selector: 0, attributes: 0x82, limit: 0xffff, base: 0 };
        s.segments[SegReg::Tr as usize] = Segment { selector: 0, attributes: 0x8b, limit: 0xffff, base: 0 };
        s
    }

    /// The state after INIT of a processor with this CR0 (Intel SDM 3, table 9-1; AMD APM 2, table 14-1): as after RESET, but caches
    /// stay on or off.
    pub fn init(cr0: u64) -> ArchState {
        ArchState { cr0: cr0::ET | cr0 & (cr0::CD | cr0::NW), ..ArchState::reset() }
    }

    /// Copies every register to `to`.
    pub fn store(&self, to: &mut impl VcpuState) {
        for reg in Gpr::ALL {
            to.set_gpr(reg, self.gpr(reg));
        }
        to.set_rip(self.rip);
        to.set_rflags(self.rflags);
        to.set_efer(self.efer);
        to.set_cr0(self.cr0);
        to.set_cr2(self.cr2);
        to.set_cr3(self.cr3);
        to.set_cr4(self.cr4);
        to.set_dr6(self.dr6);
        to.set_dr7(self.dr7);
        for seg in ALL_SEGMENTS {
            to.set_segment(seg, self.segment(seg));
        }
        to.set_gdtr(self.gdtr);
        to.set_idtr(self.idtr);
    }

    /// Reads every register of `from`.
    pub fn load(from: &impl VcpuState) -> ArchState {
        ArchState {
            gprs: Gpr::ALL.map(|reg| from.gpr(reg)),
            rip: from.rip(),
            rflags: from.rflags(),
            cr0: from.cr0(),
            cr2: from.cr2(),
            cr3: from.cr3(),
            cr4: from.cr4(),
            efer: from.efer(),
            dr6: from.dr6(),
            dr7: from.dr7(),
            segments: ALL_SEGMENTS.map(|seg| from.segment(seg)),
            gdtr: from.gdtr(),
            idtr: from.idtr(),
            cpl: from.cpl(),
        }
    }
}

/// All segment registers in the order of [`SegReg`].
pub const ALL_SEGMENTS: [SegReg; 8] =
    [SegReg::Es, SegReg::Cs, SegReg::Ss, SegReg::Ds, SegReg::Fs, SegReg::Gs, SegReg::Ldtr, SegReg::Tr];

impl VcpuState for ArchState {
    fn gpr(&self, reg: Gpr) -> u64 {
        self.gprs[reg as usize]
    }
    fn set_gpr(&mut self, reg: Gpr, value: u64) {
        self.gprs[reg as usize] = value;
    }
    fn rip(&self) -> u64 {
        self.rip
    }
    fn set_rip(&mut self, value: u64) {
        self.rip = value;
    }
    fn rflags(&self) -> u64 {
        self.rflags
    }
    fn set_rflags(&mut self, value: u64) {
        self.rflags = value;
    }
    fn cr0(&self) -> u64 {
        self.cr0
    }
    fn set_cr0(&mut self, value: u64) {
        self.cr0 = value;
    }
    fn cr2(&self) -> u64 {
        self.cr2
    }
    fn set_cr2(&mut self, value: u64) {
        self.cr2 = value;
    }
    fn cr3(&self) -> u64 {
        self.cr3
    }
    fn set_cr3(&mut self, value: u64) {
        self.cr3 = value;
    }
    fn cr4(&self) -> u64 {
        self.cr4
    }
    fn set_cr4(&mut self, value: u64) {
        self.cr4 = value;
    }
    fn efer(&self) -> u64 {
        self.efer
    }
    fn set_efer(&mut self, value: u64) {
        self.efer = value;
    }
    fn dr6(&self) -> u64 {
        self.dr6
    }
    fn set_dr6(&mut self, value: u64) {
        self.dr6 = value;
    }
    fn dr7(&self) -> u64 {
        self.dr7
    }
    fn set_dr7(&mut self, value: u64) {
        self.dr7 = value;
    }
    fn segment(&self, seg: SegReg) -> Segment {
        self.segments[seg as usize]
    }
    fn set_segment(&mut self, seg: SegReg, value: Segment) {
        self.segments[seg as usize] = value;
        if seg == SegReg::Ss {
            self.cpl = value.dpl();
        }
    }
    fn gdtr(&self) -> TableReg {
        self.gdtr
    }
    fn set_gdtr(&mut self, value: TableReg) {
        self.gdtr = value;
    }
    fn idtr(&self) -> TableReg {
        self.idtr
    }
    fn set_idtr(&mut self, value: TableReg) {
        self.idtr = value;
    }
    fn cpl(&self) -> u8 {
        self.cpl
    }
}
