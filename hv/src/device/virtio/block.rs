//! The block device: requests of a driver on a [`RamDisk`].
//!
//! A request is a header, the data, and a byte for the status; how they are spread over buffers does not matter. Virtio
//! 1.2, 5.2.

use super::chain::{Buffers, Chain};
use super::disk::{DiskError, RamDisk, SECTOR};
use super::model::Served;
use super::queue::Malformed;
use crate::mem::guest_memory::{GuestMemory, NotRam};

/// Data of a request at most; [`SIZE_MAX`] and [`SEG_MAX`] keep drivers below it.
const MAX_REQUEST: u64 = 1 << 20;
const SIZE_MAX: u32 = 8192;
const SEG_MAX: u32 = 126;

/// Feature bits.
const F_SIZE_MAX: u64 = 1 << 1;
const F_SEG_MAX: u64 = 1 << 2;
const F_READ_ONLY: u64 = 1 << 5;
const F_BLOCK_SIZE: u64 = 1 << 6;
const F_FLUSH: u64 = 1 << 9;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;

const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// Bytes of a disk's name.
const ID_BYTES: usize = 20;

/// A disk with its name.
#[derive(Debug)]
pub struct Block {
    disk: RamDisk,
    id: [u8; ID_BYTES],
}

impl Block {
    /// `disk` with the serial number `id`, of which the first 20 bytes count.
    pub fn new(disk: RamDisk, id: &str) -> Block {
        let mut bytes = [0; ID_BYTES];
        bytes.iter_mut().zip(id.bytes()).for_each(|(to, from)| *to = from);
        Block { disk, id: bytes }
    }

    pub(super) fn features(&self) -> u64 {
        let read_only = if self.disk.is_read_only() { F_READ_ONLY } else { 0 };
        F_SIZE_MAX | F_SEG_MAX | F_BLOCK_SIZE | F_FLUSH | read_only
    }

    pub(super) fn config(&self, offset: u64) -> u32 {
        match offset {
            0 => self.disk.sectors() as u32,
            4 => (self.disk.sectors() >> 32) as u32,
            8 => SIZE_MAX,
            12 => SEG_MAX,
            20 => SECTOR as u32,
            _ => 0,
        }
    }

    pub(super) fn serve(&mut self, chain: &Chain, memory: &impl GuestMemory) -> Result<Served, Malformed> {
        let mut input = chain.readable();
        let mut header = [0; 16];
        // Without a header there is not even a place for the status: the driver is at fault, not the request.
        if input.read(memory, &mut header)? != header.len() {
            return Err(Malformed::Request);
        }
        let status_at = chain.last_writable().ok_or(Malformed::Request)?;
        let output = chain.writable();
        // The last byte that the device writes is the status (virtio 1.2, 5.2.6).
        let room = output.len() - 1;
        let [a, b, c, d, _, _, _, _, sector @ ..] = header;
        let at = u64::from_le_bytes(sector).checked_mul(SECTOR);
        let (done, bytes) = match u32::from_le_bytes([a, b, c, d]) {
            IN => (self.read(at, room, output, memory), room),
            OUT => (self.write(at, input, memory), 0),
            // Writes are in memory as soon as they are done; there is no cache behind them.
            FLUSH => (Ok(OK), 0),
            GET_ID => (self.read_id(room, output, memory), room),
            _ => (Ok(UNSUPPORTED), 0),
        };
        let status = done?;
        memory.write(status_at, &[status])?;
        // The driver may take what `written` covers as valid: after an error that is the status alone.
        let written = if status == OK { bytes as u32 + 1 } else { 1 };
        let moved = (bytes + input.len()).min(u32::MAX.into()) as u32;
        Ok(Served::Done { written, moved })
    }

    fn read(
        &self,
        at: Option<u64>,
        bytes: u64,
        mut to: Buffers<'_>,
        memory: &impl GuestMemory,
    ) -> Result<u8, NotRam> {
        let Some(at) = at.filter(|_| is_data(bytes)) else { return Ok(IO_ERROR) };
        status(self.disk.read(at, bytes, |_, piece| to.write(memory, piece).map(drop)))
    }

    fn write(
        &mut self,
        at: Option<u64>,
        mut from: Buffers<'_>,
        memory: &impl GuestMemory,
    ) -> Result<u8, NotRam> {
        let bytes = from.len();
        let Some(at) = at.filter(|_| is_data(bytes)) else { return Ok(IO_ERROR) };
        status(self.disk.write(at, bytes, |_, piece| from.read(memory, piece).map(drop)))
    }

    fn read_id(&self, room: u64, mut to: Buffers<'_>, memory: &impl GuestMemory) -> Result<u8, NotRam> {
        if room != ID_BYTES as u64 {
            return Ok(IO_ERROR);
        }
        to.write(memory, &self.id).map(|_| OK)
    }
}

fn is_data(bytes: u64) -> bool {
    bytes.is_multiple_of(SECTOR) && bytes <= MAX_REQUEST
}

/// The status of a request, or the driver's mistake.
fn status(result: Result<(), DiskError<NotRam>>) -> Result<u8, NotRam> {
    match result {
        Ok(()) => Ok(OK),
        Err(DiskError::End | DiskError::ReadOnly | DiskError::Memory) => Ok(IO_ERROR),
        Err(DiskError::Other(not_ram)) => Err(not_ram),
    }
}
