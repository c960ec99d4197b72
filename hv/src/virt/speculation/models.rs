//! Which Intel processors are affected by what, where ARCH_CAPABILITIES does not say that they are not.
//!
//! By Intel's public guidance ("Affected Processors: Guidance for Security Issues on Intel Processors"), which the kernels
//! follow: processors of family 6 are affected by all of these unless they are named here. Those made since say by
//! ARCH_CAPABILITIES what they are not affected by. AMD's and Hygon's are affected by none of them.

use super::needs::{Model, Vendor};

/// Not affected by foreshadow (L1TF).
pub const L1TF: u8 = 1 << 0;
/// Not affected by microarchitectural data sampling (MDS).
pub const MDS: u8 = 1 << 1;
/// Without the erratum of the instruction TLB with several page sizes.
pub const MULTIHIT: u8 = 1 << 2;
/// Does not speculate at all.
pub const ALL: u8 = L1TF | MDS | MULTIHIT | SPECULATION;
/// Does not speculate.
pub const SPECULATION: u8 = 1 << 3;

/// Models of family 6, and what they do not have.
const SPARED: &[(u32, u8)] = &[
    // Bonnell and Saltwell execute in order.
    (0x1c, ALL),
    (0x26, ALL),
    (0x27, ALL),
    (0x35, ALL),
    (0x36, ALL),
    // Silvermont and Airmont.
    (0x37, L1TF | MULTIHIT),
    (0x4a, L1TF | MULTIHIT),
    (0x4c, L1TF | MULTIHIT),
    (0x4d, L1TF | MULTIHIT),
    (0x5a, L1TF | MULTIHIT),
    (0x75, L1TF | MULTIHIT),
    // Goldmont, Goldmont Plus.
    (0x5c, L1TF | MDS | MULTIHIT),
    (0x5f, L1TF | MDS | MULTIHIT),
    (0x7a, L1TF | MDS | MULTIHIT),
    // Tremont says the rest itself.
    (0x86, L1TF | MULTIHIT),
    (0x8a, L1TF | MULTIHIT),
    (0x96, L1TF | MULTIHIT),
    (0x9c, L1TF | MULTIHIT),
    // Knights Landing and Knights Mill.
    (0x57, L1TF | MULTIHIT),
    (0x85, L1TF | MULTIHIT),
];

/// What this processor is known not to have; `None` if it is none of which anything is known.
pub fn spared(model: Model) -> u8 {
    match (model.vendor, model.family) {
        (Vendor::Intel, 6) => {
            SPARED.iter().find(|(number, _)| *number == model.model).map_or(0, |(_, spared)| *spared)
        }
        // The Pentium 4 has no nested paging, and the guidance does not name it; later families say what they have.
        _ => L1TF | MDS | MULTIHIT,
    }
}
