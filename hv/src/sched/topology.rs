//! Which PCPUs there are and what they share: packages, last-level caches, cores, memory nodes.
//!
//! Filled once at start (from CPUID, MADT and SRAT on a machine, from plain numbers in tests) and never changed. PCPUs
//! that are of no use to guests keep their numbers and are in no set ([`Topology::without`]). The scheduler looks at
//! last-level caches only; the rest is for reports and for placing memory.

use alloc::vec::Vec;
use core::fmt;

/// The greatest number of PCPUs. Machines with more leave the rest out.
pub const MAX_PCPUS: usize = abi::config::MAX_PCPUS as usize;

/// Number of a PCPU: 0 for the one that booted, then in the order of the MADT, without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PcpuId(pub u8);

impl PcpuId {
    /// As an index of tables with an element for each PCPU.
    #[inline]
    pub fn index(self) -> usize {
        self.0.into()
    }
}

impl fmt::Display for PcpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of an LLC domain: the PCPUs that share one last-level cache. Without gaps, in the order of their first PCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LlcId(pub u8);

/// Where a PCPU sits. Numbers of one kind are comparable on the whole machine: two PCPUs share a package, a last-level
/// cache, a core or a node if, and only if, these have the same number. They need not be dense (a part of an APIC id
/// will do).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// The package (socket).
    pub package: u32,
    /// The last-level cache.
    pub llc: u32,
    /// The core.
    pub core: u32,
    /// Which of its core's threads it is; the only number that counts within its core.
    pub thread: u32,
    /// The memory node (NUMA), 0 where there is but one.
    pub node: u32,
}

/// All PCPUs.
#[derive(Clone, Debug)]
pub struct Topology {
    locations: Vec<Location>,
    llc_of: Vec<LlcId>,
    llcs: Vec<PcpuSet>,
    all: PcpuSet,
}

impl Topology {
    /// The PCPUs at these places, in the order of their numbers; those beyond [`MAX_PCPUS`] are left out.
    pub fn new(locations: impl IntoIterator<Item = Location>) -> Topology {
        let locations: Vec<Location> = locations.into_iter().take(MAX_PCPUS).collect();
        let mut numbers: Vec<u32> = Vec::new();
        let mut llcs: Vec<PcpuSet> = Vec::new();
        let mut llc_of = Vec::new();
        for (pcpu, location) in (0..).map(PcpuId).zip(&locations) {
            let llc = numbers.iter().position(|n| *n == location.llc).unwrap_or_else(|| {
                numbers.push(location.llc);
                llcs.push(PcpuSet::EMPTY);
                llcs.len() - 1
            });
            llcs[llc].insert(pcpu);
            llc_of.push(LlcId(llc as u8));
        }
        let all = PcpuSet::first(locations.len());
        Topology { locations, llc_of, llcs, all }
    }

    /// The same but for these PCPUs, which are to be left alone.
    pub fn without(mut self, out: PcpuSet) -> Topology {
        self.all = self.all.without(out);
        self.llcs.iter_mut().for_each(|llc| *llc = llc.without(out));
        self
    }

    /// `pcpus` PCPUs, one core each, `per_llc` to a last-level cache. For tests and for machines that do not tell.
    pub fn uniform(pcpus: usize, per_llc: usize) -> Topology {
        let per_llc = per_llc.max(1);
        Topology::new((0..pcpus.min(MAX_PCPUS)).map(|n| {
            let llc = (n / per_llc) as u32;
            Location { package: 0, llc, core: n as u32, thread: 0, node: 0 }
        }))
    }

    /// The number of PCPUs, excluded ones too: the size of tables that are indexed by PCPU.
    pub fn len(&self) -> usize {
        self.locations.len()
    }

    /// Whether there is no PCPU.
    pub fn is_empty(&self) -> bool {
        self.locations.is_empty()
    }

    /// The set of all PCPUs that are of use.
    pub fn all(&self) -> PcpuSet {
        self.all
    }

    /// Where a PCPU sits.
    pub fn location(&self, pcpu: PcpuId) -> Option<&Location> {
        self.locations.get(pcpu.index())
    }

    /// The LLC domain of a PCPU.
    pub fn llc_of(&self, pcpu: PcpuId) -> Option<LlcId> {
        self.llc_of.get(pcpu.index()).copied()
    }

    /// The PCPUs of an LLC domain; none if there is no such domain.
    pub fn llc(&self, llc: LlcId) -> PcpuSet {
        self.llcs.get(usize::from(llc.0)).copied().unwrap_or(PcpuSet::EMPTY)
    }

    /// The LLC domains in order.
    pub fn llcs(&self) -> &[PcpuSet] {
        &self.llcs
    }
}

/// A set of PCPUs, such as the affinity of a VCPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PcpuSet(u64);

impl PcpuSet {
    /// No PCPU.
    pub const EMPTY: PcpuSet = PcpuSet(0);
    /// Every PCPU, whether the machine has it or not.
    pub const ALL: PcpuSet = PcpuSet(u64::MAX);

    /// The set whose member n is bit n.
    pub const fn from_bits(bits: u64) -> PcpuSet {
        PcpuSet(bits)
    }

    /// Bit n for member n.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The PCPUs below `count`.
    pub const fn first(count: usize) -> PcpuSet {
        PcpuSet(if count >= MAX_PCPUS { u64::MAX } else { (1 << count) - 1 })
    }

