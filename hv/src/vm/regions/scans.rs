//! Samples of a guest's accesses: accessed bits of its tables, read and cleared for the histories of its frames.
//!
//! There is one scan for all who want to know ([`Vm::sample`]), because it clears what it reads. It is taken in parts,
//! at each [`SAMPLE_NS`](crate::region::history::SAMPLE_NS) of the VM's virtual time, by whichever VCPU comes first. Parts are of bounded
//! length: on shadow tables the first ones go over the pages that were used, those that follow ask what was found.
//!
//! What must hold: bits that were cleared are set again by the next access. Processors that remember a translation do not set
//! them, so all that may must flush; the caller is told to, the others have by the time the call returns.

use core::ops::Range;

use arrayvec::ArrayVec;

use super::Records;
use crate::arch::addr::{Gfn, Gpa, Hfn, Hpa, PAGE_SHIFT, PageSize};
use crate::mem::table_memory::TableMemory;
use crate::paging::engine::Engine;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::nested_trees::NestedTrees;
use crate::paging::p2m::P2m;
use crate::paging::range::{Flush, GpaRange};
use crate::paging::shadow::{Shadow, TlbFlush};
use crate::paging::table::{AccessedGroup, AccessedLarge, Found, Touched};
use crate::paging::tree_key::TreeKey;
use crate::region::Space;
use crate::region::history::{AccessSource, Asked, GROUP, PIECE, Scan, TOGETHER};
use crate::vm::{HostMemory, MapChanges, Vm};

/// Pieces of 2 MiB and groups of 64 frames that one part of a sample looks at: 114 MiB if all of it was accessed, 1 GiB if nothing was.
const PART: u64 = 512;
/// Entries of shadow tables that one part of a sample looks at: leaves of 128 MiB.
const PART_ENTRIES: usize = 1 << 15;
/// Bytes of RAM for which the lock of the memory is held once to change leaves.
const PART_BYTES: u64 = 512 << 20;
/// Pieces that are looked at for one whose leaves are to be joined.
const JOIN_LOOKS: usize = 64;
/// Pages of a large leaf.
const LARGE: u64 = PIECE;
/// A bit for each group of a piece.
const ALL_GROUPS: u8 = u8::MAX;
/// Tables of a VM at most that are asked for large leaves: a nested set for each cache domain, the first, and that of a phase.
const TABLES: usize = 18;

/// What the large leaves said that were read last, by the set of nested tables: their bits are cleared at their first group, and count for the
/// others, too.
#[derive(Debug, Default)]
struct LargeLeaves(ArrayVec<(TreeKey, AccessedLarge), TABLES>);

impl LargeLeaves {
    /// What was said at a group before this one.
    fn known(&self, tables: TreeKey, at: Gpa) -> Option<AccessedLarge> {
        let (_, leaf) = self.0.iter().find(|(own, _)| *own == tables)?;
        (at != leaf.range.start && leaf.range.contains(at)).then_some(*leaf)
    }

    fn keep(&mut self, tables: TreeKey, leaf: AccessedLarge) {
        match self.0.iter_mut().find(|(own, _)| *own == tables) {
            Some((_, last)) => *last = leaf,
            None => _ = self.0.try_push((tables, leaf)),
        }
    }
}

/// What samples have cost so far, and what is kept between the parts of one.
#[derive(Debug, Default)]
pub struct Scans {
    /// Complete samples.
    pub samples: u64,
    /// Those after which the next one came later, as they took too long.
    pub put_off: u64,
    /// Groups of 64 frames that were visited.
    pub groups: u64,
    /// Frames whose histories have changed.
    pub changed: u64,
    /// Ticks of the host's TSC for all parts and joins, without the flushes that follow.
    pub ticks: u64,
    /// For the longest part, or the longest join.
    pub longest: u64,
    large: LargeLeaves,
    /// The address space whose sample was taken last, or a part of it.
    last: Option<Space>,
    /// That was of shadow tables, or of them, too.
    had_shadow: bool,
    /// Small leaves are being joined, from here on.
    joining: Option<Gpa>,
}

