//! Virtio devices on PCI: block, network, console, entropy, balloon (Virtual I/O Device, version 1.2, without the legacy interface).
//!
//! From the guest inwards: [`function`] is a device's configuration space, [`registers`] its BAR, [`device`] what these
//! registers mean, [`queue`] and [`chain`] the rings in guest memory; [`block`], [`net`], [`console`], [`entropy`] and
//! [`balloon`] are what serves a chain, and [`switch`] joins the network devices of all VMs.
//!
//! [`Virtio`] is all devices of a VM, each behind a lock of its own. The chipset decodes addresses, keeps configuration
//! space, and calls [`Virtio::read`] and [`Virtio::write`]: a write to a queue's doorbell comes back as
//! [`Effect::Notify`], for which the VCPU's bus calls [`Virtio::serve`] without the chipset's lock. What is left for later
//! (a long queue, a console that is slow, frames that have arrived, a device that another VCPU serves) sets a bit that
//! [`Virtio::wants_service`] shows; the run loop then calls [`Virtio::serve_next`], at the latest a millisecond later.
//!
//! Order of locks: chipset, memory, device, shadow tables, switch.

mod access;
pub mod balloon;
pub mod block;
pub mod chain;
pub mod console;
pub mod device;
pub mod disk;
pub mod entropy;
pub mod function;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod model;
mod msix;
pub mod net;
pub mod queue;
mod registers;
pub mod switch;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use spin::Mutex;

use super::effect::Effect;
use super::layout::{PCI_WINDOW_32, pci_interrupt_gsi};
use super::message::Messages;
use super::pci::Function;
use crate::mem::guest_memory::GuestMemory;
use block::Block;
use console::Console;
use device::{Device, Setup};
use entropy::Entropy;
use function::{BAR_BYTES, NOTIFY};
#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;
use model::Model;
use net::Net;
use switch::{Mac, Switch, Waker, Woken};

/// Devices of a VM at most.
pub const MAX_DEVICES: usize = 15;
/// Features of the transport: version 1, indirect descriptors, interrupts by index.
const VERSION_1: u64 = 1 << 32;
const INDIRECT: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;

/// The virtio devices of a VM, by number; clones are the same devices.
#[derive(Clone, Debug, Default)]
pub struct Virtio(Arc<Devices>);

#[derive(Debug, Default)]
struct Devices {
    slots: Vec<Mutex<Box<Device>>>,
    /// Devices that assert INTA#, a bit each.
    lines: AtomicU32,
    /// Devices that want to be served without a notification.
    waiting: Arc<AtomicU32>,
    /// The one whose turn it is.
    turn: AtomicU32,
    /// The console's number.
    console: Option<u8>,
    /// The balloon's.
    balloon: Option<u8>,
    /// It has named pages to discard.
    has_named: AtomicBool,
}

/// Makes the devices of a VM, in the order in which they appear on the bus.
#[derive(Debug)]
pub struct Builder {
    vm: u32,
    waiting: Arc<AtomicU32>,
    models: Vec<Model>,
    console: Option<u8>,
    balloon: Option<u8>,
}

impl Builder {
    /// For the VM of number `vm`.
    pub fn new(vm: u32) -> Builder {
        Builder { vm, waiting: Arc::default(), models: Vec::new(), console: None, balloon: None }
    }

    /// Adds a block device.
    pub fn block(&mut self, block: Block) -> &mut Self {
        self.add(Model::Block(block))
    }

    /// Adds a network device at a new port of `switch`; `None`: there is no memory for it.
    pub fn net(&mut self, mac: Mac, switch: &Switch) -> Option<&mut Self> {
        let bit = 1u32.checked_shl(self.models.len() as u32).unwrap_or(0);
        let waker = Waker { vm: self.vm, word: self.waiting.clone(), bit };
        Some(self.add(Model::Net(Net::new(mac, switch.plug(waker)?))))
    }

    /// Adds a console device; the first is the one that a person sees.
    pub fn console(&mut self) -> &mut Self {
        self.console = self.console.or(Some(self.models.len() as u8));
        self.add(Model::Console(Console::default()))
    }

    /// Adds an entropy device.
    pub fn entropy(&mut self, entropy: Entropy) -> &mut Self {
        self.add(Model::Entropy(entropy))
    }

    /// Adds a balloon, one at most. Where no pager holds the VM's memory its pages stay as they are.
    pub fn balloon(&mut self) -> &mut Self {
        if self.balloon.is_some() || self.models.len() >= MAX_DEVICES {
            return self;
        }
        self.balloon = Some(self.models.len() as u8);
        self.add(Model::Balloon(Box::default()))
    }

    /// Devices beyond [`MAX_DEVICES`] are left out; the configuration allows no more.
    fn add(&mut self, model: Model) -> &mut Self {
        if self.models.len() < MAX_DEVICES {
            self.models.push(model);
        }
        self
    }

    /// The devices.
    pub fn build(self) -> Virtio {
        let slots = self.models.into_iter().map(|model| Mutex::new(Box::new(Device::new(model)))).collect();
        let (console, balloon) = (self.console, self.balloon);
        let (lines, turn, has_named) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        Virtio(Arc::new(Devices { slots, lines, waiting: self.waiting, turn, console, balloon, has_named }))
    }
}

impl Virtio {
    /// Device and function number of device `slot` on bus 0.
    pub const fn devfn(slot: u8) -> u8 {
        (slot + 1) << 3
    }

    /// The device at this place on bus 0.
    #[inline]
    pub fn slot(&self, devfn: u8) -> Option<u8> {
        let slot = (devfn >> 3).wrapping_sub(1);
        (devfn & 7 == 0 && usize::from(slot) < self.0.slots.len()).then_some(slot)
    }

