use super::*;

const LVT_TIMER: u32 = 0x320;
const INITIAL: u32 = 0x380;
const CURRENT: u32 = 0x390;
const DIVIDE: u32 = 0x3e0;
const BY_1: u32 = 0xb;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
const DEADLINE: u32 = 2 << 17;

fn at(lapic: &mut Lapic, offset: u32, value: u32, now: u64) {
    assert_eq!(lapic.write(offset, value, Tsc(now)), LapicEffect::None);
}

/// Vector 0x40, divide by 1.
fn timer(mode: u32) -> Lapic {
    let mut lapic = enabled();
    set(&mut lapic, DIVIDE, BY_1);
    set(&mut lapic, LVT_TIMER, mode | 0x40);
    lapic
}

/// Whether the timer's interrupt is pending at `now`; ends it.
fn fires(lapic: &mut Lapic, now: u64) -> bool {
    lapic.tick(Tsc(now));
    let fired = lapic.pending() == Some(0x40);
    if fired {
        lapic.acknowledge();
        assert_eq!(lapic.eoi(), LapicEffect::None);
    }
    assert_eq!(lapic.pending(), None);
    fired
}

#[test]
fn one_shot_counts_down_once() {
    let mut lapic = timer(0);
    at(&mut lapic, INITIAL, 100, 1000);
    assert_eq!(lapic.deadline(), Some(Tsc(1100)));
    assert_eq!((lapic.read(CURRENT, Tsc(1000)), lapic.read(CURRENT, Tsc(1030))), (100, 70));
    assert!(!fires(&mut lapic, 1099));
    assert!(fires(&mut lapic, 1100));
    assert_eq!((lapic.read(CURRENT, Tsc(1100)), lapic.read(INITIAL, Tsc(1100))), (0, 100));
    assert_eq!(lapic.deadline(), None);
    assert!(!fires(&mut lapic, 9999));
}

#[test]
fn divisors_are_encoded_in_three_bits() {
    for (code, divisor) in [(0, 2), (1, 4), (2, 8), (3, 16), (8, 32), (9, 64), (0xa, 128), (0xb, 1)] {
        let mut lapic = timer(0);
        set(&mut lapic, DIVIDE, code);
        at(&mut lapic, INITIAL, 10, 0);
        assert_eq!(lapic.deadline(), Some(Tsc(10 * divisor)), "{code:#x}");
        assert_eq!(lapic.read(CURRENT, Tsc(divisor)), 9);
        assert_eq!(lapic.read(CURRENT, Tsc(divisor - 1)), 10);
        assert_eq!(lapic.read(CURRENT, Tsc(10 * divisor - 1)), 1);
        assert_eq!(get(&mut lapic, DIVIDE), code);
    }
}

#[test]
fn periodic_goes_on_without_drift_and_without_bursts() {
    let mut lapic = timer(PERIODIC);
    at(&mut lapic, INITIAL, 100, 0);
    assert!(fires(&mut lapic, 130));
    assert_eq!((lapic.deadline(), lapic.read(CURRENT, Tsc(130))), (Some(Tsc(200)), 70));
    assert!(!fires(&mut lapic, 199));
    assert!(fires(&mut lapic, 200));
    assert!(fires(&mut lapic, 1_000_050), "once for ten thousand periods");
    assert_eq!(lapic.deadline(), Some(Tsc(1_000_100)));
    assert!(!fires(&mut lapic, 1_000_099));
    at(&mut lapic, INITIAL, 0, 1_000_100);
    assert_eq!(lapic.deadline(), None);
    assert!(fires(&mut lapic, 1_000_100), "it expired before it was stopped");
    assert!(!fires(&mut lapic, 1_001_000));
}

#[test]
fn periods_at_the_end_of_time_do_not_overflow() {
    let mut lapic = timer(PERIODIC);
    set(&mut lapic, DIVIDE, 0xa);
    at(&mut lapic, INITIAL, u32::MAX, u64::MAX - 5);
    assert_eq!(lapic.deadline(), Some(Tsc(u64::MAX)));
    assert!(fires(&mut lapic, u64::MAX));
    set(&mut lapic, DIVIDE, BY_1);
    at(&mut lapic, INITIAL, 1, 0);
    assert!(fires(&mut lapic, u64::MAX));
}

#[test]
fn a_masked_timer_counts_but_does_not_ask_to_be_called() {
    let mut lapic = timer(MASKED | PERIODIC);
    at(&mut lapic, INITIAL, 100, 0);
    assert_eq!(lapic.deadline(), None);
    assert_eq!(lapic.read(CURRENT, Tsc(250)), 50);
    // What expired while masked is lost.
    at(&mut lapic, LVT_TIMER, PERIODIC | 0x40, 299);
    assert!(!fires(&mut lapic, 299));
    assert!(fires(&mut lapic, 300));
    // What expired before it was masked is not.
    at(&mut lapic, LVT_TIMER, MASKED | PERIODIC | 0x40, 401);
    assert!(fires(&mut lapic, 401));
}

#[test]
fn a_new_divisor_applies_to_the_rest() {
    let mut lapic = timer(PERIODIC);
    at(&mut lapic, INITIAL, 100, 0);
    at(&mut lapic, DIVIDE, 0, 40);
    assert_eq!((lapic.read(CURRENT, Tsc(40)), lapic.deadline()), (60, Some(Tsc(160))));
    assert!(fires(&mut lapic, 160));
    assert_eq!(lapic.deadline(), Some(Tsc(360)));
}

