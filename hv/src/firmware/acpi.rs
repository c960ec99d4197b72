//! What the host's ACPI tables say, as far as the hypervisor needs it.
//!
//! Reads through [`LoaderMemory`], trusts no length, and takes missing or damaged tables for absent. Multi-byte fields
//! are read where ACPI 6.5 puts them: 5.2.5 (RSDP), 5.2.6 (header), 5.2.9 (FADT), 5.2.12 (MADT), HPET 1.0a 3.2.4,
//! PCI Firmware 3.3 4.1.2 (MCFG).

use arrayvec::ArrayVec;

use super::info::LoaderMemory;
use super::iommu::{self, Iommu};
use super::numa::Numa;
use super::s5;
use crate::hw::pm::{Reset, SoftOff};
use crate::hw::tsc::PmTimer;

/// Processors at most.
pub const MAX_CPUS: usize = 512;
/// Tables looked at.
const MAX_TABLES: u64 = 256;
/// A table longer than this is damaged.
const MAX_LENGTH: u64 = 16 << 20;

/// An I/O APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoApic {
    /// Its ID.
    pub id: u8,
    /// Physical address of its registers.
    pub address: u64,
    /// The first global system interrupt that it serves.
    pub gsi_base: u32,
}

/// An ISA interrupt that is not wired one to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The ISA interrupt.
    pub irq: u8,
    /// The global system interrupt that it became.
    pub gsi: u32,
    /// Polarity in bits 1:0 and trigger mode in bits 3:2, as in the MADT.
    pub flags: u16,
}

/// A range of PCI buses with memory-mapped configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciSegment {
    /// Address of bus 0's configuration space.
    pub address: u64,
    /// PCI segment group.
    pub segment: u16,
    /// First and last bus.
    pub buses: (u8, u8),
}

/// The tables' content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acpi {
    /// Local APIC IDs of the processors that can be used, each once.
    pub cpus: ArrayVec<u32, MAX_CPUS>,
    /// How many more could be plugged in while the machine runs, which the hypervisor does not notice.
    pub absent_cpus: usize,
    /// I/O APICs.
    pub io_apics: ArrayVec<IoApic, 16>,
    /// Interrupt source overrides.
    pub overrides: ArrayVec<Override, 16>,
    /// The power management timer.
    pub pm_timer: Option<PmTimer>,
    /// How to power off.
    pub soft_off: Option<SoftOff>,
    /// How to reset.
    pub reset: Option<Reset>,
    /// Physical address of the HPET.
    pub hpet: Option<u64>,
    /// PCI configuration spaces.
    pub pci: ArrayVec<PciSegment, 16>,
    /// Nodes of memory and processors.
    pub numa: Numa,
    /// IOMMUs.
    pub iommu: Option<Iommu>,
    /// The names of all tables that are whole.
    pub tables: ArrayVec<[u8; 4], 48>,
}

/// Fields of a table; what lies outside of it is 0, as ACPI demands for fields of later revisions.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn le(self, at: usize, size: usize) -> u64 {
        let bytes = self.0.get(at..at + size).unwrap_or(&[]);
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
    fn u8(self, at: usize) -> u8 {
        self.le(at, 1) as u8
    }
    fn u16(self, at: usize) -> u16 {
        self.le(at, 2) as u16
    }
    fn u32(self, at: usize) -> u32 {
        self.le(at, 4) as u32
    }
    fn u64(self, at: usize) -> u64 {
        self.le(at, 8)
    }
    /// A generic address in I/O space (5.2.3.2), or else the port in the older field.
    fn port(self, generic: usize, old: usize) -> Option<u16> {
        let io_space = self.u8(generic) == 1;
        let new = if io_space { self.u64(generic + 4) } else { 0 };
        let port = if new != 0 { new } else { u64::from(self.u32(old)) };
        u16::try_from(port).ok().filter(|port| *port != 0)
    }
}

/// Adds to a list; a full one drops the rest, because nothing depends on completeness.
fn note<T, const N: usize>(list: &mut ArrayVec<T, N>, item: T) {
    let _ = list.try_push(item);
}

fn sums_to_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}

/// The table at `address`, if it is whole.
fn table<M: LoaderMemory>(memory: &M, address: u64) -> Option<&[u8]> {
    let length = u64::from(memory.u32(address.checked_add(4)?)?);
    if !(36..=MAX_LENGTH).contains(&length) {
        return None;
    }
    memory.bytes(address, length).filter(|bytes| sums_to_zero(bytes))
}

/// The first table with this name, if it is whole.
pub fn find<'a>(memory: &'a impl LoaderMemory, rsdp: u64, name: &[u8; 4]) -> Option<&'a [u8]> {
    let (root, entry_size) = root(memory, rsdp)?;
    let entries = root[36..].chunks_exact(entry_size).take(MAX_TABLES as usize);
    let mut tables = entries.filter_map(|entry| table(memory, Fields(entry).le(0, entry_size)));
    tables.find(|table| table.starts_with(name))
}

