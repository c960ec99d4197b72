//! The CPUID features that guests can have, by the names that Linux prints in `/proc/cpuinfo`, and sets of them.
//!
//! A configuration hides features by these names (`cpu = { without = [...] }`); the command line tool compiles this file, too,
//! so that it can complain before anything is started. Hiding a feature hides what depends on it: [`FeatureSet::parse`] adds
//! those. Where Linux prints no name, its constant's is used in lower case. Bits: AMD APM 3 appendix E, Intel SDM 2A CPUID.

use core::fmt;

const EAX: usize = 0;
const EBX: usize = 1;
const ECX: usize = 2;
const EDX: usize = 3;

/// Leaf 8000_0001h EDX repeats these bits of leaf 1 EDX on AMD: 0 to 9, 12 to 17, 23, 24.
const REPEATED: u32 = 0x0183_f3ff;

/// Where a feature's bit is, and what it cannot be without.
struct Feature {
    name: &'static str,
    leaf: u32,
    sub: u32,
    register: usize,
    bit: u32,
    needs: &'static [&'static str],
}

/// A row of [`FEATURES`].
const fn at(
    (leaf, sub, register): (u32, u32, usize),
    bit: u32,
    name: &'static str,
    needs: &'static [&'static str],
) -> Feature {
    Feature { name, leaf, sub, register, bit, needs }
}

type Place = (u32, u32, usize);
const L1D: Place = (1, 0, EDX);
const L1C: Place = (1, 0, ECX);
const L6A: Place = (6, 0, EAX);
const L7B: Place = (7, 0, EBX);
const L7C: Place = (7, 0, ECX);
const L7D: Place = (7, 0, EDX);
const L71A: Place = (7, 1, EAX);
const LD1A: Place = (0xd, 1, EAX);
const E1C: Place = (0x8000_0001, 0, ECX);
const E1D: Place = (0x8000_0001, 0, EDX);
const E7D: Place = (0x8000_0007, 0, EDX);
const E8B: Place = (0x8000_0008, 0, EBX);
const E21A: Place = (0x8000_0021, 0, EAX);