    /// The set of one. Numbers beyond [`MAX_PCPUS`] are in no set.
    #[inline]
    pub const fn only(pcpu: PcpuId) -> PcpuSet {
        PcpuSet(if pcpu.0 < MAX_PCPUS as u8 { 1 << pcpu.0 } else { 0 })
    }

    /// Whether it is a member.
    #[inline]
    pub const fn contains(self, pcpu: PcpuId) -> bool {
        self.0 & PcpuSet::only(pcpu).0 != 0
    }

    /// Whether there is no member.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many members there are.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Adds a member.
    #[inline]
    pub const fn insert(&mut self, pcpu: PcpuId) {
        self.0 |= PcpuSet::only(pcpu).0;
    }

    /// Removes a member.
    #[inline]
    pub const fn remove(&mut self, pcpu: PcpuId) {
        self.0 &= !PcpuSet::only(pcpu).0;
    }

    /// What is in both.
    #[inline]
    pub const fn and(self, other: PcpuSet) -> PcpuSet {
        PcpuSet(self.0 & other.0)
    }

    /// What is in either.
    #[inline]
    pub const fn or(self, other: PcpuSet) -> PcpuSet {
        PcpuSet(self.0 | other.0)
    }

    /// What is in this one and not in the other.
    #[inline]
    pub const fn without(self, other: PcpuSet) -> PcpuSet {
        PcpuSet(self.0 & !other.0)
    }

    /// The members in rising order, beginning with the first after `pcpu` and ending with `pcpu` itself. A search for the
    /// first suitable PCPU so begins with the neighbours of `pcpu`.
    #[inline]
    pub fn after(self, pcpu: PcpuId) -> impl Iterator<Item = PcpuId> {
        let turn = (u32::from(pcpu.0) + 1) % MAX_PCPUS as u32;
        let turned = PcpuSet(self.0.rotate_right(turn));
        turned.into_iter().map(move |n| PcpuId(((u32::from(n.0) + turn) % MAX_PCPUS as u32) as u8))
    }
}

impl IntoIterator for PcpuSet {
    type Item = PcpuId;
    type IntoIter = Members;

    fn into_iter(self) -> Members {
        Members(self)
    }
}

impl FromIterator<PcpuId> for PcpuSet {
    fn from_iter<T: IntoIterator<Item = PcpuId>>(iter: T) -> PcpuSet {
        iter.into_iter().fold(PcpuSet::EMPTY, |set, pcpu| set.or(PcpuSet::only(pcpu)))
    }
}

impl fmt::Debug for PcpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.into_iter().map(|pcpu| pcpu.0)).finish()
    }
}

/// The members of a set in rising order.
#[derive(Clone, Debug)]
pub struct Members(PcpuSet);

impl Iterator for Members {
    type Item = PcpuId;

    #[inline]
    fn next(&mut self) -> Option<PcpuId> {
        if self.0.is_empty() {
            return None;
        }
        let first = PcpuId(self.0.0.trailing_zeros() as u8);
        self.0.0 &= self.0.0 - 1;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llc_domains_are_numbered_in_the_order_of_their_pcpus() {
        let at = |llc| Location { llc, ..Location::default() };
        let topology = Topology::new([at(7), at(3), at(7), at(3), at(9)]);
        let sets: Vec<u64> = topology.llcs().iter().map(|set| set.bits()).collect();
        assert_eq!(sets, [0b00101, 0b01010, 0b10000]);
        assert_eq!(topology.llc_of(PcpuId(3)), Some(LlcId(1)));
        assert_eq!(topology.llc_of(PcpuId(5)), None);
        assert_eq!(topology.llc(LlcId(2)).bits(), 0b10000);
        assert!(topology.llc(LlcId(3)).is_empty());
        assert_eq!(topology.all().len(), 5);
    }

    #[test]
    fn who_is_left_alone_keeps_its_number() {
        let topology = Topology::uniform(5, 2).without([PcpuId(1), PcpuId(4)].into_iter().collect());
        assert_eq!((topology.len(), topology.all().bits()), (5, 0b01101));
        let sets: Vec<u64> = topology.llcs().iter().map(|set| set.bits()).collect();
        assert_eq!(sets, [0b00001, 0b01100, 0]);
        assert_eq!(topology.llc_of(PcpuId(3)), Some(LlcId(1)));
    }

    #[test]
    fn too_many_pcpus_are_left_out() {
        let topology = Topology::uniform(100, 8);
        assert_eq!((topology.len(), topology.llcs().len(), topology.all()), (64, 8, PcpuSet::ALL));
        assert!(!PcpuSet::ALL.contains(PcpuId(64)));
        assert!(PcpuSet::only(PcpuId(200)).is_empty());
    }

    #[test]
    fn members_come_in_order_from_any_start() {
        let set = PcpuSet::from_bits(1 << 63 | 1 << 5 | 1 << 4 | 1);
        let members = |from| set.after(PcpuId(from)).map(|p| p.0).collect::<Vec<_>>();
        assert_eq!(set.into_iter().map(|p| p.0).collect::<Vec<_>>(), [0, 4, 5, 63]);
        assert_eq!(members(63), [0, 4, 5, 63]);
        assert_eq!(members(4), [5, 63, 0, 4]);
        assert_eq!(members(0), [4, 5, 63, 0]);
        assert_eq!(set.into_iter().collect::<PcpuSet>(), set);
    }
}
