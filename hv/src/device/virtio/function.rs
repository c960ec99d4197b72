//! The PCI function of a device: identity, capabilities and the layout of its BAR.
//!
//! Virtio 1.2, 4.1; PCI 3.0, 6.7 and 6.8.2.

use core::ops::Range;

use super::model::Model;
use super::msix::{TABLE_BYTES, VECTORS};
use crate::device::pci::{Bar, Function};

/// Bytes of the BAR, a page for each part.
pub const BAR_BYTES: u64 = 0x8000;
/// Common configuration.
pub const COMMON: Range<u64> = 0..0x40;
/// The interrupt status.
pub const ISR: Range<u64> = 0x1000..0x1004;
/// The device's own configuration.
pub const CONFIG: Range<u64> = 0x2000..0x2100;
/// One dword for each queue to notify.
pub const NOTIFY: Range<u64> = 0x3000..0x3000 + 4 * super::model::MAX_QUEUES as u64;
/// The MSI-X table.
pub const TABLE: Range<u64> = 0x4000..0x4000 + TABLE_BYTES;
/// The MSI-X pending bits.
pub const PENDING: Range<u64> = 0x5000..0x5008;

const VENDOR: u16 = 0x1af4;
const MODERN: u16 = 0x1040;

/// Registers (dwords) of configuration space.
const STATUS: usize = 1;
const REVISION: usize = 2;
const CAPABILITIES: usize = 13;
const INTERRUPT: usize = 15;
/// Status register: there is a list of capabilities.
const HAS_CAPABILITIES: u32 = 1 << 20;
/// INTA#.
const PIN_A: u32 = 1 << 8;

const VENDOR_SPECIFIC: u32 = 0x09;
const MSIX: u32 = 0x11;
/// Where the capability structures are, as dwords.
const AT_COMMON: usize = 0x40 / 4;
const AT_NOTIFY: usize = 0x50 / 4;
const AT_ISR: usize = 0x64 / 4;
const AT_CONFIG: usize = 0x74 / 4;
const AT_WINDOW: usize = 0x84 / 4;
const AT_MSIX: usize = 0x98 / 4;
/// The MSI-X capability's first dword: enable and mask are its upper bits.
pub const MSIX_CONTROL: u16 = 4 * AT_MSIX as u16;
/// Enable.
pub const MSIX_ENABLE: u32 = 1 << 31;
/// Mask all.
pub const MSIX_MASK: u32 = 1 << 30;
/// The window of the PCI configuration access capability: BAR (a byte), offset, length, and the data.
pub const WINDOW_BAR: u16 = 4 * AT_WINDOW as u16 + 4;
/// See [`WINDOW_BAR`].
pub const WINDOW_OFFSET: u16 = WINDOW_BAR + 4;
/// See [`WINDOW_BAR`].
pub const WINDOW_LENGTH: u16 = WINDOW_BAR + 8;
/// See [`WINDOW_BAR`].
pub const WINDOW_DATA: u16 = WINDOW_BAR + 12;

/// The function of `model` with its BAR at `address`, decoding memory as firmware would leave it, and its interrupt at `gsi`.
pub(super) fn build(model: &Model, address: u64, gsi: u8) -> Function {
    let device = MODERN + model.id();
    let (class, any) = (model.class() << 8, u32::MAX);
    let mut function = Function::new(VENDOR, device, model.class())
        .with_bar(0, Bar::Memory64(BAR_BYTES))
        .with_bar_at(0, address)
        .with_register(STATUS, HAS_CAPABILITIES, 0)
        // Revision 1: no legacy interface.
        .with_register(REVISION, class | 1, 0)
        .with_register(CAPABILITIES, 4 * AT_COMMON as u32, 0)
        .with_register(INTERRUPT, PIN_A | u32::from(gsi), 0xff);
    let structures = [
        (AT_COMMON, AT_NOTIFY, 16, 1, COMMON),
        (AT_NOTIFY, AT_ISR, 20, 2, NOTIFY),
        (AT_ISR, AT_CONFIG, 16, 3, ISR),
        (AT_CONFIG, AT_WINDOW, 16, 4, CONFIG),
        (AT_WINDOW, AT_MSIX, 20, 5, 0..0),
    ];
    for (at, next, bytes, kind, place) in structures {
        let writable = if kind == 5 { any } else { 0 };
        function = function
            .with_register(at, VENDOR_SPECIFIC | (4 * next as u32) << 8 | bytes << 16 | kind << 24, 0)
            .with_register(at + 1, 0, writable & 0xff)
            .with_register(at + 2, place.start as u32, writable)
            .with_register(at + 3, (place.end - place.start) as u32, writable);
        if bytes == 20 {
            // The multiplier of notification offsets; the window's data.
            function = function.with_register(at + 4, if kind == 2 { 4 } else { 0 }, writable);
        }
    }
    function
        .with_register(AT_MSIX, MSIX | (VECTORS as u32 - 1) << 16, MSIX_ENABLE | MSIX_MASK)
        .with_register(AT_MSIX + 1, TABLE.start as u32, 0)
        .with_register(AT_MSIX + 2, PENDING.start as u32, 0)
}