/// By leaf and bit.
#[rustfmt::skip]
const FEATURES: &[Feature] = &[
    at(L1D, 0, "fpu", &[]),
    at(L1D, 1, "vme", &[]),
    at(L1D, 2, "de", &[]),
    at(L1D, 3, "pse", &[]),
    at(L1D, 4, "tsc", &[]),
    at(L1D, 5, "msr", &[]),
    at(L1D, 6, "pae", &[]),
    at(L1D, 7, "mce", &[]),
    at(L1D, 8, "cx8", &[]),
    at(L1D, 9, "apic", &["msr"]),
    at(L1D, 11, "sep", &["msr"]),
    at(L1D, 12, "mtrr", &["msr"]),
    at(L1D, 13, "pge", &[]),
    at(L1D, 14, "mca", &["mce"]),
    at(L1D, 15, "cmov", &[]),
    at(L1D, 16, "pat", &["msr"]),
    at(L1D, 17, "pse36", &["pse"]),
    at(L1D, 19, "clflush", &[]),
    at(L1D, 23, "mmx", &["fpu"]),
    at(L1D, 24, "fxsr", &["fpu"]),
    at(L1D, 25, "sse", &["fxsr"]),
    at(L1D, 26, "sse2", &["sse"]),
    at(L1D, 28, "ht", &[]),
    at(L1C, 0, "pni", &["sse2"]),
    at(L1C, 1, "pclmulqdq", &["sse2"]),
    at(L1C, 9, "ssse3", &["pni"]),
    at(L1C, 12, "fma", &["avx"]),
    at(L1C, 13, "cx16", &["cx8"]),
    at(L1C, 17, "pcid", &["lm"]),
    at(L1C, 19, "sse4_1", &["ssse3"]),
    at(L1C, 20, "sse4_2", &["sse4_1"]),
    at(L1C, 21, "x2apic", &["apic"]),
    at(L1C, 22, "movbe", &[]),
    at(L1C, 23, "popcnt", &[]),
    at(L1C, 24, "tsc_deadline_timer", &["apic", "tsc"]),
    at(L1C, 25, "aes", &["sse2"]),
    at(L1C, 26, "xsave", &["fxsr"]),
    at(L1C, 28, "avx", &["xsave", "sse4_2"]),
    at(L1C, 29, "f16c", &["avx"]),
    at(L1C, 30, "rdrand", &[]),
    at(L1C, 31, "hypervisor", &[]),
    at(L6A, 2, "arat", &["apic"]),
    at(L7B, 0, "fsgsbase", &["lm"]),
    at(L7B, 3, "bmi1", &[]),
    at(L7B, 5, "avx2", &["avx"]),
    at(L7B, 6, "fdp_excptn_only", &["fpu"]),
    at(L7B, 7, "smep", &[]),
    at(L7B, 8, "bmi2", &[]),
    at(L7B, 9, "erms", &[]),
    at(L7B, 10, "invpcid", &[]),
    at(L7B, 13, "zero_fcs_fds", &["fpu"]),
    at(L7B, 16, "avx512f", &["avx2"]),
    at(L7B, 17, "avx512dq", &["avx512f"]),
    at(L7B, 18, "rdseed", &[]),
    at(L7B, 19, "adx", &[]),
    at(L7B, 20, "smap", &[]),
    at(L7B, 21, "avx512ifma", &["avx512f"]),
    at(L7B, 23, "clflushopt", &["clflush"]),
    at(L7B, 24, "clwb", &["clflush"]),
    at(L7B, 28, "avx512cd", &["avx512f"]),
    at(L7B, 29, "sha_ni", &["sse2"]),
    at(L7B, 30, "avx512bw", &["avx512f"]),
    at(L7B, 31, "avx512vl", &["avx512f"]),
    at(L7C, 1, "avx512vbmi", &["avx512bw"]),
    at(L7C, 2, "umip", &[]),
    at(L7C, 6, "avx512_vbmi2", &["avx512bw"]),
    at(L7C, 8, "gfni", &["sse2"]),
    at(L7C, 9, "vaes", &["avx", "aes"]),
    at(L7C, 10, "vpclmulqdq", &["avx", "pclmulqdq"]),
    at(L7C, 11, "avx512_vnni", &["avx512f"]),
    at(L7C, 12, "avx512_bitalg", &["avx512bw"]),
    at(L7C, 14, "avx512_vpopcntdq", &["avx512f"]),
    at(L7C, 22, "rdpid", &[]),
    at(L7C, 27, "movdiri", &[]),
    at(L7C, 28, "movdir64b", &[]),
    at(L7D, 4, "fsrm", &["erms"]),
    at(L7D, 10, "md_clear", &[]),
    at(L7D, 14, "serialize", &[]),
    at(L7D, 26, "spec_ctrl", &["msr"]),
    at(L7D, 27, "intel_stibp", &["msr"]),
    at(L7D, 28, "flush_l1d", &["msr"]),
    at(L7D, 29, "arch_capabilities", &["msr"]),
    at(L7D, 31, "spec_ctrl_ssbd", &["msr"]),
    at(L71A, 4, "avx_vnni", &["avx2"]),
    at(L71A, 10, "fzrm", &["erms"]),
    at(L71A, 11, "fsrs", &["erms"]),
    at(L71A, 12, "fsrc", &["erms"]),
    at(LD1A, 0, "xsaveopt", &["xsave"]),
    at(LD1A, 1, "xsavec", &["xsave"]),
    at(LD1A, 2, "xgetbv1", &["xsave"]),
    at(E1C, 0, "lahf_lm", &["lm"]),
    at(E1C, 1, "cmp_legacy", &["ht"]),
    at(E1C, 4, "cr8_legacy", &["apic"]),
    at(E1C, 5, "abm", &[]),
    at(E1C, 6, "sse4a", &["pni"]),
    at(E1C, 7, "misalignsse", &["sse"]),
    at(E1C, 8, "3dnowprefetch", &[]),
    at(E1C, 11, "xop", &["avx"]),
    at(E1C, 16, "fma4", &["avx"]),
    at(E1C, 21, "tbm", &[]),
    at(E1D, 11, "syscall", &["msr"]),
    at(E1D, 20, "nx", &["pae", "msr"]),
    at(E1D, 22, "mmxext", &["mmx"]),
    at(E1D, 25, "fxsr_opt", &["fxsr", "lm"]),
    at(E1D, 26, "pdpe1gb", &["lm"]),
    at(E1D, 27, "rdtscp", &["tsc"]),
    at(E1D, 29, "lm", &["pae", "msr"]),
    at(E1D, 30, "3dnowext", &["3dnow"]),
    at(E1D, 31, "3dnow", &["mmx"]),
    at(E7D, 8, "constant_tsc", &["tsc"]),
    at(E7D, 8, "nonstop_tsc", &["tsc"]),
    at(E8B, 0, "clzero", &[]),
    at(E8B, 2, "xsaveerptr", &["xsave"]),
    at(E8B, 9, "wbnoinvd", &[]),
    at(E8B, 12, "amd_ibpb", &["msr"]),
    at(E8B, 14, "amd_ibrs", &["msr"]),
    at(E8B, 15, "amd_stibp", &["msr"]),
    at(E8B, 17, "amd_stibp_always_on", &["amd_stibp"]),
    at(E8B, 24, "amd_ssbd", &["msr"]),
    at(E8B, 25, "virt_ssbd", &["amd_ssbd"]),
    at(E8B, 26, "amd_ssb_no", &[]),
    at(E8B, 28, "amd_psfd", &["msr"]),
    at(E8B, 29, "btc_no", &[]),
    at(E21A, 0, "no_nested_data_bp", &[]),
    at(E21A, 2, "lfence_rdtsc", &[]),
    at(E21A, 6, "null_sel_clr_base", &[]),
];

