//! Whether counts and working sets are those of the planes.

use super::{GROUPS, Histories, planes, quarters};
use crate::arch::addr::Gfn;
use crate::region::{Rid, Space};

impl Histories {
    /// Compares counts and working sets with the planes, given the frames and their regions and address spaces.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(
        &self,
        frames: impl IntoIterator<Item = (Gfn, Rid, Space)>,
    ) -> Result<(), alloc::string::String> {
        let mut sums = alloc::vec![0; self.quarters.len()];
        let mut all = 0;
        let mut uniform = alloc::collections::BTreeMap::new();
        for (gfn, rid, space) in frames {
            let (place, bit) = self.place(gfn).ok_or_else(|| alloc::format!("{gfn:?} has no place"))?;
            let bits: u64 = self.planes[place].iter().map(|plane| plane >> bit & 1).sum();
            let own = Space(self.spaces[place][bit as usize].into());
            let word = self.present[usize::from(space.0) * self.stride + place / 64];
            let is_present = word & 1 << (place % 64) != 0;
            let is_left_out = rid == Rid::POOL && !self.has_pool;
            if own != space || !(is_present || is_left_out) || bits != u64::from(self.ones[place].get(bit)) {
                let ones = self.ones[place].get(bit);
                return Err(alloc::format!("{gfn:?}: {own:?} not {space:?}, {ones} ones of {bits}"));
            }
            let is_uniform = self.pieces[place / GROUPS].uniform >> (place % GROUPS) & 1 != 0;
            if is_uniform && *uniform.entry(place).or_insert(rid) != rid {
                return Err(alloc::format!("{gfn:?} is not in the region of its group"));
            }
            if bits != 0 && self.pieces[place / GROUPS].used >> (place % GROUPS) & 1 == 0 {
                return Err(alloc::format!("{gfn:?} has ones, and its piece does not say so"));
            }
            sums[rid.index()] += quarters(bits as u8);
            all += bits;
        }
        let ones = |place| (0..64).map(|bit| u64::from(self.ones[place].get(bit))).sum::<u64>();
        if (0..self.ones.len()).map(ones).sum::<u64>() != all {
            return Err("what is no RAM has ones".into());
        }
        let others = (0..self.spaces.len())
            .map(|place| (!planes::equal_bytes(&self.spaces[place], Space::VM.0 as u8)).count_ones());
        if others.map(u64::from).sum::<u64>() != self.others {
            return Err(alloc::format!("{} frames are not the VM's", self.others));
        }
        let wrong = (0..sums.len()).find(|&n| sums[n] != self.quarters[n]);
        wrong.map_or(Ok(()), |n| Err(alloc::format!("region {n}: {} of {}", self.quarters[n], sums[n])))
    }
}
