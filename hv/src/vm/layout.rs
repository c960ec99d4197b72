//! Where a guest's RAM lies in its physical address space, and the map that firmware would report.
//!
//! RAM fills `0..3 GiB` first and goes on at 4 GiB; between them lie PCI windows and the fixed devices. Both
//! ranges start on 1 GiB boundaries and have no holes, so that the P2m maps them with the largest leaves. RAM
//! lies also under the legacy hole (`0xa0000..1 MiB`): no device of ours lives there, and reserving it in the
//! map is enough. Used by the VM's construction (to populate the P2m), the loaders and the ACPI tables.

use core::ops::Range;

use abi::config::{MAX_MEMORY_MIB, MIN_MEMORY_MIB};
use arrayvec::ArrayVec;

use crate::arch::addr::Gpa;
use crate::device::layout::{ECAM, PCI_WINDOW_32};

/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// What is cleared of a guest's RAM at once, in bytes: RAM consists of whole pieces.
pub const PIECE: u64 = 256 << 10;
/// RAM below 4 GiB ends here at the latest; PCI windows follow.
pub const LOW_RAM_LIMIT: u64 = PCI_WINDOW_32.start;
/// RAM beyond [`LOW_RAM_LIMIT`] continues here.
pub const HIGH_RAM_BASE: u64 = 1 << 32;
/// End of conventional memory: an extended BIOS data area, empty, begins.
pub const EBDA: u64 = 0x9_fc00;
/// ACPI tables; the root pointer is at the start of [`RSDP_AREA`].
pub const ACPI_AREA: Range<u64> = 0xe_0000..0xf_0000;
/// Where firmware puts the root system description pointer, on a 16-byte boundary (ACPI 5.2.5.1).
pub const RSDP_AREA: Range<u64> = 0xf_0000..0x10_0000;

/// What a range of the memory map is for; the values are those of INT 15h E820h (ACPI 15.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// RAM for the guest.
    Usable = 1,
    /// Not for the guest.
    Reserved = 2,
    /// RAM that holds ACPI tables.
    Acpi = 3,
}

/// A range of the memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// First address.
    pub base: Gpa,
    /// Length in bytes.
    pub bytes: u64,
    /// What it is for.
    pub kind: MapKind,
}

/// The RAM of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    low_end: u64,
    high_end: u64,
}

impl MemoryLayout {
    /// The layout for `memory_mib` MiB of RAM; clamped to [`MIN_MEMORY_MIB`] and [`MAX_MEMORY_MIB`], which
    /// the configuration has checked.
    pub fn new(memory_mib: u64) -> MemoryLayout {
        let bytes = memory_mib.clamp(MIN_MEMORY_MIB, MAX_MEMORY_MIB) * MIB;
        let low_end = bytes.min(LOW_RAM_LIMIT);
        MemoryLayout { low_end, high_end: HIGH_RAM_BASE + (bytes - low_end) }
    }

    /// RAM as ranges of guest-physical addresses, lowest first: one or two.
    pub fn ram(&self) -> ArrayVec<Range<Gpa>, 2> {
        let ranges = [0..self.low_end, HIGH_RAM_BASE..self.high_end];
        ranges.into_iter().filter(|r| !r.is_empty()).map(|r| Gpa(r.start)..Gpa(r.end)).collect()
    }

    /// The [`PIECE`] of RAM with this number, lowest first; `None` beyond the last.
    pub fn piece(&self, number: u64) -> Option<Gpa> {
        let at = number.checked_mul(PIECE).filter(|at| *at < self.ram_bytes())?;
        Some(Gpa(if at < self.low_end { at } else { HIGH_RAM_BASE + (at - self.low_end) }))
    }

    /// RAM in bytes.
    pub fn ram_bytes(&self) -> u64 {
        self.low_end + (self.high_end - HIGH_RAM_BASE)
    }

    /// End of the RAM below 4 GiB.
    pub fn low_end(&self) -> Gpa {
        Gpa(self.low_end)
    }

    /// End of the RAM above 4 GiB; [`HIGH_RAM_BASE`] if there is none.
    pub fn high_end(&self) -> Gpa {
        Gpa(self.high_end)
    }

