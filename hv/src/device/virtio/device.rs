//! One device behind the PCI transport: status, features, queues, interrupts.
//!
//! The registers are in [`super::registers`]. A mistake of the driver in a queue sets DEVICE_NEEDS_RESET, and nothing is
//! served until it has reset the device (virtio 1.2, 2.1.2). One call serves at most [`CHAINS`] chains and about [`BYTES`]
//! bytes; the rest waits for the next.

use arrayvec::ArrayVec;

use super::chain::Chain;
use super::model::{MAX_QUEUES, Model, Served};
use super::msix::{Msix, NO_VECTOR};
use super::queue::{Malformed, Queue};
use super::switch::Woken;
use super::{EVENT_INDEX, INDIRECT, VERSION_1};
use crate::device::message::Messages;
use crate::mem::guest_memory::GuestMemory;

/// Bits of the device status.
pub mod status {
    /// The driver may drive the device.
    pub const DRIVER_OK: u8 = 4;
    /// The driver has chosen features, and the device agrees.
    pub const FEATURES_OK: u8 = 8;
    /// The device has met something that it cannot go on from.
    pub const NEEDS_RESET: u8 = 64;
    /// All that a driver can set: ACKNOWLEDGE and DRIVER and FAILED beside the ones above.
    pub const DRIVERS: u8 = 0x8f;
}

/// Chains of a queue that are served in one go.
pub const CHAINS: u32 = 64;
/// Bytes after which no further chain is begun.
pub const BYTES: u64 = 2 << 20;

/// Interrupt status: a queue, the configuration.
const ISR_QUEUE: u8 = 1;
const ISR_CONFIG: u8 = 2;

/// A device.
#[derive(Debug)]
pub struct Device {
    pub(super) model: Model,
    /// Each with its MSI-X vector.
    pub(super) queues: ArrayVec<(Queue, u16), MAX_QUEUES>,
    pub(super) status: u8,
    pub(super) device_feature_select: u32,
    pub(super) driver_feature_select: u32,
    /// The features that the driver wants.
    pub(super) accepted: u64,
    pub(super) queue_select: u16,
    pub(super) config_vector: u16,
    pub(super) isr: u8,
    pub(super) msix: Msix,
    bus_master: bool,
    interrupt_disabled: bool,
    chain: Chain,
}

impl Device {
    pub(super) fn new(model: Model) -> Device {
        let queues = (0..model.queues()).map(|_| (Queue::default(), NO_VECTOR)).collect();
        Device {
            model,
            queues,
            status: 0,
            device_feature_select: 0,
            driver_feature_select: 0,
            accepted: 0,
            queue_select: 0,
            config_vector: NO_VECTOR,
            isr: 0,
            msix: Msix::new(),
            bus_master: false,
            interrupt_disabled: false,
            chain: Chain::default(),
        }
    }

    /// The machine's reset.
    pub fn reset(&mut self) {
        self.reset_driver();
        self.msix = Msix::new();
        (self.bus_master, self.interrupt_disabled) = (false, false);
    }

    /// A driver's reset: MSI-X belongs to PCI and stays.
    fn reset_driver(&mut self) {
        self.model.reset();
        self.queues.iter_mut().for_each(|queue| *queue = (Queue::default(), NO_VECTOR));
        self.status = 0;
        (self.device_feature_select, self.driver_feature_select) = (0, 0);
        (self.accepted, self.queue_select) = (0, 0);
        (self.config_vector, self.isr) = (NO_VECTOR, 0);
    }

    /// What the function's configuration space says has changed.
    pub fn configure(&mut self, setup: Setup, messages: &mut Messages) {
        (self.bus_master, self.interrupt_disabled) = (setup.bus_master, setup.interrupt_disabled);
        self.msix.configure(setup.msix, setup.msix_masked, messages);
    }

    /// The level of INTA#.
    pub fn line(&self) -> bool {
        self.isr != 0 && !self.msix.is_enabled() && !self.interrupt_disabled
    }

    /// Whether the driver uses the device.
    pub fn is_running(&self) -> bool {
        self.status & (status::DRIVER_OK | status::NEEDS_RESET) == status::DRIVER_OK && self.bus_master
    }

    pub(super) fn offered(&self) -> u64 {
        self.model.features() | VERSION_1 | EVENT_INDEX | INDIRECT
    }

