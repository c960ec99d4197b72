//! A driver: sets a device up through its registers and works with split rings in plain memory.

use super::*;
use crate::arch::addr::Gpa;
use crate::mem::guest_memory::VecMemory;

/// Entries of the queues.
pub const SIZE: u16 = 8;
/// Memory for each queue: descriptors, available ring, used ring, indirect tables.
const QUEUE_BYTES: u64 = 0x2000;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
const INDIRECT_TABLES: u64 = 0x1000;
/// Where buffers can be.
pub const BUFFERS: u64 = 0x10000;
const MEMORY: usize = 0x80000;

/// Registers of the common configuration.
pub const DRIVER_FEATURE_SELECT: u64 = 8;
pub const DRIVER_FEATURE: u64 = 12;
pub const CONFIG_VECTOR: u64 = 16;
pub const STATUS: u64 = 20;
pub const QUEUE_SELECT: u64 = 22;
pub const QUEUE_SIZE: u64 = 24;
pub const QUEUE_VECTOR: u64 = 26;
pub const QUEUE_ENABLE: u64 = 28;
pub const QUEUE_DESCRIPTORS: u64 = 32;

/// What a driver wants to be done with buffers.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    pub readable: Vec<(u64, u32)>,
    pub writable: Vec<(u64, u32)>,
    /// By way of an indirect table.
    pub indirect: bool,
}

/// The driver's side of a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    available: u16,
    used: u16,
    /// The next free descriptor; chains are short and served at once.
    free: u16,
}

/// A driver of one device of a VM, number 0 unless said otherwise.
pub struct Driver {
    pub devices: Virtio,
    pub slot: u8,
    pub memory: VecMemory,
    pub messages: Messages,
    pub woken: Woken,
    rings: [Ring; 3],
}

impl Driver {
    /// With the device set up, MSI-X included: vector 1 for the configuration, 2 for the first queue, 3 for the second, as
    /// messages 0x51 to 0x53.
    pub fn new(devices: Virtio) -> Driver {
        Driver::of(devices, 0, VERSION_1 | INDIRECT)
    }

    /// The same for device `slot`, with these features.
    pub fn of(devices: Virtio, slot: u8, features: u64) -> Driver {
        let mut driver = Driver {
            devices,
            slot,
            memory: VecMemory::new(MEMORY),
            messages: Messages::new(),
            woken: Woken::default(),
            rings: Default::default(),
        };
        driver.configure(true, true);
        driver.start(features);
        driver
    }

    pub fn configure(&mut self, bus_master: bool, msix: bool) {
        let setup = Setup { bus_master, interrupt_disabled: false, msix, msix_masked: false };
        self.devices.configure(self.slot, setup, &mut self.messages);
    }

    /// Resets and initializes (virtio 1.2, 3.1).
    pub fn start(&mut self, features: u64) {
        self.rings = Default::default();
        self.memory.fill(Gpa(0), BUFFERS, 0).unwrap();
        for vector in 0..4 {
            let entry = function::TABLE.start + 16 * vector;
            self.write(entry, 8, 0xfee0_0000);
            self.write(entry + 8, 8, 0x50 + vector);
        }
        self.write(STATUS, 1, 0);
        assert_eq!(self.read(STATUS, 1), 0);
        self.write(STATUS, 1, 1);
        self.write(STATUS, 1, 3);
        for half in 0..2 {
            self.write(DRIVER_FEATURE_SELECT, 4, half);
            self.write(DRIVER_FEATURE, 4, features >> (32 * half) & 0xffff_ffff);
        }
        self.write(STATUS, 1, 0xb);
        assert_eq!(self.read(STATUS, 1), 0xb, "the device agrees");
        self.write(CONFIG_VECTOR, 2, 1);
        for queue in 0..self.read(18, 2) {
            let base = queue * QUEUE_BYTES;
            self.write(QUEUE_SELECT, 2, queue);
            self.write(QUEUE_SIZE, 2, SIZE.into());
            self.write(QUEUE_VECTOR, 2, 2 + queue);
            for (register, area) in (0..).zip([base, base + AVAILABLE, base + USED]) {
                self.write(QUEUE_DESCRIPTORS + 8 * register, 8, area);
            }
            self.write(QUEUE_ENABLE, 2, 1);
        }
        self.write(STATUS, 1, 0xf);
    }

    pub fn read(&self, register: u64, size: u8) -> u64 {
        self.devices.read(self.slot, register, size)
    }