/// Reads everything from the root pointer at `rsdp` on.
pub fn parse(memory: &impl LoaderMemory, rsdp: u64) -> Acpi {
    let mut acpi = Acpi::default();
    let Some((root, entry_size)) = root(memory, rsdp) else { return acpi };
    for entry in root[36..].chunks_exact(entry_size).take(MAX_TABLES as usize) {
        let Some(table) = table(memory, Fields(entry).le(0, entry_size)) else { continue };
        let name = [table[0], table[1], table[2], table[3]];
        note(&mut acpi.tables, name);
        match &name {
            b"APIC" => acpi.read_madt(table),
            b"FACP" => acpi.read_fadt(memory, Fields(table)),
            b"HPET" => acpi.hpet = Some(Fields(table).u64(44)).filter(|address| *address != 0),
            b"MCFG" => acpi.read_mcfg(table),
            b"SRAT" => acpi.numa.read_srat(table),
            b"SLIT" => acpi.numa.read_slit(table),
            b"DMAR" | b"IVRS" => acpi.iommu = iommu::read(table),
            _ => {}
        }
    }
    acpi
}

/// The XSDT or the RSDT, and the size of its entries.
fn root<M: LoaderMemory>(memory: &M, rsdp: u64) -> Option<(&[u8], usize)> {
    let head = memory.bytes(rsdp, 20).filter(|b| b.starts_with(b"RSD PTR ") && sums_to_zero(b))?;
    let revision = Fields(head).u8(15);
    let xsdt = || table(memory, memory.u64(rsdp.checked_add(24)?)?).filter(|t| t.starts_with(b"XSDT"));
    if let Some(xsdt) = (revision >= 2).then(xsdt).flatten() {
        return Some((xsdt, 8));
    }
    let rsdt = table(memory, Fields(head).u32(16).into()).filter(|t| t.starts_with(b"RSDT"))?;
    Some((rsdt, 4))
}

impl Acpi {
    fn read_madt(&mut self, table: &[u8]) {
        let mut rest = table.get(44..).unwrap_or(&[]);
        while let [kind, length, ..] = *rest {
            let Some((entry, next)) = rest.split_at_checked(length.into()).filter(|_| length >= 2) else {
                return;
            };
            rest = next;
            let fields = Fields(entry);
            match (kind, length) {
                // The highest ID of either size is the broadcast destination: no PCPU has it.
                (0, 8..) if fields.u8(3) != u8::MAX => self.note_cpu(fields.u8(3).into(), fields.u32(4)),
                (9, 16..) if fields.u32(4) != u32::MAX => self.note_cpu(fields.u32(4), fields.u32(8)),
                (1, 12..) => {
                    let io_apic =
                        IoApic { id: fields.u8(2), address: fields.u32(4).into(), gsi_base: fields.u32(8) };
                    note(&mut self.io_apics, io_apic);
                }
                (2, 10..) => {
                    let wire = Override { irq: fields.u8(3), gsi: fields.u32(4), flags: fields.u16(8) };
                    note(&mut self.overrides, wire);
                }
                _ => {}
            }
        }
    }

    /// A processor with its MADT flags. It may be in the list twice, by a short and by a long ID.
    fn note_cpu(&mut self, apic_id: u32, flags: u32) {
        const ENABLED: u32 = 1 << 0;
        const ONLINE_CAPABLE: u32 = 1 << 1;
        if flags & ENABLED == 0 {
            self.absent_cpus += usize::from(flags & ONLINE_CAPABLE != 0);
        } else if !self.cpus.contains(&apic_id) {
            note(&mut self.cpus, apic_id);
        }
    }

    fn read_fadt(&mut self, memory: &impl LoaderMemory, fadt: Fields<'_>) {
        const RESET_REG_SUP: u32 = 1 << 10;
        const TMR_VAL_EXT: u32 = 1 << 8;
        let flags = fadt.u32(112);
        if fadt.u8(91) == 4 {
            let wide = flags & TMR_VAL_EXT != 0;
            self.pm_timer = fadt.port(208, 76).map(|port| PmTimer { port, wide });
        }
        if flags & RESET_REG_SUP != 0 && fadt.u8(116) == 1 {
            let port = u16::try_from(fadt.u64(120)).ok();
            self.reset = port.map(|port| Reset { port, value: fadt.u8(128) });
        }
        let dsdt = match fadt.u64(140) {
            0 => fadt.u32(40).into(),
            address => address,
        };
        let types = table(memory, dsdt).and_then(|dsdt| s5::find(&dsdt[36..]));
        if let (Some(types), Some(pm1a)) = (types, fadt.port(172, 64)) {
            let smi = u16::try_from(fadt.u32(48)).ok().filter(|port| *port != 0);
            let enable = smi.map(|port| (port, fadt.u8(52))).filter(|(_, value)| *value != 0);
            self.soft_off = Some(SoftOff { pm1a, pm1b: fadt.port(184, 68).unwrap_or(0), types, enable });
        }
    }

    fn read_mcfg(&mut self, table: &[u8]) {
        for entry in table.get(44..).unwrap_or(&[]).chunks_exact(16) {
            let fields = Fields(entry);
            let segment = PciSegment {
                address: fields.u64(0),
                segment: fields.u16(8),
                buses: (fields.u8(10), fields.u8(11)),
            };
            note(&mut self.pci, segment);
        }
    }

    /// The global system interrupt of an ISA interrupt, with its MADT flags (0: edge, active high).
    pub fn isa_interrupt(&self, irq: u8) -> (u32, u16) {
        let wire = self.overrides.iter().find(|wire| wire.irq == irq);
        wire.map_or((irq.into(), 0), |wire| (wire.gsi, wire.flags))
    }
}

/// Reads arbitrary bytes as ACPI tables; for fuzzing.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let _ = parse(&super::info::TestMemory { base: 0x1000, bytes: data }, 0x1000);
}

#[cfg(test)]
#[path = "acpi_tests.rs"]
mod tests;
