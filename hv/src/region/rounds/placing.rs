//! What follows a phase: whether regions bring anything, and which cache each of them goes to.

use alloc::vec::Vec;

use abi::regions::RegionPolicy;

use super::{At, Rounds};
use crate::arch::addr::PAGE_SHIFT;
use crate::mem::pieces::OutOfMemory;
use crate::region::balance::{self, Item, Move, Policy, Profitable};
use crate::region::history::SAMPLES;
use crate::region::partition::Partition;
use crate::region::regioning::{Outcome, Verdict};
use crate::region::{Effects, Kind, Owner, Rid, SPACES, Space};

/// A region below this part of the smallest cache is open everywhere: what its misses cost is less than what moves would.
const LEAST_PART: u32 = 64;
/// What changes by less than this part of the smallest cache is as it was.
const CHANGED_PART: u32 = 8;

impl Rounds {
    /// What follows a phase, at this virtual time of the VM: the regions of address spaces to which they bring nothing are given up,
    /// and `follow` gets the effects. Returns the moves of regions to caches that even the loads, of those that do not rest.
    ///
    /// # Errors
    /// No memory for the list of regions: they stay where they are.
    pub fn end(
        &mut self,
        partition: &mut Partition,
        vm_ns: u64,
        at: &At,
        rests: impl Fn(Rid) -> bool,
        mut follow: impl FnMut(Effects),
    ) -> Result<Vec<Move>, OutOfMemory> {
        self.has_small = true;
        self.judge(partition, vm_ns, &mut follow);
        let placed = self.place(partition, at, rests);
        let finished = core::mem::take(&mut self.finished);
        let (items, outcome) = placed?;
        self.counts.spread += u64::from(outcome.spread != 0);
        for space in finished.iter() {
            let own = items.iter().filter(|item| item.group == u32::from(space.number()));
            let outcome = Outcome { loads: balance::loads(own), accessed: self.spaces.accessed(space) };
            if let Some(steady) = self.regioning.steady(space) {
                steady.ended(outcome, self.least_change);
            }
        }
        self.moves(&items)
    }

    /// The moves of regions to caches that even the loads as they are now, of this VM and others: at a turn that is left out.
    ///
    /// # Errors
    /// No memory for the list of regions: they stay where they are.
    pub fn balance(
        &mut self,
        partition: &Partition,
        at: &At,
        rests: impl Fn(Rid) -> bool,
    ) -> Result<Vec<Move>, OutOfMemory> {
        let (items, _outcome) = self.place(partition, at, rests)?;
        self.moves(&items)
    }

    /// The places of all regions that may be mapped to a cache, and what the balancer has done for that.
    fn place(
        &mut self,
        partition: &Partition,
        at: &At,
        rests: impl Fn(Rid) -> bool,
    ) -> Result<(Vec<Item>, balance::Outcome), OutOfMemory> {
        let frames = match self.settings.cache_kib {
            0 => None,
            kib => Some(u32::try_from(u64::from(kib) << 10 >> PAGE_SHIFT).unwrap_or(u32::MAX)),
        };
        let At { caches, vm, weight } = at;
        let caches_now = caches.for_vm(*vm, frames);
        let smallest = caches_now.iter().map(|cache| cache.frames).min().unwrap_or(0);
        let least = smallest / LEAST_PART;
        self.least_change = smallest / CHANGED_PART;
        let mut items = self.items(partition, *vm, 4 * least, rests)?;
        // Its own weight, before it has ever published any load.
        caches.weigh(*vm, *weight);
        let weights = caches.weights();
        let policy = match self.settings.policy {
            RegionPolicy::Balance => Policy::Balance,
            RegionPolicy::Unify => Policy::Unify(Profitable {
                least_ns: self.settings.least_us.saturating_mul(1000),
                most_ns: self.settings.most_us.saturating_mul(1000),
            }),
            RegionPolicy::Partition => Policy::Partition(&weights),
        };
        let outcome = balance::rebalance(policy, &caches_now, &mut items);
        caches.publish(*vm, *weight, &balance::loads(&items));
        Ok((items, outcome))
    }

    fn moves(&mut self, items: &[Item]) -> Result<Vec<Move>, OutOfMemory> {
        let mut moves = Vec::new();
        moves.try_reserve_exact(items.len()).map_err(|_| OutOfMemory)?;
        moves.extend(balance::moves(items));
        self.counts.placed += moves.len() as u64;
        self.has_small |= !moves.is_empty();
        Ok(moves)
    }

    /// Judges the address spaces that the phase has seen.
    fn judge(&mut self, partition: &mut Partition, vm_ns: u64, follow: &mut impl FnMut(Effects)) {
        let params = *self.regioning.params();
        // What belongs to no address space is in no round, and ages by the VM's samples.
        let vm_elapsed_ns = self.spaces.round_ended(Space::VM, vm_ns);
        for space in self.finished.iter() {
            let elapsed_ns = match space {
                Space::VM => vm_elapsed_ns,
                _ => self.spaces.round_ended(space, self.spaces.ran_ns(space)),
            };
            // Time is charged at timers: without any since the last round it is not known what part of it moves were.
            let moves =
                if elapsed_ns == 0 && space != Space::VM { 0 } else { self.spaces.moves(space).take() };
            if let Some(worth) = self.regioning.worth(space)
                && worth.verdict(&params, moves, elapsed_ns) == Verdict::GiveUp
            {
                worth.give_up(partition, space, &mut *follow);
                self.counts.given_up += 1;
            }
        }
    }

    /// The regions that may be mapped to a cache, but for those that no cache has and that rest, or whose load is below `least` quarters
    /// of a frame.
    fn items(
        &self,
        partition: &Partition,
        vm: u16,
        least: u32,
        rests: impl Fn(Rid) -> bool,
    ) -> Result<Vec<Item>, OutOfMemory> {
        let regions = partition.regions().filter_map(|(rid, info)| {
            let group = match info.owner {
                Owner::Space(space) => u32::from(space.number()),
                Owner::Guest(number) => u32::from(SPACES) + u32::from(number),
                Owner::Vm => return None,
            };
            let was = match info.kind {
                Kind::Regular => None,
                Kind::Local(domain) => Some(domain),
                Kind::Seed | Kind::Shared | Kind::Global => return None,
            };
            let load = self.load(partition, rid, info.frames);
            let counts = was.is_some() || load >= least.max(1) && !rests(rid);
            counts.then(|| Item::new(vm, group, rid, load, self.access_ns(rid), was))
        });
        let mut items = Vec::new();
        for item in regions {
            items.try_reserve(1).map_err(|_| OutOfMemory)?;
            items.push(item);
        }
        Ok(items)
    }

    /// The working set of a region in quarters of a frame; all of its frames as long as there are few samples.
    pub fn load(&self, partition: &Partition, rid: Rid, frames: u32) -> u32 {
        let space = match partition.info(rid).map(|info| info.owner) {
            Some(Owner::Space(space)) => space,
            _ => Space::VM,
        };
        let is_known = self.spaces.samples(space) >= SAMPLES as u64;
        let load = if is_known { partition.working_set(rid) } else { 4 * u64::from(frames) };
        u32::try_from(load).unwrap_or(u32::MAX)
    }
}