    pub(super) fn has(&self, feature: u64) -> bool {
        self.accepted & feature != 0
    }

    pub(super) fn write_status(&mut self, value: u8, messages: &mut Messages) {
        if value == 0 {
            return self.reset_driver();
        }
        let mut new = self.status | value & status::DRIVERS;
        let agreed = self.accepted & !self.offered() == 0 && self.has(VERSION_1);
        // The driver reads the status back: FEATURES_OK that does not stick tells it that the device disagrees (virtio
        // 1.2, 3.1.1).
        if self.status & status::FEATURES_OK == 0 && !agreed {
            new &= !status::FEATURES_OK;
        }
        self.status = new;
        // A driver that goes on without agreement.
        if new & status::DRIVER_OK != 0 && new & status::FEATURES_OK == 0 {
            self.need_reset(messages);
        }
    }

    /// Stops until the driver resets the device.
    pub(super) fn need_reset(&mut self, messages: &mut Messages) {
        self.status |= status::NEEDS_RESET;
        // The interrupt is for a driver that drives the device already (virtio 1.2, 2.1.2).
        if self.status & status::DRIVER_OK != 0 {
            self.interrupt(ISR_CONFIG, self.config_vector, messages);
        }
    }

    /// Tells the driver that the configuration has changed.
    pub(super) fn notify_config(&mut self, messages: &mut Messages) {
        if self.status & status::DRIVER_OK != 0 {
            self.interrupt(ISR_CONFIG, self.config_vector, messages);
        }
    }

    fn interrupt(&mut self, cause: u8, vector: u16, messages: &mut Messages) {
        if self.msix.is_enabled() {
            self.msix.send(vector, messages);
        } else {
            self.isr |= cause;
        }
    }

    /// Serves all queues; true: there is more to do.
    #[must_use]
    pub fn serve_all(
        &mut self,
        memory: &impl GuestMemory,
        messages: &mut Messages,
        woken: &mut Woken,
    ) -> bool {
        self.msix.send_pending(messages);
        (0..self.queues.len()).fold(false, |more, queue| self.serve(queue, memory, messages, woken) | more)
    }

    /// Serves the chains that are available in `queue`; true: there is more to do.
    #[must_use]
    pub fn serve(
        &mut self,
        queue: usize,
        memory: &impl GuestMemory,
        messages: &mut Messages,
        woken: &mut Woken,
    ) -> bool {
        if !self.is_running() || queue >= self.queues.len() {
            return false;
        }
        let result = self.serve_chains(queue, memory, woken);
        let (queue, vector) = &mut self.queues[queue];
        let vector = *vector;
        match result.and_then(|more| Ok((more, queue.wants_interrupt(memory)?))) {
            Ok((more, interrupt)) => {
                if interrupt {
                    self.interrupt(ISR_QUEUE, vector, messages);
                }
                more || self.msix.is_late()
            }
            Err(_) => {
                self.need_reset(messages);
                false
            }
        }
    }

    fn serve_chains(
        &mut self,
        index: usize,
        memory: &impl GuestMemory,
        woken: &mut Woken,
    ) -> Result<bool, Malformed> {
        let (queue, _) = &mut self.queues[index];
        let mut bytes = 0;
        // Bounded, because the caller holds guest memory, and its VCPU's interrupts wait meanwhile.
        for _ in 0..CHAINS {
            if !self.model.is_ready(index) {
                break;
            }
            if bytes >= BYTES || !queue.pop(&mut self.chain, memory)? {
                break;
            }
            match self.model.serve(index, &self.chain, memory, woken)? {
                Served::Done { written, moved } => {
                    queue.push(&self.chain, written, memory)?;
                    bytes += u64::from(moved);
                }
                // Nothing of it has been given back, so the same chain comes again.
                Served::Later => queue.put_back(),
            }
        }
        // After the last chain, so that one that came meanwhile is either seen here or notified.
        let more = queue.ask_for_notification(memory)?;
        Ok(more && self.model.is_ready(index))
    }
}

/// What configuration space says of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// It may access memory.
    pub bus_master: bool,
    /// It must not use INTA#.
    pub interrupt_disabled: bool,
    /// It uses MSI-X.
    pub msix: bool,
    /// All vectors are masked.
    pub msix_masked: bool,
}
