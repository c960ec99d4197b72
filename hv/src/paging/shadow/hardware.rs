//! The registers under which the processor runs a guest on shadow tables.

use crate::arch::state::{cr0, cr4, efer};
use crate::paging::guest_walk::{PagingState, error_code};

/// Bits of the real CR0, CR4 and EFER that shadow paging decides; all others are the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareControls {
    /// CR0: PG and WP are set.
    pub cr0: u64,
    /// CR4: PAE is set (PSE means nothing then), PCIDE is clear; SMEP and SMAP are clear with paging off, where
    /// everything is a user page.
    pub cr4: u64,
    /// EFER: NXE is set. LME is clear unless long mode is active: the processor has paging on while the guest, on its way
    /// there, has it off.
    pub efer: u64,
}

impl HardwareControls {
    /// For a guest that believes in `state`.
    pub fn of(state: &PagingState) -> HardwareControls {
        HardwareControls::new(state.cr0, state.cr4, state.efer)
    }

    /// CR0 for a guest that believes in this one.
    pub const fn cr0(cr0: u64) -> u64 {
        cr0 | cr0::PG | cr0::WP
    }

    /// For a guest that believes in these registers.
    pub fn new(cr0: u64, cr4: u64, efer: u64) -> HardwareControls {
        let mut hidden = cr4::PCIDE;
        if cr0 & cr0::PG == 0 {
            hidden |= cr4::SMEP | cr4::SMAP;
        }
        let long = if efer & efer::LMA != 0 { efer::LME } else { 0 };
        HardwareControls {
            cr0: HardwareControls::cr0(cr0),
            cr4: cr4 & !hidden | cr4::PAE,
            efer: efer & !efer::LME | long | efer::NXE,
        }
    }
}

/// The highest bit of a physical address, in an entry. Processors with L1 terminal fault look up what the other address bits
/// name: page 0, of which the hypervisor uses nothing and guests get nothing (`boot::memory`), as with entries of all zeroes.
pub(super) const RESERVED: u64 = 1 << 51;

/// Whether that bit is reserved on a processor with this many bits of physical addresses.
pub(super) const fn has_reserved_bit(physical_bits: u8) -> bool {
    physical_bits < 52
}

/// Where the processor filters page faults: the bits of the error code with which a fault has to exit. All others are the
/// guest's own, with the guest's error code, and can be delivered. `None`: all have to exit.
///
/// Outside of long mode page-directory pointers that are not filled look like ones of the guest. The processor runs with EFER.NXE,
/// and so calls fetches by their name; if the guest has neither NXE nor SMEP, it must not see that.
pub fn exiting_faults(cr4: u64, efer: u64, physical_bits: u8) -> Option<u32> {
    let tells_fetches = efer & efer::NXE != 0 || cr4 & cr4::SMEP != 0;
    let bits = if tells_fetches { error_code::PRESENT } else { error_code::PRESENT | error_code::FETCH };
    (has_reserved_bit(physical_bits) && efer & efer::LMA != 0).then_some(bits)
}
