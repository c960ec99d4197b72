use proptest::prelude::*;

use super::*;

/// 2024-02-28 23:59:58, a Wednesday.
const EPOCH: i64 = 1_709_164_798;
const S: u64 = SECOND_NS;

fn get(rtc: &mut Rtc, register: u8, now: Nanos) -> u8 {
    rtc.write(0, register, now);
    rtc.read(1, now)
}

fn set(rtc: &mut Rtc, register: u8, value: u8, now: Nanos) {
    rtc.write(0, register, now);
    rtc.write(1, value, now);
}

fn date(rtc: &mut Rtc, now: Nanos) -> [u8; 8] {
    [CENTURY, YEAR, MONTH, DAY, WEEKDAY, HOUR, MINUTE, SECOND].map(|register| get(rtc, register, now))
}

fn new() -> Rtc {
    Rtc::new(EPOCH, 0, 0)
}

#[test]
fn tells_the_time_in_bcd_across_a_leap_day() {
    let mut rtc = new();
    assert_eq!(date(&mut rtc, Nanos(S - 1)), [0x20, 0x24, 0x02, 0x28, 4, 0x23, 0x59, 0x58]);
    assert_eq!(date(&mut rtc, Nanos(S)), [0x20, 0x24, 0x02, 0x28, 4, 0x23, 0x59, 0x59]);
    assert_eq!(date(&mut rtc, Nanos(2 * S)), [0x20, 0x24, 0x02, 0x29, 5, 0, 0, 0]);
    assert_eq!(date(&mut rtc, Nanos((2 + 86_400) * S))[2..4], [0x03, 0x01]);
}

#[test]
fn twelve_hours_and_binary() {
    let mut rtc = new();
    set(&mut rtc, REG_B, BINARY, Nanos(0));
    assert_eq!(date(&mut rtc, Nanos(0)), [20, 24, 2, 28, 4, 0x80 | 11, 59, 58]);
    assert_eq!(get(&mut rtc, HOUR, Nanos(2 * S)), 12, "midnight is 12 AM");
    set(&mut rtc, REG_B, 0, Nanos(0));
    assert_eq!(get(&mut rtc, HOUR, Nanos((2 + 12 * 3600) * S)), 0x92, "noon is 12 PM");
}

#[test]
fn is_set_as_linux_sets_it() {
    let mut rtc = new();
    let now = Nanos(S / 3);
    set(&mut rtc, REG_B, HOURS_24 | SET, now);
    set(&mut rtc, REG_A, 0x76, now);
    let values = [(YEAR, 0x99), (MONTH, 0x12), (DAY, 0x31), (HOUR, 0x23), (MINUTE, 0x59), (SECOND, 0x59)];
    for (register, value) in values.into_iter().chain([(CENTURY, 0x19)]) {
        set(&mut rtc, register, value, now);
        assert_eq!(get(&mut rtc, register, Nanos(5 * S)), value, "stopped");
    }
    set(&mut rtc, REG_B, HOURS_24, Nanos(5 * S));
    let start = Nanos(6 * S + 123);
    set(&mut rtc, REG_A, 0x26, start);
    assert_eq!(date(&mut rtc, start.after(S / 2 - 1)), [0x19, 0x99, 0x12, 0x31, 6, 0x23, 0x59, 0x59]);
    assert_eq!(date(&mut rtc, start.after(S / 2)), [0x20, 0, 1, 1, 7, 0, 0, 0]);
}

#[test]
fn writes_while_running_take_effect() {
    let mut rtc = new();
    set(&mut rtc, MINUTE, 0x30, Nanos(0));
    assert_eq!(date(&mut rtc, Nanos(2 * S))[5..], [0x23, 0x31, 0x00]);
    set(&mut rtc, SECOND, 0xff, Nanos(2 * S));
    set(&mut rtc, MONTH, 0xff, Nanos(2 * S));
    get(&mut rtc, DAY, Nanos(3 * S));
}

