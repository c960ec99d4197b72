//! The stand-ins for the programs of SPLASH-2x, in a guest. With the guest kit each large array is in a region of its own, so that a
//! policy of page replacement sees it as an object. Without it all are in plain memory.

use palimpsest_region::Region;
use workloads::science::{self, LARGE, Program, Watch};

use crate::Work;

/// Where arrays are.
struct Regions {
    /// All that are not large.
    small: Region,
}

impl Watch for Regions {
    type Memory = Region;

    fn memory(&self, bytes: u64) -> Region {
        if bytes >= LARGE { Region::new() } else { self.small.clone() }
    }

    fn touch(&self, _address: u64) {}

    fn allocated(&self, _address: u64, _bytes: u64) {}
}

/// Prepares a program with this many thousandths of its extent in each direction.
pub fn prepare(program: &'static Program, scale_milli: u32) -> Work {
    let regions = Regions { small: Region::new() };
    Box::new(move || Ok(science::run(program, scale_milli, &regions)))
}
