//! The source of a region's memory: mappings of `/dev/palimpsest` by [`abi::kit`], or anonymous ones where there is no such device.
//! System calls are here, and the promise that memory stays mapped until the heap gives it back or the region ends.
#![allow(unsafe_code, reason = "system calls")]

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
    ptr,
};

use abi::kit;

use crate::heap::{ARENA, Source};

/// Memory of a region, or plain memory.
pub struct Memory {
    backing: Backing,
    /// What is mapped: address and bytes.
    mapped: BTreeMap<usize, usize>,
}

enum Backing {
    Device { file: File, number: u32 },
    Plain(io::Error),
}

/// An ioctl with a structure that the kernel reads, writes, or both.
///
/// # Safety
/// The structure is the one that `request` has.
pub(crate) unsafe fn ioctl<T>(file: &File, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the caller's structure is a valid one that nothing else writes to.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, ptr::from_mut(argument)) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn create() -> io::Result<(File, u32)> {
    let file = OpenOptions::new().read(true).write(true).open(kit::PATH)?;
    let mut info = kit::Info::default();
    // SAFETY: INFO has this structure.
    unsafe { ioctl(&file, kit::INFO, &mut info)? };
    if info.version != kit::VERSION {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let mut region = kit::Region::default();
    // SAFETY: CREATE has this structure.
    unsafe { ioctl(&file, kit::CREATE, &mut region)? };
    Ok((file, region.number))
}

impl Memory {
    /// Of a new region; plain if there is none to be had.
    pub fn new() -> Memory {
        let backing = match create() {
            Ok((file, number)) => Backing::Device { file, number },
            Err(why) => Backing::Plain(why),
        };
        Memory { backing, mapped: BTreeMap::new() }
    }

    /// The region's number; `None`: plain memory.
    pub fn number(&self) -> Option<u32> {
        match &self.backing {
            Backing::Device { number, .. } => Some(*number),
            Backing::Plain(_) => None,
        }
    }

    /// Why it is plain.
    pub fn reason(&self) -> Option<&io::Error> {
        match &self.backing {
            Backing::Device { .. } => None,
            Backing::Plain(why) => Some(why),
        }
    }

    /// Maps over reserved addresses.
    ///
    /// # Safety
    /// The caller has reserved `at` to `at + bytes`, and nothing uses it.
    unsafe fn map_at(&self, at: *mut libc::c_void, bytes: usize) -> io::Result<()> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, file, offset) = match &self.backing {
            Backing::Device { file, number } => {
                let offset = i64::from(*number) * kit::OFFSET_UNIT as i64;
                (libc::MAP_SHARED | libc::MAP_POPULATE, file.as_raw_fd(), offset)
            }
            Backing::Plain(_) => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        // SAFETY: what is mapped over is the caller's reservation.
        let mapped = unsafe { libc::mmap(at, bytes, access, flags | libc::MAP_FIXED, file, offset) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Source for Memory {
    fn map(&mut self, bytes: usize) -> io::Result<usize> {
        // A mapping of the device cannot be cut to size: the place for it is found with another.
        let room = bytes.checked_add(ARENA).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: addresses that the kernel chooses, which are free.
        let reserved = unsafe { libc::mmap(ptr::null_mut(), room, libc::PROT_NONE, flags, -1, 0) };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let before = reserved.addr().next_multiple_of(ARENA) - reserved.addr();
        let at = reserved.wrapping_byte_add(before);
        // SAFETY: this part of the reservation, and what is left of it, are not in use.
        unsafe {
            if let Err(error) = self.map_at(at, bytes) {
                libc::munmap(reserved, room);
                return Err(error);
            }
            if before > 0 {
                libc::munmap(reserved, before);
            }
            libc::munmap(at.wrapping_byte_add(bytes), ARENA - before);
        }
        let address = at.expose_provenance();
        self.mapped.insert(address, bytes);
        Ok(address)
    }

    fn unmap(&mut self, address: usize, bytes: usize) {
        assert_eq!(self.mapped.remove(&address), Some(bytes), "a mapping of this region");
        // SAFETY: it was mapped by `map`, and the heap has no object in it.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(address), bytes) };
    }
}

/// The last handle of the region has gone, and with it all objects.
impl Drop for Memory {
    fn drop(&mut self) {
        for (&address, &bytes) in &self.mapped {
            // SAFETY: as above.
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(address), bytes) };
        }
        if let Backing::Device { file, number } = &self.backing {
            // A child may have the file open, which would keep the region.
            let mut region = kit::Region { number: *number, ..Default::default() };
            // SAFETY: DELETE has this structure.
            let _closing_ends_it_too = unsafe { ioctl(file, kit::DELETE, &mut region) };
        }
    }
}
