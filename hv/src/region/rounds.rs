//! Rounds: phases of regioning of a VM, one after the other, and what follows each of them.
//!
//! ```text
//!  due ──► age ──► phase: touches ──► finish ──► worth it? ──► balance ──► moves of regions to caches
//! ```
//!
//! Owned by the VM beside its [`Partition`], under the same lock; `vcpu::regions` calls it, and performs what it answers. The VM as a whole
//! is the address space ([`Space::VM`]): nested tables do not show the guest's own. Its mappings are not seen either. So a frame
//! counts as mapped from its program's first touch in a phase on, and as unmapped when none of the last [`SAMPLES`]
//! samples has found it accessed: what it holds then may be something else ([`Rounds::due`]).
//!
//! Pure, as all of [`region`](super): times are arguments.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::regions::RegionPolicy;

use super::balance::{self, Item, Move, Policy, Profitable};
use super::caches::{Caches, Loads};
use super::history::SAMPLES;
use super::partition::Partition;
use super::regioning::{Answer, Change, Event, Moves, Params, Regioning, Round, Touch, Verdict};
use super::{Effects, Kind, Owner, Rid, Space};
use crate::arch::addr::{Gfn, PAGE_SHIFT};
use crate::mem::pieces::OutOfMemory;

/// Complete samples after which a frame that none of them has found accessed counts as unmapped.
const IDLE_SAMPLES: u64 = 8;
/// Frames that one call unmaps at most.
const MOST_AGED: usize = 1024;
/// A region below this part of the smallest cache is open everywhere: what its misses cost is less than what moves would.
const LEAST_PART: u32 = 64;

/// [`Params::most_moves`] where a move takes so long: as much time as by the default on the thesis' machine.
fn most_moves_of_a_page(move_ns: u32) -> u32 {
    let default = Params::default();
    let most = u64::from(default.most_moves) * u64::from(default.move_ns) / u64::from(move_ns.max(1));
    u32::try_from(most).unwrap_or(u32::MAX).max(1)
}

/// What rounds have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Phases that have ended.
    pub rounds: u64,
    /// Faults in them.
    pub touches: u64,
    /// Regions that began with a frame.
    pub born: u64,
    /// Merges of two regions.
    pub merges: u64,
    /// Frames that became global: code, stacks, the kernel's, and what moved VCPUs too often.
    pub excluded: u64,
    /// Frames that were given back to the pool because they were not accessed any more.
    pub aged: u64,
    /// How often all regions were given up.
    pub given_up: u64,
    /// Regions that the balancer has mapped to a cache, or to another one.
    pub placed: u64,
    /// Rounds after which regions were spread over several caches.
    pub spread: u64,
}

impl Counts {
    fn add(&mut self, round: &Round) {
        self.rounds += 1;
        self.touches += u64::from(round.touches);
        self.born += u64::from(round.born);
        self.merges += u64::from(round.merges);
        self.excluded += u64::from(round.excluded);
    }
}

/// Where a VM's regions go.
#[derive(Clone, Debug)]
pub struct At {
    /// The machine's caches.
    pub caches: Arc<Caches>,
    /// The VM's number in the configuration.
    pub vm: u16,
    /// Its weight.
    pub weight: u16,
}

/// See the module.
#[derive(Debug)]
pub struct Rounds {
    settings: abi::regions::Regioning,
    regioning: Regioning,
    moves: Moves,
    /// The VCPU that is in a phase.
    in_phase: Option<u32>,
    /// Virtual time of the VM when the last round ended.
    ended_ns: u64,
    /// Complete samples so far, and when the last round ended.
    samples: u64,
    samples_at_end: u64,
    counts: Counts,
}

