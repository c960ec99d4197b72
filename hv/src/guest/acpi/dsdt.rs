//! The DSDT: sleep state, PCI root bridge and ISA devices in AML.

use alloc::vec;
use alloc::vec::Vec;

use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, IO, Memory32Fixed, Name, PackageBuilder, Path,
    ResourceTemplate, Scope,
};
use acpi_tables::{Aml, AmlSink};

use super::{AcpiConfig, bytes, fixed};
use crate::device::layout::{self, pci_interrupt_gsi};

/// Builds the table.
pub fn build(config: &AcpiConfig) -> Vec<u8> {
    let mut aml = s5();
    let devices = [pci_bridge(config), board(), hpet(), isa_devices()].concat();
    aml.extend(Scope::raw(Path::new("_SB_"), devices));
    // Revision 2: integers are 64 bits wide.
    fixed::table(b"DSDT", 2, &aml)
}

/// `\_S5`: soft off, the only sleep state.
fn s5() -> Vec<u8> {
    let mut package = PackageBuilder::new();
    for value in [layout::SLEEP_TYPE_S5, layout::SLEEP_TYPE_S5, 0, 0] {
        package.add_element(&value);
    }
    bytes(&Name::new(Path::new("_S5_"), &package))
}

fn pci_bridge(config: &AcpiConfig) -> Vec<u8> {
    let bus = AddressSpace::new_bus_number(0u16, layout::PCI_LAST_BUS.into());
    let config_ports = IO::new(layout::PCI_ADDRESS, layout::PCI_ADDRESS, 1, 8);
    let io = &layout::PCI_WINDOW_IO;
    let io = AddressSpace::new_io(io.start as u16, (io.end - 1) as u16, None);
    let low = &layout::PCI_WINDOW_32;
    let low = AddressSpace::new_memory(
        AddressSpaceCacheable::NotCacheable,
        true,
        low.start as u32,
        (low.end - 1) as u32,
        None,
    );
    let high = config.pci_window_64.as_ref().map(|w| {
        AddressSpace::new_memory(AddressSpaceCacheable::NotCacheable, true, w.start, w.end - 1, None)
    });
    let mut windows: Vec<&dyn Aml> = vec![&bus, &config_ports, &io, &low];
    windows.extend(high.iter().map(|w| w as &dyn Aml));

    let mut routes = PackageBuilder::new();
    for (device, pin) in (0..32u8).flat_map(|device| (0..4u8).map(move |pin| (device, pin))) {
        let mut route = PackageBuilder::new();
        route.add_element(&(u32::from(device) << 16 | 0xffff));
        route.add_element(&pin);
        // No link device: the next number is a GSI.
        route.add_element(&0u8);
        route.add_element(&pci_interrupt_gsi(device, pin));
        routes.add_element(&route);
    }
    let children: [&dyn Aml; 6] = [
        &Name::new(Path::new("_HID"), &EISAName::new("PNP0A08")),
        &Name::new(Path::new("_CID"), &EISAName::new("PNP0A03")),
        &Name::new(Path::new("_UID"), &0u8),
        &Name::new(Path::new("_BBN"), &0u8),
        &Name::new(Path::new("_CRS"), &ResourceTemplate::new(windows)),
        &Name::new(Path::new("_PRT"), &routes),
    ];
    bytes(&Device::new(Path::new("PCI0"), children.to_vec()))
}

/// What the board keeps for itself, so that nothing is placed there.
fn board() -> Vec<u8> {
    // Linux uses ECAM only where its area is reserved, here or in the memory map.
    let ecam_len = (layout::ECAM.end - layout::ECAM.start) as u32;
    device(
        "MBRD",
        "PNP0C02",
        0,
        vec![
            &Memory32Fixed::new(true, layout::ECAM.start as u32, ecam_len),
            &IO::new(layout::PM_BASE, layout::PM_BASE, 1, layout::PM_LEN as u8),
            &IO::new(layout::ELCR, layout::ELCR, 1, 2),
        ],
    )
}

fn hpet() -> Vec<u8> {
    device("HPET", "PNP0103", 0, vec![&Memory32Fixed::new(false, layout::HPET.start as u32, 0x400)])
}

fn isa_devices() -> Vec<u8> {
    let pit: [&dyn Aml; 2] = [&IO::new(layout::PIT, layout::PIT, 1, 4), &Irq(layout::PIT_IRQ)];
    let rtc: [&dyn Aml; 2] = [&IO::new(layout::RTC, layout::RTC, 1, 2), &Irq(layout::RTC_IRQ)];
    let uart: [&dyn Aml; 2] = [&IO::new(layout::UART, layout::UART, 1, 8), &Irq(layout::UART_IRQ)];
    [
        device("TIMR", "PNP0100", 0, pit.to_vec()),
        device("RTC_", "PNP0B00", 0, rtc.to_vec()),
        device("COM1", "PNP0501", 1, uart.to_vec()),
    ]
    .concat()
}

fn device(name: &str, id: &str, uid: u8, resources: Vec<&dyn Aml>) -> Vec<u8> {
    let children: [&dyn Aml; 3] = [
        &Name::new(Path::new("_HID"), &EISAName::new(id)),
        &Name::new(Path::new("_UID"), &uid),
        &Name::new(Path::new("_CRS"), &ResourceTemplate::new(resources)),
    ];
    bytes(&Device::new(Path::new(name), children.to_vec()))
}

/// A small IRQ descriptor without flags (ACPI 6.4.2.1): an ISA interrupt, edge-triggered and active high, not
/// shared.
struct Irq(u8);

impl Aml for Irq {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.byte(0x22);
        sink.word(1 << (self.0 & 15));
    }
}
