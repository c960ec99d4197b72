//! A summary of the memory map.

use core::fmt;

use super::Size;
use crate::firmware::info::{Region, RegionKind};

/// What all ranges of a kind come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Total {
    ranges: usize,
    bytes: u64,
    end: u64,
}

/// The summary: usable memory, ACPI tables, memory of firmware, reserved, everything else.
#[derive(Debug, PartialEq, Eq)]
pub struct Map([Total; 5]);

const NAMES: [&str; 5] = ["usable", "ACPI tables", "ACPI non-volatile", "reserved", "other"];

impl Map {
    /// Adds up the loader's map; ranges that overlap count as often as they do there.
    pub fn new(regions: &[Region]) -> Map {
        let mut totals = [Total::default(); 5];
        for region in regions {
            let total = &mut totals[match region.kind {
                RegionKind::Usable => 0,
                RegionKind::AcpiTables => 1,
                RegionKind::AcpiNvs => 2,
                RegionKind::Reserved => 3,
                RegionKind::Other(_) => 4,
            }];
            total.ranges += 1;
            total.bytes = total.bytes.saturating_add(region.range.end.saturating_sub(region.range.start));
            total.end = total.end.max(region.range.end);
        }
        Map(totals)
    }
}

/// A line for the sum, and one for the parts.
impl fmt::Display for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usable = self.0[0];
        writeln!(f, "memory: {} usable, up to {:#x}", Size(usable.bytes), usable.end)?;
        let mut separator = "  map: ";
        for (name, total) in NAMES.iter().zip(self.0).filter(|(_, total)| total.ranges != 0) {
            write!(f, "{separator}{name} {} in {}", Size(total.bytes), total.ranges)?;
            separator = ", ";
        }
        if self.0.iter().all(|total| total.ranges == 0) { Ok(()) } else { writeln!(f) }
    }
}
