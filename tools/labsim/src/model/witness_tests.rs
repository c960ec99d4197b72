//! Races, stale stand-ins, and mistakes.

use super::*;

const FOUND: Translation =
    Translation { pa: 0x7000, guest_shift: 12, nested_shift: 21, global: false, clean: false };
const DIFFERENCE: Difference =
    Difference { side: Side::Nested, port: Port::Data, asid: 1, page: 5, frame: 7 };

fn two() -> (Witness, Witness) {
    let stores = Arc::<Stores>::default();
    (Witness::new(0, Arc::clone(&stores)), Witness::new(1, stores))
}

fn fill(witness: &mut Witness) {
    let now = witness.now();
    witness.filled(1, Port::Data, 0x5000, &FOUND, now);
}

/// What it settles at the end about the one difference, met now.
fn verdict(witness: &mut Witness) -> Result<(), &'static str> {
    witness.met(DIFFERENCE, vec![0x100, 0x208]);
    witness.settle(true).pop().unwrap().verdict
}

#[test]
fn only_what_another_changed_since_the_walk_is_a_race() {
    let (mut one, other) = two();
    other.stored(0x208, 8);
    fill(&mut one);
    assert!(verdict(&mut one).is_err(), "stored before the walk");
    one.stored(0x208, 8);
    assert!(verdict(&mut one).is_err(), "stored by itself");
    other.stored(0x210, 8);
    assert!(verdict(&mut one).is_err(), "another entry");
    other.stored(0x20c, 4);
    assert!(verdict(&mut one).is_ok());
}

#[test]
fn what_was_flushed_is_no_race() {
    let (mut one, other) = two();
    let mut after = |flush: &dyn Fn(&mut Witness)| {
        fill(&mut one);
        other.stored(0x100, 8);
        flush(&mut one);
        verdict(&mut one).is_ok()
    };
    assert!(after(&|_| {}));
    assert!(!after(&|one| one.flush_page(1, 0x5123)));
    assert!(!after(&|one| one.flush(1, false)));
    assert!(!after(&|one| one.flush_all()));
    assert!(after(&|one| one.flush_page(1, 0x6000)) && after(&|one| one.flush_page(2, 0x5000)));
    assert!(after(&|one| one.flush(2, true)));
}

#[test]
fn a_stand_in_is_stale_after_a_store_until_the_flush() {
    let (mut one, other) = two();
    let verdict = |one: &mut Witness| {
        one.met_stale(DIFFERENCE, (12, false), vec![0x100, 0x208]);
        let settled = one.settle(true).pop().unwrap();
        assert!(settled.is_stale);
        settled.verdict.is_ok()
    };
    assert!(!verdict(&mut one), "nothing was stored");
    one.stored(0x208, 8);
    assert!(verdict(&mut one), "by itself");
    one.flush_page(1, 0x5000);
    assert!(!verdict(&mut one), "flushed");
    other.stored(0x100, 8);
    one.flush_page(1, 0x6000);
    one.flush(2, true);
    assert!(verdict(&mut one), "another page, another address space");
    one.enter(1);
    assert!(!verdict(&mut one), "a new address space");
    one.stored(0x100, 8);
    one.enter(1);
    assert!(verdict(&mut one), "no new one");
    one.flush(1, false);
    assert!(!verdict(&mut one), "flushed with all others");
    one.stored(0x210, 8);
    assert!(!verdict(&mut one), "another entry");
}

#[test]
fn it_waits_for_the_others_callbacks() {
    let (mut one, other) = two();
    fill(&mut one);
    one.met(DIFFERENCE, vec![0x100]);
    assert!(one.settle(false).is_empty());
    // The other had stored already, and says so only now.
    other.stored(0x100, 8);
    other.advance();
    one.met(DIFFERENCE, vec![0x100]);
    assert!(one.settle(false).is_empty());
    other.advance();
    let settled = one.settle(false).pop().unwrap();
    assert_eq!((settled.times, settled.verdict), (2, Ok(())));
    assert!(one.settle(true).is_empty());
}

#[test]
fn pieces_of_large_pages() {
    let (mut one, other) = two();
    let large = Translation { pa: 0x20_3000, guest_shift: 21, nested_shift: 21, ..FOUND };
    one.filled(1, Port::Code, 0x40_3000, &large, 0);
    other.stored(0x100, 8);
    let difference = Difference { page: 0x405, frame: 0x205, ..DIFFERENCE };
    one.met(difference, vec![0x100]);
    assert!(one.settle(true)[0].verdict.is_ok());
    one.flush_page(1, 0x5f_f000);
    one.met(difference, vec![0x100]);
    assert!(one.settle(true)[0].verdict.is_err());
}
