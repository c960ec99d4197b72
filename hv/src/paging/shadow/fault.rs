//! What a fault is handled with: the guest's address space, and the access that failed; and what became of it.

use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::guest_walk::PagingState;
use crate::paging::p2m::P2m;

/// What decides where the guest's addresses lead, besides the shadow tables: the registers, the guest's own tables (which are in
/// its RAM), and where that RAM is.
///
/// It is passed by value: in inlined callers its fields then stay in registers.
#[derive(Debug)]
pub struct AddressSpace<'a, T: TableMemory, G: GuestMemory> {
    /// Where guest-physical addresses lead.
    pub p2m: &'a P2m<T>,
    /// The RAM that they lead to, as the guest sees it.
    pub ram: &'a G,
    /// The registers of the VCPU.
    pub state: &'a PagingState,
}

impl<'a, T: TableMemory, G: GuestMemory> AddressSpace<'a, T, G> {
    /// The address space of a VCPU with these registers.
    #[inline(always)]
    pub fn new(p2m: &'a P2m<T>, ram: &'a G, state: &'a PagingState) -> Self {
        AddressSpace { p2m, ram, state }
    }
}

// Not derived: that would ask the same of the two memories.
impl<T: TableMemory, G: GuestMemory> Clone for AddressSpace<'_, T, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: TableMemory, G: GuestMemory> Copy for AddressSpace<'_, T, G> {}

/// A page fault of the processor on shadow tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// The address, which is canonical.
    pub gva: Gva,
    /// What the error code says the guest did there.
    pub access: Access,
}

/// What became of a page fault of the processor on shadow tables.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowOutcome {
    /// The tables now allow the access: flush and let the guest try again. `prefetched` neighbouring entries
    /// were filled too.
    Filled {
        /// Entries filled besides the one needed.
        prefetched: u8,
    },
    /// The guest takes #PF with this error code; CR2 is the address.
    GuestFault(u32),
    /// The access goes to the device bus.
    Mmio(Gpa),
    /// A write to ROM.
    RomWrite(Gpa),
    /// A write to RAM that the hypervisor wants to see first (not writable in the P2m).
    WriteProtected(Gpa),
    /// There is nothing at this address.
    NotMapped(Gpa),
    /// RAM that is mapped to the cache of this domain, which is not that of the tables in use.
    Closed(Gpa, u8),
    /// The VCPU is in a phase of regioning: [`fault_in_phase`](super::Shadow::fault_in_phase) decides. Nothing has changed.
    InPhase,
    /// RAM that is not open in the tables of a phase.
    Touched {
        /// Where.
        gpa: Gpa,
        /// The guest pages, and its entries let programs use the address.
        user: bool,
    },
    /// The guest's entry at this address is not in memory.
    TableNotRam(Gpa),
    /// The guest may write there, but not by itself: emulate the instruction, then tell
    /// [`Shadow::written`](super::Shadow::written).
    EmulateWrite(Gpa),
    /// Other processors kept changing the tables: let the guest try again.
    Retry,
}

impl PageFault {
    /// A fault of `access` at `gva`.
    #[inline(always)]
    pub fn new(gva: Gva, access: Access) -> PageFault {
        PageFault { gva, access }
    }

    /// The same at the address that counts: only these bits of it do.
    #[inline(always)]
    pub(super) fn within(self, linear: u64) -> PageFault {
        PageFault { gva: Gva(self.gva.0 & linear), ..self }
    }

    /// The error code with which the guest takes it, if it is the guest's own; `code` holds P and RSVD.
    #[inline(always)]
    pub(super) fn code(self, state: &PagingState, code: u32) -> u32 {
        state.fault_code(self.access, code)
    }
}