impl Rounds {
    /// For a VM with this partition, whose histories begin now.
    ///
    /// # Errors
    /// No memory.
    pub fn new(settings: abi::regions::Regioning, partition: &mut Partition) -> Result<Rounds, OutOfMemory> {
        partition.start_histories()?;
        let ns = |us: u32| us.saturating_mul(1000);
        let params = Params {
            merge_ns: ns(settings.q_us),
            period_ns: u64::from(settings.period_ms) * 1_000_000,
            phase_ns: ns(settings.phase_ms.saturating_mul(1000)),
            move_ns: ns(settings.move_us),
            most_moves: most_moves_of_a_page(ns(settings.move_us)),
            ..Params::default()
        };
        Ok(Rounds {
            settings,
            regioning: Regioning::new(params, partition)?,
            moves: Moves::default(),
            in_phase: None,
            ended_ns: 0,
            samples: 0,
            samples_at_end: 0,
            counts: Counts::default(),
        })
    }

    /// What it was made with.
    pub fn settings(&self) -> &abi::regions::Regioning {
        &self.settings
    }

    /// The times of regioning, in nanoseconds.
    pub fn params(&self) -> &Params {
        self.regioning.params()
    }

    /// What has been done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The VCPU that is in a phase.
    pub fn in_phase(&self) -> Option<u32> {
        self.in_phase
    }

    /// How long a region is used at a time, in nanoseconds, if that is known.
    pub fn access_ns(&self, rid: Rid) -> Option<u32> {
        self.regioning.times(rid).map(|(access, _)| access)
    }

    /// A sample of the VM is complete.
    pub fn sampled(&mut self) {
        self.samples += 1;
    }

    /// The turn of a VCPU has come, at this virtual time of its own. [`Change::CloseAll`]: its phase begins. [`Change::None`]: it is
    /// left out, or another VCPU is in one.
    pub fn due(&mut self, partition: &mut Partition, vcpu: u32, now_ns: u64) -> Answer {
        let answer = self.regioning.on(partition, Space::VM, now_ns, Event::Due);
        if answer.change == Change::CloseAll {
            self.in_phase = Some(vcpu);
        }
        answer
    }

    /// An event of the VCPU that is in a phase. After [`Change::Finish`] comes [`Rounds::end`].
    pub fn on(&mut self, partition: &mut Partition, now_ns: u64, event: Event) -> Answer {
        if let Event::Touch(Touch { gfn, by_kernel: false, .. }) = event
            && partition.region_of(gfn) == Ok(Rid::POOL)
        {
            // Its first mapping. Refused for no frame of RAM that nothing maps.
            let _a_seed_is_open_like_the_pool = partition.map(gfn, Space::VM);
        }
        let answer = self.regioning.on(partition, Space::VM, now_ns, event);
        if let Change::Finish(round) = &answer.change {
            self.in_phase = None;
            self.counts.add(round);
        }
        answer
    }

    /// The phase is over without an end: the VCPU is gone, or has none any more.
    pub fn abandon(&mut self, partition: &mut Partition) {
        let _only_its_own_tables_change = self.on(partition, u64::MAX, Event::End);
        self.in_phase = None;
    }

    /// A region has died.
    pub fn forget(&mut self, rid: Rid) {
        self.regioning.forget(rid);
    }

    /// A VCPU has been moved to another cache by this page. What follows if that happens too often because of it.
    #[must_use = "tables must follow the effects"]
    pub fn moved(&mut self, partition: &mut Partition, gfn: Gfn, now_ns: u64) -> Option<Effects> {
        let most = self.regioning.params().most_moves;
        let effects = self.moves.moved(gfn, now_ns, most, partition);
        self.counts.excluded += u64::from(effects.is_some());
        effects
    }

    /// Unmaps frames that samples have not found accessed for long, and returns what that has done to regions. Nothing where processors tell of no accesses
    /// (`samples` are not taken then), or too few samples were taken since the last round.
    pub fn age(&mut self, partition: &mut Partition) -> Vec<Effects> {
        let (mut idle, mut all): (Vec<Gfn>, Vec<Effects>) = Default::default();
        let has_room = idle.try_reserve_exact(MOST_AGED).is_ok() && all.try_reserve_exact(MOST_AGED).is_ok();
        if self.samples < self.samples_at_end + IDLE_SAMPLES || !has_room {
            return all;
        }
        let is_idle = |gfn: &Gfn| partition.histories().and_then(|all| all.ones(*gfn)) == Some(0);
        let ages = |rid: Rid, owner| rid == Rid::GLOBAL || owner == Owner::Space(Space::VM);
        let regions = partition.regions().filter(|(rid, info)| ages(*rid, info.owner));
        let frames = regions.flat_map(|(rid, _)| partition.frames_of(rid)).filter(is_idle);
        idle.extend(frames.take(MOST_AGED));
        for gfn in idle {
            // It counts as mapped once.
            if let Ok(effects) = partition.unmap(gfn, Space::VM) {
                all.push(effects);
                self.counts.aged += 1;
            }
        }
        all
    }

