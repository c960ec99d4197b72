//! Moves pages of a VM between slow and fast memory: what [`Tiers`] decides leaves the P2m, the tables and all
//! processors, is copied, and comes back elsewhere.
//!
//! Called by `vcpu::regions` for a VCPU of the VM, with the VM's regions locked, so that one VCPU does it at a time. The order of a batch,
//! which must hold (docs/design/0030-memory-tiers.md):
//!
//! 1. With the memory locked for writing: pages become absent in the P2m and in the nested tables.
//! 2. Shadow tables follow, and all processors flush. Until then stores still reach the old frames; an access that finds the page absent
//!    leaves it there.
//! 3. Pages are copied and become present in their new frames, by this code, or by an access that
//!    comes first.
//!
//! A VM moves its own pages only, so that what its one VCPU has found without the memory's lock ([`Vm::code`]) stays.

mod pieces;

use alloc::vec::Vec;

use arrayvec::ArrayVec;

use records::tiers::WINDOWS;

use super::regions::Records;
use super::{HostMemory, MapChanges, Memory, Vm};
use crate::arch::addr::{Gfn, Hpa, PageSize};
use crate::mem::tier::migration::{Move, Way};
use crate::mem::tier::policy::Histogram;
use crate::mem::tier::{BATCH, Grain, Heat, Outcome, Tiers, Wish};
use crate::paging::engine::Engine;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::range::{Changed, Flush, GpaRange};
use crate::paging::shadow::{Shadow, TlbFlush};
use crate::paging::table::Found;
use crate::region::history::Histories;

/// Pages of a large leaf.
const LARGE: u64 = 512;

