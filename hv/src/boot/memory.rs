//! Which memory is free at start, from the boot loader's map.
//!
//! Pure. Firmware's maps are not trusted to be sorted, disjoint or aligned: what any entry calls unusable is not used,
//! and only whole pages are.

use core::ops::Range;

use crate::arch::addr::PAGE_SIZE;
use crate::firmware::info::{BootInfo, RegionKind};
use crate::mem::ranges::{RangeSet, TooManyPieces};

/// Pieces of a set of physical addresses.
pub type Ranges = RangeSet<512>;

/// Memory below this address is left to firmware and to the start of other processors.
pub const LOW_MEMORY: u64 = 1 << 20;

/// Identity mapping reaches the lower half of the address space only.
pub const HIGHEST: u64 = 1 << 47;

/// The smallest run of pages that covers `range`.
fn pages_over(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE_SIZE * PAGE_SIZE..range.end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX)
}

/// All whole pages of RAM above [`LOW_MEMORY`] that nothing occupies: not firmware, not the hypervisor's `image`, no
/// module, not the loader's information.
pub fn free(info: &BootInfo, image: Range<u64>) -> Result<Ranges, TooManyPieces> {
    let mut free = unused(info)?;
    free.remove(0..LOW_MEMORY)?;
    free.remove(pages_over(&image))?;
    Ok(free)
}

/// A page that other processors can start in: they begin in real mode, below 1 MiB. Neither page 0, which is not mapped, nor
/// what firmware or the boot loader uses; the highest, because firmware may use what is low and not say so.
pub fn low_page(info: &BootInfo) -> Option<u64> {
    /// Above it there are video memory and ROMs; and start-up vectors from A0h on are reserved.
    const END: u64 = 0xa_0000;
    let mut low = unused(info).ok()?;
    low.remove(END..u64::MAX).ok()?;
    let last = low.iter().next_back()?;
    (last.end > PAGE_SIZE).then_some(last.end - PAGE_SIZE)
}

/// All whole pages of RAM but firmware's, modules and the loader's information.
fn unused(info: &BootInfo) -> Result<Ranges, TooManyPieces> {
    let mut unused = Ranges::new();
    for region in info.regions.iter().filter(|r| r.kind == RegionKind::Usable) {
        let inner =
            region.range.start.div_ceil(PAGE_SIZE) * PAGE_SIZE..region.range.end / PAGE_SIZE * PAGE_SIZE;
        // Only whole pages: a part may be firmware's.
        unused.add(inner)?;
    }
    for region in info.regions.iter().filter(|r| r.kind != RegionKind::Usable) {
        // After all usable regions were added: where a map contradicts itself, the cautious entry counts.
        unused.remove(pages_over(&region.range))?;
    }
    unused.remove(HIGHEST..u64::MAX)?;
    for module in &info.modules {
        unused.remove(pages_over(&module.range))?;
    }
    if let Some(range) = &info.in_use {
        unused.remove(pages_over(range))?;
    }
    Ok(unused)
}

/// All memory that the map calls RAM, in use or not: the hypervisor maps it cached.
pub fn ram(info: &BootInfo) -> Result<Ranges, TooManyPieces> {
    let mut ram = Ranges::new();
    for region in &info.regions {
        if matches!(region.kind, RegionKind::Usable | RegionKind::AcpiTables | RegionKind::AcpiNvs) {
            ram.add(pages_over(&region.range))?;
        }
    }
    for region in &info.regions {
        if matches!(region.kind, RegionKind::Reserved | RegionKind::Other(_)) {
            ram.remove(pages_over(&region.range))?;
        }
    }
    ram.remove(HIGHEST..u64::MAX)?;
    Ok(ram)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firmware::info::Module;
    use proptest::prelude::*;

    fn info(regions: &[(Range<u64>, u32)], modules: &[(u64, u64)]) -> BootInfo {
        let mut info = BootInfo::default();
        for (range, kind) in regions {
            info.push_region(range.start, range.end - range.start, *kind);
        }
        for (start, len) in modules {
            info.modules.push(Module { range: *start..start + len, command_line: Default::default() });
        }
        info
    }

    #[test]
    fn a_pc() {
        let info = info(
            &[
                (0..0x9fc00, 1),
                (0x9fc00..0xa0000, 2),
                (0xf0000..0x100000, 2),
                (0x100000..0x1ffe0000, 1),
                (0x1ffe0000..0x20000000, 2),
            ],
            &[(0x1ff00800, 0xdf001)],
        );
        let free = free(&info, 0x200000..0x2ff123).unwrap();
        assert_eq!(free.iter().collect::<Vec<_>>(), [0x100000..0x200000, 0x300000..0x1ff00000]);
        assert_eq!(low_page(&info), Some(0x9e000));
        let ram = ram(&info).unwrap();
        assert_eq!(ram.iter().collect::<Vec<_>>(), [0..0x9f000, 0x100000..0x1ffe0000]);
    }

    #[test]
    fn other_processors_start_in_an_unused_page() {
        let page = |regions: &[(Range<u64>, u32)], modules: &[(u64, u64)]| low_page(&info(regions, modules));
        assert_eq!(page(&[(0..0x100000, 1)], &[]), Some(0x9f000));
        assert_eq!(page(&[(0..0x2000, 1)], &[]), Some(0x1000));
        assert_eq!(page(&[(0..0x1fff, 1)], &[]), None);
        assert_eq!(page(&[(0..0x100000, 1), (0x1800..0xa0000, 4)], &[]), None);
        assert_eq!(page(&[(0..0xa0000, 1)], &[(0x9e800, 0x1000)]), Some(0x9d000));
        assert_eq!(page(&[(0x100000..0x200000, 1)], &[]), None);
    }

    proptest! {
        /// Whatever the map says, a free page is whole, was called usable, and has no other use.
        #[test]
        fn free_pages_are_free(regions in prop::collection::vec((0u64..0x40_0000, 1u64..0x20_0000, 1u32..5), 1..12),
                               modules in prop::collection::vec((0u64..0x40_0000, 1u64..0x1_0000), 0..4)) {
            let regions: Vec<_> = regions.into_iter().map(|(at, len, kind)| (at..at + len, kind)).collect();
            let image = 0x20_0000..0x28_0000;
            let free = free(&info(&regions, &modules), image.clone()).unwrap();
            let overlaps = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
            for range in free.iter() {
                prop_assert!(range.start % PAGE_SIZE == 0 && range.end % PAGE_SIZE == 0);
                prop_assert!(range.start >= LOW_MEMORY && !overlaps(&range, &image));
                prop_assert!(modules.iter().all(|(at, len)| !overlaps(&range, &(*at..at + len))));
                prop_assert!(regions.iter().all(|(r, kind)| *kind == 1 || !overlaps(&range, r)));
                for page in range.step_by(PAGE_SIZE as usize) {
                    prop_assert!(regions.iter().any(|(r, kind)| *kind == 1 && overlaps(r, &(page..page + PAGE_SIZE))));
                }
            }
        }
    }
}