    /// What follows a phase, at this virtual time of the VM: if regions bring nothing they are given up, and `follow` gets the effects.
    /// Otherwise the moves of regions to caches that even the loads.
    ///
    /// # Errors
    /// No memory for the list of regions: they stay where they are.
    pub fn end(
        &mut self,
        partition: &mut Partition,
        vm_ns: u64,
        at: &At,
        mut follow: impl FnMut(Effects),
    ) -> Result<Vec<Move>, OutOfMemory> {
        let elapsed_ns = vm_ns.saturating_sub(self.ended_ns);
        (self.ended_ns, self.samples_at_end) = (vm_ns, self.samples);
        let (params, moves) = (*self.regioning.params(), self.moves.take());
        if let Some(worth) = self.regioning.worth(Space::VM)
            && worth.verdict(&params, moves, elapsed_ns) == Verdict::GiveUp
        {
            worth.give_up(partition, Space::VM, &mut follow);
            self.counts.given_up += 1;
        }
        let frames = match self.settings.cache_kib {
            0 => None,
            kib => Some(u32::try_from(u64::from(kib) << 10 >> PAGE_SHIFT).unwrap_or(u32::MAX)),
        };
        let At { caches, vm, weight } = at;
        let caches_now = caches.for_vm(*vm, frames);
        let least = caches_now.iter().map(|cache| cache.frames).min().unwrap_or(0) / LEAST_PART;
        let mut items = self.items(partition, *vm, 4 * least)?;
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
        self.counts.spread += u64::from(outcome.spread != 0);
        let mut loads = Loads::default();
        for cache in &caches_now {
            let load = balance::load(&items, cache.domain);
            loads[usize::from(cache.domain.number())] = u32::try_from(load).unwrap_or(u32::MAX);
        }
        caches.publish(*vm, *weight, &loads);
        let mut moves = Vec::new();
        moves.try_reserve_exact(items.len()).map_err(|_| OutOfMemory)?;
        moves.extend(balance::moves(&items));
        self.counts.placed += moves.len() as u64;
        Ok(moves)
    }

    /// The regions that may be mapped to a cache, but for those that no cache has and whose load is below `least` quarters of a frame.
    fn items(&self, partition: &Partition, vm: u16, least: u32) -> Result<Vec<Item>, OutOfMemory> {
        let regions = partition.regions().filter_map(|(rid, info)| {
            let group = match info.owner {
                Owner::Space(space) => u32::from(space.number()),
                Owner::Guest(number) => u32::from(super::SPACES) + u32::from(number),
                Owner::Vm => return None,
            };
            let was = match info.kind {
                Kind::Regular => None,
                Kind::Local(domain) => Some(domain),
                Kind::Seed | Kind::Shared | Kind::Global => return None,
            };
            let load = self.load(partition, rid, info.frames);
            let counts = was.is_some() || load >= least.max(1);
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
        let load =
            if self.samples >= SAMPLES as u64 { partition.working_set(rid) } else { 4 * u64::from(frames) };
        u32::try_from(load).unwrap_or(u32::MAX)
    }

    /// Tears down all regions that were found, for an end of the search.
    pub fn give_up(&mut self, partition: &mut Partition, follow: impl FnMut(Effects)) {
        self.abandon(partition);
        if let Some(worth) = self.regioning.worth(Space::VM) {
            worth.give_up(partition, Space::VM, follow);
        }
    }
}
