//! Regions: the memory of a VM in groups of frames that are mapped to caches as wholes.
//!
//! | module | is |
//! |---|---|
//! | [`partition`] | which frame is in which region, and how regions come, change and go |
//! | [`balance`] | which cache each region is mapped to |
//! | [`micro`] | what becomes of a VCPU that touches a closed region |
//! | [`guest`] | regions that the guest's kernel defines by hypercalls, with its quota |
//! | [`caches`] | the machine's caches, and what VMs load them with |
//! | [`spaces`] | which root of page tables is which address space, and when one is gone |
//! | [`rounds`] | phases of regioning one after the other, and what follows each |
//! | [`history`] | which frames were accessed in the last samples, and the working sets of regions |
//! | [`regioning`] | which frames are used together, found out in phases in which each change of region faults |
//!
//! Pure: nothing here knows a page table, a processor or a clock. A VM owns a [`Partition`](partition::Partition) behind a lock;
//! hypercalls and the monitor call it, and `vm::regions` performs the [`Effects`] that it returns on the VM's sets of tables.
//! Faults on closed regions ask [`micro`]. Frames are named by their guest frame numbers: what a guest does with a page does not
//! change when the page moves to another host frame. docs/design/0025-regions.md has the model and what is still missing,
//! docs/design/0026-regioning.md what finds regions and maps them to caches.

pub mod balance;
pub mod caches;
pub mod guest;
pub mod history;
pub mod micro;
pub mod partition;
pub mod regioning;
pub mod rounds;
pub mod spaces;
#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;

use crate::arch::addr::Gfn;

/// Address spaces that a VM's partition can tell apart.
pub const SPACES: u16 = 256;
/// Cache domains that regions can be mapped to.
pub const DOMAINS: u8 = 16;

/// A region of a VM. A number is used again after the region has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rid(u16);

impl Rid {
    /// The VM's pool, of kind [`Kind::Seed`]: frames that no address space maps. It never dies.
    pub const POOL: Rid = Rid(0);
    /// Frames that more than one address space maps.
    pub const SHARED: Rid = Rid(1);
    /// Frames that were made global one by one.
    pub const GLOBAL: Rid = Rid(2);
    /// The first seed region of an address space.
    const SEEDS: u16 = 3;
    /// The first region that is not in a fixed place.
    pub const FIRST: u16 = Rid::SEEDS + SPACES;

    /// The region that collects new frames of an address space.
    pub const fn seed(space: Space) -> Rid {
        Rid(Rid::SEEDS + space.0)
    }

    /// The number.
    pub const fn number(self) -> u16 {
        self.0
    }

    const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether the number stands for one region as long as the VM lives.
    const fn is_fixed(self) -> bool {
        self.0 < Rid::FIRST
    }
}

/// An address space of a VM, by a number that [`Partition::add_space`](partition::Partition::add_space) gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Space(u16);

impl Space {
    /// The VM as a whole: what nested tables map, and address spaces for which there is no number left.
    pub const VM: Space = Space(0);

    /// The number, below [`SPACES`].
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// PCPUs that share a last-level cache, by number below [`DOMAINS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(u8);

impl Domain {
    /// The domain with this number; `None` from [`DOMAINS`] on.
    pub const fn new(number: u8) -> Option<Domain> {
        if number < DOMAINS { Some(Domain(number)) } else { None }
    }

    /// The number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// A set of cache domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Domains(u16);

impl Domains {
    /// All.
    pub const ALL: Domains = Domains(u16::MAX);

    /// One.
    pub const fn only(domain: Domain) -> Domains {
        Domains(1 << domain.0)
    }

    /// Those of `self` that are not in `other`.
    pub const fn without(self, other: Domains) -> Domains {
        Domains(self.0 & !other.0)
    }

    /// Those of either.
    pub const fn and(self, other: Domains) -> Domains {
        Domains(self.0 | other.0)
    }