    /// Whether there are no devices.
    pub fn is_empty(&self) -> bool {
        self.0.slots.is_empty()
    }

    /// The PCI functions, with their places.
    pub fn functions(&self) -> impl Iterator<Item = (u8, Function)> {
        self.0.slots.iter().zip(0..).map(|(device, slot)| {
            // Guests that do not assign addresses themselves find the BARs where firmware would have put them.
            let address = PCI_WINDOW_32.start + u64::from(slot) * BAR_BYTES;
            let devfn = Self::devfn(slot);
            (devfn, function::build(&device.lock().model, address, pci_interrupt_gsi(devfn >> 3, 0)))
        })
    }

    /// The interrupt lines (a bit for each GSI) that are asserted.
    pub fn lines(&self) -> u32 {
        let asserted = self.0.lines.load(Ordering::Acquire);
        let slots = (0..MAX_DEVICES as u8).filter(|slot| asserted >> slot & 1 != 0);
        slots.fold(0, |lines, slot| lines | 1 << pci_interrupt_gsi(slot + 1, 0))
    }

    /// Works on one device under its lock, and notes what it asks for.
    fn with<R>(&self, slot: u8, work: impl FnOnce(&mut Device) -> R) -> Option<R> {
        let mut device = self.0.slots.get(usize::from(slot))?.lock();
        Some(self.work_on(slot, &mut device, work))
    }

    fn work_on<R>(&self, slot: u8, device: &mut Device, work: impl FnOnce(&mut Device) -> R) -> R {
        let result = work(device);
        let bit = 1 << slot;
        if device.line() {
            self.0.lines.fetch_or(bit, Ordering::Release);
        } else {
            self.0.lines.fetch_and(!bit, Ordering::Release);
        }
        if let Model::Balloon(balloon) = &device.model {
            self.0.has_named.store(balloon.has_named(), Ordering::SeqCst);
        }
        result
    }

    /// Has one device served, and records whether it has more to do. A device that is being served by another VCPU is not waited
    /// for: that may take long, and the caller holds guest memory.
    fn serve_with(&self, slot: u8, serve: impl FnOnce(&mut Device) -> bool) {
        let Some(device) = self.0.slots.get(usize::from(slot)) else { return };
        let more = device.try_lock().is_none_or(|mut device| self.work_on(slot, &mut device, serve));
        // After the device is unlocked: both the VCPU that served it and one that found it locked check this bit afterwards, so
        // one of them serves what came in between.
        self.wait(slot, more);
    }

    /// Reads `size` bytes at `offset` in the BAR of device `slot`. The lines may have changed.
    pub fn read(&self, slot: u8, offset: u64, size: u8) -> u64 {
        self.with(slot, |device| device.read(offset, size)).unwrap_or(u64::MAX)
    }

    /// Writes `size` bytes. The lines may have changed.
    pub fn write(&self, slot: u8, offset: u64, size: u8, value: u64, messages: &mut Messages) -> Effect {
        // Served by the caller after it has released the chipset's lock: a queue of requests takes long, and other VCPUs
        // need the chipset.
        if NOTIFY.contains(&offset) {
            return Effect::Notify { slot, queue: ((offset - NOTIFY.start) / 4) as u8 };
        }
        self.with(slot, |device| device.write(offset, size, value, messages));
        Effect::None
    }

    /// The function's configuration space has been written.
    pub fn configure(&self, slot: u8, setup: Setup, messages: &mut Messages) {
        self.with(slot, |device| device.configure(setup, messages));
    }

    /// The machine's reset.
    pub fn reset(&self) {
        (0..self.0.slots.len() as u8).for_each(|slot| {
            self.with(slot, Device::reset);
        });
        self.0.waiting.store(0, Ordering::Relaxed);
    }

    /// Serves `queue` of device `slot`, which the driver has notified; returns which VMs it has woken. The lines may have
    /// changed.
    pub fn serve(&self, slot: u8, queue: u8, memory: &impl GuestMemory, messages: &mut Messages) -> Woken {
        let mut woken = Woken::default();
        self.serve_with(slot, |device| device.serve(queue.into(), memory, messages, &mut woken));
        woken
    }

    /// How many devices wait.
    pub fn waiting(&self) -> u32 {
        self.0.waiting.load(Ordering::Acquire).count_ones()
    }

    /// Serves one of the devices that wait; they take turns. The lines may have changed.
    pub fn serve_next(&self, memory: &impl GuestMemory, messages: &mut Messages) -> Woken {
        let mut woken = Woken::default();
        let turn = self.0.turn.load(Ordering::Relaxed);
        // From the one whose turn it is, so that a device that always has more cannot starve the others.
        let waiting = self.0.waiting.load(Ordering::Relaxed).rotate_right(turn);
        let slot = (turn + waiting.trailing_zeros()) % u32::BITS;
        // Nothing waits, or another VCPU was faster.
        if self.0.waiting.fetch_and(!(1 << slot), Ordering::Acquire) >> slot & 1 == 0 {
            return woken;
        }
        self.0.turn.store((slot + 1) % u32::BITS, Ordering::Relaxed);
        self.serve_with(slot as u8, |device| device.serve_all(memory, messages, &mut woken));
        woken
    }

    fn wait(&self, slot: u8, wait: bool) {
        if wait {
            self.0.waiting.fetch_or(1 << slot, Ordering::Release);
        }
    }

    /// Whether [`Virtio::serve_next`] has something to do.
    #[inline]
    pub fn wants_service(&self) -> bool {
        self.0.waiting.load(Ordering::Acquire) != 0
    }
}
