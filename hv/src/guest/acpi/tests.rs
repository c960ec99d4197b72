//! Reads the tables back as a guest does.

use super::*;
use crate::device::layout;
use crate::mem::guest_memory::VecMemory;
use crate::vm::layout::MemoryLayout;

fn config(vcpus: u32) -> AcpiConfig {
    AcpiConfig { apic_ids: (0..vcpus).collect(), pci_window_64: MemoryLayout::new(4096).pci_window_64(40) }
}

fn read(memory: &VecMemory, at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    memory.read(Gpa(at), &mut buf).unwrap();
    buf
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |a, b| a.wrapping_add(*b))
}

fn table(memory: &VecMemory, at: u64) -> Vec<u8> {
    let len = memory.read_u32(Gpa(at + 4)).unwrap() as usize;
    let table = read(memory, at, len);
    assert_eq!(sum(&table), 0, "checksum at {at:#x}");
    assert!(at.is_multiple_of(16) && at >= ACPI_AREA.start && at + len as u64 <= ACPI_AREA.end);
    table
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// All tables that the XSDT names, with the DSDT.
fn tables(memory: &VecMemory) -> Vec<Vec<u8>> {
    let rsdp = read(memory, RSDP.0, 36);
    assert_eq!((&rsdp[..8], rsdp[15]), (&b"RSD PTR "[..], 2));
    assert_eq!((sum(&rsdp[..20]), sum(&rsdp)), (0, 0));
    let xsdt = table(memory, long(&rsdp, 24));
    assert_eq!(&xsdt[..4], b"XSDT");
    let mut all: Vec<_> = xsdt[36..].chunks(8).map(|e| table(memory, long(e, 0))).collect();
    let dsdt = long(all.iter().find(|t| &t[..4] == b"FACP").unwrap(), 140);
    all.push(table(memory, dsdt));
    all
}

fn find(vcpus: u32, signature: &[u8; 4]) -> Vec<u8> {
    let memory = VecMemory::new(1 << 20);
    write_tables(&memory, &config(vcpus)).unwrap();
    tables(&memory).into_iter().find(|t| &t[..4] == signature).unwrap()
}

#[test]
fn tables_are_found_from_the_root() {
    let memory = VecMemory::new(1 << 20);
    write_tables(&memory, &config(2)).unwrap();
    let names: Vec<_> = tables(&memory).iter().map(|t| t[..4].to_vec()).collect();
    assert_eq!(names, [b"FACP", b"APIC", b"HPET", b"MCFG", b"DSDT"].map(|s| s.to_vec()));
}

#[test]
fn fixed_hardware_is_where_the_devices_are() {
    let fadt = find(1, b"FACP");
    assert_eq!(fadt.len(), 276);
    assert_eq!((fadt[8], fadt[131]), (6, 5), "version");
    assert_eq!(u16::from_le_bytes([fadt[46], fadt[47]]), 9, "SCI");
    assert_eq!(word(&fadt, 48), 0, "SMI_CMD");
    assert_eq!(
        (word(&fadt, 56), word(&fadt, 64), word(&fadt, 76), word(&fadt, 80)),
        (0x600, 0x604, 0x608, 0x620)
    );
    assert_eq!(fadt[88..93], [4, 2, 0, 4, 4], "lengths");
    assert_eq!(word(&fadt, 112) & (1 << 20), 0, "not hardware-reduced");
    assert_ne!(word(&fadt, 112) & (1 << 10), 0, "has a reset register");
    assert_eq!((fadt[116], long(&fadt, 120), fadt[128]), (1, 0xcf9, 6), "reset register");
    assert_eq!(u64::from(word(&fadt, 40)), long(&fadt, 140), "both DSDT pointers");
    for (x_block, block) in [(148, 56), (172, 64), (208, 76), (220, 80)] {
        assert_eq!((fadt[x_block], long(&fadt, x_block + 4)), (1, word(&fadt, block).into()));
    }
    let memory = VecMemory::new(1 << 20);
    write_tables(&memory, &config(1)).unwrap();
    let facs = read(&memory, word(&fadt, 36).into(), 64);
    assert_eq!((&facs[..4], word(&facs, 4), word(&fadt, 36) % 64), (&b"FACS"[..], 64, 0));
}

#[test]
fn interrupt_controllers_are_complete() {
    let madt = find(255, b"APIC");
    assert_eq!((word(&madt, 36), word(&madt, 40)), (0xfee0_0000, 1));
    let mut rest = &madt[44..];
    let mut entries = Vec::new();
    while let [kind, len, ..] = *rest {
        entries.push((kind, rest[2..len as usize].to_vec()));
        rest = &rest[len as usize..];
    }
    let of = |kind| entries.iter().filter(|(k, _)| *k == kind).map(|(_, e)| e.clone()).collect::<Vec<_>>();
    assert_eq!((of(0).len(), of(9).len()), (255, 0));
    assert_eq!(of(0)[254], [254, 254, 1, 0, 0, 0]);
    assert_eq!(of(1), [[0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]]);
    assert_eq!(of(2), [[0, 0, 2, 0, 0, 0, 0, 0], [0, 9, 9, 0, 0, 0, 13, 0]]);
    assert_eq!(of(4), [[0xff, 0, 0, 1]]);
    let x2apic = fixed::madt(&AcpiConfig { apic_ids: vec![255, 0x12345], pci_window_64: None });
    assert_eq!(x2apic[44..60], [9, 16, 0, 0, 255, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(x2apic[60..68], [9, 16, 0, 0, 0x45, 0x23, 1, 0]);
}

#[test]
fn hpet_and_mcfg_point_to_their_registers() {
    let hpet = find(1, b"HPET");
    assert_eq!((hpet.len(), long(&hpet, 44), hpet[40]), (56, layout::HPET.start, 0));
    let mcfg = find(1, b"MCFG");
    assert_eq!((mcfg.len(), long(&mcfg, 44), mcfg[54], mcfg[55]), (60, layout::ECAM.start, 0, 0));
}

#[test]
fn too_many_processors_are_refused() {
    let memory = VecMemory::new(1 << 20);
    let many = AcpiConfig { apic_ids: (0..5000).collect(), pci_window_64: None };
    assert!(matches!(write_tables(&memory, &many), Err(AcpiError::TooLarge(_))));
    let e = write_tables(&VecMemory::new(0), &config(1)).unwrap_err();
    assert!(matches!(e, AcpiError::NotRam(_)));
}

/// For a look with `iasl -d`: set `ACPI_DUMP` to a directory.
#[test]
fn dump() {
    let Ok(dir) = std::env::var("ACPI_DUMP") else { return };
    let memory = VecMemory::new(1 << 20);
    write_tables(&memory, &config(2)).unwrap();
    for table in tables(&memory) {
        let name = std::string::String::from_utf8_lossy(&table[..4]).to_lowercase();
        std::fs::write(std::format!("{dir}/{name}.dat"), &table).unwrap();
    }
}
