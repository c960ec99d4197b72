use super::super::layout::{PM1A_EVENT, RESET_VALUE};
use super::*;

const NOW: Nanos = Nanos(0);
const ENABLE_PORT: u16 = PM1A_EVENT + 2;

#[test]
fn timer_counts_exactly() {
    let mut pm = Pm::new();
    let hour = Nanos(3_600_000_000_000);
    assert_eq!(pm.read(PM_TIMER, 4, NOW), 0);
    assert_eq!(pm.read(PM_TIMER, 4, hour), (3600 * 3_579_545_u64) as u32);
    assert_eq!(pm.read(PM_TIMER, 4, Nanos(hour.0 - 1)), (3600 * 3_579_545_u64 - 1) as u32);
    assert_eq!(pm.read(PM_TIMER + 1, 1, hour), ((3600 * 3_579_545_u64) >> 8) as u32 & 0xff);
}

#[test]
fn timer_event_at_each_change_of_the_top_bit() {
    let mut pm = Pm::new();
    assert_eq!(pm.deadline(), None);
    assert_eq!(pm.write(ENABLE_PORT, 2, TIMER.into(), NOW), Effect::None);
    for change in 1..=3 {
        let at = PM_CLOCK.when(change << 31).unwrap();
        assert_eq!(pm.deadline(), Some(at));
        assert!(!pm.line(Nanos(at.0 - 1)).level);
        assert!(pm.line(at).level);
        assert_eq!(pm.deadline(), None);
        assert_eq!(pm.write(PM1A_EVENT, 2, TIMER.into(), at), Effect::None);
        assert!(!pm.line(at).level);
    }
}

#[test]
fn soft_off_needs_type_and_enable() {
    let mut pm = Pm::new();
    let s5 = u32::from(SLEEP_TYPE_S5) << 10;
    assert_eq!(pm.read(PM1A_CONTROL, 2, NOW), 1);
    assert_eq!(pm.write(PM1A_CONTROL, 2, s5, NOW), Effect::None);
    assert_eq!(pm.read(PM1A_CONTROL, 2, NOW), s5 | 1);
    assert_eq!(pm.write(PM1A_CONTROL, 2, 1 << 10 | 1 << 13, NOW), Effect::None, "S1 is not offered");
    assert_eq!(pm.write(PM1A_CONTROL, 2, s5 | 1 << 13, NOW), Effect::PowerOff);
    assert_eq!(pm.read(PM1A_CONTROL, 2, NOW), s5 | 1, "SLP_EN is write-only");
    assert_eq!(pm.write(PM1A_CONTROL + 1, 1, (s5 | 1 << 13) >> 8, NOW), Effect::PowerOff, "as a byte");
}

#[test]
fn power_button_and_events() {
    let mut pm = Pm::new();
    pm.press_power_button();
    assert!(!pm.line(NOW).level);
    assert_eq!(pm.write(PM1A_EVENT, 4, 0x0100_0000, NOW), Effect::None);
    assert!(pm.line(NOW).level);
    assert_eq!(pm.read(PM1A_EVENT, 4, NOW), 0x0100_0100);
    assert_eq!(pm.write(PM1A_EVENT + 1, 1, 0x01, NOW), Effect::None);
    assert_eq!(pm.read(PM1A_EVENT, 4, NOW), 0x0100_0000);
    pm.raise_event(3);
    pm.raise_event(16);
    assert!(!pm.line(NOW).level);
    assert_eq!(pm.write(GPE0 + 2, 2, 1 << 3, NOW), Effect::None);
    assert!(pm.line(NOW).level);
    assert_eq!(pm.read(GPE0, 2, NOW), 1 << 3);
    assert_eq!(pm.write(GPE0, 1, 1 << 3, NOW), Effect::None);
    assert!(!pm.line(NOW).level);
}

#[test]
fn reset_control() {
    for kind in [0x02, 0x0a] {
        let mut pm = Pm::new();
        assert_eq!(pm.write_reset_control(kind), Effect::None);
        assert_eq!(pm.read_reset_control(), kind);
        assert_eq!(pm.write_reset_control(kind | 4), Effect::Reset);
    }
    assert_eq!(Pm::new().write_reset_control(RESET_VALUE), Effect::Reset);
    assert_eq!(Pm::new().write_reset_control(0xf1), Effect::None);
}

#[test]
fn survives_arbitrary_accesses() {
    crate::device::fuzz::run(2000, 300, fuzz_one);
}
