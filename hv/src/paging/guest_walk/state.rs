//! The registers that decide how a guest-virtual address is translated.

use super::error_code;
use crate::arch::Access;
use crate::arch::state::{VcpuState, cr0, cr4, efer, rflags};

/// The kinds of guest paging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PagingKind {
    /// CR0.PG clear: linear addresses are physical.
    Off,
    /// 32-bit entries, two levels.
    TwoLevel,
    /// 64-bit entries, three levels, 32-bit addresses.
    Pae,
    /// 64-bit entries, four levels.
    FourLevel,
}

/// Properties of the guest's processor, the same for the life of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagingFeatures {
    /// MAXPHYADDR, 32 to 52 (CPUID leaf 0x8000_0008). The processor checks reserved bits by its own width, so
    /// that a guest should be told the same, but not more than the 48 bits that four-level nested tables
    /// translate.
    pub physical_bits: u8,
    /// 1 GiB pages (CPUID leaf 0x8000_0001, EDX bit 26).
    pub gib_pages: bool,
    /// Bit 8 is reserved in entries of levels 4 and 3 that point to tables: true of AMD's processors, where
    /// Intel's (and QEMU's emulation of both) ignore it.
    pub upper_global_reserved: bool,
    /// Bits 2:1 and 8:5 are reserved in the page-directory pointers of PAE paging: true of real processors. QEMU's
    /// emulation ignores them, and sets bit 5 as an accessed bit in those that it uses.
    pub pointer_bits_reserved: bool,
}

/// What the levels of a translation together allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Every level allows writes.
    pub writable: bool,
    /// Every level allows CPL 3.
    pub user: bool,
    /// No level forbids fetches.
    pub executable: bool,
}

/// Everything that a walk depends on besides memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagingState {
    /// CR0
    pub cr0: u64,
    /// CR3
    pub cr3: u64,
    /// CR4
    pub cr4: u64,
    /// EFER
    pub efer: u64,
    /// RFLAGS, for AC
    pub rflags: u64,
    /// The current privilege level: at 3, supervisor accesses are implicit ones (descriptor tables, the TSS),
    /// to which RFLAGS.AC does not apply.
    pub cpl: u8,
    /// The page-directory pointers of PAE paging, if the processor loaded them with CR3 (VT-x); `None` where
    /// they are read from memory in each walk (SVM).
    pub pdptes: Option<[u64; 4]>,
    /// The guest's processor.
    pub features: PagingFeatures,
}

impl PagingState {
    /// The state of a VCPU.
    pub fn of(vcpu: &impl VcpuState, features: PagingFeatures) -> PagingState {
        PagingState {
            cr0: vcpu.cr0(),
            cr3: vcpu.cr3(),
            cr4: vcpu.cr4(),
            efer: vcpu.efer(),
            rflags: vcpu.rflags(),
            cpl: vcpu.cpl(),
            pdptes: vcpu.pointers(),
            features,
        }
    }

    /// The kind of paging in use. EFER.LMA decides about 4 levels; LA57 is hidden from guests.
    pub fn kind(&self) -> PagingKind {
        if self.cr0 & cr0::PG == 0 {
            PagingKind::Off
        } else if self.cr4 & cr4::PAE == 0 {
            PagingKind::TwoLevel
        } else if self.efer & efer::LMA == 0 {
            PagingKind::Pae
        } else {
            PagingKind::FourLevel
        }
    }

    /// CR0.WP: supervisor writes respect read-only pages.
    pub fn write_protect(&self) -> bool {
        self.cr0 & cr0::WP != 0
    }

    /// Entries can forbid fetches.
    pub fn no_execute(&self) -> bool {
        self.cr4 & cr4::PAE != 0 && self.efer & efer::NXE != 0
    }

    /// CR4.SMEP: no supervisor fetches from user pages.
    pub fn smep(&self) -> bool {
        self.cr4 & cr4::SMEP != 0
    }

    /// CR4.SMAP: no supervisor data accesses to user pages, but for
    /// [`may_override_smap`](Self::may_override_smap).
    pub fn smap(&self) -> bool {
        self.cr4 & cr4::SMAP != 0
    }

    /// Whether a page with these rights can be accessed so (Intel SDM 3, 4.6.1).
    #[inline(always)]
    pub fn allows(&self, access: Access, page: Rights) -> bool {
        if access.user {
            page.user && (page.writable || !access.write) && (page.executable || !access.execute)
        } else if access.execute {
            page.executable && !(page.user && self.smep())
        } else {
            let writable = page.writable || !self.write_protect();
            let smap = page.user && self.smap() && !self.may_override_smap();
            !smap && (writable || !access.write)
        }
    }

    /// The error code of a #PF of this access; `code` holds P and RSVD (Intel SDM 3, 4.7).
    #[inline]
    pub fn fault_code(&self, access: Access, code: u32) -> u32 {
        let mut code = code;
        if access.write {
            code |= error_code::WRITE;
        }
        if access.user {
            code |= error_code::USER;
        }
        if access.execute && (self.smep() || self.no_execute()) {
            code |= error_code::FETCH;
        }
        code
    }

    /// RFLAGS.AC lets explicit supervisor accesses through SMAP.
    pub fn may_override_smap(&self) -> bool {
        self.cpl < 3 && self.rflags & rflags::AC != 0
    }
}
