//! Which IOMMUs the ACPI tables name: DMAR for Intel's, IVRS for AMD's.
//!
//! For the hardware report only: the hypervisor passes no device to guests and uses no IOMMU. Intel VT-d
//! specification 4.1, 8.1 to 8.3; AMD I/O virtualization specification 3.08, 5.2.

use core::fmt;

use arrayvec::ArrayVec;

/// Units at most; there is one for each root complex or so.
const MAX_UNITS: usize = 64;
/// Where the list of structures begins in either table.
const LIST: usize = 48;

/// The vendor's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Intel VT-d.
    Dmar,
    /// AMD I/O virtualization.
    Ivrs,
}

/// The IOMMUs of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iommu {
    /// Whose.
    pub kind: Kind,
    /// How many.
    pub units: usize,
}

/// Reads a whole table; `None` if it is neither of the two.
pub fn read(table: &[u8]) -> Option<Iommu> {
    let kind = match table.get(..4)? {
        b"DMAR" => Kind::Dmar,
        b"IVRS" => Kind::Ivrs,
        _ => return None,
    };
    // A unit may be described several times, for older and newer systems; it has one address.
    let mut units: ArrayVec<u64, MAX_UNITS> = ArrayVec::new();
    let mut rest = table.get(LIST..).unwrap_or(&[]);
    while let [first, second, low, high, ..] = *rest {
        let length = usize::from(u16::from_le_bytes([low, high]));
        let Some((entry, next)) = rest.split_at_checked(length).filter(|_| length >= 4) else { break };
        rest = next;
        let is_unit = match kind {
            Kind::Dmar => [first, second] == [0, 0],
            Kind::Ivrs => [0x10, 0x11, 0x40].contains(&first),
        };
        let address = entry.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        if let Some(address) = address.filter(|address| is_unit && !units.contains(address)) {
            let _ = units.try_push(address);
        }
    }
    Some(Iommu { kind, units: units.len() })
}

impl fmt::Display for Iommu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            Kind::Dmar => "Intel VT-d",
            Kind::Ivrs => "AMD-Vi",
        };
        write!(f, "{name} with {} units", self.units)
    }
}

/// Reads arbitrary bytes as either table; for fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    for signature in [b"DMAR", b"IVRS"] {
        let table = [signature.as_slice(), data].concat();
        assert!(read(&table).is_some_and(|iommu| iommu.units <= MAX_UNITS));
    }
    assert!(read(data).is_none() || matches!(data[..4], [b'D' | b'I', ..]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(signature: &[u8; 4], entries: &[(&[u8], u64)]) -> Vec<u8> {
        let mut table = vec![0; LIST];
        table[..4].copy_from_slice(signature);
        for (kind, address) in entries {
            table.extend(*kind);
            table.extend(24u16.to_le_bytes());
            table.extend([0; 4]);
            table.extend(address.to_le_bytes());
            table.extend([0; 8]);
        }
        table
    }

    #[test]
    fn units_are_counted_once() {
        let dmar =
            table(b"DMAR", &[(&[0, 0], 0xfed9_0000), (&[1, 0], 1), (&[0, 0], 0xfed9_1000), (&[0, 1], 2)]);
        assert_eq!(read(&dmar), Some(Iommu { kind: Kind::Dmar, units: 2 }));
        let ivrs = table(b"IVRS", &[(&[0x10, 0], 0xfeb8_0000), (&[0x11, 0], 0xfeb8_0000), (&[0x20, 8], 7)]);
        assert_eq!(read(&ivrs).unwrap().to_string(), "AMD-Vi with 1 units");
        assert_eq!(read(b"APIC"), None);
        assert_eq!(read(b"DMAR"), Some(Iommu { kind: Kind::Dmar, units: 0 }));
    }

    proptest! {
        #[test]
        fn damage_is_survived(data in prop::collection::vec(prop_oneof![Just(0u8), Just(0x10), Just(4), any::<u8>()], 0..300)) {
            fuzz_one(&data);
        }
    }
}
