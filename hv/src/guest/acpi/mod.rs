//! The guest's ACPI tables (ACPI 6.5).
//!
//! They describe the machine of [`crate::device::layout`]: fixed hardware with PM1 registers and SCI, one PCI
//! root bridge, ISA devices, HPET, IOAPIC and as many local APICs as there are VCPUs. The VM's construction
//! calls [`write_tables`] before the loaders run; [`RSDP`] is what they hand to the kernel.

mod dsdt;
mod fixed;

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use acpi_tables::Aml;
use acpi_tables::facs::FACS;
use acpi_tables::rsdp::Rsdp;
use acpi_tables::xsdt::XSDT;

use crate::arch::addr::Gpa;
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::vm::layout::{ACPI_AREA, RSDP_AREA};

/// Where the root pointer is: in the BIOS area, where it is also found by a search.
pub const RSDP: Gpa = Gpa(RSDP_AREA.start);

const OEM_ID: [u8; 6] = *b"PALIMP";
const OEM_TABLE_ID: [u8; 8] = *b"PALIMPST";
const OEM_REVISION: u32 = 1;

/// What the tables depend on.
#[derive(Clone, Debug)]
pub struct AcpiConfig {
    /// Local APIC ids of the VCPUs, the first VCPU's first.
    pub apic_ids: Vec<u32>,
    /// The PCI host bridge's 64-bit window, if it has one.
    pub pci_window_64: Option<Range<u64>>,
}

/// Why there are no tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcpiError {
    /// They need this many bytes more than there are.
    TooLarge(u64),
    /// The guest has no RAM where they go.
    NotRam(NotRam),
}

impl fmt::Display for AcpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcpiError::TooLarge(bytes) => {
                write!(f, "the ACPI tables are {bytes} bytes too large; use fewer VCPUs")
            }
            AcpiError::NotRam(e) => write!(f, "no guest RAM for the ACPI tables at {:#x}", e.gpa),
        }
    }
}

/// Writes all tables to guest memory, the root pointer to [`RSDP`].
pub fn write_tables(memory: &impl GuestMemory, config: &AcpiConfig) -> Result<(), AcpiError> {
    let mut area = Area { memory, next: ACPI_AREA.start };
    let facs = area.put(&bytes(&FACS::new()))?;
    let dsdt = area.put(&dsdt::build(config))?;
    let tables = [fixed::fadt(facs as u32, dsdt), fixed::madt(config), fixed::hpet(), fixed::mcfg()];
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    let mut entries = Vec::new();
    for table in &tables {
        let at = area.put(table)?;
        xsdt.add_entry(at);
        // The area is below 1 MiB.
        entries.extend_from_slice(&(at as u32).to_le_bytes());
    }
    let xsdt = area.put(&bytes(&xsdt))?;
    let rsdt = area.put(&fixed::table(b"RSDT", 1, &entries))?;
    memory.write(RSDP, &root_pointer(rsdt as u32, xsdt)).map_err(AcpiError::NotRam)
}

/// The root pointer with both root tables: kernels from before ACPI 2.0 know the RSDT only (ACPI 5.2.5.3).
fn root_pointer(rsdt: u32, xsdt: u64) -> Vec<u8> {
    let mut pointer = bytes(&Rsdp::new(OEM_ID, xsdt));
    pointer[16..20].copy_from_slice(&rsdt.to_le_bytes());
    for (len, checksum) in [(20, 8), (36, 32)] {
        pointer[checksum] = 0;
        pointer[checksum] = pointer[..len].iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte));
    }
    pointer
}

/// The area from which tables take their places.
struct Area<'a, M> {
    memory: &'a M,
    next: u64,
}

impl<M: GuestMemory> Area<'_, M> {
    /// Writes a table to the next multiple of 64, as the FACS demands; returns its address.
    fn put(&mut self, table: &[u8]) -> Result<u64, AcpiError> {
        // The FACS must be aligned so (ACPI 5.2.10); the others may be.
        let at = self.next.next_multiple_of(64);
        let end = at + table.len() as u64;
        if end > ACPI_AREA.end {
            return Err(AcpiError::TooLarge(end - ACPI_AREA.end));
        }
        self.memory.write(Gpa(at), table).map_err(AcpiError::NotRam)?;
        self.next = end;
        Ok(at)
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut out = Vec::new();
    table.to_aml_bytes(&mut out);
    out
}

#[cfg(test)]
mod tests;