    pub fn write(&mut self, register: u64, size: u8, value: u64) {
        let effect = self.devices.write(self.slot, register, size, value, &mut self.messages);
        assert_eq!(effect, Effect::None);
    }

    pub fn needs_reset(&self) -> bool {
        self.read(STATUS, 1) & 0x40 != 0
    }

    /// Bytes of guest memory.
    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(Gpa(at), &mut bytes).unwrap();
        bytes
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write(Gpa(at), bytes).unwrap();
    }

    pub fn put_u16(&self, at: u64, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    pub fn u16_at(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.bytes(at, 2).try_into().unwrap())
    }

    /// Where the descriptors, the available ring and the used ring of a queue are.
    pub fn areas(queue: u8) -> [u64; 3] {
        let base = u64::from(queue) * QUEUE_BYTES;
        [base, base + AVAILABLE, base + USED]
    }

    /// Writes descriptor `index` of the table at `table`.
    pub fn descriptor(&self, table: u64, index: u16, (at, len): (u64, u32), flags: u16, next: u16) {
        let entry = table + 16 * u64::from(index);
        self.put(entry, &at.to_le_bytes());
        self.put(entry + 8, &len.to_le_bytes());
        self.put_u16(entry + 12, flags);
        self.put_u16(entry + 14, next);
    }

    /// Makes a chain available without notifying the device; its head.
    pub fn add(&mut self, queue: u8, chain: &Chain) -> u16 {
        let [descriptors, ..] = Self::areas(queue);
        let head = self.rings[usize::from(queue)].free % SIZE;
        let buffers = chain.readable.iter().map(|b| (*b, 0)).chain(chain.writable.iter().map(|b| (*b, 2)));
        let buffers: Vec<_> = buffers.collect();
        let count = buffers.len() as u16;
        let table = if chain.indirect { descriptors + INDIRECT_TABLES } else { descriptors };
        let place = |n: u16| if chain.indirect { n } else { (head + n) % SIZE };
        for (n, &(buffer, flags)) in (0..).zip(&buffers) {
            let more = u16::from(n + 1 < count);
            self.descriptor(table, place(n), buffer, flags | more, place(n + 1));
        }
        if chain.indirect {
            self.descriptor(descriptors, head, (table, 16 * u32::from(count)), 4, 0);
        }
        let ring = &mut self.rings[usize::from(queue)];
        ring.free = ring.free.wrapping_add(if chain.indirect { 1 } else { count });
        self.offer(queue, head);
        head
    }

    /// Puts a head into the available ring.
    pub fn offer(&mut self, queue: u8, head: u16) {
        let [_, available, _] = Self::areas(queue);
        let ring = &mut self.rings[usize::from(queue)];
        let at = available + 4 + 2 * u64::from(ring.available % SIZE);
        ring.available = ring.available.wrapping_add(1);
        let index = ring.available;
        self.put_u16(at, head);
        self.put_u16(available + 2, index);
    }

    /// Notifies the device, and lets it finish.
    pub fn notify(&mut self, queue: u8) {
        let doorbell = function::NOTIFY.start + 4 * u64::from(queue);
        let effect = self.devices.write(self.slot, doorbell, 2, queue.into(), &mut self.messages);
        assert_eq!(effect, Effect::Notify { slot: self.slot, queue });
        self.woken = self.devices.serve(self.slot, queue, &self.memory, &mut self.messages);
    }

    /// The chains that have come back: head and bytes written.
    pub fn used(&mut self, queue: u8) -> Vec<(u16, u32)> {
        let [_, _, used] = Self::areas(queue);
        let index = self.u16_at(used + 2);
        let mut back = vec![];
        while self.rings[usize::from(queue)].used != index {
            let ring = &mut self.rings[usize::from(queue)];
            let at = used + 4 + 8 * u64::from(ring.used % SIZE);
            ring.used = ring.used.wrapping_add(1);
            let bytes = self.bytes(at, 8);
            let word = |n: usize| u32::from_le_bytes(bytes[n..n + 4].try_into().unwrap());
            back.push((word(0) as u16, word(4)));
        }
        back
    }

    /// Adds a chain, notifies, and takes the answer: bytes written.
    pub fn request(&mut self, queue: u8, chain: &Chain) -> u32 {
        let head = self.add(queue, chain);
        self.notify(queue);
        let used = self.used(queue);
        assert_eq!((used.len(), used[0].0), (1, head));
        used[0].1
    }

    /// Vectors of the messages since the last call.
    pub fn interrupts(&mut self) -> Vec<u8> {
        self.messages.drain().map(|message| message.vector).collect()
    }
}