#[test]
fn update_in_progress_precedes_the_update() {
    let mut rtc = new();
    let uip = |rtc: &mut Rtc, ns| get(rtc, REG_A, Nanos(ns)) & UPDATE_IN_PROGRESS != 0;
    assert!(!uip(&mut rtc, S - UPDATE_NS - 1));
    assert!(uip(&mut rtc, S - UPDATE_NS));
    assert!(uip(&mut rtc, S - 1));
    assert!(!uip(&mut rtc, S));
    set(&mut rtc, REG_B, SET, Nanos(S));
    assert!(!uip(&mut rtc, 2 * S - 1));
}

#[test]
fn update_interrupt_holds_until_c_is_read() {
    let mut rtc = new();
    set(&mut rtc, REG_B, HOURS_24 | UPDATE, Nanos(0));
    assert_eq!(rtc.deadline(), Some(Nanos(S)));
    assert!(!rtc.line(Nanos(S - 1)).level);
    assert!(rtc.line(Nanos(S)).level);
    assert_eq!(rtc.deadline(), None);
    assert_eq!(get(&mut rtc, REG_C, Nanos(S)), IRQ | UPDATE | PERIODIC);
    assert!(!rtc.line(Nanos(S)).level);
    assert_eq!(get(&mut rtc, REG_C, Nanos(S)), 0);
    assert_eq!(rtc.deadline(), Some(Nanos(2 * S)));
    set(&mut rtc, REG_B, SET | UPDATE, Nanos(S));
    assert_eq!(get(&mut rtc, REG_B, Nanos(S)), SET, "SET clears the update interrupt's enable");
}

#[test]
fn alarm_wakes_at_its_second_only() {
    let mut rtc = new();
    set(&mut rtc, SECOND_ALARM, 0x05, Nanos(0));
    set(&mut rtc, MINUTE_ALARM, 0xc0, Nanos(0));
    set(&mut rtc, HOUR_ALARM, 0x01, Nanos(0));
    set(&mut rtc, REG_B, HOURS_24 | ALARM, Nanos(0));
    let alarm = Nanos((2 + 3600 + 5) * S);
    assert_eq!(rtc.deadline(), Some(alarm));
    assert!(!rtc.line(Nanos(alarm.0 - 1)).level);
    assert!(rtc.line(alarm).level);
    assert_eq!(get(&mut rtc, REG_C, alarm) & (IRQ | ALARM), IRQ | ALARM);
    assert_eq!(rtc.deadline(), Some(alarm.after(60 * S)), "any minute of that hour");
    set(&mut rtc, MINUTE_ALARM, 0x99, alarm);
    assert_eq!(rtc.deadline(), None);
}

#[test]
fn periodic_rates() {
    for (rate, hz) in [(1, 256), (2, 128), (3, 8192), (6, 1024), (13, 8), (15, 2)] {
        let mut rtc = new();
        set(&mut rtc, REG_A, 0x20 | rate, Nanos(0));
        set(&mut rtc, REG_B, HOURS_24 | PERIODIC, Nanos(0));
        let mut count = 0;
        while let Some(next) = rtc.deadline().filter(|next| *next <= Nanos(3 * S)) {
            assert!(rtc.line(next).level);
            get(&mut rtc, REG_C, next);
            assert!(!rtc.line(next).level);
            count += 1;
        }
        assert_eq!(count, 3 * hz);
    }
    let mut rtc = new();
    set(&mut rtc, REG_A, 0x20, Nanos(0));
    set(&mut rtc, REG_B, PERIODIC, Nanos(0));
    assert_eq!(rtc.deadline(), None);
}

#[test]
fn memory_holds_sizes_and_what_is_written() {
    let mut rtc = Rtc::new(EPOCH, 3 << 30, 5 << 30);
    let mut word =
        |low, high| u16::from_le_bytes([low, high].map(|register| get(&mut rtc, register, Nanos(0))));
    assert_eq!(word(0x15, 0x16), 640);
    assert_eq!(word(0x17, 0x18), 0xffff);
    assert_eq!(word(0x34, 0x35), (((3_u64 << 30) - (16 << 20)) >> 16) as u16);
    assert_eq!(word(0x5c, 0x5d), (5_u64 << 30 >> 24) as u16);
    set(&mut rtc, 0x7f, 0xa5, Nanos(0));
    rtc.reset();
    assert_eq!(get(&mut rtc, 0x7f, Nanos(0)), 0xa5);
    assert_eq!(get(&mut rtc, REG_D, Nanos(0)), 0x80);
    assert_eq!(rtc.read(0, Nanos(0)), 0xff);
    let small = Rtc::new(EPOCH, 20 << 20, 0);
    assert_eq!(small.bytes[0x34], 64);
}

