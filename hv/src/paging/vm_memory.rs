//! The memory of a VM: [`GuestMemory`] over the [`P2m`].
//!
//! Loaders, the guest page walker, the emulator and devices reach guest memory through [`VmMemory`]; the
//! bytes themselves come from [`HostAccess`], the identity mapping on bare metal, a vector in tests.

use crate::arch::addr::{Gpa, Hpa};
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::mem::host_access::HostAccess;
use crate::mem::table_memory::TableMemory;
use crate::paging::p2m::P2m;

/// The memory of one VM as the guest sees it, without devices: ROM is not written, MMIO and holes are not
/// memory.
#[derive(Debug)]
pub struct VmMemory<'a, M: TableMemory, H: HostAccess> {
    p2m: &'a P2m<M>,
    host: &'a H,
}

impl<'a, M: TableMemory, H: HostAccess> VmMemory<'a, M, H> {
    /// The memory that `p2m` describes.
    pub fn new(p2m: &'a P2m<M>, host: &'a H) -> Self {
        VmMemory { p2m, host }
    }

    /// Calls `f` with each contiguous run of host memory behind `len` bytes at `gpa`: its address, the offset
    /// from `gpa`, and its length. Stops at the first address that is not memory of the wanted kind.
    fn runs(
        &self,
        gpa: Gpa,
        len: u64,
        write: bool,
        mut f: impl FnMut(Hpa, usize, usize),
    ) -> Result<(), NotRam> {
        let mut done = 0;
        while done < len {
            let at = gpa.checked_add(done).ok_or(NotRam { gpa: Gpa(u64::MAX) })?;
            let (mut entry, mut run) = self.p2m.run_present(at, len - done);
            if write && entry.writable().is_none() {
                self.p2m.let_write(at);
                (entry, run) = self.p2m.run_present(at, len - done);
            }
            let hpa = if write { entry.writable() } else { entry.readable() };
            f(hpa.ok_or(NotRam { gpa: at })?, done as usize, run as usize);
            done += run;
        }
        Ok(())
    }

    #[cold]
    fn read_unaligned(&self, gpa: Gpa) -> Result<u64, NotRam> {
        let mut bytes = [0; 8];
        self.read(gpa, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Whether all of `len` bytes at `gpa` can be read, or written, as memory.
    pub fn check(&self, gpa: Gpa, len: u64, write: bool) -> Result<(), NotRam> {
        self.runs(gpa, len, write, |_, _, _| ())
    }
}

impl<M: TableMemory, H: HostAccess> GuestMemory for VmMemory<'_, M, H> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.runs(gpa, buf.len() as u64, false, |hpa, at, len| self.host.read(hpa, &mut buf[at..at + len]))
    }

    /// The way of page walks.
    #[inline(always)]
    fn read_u64(&self, gpa: Gpa) -> Result<u64, NotRam> {
        if !gpa.is_aligned(8) {
            return self.read_unaligned(gpa);
        }
        let hpa = self.p2m.translate(gpa).readable().ok_or(NotRam { gpa })?;
        Ok(self.host.load(hpa))
    }

