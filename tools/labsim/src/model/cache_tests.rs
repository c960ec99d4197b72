//! Caches against lists, and against sets of time stamps, which is how the policies are written down.

use super::*;
use proptest::prelude::*;

/// A cache by the definition of its policy: a stamp for each way, and a search of all.
struct Plain {
    sets: Vec<Vec<(Option<u64>, u64)>>,
    policy: Policy,
    clock: u64,
    random: u64,
}

impl Plain {
    fn new(sets: usize, ways: usize, policy: Policy) -> Plain {
        Plain { sets: vec![vec![(None, 0); ways]; sets], policy, clock: 0, random: SEED }
    }

    fn touch(&mut self, line: u64) -> bool {
        self.clock += 1;
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(line % count) as usize];
        if let Some(way) = set.iter().position(|way| way.0 == Some(line)) {
            if self.policy.sees_hits() {
                set[way].1 = self.clock;
            }
            return true;
        }
        let empty = set.iter().position(|way| way.0.is_none());
        let way = empty.unwrap_or_else(|| self.policy.victim(set.len(), |way| set[way].1, &mut self.random));
        set[way] = (Some(line), self.clock);
        false
    }

    fn contains(&self, line: u64) -> bool {
        self.sets[(line % self.sets.len() as u64) as usize].iter().any(|way| way.0 == Some(line))
    }
}

const POLICIES: [Policy; 4] = [Policy::Lru, Policy::Plru, Policy::Fifo, Policy::Random];

proptest! {
    #[test]
    fn what_was_saved_comes_back(
        policy in prop::sample::select(&POLICIES[..3]),
        before in prop::collection::vec(0u64..100, 1..100),
        meanwhile in prop::collection::vec(0u64..100, 1..100),
        after in prop::collection::vec(0u64..100, 1..100),
    ) {
        let [cache, plain] = [(); 2].map(|()| Cache::new(32, 4, policy));
        let touch = |cache: &Cache, trace: &[u64]| trace.iter().map(|line| cache.touch(*line)).collect::<Vec<_>>();
        prop_assert_eq!(touch(&cache, &before), touch(&plain, &before));
        let mut saved = Saved::default();
        cache.save(&mut saved);
        touch(&cache, &meanwhile);
        cache.restore(&saved);
        prop_assert_eq!(touch(&cache, &after), touch(&plain, &after));
    }

    #[test]
    fn behaves_as_stamps(
        sets in 1usize..7,
        log in 0u32..7,
        policy in prop::sample::select(&POLICIES[..]),
        odd in any::<bool>(),
        trace in prop::collection::vec(0u64..400, 1..900),
    ) {
        let ways = if odd && policy != Policy::Plru { 1 + 3 * log as usize } else { 1 << log };
        let (cache, mut plain) = (Cache::new(sets * ways, ways, policy), Plain::new(sets, ways, policy));
        for line in trace {
            prop_assert_eq!(cache.contains(line), plain.contains(line));
            prop_assert_eq!(cache.touch(line), plain.touch(line), "{} of {:?}", line, policy);
            prop_assert!(cache.is_newest(line));
        }
    }

    #[test]
    fn behaves_as_lists(
        (sets, ways) in (1u64..7, 1usize..9),
        fifo in any::<bool>(),
        trace in prop::collection::vec(0u64..100, 1..600),
    ) {
        let policy = if fifo { Policy::Fifo } else { Policy::Lru };
        let cache = Cache::new(sets as usize * ways, ways, policy);
        let mut lists: Vec<Vec<u64>> = vec![vec![]; sets as usize];
        for line in trace {
            let list = &mut lists[(line % sets) as usize];
            let at = list.iter().position(|known| *known == line);
            prop_assert_eq!(cache.contains(line), at.is_some());
            match at {
                Some(at) if !fifo => drop(list.remove(at)),
                _ => {}
            }
            if at.is_none() || !fifo {
                list.insert(0, line);
                list.truncate(ways);
            }
            prop_assert_eq!(cache.touch(line), at.is_some());
            prop_assert!(cache.is_newest(line));
        }
    }
}

#[test]
fn any_policy_keeps_what_fits() {
    for policy in POLICIES {
        let cache = Cache::new(64, 4, policy);
        (0..64).for_each(|line| assert!(!cache.touch(line)));
        (0..64).rev().for_each(|line| assert!(cache.touch(line), "{policy:?}"));
    }
}
