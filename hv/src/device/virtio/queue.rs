//! Split virtqueues, the device's side.
//!
//! A queue is three areas of guest memory: descriptors, the available ring that the driver writes, and the used ring that
//! the device writes. Nothing in them is trusted: an index out of range, a loop or memory that is none is [`Malformed`],
//! upon which the device stops and asks to be reset.
//!
//! Other VCPUs write the rings meanwhile. Aligned accesses of guest memory are atomic and in order on this architecture,
//! but for stores before loads: fences stand between the device's index and the driver's wish to be told of it.
//!
//! Virtio 1.2, 2.7.

use core::sync::atomic::{Ordering, fence};

use super::chain::{Chain, DescriptorTable};
use crate::arch::addr::Gpa;
use crate::mem::guest_memory::{GuestMemory, NotRam};

/// The most entries that a queue can have.
pub const MAX_SIZE: u16 = 256;

/// Flag in the available ring: the driver wants no interrupts.
const NO_INTERRUPT: u16 = 1;
/// Bytes before the entries of a ring: flags and index.
const RING: u64 = 4;

/// What a driver has done that it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The available index is more than the queue's size ahead.
    Index,
    /// The number of a descriptor is not below the size of its table.
    Descriptor,
    /// A chain does not end.
    Loop,
    /// A chain has more buffers than any device needs.
    TooLong,
    /// A buffer for the device to read after one to write.
    Order,
    /// An indirect table that was not agreed on, is empty, or lies in another or before more descriptors.
    Indirect,
    /// A queue's size or the alignment of its areas.
    Layout,
    /// Rings or buffers are not RAM.
    NotRam(Gpa),
    /// A chain does not have the buffers that the device's requests need.
    Request,
}

impl From<NotRam> for Malformed {
    fn from(error: NotRam) -> Self {
        Malformed::NotRam(error.gpa)
    }
}

/// Where a queue's areas are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Areas {
    /// The descriptors.
    pub descriptors: u64,
    /// The available ring.
    pub driver: u64,
    /// The used ring.
    pub device: u64,
}

/// A virtqueue.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Entries, a power of two from 1 to [`MAX_SIZE`] once the queue is enabled.
    pub size: u16,
    /// Where it lies.
    pub areas: Areas,
    /// The driver has set it up.
    pub enabled: bool,
    /// Interrupts and notifications by index.
    event_index: bool,
    indirect: bool,
    next_available: u16,
    next_used: u16,
    /// The used index that the driver has last been told of.
    told: u16,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            size: MAX_SIZE,
            areas: Areas::default(),
            enabled: false,
            event_index: false,
            indirect: false,
            next_available: 0,
            next_used: 0,
            told: 0,
        }
    }
}

impl Queue {
    /// The driver enables the queue, with what has been agreed on.
    pub fn enable(&mut self, event_index: bool, indirect: bool) -> Result<(), Malformed> {
        let aligned = self.areas.descriptors.is_multiple_of(16)
            && self.areas.driver.is_multiple_of(2)
            && self.areas.device.is_multiple_of(4);
        if !self.size.is_power_of_two() || self.size > MAX_SIZE || !aligned {
            return Err(Malformed::Layout);
        }
        *self = Queue {
            size: self.size,
            areas: self.areas,
            enabled: true,
            event_index,
            indirect,
            ..Queue::default()
        };
        Ok(())
    }

    /// Takes the next chain that is available; false: there is none.
    pub fn pop(&mut self, chain: &mut Chain, memory: &impl GuestMemory) -> Result<bool, Malformed> {
        if !self.enabled || !self.has_available(memory)? {
            return Ok(false);
        }
        let head = read_u16(memory, self.available(self.next_available))?;
        let table = DescriptorTable { base: Gpa(self.areas.descriptors), entries: self.size.into() };
        chain.load(head, table, self.indirect, memory)?;
        // Only when the whole chain has been read: one that is malformed stays, for the device stops there.
        self.next_available = self.next_available.wrapping_add(1);
        Ok(true)
    }

    /// Puts the chain that was taken last back.
    pub fn put_back(&mut self) {
        self.next_available = self.next_available.wrapping_sub(1);
    }

    /// Gives a chain back with `written` bytes written to it.
    pub fn push(&mut self, chain: &Chain, written: u32, memory: &impl GuestMemory) -> Result<(), Malformed> {
        let at = u64::from(self.next_used & (self.size - 1));
        let element = u64::from(written) << 32 | u64::from(chain.head);
        // The element before the index: the driver reads what the index covers as soon as it sees it.
        memory.write(self.device_area(RING + 8 * at), &element.to_le_bytes())?;
        self.next_used = self.next_used.wrapping_add(1);
        memory.write(self.device_area(2), &self.next_used.to_le_bytes())?;
        Ok(())
    }

    /// Whether the driver wants an interrupt for what was given back since the last one.
    pub fn wants_interrupt(&mut self, memory: &impl GuestMemory) -> Result<bool, Malformed> {
        let (old, new) = (self.told, self.next_used);
        if old == new {
            return Ok(false);
        }
        self.told = new;
        // The index must be visible before the driver's wish is read: otherwise the driver could ask for an interrupt,
        // find no new index and sleep, while the device has read the old wish (virtio 1.2, 2.7.7.2).
        fence(Ordering::SeqCst);
        if !self.event_index {
            return Ok(read_u16(memory, Gpa(self.areas.driver))? & NO_INTERRUPT == 0);
        }
        let event = read_u16(memory, self.driver_area(RING + 2 * u64::from(self.size)))?;
        // The index that the driver waits for has been passed.
        Ok(new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old))
    }

    /// Asks to be notified of the next chain; true: there is one already.
    pub fn ask_for_notification(&mut self, memory: &impl GuestMemory) -> Result<bool, Malformed> {
        if !self.enabled {
            return Ok(false);
        }
        if self.event_index {
            let event = self.device_area(RING + 8 * u64::from(self.size));
            memory.write(event, &self.next_available.to_le_bytes())?;
            // The same the other way round: the driver that has not seen the new event index has made a chain available
            // that is seen below.
            fence(Ordering::SeqCst);
        }
        self.has_available(memory)
    }

    fn has_available(&self, memory: &impl GuestMemory) -> Result<bool, Malformed> {
        let available = read_u16(memory, self.driver_area(2))?.wrapping_sub(self.next_available);
        // The index is the driver's and free-running: more than `size` ahead cannot be, and would have the ring read
        // twice.
        if available > self.size {
            return Err(Malformed::Index);
        }
        Ok(available != 0)
    }

    fn available(&self, index: u16) -> Gpa {
        self.driver_area(RING + 2 * u64::from(index & (self.size - 1)))
    }

    fn driver_area(&self, offset: u64) -> Gpa {
        Gpa(self.areas.driver).wrapping_add(offset)
    }

    fn device_area(&self, offset: u64) -> Gpa {
        Gpa(self.areas.device).wrapping_add(offset)
    }
}

fn read_u16(memory: &impl GuestMemory, at: Gpa) -> Result<u16, Malformed> {
    let mut bytes = [0; 2];
    memory.read(at, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}
