//! Descriptions at random.

use alloc::vec::Vec;

use super::check::check;
use super::*;

/// Reads the bytes as caches, regions and a policy, and rebalances.
///
/// # Panics
/// If a promise of the module is broken: see [`check`].
pub fn fuzz_one(data: &[u8]) {
    let [policy, count, least, most, rest @ ..] = data else { return };
    let split = usize::from(count % 18).min(rest.len());
    let (sizes, rest) = rest.split_at(split);
    let caches = sizes.iter().enumerate().filter_map(|(n, size)| {
        Some(Cache {
            domain: Domain::new(n as u8)?,
            frames: u32::from(*size) << (size % 12),
            others: u64::from(size % 7) << (size % 14),
        })
    });
    let caches: Vec<Cache> = caches.collect();
    let items = rest.chunks_exact(5).take(MOST_ITEMS).enumerate().map(|(n, bytes)| {
        let was = if bytes[4] % 5 == 0 { None } else { Domain::new(bytes[4] % DOMAINS) };
        let load = u32::from(bytes[1]) << (bytes[2] % 25);
        Item::new(
            (bytes[0] % 3).into(),
            (bytes[0] % 16).into(),
            Rid(n as u16),
            load,
            Some(u32::from(bytes[3]) << 8).filter(|_| bytes[3] % 8 != 7),
            was,
        )
    });
    let items: Vec<Item> = items.collect();
    let weights =
        [Weight { vm: 0, weight: (*least).into() }, Weight { vm: 2, weight: u16::from(*most) << 8 }];
    let profitable = Profitable { least_ns: u32::from(*least) << 7, most_ns: u32::from(*most) << 8 };
    match policy % 3 {
        0 => check(Policy::Balance, &caches, items),
        1 => check(Policy::Unify(profitable), &caches, items),
        _ => check(Policy::Partition(&weights[..usize::from(policy / 3 % 3)]), &caches, items),
    }
}
