use proptest::prelude::*;

use super::*;

const T0: u64 = 0x100;
const T2: u64 = 0x140;
const INT: u64 = 1 << 2;
const PERIODIC: u64 = 1 << 3;
const SETVAL: u64 = 1 << 6;
const MODE_32: u64 = 1 << 8;

fn at(tick: u64) -> Nanos {
    Nanos(tick * 10)
}

fn route(gsi: u64) -> u64 {
    gsi << 9
}

fn running() -> Hpet {
    let mut hpet = Hpet::new();
    hpet.write(0x10, 8, ENABLE, at(0));
    hpet
}

#[test]
fn capabilities() {
    let mut hpet = Hpet::new();
    assert_eq!(hpet.read(0, 8, at(0)), 0x0098_9680_8086_a201);
    assert_eq!(hpet.read(4, 4, at(0)), 10_000_000);
    assert_eq!(hpet.read(T0 + 4, 4, at(0)), 0x00f0_0000);
    assert_eq!(hpet.read(T0, 4, at(0)), 0x30);
    hpet.write(0, 8, u64::MAX, at(0));
    assert_eq!(hpet.read(0, 4, at(0)), u64::from(HPET_BLOCK_ID));
    assert_eq!(hpet.read(0x3f8, 8, at(0)), 0);
}

#[test]
fn counter_halts_and_is_settable() {
    let mut hpet = Hpet::new();
    assert_eq!(hpet.read(0xf0, 8, at(1000)), 0);
    hpet.write(0xf0, 8, 0xffff_fff0, at(1000));
    hpet.write(0x10, 4, ENABLE, at(2000));
    assert_eq!(hpet.read(0xf0, 8, at(2032)), 0x1_0000_0010);
    assert_eq!(hpet.read(0xf4, 4, at(2032)), 1);
    assert_eq!(hpet.read(0xf0, 4, at(2032)), 0x10);
    hpet.write(0x10, 4, 0, at(2032));
    assert_eq!(hpet.read(0xf0, 8, at(9999)), 0x1_0000_0010);
}

#[test]
fn one_shot_edge_pulses_once() {
    let mut hpet = running();
    hpet.write(T2, 8, INT | route(21), at(0));
    hpet.write(T2 + 8, 8, 500, at(0));
    assert_eq!(hpet.deadline(), Some(at(500)));
    assert_eq!(hpet.outputs(at(499)), Outputs::default());
    assert_eq!(hpet.outputs(at(500)), Outputs { levels: 0, pulses: 1 << 21 });
    assert_eq!(hpet.outputs(at(90_000)), Outputs::default());
    assert_eq!(hpet.deadline(), None);
    assert_eq!(hpet.read(0x20, 8, at(90_000)), 0, "no status in edge mode");
}

#[test]
fn level_holds_until_status_is_cleared() {
    let mut hpet = running();
    hpet.write(T0, 8, INT | LEVEL_BIT | route(20), at(0));
    hpet.write(T0 + 8, 8, 10, at(0));
    assert_eq!(hpet.outputs(at(11)).levels, 1 << 20);
    assert_eq!(hpet.deadline(), None);
    assert_eq!(hpet.read(0x20, 8, at(12)), 1);
    hpet.write(0x20, 4, 2, at(13));
    assert_eq!(hpet.outputs(at(13)).levels, 1 << 20);
    hpet.write(0x20, 4, 1, at(13));
    assert_eq!(hpet.outputs(at(13)), Outputs::default());
}
const LEVEL_BIT: u64 = 1 << 1;

#[test]
fn legacy_replacement_takes_irq_0_and_8() {
    let mut hpet = Hpet::new();
    hpet.write(0x10, 8, ENABLE | LEGACY, at(0));
    assert!(hpet.is_legacy());
    for timer in 0..3 {
        hpet.write(0x100 + 0x20 * timer, 8, INT | route(22), at(0));
        hpet.write(0x108 + 0x20 * timer, 8, 7, at(0));
    }
    assert_eq!(hpet.outputs(at(7)).pulses, 1 << 0 | 1 << 8 | 1 << 22);
}

#[test]
fn unroutable_timer_drives_nothing() {
    let mut hpet = running();
    hpet.write(T0, 8, INT | route(3), at(0));
    hpet.write(T0 + 8, 8, 7, at(0));
    assert_eq!(hpet.deadline(), None);
    assert_eq!(hpet.outputs(at(7)), Outputs::default());
}

