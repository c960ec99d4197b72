//! Which cache each region is mapped to: cache loads, evened by moves of regions (thesis 2.4, 2.5.2, 2.5.5).
//!
//! The load of a cache is the sum of the working sets of the regions that are mapped to it. After each round of regioning the
//! caller describes the caches and the regions of all VMs ([`Item`]), calls [`rebalance`], and performs [`moves`] on the
//! partitions. Pure, without allocation and floating point; equal input gives equal output.
//!
//! | policy | regions of an address space |
//! |---|---|
//! | [`Policy::Balance`] | stay together; address spaces are moved as wholes |
//! | [`Policy::Unify`] | the same, unless Conditions 1 to 3 of thesis 2.3.1 say that several caches serve it better |
//! | [`Policy::Partition`] | stay together, on the caches that its VM's weight gives it |
//!
//! What must hold: a region that has a cache is moved only if that lowers the larger relative load of the two caches by [`GAIN`] at
//! least (so that steady input brings no further moves), or because its group may not stay as it is: an address space that is no
//! longer spread comes together, and a VM leaves a cache that is not its own any more.

#[cfg(any(test, feature = "testing"))]
mod check;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod greedy;
mod share;
#[cfg(test)]
mod tests;
mod unify;

use arrayvec::ArrayVec;

#[cfg(any(test, feature = "testing"))]
pub use self::fuzz::fuzz_one;
pub use self::share::Weight;
pub use self::unify::{Conditions, Profitable};
use super::caches::Loads;
use super::{DOMAINS, Domain, Rid};

/// Relative loads count in this part of a cache's size.
pub const UNIT: u64 = 1 << 16;
/// The least that a move must lower the larger one of two relative loads by: a sixteenth of a cache.
pub const GAIN: u64 = UNIT / 16;
/// Groups or single regions that one call moves for evenness at most.
pub const MOST_MOVES: u32 = 64;
/// Regions that one call looks at; of more, those with the largest working sets. The others stay, and count as no load.
pub const MOST_ITEMS: usize = 1024;

/// A last-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Its PCPUs.
    pub domain: Domain,
    /// Its size in frames.
    pub frames: u32,
    /// What others have there that the caller does not describe, in quarters of a frame: it counts as load, and stays.
    pub others: u64,
}

/// A region that may be mapped to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Number of its VM.
    pub vm: u16,
    /// Regions of a VM with the same number are used together: the address space, or a number of its own for a region of the guest's.
    pub group: u32,
    /// Its number in the VM's partition.
    pub rid: Rid,
    /// Its working set in quarters of a frame. As long as there are few samples, four times its frames.
    pub load: u32,
    /// How long it is used at a time, on average, in nanoseconds; `None`: that is not known.
    pub access_ns: Option<u32>,
    /// The cache that it is mapped to.
    pub was: Option<Domain>,
    /// The cache that it is to be mapped to; [`rebalance`] writes it.
    pub place: Option<Domain>,
    /// It may be on another cache than others of its group.
    is_single: bool,
}

impl Item {
    /// A region with this number, of this VM and group, that is mapped to a cache or not.
    pub const fn new(
        vm: u16,
        group: u32,
        rid: Rid,
        load: u32,
        access_ns: Option<u32>,
        was: Option<Domain>,
    ) -> Item {
        Item { vm, group, rid, load, access_ns, was, place: was, is_single: false }
    }
}

/// How regions are mapped to caches.
#[derive(Clone, Copy, Debug)]
pub enum Policy<'a> {
    /// Evens the loads of all caches.
    Balance,
    /// The same; an address space to which Conditions 1 to 3 apply is spread over several caches.
    Unify(Profitable),
    /// Gives caches to VMs by weight; a VM that is not named has [`Weight::DEFAULT`].
    Partition(&'a [Weight]),
}

/// A region that has to be mapped to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Number of its VM.
    pub vm: u16,
    /// Its number in the VM's partition.
    pub rid: Rid,
    /// The cache.
    pub to: Domain,
}

/// What a call has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the moves are to be performed"]
pub struct Outcome {
    /// Groups and single regions that had no cache, or not one for all.
    pub placed: u32,
    /// Groups and single regions that were moved for evenness.
    pub moved: u32,
    /// Groups that are spread over several caches.
    pub spread: u32,
}

/// What a VM, or all VMs, may use of a cache.
#[derive(Clone, Copy, Debug)]
struct Share {
    domain: Domain,
    /// In quarters of a frame, more than 0.
    size: u64,
    /// Load that stays, in quarters of a frame.
    others: u64,
}

type Shares = ArrayVec<Share, { DOMAINS as usize }>;

/// Gives each item a place. Items are sorted by VM, group and number. Caches beyond [`DOMAINS`] and of no size are left out; without
/// any nothing is placed.
pub fn rebalance(policy: Policy<'_>, caches: &[Cache], items: &mut [Item]) -> Outcome {
    let items = most_loaded(items);
    items.sort_unstable_by_key(|item| (item.vm, item.group, item.rid));
    items.iter_mut().for_each(|item| (item.place, item.is_single) = (item.was, false));
    let sized = caches.iter().filter(|cache| cache.frames != 0).take(DOMAINS.into());
    let shares: Shares = sized
        .map(|cache| Share { domain: cache.domain, size: 4 * u64::from(cache.frames), others: cache.others })
        .collect();
    let mut outcome = Outcome::default();
    if shares.is_empty() {
        return outcome;
    }
    match policy {
        Policy::Balance => greedy::spread(&shares, items, &mut outcome),
        Policy::Unify(profitable) => {
            outcome.spread = unify::choose(&shares, profitable, items);
            greedy::spread(&shares, items, &mut outcome);
        }
        Policy::Partition(weights) => {
            let total = share::Total::new(weights, items);
            for vm in items.chunk_by_mut(|a, b| a.vm == b.vm) {
                greedy::spread(&total.of(vm[0].vm, &shares), vm, &mut outcome);
            }
        }
    }
    outcome
}

/// The items that count, at the front of all.
fn most_loaded(items: &mut [Item]) -> &mut [Item] {
    if items.len() > MOST_ITEMS {
        items.iter_mut().for_each(|item| item.place = item.was);
        let order = |item: &Item| (u32::MAX - item.load, item.vm, item.group, item.rid);
        items.select_nth_unstable_by_key(MOST_ITEMS, order);
        return &mut items[..MOST_ITEMS];
    }
    items
}

/// What is to be performed after [`rebalance`].
pub fn moves(items: &[Item]) -> impl Iterator<Item = Move> + '_ {
    let changed = items.iter().filter(|item| item.place != item.was);
    changed.filter_map(|item| Some(Move { vm: item.vm, rid: item.rid, to: item.place? }))
}

/// The load of a cache by the places of items, in quarters of a frame.
pub fn load(items: &[Item], domain: Domain) -> u64 {
    items.iter().filter(|item| item.place == Some(domain)).map(|item| u64::from(item.load)).sum()
}

/// The loads of all caches by the places of these items, in quarters of a frame.
pub fn loads<'a>(items: impl IntoIterator<Item = &'a Item>) -> Loads {
    let mut loads = Loads::default();
    for item in items {
        if let Some(load) = item.place.and_then(|domain| loads.get_mut(usize::from(domain.number()))) {
            *load = load.saturating_add(item.load);
        }
    }
    loads
}