#[test]
fn one_shot_and_periodic_switch_while_counting() {
    let mut lapic = timer(0);
    at(&mut lapic, INITIAL, 100, 0);
    at(&mut lapic, LVT_TIMER, PERIODIC | 0x40, 50);
    assert!(fires(&mut lapic, 100));
    at(&mut lapic, LVT_TIMER, 0x40, 150);
    assert!(fires(&mut lapic, 200));
    assert_eq!(lapic.deadline(), None);
}

#[test]
fn tsc_deadline_fires_once_and_reads_zero_afterwards() {
    let mut lapic = timer(DEADLINE);
    lapic.set_tsc_deadline(500, Tsc(100));
    assert_eq!((lapic.tsc_deadline(), lapic.deadline()), (500, Some(Tsc(500))));
    assert!(!fires(&mut lapic, 499));
    assert!(fires(&mut lapic, 500));
    assert_eq!((lapic.tsc_deadline(), lapic.deadline()), (0, None));
    lapic.set_tsc_deadline(10, Tsc(600));
    assert!(fires(&mut lapic, 600), "a deadline in the past");
    lapic.set_tsc_deadline(700, Tsc(600));
    lapic.set_tsc_deadline(0, Tsc(650));
    assert!(!fires(&mut lapic, 800));
    lapic.set_tsc_deadline(900, Tsc(800));
    lapic.set_tsc_deadline(0, Tsc(900));
    assert!(fires(&mut lapic, 900), "it expired before it was disarmed");
    lapic.set_tsc_deadline(u64::MAX, Tsc(900));
    assert_eq!(lapic.tsc_deadline(), u64::MAX);
}

#[test]
fn the_other_modes_ignore_the_deadline_and_this_one_the_count() {
    let mut lapic = timer(DEADLINE);
    at(&mut lapic, INITIAL, 100, 0);
    assert_eq!((lapic.deadline(), lapic.read(INITIAL, Tsc(0)), lapic.read(CURRENT, Tsc(0))), (None, 0, 0));
    lapic.set_tsc_deadline(500, Tsc(0));
    assert_eq!(lapic.read(CURRENT, Tsc(0)), 0);
    at(&mut lapic, DIVIDE, 0, 0);
    assert_eq!(lapic.tsc_deadline(), 500);
    at(&mut lapic, LVT_TIMER, DEADLINE | MASKED | 0x40, 0);
    assert_eq!((lapic.tsc_deadline(), lapic.deadline()), (500, None));
    // Leaving the mode disarms; so does entering it.
    at(&mut lapic, LVT_TIMER, 0x40, 0);
    assert_eq!((lapic.tsc_deadline(), lapic.deadline()), (0, None));
    lapic.set_tsc_deadline(500, Tsc(0));
    assert_eq!(lapic.deadline(), None);
    at(&mut lapic, INITIAL, 100, 0);
    at(&mut lapic, LVT_TIMER, DEADLINE | 0x40, 0);
    assert_eq!(lapic.deadline(), None);
}

#[test]
fn the_reserved_mode_does_not_run() {
    let mut lapic = timer(3 << 17);
    at(&mut lapic, INITIAL, 100, 0);
    lapic.set_tsc_deadline(100, Tsc(0));
    assert_eq!((lapic.deadline(), lapic.tsc_deadline()), (None, 0));
}

#[test]
fn a_jump_of_the_tsc_moves_a_count_but_not_a_deadline() {
    let mut lapic = timer(0);
    at(&mut lapic, INITIAL, 100, 1000);
    lapic.tsc_jumped(Tsc(1040), Tsc(0));
    assert_eq!((lapic.read(CURRENT, Tsc(0)), lapic.deadline()), (60, Some(Tsc(60))));
    let mut lapic = timer(DEADLINE);
    lapic.set_tsc_deadline(500, Tsc(0));
    lapic.tsc_jumped(Tsc(100), Tsc(1000));
    assert_eq!(lapic.deadline(), Some(Tsc(500)));
}

#[test]
fn an_illegal_vector_is_an_error() {
    let mut lapic = timer(0);
    set(&mut lapic, LVT_TIMER, 0x0f);
    at(&mut lapic, INITIAL, 1, 0);
    lapic.tick(Tsc(1));
    assert_eq!((lapic.pending(), errors(&mut lapic)), (None, 0x40));
}

#[test]
fn disabling_by_software_masks() {
    let mut lapic = timer(0);
    at(&mut lapic, INITIAL, 100, 0);
    let _ = lapic.write(0xf0, 0xff, Tsc(0));
    assert_eq!((get(&mut lapic, LVT_TIMER), lapic.deadline()), (MASKED | 0x40, None));
    set(&mut lapic, LVT_TIMER, 0x40);
    assert_eq!(get(&mut lapic, LVT_TIMER), MASKED | 0x40, "the mask is stuck");
    let _ = lapic.write(0xf0, 0x1ff, Tsc(0));
    assert_eq!(get(&mut lapic, LVT_TIMER), MASKED | 0x40);
}
