//! The running host's memory as VMs use it: table frames, guest RAM, pages of disks, and disks that are machine memory.

use crate::arch::addr::{Gpa, Hfn, Hpa, PAGE_SHIFT, PAGE_SIZE};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::{ops::Range, slice, sync::atomic::AtomicU32};

use spin::Mutex;

use crate::boot::paging;
use crate::device::virtio::disk::{Medium, Page, Pages};
use crate::firmware::info::BootInfo;
use crate::guest::devices::Media;
use crate::hw::cpu;
use crate::mem::frame::{self, Block, Node};
use crate::mem::frame_record::{self, Kind, Owner};
use crate::mem::host_access::HostAccess;
use crate::mem::host_ram::HostRam;
use crate::mem::pager::{FrameMemory, Span};
use crate::mem::table_memory::TableMemory;
use crate::mem::tables::HostTables;
use crate::mem::tier::migration::CopyFrame;
use crate::mem::tier::pool::FastPool;
use crate::mem::vm_ram::RamSource;
use crate::vm::layout::{HIGH_RAM_BASE, MemoryLayout};

/// Where the RAM of a VM with so much memory is.
pub(super) fn span(memory_mib: u64) -> Span {
    let layout = MemoryLayout::new(memory_mib);
    let pages = |bytes: u64| (bytes >> PAGE_SHIFT) as u32;
    Span {
        low: pages(layout.low_end().0),
        high_start: Gpa(HIGH_RAM_BASE).frame(),
        high: pages(layout.high_end().0 - HIGH_RAM_BASE),
    }
}

/// Tables from the frame allocator, or from fast memory while that has frames for those that processors walk; and bytes of guest RAM.
#[derive(Clone, Debug)]
pub struct HostMemory {
    tables: HostTables,
    ram: HostRam,
    fast: Option<Arc<FastPool>>,
}

impl HostMemory {
    /// Memory of the first node, with tables that are this owner's. `fast`: the machine's fast memory, if the VM uses it.
    ///
    /// # Safety
    /// VMs that use it have RAM only in frames that the frame allocator or the fast memory has given them, and give one of the fast memory
    /// back when no table leads there any more.
    pub unsafe fn new(owner: Owner, fast: Option<Arc<FastPool>>) -> HostMemory {
        // SAFETY: the caller's promise; beyond that only tables that were just taken from the fast memory are filled.
        HostMemory { tables: HostTables { node: Node(0), owner }, ram: unsafe { HostRam::new() }, fast }
    }

    /// The number of the VM whose tables these are.
    fn vm(&self) -> usize {
        match self.tables.owner {
            Owner::Vm(vm) => vm.into(),
            Owner::Host => 0,
        }
    }

    /// A table in fast memory.
    #[cold]
    fn allocate_fast(&self, pool: &FastPool) -> Option<Hfn> {
        let frame = pool.take_for_table(self.vm())?;
        // What its last owner has left there would be taken for entries.
        self.ram.fill(frame.base(), PAGE_SIZE, 0);
        if let Some(records) = frame_record::all() {
            records.assign_in(frame, 1, self.tables.owner, Kind::Table, TierFrames::FAST);
        }
        Some(frame)
    }

    /// Gives a table back that is in fast memory.
    #[cold]
    fn free_fast(&self, pool: &FastPool, frame: Hfn, number: u32) {
        // First: once it is free it may be another VM's.
        if let Some(records) = frame_record::all() {
            records.assign(frame, 1, Owner::Host, Kind::Other);
        }
        pool.give_back_table(self.vm(), number);
    }
}

impl TableMemory for HostMemory {
    fn allocate(&self) -> Option<Hfn> {
        let fast = self.fast.as_ref().and_then(|pool| self.allocate_fast(pool));
        fast.or_else(|| self.tables.allocate())
    }

    fn allocate_low(&self) -> Option<Hfn> {
        let fast = self.fast.as_ref().filter(|pool| pool.is_low()).and_then(|pool| self.allocate_fast(pool));
        fast.or_else(|| self.tables.allocate_low())
    }

    fn allocate_unwalked(&self) -> Option<Hfn> {
        self.tables.allocate()
    }

    fn free(&self, frame: Hfn) {
        match self.fast.as_ref().and_then(|pool| Some((pool, pool.number(frame)?))) {
            Some((pool, number)) => self.free_fast(pool, frame, number),
            None => self.tables.free(frame),
        }
    }

    fn load(&self, frame: Hfn, index: usize) -> u64 {
        self.tables.load(frame, index)
    }

