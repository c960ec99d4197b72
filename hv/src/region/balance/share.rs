//! Caches for VMs by weight, as in the thesis' unfair policies (2.5.5, 2.5.6).
//!
//! All caches are laid side by side and cut into pieces in the order of the VMs' numbers, each as long as the VM's weight says. So at
//! most one cache stands between two neighbours, and VMs whose weights fit whole caches share none. Pieces below an eighth of
//! a cache are left out where a VM has a larger one: they would only serve to disturb the neighbour.

use super::{Item, Share, Shares};

/// A VM's part of the caches, beside those of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Number of the VM.
    pub vm: u16,
    /// Its part; 0 counts as 1.
    pub weight: u16,
}

impl Weight {
    /// The weight of a VM that is not named.
    pub const DEFAULT: u16 = 256;
}

/// All weights that count: those that are named, and those of VMs with regions.
pub struct Total<'a> {
    weights: &'a [Weight],
    /// VMs that have regions and are not named, by number, and how many.
    unnamed: [u64; Total::WORDS],
    sum: u64,
}

impl<'a> Total<'a> {
    /// VMs with larger numbers share the place of the last.
    const MOST: usize = 1024;
    const WORDS: usize = Total::MOST / 64;

    /// Adds up the weights. Of a VM that is named twice the first one counts.
    pub fn new(weights: &'a [Weight], items: &[Item]) -> Total<'a> {
        let mut total = Total { weights, unnamed: [0; Total::WORDS], sum: 0 };
        for (n, named) in weights.iter().enumerate() {
            if total.index_of(named.vm) == Some(n) {
                total.sum += weight_of(named);
            }
        }
        for item in items.iter().filter(|item| !weights.iter().any(|named| named.vm == item.vm)) {
            let (word, bit) = Total::bit(item.vm);
            if total.unnamed[word] & bit == 0 {
                total.unnamed[word] |= bit;
                total.sum += u64::from(Weight::DEFAULT);
            }
        }
        total
    }

    fn index_of(&self, vm: u16) -> Option<usize> {
        self.weights.iter().position(|named| named.vm == vm)
    }

    fn bit(vm: u16) -> (usize, u64) {
        let vm = usize::from(vm).min(Total::MOST - 1);
        (vm / 64, 1 << (vm % 64))
    }

    /// The sum of the weights of VMs before this one.
    fn before(&self, vm: u16) -> u64 {
        let named = self.weights.iter().enumerate().filter(|(_, named)| named.vm < vm);
        let named = named.filter(|(n, named)| self.index_of(named.vm) == Some(*n));
        let (word, bit) = Total::bit(vm);
        let ones = self.unnamed[..word].iter().map(|word| word.count_ones()).sum::<u32>()
            + (self.unnamed[word] & (bit - 1)).count_ones();
        named.map(|(_, named)| weight_of(named)).sum::<u64>() + u64::from(ones) * u64::from(Weight::DEFAULT)
    }

    /// What a VM has of the caches.
    pub fn of(&self, vm: u16, caches: &[Share]) -> Shares {
        let weight = self.index_of(vm).map_or(u64::from(Weight::DEFAULT), |n| weight_of(&self.weights[n]));
        let before = self.before(vm);
        let all: u64 = caches.iter().map(|cache| cache.size).sum();
        let cut = |weight: u64| (u128::from(all) * u128::from(weight) / u128::from(self.sum.max(1))) as u64;
        let own = cut(before)..cut(before + weight);
        let mut start = 0;
        let pieces = caches.iter().map(|cache| {
            let end = start + cache.size;
            let size = own.end.min(end).saturating_sub(own.start.max(start));
            start = end;
            (cache, size)
        });
        let pieces: arrayvec::ArrayVec<(&Share, u64), { super::DOMAINS as usize }> = pieces.collect();
        let largest = pieces.iter().map(|(_, size)| *size).max().unwrap_or(0);
        let counts =
            |(cache, size): &&(&Share, u64)| *size != 0 && (*size == largest || *size >= cache.size / 8);
        let kept = pieces.iter().filter(counts);
        let mut shares: Shares =
            kept.map(|&(cache, size)| Share { domain: cache.domain, size, others: 0 }).collect();
        if shares.is_empty() {
            // Too light for a quarter of a frame: where its piece would be.
            let mut end = 0;
            let at = caches.iter().find(|cache| {
                end += cache.size;
                own.start < end
            });
            shares.extend(at.or(caches.last()).map(|cache| Share {
                domain: cache.domain,
                size: 1,
                others: 0,
            }));
        }
        shares
    }
}

fn weight_of(named: &Weight) -> u64 {
    u64::from(named.weight.max(1))
}
