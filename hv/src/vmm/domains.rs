//! Cache domains as VMs count them: those of the scheduler's last-level caches, from the sixteenth on in one.

use crate::arch::addr::PAGE_SHIFT;
use crate::paging::tree_key::TreeKey;
use crate::probe::{self, Cpuid, Holds};
use crate::region::caches::Caches;
use crate::sched::LlcId;
use crate::sched::topology::{PcpuId, PcpuSet, Topology};

/// The cache domain of a PCPU.
pub fn domain_of(topology: &Topology, pcpu: PcpuId) -> u8 {
    topology.llc_of(pcpu).map_or(0, number)
}

/// The PCPUs of a cache domain.
pub fn pcpus_of(topology: &Topology, domain: u8) -> PcpuSet {
    let llcs = (0..).map(LlcId).zip(topology.llcs()).filter(|(llc, _)| number(*llc) == domain);
    llcs.fold(PcpuSet::EMPTY, |all, (_, pcpus)| all.or(*pcpus))
}

/// The last-level caches by domain. All have the size that this processor's has: machines with others are not told apart. Domains from the sixteenth on
/// have one.
pub fn caches(topology: &Topology, cpuid: Cpuid<'_>) -> Caches {
    let last = probe::caches(cpuid).into_iter().filter(|cache| cache.holds != Holds::Instructions);
    let bytes = last.max_by_key(|cache| cache.level).map_or(0, |cache| cache.bytes);
    let frames = u32::try_from(bytes >> PAGE_SHIFT).unwrap_or(u32::MAX);
    Caches::new(topology.llcs().iter().map(|_| frames))
}

fn number(llc: LlcId) -> u8 {
    llc.0.min(TreeKey::DOMAINS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_caches_are_sixteen_domains() {
        let topology = Topology::uniform(40, 2);
        let domains: Vec<u8> = (0..40).map(|pcpu| domain_of(&topology, PcpuId(pcpu))).collect();
        assert_eq!((domains[0], domains[3], domains[29], domains[30], domains[39]), (0, 1, 14, 15, 15));
        for domain in 0..16 {
            let pcpus = pcpus_of(&topology, domain);
            assert_eq!(pcpus.len(), if domain == 15 { 10 } else { 2 });
            assert!(pcpus.into_iter().all(|pcpu| domain_of(&topology, pcpu) == domain));
        }
        assert!(pcpus_of(&topology, 16).is_empty());
    }
}