/// What samples and tables say of pages.
struct Seen<'a, F: PteFormat<Attr = NestedAttr>, M: HostMemory> {
    histories: &'a Histories,
    memory: &'a Memory<F, M>,
    /// Those in force.
    nested: bool,
    shadow: Option<&'a Shadow<M, F>>,
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Heat for Seen<'_, F, M> {
    fn history(&self, page: Gfn) -> u32 {
        self.histories.history(page).unwrap_or(0)
    }

    fn hot(&self, first: Gfn, least: u8) -> u64 {
        self.histories.frequent(first, least)
    }

    fn recent(&self, first: Gfn) -> [u64; WINDOWS] {
        self.histories.recent(first)
    }

    fn grain(&self, page: Gfn) -> Grain {
        let frame = || self.memory.p2m.peek(page.base()).readable().map(Hpa::frame);
        // Shadow tables have large leaves only for what is in one piece.
        if let Some(shadow) = self.shadow
            && frame().is_some_and(|frame| shadow.has_large_leaf(frame))
        {
            return Grain::Large;
        }
        if !self.nested {
            return Grain::Page;
        }
        let is_small = |found| match found {
            Found::Leaf(leaf) => leaf.size == PageSize::Size4K,
            Found::Hole(_) => true,
        };
        let mut trees = self.memory.nested.iter().filter(|(_, tree)| !tree.is_for_phase());
        if trees.all(|(_, tree)| is_small(tree.find(page.base()))) { Grain::Page } else { Grain::Large }
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Decides what moves, after a complete sample, and has large leaves split whose pages look hot.
    pub fn tier_pass(&self, vcpu: u32, work: &mut u32, records: &mut Records) -> MapChanges {
        let Some(tiers) = &self.tiers else { return MapChanges::default() };
        let partition = records.guest.partition();
        let Some(histories) = partition.histories() else { return MapChanges::default() };
        // Samples tell of all.
        let least = if self.sampling.is_on() { 1 } else { tiers.least_of_interest() };
        let histogram: Histogram = histories.histogram(least);
        let quarters: u64 = partition.regions().map(|(rid, _)| histories.working_set(rid)).sum();
        let working_set = u32::try_from(quarters / 4).unwrap_or(u32::MAX);
        let splits = {
            let memory = self.read_memory(work);
            let engine = self.translation.in_force();
            let shadow = engine.is_shadow().then(|| self.lock_shadow(vcpu, work));
            let shadow = shadow.as_ref().and_then(|shadow| shadow.as_ref());
            let seen = Seen { histories, memory: &memory, nested: engine != Engine::Shadow, shadow };
            let splits = tiers.pass(&seen, &histogram, working_set);
            if self.sampling.is_on() {
                tiers.draw_map(&seen, &histogram);
            }
            splits
        };
        if splits.is_empty() {
            return MapChanges::default();
        }
        let frames = splits.iter().flat_map(|first| (first.0..first.0 + LARGE).map(Gfn));
        records.guest.partition_mut().clear_histories(frames);
        self.split_leaves(vcpu, work, &splits)
    }

    /// Has all leaves that lead to these pieces tell of each page by itself, where there is memory for that: those of the P2m, which shadow
    /// tables go by, and the engines' own. Translations stay the same.
    fn split_leaves(&self, vcpu: u32, work: &mut u32, pieces: &[Gfn]) -> MapChanges {
        let mut memory = self.lock_memory(work);
        let Memory { p2m, nested, .. } = &mut *memory;
        for page in pieces {
            let _stays_large = p2m.split(GpaRange::page(page.base()), PageSize::Size4K);
            nested.keep_small(*page);
        }
        let frames = pieces.iter().filter_map(|page| p2m.peek(page.base()).readable().map(Hpa::frame));
        match &mut *self.lock_shadow(vcpu, work) {
            Some(shadow) => {
                MapChanges { flush: shadow.drop_large_leaves(frames) != TlbFlush::None, root: false }
            }
            None => MapChanges::default(),
        }
    }

    /// Moves the next piece of 2 MiB, or the next batch of pages, on behalf of this VCPU; what that leaves for it to do. Waits like [`Vm::lock_shadow`].
    #[cold]
    pub fn tier_batch(&self, vcpu: u32, work: &mut u32) -> MapChanges {
        let Some(tiers) = &self.tiers else { return MapChanges::default() };
        if let Some(moving) = tiers.moving() {
            return self.go_on(tiers, &moving, vcpu, work);
        }
        if let Some(wish) = tiers.next_piece() {
            return self.do_task(tiers, &wish, vcpu, work);
        }
        // Without other processors a batch has nothing to share.
        let wishes = tiers.batch(if self.shootdown.get().is_some() { BATCH } else { 1 });
        let mut outcomes = [Outcome::Pinned; BATCH];
        let changes = match self.take_out(tiers, &wishes, &mut outcomes, vcpu, work) {
            None => MapChanges::default(),
            Some(changes) => {
                tiers.migration.forgotten();
                loop {
                    // For each page: others want the memory, too.
                    let memory = self.read_memory(work);
                    let attach = &mut |page: Gfn, frame, is_clean| {
                        memory.p2m.attach_moved(page.base(), frame, is_clean);
                    };
                    if !tiers.migration.copy_one(attach) {
                        break changes;
                    }
                }
            }
        };
        tiers.migration.end(|page, moved| {
            if let Some(n) = wishes.iter().position(|wish| wish.page == page.page) {
                outcomes[n] = match page.way {
                    _ if !moved => Outcome::Busy,
                    Way::In => Outcome::Moved(page.from),
                    Way::Back => Outcome::Moved(page.to),
                    Way::Discard => Outcome::Discarded,
                };
            }
        });
        wishes.iter().zip(outcomes).for_each(|(wish, outcome)| tiers.settle(wish, outcome));
        changes
    }

    /// The first two steps. `None`: no page can move.
    fn take_out(
        &self,
        tiers: &Tiers,
        wishes: &ArrayVec<Wish, BATCH>,
        outcomes: &mut [Outcome; BATCH],
        vcpu: u32,
        work: &mut u32,
    ) -> Option<MapChanges> {
        let mut changed: Vec<Changed> = Vec::new();
        changed.try_reserve_exact(wishes.len()).ok()?;
        let (flush, retired, host) = {
            let mut memory = self.lock_memory(work);
            let moves: ArrayVec<Option<Move>, BATCH> = {
                let shadow = self.lock_shadow(vcpu, work);
                let is_table = |frame| shadow.as_ref().is_some_and(|shadow| shadow.is_table(frame));
                let to_move = |wish: &Wish| {
                    let (from, is_clean) = memory.p2m.movable(wish.page.base())?;
                    let way = match wish.home {
                        None => Way::In,
                        Some(_) if is_clean => Way::Discard,
                        Some(_) => Way::Back,
                    };
                    let is_there = if wish.home.is_some() { from == wish.fast } else { tiers.is_home(from) };
                    let to = wish.home.unwrap_or(wish.fast);
                    // A table's loss costs the faults that fill all its shadow pages again.
                    (is_there && !is_table(from)).then_some(Move { page: wish.page, from, to, way })
                };
                wishes.iter().map(to_move).collect()
            };
            let Memory { p2m, nested, host, .. } = &mut *memory;
            let mut flush = Flush::None;
            for (page, outcome) in moves.iter().zip(outcomes) {
                let Some(page) = page else { continue };
                let Some(change) = p2m.take_out(page.page.base(), page.from) else { continue };
                flush = flush.and(nested.remove_memory(p2m, change));
                changed.push(change);
                *outcome = Outcome::Busy;
                if !tiers.migration.add(*page) {
                    p2m.attach_moved(page.page.base(), page.from, page.way == Way::Discard);
                }
            }
            (flush, nested.take_retired(), host.clone())
        };
        if changed.is_empty() {
            return None;
        }
        let changes = self.translations_changed(vcpu, work, &changed, flush);
        retired.free(&host);
        Some(changes)
    }
}
