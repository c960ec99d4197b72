//! Samples of a guest's accesses: accessed bits of its tables, read and cleared for the histories of its frames.
//!
//! There is one scan for all who want to know ([`Vm::sample`]), because it clears what it reads. It is taken in parts of bounded
//! length, at each [`SAMPLE_NS`](crate::region::history::SAMPLE_NS) of the VM's virtual time, by whichever VCPU comes first.
//!
//! What must hold: bits that were cleared are set again by the next access. Processors that remember a translation do not set
//! them, so all that may must flush; the caller is told to, the others have by the time the call returns.

use arrayvec::ArrayVec;

use super::Records;
use crate::arch::addr::Gfn;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::nested_trees::NestedTrees;
use crate::paging::range::GpaRange;
use crate::paging::table::AccessedGroup;
use crate::paging::tree_key::TreeKey;
use crate::region::Space;
use crate::region::history::{AccessSource, Scan};
use crate::vm::{HostMemory, MapChanges, Vm};

/// Groups of 64 frames that one part of a sample visits: 512 MiB.
const PART: u64 = 2048;
/// Sets of tables of a VM at most: one for each cache domain, the first, and that of a phase.
const TREES: usize = 18;

/// What samples have cost so far, and what is kept between the parts of one.
#[derive(Debug, Default)]
pub struct Scans {
    /// Complete samples.
    pub samples: u64,
    /// Groups of 64 frames that were visited.
    pub groups: u64,
    /// Frames whose histories have changed.
    pub changed: u64,
    /// Ticks of the host's TSC for all parts, without the flushes that follow.
    pub ticks: u64,
    /// For the longest part.
    pub longest: u64,
    /// The large leaf that was read last in each set of tables, and whether it was accessed: its bit is cleared at its first group,
    /// and counts for the others, too.
    large: ArrayVec<(TreeKey, GpaRange, bool), TREES>,
}

/// Accessed bits of all sets of nested tables of a VM.
pub(super) struct NestedAccess<'a, F: PteFormat<Attr = NestedAttr>, M: TableMemory> {
    trees: &'a NestedTrees<F, M>,
    large: &'a mut ArrayVec<(TreeKey, GpaRange, bool), TREES>,
    /// Some bits were cleared.
    has_cleared: bool,
}

impl<'a, F: PteFormat<Attr = NestedAttr>, M: TableMemory> NestedAccess<'a, F, M> {
    /// Of these tables, with what is kept from the part before.
    pub fn new(trees: &'a NestedTrees<F, M>, scans: &'a mut Scans) -> Self {
        NestedAccess { trees, large: &mut scans.large, has_cleared: false }
    }

    /// Whether processors must flush: some bits were cleared.
    pub fn has_cleared(&self) -> bool {
        self.has_cleared
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: TableMemory> AccessSource for NestedAccess<'_, F, M> {
    fn take_accessed(&mut self, first: Gfn, wanted: u64) -> u64 {
        let (mut accessed, at) = (0, first.base());
        for (key, tree) in self.trees.iter() {
            let known = self.large.iter().position(|(own, ..)| *own == key);
            if let Some(n) = known
                && let (_, range, found) = self.large[n]
                && at != range.start
                && range.contains(at)
            {
                accessed |= if found { wanted } else { 0 };
                continue;
            }
            match tree.take_accessed(at, wanted) {
                AccessedGroup::Small(found) => {
                    self.has_cleared |= found != 0;
                    accessed |= found;
                }
                AccessedGroup::Large(range, found) => {
                    self.has_cleared |= found;
                    if let Some(n) = known {
                        self.large[n] = (key, range, found);
                    } else {
                        let _there_are_no_more_sets = self.large.try_push((key, range, found));
                    }
                    accessed |= if found { wanted } else { 0 };
                }
            }
        }
        accessed
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Takes a sample of the VM at this virtual time of its, or goes on with it, on behalf of a VCPU. The other VCPUs have flushed what
    /// that owes; the caller must.
    pub fn sample(&self, work: &mut u32, records: &mut Records, vm_ns: u64) -> (Scan, MapChanges) {
        let Records { guest, scans, .. } = records;
        let (scan, has_cleared) = {
            let memory = self.read_memory(work);
            let mut source = NestedAccess::new(&memory.nested, scans);
            let scan = guest.partition_mut().scan(Space::VM, vm_ns, &mut source, PART);
            (scan, source.has_cleared())
        };
        scans.groups += scan.groups;
        scans.changed += scan.changed;
        if scan.is_complete {
            scans.end_sample();
        }
        if has_cleared {
            self.tell_others(work);
        }
        (scan, MapChanges { flush: has_cleared, root: false })
    }
}

impl Scans {
    /// The sample is complete.
    pub(super) fn end_sample(&mut self) {
        self.samples += 1;
        // Sets of tables may come and go until the next one.
        self.large.clear();
    }

    /// A part has taken so many ticks.
    pub fn took(&mut self, ticks: u64) {
        self.ticks = self.ticks.wrapping_add(ticks);
        self.longest = self.longest.max(ticks);
    }
}
