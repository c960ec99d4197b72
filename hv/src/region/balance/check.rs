//! What must hold of each call, for tests and the fuzz target.

use alloc::vec::Vec;

use super::*;

/// The largest relative load of a cache, with items where they were or are to be.
fn largest(caches: &[Cache], items: &[Item], place: impl Fn(&Item) -> Option<Domain>) -> u64 {
    let of = |cache: &Cache| {
        let own = items.iter().filter(|item| place(item) == Some(cache.domain));
        let load: u64 = own.map(|item| u64::from(item.load)).sum();
        (load + cache.others) * UNIT / (4 * u64::from(cache.frames))
    };
    caches.iter().filter(|cache| cache.frames != 0).map(of).max().unwrap_or(0)
}

/// Rebalances, and again where the regions then are.
///
/// # Panics
/// If an item has no place though there are caches, if a group is torn apart, if evenness made the fullest cache fuller, or if
/// steady input does not come to rest.
pub fn check(policy: Policy<'_>, caches: &[Cache], mut items: Vec<Item>) {
    let has_cache = caches.iter().any(|cache| cache.frames != 0);
    let mut last = u64::MAX;
    // Each call moves at most MOST_MOVES; every one lowers a pair of loads by GAIN.
    for round in 0.. {
        let before = largest(caches, &items, |item| item.was);
        let outcome = rebalance(policy, caches, &mut items);
        let now = largest(caches, &items, |item| item.place);
        let counted = &items[..items.len().min(MOST_ITEMS)];
        assert!(!has_cache || counted.iter().all(|item| item.place.is_some()), "a region without a cache");
        for group in counted.chunk_by(|a, b| (a.vm, a.group) == (b.vm, b.group)) {
            let is_together = group.iter().all(|item| item.place == group[0].place);
            assert!(is_together || group[0].is_single || !has_cache, "a group is torn apart: {group:?}");
        }
        let is_for_evenness = outcome.placed == 0 && !matches!(policy, Policy::Partition(_));
        assert!(!is_for_evenness || now <= before, "{before} grew to {now} in round {round}");
        assert!(outcome.moved <= MOST_MOVES);
        let count = moves(&items).count();
        assert!(outcome != Outcome { spread: outcome.spread, ..Outcome::default() } || count == 0);
        items.iter_mut().for_each(|item| item.was = item.place);
        if count == 0 {
            break;
        }
        // Only unification may change its mind, once, when its margins begin to count.
        assert!(round < 100 || now < last, "no rest after {round} rounds");
        assert!(round < 2000, "no rest at all");
        last = now;
    }
}
