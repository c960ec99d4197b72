//! What translates the guest's addresses, and the control registers that follow from it.
//!
//! With nested tables the guest's CR3 and EFER are its own, and so are the bits of CR0 and CR4 that are not masked. With shadow
//! tables the processor holds what they need ([`HardwareControls`]), and [`GuestCr`] what the guest put there. In either case the
//! guest reads the masked bits of CR0 and CR4 from their read shadows, without an exit, and what it changes there exits.
//! CR3-target values are of no use to either: they would let a guest load CR3 with a value of its own, and with shadow
//! tables that is never the processor's. Intel SDM 3, 24.6.6, 25.3 and 28.3.

use super::Vmx;
use super::cache::{Field, Part};
use super::controls::secondary;
use super::entry::work;
use super::field::guest;
use super::instr;
use crate::arch::addr::{Gva, Hpa, is_canonical};
use crate::arch::state::{SegReg, VcpuState, cr0, cr4, rflags};
use crate::arch::vector;
use crate::paging::engine::{Engine, Engines};
use crate::paging::shadow::{HardwareControls, exiting_faults};
use crate::virt::Roots;
use crate::virt::exit::{self};

/// Control registers as the guest believes them to be, as far as no read shadow holds them.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestCr {
    pub cr3: u64,
    pub efer: u64,
    /// Page-directory pointers of PAE paging.
    pub pointers: [u64; 4],
}

/// CR0 bits that must not be as a guest wants them: NE is always 1 in VMX operation, and caches stay on because exits leave
/// CD and NW alone.
const CR0_ALWAYS: u64 = cr0::NE | cr0::CD | cr0::NW;
/// CR0 bits that decide which shadow tables translate.
const CR0_SHADOW: u64 = cr0::PE | cr0::PG | cr0::WP;

/// CR4 bits that belong to the guest under any tables. Its CPUID offers all of those that the processor has.
const CR4_HARMLESS: u64 = cr4::VME
    | cr4::PVI
    | cr4::TSD
    | cr4::DE
    | cr4::PCE
    | cr4::OSFXSR
    | cr4::OSXMMEXCPT
    | cr4::UMIP
    | cr4::FSGSBASE;
/// CR4 bits that belong to it with nested tables too.
const CR4_PAGING: u64 = cr4::PSE | cr4::PAE | cr4::PGE | cr4::PCIDE | cr4::SMEP | cr4::SMAP;

/// EPT pointer: write-back tables, a walk of four levels.
const EPT_WALK: u64 = 6 | 3 << 3;
/// EPT pointer: accessed and dirty bits.
const EPT_ACCESSED_DIRTY: u64 = 1 << 6;

impl Vmx {
    pub(super) fn use_roots(&mut self, roots: Roots) {
        match roots {
            Roots::Nested(root) => self.use_nested(root),
            Roots::Shadow(root) => {
                if self.guest_cr.is_none() {
                    self.begin_shadow();
                }
                self.set(Field::Cr3, root.0);
            }
        }
    }

    /// On nested tables only an unrestricted guest runs without paging or protection. Shadow tables are used in the place of no
    /// paging; but there is no paging in real mode, nor with the code segment of real mode, which a guest keeps until its first
    /// far jump (SDM 3, 27.3.1.2); virtual-8086 mode has such a one, too.
    pub(super) fn usable_engines(&self) -> Engines {
        const PROTECTED_PAGING: u64 = cr0::PE | cr0::PG;
        const CODE: u64 = 8;
        let cr0 = self.cr0();
        let protected = self.features.unrestricted || cr0 & PROTECTED_PAGING == PROTECTED_PAGING;
        let in_code = || self.cache.segment(SegReg::Cs, Part::Rights) & CODE != 0;
        let paged = cr0 & cr0::PE != 0 && (in_code() || self.rflags() & rflags::VM != 0);
        Engines::NONE
            .with(Engine::Nested, self.features.ept && protected)
            .with(Engine::Shadow, paged)
            .with(Engine::Agile, paged)
    }

