//! A virtio disk of the host, for evicted pages: one request at a time, polled. Virtio 1.2, 2.7 (split queues), 4.1.4.8 (the legacy
//! interface by ports), 5.2 (block devices).
//!
//! Polling needs no interrupt, which would have to reach the one processor that waits with its own disabled. The device reads and
//! writes memory by itself: the queue, the request and the data lie in memory that is given to it for good. It is trusted with
//! what it says to have done; it cannot make the driver leave its memory, or wait for ever. A device that does not answer in time is
//! never used again, because it may still write to that memory.

use core::fmt;
use core::hint::spin_loop;
use core::sync::atomic::{Ordering, fence};

use super::{bytes, cpu, port};

/// Vendor and device of a block device with the legacy interface.
pub const ID: (u16, u16) = (0x1af4, 0x1001);
/// Bytes of a sector, in which addresses on the disk count.
pub const SECTOR: usize = 512;
/// Bytes that one request moves at most.
pub const MOST: usize = 64 << 10;
/// Bytes of the memory for queue and requests, and what both must be aligned to.
pub const QUEUE_BYTES: usize = 4 * PAGE;

const PAGE: usize = 4096;
/// Entries of a queue that its memory has room for.
const MOST_ENTRIES: u16 = 256;
/// Where the used ring is with that many entries, and where a request's header and status are.
const HEADER: u64 = 3 * PAGE as u64;
const STATUS: u64 = HEADER + 16;

/// Registers, from the first port on.
mod register {
    pub const DRIVER_FEATURES: u16 = 4;
    pub const QUEUE_FRAME: u16 = 8;
    pub const QUEUE_SIZE: u16 = 12;
    pub const QUEUE_SELECT: u16 = 14;
    pub const NOTIFY: u16 = 16;
    pub const STATUS: u16 = 18;
    pub const SECTORS_LOW: u16 = 20;
    pub const SECTORS_HIGH: u16 = 24;
}

/// Bits of the device's status.
const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;

/// Flags of a descriptor.
const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
/// Of the ring of requests: no interrupt is wanted.
const NO_INTERRUPT: u16 = 1;

/// What a request asks for.
const READ: u32 = 0;
const WRITE: u32 = 1;

/// How registers are reached: by ports, or in a test.
pub trait Registers {
    /// Reads a register of four bytes.
    fn read32(&mut self, register: u16) -> u32;
    /// Reads one of two.
    fn read16(&mut self, register: u16) -> u16;
    /// Writes one of four.
    fn write32(&mut self, register: u16, value: u32);
    /// Writes one of two.
    fn write16(&mut self, register: u16, value: u16);
    /// Writes one of one.
    fn write8(&mut self, register: u16, value: u8);
    /// The time, in ticks.
    fn now(&mut self) -> u64;

    /// The frame of a queue, as the device has it: memory is at the same addresses for both.
    fn frame(&self, queue: u64) -> Option<u32> {
        u32::try_from(queue / PAGE as u64).ok()
    }
}

/// Those of a device of the host, from this port on.
#[derive(Debug)]
pub struct Ports(u16);

impl Ports {
    /// # Safety
    /// A virtio device answers at these ports, and nothing else drives it.
    pub unsafe fn new(first: u16) -> Ports {
        Ports(first)
    }
}

impl Registers for Ports {
    fn read32(&mut self, register: u16) -> u32 {
        // SAFETY: the promise of `new`, here and below.
        unsafe { port::in32(self.0.wrapping_add(register)) }
    }

    fn read16(&mut self, register: u16) -> u16 {
        // SAFETY: as above.
        unsafe { port::in16(self.0.wrapping_add(register)) }
    }

    fn write32(&mut self, register: u16, value: u32) {
        // SAFETY: as above.
        unsafe { port::out32(self.0.wrapping_add(register), value) }
    }

    fn write16(&mut self, register: u16, value: u16) {
        // SAFETY: as above.
        unsafe { port::out16(self.0.wrapping_add(register), value) }
    }

