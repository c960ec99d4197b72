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
fn a_stand_in_is_stale_after_a_store_until_the_guests_flush() {
    const GUEST: u64 = 0x10_0000;
    let (mut one, other) = two();
    let met = |one: &mut Witness, global| {
        one.met_stale(DIFFERENCE, GUEST, (12, global), vec![0x100, 0x208]);
        let settled = one.settle(true).pop().unwrap();
        assert!(settled.is_stale);
        settled.verdict.is_ok()
    };
    assert!(!met(&mut one, false), "nothing was stored");
    one.stored(0x208, 8);
    assert!(met(&mut one, false), "by itself");
    one.guest_flushed(GUEST, GuestFlush::Page(0x5000));
    assert!(!met(&mut one, false), "flushed");
    other.stored(0x100, 8);
    one.guest_flushed(GUEST, GuestFlush::Page(0x6000));
    one.guest_flushed(2 * GUEST, GuestFlush::All);
    assert!(met(&mut one, false), "another page, another guest");
    // The hypervisor's own flushes, by an ASID that is new, too.
    one.flush(1, true);
    one.flush_page(1, 0x5000);
    one.flush_all();
    one.enter(1);
    assert!(met(&mut one, false));
    one.guest_flushed(GUEST, GuestFlush::NonGlobal);
    assert!((met(&mut one, false), met(&mut one, true)) == (false, true), "flushed, but for global pages");
    one.guest_flushed(GUEST, GuestFlush::All);
    assert!(!met(&mut one, true));
    one.stored(0x210, 8);
    assert!(!met(&mut one, false), "another entry");
}

#[test]
fn stores_to_a_table_that_no_walk_had_read_are_not_known() {
    const GUEST: u64 = 0x10_0000;
    let (mut one, _) = two();
    let met = |one: &mut Witness| {
        one.met_stale(DIFFERENCE, GUEST, (12, false), vec![0x1100, 0x2208]);
        one.settle(true).pop().unwrap().verdict.is_ok()
    };
    one.found(&[3]);
    assert!(!met(&mut one));
    one.found(&[3, 2]);
    assert!(met(&mut one));
    one.guest_flushed(GUEST, GuestFlush::NonGlobal);
    assert!(!met(&mut one), "it was read before the flush");
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
