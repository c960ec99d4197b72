//! What an absent page holds: into the compressed store and out of it, and from there to the disk when it is full.
//!
//! When a page finds no room in the store, the next pages after the last that went go to the disk, in the order of their numbers and
//! up to a run at a time: neighbours in guest memory are often wanted together, and a run is read as a whole. It is a
//! round through all pages, so that each goes about as often as the others; pages that are wanted often are seldom in the
//! store.

use lz4_flex::block::{compress_into_with_table, decompress_into};

use super::Failure;
use super::place::{Packed, Place};
use super::state::{PAGE, State};
use super::store::Handle;
use crate::arch::addr::Hfn;

impl State {
    /// Writes what an absent page holds into a frame.
    pub(super) fn fill(&mut self, place: Place, frame: Hfn) -> Result<(), Failure> {
        match place {
            Place::Stored(handle) => {
                self.unpack(handle)?;
                self.memory.write(frame.base(), &self.packed[..PAGE]);
            }
            Place::OnDisk(place) => {
                let disk = self.disk.as_mut().ok_or(Failure::Corrupt)?;
                let page = disk.read(place).map_err(|_| Failure::DiskRead)?;
                self.memory.write(frame.base(), page);
            }
            _ => self.memory.clear(frame),
        }
        Ok(())
    }

    /// Reads a page in the store into the first bytes of `packed`.
    fn unpack(&mut self, handle: Handle) -> Result<(), Failure> {
        let length = self.store.get(handle, &mut self.plain, &*self.memory).map_err(|_| Failure::Corrupt)?;
        let bytes = self.plain.get(..length).ok_or(Failure::Corrupt)?;
        if length == PAGE {
            self.packed[..PAGE].copy_from_slice(bytes);
            return Ok(());
        }
        match decompress_into(bytes, &mut self.packed[..PAGE]) {
            Ok(PAGE) => Ok(()),
            _ => Err(Failure::Corrupt),
        }
    }

    /// Forgets what is kept of a page outside of frames.
    pub(super) fn forget_stored(&mut self, place: Place) {
        match place {
            Place::Stored(handle) => {
                self.store.remove(handle, &mut *self.memory);
                self.stored -= 1;
            }
            Place::OnDisk(place) => self.disk.iter_mut().for_each(|disk| disk.remove(place)),
            _ => {}
        }
    }

    /// Puts the page in `plain`, which is that in `frame`, into the store. Others make room if there is a disk.
    pub(super) fn keep(&mut self, frame: Hfn) -> Result<Handle, Failure> {
        loop {
            if let Some(handle) = self.compress() {
                return Ok(handle);
            }
            if !self.spill()? {
                return Err(Failure::StoreFull);
            }
            // The buffers have held other pages meanwhile.
            self.memory.read(frame.base(), &mut self.plain);
        }
    }

    /// Puts the page in `plain` into the store, compressed if that makes it shorter.
    fn compress(&mut self) -> Option<Handle> {
        let length = compress_into_with_table(&self.plain, &mut self.packed, &mut self.table);
        let packed = length.ok().and_then(|length| self.packed.get(..length)).filter(|it| it.len() < PAGE);
        let bytes = packed.unwrap_or(&self.plain);
        let (is_plain, length) = (bytes.len() == PAGE, bytes.len());
        let handle = self.store.put(bytes, &mut *self.memory)?;
        if is_plain {
            self.counts.incompressible += 1;
        }
        self.counts.compressed_from += PAGE as u64;
        self.counts.compressed_to += length as u64;
        Some(handle)
    }

    /// Moves some pages from the store to the disk; whether there were any, and room.
    fn spill(&mut self) -> Result<bool, Failure> {
        let Some((first, room)) = self.disk.as_mut().and_then(|disk| disk.room()) else { return Ok(false) };
        let pages = self.places.len() as u32;
        let (mut chosen, mut count) = ([0; super::disk::RUN as usize], 0);
        for _ in 0..pages {
            self.spilled = if self.spilled + 1 < pages { self.spilled + 1 } else { 0 };
            let Place::Stored(handle) = self.places[self.spilled as usize].get() else { continue };
            self.unpack(handle)?;
            let Some(disk) = &mut self.disk else { break };
            disk.stage(count).copy_from_slice(&self.packed[..PAGE]);
            chosen[count as usize] = self.spilled;
            count += 1;
            if count == room {
                break;
            }
        }
        let Some(disk) = self.disk.as_mut().filter(|_| count > 0) else { return Ok(false) };
        // Until it is written, all of it is in the store.
        disk.write(first, count).map_err(|_| Failure::DiskWrite)?;
        for (place, number) in (first..).zip(&chosen[..count as usize]) {
            self.forget_stored(self.places[*number as usize].get());
            self.places[*number as usize] = Packed::new(Place::OnDisk(place));
        }
        Ok(true)
    }
}
