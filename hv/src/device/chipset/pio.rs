//! The bus for port I/O.

use super::super::effect::Effect;
use super::super::layout::*;
use super::super::message::Messages;
use super::super::uart::LINE_STATUS_REGISTER;
use super::super::{Nanos, lanes};
use super::ports::PortDevice;
use super::{Chipset, Controllers, Timed};

impl Chipset {
    /// IN: reads `size` bytes (1, 2 or 4) at `port`. Ports that no device claims read as ones.
    #[inline]
    pub fn io_read(&mut self, port: u16, size: u8, now: Nanos, messages: &mut Messages) -> u32 {
        if port == UART + LINE_STATUS_REGISTER
            && size == 1
            && let Some(status) = self.uart.poll_status()
        {
            return status.into();
        }
        self.read_any(port, size, now, messages)
    }

    /// OUT: writes the low `size` bytes (1, 2 or 4) of `value` at `port`.
    #[inline]
    pub fn io_write(
        &mut self,
        port: u16,
        size: u8,
        value: u32,
        now: Nanos,
        messages: &mut Messages,
    ) -> Effect {
        if port == UART
            && size == 1
            && let Some(effect) = self.uart.poll_send(value as u8)
        {
            return effect;
        }
        self.write_any(port, size, value, now, messages)
    }

    fn read_any(&mut self, port: u16, size: u8, now: Nanos, messages: &mut Messages) -> u32 {
        let device = PortDevice::at(port);
        if size != 1 && device.is_byte_wide() {
            return self.read_split(port, size, now, messages);
        }
        let byte = match device {
            PortDevice::Uart => {
                let byte = self.uart.read(port - UART, now);
                self.uart_changed(now, messages);
                byte
            }
            PortDevice::PciData => {
                self.before_config_read(self.pci.data_place(port - PCI_DATA), messages);
                return self.pci.read_data(port - PCI_DATA, size);
            }
            PortDevice::PciAddress if port == PCI_ADDRESS && size == 4 => return self.pci.read_address(),
            PortDevice::PciAddress if port == RESET_CONTROL && size == 1 => self.pm.read_reset_control(),
            PortDevice::Pm => return self.pm.read(port, size, now),
            PortDevice::Pic => self.pic.read(port),
            PortDevice::Pit => self.pit.read(port - PIT, now),
            PortDevice::SystemControlB => self.pit.read_control_b(now),
            PortDevice::SystemControlA => self.i8042.read_control_a(),
            PortDevice::KeyboardCommand => self.i8042.read_status(),
            PortDevice::KeyboardData => {
                let byte = self.i8042.read_data();
                self.keyboard_changed(messages);
                byte
            }
            PortDevice::Rtc => {
                let byte = self.rtc.read(port - RTC, now);
                self.changed(Timed::Rtc, now, messages);
                byte
            }
            PortDevice::Test if self.test.is_some() => {
                return self.test.as_ref().map_or(0, |test| test.read(port, size));
            }
            PortDevice::Test | PortDevice::PciAddress | PortDevice::Unclaimed => {
                return self.read_unclaimed(port, size);
            }
        };
        byte.into()
    }

    fn write_any(&mut self, port: u16, size: u8, value: u32, now: Nanos, messages: &mut Messages) -> Effect {
        let device = PortDevice::at(port);
        if size != 1 && device.is_byte_wide() {
            return self.write_split(port, size, value, now, messages);
        }
        let byte = value as u8;
        match device {
            PortDevice::Uart => {
                let effect = self.uart.write(port - UART, byte, now);
                self.uart_changed(now, messages);
                return effect;
            }
            PortDevice::PciData => {
                self.pci.write_data(port - PCI_DATA, size, value);
                return self.after_config_write(self.pci.data_place(port - PCI_DATA), messages);
            }
            PortDevice::PciAddress if port == PCI_ADDRESS && size == 4 => self.pci.write_address(value),
            PortDevice::PciAddress if port == RESET_CONTROL && size == 1 => {
                return self.pm.write_reset_control(byte);
            }
            PortDevice::Pm => {
                let effect = self.pm.write(port, size, value, now);
                self.changed(Timed::Pm, now, messages);
                return effect;
            }
            PortDevice::Pic => self.pic.write(port, byte),
            PortDevice::Pit => {
                self.pit.write(port - PIT, byte, now);
                self.changed(Timed::Pit, now, messages);
            }
            PortDevice::SystemControlB => self.pit.write_control_b(byte, now),
            PortDevice::SystemControlA => return self.i8042.write_control_a(byte),
            PortDevice::KeyboardCommand | PortDevice::KeyboardData => {
                let command = device == PortDevice::KeyboardCommand;
                let effect =
                    if command { self.i8042.write_command(byte) } else { self.i8042.write_data(byte) };
                self.keyboard_changed(messages);
                return effect;
            }
            PortDevice::Rtc => {
                self.rtc.write(port - RTC, byte, now);
                self.changed(Timed::Rtc, now, messages);
            }
            PortDevice::Test if self.test.is_some() => return self.write_test(port, size, value, messages),
            PortDevice::Test | PortDevice::PciAddress | PortDevice::Unclaimed => {
                self.count_unclaimed(port, size)
            }
        }
        Effect::None
    }

    fn write_test(&mut self, port: u16, size: u8, value: u32, messages: &mut Messages) -> Effect {
        let Some(test) = &mut self.test else {
            return Effect::None;
        };
        let effect = test.write(port, size, value);
        let levels = test.lines();
        let to = Controllers { pic: &mut self.pic, ioapic: &mut self.ioapic, messages };
        self.lines.set_test(levels, to);
        effect
    }

    #[cold]
    fn read_split(&mut self, port: u16, size: u8, now: Nanos, messages: &mut Messages) -> u32 {
        (0..size.min(4)).fold(0, |value, byte| {
            let port = port.wrapping_add(byte.into());
            value | self.io_read(port, 1, now, messages) << (8 * byte)
        })
    }

    #[cold]
    fn write_split(
        &mut self,
        port: u16,
        size: u8,
        value: u32,
        now: Nanos,
        messages: &mut Messages,
    ) -> Effect {
        (0..size.min(4)).fold(Effect::None, |effect, byte| {
            let port = port.wrapping_add(byte.into());
            effect.or(self.io_write(port, 1, value >> (8 * byte) & 0xff, now, messages))
        })
    }

    #[cold]
    fn read_unclaimed(&mut self, port: u16, size: u8) -> u32 {
        self.count_unclaimed(port, size);
        lanes::size_mask(size)
    }

    #[cold]
    fn count_unclaimed(&mut self, port: u16, size: u8) {
        let class = match port {
            0..0x100 => &mut self.unclaimed.board,
            0x100..0x400 => &mut self.unclaimed.card,
            _ => &mut self.unclaimed.extended,
        };
        *class = class.saturating_add(size.into());
    }
}
