//! Memory that is taken and given back.

use super::super::super::MIN_PAGES;
use super::*;
use crate::arch::addr::Hpa;
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::guest_walk::PagingKind;
use crate::paging::random::Random;
use crate::paging::shadow::role::{Allowed, Controls, Role, Source};
use crate::paging::tree_key::TreeKey;

type Small<'a> = Pool<&'a Arena, Npt>;

/// The key of a page of level 1 that maps memory from frame `n` on.
fn key(n: u64) -> Key {
    let (controls, allowed) = (Controls::empty(), Allowed::all());
    let source = Source::Direct(0);
    Key::new(
        n,
        Role {
            level: 1,
            kind: PagingKind::Off,
            quadrant: 0,
            controls,
            allowed,
            source,
            tree: TreeKey::FIRST,
            guarded: false,
        },
    )
}

/// A page with one leaf in each of `groups` groups of 64.
fn page(pool: &mut Small<'_>, n: u64, groups: usize) -> PageId {
    pool.begin();
    if pool.is_short() {
        pool.relieve();
    }
    let id = pool.create(key(n), Gfn(n));
    for group in 0..groups {
        pool.map(id, group * 64 + 7, Hpa(0x10_0000 + ((n % 5) << 12)).0 | 1, n);
    }
    pool.owed = TlbFlush::None;
    id
}

fn checked(pool: &Small<'_>, arena: &Arena) {
    assert_eq!(arena.in_use(), pool.frames.total());
    pool.check_lists().unwrap();
}

#[test]
fn a_pool_takes_what_its_pages_need() {
    let arena = Arena::new(4000);
    let mut pool = Small::new(&arena, Limit::pages(2000), 40).unwrap();
    let first = arena.in_use();
    assert_eq!(first, 3 * MIN_PAGES);
    // 16 chunks for what is to come, and two for each page: half a frame.
    let ids: Vec<_> = (0..400).map(|n| page(&mut pool, n, 2)).collect();
    checked(&pool, &arena);
    assert_eq!(arena.in_use(), 400 + (800 + NEEDED).div_ceil(4) - 1 + 1);
    assert_eq!(pool.bytes().0 >> 12, (arena.in_use() + record_frames(2000)) as u64);
    for id in ids {
        pool.release(id);
    }
    pool.owed = TlbFlush::None;
    assert_eq!(pool.in_use(), 0);
    let most = arena.in_use();
    pool.give_back();
    checked(&pool, &arena);
    assert_eq!((arena.in_use(), pool.bytes().1 >> 12), (first, (most + record_frames(2000)) as u64));
    drop(pool);
    assert_eq!(arena.in_use(), 0);
}

#[test]
fn the_limit_of_memory_evicts() {
    for groups in [1, 8] {
        let arena = Arena::new(4000);
        let mut limit = Limit::pages(500);
        limit.frames = 100;
        let mut pool = Small::new(&arena, limit, 40).unwrap();
        (0..400).for_each(|n| _ = page(&mut pool, n, groups));
        checked(&pool, &arena);
        // A frame holds the chunks of four pages with one, and a page with eight needs three frames.
        let most = if groups == 1 { 65..=80 } else { 28..=33 };
        assert!(most.contains(&pool.in_use()), "{} pages with {groups} chunks", pool.in_use());
        assert!(pool.evictions >= 320 && arena.in_use() <= 100);
    }
}

#[test]
fn a_host_without_memory_is_a_limit_too() {
    let arena = Arena::new(4000);
    let mut pool = Small::new(&arena, Limit::pages(500), 40).unwrap();
    arena.set_limit(0);
    (0..200).for_each(|n| _ = page(&mut pool, n, 8));
    checked(&pool, &arena);
    assert!((MIN_PAGES - 4..=MIN_PAGES).contains(&pool.in_use()), "{}", pool.in_use());
}

#[test]
fn no_memory_for_what_is_always_there_is_an_error() {
    for frames in 0..3 * MIN_PAGES {
        let arena = Arena::new(frames);
        assert_eq!(Small::new(&arena, Limit::pages(500), 40).err(), Some(MapError::OutOfFrames));
        assert_eq!(arena.in_use(), 0, "all of it is given back");
    }
}

#[test]
fn what_is_not_used_for_long_is_given_back() {
    let arena = Arena::new(4000);
    let mut pool = Small::new(&arena, Limit::pages(1000), 40).unwrap();
    let ids: Vec<_> = (0..800).map(|n| page(&mut pool, n, 4)).collect();
    let most = arena.in_use();
    ids.into_iter().for_each(|id| pool.release(id));
    // A guest that uses ten pages at a time from now on.
    for n in 0..8000 {
        let ids: Vec<_> = (0..10).map(|m| page(&mut pool, 1000 + 10 * n + m, 1)).collect();
        ids.into_iter().for_each(|id| pool.release(id));
    }
    pool.owed = TlbFlush::None;
    checked(&pool, &arena);
    assert!(most > 1500 && arena.in_use() < 80, "{} of {most}", arena.in_use());
    // One that uses what it had keeps it.
    let before = arena.in_use();
    for n in 0..300 {
        let ids: Vec<_> = (0..40).map(|m| page(&mut pool, 100_000 + 40 * n + m, 1)).collect();
        ids.into_iter().for_each(|id| pool.release(id));
    }
    assert!(arena.in_use() <= before.max(40 + 3 * MIN_PAGES + NEEDED));
}

#[test]
fn pages_come_and_go_at_random() {
    for seed in 0..5 {
        let mut random = Random(seed);
        let arena = Arena::new(300);
        let mut limit = Limit::pages(16 + random.draw() as usize % 100);
        limit.frames = limit.frames.min(48 + random.draw() as usize % 100);
        let mut pool = Small::new(&arena, limit, 40).unwrap();
        for n in 0..400 {
            match random.draw() % 40 {
                0 => pool.release_all(),
                1 => {
                    pool.release_all();
                    pool.give_back();
                }
                2 => pool.trim(),
                3 => arena.set_limit(if random.once_in(2) { 300 } else { arena.in_use() }),
                4..16 => {
                    let ids: Vec<_> = pool.ids().collect();
                    if let Some(&id) = ids.get(random.draw() as usize % ids.len().max(1)) {
                        pool.release(id);
                    }
                }
                _ => _ = page(&mut pool, n, random.draw() as usize % 9),
            }
            pool.owed = TlbFlush::None;
            checked(&pool, &arena);
        }
    }
}
