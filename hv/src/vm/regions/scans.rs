//! Samples of a guest's accesses: accessed bits of its tables, read and cleared for the histories of its frames.
//!
//! There is one scan for all who want to know ([`Vm::sample`]), because it clears what it reads. It is taken in parts of bounded
//! length, at each [`SAMPLE_NS`](crate::region::history::SAMPLE_NS) of the VM's virtual time, by whichever VCPU comes first.
//!
//! What must hold: bits that were cleared are set again by the next access. Processors that remember a translation do not set
//! them, so all that may must flush; the caller is told to, the others have by the time the call returns.

use core::ops::Range;

use arrayvec::ArrayVec;

use super::Records;
use crate::arch::addr::{Gfn, Gpa, PAGE_SHIFT};
use crate::mem::table_memory::TableMemory;
use crate::paging::engine::Engine;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::nested_trees::NestedTrees;
use crate::paging::p2m::P2m;
use crate::paging::range::GpaRange;
use crate::paging::shadow::{LargeLeaves, Shadow, TlbFlush};
use crate::paging::table::{AccessedGroup, AccessedLarge};
use crate::paging::tree_key::TreeKey;
use crate::region::Space;
use crate::region::history::{AccessSource, GROUP, Scan};
use crate::region::partition::Partition;
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
    /// The large leaf that was read last in each set of tables: its bit is cleared at its first group, and counts for the others, too.
    large: ArrayVec<(TreeKey, AccessedLarge), TREES>,
    /// The address space whose sample was taken last, or a part of it.
    last: Option<Space>,
}

/// Accessed bits of all sets of nested tables of a VM.
pub(super) struct NestedAccess<'a, F: PteFormat<Attr = NestedAttr>, M: TableMemory> {
    trees: &'a NestedTrees<F, M>,
    large: &'a mut ArrayVec<(TreeKey, AccessedLarge), TREES>,
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
    fn take_accessed(&mut self, first: Gfn, wanted: u64, last: u64) -> u64 {
        let (mut accessed, at) = (0, first.base());
        for (key, tree) in self.trees.iter() {
            let known = self.large.iter().position(|(own, _)| *own == key);
            if let Some(n) = known
                && let (_, leaf) = self.large[n]
                && at != leaf.range.start
                && leaf.range.contains(at)
            {
                accessed |= leaf.pages(wanted, last);
                continue;
            }
            match tree.take_accessed_group(at, wanted) {
                AccessedGroup::Small(found) => {
                    self.has_cleared |= found.any();
                    accessed |= found.pages(last);
                }
                AccessedGroup::Large(leaf) => {
                    self.has_cleared |= leaf.is_accessed;
                    if let Some(n) = known {
                        self.large[n] = (key, leaf);
                    } else {
                        let _there_are_no_more_sets = self.large.try_push((key, leaf));
                    }
                    accessed |= leaf.pages(wanted, last);
                }
            }
        }
        accessed
    }
}

/// Accessed bits of the tables that the VM's VCPUs use. Agile paging uses both kinds.
struct BothAccess<'a, F: PteFormat<Attr = NestedAttr>, M: TableMemory> {
    p2m: &'a P2m<M>,
    nested: Option<NestedAccess<'a, F, M>>,
    shadow: Option<&'a mut Shadow<M, F>>,
    large: LargeLeaves,
    /// Some bits of shadow tables were cleared.
    has_cleared: bool,
}

