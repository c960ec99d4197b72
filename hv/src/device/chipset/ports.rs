//! Which device answers at a port: one table look-up.

use super::super::layout::*;
use super::super::testdev::TestDevice;

/// Devices with ports. Those before [`PortDevice::PciAddress`] have registers of one byte: the bus splits wider accesses
/// to them, as the bridge to the ISA bus does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum PortDevice {
    Unclaimed,
    Pic,
    Pit,
    SystemControlB,
    SystemControlA,
    KeyboardData,
    KeyboardCommand,
    Rtc,
    Uart,
    /// The address register if it is a dword, the reset control register if it is that byte.
    PciAddress,
    PciData,
    Pm,
    Test,
}

impl PortDevice {
    /// The device at `port`.
    #[inline]
    pub(super) fn at(port: u16) -> PortDevice {
        match PORTS.get(usize::from(port)) {
            Some(&device) => device,
            None => PortDevice::Unclaimed,
        }
    }

    /// Whether accesses of more than a byte are split.
    #[inline]
    pub(super) fn is_byte_wide(self) -> bool {
        self < PortDevice::PciAddress
    }
}

/// No device has a port from here on.
const END: usize = TEST_UNMAP as usize + 4;

static PORTS: [PortDevice; END] = build();

const fn build() -> [PortDevice; END] {
    use PortDevice::*;
    let ranges = [
        (PIC_MASTER, 2, Pic),
        (PIC_SLAVE, 2, Pic),
        (ELCR, 2, Pic),
        (PIT, 4, Pit),
        (SYSTEM_CONTROL_B, 1, SystemControlB),
        (SYSTEM_CONTROL_A, 1, SystemControlA),
        (I8042_DATA, 1, KeyboardData),
        (I8042_COMMAND, 1, KeyboardCommand),
        (RTC, 2, Rtc),
        (UART, 8, Uart),
        (PCI_ADDRESS, 4, PciAddress),
        (PCI_DATA, 4, PciData),
        (PM1A_EVENT, PM1A_EVENT_LEN, Pm),
        (PM1A_CONTROL, PM1A_CONTROL_LEN, Pm),
        (PM_TIMER, PM_TIMER_LEN, Pm),
        (GPE0, GPE0_LEN, Pm),
    ];
    let mut table = [Unclaimed; END];
    let mut range = 0;
    while range < ranges.len() {
        let (base, len, device) = ranges[range];
        let mut port = base;
        while port < base + len as u16 {
            table[port as usize] = device;
            port += 1;
        }
        range += 1;
    }
    let mut port = 0;
    while port < END {
        if TestDevice::owns(port as u16) {
            table[port] = Test;
        }
        port += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_its_ports() {
        let count = |device| (0..=u16::MAX).filter(|&port| PortDevice::at(port) == device).count();
        assert_eq!(count(PortDevice::Pic), 6);
        assert_eq!(count(PortDevice::Pit), 4);
        assert_eq!(count(PortDevice::Rtc), 2);
        assert_eq!(count(PortDevice::Uart), 8);
        assert_eq!(count(PortDevice::PciAddress), 4);
        assert_eq!(count(PortDevice::PciData), 4);
        assert_eq!(count(PortDevice::Pm), 14);
        assert_eq!(count(PortDevice::Test), 44);
        assert_eq!(PortDevice::at(0x80), PortDevice::Unclaimed);
        assert_eq!(PortDevice::at(0xffff), PortDevice::Unclaimed);
        assert_eq!(PortDevice::at(0x3fd), PortDevice::Uart);
    }
}