const WORDS: usize = 3;
const _: () = assert!(FEATURES.len() <= WORDS * 64);

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet([u64; WORDS]);

impl FeatureSet {
    /// No feature.
    pub const NONE: FeatureSet = FeatureSet([0; WORDS]);

    /// The names of all features that guests can have.
    pub fn every_name() -> impl Iterator<Item = &'static str> {
        FEATURES.iter().map(|feature| feature.name)
    }

    /// The features of these names, and all that depend on them.
    ///
    /// # Errors
    /// The first name that is no feature's.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<FeatureSet, Unknown<'a>> {
        let mut set = FeatureSet::NONE;
        for name in names {
            let number = FEATURES.iter().position(|feature| feature.name == name).ok_or(Unknown(name))?;
            set.insert(number);
        }
        set.add_dependents();
        Ok(set)
    }

    /// Whether nothing is in it.
    pub fn is_empty(self) -> bool {
        self == FeatureSet::NONE
    }

    /// The names of those that are in it.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        FEATURES.iter().enumerate().filter(move |(n, _)| self.has(*n)).map(|(_, feature)| feature.name)
    }

    /// The bits of this leaf that are in it: EAX, EBX, ECX, EDX.
    pub fn bits(self, leaf: u32, sub: u32) -> [u32; 4] {
        let mut bits = [0; 4];
        for (_, feature) in FEATURES.iter().enumerate().filter(|(n, _)| self.has(*n)) {
            if (feature.leaf, feature.sub) == (leaf, sub) {
                bits[feature.register] |= 1 << feature.bit;
            } else if leaf == 0x8000_0001 && (feature.leaf, feature.register) == (1, EDX) {
                bits[EDX] |= 1 << feature.bit & REPEATED;
            }
        }
        bits
    }

    fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    fn has(self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 != 0
    }

    fn has_name(self, name: &str) -> bool {
        self.names().any(|other| other == name)
    }

    /// Until nothing more is added: each round goes one step along the longest chain.
    fn add_dependents(&mut self) {
        loop {
            let before = *self;
            for (number, feature) in FEATURES.iter().enumerate() {
                if feature.needs.iter().any(|needed| before.has_name(needed)) {
                    self.insert(number);
                }
            }
            if *self == before {
                return;
            }
        }
    }
}