impl<F: PteFormat<Attr = NestedAttr>, M: TableMemory> AccessSource for BothAccess<'_, F, M> {
    fn take_accessed(&mut self, first: Gfn, wanted: u64, last: u64) -> u64 {
        let nested = self.nested.as_mut().map_or(0, |nested| nested.take_accessed(first, wanted, last));
        let Some(shadow) = &mut self.shadow else { return nested };
        let mut taken = |n: u64| {
            let hpa = self.p2m.peek(Gfn(first.0 + n).base()).readable();
            hpa.is_some_and(|hpa| shadow.take_accessed(hpa.frame(), &mut self.large))
        };
        let found = (0..64).filter(|n| wanted >> n & 1 == 1 && taken(*n)).fold(0, |all, n| all | 1 << n);
        self.has_cleared |= found != 0;
        nested | found
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Takes a sample of an address space at this virtual time of its, or goes on with it, on behalf of a VCPU. The other VCPUs have
    /// flushed what that owes; the caller must.
    pub fn sample(
        &self,
        vcpu: u32,
        work: &mut u32,
        records: &mut Records,
        space: Space,
        now_ns: u64,
    ) -> (Scan, MapChanges) {
        let Records { guest, scans, .. } = records;
        if scans.last.replace(space) != Some(space) {
            // What is kept was read of another one's frames.
            scans.large.clear();
        }
        let engine = self.translation.in_force();
        let (scan, nested_owes, shadow_owes) = {
            let memory = self.read_memory(work);
            let mut shadow = engine.is_shadow().then(|| self.lock_shadow(vcpu, work));
            let mut source = BothAccess {
                p2m: &memory.p2m,
                nested: (engine != Engine::Shadow).then(|| NestedAccess::new(&memory.nested, scans)),
                shadow: shadow.as_mut().and_then(|shadow| shadow.as_mut()),
                large: LargeLeaves::default(),
                has_cleared: false,
            };
            let scan = guest.partition_mut().scan(space, now_ns, &mut source, PART);
            let nested_owes = source.nested.as_ref().is_some_and(NestedAccess::has_cleared);
            let shadow_owes = match source.shadow {
                Some(shadow) if source.has_cleared => shadow.flush_accessed() != TlbFlush::None,
                _ => false,
            };
            (scan, nested_owes, shadow_owes)
        };
        scans.groups += scan.groups;
        scans.changed += scan.changed;
        if scan.is_complete {
            scans.end_sample();
        }
        if nested_owes {
            self.tell_others(work);
        }
        (scan, MapChanges { flush: nested_owes || shadow_owes, root: false })
    }

    /// Samples have told enough of single pages: walks are to be short again, until [`Vm::tell_of_pages`]. The caller's processor must flush.
    /// Not where memory tiers or the pager ask for single pages at any time, nor where a piece has frames of several address spaces: the
    /// samples of each would clear the one bit, and those of the others find it idle.
    pub fn join_leaves(&self, work: &mut u32, partition: &Partition) -> MapChanges {
        let mut changes = MapChanges::default();
        if self.tiers.is_some() || self.pager.is_some() {
            return changes;
        }
        let frames = |piece: GpaRange| piece.start.frame()..piece.end.frame();
        for range in parts(self.layout.ram()) {
            let (flush, retired, host) = {
                let mut memory = self.lock_memory(work);
                let flush = memory.nested.join_pieces(range, |piece| partition.has_one_clock(frames(piece)));
                (flush, memory.nested.take_retired(), memory.host.clone())
            };
            if !flush.is_none() {
                self.tell_others(work);
                changes.flush = true;
            }
            retired.free(&host);
        }
        changes
    }

    /// Has samples tell of single pages again where small leaves were joined.
    pub fn tell_of_pages(&self, work: &mut u32) {
        for range in parts(self.layout.ram()) {
            self.lock_memory(work).nested.split_joined(range);
        }
    }
}

/// Ranges of RAM for each of which the lock of the memory is held once, as for a part of a sample.
pub(super) fn parts(ram: impl IntoIterator<Item = Range<Gpa>>) -> impl Iterator<Item = GpaRange> {
    const BYTES: u64 = PART * (GROUP << PAGE_SHIFT);
    ram.into_iter().flat_map(|ram| {
        let starts = (ram.start.0..ram.end.0).step_by(BYTES as usize);
        starts.map(move |start| GpaRange {
            start: Gpa(start),
            end: Gpa(start.saturating_add(BYTES)).min(ram.end),
        })
    })
}

impl Scans {
    /// The sample is complete.
    pub(super) fn end_sample(&mut self) {
        self.samples += 1;
        // Sets of tables may come and go until the next one.
        self.large.clear();
    }

    /// A part has taken this many ticks.
    pub fn took(&mut self, ticks: u64) {
        self.ticks = self.ticks.wrapping_add(ticks);
        self.longest = self.longest.max(ticks);
    }
}

#[cfg(test)]
mod tests;
