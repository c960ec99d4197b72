//! The two levels: reach, splintering, flushes; and that the filter in front changes nothing.

use proptest::prelude::*;

use super::super::{
    bank::Geometry,
    policy::Policy,
    space::{ASIDS, Kind},
};
use super::*;

fn bank(entries: usize, ways: usize, policy: Policy, classes: u8) -> Bank {
    Bank::new([Geometry { entries, ways, policy, classes }])
}

fn small_machine(policy: Policy) -> Tlbs {
    Tlbs::new(bank(8, 4, policy, 3), bank(4, 4, policy, 1), vec![bank(32, 4, Policy::Lru, 3)])
}

fn tags(spaces: &Spaces, asid: u16) -> Tags {
    Tags { own: spaces.tag(asid, Kind::Linear), global: spaces.tag(asid, Kind::Global) }
}

/// A page that lies 1 GiB above its address.
fn page(va: u64, guest_shift: u32, nested_shift: u32) -> Translation {
    let pa = (va & !0xfff) + (1 << 30);
    Translation { pa, guest_shift, nested_shift, global: false, clean: false }
}

/// Looks up, and fills on a miss.
fn touch(tlbs: &mut Tlbs, spaces: &Spaces, va: u64, shift: u32) -> Found {
    let found = tlbs.look(Port::Data, va, tags(spaces, 0), spaces);
    match found {
        Found::Miss => tlbs.fill(Port::Data, va, &page(va, shift, shift), tags(spaces, 0), spaces),
        Found::First(entry) | Found::Second(entry) => assert_eq!(entry.frame, (va + (1 << 30)) >> 12),
    }
    found
}

/// Pages out of `count` that are found in the first level, and anywhere, in a second round through them.
fn held(tlbs: &mut Tlbs, count: u64) -> (usize, usize) {
    let spaces = Spaces::default();
    let mut round = || (0..count).map(|n| touch(tlbs, &spaces, n << 12, 12)).collect::<Vec<_>>();
    round();
    let second = round();
    let first = second.iter().filter(|found| matches!(found, Found::First(_))).count();
    (first, second.iter().filter(|found| **found != Found::Miss).count())
}

#[test]
fn each_level_reaches_as_far_as_it_has_entries() {
    assert_eq!(held(&mut small_machine(Policy::Lru), 8), (8, 8));
    assert_eq!(held(&mut small_machine(Policy::Lru), 16), (0, 16));
    assert_eq!(held(&mut small_machine(Policy::Lru), 32), (0, 32));
    assert_eq!(held(&mut small_machine(Policy::Lru), 64), (0, 0));
}

#[test]
fn large_pages_without_an_array_are_splintered_and_go_at_once() {
    let (mut tlbs, spaces) = (small_machine(Policy::Lru), Spaces::default());
    let va = 5 << 30;
    for offset in [0, 0x20_0000, 0x20_1000] {
        let known = tlbs.look(Port::Data, va + offset, tags(&spaces, 0), &spaces);
        assert_eq!(known == Found::Miss, offset != 0x20_1000, "1 GiB is kept as 2 MiB");
        tlbs.fill(Port::Data, va + offset, &page(va + offset, 30, 30), tags(&spaces, 0), &spaces);
    }
    tlbs.fill(Port::Data, 0x1000, &page(0x1000, 12, 12), tags(&spaces, 0), &spaces);
    tlbs.invalidate(va + 0x3000_0000, tags(&spaces, 0));
    tlbs.flushed(0);
    tlbs.switch(0);
    for offset in [0, 0x20_0000, 0x20_1000] {
        assert_eq!(tlbs.look(Port::Data, va + offset, tags(&spaces, 0), &spaces), Found::Miss);
    }
    assert_ne!(tlbs.look(Port::Data, 0x1000, tags(&spaces, 0), &spaces), Found::Miss);
}