    fn write8(&mut self, register: u16, value: u8) {
        // SAFETY: as above.
        unsafe { port::out8(self.0.wrapping_add(register), value) }
    }

    fn now(&mut self) -> u64 {
        cpu::rdtsc()
    }
}

/// Sectors of a disk at most: 128 PiB. A device that says more is broken.
const MOST_SECTORS: u64 = 1 << 48;

/// Why a request was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The sectors are not on the disk, or the length is no multiple of [`SECTOR`] up to [`MOST`].
    Range,
    /// The device says that it failed.
    Device,
    /// The device did not answer in time, or what it answered makes no sense; it is not used any more.
    Dead,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Range => "there is no such place",
            Error::Device => "it says that it failed",
            Error::Dead => "it does not answer, and is not used any more",
        })
    }
}

/// A disk.
#[derive(Debug)]
pub struct VirtioBlk<R> {
    registers: R,
    /// Where the queue and a request are, and where the data is.
    queue: u64,
    data: u64,
    /// Entries of the queue.
    entries: u16,
    sectors: u64,
    /// Requests made so far, as the ring counts them.
    made: u16,
    /// Ticks after which a request is given up.
    patience: u64,
    is_dead: bool,
}

impl<R: Registers> VirtioBlk<R> {
    /// Starts a device. `None`: its queue is larger than the memory for it, or missing, or the memory lies too high for the device,
    /// or its capacity makes no sense.
    ///
    /// # Safety
    /// `queue` and `data` are addresses of [`QUEUE_BYTES`] zeroes and of [`MOST`] bytes, aligned to a page, at which processors and
    /// the device find the same memory. It is the device's for good.
    pub unsafe fn start(mut registers: R, queue: u64, data: u64, patience: u64) -> Option<VirtioBlk<R>> {
        registers.write8(register::STATUS, 0);
        registers.write8(register::STATUS, ACKNOWLEDGE);
        registers.write8(register::STATUS, ACKNOWLEDGE | DRIVER);
        registers.write32(register::DRIVER_FEATURES, 0);
        registers.write16(register::QUEUE_SELECT, 0);
        let entries = registers.read16(register::QUEUE_SIZE);
        // A chain of a request is three.
        if !(3..=MOST_ENTRIES).contains(&entries) {
            return None;
        }
        let low = u64::from(registers.read32(register::SECTORS_LOW));
        let sectors = u64::from(registers.read32(register::SECTORS_HIGH)) << 32 | low;
        if sectors > MOST_SECTORS {
            return None;
        }
        let mut disk =
            VirtioBlk { registers, queue, data, entries, sectors, made: 0, patience, is_dead: false };
        disk.put16(disk.requests(), NO_INTERRUPT);
        fence(Ordering::SeqCst);
        let frame = disk.registers.frame(queue)?;
        disk.registers.write32(register::QUEUE_FRAME, frame);
        disk.registers.write8(register::STATUS, ACKNOWLEDGE | DRIVER | DRIVER_OK);
        Some(disk)
    }

    /// Sectors of the disk.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Reads from `sector` on.
    ///
    /// # Errors
    /// [`Error`]; what `out` holds is unspecified then.
    pub fn read(&mut self, sector: u64, out: &mut [u8]) -> Result<(), Error> {
        self.request(READ, sector, out.len())?;
        // SAFETY: the promise of `start`; no longer than its buffer, as `request` has checked.
        unsafe { bytes::copy(out.as_mut_ptr(), self.data as *const u8, out.len()) };
        Ok(())
    }

    /// Writes from `sector` on.
    ///
    /// # Errors
    /// [`Error`]; what the sectors hold is unspecified then.
    pub fn write(&mut self, sector: u64, from: &[u8]) -> Result<(), Error> {
        self.check(sector, from.len())?;
        // SAFETY: as above.
        unsafe { bytes::copy(self.data as *mut u8, from.as_ptr(), from.len()) };
        self.request(WRITE, sector, from.len())
    }

