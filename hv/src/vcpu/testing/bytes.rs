//! The guest's bytes.

use super::Memory;
use crate::arch::addr::Hpa;
use crate::mem::host_access::HostAccess;

impl HostAccess for Memory {
    fn read(&self, at: Hpa, buf: &mut [u8]) {
        self.bytes.read(at, buf);
    }
    fn load(&self, at: Hpa) -> u64 {
        self.bytes.load(at)
    }
    fn write(&self, at: Hpa, buf: &[u8]) {
        self.bytes.write(at, buf);
    }
    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        self.bytes.fill(at, len, byte);
    }
    fn compare_exchange(&self, at: Hpa, size: usize, old: u64, new: u64) -> bool {
        self.bytes.compare_exchange(at, size, old, new)
    }
}
