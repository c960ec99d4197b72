//! Unification: which address spaces are served better by several caches (thesis 2.3.1, figure 19).

use super::{Item, Share};

/// Access times at which moving between caches pays on this machine, in nanoseconds: Condition 1. Measured with memlat; the lower
/// bound follows from the cost of a move, the upper one from the least gain that is of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profitable {
    /// The shortest.
    pub least_ns: u32,
    /// The longest.
    pub most_ns: u32,
}

/// Conditions 1 to 3, each alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The access time is in the profitable range.
    pub pays: bool,
    /// The working set is larger than each single cache.
    pub exceeds_one: bool,
    /// It is not larger than all together.
    pub fits_all: bool,
}

impl Conditions {
    /// Tests them for the regions of an address space. `sizes`: of the caches, in quarters of a frame. One that is spread already has
    /// a margin on all bounds, an eighth of the size and a quarter of the time, so that small changes do not move it to and fro.
    fn test(profitable: Profitable, sizes: impl Iterator<Item = u64> + Clone, group: &[Item]) -> Conditions {
        let (one, all) = (sizes.clone().max().unwrap_or(0), sizes.sum::<u64>());
        let working_set: u64 = group.iter().map(|item| u64::from(item.load)).sum();
        // Weighted by what each region brings into a cache; half of that must be known.
        let known = group.iter().filter_map(|item| Some((u64::from(item.load), item.access_ns?)));
        let known_load: u64 = known.clone().map(|(load, _)| load).sum();
        let time: u128 = known.map(|(load, time)| u128::from(load) * u128::from(time)).sum();
        let time = (time / u128::from(known_load.max(1))) as u64;
        let is_spread = group.iter().any(|item| item.was != group[0].was);
        let margin = |value: u64, part: u64| if is_spread { value / part } else { 0 };
        let (least, most) = (u64::from(profitable.least_ns), u64::from(profitable.most_ns));
        Conditions {
            pays: known_load > 0
                && 2 * known_load >= working_set
                && (least - margin(least, 4)..=most + margin(most, 4)).contains(&time),
            exceeds_one: working_set > one - margin(one, 8),
            fits_all: working_set <= all + margin(all, 8),
        }
    }

    /// Whether all hold.
    pub const fn hold(self) -> bool {
        self.pays && self.exceeds_one && self.fits_all
    }
}

/// Marks the items of groups that are to be spread; returns how many groups. Items of a group are neighbours.
pub fn choose(shares: &[Share], profitable: Profitable, items: &mut [Item]) -> u32 {
    let mut spread = 0;
    for group in items.chunk_by_mut(|a, b| (a.vm, a.group) == (b.vm, b.group)) {
        let conditions = Conditions::test(profitable, shares.iter().map(|share| share.size), group);
        if conditions.hold() && group.len() > 1 {
            group.iter_mut().for_each(|item| item.is_single = true);
            spread += 1;
        }
    }
    spread
}
