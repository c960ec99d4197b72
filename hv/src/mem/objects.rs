//! Which object each page of a VM is of, for policies of page replacement that look at each object by itself
//! ([`apr`](crate::mem::replace::apr)).
//!
//! A page in a region that the guest has defined is of that region: one of its kernel's slab caches, or one allocation of a program
//! that uses the SDK. Of all other pages only their addresses are known, and each is of the range where it lies.
//!
//! [`region::guest`](crate::region::guest) writes, under the lock of the VM's regions; [`pager`](super::pager) and
//! [`tier`](super::tier) read when a page comes, under locks of their own. So the entries are atomic, and no order among them
//! matters: a page that a policy has keeps the object with which it came, and a wrong object costs time only.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU16, Ordering};

use abi::config::Replacement as Policy;
use abi::hypercall::REGIONS_MAX;

use crate::arch::addr::Gfn;
use crate::mem::pager::Span;
use crate::mem::pieces::{OutOfMemory, Pieces};
use crate::mem::replace::Object;
use crate::mem::replace::apr::OBJECTS;

/// The object of the first range: numbers of the guest's regions, from 1 on, are below it, and 0 is no object.
const FIRST_RANGE: u32 = REGIONS_MAX as u32 + 1;
/// Ranges at most, so that each object has a stack of its own.
const MOST_RANGES: u32 = OBJECTS - FIRST_RANGE;
/// Pages of a range at least, as a power of two: 2 MiB, which Linux hands out to one allocation where it can.
const LEAST_SHIFT: u32 = 9;

/// See the module.
#[derive(Debug)]
pub struct Objects {
    span: Span,
    /// The number of the guest's region that holds each page, or 0.
    regions: Pieces<AtomicU16>,
    /// Pages of a range, as a power of two.
    shift: u32,
}

impl Objects {
    /// Of a VM with its RAM at `span`; no page is in a region of the guest's.
    ///
    /// # Errors
    /// No memory: [`Objects::bytes_for`].
    pub fn new(span: Span) -> Result<Objects, OutOfMemory> {
        let pages = span.pages();
        let most = pages.saturating_sub(1);
        let shift = (LEAST_SHIFT..u32::BITS).find(|shift| most >> shift < MOST_RANGES);
        let regions = Pieces::new(pages as usize, AtomicU16::default)?;
        Ok(Objects { span, regions, shift: shift.unwrap_or(u32::BITS - 1) })
    }

    /// Whether a policy asks for objects.
    const fn are_for(policy: Policy) -> bool {
        matches!(policy, Policy::Apr)
    }

    /// Bytes of host memory that a policy's objects take for a VM of this many pages.
    pub const fn bytes_for(policy: Policy, pages: u64) -> u64 {
        if Self::are_for(policy) { pages * size_of::<AtomicU16>() as u64 } else { 0 }
    }

    /// The objects that a policy asks for.
    ///
    /// # Errors
    /// As [`Objects::new`].
    pub fn for_policy(policy: Policy, span: Span) -> Result<Option<Arc<Objects>>, OutOfMemory> {
        Self::are_for(policy).then(|| Objects::new(span).map(Arc::new)).transpose()
    }

    /// The object of a page, by the page's number in the VM's RAM.
    pub fn of(&self, number: u32) -> Object {
        let region = self.entry(number).map_or(0, |region| region.load(Ordering::Relaxed));
        Object(match region {
            0 => FIRST_RANGE + (number >> self.shift),
            region => region.into(),
        })
    }

    /// The same where a policy may ask for no objects: then the page is of none.
    pub fn object_of(objects: Option<&Arc<Objects>>, number: u32) -> Object {
        objects.map_or(Object::default(), |objects| objects.of(number))
    }

    /// A page is in this region of the guest's now, or (`None`) in none.
    pub fn set(&self, page: Gfn, region: Option<u16>) {
        if let Some(entry) = self.span.number(page).and_then(|number| self.entry(number)) {
            entry.store(region.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// All regions of the guest's are gone.
    pub fn clear(&self) {
        self.regions.iter().for_each(|region| region.store(0, Ordering::Relaxed));
    }

    fn entry(&self, number: u32) -> Option<&AtomicU16> {
        ((number as usize) < self.regions.len()).then(|| &self.regions[number as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(low: u32, high: u32) -> Objects {
        Objects::new(Span { low, high_start: Gfn(1 << 20), high }).expect("the test's own memory")
    }

    #[test]
    fn pages_are_of_their_region_or_of_their_range() {
        let objects = objects(2048, 1024);
        assert_eq!(objects.of(0), objects.of(511));
        assert_ne!(objects.of(511), objects.of(512));
        // Behind the gap the numbers go on.
        objects.set(Gfn((1 << 20) + 3), Some(256));
        objects.set(Gfn(600), Some(1));
        assert_eq!([objects.of(2048 + 3), objects.of(600)], [Object(256), Object(1)]);
        assert_eq!(objects.of(601), objects.of(512));
        objects.set(Gfn(600), None);
        assert_eq!(objects.of(600), objects.of(512));
        objects.clear();
        assert_eq!(objects.of(2048 + 3), objects.of(2048));
    }

    #[test]
    fn what_is_no_ram_is_left_alone() {
        let objects = objects(512, 0);
        objects.set(Gfn(512), Some(7));
        objects.set(Gfn(u64::MAX), Some(7));
        assert!((0..513).all(|number| objects.of(number) != Object(7)));
    }

    /// No page shares the stack that APR has for all objects beyond its table, and none is mistaken for one of a region.
    #[test]
    fn ranges_of_any_memory_have_stacks_of_their_own() {
        for pages in [1, 511, 512, 513, 200 << 8, MOST_RANGES << 9, (MOST_RANGES << 9) + 1, 1 << 22] {
            let objects = objects(pages, 0);
            for number in [0, pages / 2, pages - 1] {
                assert!((FIRST_RANGE..OBJECTS).contains(&objects.of(number).0), "{number} of {pages}");
            }
        }
    }
}