    fn load_eight(&self, frame: Hfn, first: usize) -> [u64; 8] {
        self.tables.load_eight(frame, first)
    }

    fn store(&self, frame: Hfn, index: usize, value: u64) {
        self.tables.store(frame, index, value);
    }

    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        self.tables.compare_exchange(frame, index, old, new)
    }

    fn clear_in_eight(&self, frame: Hfn, first: usize, which: u8, bits: u64) {
        self.tables.clear_in_eight(frame, first, which, bits);
    }
}

impl HostAccess for HostMemory {
    fn read(&self, at: Hpa, buf: &mut [u8]) {
        self.ram.read(at, buf);
    }

    #[inline]
    fn load(&self, at: Hpa) -> u64 {
        self.ram.load(at)
    }

    fn write(&self, at: Hpa, buf: &[u8]) {
        self.ram.write(at, buf);
    }

    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        self.ram.fill(at, len, byte);
    }

    fn compare_exchange(&self, at: Hpa, size: usize, old: u64, new: u64) -> bool {
        self.ram.compare_exchange(at, size, old, new)
    }
}

/// The frame allocator as it lends memory for guests' RAM.
#[derive(Debug)]
pub struct Frames {
    ram: HostRam,
    owner: Owner,
}

impl Frames {
    /// All frames of the first node, for this owner.
    ///
    /// # Safety
    /// Users of frames give them back only after all tables that map them are gone.
    pub const unsafe fn new(owner: Owner) -> Frames {
        // SAFETY: only frames that were lent are filled.
        Frames { ram: unsafe { HostRam::new() }, owner }
    }
}

impl RamSource for Frames {
    fn take(&self, order: u8) -> Option<Hpa> {
        let start = frame::alloc(order, Node(0))?;
        if let Some(records) = frame_record::all() {
            records.assign(start.frame(), 1 << order, self.owner, Kind::Ram);
        }
        Some(start)
    }

    fn wipe(&self, block: Block) {
        // A block with a frame that its record assigns to another owner is not wiped.
        if let Some(frame) = frame_record::all()
            .and_then(|records| records.foreign(block.start.frame(), 1 << block.order, self.owner))
        {
            panic!("{} in the RAM of {:?} is not its own", frame.base(), self.owner);
        }
        self.ram.fill(block.start, block.bytes(), 0);
    }

    fn give_back(&self, block: Block) {
        // SAFETY: the guest is gone, and no table leads here any more: the promise of `new`.
        unsafe { frame::free(block.start, block.order) }
    }
}

/// Frames for the pager of one VM: those that were set aside for it, and after them any that are free.
#[derive(Debug)]
pub struct PagerFrames {
    ram: HostRam,
    owner: Owner,
    /// Frames that are set aside, and not taken.
    reserved: u64,
    /// Frames that were taken beyond them.
    beyond: u64,
}

impl PagerFrames {
    /// Sets frames aside for this owner. `None`: there are fewer.
    ///
    /// # Safety
    /// The pager gives frames back only after all tables that map them are gone.
    pub unsafe fn reserve(owner: Owner, frames: u64) -> Option<PagerFrames> {
        // SAFETY: only frames that were taken are read and written.
        frame::reserve(frames).then(|| PagerFrames {
            ram: unsafe { HostRam::new() },
            owner,
            reserved: frames,
            beyond: 0,
        })
    }
}

impl FrameMemory for PagerFrames {
    fn take(&mut self) -> Option<Hfn> {
        let start = match self.reserved.checked_sub(1) {
            Some(left) => {
                let start = frame::alloc_reserved()?;
                self.reserved = left;
                start
            }
            None => {
                let start = frame::alloc(0, Node(0))?;
                self.beyond += 1;
                start
            }
        };
        if let Some(records) = frame_record::all() {
            records.assign(start.frame(), 1, self.owner, Kind::Ram);
        }
        Some(start.frame())
    }

    fn give_back(&mut self, frame: Hfn) {
        // The next owner must not see what the guest had there.
        self.clear(frame);
        if let Some(left) = self.beyond.checked_sub(1) {
            self.beyond = left;
            // SAFETY: no table leads there any more: the promise of `reserve`.
            unsafe { frame::free(frame.base(), 0) };
        } else {
            self.reserved += 1;
            // SAFETY: as above.
            unsafe { frame::free_reserved(frame.base()) };
        }
    }

    fn read(&self, at: Hpa, buf: &mut [u8]) {
        self.ram.read(at, buf);
    }

    fn write(&self, at: Hpa, buf: &[u8]) {
        self.ram.write(at, buf);
    }

    fn clear(&self, frame: Hfn) {
        self.ram.fill(frame.base(), PAGE_SIZE, 0);
    }