/// A name that is no feature's; it is shown with the nearest ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown<'a>(pub &'a str);

impl fmt::Display for Unknown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is no feature that guests can have; the nearest are ", self.0.escape_default())?;
        let mut separator = "";
        for name in nearest(self.0) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// The three names that differ least, in the order of the table where they differ alike.
fn nearest(name: &str) -> [&'static str; 3] {
    let mut best = [(usize::MAX, ""); 3];
    for feature in FEATURES {
        let mut candidate = (distance(name.as_bytes(), feature.name.as_bytes()), feature.name);
        for place in &mut best {
            if candidate.0 < place.0 {
                core::mem::swap(place, &mut candidate);
            }
        }
    }
    best.map(|(_, name)| name)
}

/// How many bytes must be inserted, removed or replaced to make one of the other, upper and lower case being alike. Of a long
/// name only the beginning counts.
fn distance(a: &[u8], b: &[u8]) -> usize {
    const MOST: usize = 32;
    let (a, b) = (&a[..a.len().min(MOST)], &b[..b.len().min(MOST)]);
    let mut row = [0; MOST + 1];
    for (n, cell) in row.iter_mut().enumerate() {
        *cell = n;
    }
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(!from.eq_ignore_ascii_case(to));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::prelude::v1::*;

    use super::*;

    #[test]
    fn what_depends_on_a_feature_goes_with_it() {
        let names = |name| FeatureSet::parse([name]).unwrap().names().collect::<Vec<_>>();
        assert_eq!(names("x2apic"), ["x2apic"]);
        assert_eq!(names("apic"), ["apic", "x2apic", "tsc_deadline_timer", "arat", "cr8_legacy"]);
        let xsave = names("xsave");
        assert!(
            ["avx", "avx2", "avx512_bitalg", "vaes", "fma4", "xsaveopt"]
                .iter()
                .all(|name| xsave.contains(name))
        );
        assert!(!xsave.contains(&"sse4_2") && !xsave.contains(&"aes"));
        assert!(FeatureSet::parse([]).unwrap().is_empty());
    }

    #[test]
    fn names_are_unique_and_what_they_need_exists() {
        for (n, feature) in FEATURES.iter().enumerate() {
            assert!(FEATURES[..n].iter().all(|other| other.name != feature.name), "{}", feature.name);
            let exists = |needed: &&str| FEATURES.iter().any(|other| other.name == *needed);
            assert!(feature.needs.iter().all(exists), "{}", feature.name);
        }
    }

    #[test]
    fn amd_repeats_bits() {
        let set = FeatureSet::parse(["apic", "sse2", "nx"]).unwrap();
        assert_eq!(set.bits(1, 0)[EDX] & (1 << 9 | 1 << 26), 1 << 9 | 1 << 26);
        assert_eq!(set.bits(0x8000_0001, 0)[EDX], 1 << 9 | 1 << 20);
        assert_eq!(set.bits(7, 5), [0; 4]);
    }

    #[test]
    fn unknown_names_are_told_the_nearest() {
        let error = |name| FeatureSet::parse(["avx", name]).unwrap_err().to_string();
        assert_eq!(
            error("x2apik"),
            "\"x2apik\" is no feature that guests can have; the nearest are x2apic, apic, xsave"
        );
        assert!(error("SSE3").contains("the nearest are sse, sse2, ssse3"), "{}", error("SSE3"));
        assert!(error(&"\u{1b}".repeat(100)).contains("nearest are"));
    }
}