/// Registers as the chip has them, stepped by its crystal.
struct Stepped {
    time: [u8; 6], // second, minute, hour, day, month, year
    flags: u8,
}

fn bcd(value: u8) -> u8 {
    (value / 10) << 4 | (value % 10)
}

impl Stepped {
    fn step(&mut self, tick: u64, period: u64, alarm: [u8; 3]) {
        if tick.is_multiple_of(period) {
            self.flags |= PERIODIC;
        }
        if tick.is_multiple_of(32_768) {
            let [second, minute, hour, day, month, year] = &mut self.time;
            let length = [31, if *year % 4 == 0 { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            *second += 1;
            let limits = [60, 60, 24, length[usize::from(*month) - 1] + 1, 13, 100];
            let fields = [second, minute, hour, day, month, year];
            let mut carry = false;
            for (i, field) in fields.into_iter().enumerate() {
                *field += u8::from(carry);
                carry = *field == limits[i];
                if carry {
                    *field = u8::from(i == 3 || i == 4);
                }
            }
            self.flags |= UPDATE;
            if (0..3).all(|i| alarm[i] >= 0xc0 || alarm[i] == bcd(self.time[i])) {
                self.flags |= ALARM;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn agrees_with_crystal_by_crystal_model(
        start in prop::sample::select(vec![EPOCH, 1_735_689_596, 1_000_000_000]),
        rate in 3_u8..16,
        alarm in prop::array::uniform3(prop_oneof![3 => Just(0xff_u8), 1 => (0_u8..5).prop_map(bcd)]),
        enables in 0_u8..8,
        waits in prop::collection::vec((1_u64..100_000, any::<bool>()), 1..12),
    ) {
        let mut rtc = Rtc::new(start, 0, 0);
        let date = DateTime::from_seconds(start);
        let time = [date.second, date.minute, date.hour, date.day, date.month, date.year % 100].map(|v| v as u8);
        let mut model = Stepped { time, flags: 0 };
        set(&mut rtc, REG_A, 0x20 | rate, Nanos(0));
        for (register, value) in [SECOND_ALARM, MINUTE_ALARM, HOUR_ALARM].into_iter().zip(alarm) {
            set(&mut rtc, register, value, Nanos(0));
        }
        let enables = enables << 4;
        set(&mut rtc, REG_B, HOURS_24 | enables, Nanos(0));
        let mut tick = 0;
        for (wait, clear) in waits {
            rtc.line(CRYSTAL.when(tick).unwrap());
            let predicted = rtc.deadline();
            let mut risen = None;
            let was_high = model.flags & enables != 0;
            for _ in 0..wait {
                tick += 1;
                model.step(tick, 1 << (rate - 1), alarm);
                if risen.is_none() && !was_high && model.flags & enables != 0 {
                    risen = CRYSTAL.when(tick);
                }
            }
            let now = CRYSTAL.when(tick).unwrap();
            prop_assert_eq!(predicted.filter(|at| *at <= now), risen);
            prop_assert_eq!(rtc.line(now).level, model.flags & enables != 0);
            let registers = [SECOND, MINUTE, HOUR, DAY, MONTH, YEAR].map(|register| get(&mut rtc, register, now));
            prop_assert_eq!(registers, model.time.map(bcd));
            if clear {
                prop_assert_eq!(get(&mut rtc, REG_C, now) & INTERRUPTS, model.flags);
                model.flags = 0;
            }
        }
    }
}

#[test]
fn survives_arbitrary_accesses() {
    crate::device::fuzz::run(3000, 300, fuzz_one);
}