    fn ticks(&self) -> u64 {
        cpu::rdtsc()
    }
}

impl Drop for PagerFrames {
    fn drop(&mut self) {
        frame::unreserve(self.reserved);
    }
}

/// Frames of a VM's RAM in both tiers, whose pages move between them.
#[derive(Debug)]
pub struct TierFrames {
    ram: HostRam,
    owner: Owner,
    pool: Arc<FastPool>,
}

impl TierFrames {
    /// What the record of a frame of fast memory says of its tier.
    const FAST: u8 = 1;

    /// Those of this owner.
    ///
    /// # Safety
    /// Only frames of the owner's RAM, and of the pool while they are the owner's, are copied and wiped.
    pub unsafe fn new(owner: Owner, pool: Arc<FastPool>) -> TierFrames {
        // SAFETY: the caller's promise.
        TierFrames { ram: unsafe { HostRam::new() }, owner, pool }
    }
}

impl CopyFrame for TierFrames {
    fn claim(&self, first: Hfn, frames: u64) {
        // Homes are the owner's all the time.
        let records = frame_record::all().filter(|_| self.pool.number(first).is_some());
        if let Some(records) = records {
            records.assign_in(first, frames, self.owner, Kind::Ram, Self::FAST);
        }
    }

    fn copy(&self, from: Hfn, to: Hfn) {
        self.ram.copy(from.base(), to.base(), PAGE_SIZE);
    }

    fn copy_all(&self, from: Hfn, to: Hfn, frames: u64) {
        self.ram.copy(from.base(), to.base(), frames * PAGE_SIZE);
    }

    fn copy_run(&self, from: Hfn, to: Hfn, frames: u64, stop: &AtomicU32) -> u64 {
        self.ram.copy_pages(from.base(), to.base(), frames, stop)
    }

    fn wipe(&self, frame: Hfn) {
        self.ram.fill(frame.base(), PAGE_SIZE, 0);
        if let Some(records) = frame_record::all() {
            records.assign(frame, 1, Owner::Host, Kind::Other);
        }
    }
}

/// The frame allocator as it gives pages to disks: not the last ones, which are the heap's.
#[derive(Debug)]
pub struct DiskPages;

impl Pages for DiskPages {
    fn take(&self) -> Option<&'static mut Page> {
        let frame = frame::alloc(0, Node(0))?;
        // SAFETY: the frame is mapped, as large as a page, and the caller's alone.
        Some(unsafe { &mut *(frame.0 as *mut Page) })
    }

    fn give_back(&self, page: &'static mut Page) {
        // A guest's data must not reach the next owner of the frame.
        page.fill(0);
        let frame = Hpa(&raw mut *page as u64);
        // SAFETY: `take` got it there, the last reference to it ends here, and no table ever led to it.
        unsafe { frame::free(frame, 0) }
    }
}

/// Machine memory that the boot loader's map does not mention, for disks: an emulator's, with a file behind it.
#[derive(Debug)]
pub struct UnmappedMemory<'a>(pub &'a BootInfo);

/// The machine memory that disks have now.
static TAKEN: Mutex<Vec<Range<u64>>> = Mutex::new(Vec::new());

impl Media for UnmappedMemory<'_> {
    fn take(&self, address: u64, bytes: u64) -> Result<Box<dyn Medium>, &'static str> {
        let range = address..address.checked_add(bytes).ok_or("it ends beyond the address space")?;
        let meets = |other: &Range<u64>| range.start < other.end && other.start < range.end;
        if self.0.regions.iter().any(|region| meets(&region.range)) {
            return Err(
                "the machine's memory map has something else there; name memory that it does not mention",
            );
        }
        let mut taken = TAKEN.lock();
        if taken.iter().any(meets) {
            return Err("another disk has that memory, perhaps of a guest that is just ending; try it again");
        }
        paging::map_memory(range.clone()).map_err(|_| "it cannot be mapped")?;
        taken.push(range.clone());
        Ok(Box::new(Taken(range)))
    }
}

/// Memory that is one disk's, until it is dropped.
#[derive(Debug)]
struct Taken(Range<u64>);

impl Medium for Taken {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped and stays so, no memory map has it, so that nothing else uses it, and `TAKEN` keeps it
        // for this value, which is borrowed.
        unsafe { slice::from_raw_parts(self.0.start as *const u8, (self.0.end - self.0.start) as usize) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and this value is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.0.start as *mut u8, (self.0.end - self.0.start) as usize) }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        TAKEN.lock().retain(|range| range.start != self.0.start);
    }
}
