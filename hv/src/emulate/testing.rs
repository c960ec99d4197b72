//! A [`Memory`] for tests and fuzz targets: one stretch of RAM, one device, ports, vector registers, and a record of
//! every access.

use alloc::vec::Vec;
use core::ops::Range;

use super::{Fault, Memory};
use crate::arch::addr::{Gva, PAGE_SIZE};
use crate::arch::{Access, Exception};

/// An access that a device or a port saw, or a write that reached RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Event {
    DeviceRead { at: u64, size: usize },
    DeviceWrite { at: u64, size: usize, value: u128 },
    RamWrite { at: u64, size: usize },
    In { port: u16, size: u8 },
    Out { port: u16, size: u8, value: u32 },
}

/// The whole world outside the registers. Addresses outside all ranges are not present.
pub struct TestMemory {
    /// The first address of RAM; a multiple of the page size.
    pub base: u64,
    /// RAM; a multiple of the page size long.
    pub ram: Vec<u8>,
    /// Addresses that a device answers; byte n of a read is the low byte of its address plus 1.
    pub device: Range<u64>,
    /// Pages of RAM that may not be written.
    pub read_only: Range<u64>,
    /// Code for fetches, if it is not to be taken from RAM: starts at this address.
    pub code: Option<(u64, Vec<u8>)>,
    /// Ends any access to this range with [`Fault::Stop`].
    pub stop: Range<u64>,
    /// XMM0 to XMM15.
    pub xmm: [u128; 16],
    /// MM0 to MM7.
    pub mmx: [u64; 8],
    /// How many compare-and-exchange operations are to fail, each time changing the first byte.
    pub races: u32,
    /// A write of this value to a port asks for a pause.
    pub pause_on: Option<u32>,
    /// What a port returns.
    pub port_value: u32,
    /// What happened.
    pub events: Vec<Event>,
}

impl TestMemory {
    /// `len` bytes of zeroed RAM at `base`.
    pub fn new(base: u64, len: usize) -> TestMemory {
        TestMemory {
            base,
            ram: alloc::vec![0; len],
            device: 0..0,
            read_only: 0..0,
            code: None,
            stop: 0..0,
            xmm: [0; 16],
            mmx: [0; 8],
            races: 0,
            pause_on: None,
            port_value: 0,
            events: Vec::new(),
        }
    }

    /// The index of `at` in RAM.
    fn index(&self, at: u64) -> Option<usize> {
        let index = usize::try_from(at.checked_sub(self.base)?).ok()?;
        (index < self.ram.len()).then_some(index)
    }

    /// Copies `data` to RAM; panics outside.
    pub fn put(&mut self, at: u64, data: &[u8]) {
        let from = self.index(at).expect("RAM");
        self.ram[from..from + data.len()].copy_from_slice(data);
    }

    /// Reads `size` (1 to 8) bytes of RAM; panics outside.
    pub fn get(&self, at: u64, size: usize) -> u64 {
        let from = self.index(at).expect("RAM");
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&self.ram[from..from + size]);
        u64::from_le_bytes(bytes)
    }

    /// Checks both pages of an access.
    fn check(&self, at: Gva, len: usize, access: Access) -> Result<(), Fault<u64>> {
        let first_page = PAGE_SIZE - at.offset();
        let second = (len as u64 > first_page).then(|| at.0.wrapping_add(first_page));
        for address in core::iter::once(at.0).chain(second) {
            if self.stop.contains(&address) {
                return Err(Fault::Stop(address));
            }
            let read_only = self.read_only.contains(&address);
            let present = self.index(address).is_some() || self.device.contains(&address);
            if !present || access.write && read_only {
                let error = u32::from(present) | u32::from(access.write) << 1 | u32::from(access.user) << 2;
                return Err(Exception::page_fault(Gva(address), error).into());
            }
        }
        Ok(())
    }
}

impl Memory for TestMemory {
    type Stop = u64;