    fn use_nested(&mut self, root: Hpa) {
        let (cr0, cr4, efer) = (self.cr0(), self.cr4(), self.efer());
        let flags = if self.features.ept_accessed_dirty { EPT_ACCESSED_DIRTY } else { 0 };
        self.set(Field::EptPointer, root.0 | EPT_WALK | flags);
        // After a change of the engine `vcpu::mmu` asks for them again, if the policy wants them.
        self.cr3_exits = false;
        if let Some(guest) = self.guest_cr.take() {
            self.set(Field::Cr3, guest.cr3);
            self.write_pointers(guest.pointers);
        }
        self.paging_changed(cr0, cr4, efer);
    }

    fn begin_shadow(&mut self) {
        self.invlpg_exits = true;
        let (cr0, cr4, efer) = (self.cr0(), self.cr4(), self.efer());
        let pointers = self.pointers().unwrap_or_default();
        self.guest_cr = Some(GuestCr { cr3: self.cr3(), efer, pointers });
        self.paging_changed(cr0, cr4, efer);
    }

    fn paging_changed(&mut self, cr0: u64, cr4: u64, efer: u64) {
        let nested = self.guest_cr.is_none();
        let mut word = self.features.secondary;
        if nested {
            word |= secondary::EPT;
            if self.features.unrestricted {
                word |= secondary::UNRESTRICTED;
            }
        }
        self.set(Field::Secondary, word.into());
        self.write_masks();
        self.write_controls(cr0, cr4, efer);
        self.request(work::FLUSH);
    }

    /// Says which bits of CR0 and CR4 the guest reads from their shadows. Before that its registers cannot be told from the
    /// processor's.
    pub(super) fn write_masks(&mut self) {
        let paging = if self.guest_cr.is_none() { CR4_PAGING } else { 0 };
        self.set(Field::Cr0Mask, self.cr0_mask());
        self.set(Field::Cr4Mask, !(CR4_HARMLESS | paging));
    }

    fn cr0_mask(&self) -> u64 {
        match (self.guest_cr.is_some(), self.features.unrestricted) {
            (true, _) => CR0_ALWAYS | CR0_SHADOW,
            (false, true) => CR0_ALWAYS,
            (false, false) => CR0_ALWAYS | cr0::PE | cr0::PG,
        }
    }

    /// Gives the guest these registers, and the processor what follows from them.
    pub(super) fn write_controls(&mut self, cr0: u64, cr4: u64, efer: u64) {
        self.set(Field::Cr0Shadow, cr0);
        self.set(Field::Cr4Shadow, cr4);
        let mut hardware = HardwareControls { cr0, cr4, efer };
        if let Some(guest) = &mut self.guest_cr {
            guest.efer = efer;
            hardware = HardwareControls::new(cr0, cr4, efer);
        }
        self.choose_page_faults(cr4, efer);
        let free = if self.guest_cr.is_none() && self.features.unrestricted { cr0::PE | cr0::PG } else { 0 };
        // VMX operation demands some bits; an unrestricted guest is exempt from PE and PG (SDM 3, 23.8).
        let ones = self.features.cr0_ones & !free;
        self.set(Field::Cr0, (hardware.cr0 | ones) & !(cr0::CD | cr0::NW));
        // Machine checks are the host's; with MCE clear they would end it.
        self.set(Field::Cr4, hardware.cr4 | self.features.cr4_ones | cr4::MCE & self.features.cr4_allowed);
        self.set(Field::Efer, hardware.efer);
    }

