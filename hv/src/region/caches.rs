//! The machine's last-level caches, and what the regions of each VM load them with.
//!
//! Shared by all VMs whose regions are mapped to caches. A VM publishes the loads of its own regions after each round, and sees
//! the sum of the others' as load that stays ([`Cache::others`]): so VMs are balanced one at a time, each on behalf of one of its
//! VCPUs and under no lock but its own. Two that are balanced at the same time may choose the same cache; the next round sees that.
//! Numbers only: no order between them is needed.

use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use abi::config::MAX_VMS;
use arrayvec::ArrayVec;

use super::balance::{Cache, Weight};
use super::{DOMAINS, Domain};

/// Loads of each cache by regions of a VM, in quarters of a frame.
pub type Loads = [u32; DOMAINS as usize];

/// See the module.
#[derive(Debug)]
pub struct Caches {
    /// Of each domain, in frames.
    sizes: ArrayVec<u32, { DOMAINS as usize }>,
    loads: [[AtomicU32; DOMAINS as usize]; MAX_VMS],
    /// Of each VM; 0: it has no regions.
    weights: [AtomicU16; MAX_VMS],
}

impl Caches {
    /// Caches of these sizes in frames, by domain. Those beyond [`DOMAINS`] are left out.
    pub fn new(sizes: impl IntoIterator<Item = u32>) -> Caches {
        Caches {
            sizes: sizes.into_iter().take(DOMAINS.into()).collect(),
            loads: core::array::from_fn(|_| Default::default()),
            weights: core::array::from_fn(|_| AtomicU16::new(0)),
        }
    }

    /// What a VM's regions load the caches with from now on, and its weight. Numbers of VMs from [`MAX_VMS`] on are ignored.
    pub fn publish(&self, vm: u16, weight: u16, loads: &Loads) {
        let Some(own) = self.loads.get(usize::from(vm)) else { return };
        for (own, load) in own.iter().zip(loads) {
            own.store(*load, Ordering::Relaxed);
        }
        self.weigh(vm, weight);
    }

    /// A VM with this weight, from 1 on, has regions or is about to.
    pub fn weigh(&self, vm: u16, weight: u16) {
        if let Some(own) = self.weights.get(usize::from(vm)) {
            own.store(weight.max(1), Ordering::Relaxed);
        }
    }

    /// A VM has no regions any more.
    pub fn withdraw(&self, vm: u16) {
        self.publish(vm, 1, &Loads::default());
        if let Some(weight) = self.weights.get(usize::from(vm)) {
            weight.store(0, Ordering::Relaxed);
        }
    }

    /// The caches as a VM is balanced on them. `frames`: their size if it is not the one that the processor has.
    pub fn for_vm(&self, vm: u16, frames: Option<u32>) -> ArrayVec<Cache, { DOMAINS as usize }> {
        let others = |domain: usize| {
            let loads = self.loads.iter().enumerate().filter(|(other, _)| *other != usize::from(vm));
            loads.map(|(_, loads)| u64::from(loads[domain].load(Ordering::Relaxed))).sum()
        };
        let domains = self.sizes.iter().enumerate();
        let caches = domains.filter_map(|(n, size)| {
            Some(Cache { domain: Domain::new(n as u8)?, frames: frames.unwrap_or(*size), others: others(n) })
        });
        caches.collect()
    }

    /// The weights of all VMs that have regions.
    pub fn weights(&self) -> ArrayVec<Weight, MAX_VMS> {
        let all = self.weights.iter().enumerate().map(|(vm, weight)| (vm, weight.load(Ordering::Relaxed)));
        all.filter(|(_, weight)| *weight != 0).map(|(vm, weight)| Weight { vm: vm as u16, weight }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_sees_the_load_of_all_others() {
        let caches = Caches::new([100, 200]);
        let loads = |first, second| {
            let mut loads = Loads::default();
            (loads[0], loads[1]) = (first, second);
            loads
        };
        caches.publish(0, 256, &loads(7, 0));
        caches.publish(3, 9, &loads(1, 20));
        caches.publish(MAX_VMS as u16, 1, &loads(1000, 1000));
        let seen = |vm| caches.for_vm(vm, None).iter().map(|cache| cache.others).collect::<Vec<_>>();
        assert_eq!((seen(0), seen(3), seen(5)), (vec![1, 20], vec![7, 0], vec![8, 20]));
        assert_eq!(caches.for_vm(0, Some(64)).iter().map(|cache| cache.frames).collect::<Vec<_>>(), [64, 64]);
        assert_eq!(caches.weights()[..], [Weight { vm: 0, weight: 256 }, Weight { vm: 3, weight: 9 }]);
        caches.withdraw(0);
        assert_eq!((seen(3), caches.weights().len()), (vec![0, 0], 1));
    }
}
