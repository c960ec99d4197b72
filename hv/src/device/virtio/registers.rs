//! The registers in a function's BAR.
//!
//! Virtio 1.2, 4.1.4.3 (common configuration), 2.1 (status), 2.2 (features), 4.1.4.5 (interrupt status).

use super::device::{Device, status};
use super::function::{COMMON, CONFIG, ISR, PENDING, TABLE};
use super::msix::Msix;
use super::queue::{MAX_SIZE, Queue};
use crate::device::lanes;
use crate::device::message::Messages;

/// Dwords of the common configuration.
const DEVICE_FEATURE_SELECT: u64 = 0x00;
const DEVICE_FEATURE: u64 = 0x04;
const DRIVER_FEATURE_SELECT: u64 = 0x08;
const DRIVER_FEATURE: u64 = 0x0c;
/// Configuration's vector, number of queues.
const VECTOR: u64 = 0x10;
/// Status, generation, selected queue.
const STATUS: u64 = 0x14;
/// Size and vector of the selected queue.
const QUEUE_SIZE: u64 = 0x18;
/// Enable and notification offset of the selected queue.
const QUEUE_ENABLE: u64 = 0x1c;
const QUEUE_DESCRIPTORS: u64 = 0x20;
const QUEUE_DRIVER: u64 = 0x28;
const QUEUE_DEVICE: u64 = 0x30;

const LOW: u32 = 0xffff;
const HIGH: u32 = 0xffff_0000;

impl Device {
    /// Reads `size` bytes (1, 2, 4 or 8) at `offset` in the BAR; zeros where nothing is.
    pub fn read(&mut self, offset: u64, size: u8) -> u64 {
        let low = lanes::read(self.dword(offset), offset as u32, size.min(4));
        let high = if size > 4 { self.dword(offset.wrapping_add(4)) } else { 0 };
        u64::from(high) << 32 | u64::from(low)
    }

    /// Writes `size` bytes (1, 2, 4 or 8). Notifications are not for here.
    pub fn write(&mut self, offset: u64, size: u8, value: u64, messages: &mut Messages) {
        self.write_dword(offset, size.min(4), value as u32, messages);
        if size > 4 {
            self.write_dword(offset.wrapping_add(4), 4, (value >> 32) as u32, messages);
        }
    }

    fn dword(&mut self, offset: u64) -> u32 {
        match offset {
            offset if COMMON.contains(&offset) => self.common(offset & !3),
            // Reading acknowledges INTA# (virtio 1.2, 4.1.4.5).
            offset if offset == ISR.start => core::mem::take(&mut self.isr).into(),
            offset if CONFIG.contains(&offset) => self.model.config((offset - CONFIG.start) & !3),
            offset if TABLE.contains(&offset) => self.msix.read(offset - TABLE.start),
            offset if offset & !3 == PENDING.start => self.msix.pending(),
            _ => 0,
        }
    }

    fn write_dword(&mut self, offset: u64, size: u8, value: u32, messages: &mut Messages) {
        if COMMON.contains(&offset) {
            let (mask, bits) = lanes::write(value, offset as u32, size);
            self.write_common(offset & !3, mask, bits, messages);
        } else if CONFIG.contains(&offset) {
            let (mask, bits) = lanes::write(value, offset as u32, size);
            self.model.set_config((offset - CONFIG.start) & !3, mask, bits);
        } else if TABLE.contains(&offset) {
            self.msix.write(offset - TABLE.start, size, value, messages);
        }
    }