    /// Those of both.
    pub const fn common(self, other: Domains) -> Domains {
        Domains(self.0 & other.0)
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `domain` is one of them.
    pub const fn contains(self, domain: Domain) -> bool {
        self.0 & 1 << domain.0 != 0
    }
}

/// What a region is (thesis 2.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// New frames, of which nothing is known yet.
    Seed,
    /// Frames that are used together, found by regioning or named by the guest; not mapped to a cache yet.
    Regular,
    /// The same, mapped to one cache: open there and closed everywhere else.
    Local(Domain),
    /// Frames that several address spaces map.
    Shared,
    /// Frames that every cache may hold: code, stacks, the kernel's, and what moves VCPUs too often.
    Global,
}

impl Kind {
    /// Whether the region is mapped to a cache.
    pub const fn is_local(self) -> bool {
        matches!(self, Kind::Local(_))
    }

    /// The domains whose tables may lead to its frames, outside of a regioning phase.
    pub const fn open_in(self) -> Domains {
        match self {
            Kind::Local(domain) => Domains::only(domain),
            Kind::Seed | Kind::Regular | Kind::Shared | Kind::Global => Domains::ALL,
        }
    }
}

/// What a region belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The VM: the pool, and what several address spaces use.
    Vm,
    /// The address space that alone maps its frames.
    Space(Space),
    /// The guest's kernel, under this number of its own, from 1 on.
    Guest(u16),
}

/// The frames that an [`Effect`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One.
    Frame(Gfn),
    /// Those that are in this region now.
    Region(Rid),
    /// This one and those that follow it in the list of its region ([`Partition::frames_from`](partition::Partition::frames_from)).
    From(Gfn),
}

/// One thing that follows from a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// There is a region with this number now.
    Born(Rid),
    /// There is none any more: what is known of it must be forgotten before the number comes again.
    Died(Rid),
    /// Entries that lead to the target must go from the tables of these domains, and be flushed, before a VCPU enters there
    /// again. There may be none.
    Close(Target, Domains),
    /// Entries may lead to the target in these domains. Nothing is owed: a fault fills them.
    Open(Target, Domains),
}

/// What follows from a transition, in this order.
#[must_use = "tables differ from the partition until these effects are performed"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects(ArrayVec<Effect, { Effects::MOST }>);

impl Effects {
    /// A frame that changes its region: one dies, one is born, the frame is closed here and opened there.
    const MOST: usize = 4;

    /// In their order.
    pub fn iter(&self) -> impl Iterator<Item = Effect> + '_ {
        self.0.iter().copied()
    }

    /// Whether nothing follows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether tables must change: something is to be closed.
    pub fn closes(&self) -> bool {
        self.iter().any(|effect| matches!(effect, Effect::Close(..)))
    }

    fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    /// The target was open in some domains, and is now open in others.
    fn reopen(&mut self, target: Target, before: Domains, now: Domains) {
        self.reopen_parts(target, [before; 2], now);
    }

    /// The same of a target with two parts, each of which was open in other domains.
    fn reopen_parts(&mut self, target: Target, before: [Domains; 2], now: Domains) {
        let [one, other] = before;
        let (close, open) = (one.and(other).without(now), now.without(one.common(other)));
        if !close.is_empty() {
            self.push(Effect::Close(target, close));
        }
        if !open.is_empty() {
            self.push(Effect::Open(target, open));
        }
    }
}

/// Why a transition is refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// This frame is no RAM of the VM.
    NotRam(Gfn),
    /// There is no address space with this number.
    NoSpace(Space),
    /// The address space does not map the frame.
    NotMapped,
    /// The address space still maps frames.
    Busy,
    /// There is no region with this number.
    NoRegion,
    /// The region is of this kind, which does not change so.
    Kind(Kind),
    /// The regions belong to different address spaces, or to the guest.
    Owner,
    /// A region cannot be merged with itself.
    Itself,
    /// The frame is in a region of the guest's.
    Taken(Gfn),
    /// The frame is not in this region.
    NotThere(Gfn),
    /// All records are in use.
    Full,
    /// The guest has as many regions as it may have.
    Quota,
}