    fn fetch(&mut self, at: Gva, buf: &mut [u8], user: bool) -> Result<(), Fault<u64>> {
        assert!(!buf.is_empty() && at.offset() + buf.len() as u64 <= PAGE_SIZE, "a fetch within a page");
        let Some((start, code)) = &self.code else {
            self.check(at, buf.len(), Access { user, ..Access::READ })?;
            for (n, byte) in buf.iter_mut().enumerate() {
                *byte = self.index(at.0.wrapping_add(n as u64)).map_or(0, |i| self.ram[i]);
            }
            return Ok(());
        };
        for (n, byte) in buf.iter_mut().enumerate() {
            let offset = at.0.wrapping_add(n as u64).wrapping_sub(*start);
            *byte = usize::try_from(offset).ok().and_then(|o| code.get(o).copied()).unwrap_or(0x90);
        }
        Ok(())
    }

    fn read(&mut self, at: Gva, buf: &mut [u8], access: Access) -> Result<(), Fault<u64>> {
        assert!(matches!(buf.len(), 1 | 2 | 4 | 8 | 16) && !access.execute, "a data item");
        self.check(at, buf.len(), access)?;
        if self.device.contains(&at.0) {
            self.events.push(Event::DeviceRead { at: at.0, size: buf.len() });
        }
        for (n, byte) in buf.iter_mut().enumerate() {
            let address = at.0.wrapping_add(n as u64);
            *byte = self.index(address).map_or((address as u8).wrapping_add(1), |i| self.ram[i]);
        }
        Ok(())
    }

    fn write(&mut self, at: Gva, data: &[u8], access: Access) -> Result<(), Fault<u64>> {
        assert!(matches!(data.len(), 1 | 2 | 4 | 8 | 16) && access.write, "a data item");
        self.check(at, data.len(), access)?;
        let mut value = [0; 16];
        value[..data.len()].copy_from_slice(data);
        if self.device.contains(&at.0) {
            let value = u128::from_le_bytes(value);
            self.events.push(Event::DeviceWrite { at: at.0, size: data.len(), value });
        } else {
            self.events.push(Event::RamWrite { at: at.0, size: data.len() });
        }
        for (n, byte) in data.iter().enumerate() {
            if let Some(i) = self.index(at.0.wrapping_add(n as u64)) {
                self.ram[i] = *byte;
            }
        }
        Ok(())
    }

    fn probe(&mut self, at: Gva, len: usize, access: Access) -> Result<(), Fault<u64>> {
        self.check(at, len, access)
    }

    fn compare_exchange(
        &mut self,
        at: Gva,
        old: &[u8],
        new: &[u8],
        access: Access,
    ) -> Result<bool, Fault<u64>> {
        assert_eq!(old.len(), new.len());
        self.check(at, new.len(), access)?;
        if self.races > 0 {
            self.races -= 1;
            if let Some(i) = self.index(at.0) {
                self.ram[i] = self.ram[i].wrapping_add(1);
            }
        }
        let same = old
            .iter()
            .enumerate()
            .all(|(n, byte)| self.index(at.0.wrapping_add(n as u64)).is_none_or(|i| self.ram[i] == *byte));
        if same {
            self.write(at, new, access)?;
        }
        Ok(same)
    }

    fn io_in(&mut self, port: u16, size: u8) -> Result<u32, Fault<u64>> {
        assert!(matches!(size, 1 | 2 | 4));
        self.events.push(Event::In { port, size });
        Ok(self.port_value)
    }

    fn io_out(&mut self, port: u16, size: u8, value: u32) -> Result<(), Fault<u64>> {
        assert!(matches!(size, 1 | 2 | 4));
        self.events.push(Event::Out { port, size, value });
        Ok(())
    }

    fn wants_pause(&self) -> bool {
        matches!(self.events.last(), Some(Event::Out { value, .. }) if Some(*value) == self.pause_on)
    }

    fn xmm(&mut self, index: u8) -> Result<u128, Fault<u64>> {
        Ok(self.xmm[usize::from(index)])
    }

    fn set_xmm(&mut self, index: u8, value: u128) -> Result<(), Fault<u64>> {
        self.xmm[usize::from(index)] = value;
        Ok(())
    }

    fn mmx(&mut self, index: u8) -> Result<u64, Fault<u64>> {
        Ok(self.mmx[usize::from(index)])
    }

    fn set_mmx(&mut self, index: u8, value: u64) -> Result<(), Fault<u64>> {
        self.mmx[usize::from(index)] = value;
        Ok(())
    }
}
