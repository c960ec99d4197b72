//! Tables built by hand, whole and damaged.

use super::*;
use crate::firmware::info::TestMemory;
use proptest::prelude::*;

const BASE: u64 = 0x1000;

/// Builds an image: RSDP at 0, tables behind.
struct Builder {
    bytes: Vec<u8>,
    tables: Vec<u32>,
}

fn fix_sum(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    bytes[at] = bytes.iter().fold(0u8, |sum, b| sum.wrapping_add(*b)).wrapping_neg();
}

impl Builder {
    fn new() -> Builder {
        Builder { bytes: vec![0; 64], tables: vec![] }
    }

    fn add(&mut self, signature: &[u8; 4], body: &[u8]) -> u32 {
        let mut table = vec![0; 36];
        table[..4].copy_from_slice(signature);
        table.extend(body);
        let length = table.len() as u32;
        table[4..8].copy_from_slice(&length.to_le_bytes());
        fix_sum(&mut table, 9);
        let at = BASE as u32 + self.bytes.len() as u32;
        self.bytes.extend(table);
        at
    }

    fn table(&mut self, signature: &[u8; 4], body: &[u8]) {
        let at = self.add(signature, body);
        self.tables.push(at);
    }

    fn finish(mut self, xsdt: bool) -> Vec<u8> {
        let entries: Vec<u8> = match xsdt {
            true => self.tables.iter().flat_map(|t| u64::from(*t).to_le_bytes()).collect(),
            false => self.tables.iter().flat_map(|t| t.to_le_bytes()).collect(),
        };
        let root = self.add(if xsdt { b"XSDT" } else { b"RSDT" }, &entries);
        self.bytes[..8].copy_from_slice(b"RSD PTR ");
        if xsdt {
            self.bytes[15] = 2;
            self.bytes[24..32].copy_from_slice(&u64::from(root).to_le_bytes());
        } else {
            self.bytes[16..20].copy_from_slice(&root.to_le_bytes());
        }
        fix_sum(&mut self.bytes[..20], 8);
        self.bytes
    }
}