#[test]
fn periodic_as_linux_programs_it() {
    let mut hpet = Hpet::new();
    hpet.write(0x10, 4, ENABLE | LEGACY, at(0));
    let now = at(12_345);
    hpet.write(T0, 4, INT | PERIODIC | SETVAL | MODE_32, now);
    hpet.write(T0 + 8, 4, 12_345 + 400_000, now);
    assert_eq!(hpet.read(T0, 4, now) & SETVAL, 0);
    hpet.write(T0 + 8, 4, 400_000, now.after(1000));
    hpet.outputs(now);
    for tick in 1..=20_000 {
        let next = hpet.deadline().unwrap();
        assert_eq!(next, at(12_345 + tick * 400_000), "across the 32-bit wrap too");
        assert_eq!(hpet.outputs(Nanos(next.0 - 1)), Outputs::default());
        assert_eq!(hpet.outputs(next).pulses, 1);
    }
}

#[test]
fn periodic_with_a_single_write() {
    let mut hpet = Hpet::new();
    hpet.write(T0, 8, INT | PERIODIC | SETVAL | route(20), at(0));
    hpet.write(T0 + 8, 8, 2000, at(0));
    hpet.write(0x10, 8, ENABLE, at(0));
    assert_eq!(hpet.outputs(at(2000)).pulses, 1 << 20);
    assert_eq!(hpet.read(T0 + 8, 8, at(2000)), 4000);
    assert_eq!(hpet.outputs(at(9999)).pulses, 1 << 20, "several matches coalesce");
    assert_eq!(hpet.read(T0 + 8, 8, at(9999)), 10_000);
}

#[test]
fn fast_periods_do_not_flood() {
    let mut hpet = running();
    hpet.write(T0, 8, INT | PERIODIC | SETVAL | route(20), at(0));
    hpet.write(T0 + 8, 8, 1, at(0));
    hpet.outputs(at(100));
    assert_eq!(hpet.deadline(), Some(at(1100)));
}

#[derive(Clone, Debug)]
enum Op {
    Config(u64),
    Comparator(u64),
    Counter(u64),
    Wait(u64),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// One timer against a comparator that is looked at on every tick.
    #[test]
    fn agrees_with_tick_by_tick_model(ops in prop::collection::vec(prop_oneof![
        prop::sample::select(vec![INT, INT | PERIODIC, INT | PERIODIC | SETVAL]).prop_map(Op::Config),
        (0_u64..400).prop_map(Op::Comparator),
        (0_u64..400).prop_map(Op::Counter),
        (0_u64..300).prop_map(Op::Wait),
        (0_u64..300).prop_map(Op::Wait),
    ], 1..20)) {
        let mut hpet = running();
        let (mut config, mut comparator, mut period, mut counter) = (0, u64::MAX, 0, 0_u64);
        let (mut tick, mut compared) = (0, false);
        for op in ops {
            let mut wait = 0;
            let now = at(tick);
            match op {
                Op::Config(value) => {
                    hpet.write(T0, 8, value | route(20), now);
                    config = value;
                }
                Op::Comparator(value) => {
                    hpet.write(T0 + 8, 8, value, now);
                    if config & PERIODIC != 0 {
                        period = value;
                    }
                    if config & PERIODIC == 0 || config & SETVAL != 0 {
                        comparator = value;
                        compared = false;
                    }
                    config &= !SETVAL;
                }
                Op::Counter(value) => {
                    hpet.write(0xf0, 8, value, now);
                    counter = value;
                    compared = false;
                }
                Op::Wait(ticks) => wait = ticks,
            }
            let mut fired = false;
            for step in 0..=wait {
                if step > 0 {
                    (tick, counter, compared) = (tick + 1, counter.wrapping_add(1), false);
                }
                if !compared && counter == comparator {
                    fired |= config & INT != 0;
                    if config & PERIODIC != 0 {
                        comparator = comparator.wrapping_add(period);
                    }
                }
                compared = true;
            }
            prop_assert_eq!(hpet.outputs(at(tick)).pulses != 0, fired);
            prop_assert_eq!(hpet.read(0xf0, 8, at(tick)), counter);
            prop_assert_eq!(hpet.read(T0 + 8, 8, at(tick)), comparator);
        }
    }
}

#[test]
fn survives_arbitrary_accesses() {
    crate::device::fuzz::run(3000, 300, fuzz_one);
}