#[test]
fn large_guest_pages_on_small_nested_ones_are_small() {
    let (mut tlbs, spaces) = (small_machine(Policy::Lru), Spaces::default());
    tlbs.fill(Port::Data, 0x20_0000, &page(0x20_0000, 21, 12), tags(&spaces, 0), &spaces);
    assert_ne!(tlbs.look(Port::Data, 0x20_0fff, tags(&spaces, 0), &spaces), Found::Miss);
    assert_eq!(tlbs.look(Port::Data, 0x20_1000, tags(&spaces, 0), &spaces), Found::Miss);
    // INVLPG of any address in the guest's page takes the piece out.
    tlbs.invalidate(0x3f_f000, tags(&spaces, 0));
    assert_eq!(tlbs.look(Port::Data, 0x20_0fff, tags(&spaces, 0), &spaces), Found::Miss);
}

#[test]
fn global_pages_outlive_a_flush_and_address_spaces_are_apart() {
    let (mut tlbs, mut spaces) = (small_machine(Policy::Lru), Spaces::default());
    let global = Translation { global: true, ..page(0x1000, 12, 12) };
    tlbs.fill(Port::Data, 0x1000, &global, tags(&spaces, 3), &spaces);
    tlbs.fill(Port::Data, 0x2000, &page(0x2000, 12, 12), tags(&spaces, 3), &spaces);
    let look = |tlbs: &mut Tlbs, spaces: &Spaces, va, asid| {
        tlbs.look(Port::Data, va, tags(spaces, asid), spaces) != Found::Miss
    };
    assert!(!look(&mut tlbs, &spaces, 0x1000, 4));
    assert!(!spaces.flush(3, Kind::Linear));
    assert!(look(&mut tlbs, &spaces, 0x1000, 3) && !look(&mut tlbs, &spaces, 0x2000, 3));
    assert!(!spaces.flush(3, Kind::Global));
    assert!(!look(&mut tlbs, &spaces, 0x1000, 3));
}

#[test]
fn clean_entries_keep_out_of_the_quick_way() {
    let (mut tlbs, spaces) = (small_machine(Policy::Lru), Spaces::default());
    let clean = Translation { clean: true, ..page(0x1000, 12, 12) };
    tlbs.fill(Port::Data, 0x1000, &clean, tags(&spaces, 0), &spaces);
    assert_eq!(tlbs.quick(Port::Data, 0x1000, || true), None);
    let found = tlbs.look(Port::Data, 0x1000, tags(&spaces, 0), &spaces);
    assert_eq!(found, Found::First(Entry { frame: 0x40001, clean: true }));
    assert_eq!(tlbs.quick(Port::Data, 0x1000, || true), None);
}

proptest! {
    /// With the filter in use or not, the same lookups hit and miss at the same levels.
    #[test]
    fn the_filter_changes_nothing(
        policy in prop_oneof![Just(Policy::Lru), Just(Policy::Plru), Just(Policy::Fifo), Just(Policy::Random)],
        trace in prop::collection::vec((0u8..40, 0u64..24, any::<bool>()), 1..500),
    ) {
        let (mut with, mut without) = (small_machine(policy), small_machine(policy));
        let mut spaces = Spaces::default();
        let mut asid = 0;
        for (what, number, large) in trace {
            let (shift, va) = if large { (21, (64 + number) << 21) } else { (12, number << 12) };
            match what {
                0 => {
                    asid = (number % 3) as u16 * (ASIDS / 3);
                    with.switch(asid);
                    without.switch(asid);
                    continue;
                }
                1 => {
                    for tlbs in [&mut with, &mut without] {
                        tlbs.invalidate(va, tags(&spaces, asid));
                        tlbs.flushed(asid);
                        tlbs.switch(asid);
                    }
                    continue;
                }
                2 => {
                    prop_assert!(!spaces.flush(asid, Kind::Linear));
                    for tlbs in [&mut with, &mut without] {
                        tlbs.flushed(asid);
                        tlbs.switch(asid);
                    }
                    continue;
                }
                _ => {}
            }
            let looked = without.look(Port::Data, va, tags(&spaces, asid), &spaces);
            match with.quick(Port::Data, va, || true) {
                Some(frame) => prop_assert_eq!(looked, Found::First(Entry { frame, clean: false })),
                None => prop_assert_eq!(with.look(Port::Data, va, tags(&spaces, asid), &spaces), looked),
            }
            if looked == Found::Miss {
                for tlbs in [&mut with, &mut without] {
                    tlbs.fill(Port::Data, va, &page(va, shift, shift), tags(&spaces, asid), &spaces);
                }
            }
        }
    }
}