fn machine(xsdt: bool) -> Vec<u8> {
    let mut b = Builder::new();
    let dsdt = b.add(b"DSDT", b"\x08_S5_\x12\x06\x04\x0a\x05\x0a\x06\x00\x00");
    let mut madt = vec![0; 8];
    madt.extend([0, 8, 0, 0, 1, 0, 0, 0]);
    madt.extend([0, 8, 1, 3, 1, 0, 0, 0]);
    madt.extend([0, 8, 2, 4, 0, 0, 0, 0]); // disabled
    madt.extend([0, 8, 2, 5, 2, 0, 0, 0]); // not there, but could come
    madt.extend([0, 8, 3, 255, 1, 0, 0, 0]); // the broadcast destination
    madt.extend([9, 16, 0, 0, 0x34, 0x12, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    madt.extend([9, 16, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]); // once more
    madt.extend([9, 16, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    madt.extend([9, 16, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0]);
    madt.extend([1, 12, 7, 0, 0, 0, 0xc0, 0xfe, 24, 0, 0, 0]);
    madt.extend([2, 10, 0, 0, 2, 0, 0, 0, 5, 0]);
    b.table(b"APIC", &madt);
    let mut fadt = vec![0; 244 - 36];
    let mut put = |at: usize, bytes: &[u8]| fadt[at - 36..at - 36 + bytes.len()].copy_from_slice(bytes);
    put(40, &dsdt.to_le_bytes());
    put(48, &0xb2u32.to_le_bytes());
    put(52, &[2]);
    put(64, &0x604u32.to_le_bytes());
    put(76, &0x608u32.to_le_bytes());
    put(91, &[4]);
    put(112, &(1u32 << 10 | 1 << 8).to_le_bytes());
    put(116, &[1, 8, 0, 0, 0xf9, 0x0c, 0, 0, 0, 0, 0, 0]);
    put(128, &[0x0f]);
    put(172, &[1, 16, 0, 0, 0x00, 0x18, 0, 0, 0, 0, 0, 0]);
    b.table(b"FACP", &fadt);
    let mut hpet = vec![0; 20];
    hpet[8..16].copy_from_slice(&0xfed0_0000u64.to_le_bytes());
    b.table(b"HPET", &hpet);
    let mut mcfg = vec![0; 8];
    mcfg.extend(0xb000_0000u64.to_le_bytes());
    mcfg.extend([0, 0, 0, 255, 0, 0, 0, 0]);
    b.table(b"MCFG", &mcfg);
    b.table(b"DMAR", &[0; 12]);
    b.finish(xsdt)
}

#[test]
fn reads_everything_by_both_roots() {
    for xsdt in [false, true] {
        let image = machine(xsdt);
        let acpi = parse(&TestMemory { base: BASE, bytes: &image }, BASE);
        assert_eq!(acpi.cpus.as_slice(), [0, 3, 0x1234]);
        assert_eq!(acpi.io_apics.as_slice(), [IoApic { id: 7, address: 0xfec0_0000, gsi_base: 24 }]);
        assert_eq!(acpi.isa_interrupt(0), (2, 5));
        assert_eq!(acpi.isa_interrupt(4), (4, 0));
        assert_eq!(acpi.pm_timer, Some(PmTimer { port: 0x608, wide: true }));
        assert_eq!(
            acpi.soft_off,
            Some(SoftOff { pm1a: 0x1800, pm1b: 0, types: [5, 6], enable: Some((0xb2, 2)) }),
            "the extended field wins"
        );
        assert_eq!(acpi.reset, Some(Reset { port: 0xcf9, value: 0x0f }));
        assert_eq!(acpi.hpet, Some(0xfed0_0000));
        assert_eq!(acpi.iommu, Some(Iommu { kind: iommu::Kind::Dmar, units: 0 }));
        assert_eq!(acpi.tables.as_slice(), [b"APIC", b"FACP", b"HPET", b"MCFG", b"DMAR"].map(|name| *name));
        assert_eq!(acpi.pci.as_slice(), [PciSegment { address: 0xb000_0000, segment: 0, buses: (0, 255) }]);
    }
}

#[test]
fn missing_tables_leave_defaults() {
    assert_eq!(parse(&TestMemory { base: 0, bytes: &[] }, 0), Acpi::default());
    let image = Builder::new().finish(true);
    assert_eq!(parse(&TestMemory { base: BASE, bytes: &image }, BASE), Acpi::default());
}

#[test]
fn damaged_tables_are_absent() {
    let mut image = machine(true);
    let madt = image.windows(4).position(|w| w == b"APIC").unwrap();
    image[madt + 50] ^= 1;
    let acpi = parse(&TestMemory { base: BASE, bytes: &image }, BASE);
    assert!(acpi.cpus.is_empty() && acpi.reset.is_some());
}

proptest! {
    /// Damage with sums repaired, so that the damage is looked at.
    #[test]
    fn nothing_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8), cut in 0usize..40) {
        let mut image = machine(cut % 2 == 0);
        for (at, byte) in changes {
            let at = at.index(image.len());
            image[at] = byte;
        }
        for signature in [b"APIC", b"FACP", b"HPET", b"MCFG", b"XSDT", b"RSDT", b"DSDT"] {
            if let Some(at) = image.windows(4).position(|w| w == signature) {
                let length = u32::from_le_bytes(image[at + 4..at + 8].try_into().unwrap()) as usize;
                if let Some(table) = image.get_mut(at..at.saturating_add(length)).filter(|t| t.len() >= 36) {
                    fix_sum(table, 9);
                }
            }
        }
        fix_sum(&mut image[..20], 8);
        let len = image.len() - cut;
        fuzz_one(&image[..len]);
    }
}
