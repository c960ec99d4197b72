//! Where the guest's devices are: ports, MMIO windows, interrupt lines.
//!
//! One place for the bus ([`super::chipset`]), which decodes these addresses, and for the ACPI tables, which tell
//! the guest about them; so a change of a number here changes both. The layout is that of a PC: ISA devices at
//! their traditional ports, interrupt controllers and HPET below 4 GiB, and between RAM and those the PCI windows.
//!
//! Facts for the ACPI tables that are not addresses: interrupts of ISA devices are edge-triggered and active high
//! and ISA IRQ 0 arrives at GSI 2 (an interrupt source override); the SCI is level-triggered (active high: another
//! override); the machine is always in ACPI mode (SCI_EN reads 1, SMI_CMD is 0); the PM timer is 32 bits wide;
//! S5 is the only sleep state.

use core::ops::Range;

/// Number of IOAPIC pins, which are the global system interrupts 0 to 23.
pub const GSI_COUNT: u8 = 24;
/// ISA IRQ of PIT channel 0 (or HPET timer 0 in legacy replacement mode).
pub const PIT_IRQ: u8 = 0;
/// GSI at which ISA IRQ 0 arrives.
pub const PIT_GSI: u8 = 2;
/// ISA IRQ of the keyboard.
pub const KEYBOARD_IRQ: u8 = 1;
/// ISA IRQ of the first serial port.
pub const UART_IRQ: u8 = 4;
/// ISA IRQ of the real-time clock (or HPET timer 1 in legacy replacement mode).
pub const RTC_IRQ: u8 = 8;
/// The ACPI system control interrupt, level-triggered.
pub const SCI_IRQ: u8 = 9;
/// ISA IRQ of the PS/2 mouse.
pub const MOUSE_IRQ: u8 = 12;
/// GSIs that HPET timers may be routed to (a bit each), when they do not replace IRQ 0 and 8.
pub const HPET_GSIS: u32 = 0x00f0_0000;

/// The master and slave 8259A: command and data port each.
pub const PIC_MASTER: u16 = 0x20;
/// See [`PIC_MASTER`].
pub const PIC_SLAVE: u16 = 0xa0;
/// Edge/level control registers of the two 8259A.
pub const ELCR: u16 = 0x4d0;
/// The 8254: three counters and the control word.
pub const PIT: u16 = 0x40;
/// System control port B: gate and output of PIT channel 2, refresh toggle.
pub const SYSTEM_CONTROL_B: u16 = 0x61;
/// System control port A: A20 and fast reset.
pub const SYSTEM_CONTROL_A: u16 = 0x92;
/// The 8042: data port.
pub const I8042_DATA: u16 = 0x60;
/// The 8042: status and command port.
pub const I8042_COMMAND: u16 = 0x64;
/// The real-time clock: index port, followed by the data port.
pub const RTC: u16 = 0x70;
/// The first 16550A: eight registers.
pub const UART: u16 = 0x3f8;
/// PCI configuration mechanism 1: the address register (only whole dwords).
pub const PCI_ADDRESS: u16 = 0xcf8;
/// Reset control register (only bytes; it shares its place with [`PCI_ADDRESS`]).
pub const RESET_CONTROL: u16 = 0xcf9;
/// What the ACPI reset register ([`RESET_CONTROL`]) must be written with: a full reset of the machine.
pub const RESET_VALUE: u8 = 0x06;
/// PCI configuration mechanism 1: the data register, 4 bytes.
pub const PCI_DATA: u16 = 0xcfc;

/// ACPI fixed hardware: all blocks lie in these 64 ports.
pub const PM_BASE: u16 = 0x600;
/// PM1a event block: status and enable, 4 bytes.
pub const PM1A_EVENT: u16 = PM_BASE;
/// Length of [`PM1A_EVENT`] in bytes.
pub const PM1A_EVENT_LEN: u8 = 4;
/// PM1a control block, 2 bytes.
pub const PM1A_CONTROL: u16 = PM_BASE + 0x04;
/// Length of [`PM1A_CONTROL`] in bytes.
pub const PM1A_CONTROL_LEN: u8 = 2;
/// The PM timer, 4 bytes, 32 bits wide.
pub const PM_TIMER: u16 = PM_BASE + 0x08;
/// Length of [`PM_TIMER`] in bytes.
pub const PM_TIMER_LEN: u8 = 4;
/// General-purpose event block 0: 2 bytes of status, 2 bytes of enable.
pub const GPE0: u16 = PM_BASE + 0x20;
/// Length of [`GPE0`] in bytes.
pub const GPE0_LEN: u8 = 4;
/// Number of ports that [`PM_BASE`] reserves.
pub const PM_LEN: u16 = 0x40;
/// SLP_TYP for S5 (soft off), for the `\_S5` package.
pub const SLEEP_TYPE_S5: u8 = 5;

pub use abi::testdev::{
    EXIT as TEST_EXIT, FLUSH as TEST_FLUSH, IRQ as TEST_IRQ, LATCH as TEST_LATCH,
    LATCH_BYTES as TEST_LATCH_BYTES, UNMAP as TEST_UNMAP,
};
const _: () = assert!(abi::testdev::IRQS == GSI_COUNT as u16);
/// Test device: memory that keeps what is written to it, and whose every access exits.
pub const TEST_MEMORY: Range<u64> = abi::testdev::MEMORY..abi::testdev::MEMORY + abi::testdev::MEMORY_BYTES;

/// The GSI at which pin `pin` (0 for INTA) of PCI device `device` on bus 0 arrives: 16 to 19, level-triggered and
/// active low. Neighbours are spread over them; the HPET's lines lie above.
pub const fn pci_interrupt_gsi(device: u8, pin: u8) -> u8 {
    16 + (device.wrapping_add(pin) & 3)
}

/// PCI window for 32-bit BARs.
pub const PCI_WINDOW_32: Range<u64> = 0xc000_0000..0xe000_0000;
/// PCI window for I/O BARs.
pub const PCI_WINDOW_IO: Range<u32> = 0x4000..0x1_0000;
/// The last bus that the ACPI tables name. There are no bridges; guests probe every device of every named bus, and each
/// probe is an exit.
pub const PCI_LAST_BUS: u8 = 0;
/// Enhanced configuration access mechanism (MCFG): room for 256 buses of segment 0.
pub const ECAM: Range<u64> = 0xe000_0000..0xf000_0000;
/// IOAPIC registers, one page.
pub const IOAPIC: Range<u64> = 0xfec0_0000..0xfec0_1000;
/// HPET registers.
pub const HPET: Range<u64> = 0xfed0_0000..0xfed0_0400;
/// The local APIC page at reset. Each VCPU serves its own; the bus knows nothing about it.
pub const LOCAL_APIC: Range<u64> = 0xfee0_0000..0xfee0_1000;