    fn common(&self, register: u64) -> u32 {
        let half = |value: u64, select: u32| match select {
            0 => value as u32,
            1 => (value >> 32) as u32,
            _ => 0,
        };
        let selected = self.queues.get(usize::from(self.queue_select));
        let areas = selected.map(|(queue, _)| queue.areas).unwrap_or_default();
        match register {
            DEVICE_FEATURE_SELECT => self.device_feature_select,
            DEVICE_FEATURE => half(self.offered(), self.device_feature_select),
            DRIVER_FEATURE_SELECT => self.driver_feature_select,
            DRIVER_FEATURE => half(self.accepted, self.driver_feature_select),
            VECTOR => (self.queues.len() as u32) << 16 | u32::from(self.config_vector),
            STATUS => u32::from(self.queue_select) << 16 | u32::from(self.status),
            QUEUE_SIZE => {
                selected.map_or(0, |(queue, vector)| u32::from(*vector) << 16 | u32::from(queue.size))
            }
            // Queue n is notified at offset n.
            QUEUE_ENABLE => {
                selected.map_or(0, |(queue, _)| u32::from(self.queue_select) << 16 | u32::from(queue.enabled))
            }
            QUEUE_DESCRIPTORS => areas.descriptors as u32,
            0x24 => (areas.descriptors >> 32) as u32,
            QUEUE_DRIVER => areas.driver as u32,
            0x2c => (areas.driver >> 32) as u32,
            QUEUE_DEVICE => areas.device as u32,
            0x34 => (areas.device >> 32) as u32,
            _ => 0,
        }
    }

    /// Writes the bits in `mask` of a dword.
    fn write_common(&mut self, register: u64, mask: u32, bits: u32, messages: &mut Messages) {
        let merge = |old: u32| old & !mask | bits;
        let merge_half = |value: u64, high: bool| {
            let shift = if high { 32 } else { 0 };
            value & !(0xffff_ffff << shift) | u64::from(merge((value >> shift) as u32)) << shift
        };
        match register {
            DEVICE_FEATURE_SELECT => self.device_feature_select = merge(self.device_feature_select),
            DRIVER_FEATURE_SELECT => self.driver_feature_select = merge(self.driver_feature_select),
            // Features are fixed once the device has agreed (virtio 1.2, 2.2).
            DRIVER_FEATURE if self.status & status::FEATURES_OK == 0 && self.driver_feature_select < 2 => {
                self.accepted = merge_half(self.accepted, self.driver_feature_select == 1);
            }
            VECTOR if mask & LOW != 0 => {
                self.config_vector = Msix::vector(merge(self.config_vector.into()) as u16);
            }
            STATUS => {
                if mask & 0xff != 0 {
                    self.write_status(merge(self.status.into()) as u8, messages);
                }
                if mask & HIGH != 0 {
                    self.queue_select = (merge(u32::from(self.queue_select) << 16) >> 16) as u16;
                }
            }
            QUEUE_SIZE | QUEUE_ENABLE | QUEUE_DESCRIPTORS..0x38 => {
                let may_enable = self.status & status::FEATURES_OK != 0;
                let (event_index, indirect) = (self.has(super::EVENT_INDEX), self.has(super::INDIRECT));
                let Some((queue, vector)) = self.queues.get_mut(usize::from(self.queue_select)) else {
                    return;
                };
                // A live queue must not move: its areas were checked when it was enabled.
                let fixed = queue.enabled;
                match register {
                    QUEUE_SIZE => {
                        if mask & LOW != 0 && !fixed {
                            queue.size = (merge(queue.size.into()) as u16).min(MAX_SIZE);
                        }
                        if mask & HIGH != 0 {
                            // A vector that does not exist reads back as NO_VECTOR, by which the driver learns that it
                            // has none (virtio 1.2, 4.1.5.1.2).
                            *vector = Msix::vector((merge(u32::from(*vector) << 16) >> 16) as u16);
                        }
                    }
                    QUEUE_ENABLE if !fixed && mask & bits & 1 != 0 && may_enable => {
                        if queue.enable(event_index, indirect).is_err() {
                            self.need_reset(messages);
                        }
                    }
                    QUEUE_ENABLE => {}
                    _ if fixed => {}
                    _ => place(queue, register, merge_half),
                }
            }
            _ => {}
        }
    }
}

/// Writes half of the address of one of the areas.
fn place(queue: &mut Queue, register: u64, merge_half: impl Fn(u64, bool) -> u64) {
    let area = match register & !7 {
        QUEUE_DESCRIPTORS => &mut queue.areas.descriptors,
        QUEUE_DRIVER => &mut queue.areas.driver,
        _ => &mut queue.areas.device,
    };
    *area = merge_half(*area, register & 4 != 0);
}