/// Accessed bits of the tables that the VM's VCPUs use. Agile paging uses both kinds.
pub(super) struct Tables<'a, F: PteFormat<Attr = NestedAttr>, M: TableMemory> {
    nested: Option<&'a NestedTrees<F, M>>,
    shadow: Option<(&'a P2m<M>, &'a mut Shadow<M, F>)>,
    large: &'a mut LargeLeaves,
    /// Entries of shadow tables that a part looks at.
    pub most_entries: usize,
    /// The 2 MiB that are asked for, if they lie side by side in host memory, and where.
    whole: Option<(Gpa, Hfn)>,
    /// Some bits of nested tables were cleared: processors must flush.
    pub nested_owe: bool,
    /// The same of shadow tables.
    pub shadow_owe: bool,
}

impl<'a, F: PteFormat<Attr = NestedAttr>, M: TableMemory> Tables<'a, F, M> {
    /// Of these tables, with what is kept from the part before.
    pub fn new(
        nested: Option<&'a NestedTrees<F, M>>,
        mut shadow: Option<(&'a P2m<M>, &'a mut Shadow<M, F>)>,
        scans: &'a mut Scans,
    ) -> Self {
        let had_shadow = core::mem::replace(&mut scans.had_shadow, shadow.is_some());
        if let Some((_, shadow)) = shadow.as_mut().filter(|_| !had_shadow) {
            // Another engine was in force, perhaps since the midst of a sample.
            shadow.tell_again();
        }
        let large = &mut scans.large;
        Tables {
            nested,
            shadow,
            large,
            most_entries: PART_ENTRIES,
            whole: None,
            nested_owe: false,
            shadow_owe: false,
        }
    }

    /// Whether something in the 2 MiB at `at` may have been accessed through nested tables.
    fn is_touched_nested(&mut self, at: Gpa) -> bool {
        let mut any = false;
        // All of them: each has a bit to be cleared.
        for (key, tree) in self.nested.iter().flat_map(|trees| trees.iter()) {
            if let Some(leaf) = self.large.known(key, at) {
                any |= leaf.is_accessed;
                continue;
            }
            let Touched { is_touched, owes } = tree.take_touched(at);
            self.nested_owe |= owes;
            any |= is_touched;
        }
        any
    }

    fn of_nested(&mut self, at: Gpa, Asked { wanted, last, is_second }: Asked) -> u64 {
        let mut accessed = 0;
        for (key, tree) in self.nested.iter().flat_map(|trees| trees.iter()) {
            if let Some(leaf) = self.large.known(key, at) {
                accessed |= leaf.pages(wanted, last);
                continue;
            }
            if let Some(leaf) = tree.joined_leaf(at).filter(|_| is_second) {
                accessed |= leaf.pages(wanted, last);
                continue;
            }
            match tree.take_accessed_group(at, wanted) {
                AccessedGroup::Small(found) => {
                    self.nested_owe |= found.any();
                    accessed |= found.pages(last);
                }
                AccessedGroup::Large(leaf) => {
                    self.nested_owe |= leaf.is_accessed;
                    self.large.keep(key, leaf);
                    accessed |= leaf.pages(wanted, last);
                }
            }
        }
        accessed
    }

    /// In which groups of 64 frames of the 2 MiB at `at` something was accessed through shadow tables, in a sample after that with the number
    /// `before`: a bit for each.
    fn touched_shadow(&mut self, at: Gpa, before: u64) -> u8 {
        let Some((p2m, shadow)) = &self.shadow else { return 0 };
        self.whole = p2m.memory_of_piece(at).map(|first| (at, first));
        if let Some((_, first)) = self.whole {
            return shadow.used_groups(first, before);
        }
        let (mut any, mut n) = (0, 0);
        while n < LARGE && any == 0 {
            let (entry, bytes) = p2m.run(Gpa(at.0 + (n << PAGE_SHIFT)), (LARGE - n) << PAGE_SHIFT);
            let mut pages = (bytes >> PAGE_SHIFT).max(1);
            if let Some(first) = entry.readable().map(Hpa::frame) {
                pages = pages.min(LARGE - first.0 % LARGE);
                any = shadow.used_groups(first, before);
            }
            n += pages;
        }
        // The frames are elsewhere than the guest's in their 2 MiB.
        if any == 0 { 0 } else { ALL_GROUPS }
    }

