//! The decision: from what a processor says of itself to what is done.

use super::models::{self, spared};
use crate::arch::emulator::is_qemu_tcg;

use super::{Measures, Mitigation, Mitigations, Plan, State, arch, spec_ctrl};

/// The vendor of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// Intel
    Intel,
    /// AMD, or Hygon
    Amd,
    /// Any other vendor.
    Other,
}

/// Which processor it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// The vendor.
    pub vendor: Vendor,
    /// Display family.
    pub family: u32,
    /// Display model.
    pub model: u32,
}

/// What CPUID says that concerns speculation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// SPEC_CTRL, with at least one of its bits.
    pub spec_ctrl: bool,
    /// PRED_CMD's barrier.
    pub ibpb: bool,
    /// VERW clears buffers.
    pub md_clear: bool,
    /// FLUSH_CMD.
    pub flush_l1d: bool,
    /// ARCH_CAPABILITIES.
    pub arch_capabilities: bool,
    /// Transactions (RTM), which leak what MDS does.
    pub rtm: bool,
    /// VMRUN switches SPEC_CTRL.
    pub virtual_spec_ctrl: bool,
    /// The processor is QEMU's emulation, which does not speculate.
    pub emulated: bool,
}

impl Model {
    /// Asks `cpuid(leaf, subleaf)`.
    pub fn read(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Model {
        let [_, b, c, d] = cpuid(0, 0);
        let name = [b, d, c].map(u32::to_le_bytes);
        let vendor = match name.as_flattened() {
            b"GenuineIntel" => Vendor::Intel,
            b"AuthenticAMD" | b"HygonGenuine" => Vendor::Amd,
            _ => Vendor::Other,
        };
        let signature = cpuid(1, 0)[0];
        let (base, low) = (signature >> 8 & 0xf, signature >> 4 & 0xf);
        let family = if base == 0xf { base + (signature >> 20 & 0xff) } else { base };
        let model = if base == 6 || base == 0xf { (signature >> 16 & 0xf) << 4 | low } else { low };
        Model { vendor, family, model }
    }
}

impl Offers {
    /// Asks `cpuid(leaf, subleaf)`.
    pub fn read(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Offers {
        let has = |word: u32, bit: u32| word >> bit & 1 != 0;
        let basic = |leaf| if cpuid(0, 0)[0] >= leaf { cpuid(leaf, 0) } else { [0; 4] };
        let extended = |leaf| if cpuid(0x8000_0000, 0)[0] >= leaf { cpuid(leaf, 0) } else { [0; 4] };
        let [_, structured, _, intel] = basic(7);
        let amd = extended(0x8000_0008)[1];
        let svm = if has(extended(0x8000_0001)[2], 2) { extended(0x8000_000a)[3] } else { 0 };
        Offers {
            spec_ctrl: [26, 27, 31].iter().any(|&bit| has(intel, bit))
                || [14, 15, 24, 28].iter().any(|&bit| has(amd, bit)),
            ibpb: has(intel, 26) || has(amd, 12),
            md_clear: has(intel, 10),
            flush_l1d: has(intel, 28),
            arch_capabilities: has(intel, 29),
            rtm: has(structured, 11),
            virtual_spec_ctrl: has(svm, 20),
            emulated: is_qemu_tcg(&cpuid),
        }
    }
}

/// What is done on a processor that offers this, says this in ARCH_CAPABILITIES (0 if it has none), and is this one.
pub fn needs(offers: Offers, arch_caps: u64, model: Model, wanted: Mitigations) -> Plan {
    let spared = spared(model);
    let says = |bit: u64| arch_caps & bit != 0;
    let is_spared = |by: u8| spared & by != 0;
    // Not needed: why; else what is done if it is offered, and what is missing if not.
    let decide = |name, why: Option<&'static str>, offered: bool, how, missing| {
        let why = if offers.emulated { Some("an emulation that does not speculate") } else { why };
        let state = match why {
            Some(why) => State::NotNeeded(why),
            None if wanted == Mitigations::Off => State::Off,
            None if offered => State::On(how),
            None => State::Unavailable(missing),
        };
        Mitigation { name, state }
    };
    let none = |named: bool, listed: bool| match (named, listed) {
        (true, _) => Some("ARCH_CAPABILITIES says so"),
        (_, true) => Some("not this processor"),
        _ => None,
    };
    let branches = decide(
        "branch target injection (Spectre v2)",
        none(false, is_spared(models::SPECULATION)),
        offers.ibpb,
        "IBPB when a processor changes VMs",
        "there is no IBPB",
    );
    let l1tf = decide(
        "L1 terminal fault",
        none(says(arch::RDCL_NO) || says(arch::SKIP_L1DFL_VMENTRY), is_spared(models::L1TF)),
        offers.flush_l1d,
        "the L1 data cache is flushed before entries",
        "there is no FLUSH_CMD",
    );
    // Transactions that are aborted leak by the same buffers.
    let mds_free = none(says(arch::MDS_NO), is_spared(models::MDS));
    let taa = offers.rtm && !says(arch::TAA_NO);
    let mds = decide(
        "data sampling (MDS, TAA)",
        if taa { None } else { mds_free },
        offers.md_clear,
        "VERW clears buffers before entries",
        "VERW does not clear buffers (no MD_CLEAR)",
    );
    let multihit = decide(
        "iTLB multihit",
        none(says(arch::PSCHANGE_MC_NO), is_spared(models::MULTIHIT)),
        true,
        "nested leaves of 4 KiB",
        "",
    );
    let is_on = |mitigation: &Mitigation| matches!(mitigation.state, State::On(_));
    let on = wanted == Mitigations::Auto && offers.spec_ctrl && says(arch::IBRS_ALL);
    let measures = Measures {
        barrier: is_on(&branches),
        clear_buffers: is_on(&mds),
        flush_l1d: is_on(&l1tf),
        small_leaves: is_on(&multihit),
        has_spec_ctrl: offers.spec_ctrl,
        required: if on { spec_ctrl::IBRS } else { 0 },
    };
    Plan { measures, list: [branches, l1tf, mds, multihit] }
}
