//! The hypervisor's own page tables: every address maps to itself, but for code and constants that are in fast memory.
//!
//! RAM is cached, readable and writable; of the image, code is executable and not writable, constants neither, and
//! only code is executable at all. Page 0 and the page below the boot stack are not mapped. Everything else below
//! 4 GiB is taken for devices and mapped uncached; what lies above is mapped on request. The decision is explained in
//! docs/design/0001-host-memory.md.

use core::ops::Range;

use spin::Mutex;

use super::memory::{HIGHEST, Ranges};
use super::{image, percpu, processor};
use crate::arch::addr::{Gpa, Hpa, PAGE_SIZE, PageSize};
use crate::firmware::info::LoaderMemory;
use crate::hw::cpu;
use crate::mem::tables::HostTables;
use crate::paging::format::x86::{LongMode, PageAttr};
use crate::paging::range::{Flush, GpaRange};
use crate::paging::table::{Found, MapError, Table};

/// Devices live below this address unless they say otherwise.
const FOUR_GIB: u64 = 4 << 30;

const RAM: PageAttr = PageAttr { write: true, user: false, execute: false, global: false, pat: 0 };
const CONSTANT: PageAttr = PageAttr { write: false, ..RAM };
const CODE: PageAttr = PageAttr { write: false, execute: true, ..RAM };
/// Entry 3 of the PAT as reset leaves it: uncacheable.
const DEVICE: PageAttr = PageAttr { pat: 3, ..RAM };
/// The entry of the PAT that `boot::processor` sets.
const WRITE_COMBINING: PageAttr = PageAttr { pat: processor::WRITE_COMBINING, ..RAM };

static TABLES: Mutex<Option<Table<LongMode, HostTables>>> = Mutex::new(None);

/// The pages that `range` touches.
fn pages(range: &Range<u64>) -> Result<GpaRange, MapError> {
    let start = Gpa(range.start).align_down(PAGE_SIZE);
    let end = Gpa(range.end).align_up(PAGE_SIZE).ok_or(MapError::Address)?;
    GpaRange::new(start, end.0 - start.0).ok_or(MapError::Address)
}

/// Builds the tables for this RAM and switches to them. `fast`: faster memory for code and constants, which are copied there and have the
/// addresses that they had.
///
/// # Safety
/// Once, on the boot tables; `ram` is RAM. They map `fast`, which has no other use from now on.
pub unsafe fn start(ram: &Ranges, fast: Option<Range<u64>>) -> Result<(), MapError> {
    let gigabyte_pages = cpu::cpuid(0x8000_0001, 0).edx & 1 << 26 != 0;
    let largest = if gigabyte_pages { PageSize::Size1G } else { PageSize::Size2M };
    let mut tables = Table::new(HostTables::default(), largest)?;
    let mut map_at = |range: Range<u64>, at: u64, attr| {
        // Nothing uses these tables yet: there is nothing to flush.
        tables.map(pages(&range)?, Hpa(at), attr).map(|_: Flush| ())
    };
    let mut map = |range: Range<u64>, attr| map_at(range.clone(), range.start & !(PAGE_SIZE - 1), attr);
    let mut end = 0;
    for range in ram.iter() {
        if end < FOUR_GIB {
            map(end..range.start.min(FOUR_GIB).max(end), DEVICE)?;
        }
        map(range.clone(), RAM)?;
        end = range.end;
    }
    map(end.min(FOUR_GIB)..FOUR_GIB, DEVICE)?;
    // Over the RAM that holds it: the mapper splits the large leaf.
    map(image::data(), RAM)?;
    let image = image::constant();
    let at = fast.as_ref().map_or(image.start, |fast| fast.start);
    if let Some(fast) = &fast {
        let from = image.start as *const u8;
        // SAFETY: the caller's promise; nothing writes what is copied.
        unsafe {
            core::ptr::copy_nonoverlapping(from, fast.start as *mut u8, (image.end - image.start) as usize)
        };
        // There is no second way to write it.
        map(fast.clone(), CONSTANT)?;
    }
    map_at(image::text(), at, CODE)?;
    map_at(image::rodata(), at + (image::rodata().start - image.start), CONSTANT)?;
    for page in [0, image::stack_guard()] {
        let _: Flush = tables.unmap(GpaRange::page(Gpa(page)))?;
    }
    // SAFETY: code, data and stack stay where they were.
    unsafe { cpu::set_cr3(tables.root().base().0) };
    *TABLES.lock() = Some(tables);
    Ok(())
}

/// The root of the tables, for other PCPUs.
pub fn root() -> Option<Hpa> {
    TABLES.lock().as_ref().map(|tables| tables.root().base())
}

/// Makes sure that `range` can be accessed: what is not mapped yet is mapped as device memory. Fails for page 0,
/// for guard pages, and beyond [`HIGHEST`].
pub fn map_device(range: Range<u64>) -> Result<(), MapError> {
    map_missing(range, DEVICE)
}

/// The same for memory that the boot loader's map does not mention: cached, as RAM is.
pub fn map_memory(range: Range<u64>) -> Result<(), MapError> {
    map_missing(range, RAM)
}

fn map_missing(range: Range<u64>, attr: PageAttr) -> Result<(), MapError> {
    let range = pages(&range)?;
    let forbidden = |page| range.contains(Gpa(page));
    if forbidden(0) || percpu::guards().any(forbidden) || range.end.0 > HIGHEST {
        return Err(MapError::Address);
    }
    let mut tables = TABLES.lock();
    let tables = tables.as_mut().ok_or(MapError::Address)?;
    let mut at = range.start;
    while at < range.end {
        at = match tables.walk(at) {
            // Mapped already, perhaps as RAM: what an access by two memory types does is undefined.
            Found::Leaf(leaf) => leaf.range().end,
            Found::Hole(hole) => {
                let hole = hole.intersect(range);
                // Not present before: processors cache no such thing.
                let _: Flush = tables.map(hole, Hpa(hole.start.0), attr)?;
                hole.end
            }
        };
    }
    Ok(())
}

/// Takes away a page below a stack.
pub fn unmap_guard(page: u64) -> Result<(), MapError> {
    let mut tables = TABLES.lock();
    let tables = tables.as_mut().ok_or(MapError::Address)?;
    let _: Flush = tables.unmap(GpaRange::page(Gpa(page)))?;
    // SAFETY: the same tables again: the flush that the line above asks for. PCPUs that have started keep
    // what they cached, which is harmless: only this PCPU uses the page.
    unsafe { cpu::set_cr3(tables.root().base().0) };
    Ok(())
}

/// Maps video memory, write-combining if the processor has a PAT. The boot processor's, which must have been started.
pub fn map_video(range: Range<u64>) -> Result<(), MapError> {
    map_device(range.clone())?;
    if processor::has_pat() {
        let range = pages(&range)?;
        let mut tables = TABLES.lock();
        let tables = tables.as_mut().ok_or(MapError::Address)?;
        let _: Flush = tables.map(range, Hpa(range.start.0), WRITE_COMBINING)?;
        // SAFETY: the same tables again: the flush that the line above asks for.
        unsafe { cpu::set_cr3(tables.root().base().0) };
    }
    Ok(())
}

/// All memory that these tables can reach: for reading firmware's tables.
pub struct HostMemory;

impl LoaderMemory for HostMemory {
    fn bytes(&self, at: u64, len: u64) -> Option<&[u8]> {
        let end = at.checked_add(len)?;
        map_device(at..end).ok()?;
        // SAFETY: mapped, and firmware's tables do not change.
        Some(unsafe { core::slice::from_raw_parts(at as *const u8, len as usize) })
    }
}