    /// The PCI host bridge's 64-bit window: as large as RAM, at least 32 GiB, on a 1 GiB boundary above RAM,
    /// and cut to what `phys_bits` physical address bits reach; `None` if nothing is left of it.
    pub fn pci_window_64(&self, phys_bits: u8) -> Option<Range<u64>> {
        let base = self.high_end.next_multiple_of(1 << 30);
        let size = (self.high_end - HIGH_RAM_BASE).next_power_of_two().max(32 << 30);
        let limit = 1u64 << phys_bits.min(52);
        let end = (base + size).min(limit);
        (base < end).then_some(base..end)
    }

    /// The memory map as firmware would report it: sorted, without overlaps.
    pub fn map(&self) -> ArrayVec<MapEntry, 8> {
        let ranges = [
            (0..EBDA, MapKind::Usable),
            (EBDA..0xa_0000, MapKind::Reserved),
            (ACPI_AREA, MapKind::Acpi),
            (RSDP_AREA, MapKind::Reserved),
            (MIB..self.low_end, MapKind::Usable),
            (ECAM, MapKind::Reserved),
            (HIGH_RAM_BASE..self.high_end, MapKind::Usable),
        ];
        let entry =
            |(r, kind): (Range<u64>, _)| MapEntry { base: Gpa(r.start), bytes: r.end - r.start, kind };
        ranges.into_iter().filter(|(r, _)| !r.is_empty()).map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts() -> impl Iterator<Item = (u64, MemoryLayout)> {
        let sizes = [0, 20, 21, 512, 1024, 3071, 3072, 3073, 4096, 6144, 1 << 20, 64 << 20, u64::MAX];
        sizes.into_iter().map(|mib| (mib, MemoryLayout::new(mib)))
    }

    #[test]
    fn ram_has_the_size_asked_for_and_big_alignment() {
        for (mib, layout) in layouts() {
            let ram = layout.ram();
            let sum: u64 = ram.iter().map(|r| r.end.0 - r.start.0).sum();
            assert_eq!(sum, mib.clamp(MIN_MEMORY_MIB, MAX_MEMORY_MIB) * MIB);
            assert_eq!(sum, layout.ram_bytes());
            assert!(ram.iter().all(|r| r.start.is_aligned(1 << 30)) && LOW_RAM_LIMIT.is_multiple_of(1 << 30));
            assert!(ram[0].end.0 <= LOW_RAM_LIMIT);
        }
    }

    #[test]
    fn pieces_are_all_of_ram() {
        for (_, layout) in layouts().filter(|(mib, _)| *mib <= 6144) {
            let mut pieces = (0..).map_while(|number| layout.piece(number));
            for range in layout.ram() {
                let starts = (range.start.0..range.end.0).step_by(PIECE as usize);
                assert!(starts.eq(
                    pieces.by_ref().map(|at| at.0).take(((range.end.0 - range.start.0) / PIECE) as usize)
                ));
                assert!(range.end.0.is_multiple_of(PIECE));
            }
            assert_eq!(pieces.next(), None);
            assert_eq!(layout.piece(u64::MAX), None);
        }
    }

    #[test]
    fn map_is_sorted_disjoint_and_usable_only_where_ram_is() {
        for (_, layout) in layouts() {
            let map = layout.map();
            assert!(map.windows(2).all(|w| w[0].base.0 + w[0].bytes <= w[1].base.0));
            for e in map.iter().filter(|e| e.kind == MapKind::Usable) {
                let inside = |r: &Range<Gpa>| r.start <= e.base && e.base.0 + e.bytes <= r.end.0;
                assert!(layout.ram().iter().any(inside), "{e:?}");
            }
            let usable: u64 = map.iter().filter(|e| e.kind == MapKind::Usable).map(|e| e.bytes).sum();
            assert_eq!(usable, layout.ram_bytes() - (MIB - EBDA));
        }
    }

    #[test]
    fn pci_window_lies_above_ram_and_within_the_address_width() {
        for (_, layout) in layouts() {
            for bits in [32, 36, 39, 40, 48, 52, 255] {
                if let Some(w) = layout.pci_window_64(bits) {
                    assert!(w.start >= layout.high_end().0 && w.end <= 1 << bits.min(52));
                }
            }
        }
        assert_eq!(MemoryLayout::new(512).pci_window_64(32), None);
        assert_eq!(MemoryLayout::new(4096).pci_window_64(40), Some(5 << 30..37 << 30));
    }
}