    fn check(&self, sector: u64, length: usize) -> Result<(), Error> {
        let end = sector.checked_add((length / SECTOR) as u64);
        let fits = (1..=MOST).contains(&length) && length.is_multiple_of(SECTOR);
        match end {
            _ if self.is_dead => Err(Error::Dead),
            Some(end) if fits && end <= self.sectors => Ok(()),
            _ => Err(Error::Range),
        }
    }

    fn request(&mut self, kind: u32, sector: u64, length: usize) -> Result<(), Error> {
        self.check(sector, length)?;
        self.put(HEADER, &u64::from(kind).to_le_bytes());
        self.put(HEADER + 8, &sector.to_le_bytes());
        // No answer of the device's.
        self.put(STATUS, &[0xff]);
        let into = if kind == READ { DEVICE_WRITES } else { 0 };
        self.describe(0, self.queue + HEADER, 16, NEXT);
        self.describe(1, self.data, length as u32, NEXT | into);
        self.describe(2, self.queue + STATUS, 1, DEVICE_WRITES);
        let requests = self.requests();
        let place = requests + 4 + 2 * u64::from(self.made % self.entries);
        self.put16(place, 0);
        self.made = self.made.wrapping_add(1);
        // The device reads the request once it sees the count.
        fence(Ordering::SeqCst);
        self.put16(requests + 2, self.made);
        fence(Ordering::SeqCst);
        self.registers.write16(register::NOTIFY, 0);
        let begin = self.registers.now();
        while self.done() != self.made {
            if self.registers.now().wrapping_sub(begin) > self.patience {
                self.is_dead = true;
                return Err(Error::Dead);
            }
            spin_loop();
        }
        fence(Ordering::SeqCst);
        // SAFETY: the promise of `start`.
        match unsafe { ((self.queue + STATUS) as *const u8).read_volatile() } {
            0 => Ok(()),
            // The device's count went on without an answer.
            0xff => {
                self.is_dead = true;
                Err(Error::Dead)
            }
            _ => Err(Error::Device),
        }
    }

    /// Requests that the device has done, as its ring counts them.
    fn done(&self) -> u16 {
        // The ring that the device writes begins at the next page.
        let ring = (self.requests() + 4 + 2 * u64::from(self.entries) + 2).next_multiple_of(PAGE as u64);
        // SAFETY: the promise of `start`: it is in the memory of the queue, and aligned.
        u16::from_le(unsafe { ((self.queue + ring + 2) as *const u16).read_volatile() })
    }

    /// Where the ring of requests is: behind the descriptors.
    fn requests(&self) -> u64 {
        16 * u64::from(self.entries)
    }

    fn describe(&mut self, index: u16, address: u64, length: u32, flags: u16) {
        let at = 16 * u64::from(index);
        self.put(at, &address.to_le_bytes());
        self.put(at + 8, &length.to_le_bytes());
        self.put(at + 12, &flags.to_le_bytes());
        self.put(at + 14, &(index + 1).to_le_bytes());
    }

    /// Writes two bytes to the memory of the queue at once: the device must not see half of a count.
    fn put16(&mut self, at: u64, value: u16) {
        // SAFETY: the promise of `start`; all offsets here are even, and below `QUEUE_BYTES`.
        unsafe { ((self.queue + at) as *mut u16).write_volatile(value.to_le()) };
    }

    /// Writes to the memory of the queue.
    fn put(&mut self, at: u64, value: &[u8]) {
        for (n, byte) in value.iter().enumerate() {
            // SAFETY: the promise of `start`; all offsets here are below `QUEUE_BYTES`. Volatile, as the device reads it.
            unsafe { ((self.queue + at) as *mut u8).add(n).write_volatile(*byte) };
        }
    }
}

#[cfg(test)]
mod tests;
