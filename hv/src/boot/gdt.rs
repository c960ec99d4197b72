//! Segment descriptors and the task-state segment of one PCPU.
//!
//! The TSS is there for its interrupt stacks only (AMD APM 2, 8.9.4 and 12.2.5). Its descriptor is per PCPU
//! because LTR marks it busy.

use core::mem::offset_of;

/// Selector of the 64-bit code segment.
pub const CODE: u16 = 8;
/// Selector of the data segment.
pub const DATA: u16 = 16;
/// Selector of the task-state segment.
pub const TSS: u16 = 24;

/// Interrupt-stack-table slots, as a gate names them (0 is the current stack).
pub mod ist {
    /// Non-maskable interrupts.
    pub const NMI: u8 = 1;
    /// Double faults: the stack may be what broke.
    pub const DOUBLE_FAULT: u8 = 2;
    /// Machine checks.
    pub const MACHINE_CHECK: u8 = 3;
    /// External interrupts.
    pub const INTERRUPT: u8 = 4;
    /// How many slots are used.
    pub const COUNT: usize = 4;
}

/// The 64-bit task-state segment.
#[repr(C, packed(4))]
pub struct Tss {
    reserved0: u32,
    rsp: [u64; 3],
    reserved1: u64,
    ist: [u64; 7],
    reserved2: u64,
    reserved3: u16,
    io_map_base: u16,
}

const _: () = assert!(size_of::<Tss>() == 104 && offset_of!(Tss, ist) == 0x24);

impl Tss {
    /// No stacks.
    pub const EMPTY: Tss = Tss {
        reserved0: 0,
        rsp: [0; 3],
        reserved1: 0,
        ist: [0; 7],
        reserved2: 0,
        reserved3: 0,
        io_map_base: 0,
    };

    /// A TSS whose interrupt stacks have these tops, slot 1 first.
    pub fn new(tops: [u64; ist::COUNT]) -> Tss {
        let mut slots = [0; 7];
        slots[..ist::COUNT].copy_from_slice(&tops);
        // An I/O map beyond the limit is none.
        Tss { ist: slots, io_map_base: size_of::<Tss>() as u16, ..Tss::EMPTY }
    }
}

/// Null, code, data, and the two halves of the TSS descriptor.
pub type Gdt = [u64; 5];

/// The GDT of a PCPU whose TSS lies at `tss`.
pub const fn table(tss: u64) -> Gdt {
    let limit = size_of::<Tss>() as u64 - 1;
    let available_tss = 0x89 << 40;
    let low = limit | (tss & 0xff_ffff) << 16 | available_tss | (tss >> 24 & 0xff) << 56;
    // Accessed bits are set already, so that loading a segment register writes nothing.
    [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, low, tss >> 32]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts the base together again as the processor does (APM 2, 4.8.3).
    #[test]
    fn tss_descriptor_holds_base_limit_and_type() {
        let tss = 0x1234_5678_9abc_def0;
        let [_, _, _, low, high] = table(tss);
        let base = low >> 16 & 0xff_ffff | (low >> 56) << 24 | high << 32;
        assert_eq!(base, tss);
        assert_eq!(low & 0xffff, 103);
        assert_eq!(low >> 40 & 0xff, 0x89);
    }
}