    /// Says which page faults exit: with nested tables none. A fault whose error code has no bit of the mask does what the
    /// exception bitmap says, any other the opposite.
    fn choose_page_faults(&self, cr4: u64, efer: u64) {
        const EXIT: u64 = 1 << vector::PF;
        let (fault, mask) = match &self.guest_cr {
            None => (0, 0),
            Some(_) => match exiting_faults(cr4, efer, self.features.physical_bits) {
                None => (EXIT, 0),
                Some(bits) => (0, bits),
            },
        };
        // The processor runs without CR4.PCIDE: it refuses an INVPCID that names an address space, where that does not exit.
        let refused = !self.invlpg_exits && self.guest_cr.is_some() && cr4 & cr4::PCIDE != 0;
        let refusal = if refused { 1 << vector::GP } else { 0 };
        self.set(Field::Exceptions, exit::EXCEPTIONS | fault | refusal);
        self.set(Field::PageFaultMask, mask.into());
    }

    /// See [`Virt::set_invlpg_exits`](crate::virt::Virt::set_invlpg_exits).
    pub(super) fn change_invlpg_exits(&mut self, exits: bool) {
        if core::mem::replace(&mut self.invlpg_exits, exits) == exits {
            return;
        }
        self.choose_page_faults(self.cr4(), self.efer());
        self.request(work::CHANGED);
    }

    /// What the guest believes of CR0 or CR4.
    pub(super) fn masked(&self, hardware: Field, mask: Field, shadow: Field) -> u64 {
        let mask = self.cache.get(mask);
        self.cache.get(hardware) & !mask | self.cache.get(shadow) & mask
    }

    /// Sets the page-directory pointers of PAE paging. Entries load them from the VMCS with nested tables, and from the root
    /// without.
    pub(super) fn write_pointers(&mut self, pointers: [u64; 4]) {
        match &mut self.guest_cr {
            None => {
                self.pointers = Some(pointers);
                self.request(work::CHANGED);
            }
            Some(guest) => guest.pointers = pointers,
        }
    }

    /// The page-directory pointers of PAE paging, in use or not.
    pub(super) fn read_pointers(&self) -> [u64; 4] {
        match (&self.guest_cr, self.pointers) {
            (Some(guest), _) => guest.pointers,
            (None, Some(pointers)) => pointers,
            (None, None) if self.live.get() => core::array::from_fn(|n| {
                // SAFETY: after an exit of this VCPU.
                unsafe { self.cache.read(guest::POINTER_0 + 2 * n as u32) }
            }),
            (None, None) => [0; 4],
        }
    }

    /// Drops all translations of this VCPU.
    pub(super) fn drop_translations(&self) {
        let features = &self.features;
        // SAFETY: the processor has what its features say, and is in VMX operation.
        unsafe {
            if self.guest_cr.is_none() && features.ept {
                // By the EPT pointer: that drops combined translations of all VPIDs, and the guest-physical ones that
                // INVVPID leaves (SDM 3, 28.3.3.1).
                let kind = if features.invept_context { 1 } else { 2 };
                instr::invept(kind, self.cache.get(Field::EptPointer));
            } else if features.vpid {
                instr::invvpid(if features.invvpid_context { 1 } else { 2 }, self.vpid, 0);
            }
        }
    }

    /// Drops the translations that are not global, if not all are about to be dropped anyway.
    pub(super) fn flush_non_global(&mut self) {
        if self.work.get() & work::FLUSH != 0 || !self.features.vpid {
            return;
        }
        if self.live.get() && self.guest_cr.is_some() && self.features.invvpid_non_global {
            // SAFETY: as above.
            unsafe { instr::invvpid(3, self.vpid, 0) };
        } else {
            self.request(work::FLUSH);
        }
    }

    /// Drops the translations of one page, if not all are about to be dropped anyway. Without VPIDs every entry drops all.
    pub(super) fn flush_page(&mut self, gva: Gva) {
        if self.work.get() & work::FLUSH != 0 || !self.features.vpid {
            return;
        }
        // INVVPID fails for an address that is not canonical (SDM 3, 30.3); INVLPG of one does nothing, so that a flush
        // is too much at worst.
        if self.live.get() && self.features.invvpid_address && is_canonical(gva) {
            // SAFETY: as above; the address is canonical.
            unsafe { instr::invvpid(0, self.vpid, gva.0) };
        } else {
            self.request(work::FLUSH);
        }
    }
}
