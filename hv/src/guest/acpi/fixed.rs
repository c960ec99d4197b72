//! The tables without AML: FADT, MADT, HPET, MCFG.

use alloc::vec::Vec;

use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::mcfg::MCFG;
use acpi_tables::sdt::Sdt;

use super::{AcpiConfig, OEM_ID, OEM_REVISION, OEM_TABLE_ID, bytes};
use crate::device::hpet::{HPET_BLOCK_ID, HPET_MIN_TICKS};
use crate::device::layout;

/// The RTC's century register.
const RTC_CENTURY: u8 = 0x32;
/// IA-PC boot architecture flags (ACPI 5.2.9.3): ISA devices are there; no 8042, no VGA; no PCIe ASPM
/// control.
const BOOT_ARCH: u16 = 1 << 0 | 1 << 2 | 1 << 4;

/// Fixed hardware (ACPI 5.2.9). The machine is always in ACPI mode, so SMI_CMD is 0.
pub fn fadt(facs: u32, dsdt: u64) -> Vec<u8> {
    let flags = [
        Flags::Wbinvd,
        Flags::ProcC1,
        // Set means: no fixed power and sleep buttons, no RTC wake status.
        Flags::PwrButton,
        Flags::SlpButton,
        Flags::FixRtc,
        Flags::TmrValExt,
        Flags::ResetRegSup,
        Flags::Headless,
    ];
    let mut f =
        flags.into_iter().fold(FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION), FADTBuilder::flag);
    f = f.preferred_pm_profile(PmProfile::EnterpriseServer).firmware_ctrl_32(facs);
    f.dsdt = (dsdt as u32).into();
    f.x_dsdt = dsdt.into();
    f.sci_int = u16::from(layout::SCI_IRQ).into();
    f.pm1a_evt_blk = u32::from(layout::PM1A_EVENT).into();
    f.x_pm1a_evt_blk = port(layout::PM1A_EVENT, layout::PM1A_EVENT_LEN, AccessSize::WordAccess);
    f.pm1_evt_len = layout::PM1A_EVENT_LEN;
    f.pm1a_cnt_blk = u32::from(layout::PM1A_CONTROL).into();
    f.x_pm1a_cnt_blk = port(layout::PM1A_CONTROL, layout::PM1A_CONTROL_LEN, AccessSize::WordAccess);
    f.pm1_cnt_len = layout::PM1A_CONTROL_LEN;
    f.pm_tmr_blk = u32::from(layout::PM_TIMER).into();
    f.x_pm_tmr_blk = port(layout::PM_TIMER, layout::PM_TIMER_LEN, AccessSize::DwordAccess);
    f.pm_tmr_len = layout::PM_TIMER_LEN;
    f.gpe0_blk = u32::from(layout::GPE0).into();
    f.x_gpe0_blk = port(layout::GPE0, layout::GPE0_LEN, AccessSize::ByteAccess);
    f.gpe0_blk_len = layout::GPE0_LEN;
    // Above 100 and 1000 µs: there is neither C2 nor C3.
    f.p_lvl2_lat = 101.into();
    f.p_lvl3_lat = 1001.into();
    f.century = RTC_CENTURY;
    f.iapc_boot_arch = BOOT_ARCH.into();
    f.reset_reg = port(layout::RESET_CONTROL, 1, AccessSize::ByteAccess);
    f.reset_value = layout::RESET_VALUE;
    f.hypervisor_vendor_identity = u64::from_le_bytes(OEM_TABLE_ID).into();
    bytes(&f.finalize())
}

fn port(port: u16, len: u8, access: AccessSize) -> GAS {
    GAS::new(AddressSpace::SystemIo, len * 8, 0, access, port.into())
}

/// Interrupt controllers (ACPI 5.2.12).
pub fn madt(config: &AcpiConfig) -> Vec<u8> {
    const PCAT_COMPAT: u32 = 1;
    const ENABLED: u32 = 1;
    const ALL_PROCESSORS: u8 = 0xff;
    // Interrupt source override flags: as the bus has it (edge, high), and high and level.
    const CONFORMS: u16 = 0;
    const HIGH_LEVEL: u16 = 0b1101;
    let mut body = Vec::new();
    body.extend_from_slice(&(layout::LOCAL_APIC.start as u32).to_le_bytes());
    body.extend_from_slice(&PCAT_COMPAT.to_le_bytes());
    for (uid, &id) in config.apic_ids.iter().enumerate() {
        match u8::try_from(id) {
            // Id 255 is the xAPIC broadcast.
            Ok(id) if id < 255 => {
                body.extend_from_slice(&[0, 8, uid as u8, id]);
                body.extend_from_slice(&ENABLED.to_le_bytes());
            }
            _ => {
                body.extend_from_slice(&[9, 16, 0, 0]);
                [id, ENABLED, uid as u32].iter().for_each(|w| body.extend_from_slice(&w.to_le_bytes()));
            }
        }
    }
    body.extend_from_slice(&[1, 12, 0, 0]);
    body.extend_from_slice(&(layout::IOAPIC.start as u32).to_le_bytes());
    body.extend_from_slice(&0u32.to_le_bytes());
    let overrides =
        [(layout::PIT_IRQ, layout::PIT_GSI, CONFORMS), (layout::SCI_IRQ, layout::SCI_IRQ, HIGH_LEVEL)];
    for (irq, gsi, flags) in overrides {
        body.extend_from_slice(&[2, 10, 0, irq]);
        body.extend_from_slice(&u32::from(gsi).to_le_bytes());
        body.extend_from_slice(&flags.to_le_bytes());
    }
    // NMI at LINT1 of every local APIC.
    body.extend_from_slice(&[4, 6, ALL_PROCESSORS, 0, 0, 1]);
    table(b"APIC", 5, &body)
}

/// IA-PC HPET specification 1.0a, 3.2.4.
pub fn hpet() -> Vec<u8> {
    const SYSTEM_MEMORY: u8 = 0;
    let mut body = Vec::new();
    body.extend_from_slice(&HPET_BLOCK_ID.to_le_bytes());
    body.extend_from_slice(&[SYSTEM_MEMORY, 64, 0, 0]);
    body.extend_from_slice(&layout::HPET.start.to_le_bytes());
    body.push(0);
    body.extend_from_slice(&HPET_MIN_TICKS.to_le_bytes());
    body.push(0);
    table(b"HPET", 1, &body)
}

/// PCI firmware specification 3.3, 4.1.2.
pub fn mcfg() -> Vec<u8> {
    let mut mcfg = MCFG::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    mcfg.add_ecam(layout::ECAM.start, 0, 0, layout::PCI_LAST_BUS);
    bytes(&mcfg)
}

/// A table with a standard header.
pub fn table(signature: &[u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut table = Sdt::new(*signature, 36, revision, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    table.append_slice(body);
    table.as_slice().to_vec()
}
