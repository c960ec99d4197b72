//! What CPUID says about the host's processor, as far as a person wants to know it.
//!
//! Manuals: AMD APM 3, appendix E; Intel SDM 2A, CPUID.

use core::fmt;

use arrayvec::ArrayString;

use crate::virt::feature::Feature;

/// `cpuid(leaf, subleaf)` gives EAX, EBX, ECX, EDX.
pub type Cpuid<'a> = &'a dyn Fn(u32, u32) -> [u32; 4];

/// Features that the host uses where present.
pub const FEATURES: usize = 7;

/// The processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    /// The vendor, as CPUID spells it.
    pub vendor: ArrayString<12>,
    /// Its name; empty if it does not say.
    pub brand: ArrayString<48>,
    /// Display family, model and stepping.
    pub identity: [u32; 3],
    /// Widths of physical and of linear addresses.
    pub address_bits: [u32; 2],
    /// The signature of a hypervisor that runs this one.
    pub below: Option<ArrayString<12>>,
    /// What the host uses where present.
    pub features: [Feature; FEATURES],
}

/// Printable text from registers, blanks trimmed.
fn text<const N: usize>(registers: impl IntoIterator<Item = u32>) -> ArrayString<N> {
    let mut text = ArrayString::new();
    let bytes = registers.into_iter().flat_map(u32::to_le_bytes);
    for byte in bytes.filter(|b| b.is_ascii_graphic() || *b == b' ') {
        if !(text.is_empty() && byte == b' ') {
            // A longer name is cut.
            let _ = text.try_push(char::from(byte));
        }
    }
    let len = text.trim_end().len();
    text.truncate(len);
    text
}

/// The processor's vendor, as CPUID spells it.
pub fn vendor(cpuid: Cpuid<'_>) -> ArrayString<12> {
    let [_, b, c, d] = cpuid(0, 0);
    text([b, d, c])
}

/// The processor's name; empty if it does not say.
pub fn brand(cpuid: Cpuid<'_>) -> ArrayString<48> {
    let leaves = if cpuid(0x8000_0000, 0)[0] >= 0x8000_0004 { 0x8000_0002..0x8000_0005 } else { 0..0 };
    text(leaves.flat_map(|leaf| cpuid(leaf, 0)))
}

impl Processor {
    /// Asks the processor.
    pub fn new(cpuid: Cpuid<'_>) -> Processor {
        let extended = |leaf| if cpuid(0x8000_0000, 0)[0] >= leaf { cpuid(leaf, 0) } else { [0; 4] };
        let [signature, _, c1, d1] = cpuid(1, 0);
        let widths = extended(0x8000_0008)[0];
        let address_bits = if widths == 0 { [36, 48] } else { [widths & 0xff, widths >> 8 & 0xff] };
        let below = (c1 >> 31 != 0).then(|| text(cpuid(0x4000_0000, 0)[1..].iter().copied()));
        let [_, _, _, d81] = extended(0x8000_0001);
        let feature = |name, word: u32, bit: u32, without| Feature {
            name,
            id: "",
            present: word >> bit & 1 != 0,
            without,
        };
        let features = [
            feature("pages of 1 GiB", d81, 26, "leaves of 2 MiB"),
            feature("no-execute", d81, 20, "the hypervisor's data is executable"),
            feature("PAT", d1, 16, "the screen is slow"),
            feature("x2APIC", c1, 21, "the local APIC is used through memory"),
            feature("TSC deadline", c1, 24, "the local APIC's timer counts down"),
            feature(
                "invariant TSC",
                extended(0x8000_0007)[3],
                8,
                "clocks err when the processor changes its speed",
            ),
            feature("XSAVE", c1, 26, "guests have no AVX"),
        ];
        let identity = identity(signature);
        Processor { vendor: vendor(cpuid), brand: brand(cpuid), identity, address_bits, below, features }
    }
}

/// Family, model and stepping from the signature (leaf 1, EAX).
fn identity(signature: u32) -> [u32; 3] {
    let field = |at: u32, bits: u32| signature >> at & ((1 << bits) - 1);
    let (base, model) = (field(8, 4), field(4, 4));
    let family = if base == 0xf { base + field(20, 8) } else { base };
    let model = if base == 6 || base == 0xf { field(16, 4) << 4 | model } else { model };
    [family, model, field(0, 4)]
}

/// `AMD EPYC Processor (AuthenticAMD, family 23 model 1 stepping 2)`
impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [family, model, stepping] = self.identity;
        let name = if self.brand.is_empty() { "a processor without a brand string" } else { &self.brand };
        write!(f, "{name} ({}, family {family} model {model} stepping {stepping})", self.vendor)
    }
}