    /// Where the frames from `at` on are that lie side by side, `most` at most, and how many; `None`: they are in no memory.
    fn run(&self, at: Gpa, most: u64) -> (Option<Hfn>, u64) {
        let Some((p2m, _)) = &self.shadow else { return (None, most) };
        if let Some((start, first)) = self.whole
            && at.align_down(LARGE << PAGE_SHIFT) == start
        {
            return (Some(Hfn(first.0 + ((at.0 - start.0) >> PAGE_SHIFT))), most);
        }
        let (entry, bytes) = p2m.run(at, most << PAGE_SHIFT);
        (entry.readable().map(Hpa::frame), (bytes >> PAGE_SHIFT).max(1))
    }

    /// Shadow tables tell by frames of the host. Pages that are absent have none, and stay absent.
    fn of_shadow(&mut self, at: Gpa, wanted: u64) -> u64 {
        let (mut accessed, mut n) = (0, 0);
        while n < GROUP && self.shadow.is_some() {
            let (first, mut pages) = self.run(Gpa(at.0 + (n << PAGE_SHIFT)), GROUP - n);
            if let Some(first) = first
                && let Some((_, shadow)) = &mut self.shadow
            {
                pages = pages.min(LARGE - first.0 % LARGE);
                accessed |= shadow.take_used(first, wanted >> n & u64::MAX >> (GROUP - pages)) << n;
            }
            n += pages;
        }
        accessed
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: TableMemory> AccessSource for Tables<'_, F, M> {
    fn begin(&mut self, number: u64, is_first: bool) -> bool {
        let Some((_, shadow)) = &mut self.shadow else { return true };
        let done = shadow.collect_sample(number, is_first, self.most_entries);
        self.shadow_owe |= done.owes;
        done.is_complete
    }

    fn touched(&mut self, first: Gfn, before: u64) -> u8 {
        let nested = if self.is_touched_nested(first.base()) { ALL_GROUPS } else { 0 };
        nested | self.touched_shadow(first.base(), before)
    }

    fn is_idle(&self, first: Gfn, before: u64) -> bool {
        let is_idle_shadow = self.shadow.as_ref().is_none_or(|(p2m, shadow)| {
            let is_idle = |frame| shadow.used_groups(frame, before) == 0;
            p2m.are_large_leaves(first.base(), TOGETHER, is_idle)
        });
        let mut trees = self.nested.iter().flat_map(|trees| trees.iter());
        is_idle_shadow && trees.all(|(_, tree)| tree.is_idle(first.base(), TOGETHER))
    }

    fn take_accessed(&mut self, first: Gfn, asked: Asked) -> u64 {
        self.of_nested(first.base(), asked) | self.of_shadow(first.base(), asked.wanted)
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
            scans.large = LargeLeaves::default();
        }
        let engine = self.translation.in_force();
        let (scan, nested_owes, shadow_owes) = {
            let memory = self.read_memory(work);
            let mut shadow = engine.is_shadow().then(|| self.lock_shadow(vcpu, work));
            let nested = (engine != Engine::Shadow).then_some(&memory.nested);
            let shadow = shadow.as_mut().and_then(|shadow| shadow.as_mut());
            let mut source = Tables::new(nested, shadow.map(|shadow| (&memory.p2m, shadow)), scans);
            let scan = guest.partition_mut().scan(space, now_ns, &mut source, PART);
            let shadow_owes = match source.shadow {
                Some((_, shadow)) if source.shadow_owe => shadow.flush_accessed() != TlbFlush::None,
                _ => false,
            };
            let nested_owes = source.nested_owe;
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

    /// Samples have told enough of single pages: walks are to be short again, until [`Vm::tell_of_pages`]. [`Vm::join_part`] sees to it. Not
    /// where memory tiers or the pager ask for single pages at any time.
    pub fn join_leaves(&self, scans: &mut Scans) {
        if self.tiers.is_none() && self.pager.is_none() {
            scans.joining = Some(Gpa(0));
        }
    }

    /// Joins the small leaves of one more piece of 2 MiB. The caller's processor must flush. Not where a piece has frames of several address
    /// spaces: the samples of each would clear the one bit, and those of the others find it idle. The VM's leave it alone
    /// ([`Asked::is_second`]).
    pub fn join_part(&self, work: &mut u32, records: &mut Records) -> MapChanges {
        let Records { guest, scans, .. } = records;
        let Some(from) = scans.joining.take() else { return MapChanges::default() };
        let frames = |piece: GpaRange| piece.start.frame()..piece.end.frame();
        let (flush, retired, host) = {
            let mut memory = self.lock_memory(work);
            let mut flush = Flush::None;
            for piece in pieces(self.layout.ram(), from).take(JOIN_LOOKS) {
                scans.joining = Some(piece.end);
                // Large ones are passed over.
                if memory.nested.iter().any(|(_, tree)| is_small(tree.find(piece.start))) {
                    let partition = guest.partition();
                    flush = memory.nested.join_pieces(piece, |piece| partition.has_one_clock(frames(piece)));
                    break;
                }
            }
            (flush, memory.nested.take_retired(), memory.host.clone())
        };
        if !flush.is_none() {
            self.tell_others(work);
        }
        retired.free(&host);
        MapChanges { flush: !flush.is_none(), root: false }
    }

    /// Has samples tell of single pages again where small leaves were joined.
    pub fn tell_of_pages(&self, work: &mut u32, scans: &mut Scans) {
        scans.joining = None;
        for range in parts(self.layout.ram()) {
            self.lock_memory(work).nested.split_joined(range);
        }
    }
}

/// Whether an entry of nested tables tells of one page.
fn is_small(found: Found<NestedAttr>) -> bool {
    matches!(found, Found::Leaf(leaf) if leaf.size == PageSize::Size4K)
}

/// The pieces of 2 MiB of RAM from an address on: whole ones, as others have no large leaf.
fn pieces(ram: impl IntoIterator<Item = Range<Gpa>>, from: Gpa) -> impl Iterator<Item = GpaRange> {
    const SIZE: u64 = PageSize::Size2M.bytes();
    ram.into_iter().flat_map(move |ram| {
        let first = ram.start.max(from).0.div_ceil(SIZE);
        let pieces = first..(ram.end.0 / SIZE).max(first);
        pieces.map(|n| GpaRange { start: Gpa(n * SIZE), end: Gpa((n + 1) * SIZE) })
    })
}

/// Ranges of RAM for each of which the lock of the memory is held once, as for a part of a sample.
pub(super) fn parts(ram: impl IntoIterator<Item = Range<Gpa>>) -> impl Iterator<Item = GpaRange> {
    ram.into_iter().flat_map(|ram| {
        let starts = (ram.start.0..ram.end.0).step_by(PART_BYTES as usize);
        starts.map(move |start| GpaRange {
            start: Gpa(start),
            end: Gpa(start.saturating_add(PART_BYTES)).min(ram.end),
        })
    })
}

impl Scans {
    /// The sample is complete.
    pub(super) fn end_sample(&mut self) {
        self.samples += 1;
        // Sets of tables may come and go until the next one.
        self.large = LargeLeaves::default();
    }

    /// Whether [`Vm::join_part`] is to be called.
    pub fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// A part of a sample, or a join, has taken this many ticks.
    pub fn took(&mut self, ticks: u64) {
        self.ticks = self.ticks.wrapping_add(ticks);
        self.longest = self.longest.max(ticks);
    }
}

#[cfg(test)]
mod engines;
#[cfg(test)]
mod tests;
