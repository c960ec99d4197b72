//! The greedy balancer: first what has no cache goes, largest first, where the load stays smallest; then the best move from the
//! fullest cache is made until none gains enough.
//!
//! Every move lowers the larger one of two relative loads, so the largest of all never grows, and the sum of their squares falls:
//! it ends. Time: items times caches for each move, and items squared where nothing has a cache yet.

use core::ops::Range;

use super::{DOMAINS, GAIN, Item, MOST_MOVES, Outcome, Share, UNIT};
use crate::region::Domain;

/// Loads of caches in quarters of a frame, in the order of the shares.
type Loads = [u64; DOMAINS as usize];

/// Gives items places among the shares. Items of a group are neighbours.
pub fn spread(shares: &[Share], items: &mut [Item], outcome: &mut Outcome) {
    if shares.is_empty() {
        return;
    }
    gather(shares, items, outcome);
    place(shares, items, outcome);
    even(shares, items, outcome);
}

/// What a load is of a share.
fn relative(share: &Share, load: u64) -> u64 {
    load.saturating_mul(UNIT) / share.size
}

/// The items from `start` on that move together: a group, or a single item.
fn unit_at(items: &[Item], start: usize) -> Option<Range<usize>> {
    let first = items.get(start)?;
    let same = |item: &&Item| (item.vm, item.group) == (first.vm, first.group) && !first.is_single;
    let others = items[start + 1..].iter().take_while(same).count();
    Some(start..start + 1 + others)
}

/// All of these ranges.
fn units(items: &[Item]) -> impl Iterator<Item = Range<usize>> + '_ {
    core::iter::successors(unit_at(items, 0), |unit| unit_at(items, unit.end))
}

fn load_of(items: &[Item]) -> u64 {
    items.iter().map(|item| u64::from(item.load)).sum()
}

fn put(items: &mut [Item], place: Option<Domain>) {
    items.iter_mut().for_each(|item| item.place = place);
}

/// Groups come together where most of their load is, if that is anywhere among the shares.
fn gather(shares: &[Share], items: &mut [Item], outcome: &mut Outcome) {
    let mut next = 0;
    while let Some(unit) = unit_at(items, next) {
        next = unit.end;
        let group = &mut items[unit];
        let at = |share: &Share| {
            let there = group.iter().filter(|item| item.place == Some(share.domain));
            there.fold(None, |sum, item| Some(sum.unwrap_or(0) + u64::from(item.load)))
        };
        // The first of equal ones.
        let best = shares.iter().rev().filter_map(|share| Some((at(share)?, share.domain)));
        let best = best.max_by_key(|(load, _)| *load).map(|(_, domain)| domain);
        if best.is_some() && group.iter().any(|item| item.place != best) {
            outcome.placed += 1;
        }
        put(group, best);
    }
}

fn loads(shares: &[Share], items: &[Item]) -> Loads {
    let mut loads = Loads::default();
    for (share, load) in shares.iter().zip(&mut loads) {
        *load = share.others + super::load(items, share.domain);
    }
    loads
}

/// Units without a place get one.
fn place(shares: &[Share], items: &mut [Item], outcome: &mut Outcome) {
    let mut loads = loads(shares, items);
    loop {
        let without = units(items).filter(|unit| items[unit.start].place.is_none());
        let largest = without.map(|unit| (load_of(&items[unit.clone()]), unit));
        // The first of equal ones.
        let largest = largest.reduce(|best, next| if next.0 > best.0 { next } else { best });
        let Some((load, unit)) = largest else { return };
        let after = |n: &usize| relative(&shares[*n], loads[*n] + load);
        let Some(to) = (0..shares.len()).min_by_key(after) else { return };
        loads[to] += load;
        put(&mut items[unit], Some(shares[to].domain));
        outcome.placed += 1;
    }
}

/// A move, and the larger one of the two relative loads behind it.
struct Best {
    after: u64,
    load: u64,
    unit: Range<usize>,
    from: usize,
    to: usize,
}

/// Moves single units as long as that gains something.
fn even(shares: &[Share], items: &mut [Item], outcome: &mut Outcome) {
    let mut loads = loads(shares, items);
    for _ in 0..MOST_MOVES {
        // The fullest first; where its units are too large, the next.
        let mut order: arrayvec::ArrayVec<usize, { DOMAINS as usize }> = (0..shares.len()).collect();
        order.sort_unstable_by_key(|n| (u64::MAX - relative(&shares[*n], loads[*n]), *n));
        let Some(best) = order.iter().find_map(|from| best_from(*from, shares, &loads, items)) else {
            return;
        };
        loads[best.from] -= best.load;
        loads[best.to] += best.load;
        put(&mut items[best.unit], Some(shares[best.to].domain));
        outcome.moved += 1;
    }
}

/// The move from a cache that leaves the larger load of the two smallest, if it gains enough.
fn best_from(from: usize, shares: &[Share], loads: &Loads, items: &[Item]) -> Option<Best> {
    let limit = relative(&shares[from], loads[from]).checked_sub(GAIN)?;
    let mut best: Option<Best> = None;
    for unit in units(items).filter(|unit| items[unit.start].place == Some(shares[from].domain)) {
        let load = load_of(&items[unit.clone()]);
        let left = relative(&shares[from], loads[from] - load);
        for to in (0..shares.len()).filter(|to| *to != from) {
            let after = left.max(relative(&shares[to], loads[to] + load));
            let is_better = best.as_ref().is_none_or(|best| (after, load) < (best.after, best.load));
            if load != 0 && after <= limit && is_better {
                best = Some(Best { after, load, unit: unit.clone(), from, to });
            }
        }
    }
    best
}
