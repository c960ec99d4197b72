//! The registers with which kernels start: flat 32-bit protected mode, or 64-bit mode over identity page
//! tables.

use super::place::Placer;
use super::{File, LoadError};
use crate::arch::addr::PAGE_SIZE;
use crate::arch::state::{ArchState, SegReg, Segment, TableReg, cr0, cr4, efer, rflags};
use crate::mem::guest_memory::GuestMemory;

/// The selectors that the Linux boot protocol demands (`Documentation/arch/x86/boot.rst`, 32-bit and 64-bit
/// protocol): `__BOOT_CS` and `__BOOT_DS`. The other protocols leave the values open.
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;

/// Flat code (execute/read, accessed) and data (read/write, accessed) descriptors.
const CODE32: u64 = 0x00cf_9b00_0000_ffff;
const CODE64: u64 = 0x00af_9b00_0000_ffff;
const DATA: u64 = 0x00cf_9300_0000_ffff;

/// Protected mode without paging, everything flat, interrupts off.
pub fn protected_mode(entry: u32, gdt: u64) -> ArchState {
    let code = Segment::NON_SYSTEM | Segment::PRESENT | Segment::BIG | Segment::GRANULAR | 0xb;
    let mut state = flat(code, gdt);
    state.rip = entry.into();
    state
}

/// 64-bit mode with the tables at `cr3`, interrupts off.
pub fn long_mode(entry: u64, gdt: u64, cr3: u64) -> ArchState {
    let code = Segment::NON_SYSTEM | Segment::PRESENT | Segment::LONG | Segment::GRANULAR | 0xb;
    let mut state = flat(code, gdt);
    state.rip = entry;
    state.cr0 |= cr0::PG;
    state.cr3 = cr3;
    state.cr4 = cr4::PAE;
    state.efer = efer::LME | efer::LMA;
    state
}

fn flat(code: u16, gdt: u64) -> ArchState {
    let data = Segment::NON_SYSTEM | Segment::PRESENT | Segment::BIG | Segment::GRANULAR | 0x3;
    let mut state = ArchState::reset();
    state.gprs = [0; 16];
    state.rflags = rflags::FIXED;
    state.cr0 = cr0::PE | cr0::ET | cr0::NE;
    for seg in [SegReg::Es, SegReg::Ss, SegReg::Ds, SegReg::Fs, SegReg::Gs] {
        state.segments[seg as usize] = Segment::flat(BOOT_DS, data);
    }
    state.segments[SegReg::Cs as usize] = Segment::flat(BOOT_CS, code);
    // A present 32-bit TSS, as the PVH protocol demands; there is no switch to it.
    state.segments[SegReg::Tr as usize] = Segment { selector: 0, attributes: 0x8b, limit: 0x67, base: 0 };
    state.gdtr = TableReg { base: gdt, limit: 4 * 8 - 1 };
    state.idtr = TableReg { base: 0, limit: 0 };
    state
}

/// Writes the descriptor table that [`protected_mode`] or [`long_mode`] refer to; returns its address.
pub fn write_gdt<M: GuestMemory>(
    p: &mut Placer<'_, M>,
    file: &File<'_>,
    long: bool,
) -> Result<u64, LoadError> {
    let at = p.claim_lowest(file, "descriptor table", PAGE_SIZE, PAGE_SIZE, 0..1 << 32)?;
    let entries = [0, 0, if long { CODE64 } else { CODE32 }, DATA];
    p.write(file, at, entries.map(u64::to_le_bytes).as_flattened())?;
    Ok(at)
}

/// Writes page tables that map the first 4 GiB to themselves with 2 MiB pages; returns the root's address.
pub fn write_identity_map<M: GuestMemory>(p: &mut Placer<'_, M>, file: &File<'_>) -> Result<u64, LoadError> {
    const PRESENT_WRITABLE: u64 = 3;
    const LEAF: u64 = PRESENT_WRITABLE | 1 << 7;
    let root = p.claim_lowest(file, "page tables", 6 * PAGE_SIZE, PAGE_SIZE, 0..1 << 32)?;
    p.zero(file, root, 2 * PAGE_SIZE)?;
    let pdpt = root + PAGE_SIZE;
    p.write(file, root, &(pdpt | PRESENT_WRITABLE).to_le_bytes())?;
    for gib in 0..4 {
        let directory = pdpt + (1 + gib) * PAGE_SIZE;
        p.write(file, pdpt + gib * 8, &(directory | PRESENT_WRITABLE).to_le_bytes())?;
        let leaves: [u64; 512] = core::array::from_fn(|i| gib << 30 | (i as u64) << 21 | LEAF);
        p.write(file, directory, leaves.map(u64::to_le_bytes).as_flattened())?;
    }
    Ok(root)
}
