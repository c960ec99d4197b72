//! Events of Intel processors that are not architectural, by family and model (SDM 3, chapter 20's tables and Intel's event lists).
//!
//! A model that is not here has the architectural events only. Where loads and stores are counted apart, an event has two
//! selects, and its value is the sum. From Skylake on the counters of walks leave out the time in nested tables: a figure that
//! means something else in each mode would mislead policies, so that those processors have none.

/// An event select with its unit mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select(pub u8, pub u8);

impl Select {
    /// The word for IA32_PERFEVTSELx.
    pub const fn word(self) -> u64 {
        self.0 as u64 | (self.1 as u64) << 8
    }
}

/// Events of a model, each with the selects whose sum it is; without any, the model does not have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelEvents {
    /// Data accesses that missed all TLBs.
    pub dtlb_misses: &'static [Select],
    /// Fetches that missed all TLBs.
    pub itlb_misses: &'static [Select],
    /// Cycles of walks.
    pub walk_cycles: &'static [Select],
    /// Misses of the second-level cache.
    pub l2_misses: &'static [Select],
}

/// Core 2: DTLB_MISSES.ANY, ITLB_MISSES, PAGE_WALKS.CYCLES. Its L2 is the last level.
const CORE2: ModelEvents = ModelEvents {
    dtlb_misses: &[Select(0x08, 1)],
    itlb_misses: &[Select(0x82, 0x12)],
    walk_cycles: &[Select(0x0c, 2)],
    l2_misses: &[],
};
/// Nehalem: DTLB_MISSES.WALK_COMPLETED, ITLB_MISSES.WALK_COMPLETED, L2_RQSTS.MISS.
const NEHALEM: ModelEvents = ModelEvents {
    dtlb_misses: &[Select(0x49, 2)],
    itlb_misses: &[Select(0x85, 2)],
    walk_cycles: &[],
    l2_misses: &[Select(0x24, 0xaa)],
};
/// Westmere counts cycles of walks, too: DTLB_MISSES.WALK_CYCLES.
const WESTMERE: ModelEvents = ModelEvents { walk_cycles: &[Select(0x49, 4)], ..NEHALEM };
/// Sandy Bridge: loads and stores apart.
const SANDY_BRIDGE: ModelEvents = ModelEvents {
    dtlb_misses: &[Select(0x08, 2), Select(0x49, 2)],
    itlb_misses: &[Select(0x85, 2)],
    walk_cycles: &[Select(0x08, 4), Select(0x49, 4)],
    l2_misses: &[],
};
/// Ivy Bridge: demand loads have other masks.
const IVY_BRIDGE: ModelEvents = ModelEvents {
    dtlb_misses: &[Select(0x08, 0x82), Select(0x49, 2)],
    walk_cycles: &[Select(0x08, 0x84), Select(0x49, 4)],
    ..SANDY_BRIDGE
};
/// Haswell and Broadwell: walks of each page size have a bit.
const HASWELL: ModelEvents = ModelEvents {
    dtlb_misses: &[Select(0x08, 0x0e), Select(0x49, 0x0e)],
    itlb_misses: &[Select(0x85, 0x0e)],
    walk_cycles: &[Select(0x08, 0x10), Select(0x49, 0x10)],
    l2_misses: &[Select(0x24, 0x3f)],
};
/// Skylake to Ice Lake and Tiger Lake.
const SKYLAKE: ModelEvents = ModelEvents { walk_cycles: &[], ..HASWELL };

/// The events of the processor with this CPUID leaf 1, EAX.
pub fn model_events(signature: u32) -> ModelEvents {
    let family = signature >> 8 & 15;
    let model = signature >> 4 & 15 | signature >> 12 & 0xf0;
    if family != 6 {
        return ModelEvents::default();
    }
    match model {
        0x0f | 0x16 | 0x17 | 0x1d => CORE2,
        0x1a | 0x1e | 0x1f | 0x2e => NEHALEM,
        0x25 | 0x2c | 0x2f => WESTMERE,
        0x2a | 0x2d => SANDY_BRIDGE,
        0x3a | 0x3e => IVY_BRIDGE,
        0x3c | 0x3d | 0x3f | 0x45 | 0x46 | 0x47 | 0x4f | 0x56 => HASWELL,
        0x4e | 0x55 | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6 => SKYLAKE,
        0x6a | 0x6c | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 => SKYLAKE,
        _ => ModelEvents::default(),
    }
}