    /// The way of flushes.
    #[inline(always)]
    fn entries<const BYTES: u64>(
        &self,
        gpa: Gpa,
        which: u64,
        mut visit: impl FnMut(usize, u64),
    ) -> Result<(), NotRam> {
        let hpa = self.p2m.translate(gpa).readable().ok_or(NotRam { gpa })?;
        // Aligned in any case, for the loads; the caller's promise is 64 entries.
        let base = hpa.0 & !7;
        let mut left = which;
        while left != 0 {
            let n = u64::from(left.trailing_zeros());
            left &= left - 1;
            let offset = n * BYTES;
            let word = self.host.load(Hpa(base + (offset & !7)));
            visit(n as usize, if BYTES == 8 { word } else { word >> ((offset & 4) * 8) & 0xffff_ffff });
        }
        Ok(())
    }

    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.runs(gpa, buf.len() as u64, true, |hpa, at, len| self.host.write(hpa, &buf[at..at + len]))
    }

    fn compare_exchange(&self, gpa: Gpa, size: usize, old: u64, new: u64) -> Result<bool, NotRam> {
        if !(size == 4 || size == 8) || !gpa.is_aligned(size as u64) {
            return Err(NotRam { gpa });
        }
        let hpa = self.p2m.translate_to_write(gpa).writable().ok_or(NotRam { gpa })?;
        Ok(self.host.compare_exchange(hpa, size, old, new))
    }

    fn fill(&self, gpa: Gpa, len: u64, byte: u8) -> Result<(), NotRam> {
        self.runs(gpa, len, true, |hpa, _, len| self.host.fill(hpa, len as u64, byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::host_access::VecHost;
    use crate::paging::arena::Arena;
    use crate::paging::range::GpaRange;
    use proptest::prelude::*;

    const PAGE: u64 = 0x1000;
    const HOST: u64 = 0x10_0000;

    /// Pages 0 to 7: RAM, RAM (contiguous), RAM (elsewhere), ROM, MMIO, hole, RAM that is write-protected, RAM.
    fn memory() -> (P2m<&'static Arena>, VecHost) {
        let arena = Box::leak(Box::new(Arena::new(100)));
        let mut p2m = P2m::new(&*arena).unwrap();
        let page = |n: u64, count: u64| GpaRange::new(Gpa(n * PAGE), count * PAGE).unwrap();
        let host = |n: u64| Hpa(HOST + n * PAGE);
        let changes = [
            p2m.map_ram(page(0, 2), host(4), true),
            p2m.map_ram(page(2, 1), host(0), true),
            p2m.map_rom(page(3, 1), host(1)),
            p2m.map_mmio(page(4, 1)),
            p2m.map_ram(page(6, 1), host(2), false),
            p2m.map_ram(page(7, 1), host(3), true),
        ];
        assert!(changes.iter().all(|change| change.is_ok()));
        (p2m, VecHost::new(Hpa(HOST), 8 * PAGE as usize))
    }

    /// Which pages can be read and written.
    const READABLE: [bool; 8] = [true, true, true, true, false, false, true, true];
    const WRITABLE: [bool; 8] = [true, true, true, false, false, false, false, true];

    fn first_bad(pages: [bool; 8], at: u64, len: u64) -> Option<Gpa> {
        (at..at + len).find(|at| !pages.get((at / PAGE) as usize).unwrap_or(&false)).map(Gpa)
    }

    #[derive(Clone, Debug)]
    enum Op {
        Read(u64, usize),
        Write(u64, Vec<u8>),
        Fill(u64, u64, u8),
        Exchange(u64, u64, bool),
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let at = || prop_oneof![0..8 * PAGE + 10, (0..9u64, 0..20u64).prop_map(|(p, d)| p * PAGE + d)];
        prop_oneof![
            (at(), 0..9000usize).prop_map(|(at, len)| Op::Read(at, len)),
            (at(), prop::collection::vec(any::<u8>(), 0..5000)).prop_map(|(at, b)| Op::Write(at, b)),
            (at(), 0..9000u64, any::<u8>()).prop_map(|(at, len, byte)| Op::Fill(at, len, byte)),
            (at(), any::<u64>(), any::<bool>()).prop_map(|(at, new, same)| Op::Exchange(at & !7, new, same)),
        ]
    }

    proptest! {
        #[test]
        fn memory_is_what_the_p2m_says(ops in prop::collection::vec(any_op(), 1..20)) {
            let (p2m, host) = memory();
            let memory = VmMemory::new(&p2m, &host);
            // What failing writes leave behind is not specified, so the model follows the memory there.
            let mut model = vec![0; 8 * PAGE as usize];
            for op in ops {
                match op {
                    Op::Read(at, len) => {
                        let mut buf = vec![0; len];
                        let bad = first_bad(READABLE, at, len as u64).map(|gpa| NotRam { gpa });
                        prop_assert_eq!(memory.read(Gpa(at), &mut buf).err(), bad);
                        if bad.is_none() {
                            // Nothing can be read anywhere, even behind the last page.
                            prop_assert_eq!(&buf[..], &model[at.min(8 * PAGE) as usize..][..len]);
                        }
                    }
                    Op::Write(at, bytes) => {
                        let bad = first_bad(WRITABLE, at, bytes.len() as u64).map(|gpa| NotRam { gpa });
                        prop_assert_eq!(memory.write(Gpa(at), &bytes).err(), bad);
                        let done = bad.map_or(bytes.len(), |bad| (bad.gpa.0 - at) as usize);
                        model[at.min(8 * PAGE) as usize..][..done].copy_from_slice(&bytes[..done]);
                    }
                    Op::Fill(at, len, byte) => {
                        let bad = first_bad(WRITABLE, at, len).map(|gpa| NotRam { gpa });
                        prop_assert_eq!(memory.fill(Gpa(at), len, byte).err(), bad);
                        let done = bad.map_or(len, |bad| bad.gpa.0 - at) as usize;
                        model[at.min(8 * PAGE) as usize..][..done].fill(byte);
                    }
                    Op::Exchange(at, new, same) => {
                        let bad = first_bad(WRITABLE, at, 1).map(|gpa| NotRam { gpa });
                        let old = memory.read_u64(Gpa(at)).unwrap_or(0);
                        let done = memory.compare_exchange(Gpa(at), 8, if same { old } else { !old }, new);
                        prop_assert_eq!(done, bad.map_or(Ok(same), Err));
                        if done == Ok(true) {
                            model[at as usize..][..8].copy_from_slice(&new.to_le_bytes());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rom_is_written_by_loaders_only() {
        let (p2m, host) = memory();
        let memory = VmMemory::new(&p2m, &host);
        let rom = Gpa(3 * PAGE);
        assert_eq!(memory.write(rom, &[1]), Err(NotRam { gpa: rom }));
        assert_eq!(memory.read_u32(rom), Ok(0));
    }

    #[test]
    fn odd_exchanges_are_refused() {
        let (p2m, host) = memory();
        let memory = VmMemory::new(&p2m, &host);
        for (gpa, size) in [(1, 4), (4, 8), (0, 2), (0, 16)] {
            assert_eq!(memory.compare_exchange(Gpa(gpa), size, 0, 1), Err(NotRam { gpa: Gpa(gpa) }));
        }
        assert_eq!(memory.read(Gpa(u64::MAX), &mut [0; 4]), Err(NotRam { gpa: Gpa(u64::MAX) }));
    }
}
