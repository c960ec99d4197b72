//! Virtio devices on the bus: their BARs, what configuration space says to them, their interrupt lines.

use arrayvec::ArrayVec;

use super::super::effect::Effect;
use super::super::message::Messages;
use super::super::pci::{Place, PlugError};
use super::super::virtio::device::Setup;
use super::super::virtio::function::{
    BAR_BYTES, MSIX_CONTROL, MSIX_ENABLE, MSIX_MASK, WINDOW_BAR, WINDOW_DATA, WINDOW_LENGTH, WINDOW_OFFSET,
};
use super::super::virtio::{MAX_DEVICES, Virtio};
use super::{Chipset, Controllers};
use crate::arch::addr::Gpa;

/// The command register: the function answers, may access memory, must not use INTA#.
const COMMAND: u16 = 4;
const BUS_MASTER: u32 = 1 << 2;
const INTERRUPT_DISABLE: u32 = 1 << 10;

/// The devices and where they answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    pub(super) devices: Virtio,
    /// Where each BAR is; `None` while it does not decode.
    bars: ArrayVec<Option<u64>, MAX_DEVICES>,
}

impl Slots {
    /// The device that answers at `gpa`, and the offset in its BAR.
    #[inline]
    pub(super) fn lookup(&self, gpa: Gpa) -> Option<(u8, u64)> {
        let offset = |bar: &Option<u64>| gpa.0.checked_sub((*bar)?).filter(|offset| *offset < BAR_BYTES);
        (0..).zip(&self.bars).find_map(|(slot, bar)| Some((slot, offset(bar)?)))
    }
}

impl Chipset {
    /// Puts the devices on the PCI bus.
    pub fn attach(&mut self, devices: Virtio) -> Result<(), PlugError> {
        for (devfn, function) in devices.functions() {
            self.pci.plug(devfn, function)?;
            self.virtio.bars.try_push(None).map_err(|_| PlugError::Full)?;
        }
        self.virtio.devices = devices;
        self.reset_virtio();
        Ok(())
    }

    /// After a reset of the devices.
    pub(super) fn reset_virtio(&mut self) {
        self.virtio.devices.reset();
        for slot in 0..self.virtio.bars.len() as u8 {
            self.configure(slot, &mut Messages::new());
        }
    }

    /// Tells a device what its configuration space says.
    fn configure(&mut self, slot: u8, messages: &mut Messages) {
        let Some(function) = self.pci.function(0, Virtio::devfn(slot)) else { return };
        let (command, msix) = (function.read(COMMAND, 4), function.read(MSIX_CONTROL, 4));
        if let Some(bar) = self.virtio.bars.get_mut(usize::from(slot)) {
            *bar = function.bar(0);
        }
        let setup = Setup {
            bus_master: command & BUS_MASTER != 0,
            interrupt_disabled: command & INTERRUPT_DISABLE != 0,
            msix: msix & MSIX_ENABLE != 0,
            msix_masked: msix & MSIX_MASK != 0,
        };
        self.virtio.devices.configure(slot, setup, messages);
        self.virtio_lines(messages);
    }

    /// Carries the devices' interrupt lines on, after anything that may have changed them.
    pub fn virtio_lines(&mut self, messages: &mut Messages) {
        let levels = self.virtio.devices.lines();
        let to = Controllers { pic: &mut self.pic, ioapic: &mut self.ioapic, messages };
        self.lines.set_pci(levels, to);
    }

    /// Reads from a device's BAR.
    pub(super) fn virtio_read(&mut self, slot: u8, offset: u64, size: u8, messages: &mut Messages) -> u64 {
        let value = self.virtio.devices.read(slot, offset, size);
        self.virtio_lines(messages);
        value
    }

    /// Writes to a device's BAR.
    pub(super) fn virtio_write(
        &mut self,
        slot: u8,
        offset: u64,
        size: u8,
        value: u64,
        messages: &mut Messages,
    ) -> Effect {
        let effect = self.virtio.devices.write(slot, offset, size, value, messages);
        if effect == Effect::None {
            self.virtio_lines(messages);
        }
        effect
    }

    /// The device behind a place in configuration space.
    #[inline]
    fn slot_at(&self, place: Option<Place>) -> Option<(u8, u16)> {
        let place = place?;
        Some((self.virtio.devices.slot(place.devfn)?, place.register))
    }

    /// Before a read of configuration space: the data of a device's window is what its BAR holds there.
    #[inline]
    pub(super) fn before_config_read(&mut self, place: Option<Place>, messages: &mut Messages) {
        if let Some((slot, register)) = self.slot_at(place)
            && register & !3 == WINDOW_DATA
            && let Some((offset, size)) = self.window(slot)
        {
            let value = self.virtio_read(slot, offset, size, messages);
            if let Some(function) = self.pci.function_mut(0, Virtio::devfn(slot)) {
                function.write(WINDOW_DATA, size, value as u32);
            }
        }
    }

    /// After a write to configuration space.
    pub(super) fn after_config_write(&mut self, place: Option<Place>, messages: &mut Messages) -> Effect {
        let Some((slot, register)) = self.slot_at(place) else { return Effect::None };
        if register & !3 != WINDOW_DATA {
            self.configure(slot, messages);
            return Effect::None;
        }
        let (Some((offset, size)), Some(function)) =
            (self.window(slot), self.pci.function(0, Virtio::devfn(slot)))
        else {
            return Effect::None;
        };
        let value = function.read(WINDOW_DATA, size);
        self.virtio_write(slot, offset, size, value.into(), messages)
    }

    /// Where the window of the PCI configuration access capability looks, and how wide it is (virtio 1.2, 4.1.4.9).
    fn window(&self, slot: u8) -> Option<(u64, u8)> {
        let function = self.pci.function(0, Virtio::devfn(slot))?;
        let [bar, offset, length] =
            [WINDOW_BAR, WINDOW_OFFSET, WINDOW_LENGTH].map(|register| function.read(register, 4));
        let valid = bar & 0xff == 0 && matches!(length, 1 | 2 | 4) && offset.is_multiple_of(length);
        (valid && u64::from(offset) < BAR_BYTES).then_some((offset.into(), length as u8))
    }
}
