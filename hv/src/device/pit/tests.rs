use proptest::prelude::*;

use super::*;

/// A counter stepped clock by clock, written down from the data sheet's mode definitions.
#[derive(Clone, Debug)]
struct Stepped {
    mode: u8,
    modulus: i64,
    gate: bool,
    cr: Option<i64>,
    ce: i64,
    loaded: i64,
    load_next: bool,
    counting: bool,
    armed: bool,
    out: bool,
    rises: u32,
}

impl Stepped {
    fn new(mode: u8, bcd: bool, gate: bool) -> Stepped {
        let modulus = if bcd { 10_000 } else { 0x1_0000 };
        Stepped {
            mode,
            modulus,
            gate,
            cr: None,
            ce: 0,
            loaded: 1,
            load_next: false,
            counting: false,
            armed: false,
            out: mode != 0,
            rises: 0,
        }
    }

    fn write(&mut self, count: i64) {
        self.cr = Some(count);
        match self.mode {
            0 => (self.out, self.load_next) = (false, true),
            4 => self.load_next = true,
            2 | 3 if !self.counting => self.load_next = self.gate,
            _ => {}
        }
    }

    fn set_gate(&mut self, gate: bool) {
        let rising = gate && !self.gate;
        self.gate = gate;
        match self.mode {
            1 | 2 | 3 | 5 if rising && self.cr.is_some() => {
                self.load_next = true;
                self.out = self.mode != 1;
            }
            2 | 3 if !gate => (self.out, self.counting) = (true, false),
            _ => {}
        }
    }

    fn clock(&mut self) {
        let before = self.out;
        if matches!(self.mode, 4 | 5) {
            self.out = true;
        }
        if core::mem::take(&mut self.load_next) {
            self.counting = true;
            self.armed = true;
            self.out = !matches!(self.mode, 0 | 1);
            self.reload();
        } else if self.counting {
            match self.mode {
                0 | 4 if !self.gate => {}
                0 | 1 | 4 | 5 => {
                    self.ce = (self.ce - 1).rem_euclid(self.modulus);
                    if self.ce == 0 && core::mem::take(&mut self.armed) {
                        self.out = matches!(self.mode, 0 | 1);
                    }
                }
                2 => {
                    self.ce -= 1;
                    if self.ce == 0 {
                        self.reload();
                    }
                    self.out = self.ce != 1;
                }
                _ => {
                    let last = if self.loaded % 2 == 1 && self.out { 0 } else { 2 };
                    if self.ce == last {
                        self.reload();
                        self.out = !self.out;
                    } else {
                        self.ce -= 2;
                    }
                }
            }
        }
        self.rises += u32::from(self.out && !before);
    }

    fn reload(&mut self) {
        self.loaded = self.cr.unwrap();
        self.ce = if self.mode == 3 { self.loaded & !1 } else { self.loaded };
    }

    fn readable(&self) -> i64 {
        self.ce % self.modulus
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write(u16),
    Gate(bool),
    Wait(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (2_u16..40).prop_map(Op::Write),
        prop_oneof![2_u16..9999, Just(0)].prop_map(Op::Write),
        any::<bool>().prop_map(Op::Gate),
        (1_u32..60).prop_map(Op::Wait),
        (1_u32..60).prop_map(Op::Wait),
        (1_u32..140_000).prop_map(Op::Wait),
    ]
}

fn from_digits(raw: u16) -> i64 {
    format!("{raw:x}").parse().unwrap()
}

fn to_digits(value: i64) -> u16 {
    u16::from_str_radix(&value.to_string(), 16).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn counter_agrees_with_clock_by_clock_model(
        mode in 0_u8..6, bcd: bool, gate: bool, ops in prop::collection::vec(op(), 1..12)
    ) {
        let mut counter = Counter::new(gate);
        let mut model = Stepped::new(mode, bcd, gate);
        let mut tick = 0;
        counter.set_mode(mode, bcd, tick);
        for op in ops {
            let mut wait = 1;
            match op {
                // What happens within the single tick of a strobe is not modelled.
                Op::Write(_) | Op::Gate(_) if mode >= 4 && !model.out => {}
                Op::Write(n) => {
                    let count = if n == 0 { model.modulus } else { n.into() };
                    counter.write(if bcd { to_digits(count % 10_000) } else { n }, tick);
                    model.write(count);
                }
                Op::Gate(gate) => {
                    counter.set_gate(gate, tick);
                    model.set_gate(gate);
                }
                Op::Wait(ticks) => wait = ticks,
            }
            counter.take_rise(tick);
            let predicted = counter.next_rise();
            model.rises = 0;
            let mut first = None;
            for _ in 0..wait {
                tick += 1;
                model.clock();
                if model.rises > 0 && first.is_none() {
                    first = Some(tick);
                }
            }
            prop_assert_eq!(predicted.filter(|&at| at <= tick), first);
            prop_assert_eq!(counter.take_rise(tick), first.is_some());
            prop_assert_eq!(counter.output(tick), model.out, "output of {:?}", &model);
            if model.counting {
                let value = counter.value(tick);
                prop_assert_eq!(if bcd { from_digits(value) } else { value.into() }, model.readable());
            }
        }
    }
}

/// The first nanosecond of a tick.
fn at(tick: u64) -> Nanos {
    PIT_CLOCK.when(tick).unwrap()
}

fn program(pit: &mut Pit, word: u8, count: u16, now: Nanos) {
    pit.write(3, word, now);
    let channel = u16::from(word >> 6);
    pit.write(channel, count as u8, now);
    pit.write(channel, (count >> 8) as u8, now);
}

#[test]
fn rate_generator_raises_irq0_without_drift() {
    let mut pit = Pit::new();
    program(&mut pit, 0x34, 11932, at(0));
    // An hour of 100 Hz: every edge at its exact tick.
    let mut now = at(0);
    for edge in 1..=360_000 {
        let next = pit.deadline().unwrap();
        assert_eq!(next, at(1 + edge * 11932));
        assert!(!pit.line(Nanos(next.0 - 1)).pulsed);
        now = next;
        assert_eq!(pit.line(now), Line { level: true, pulsed: true });
    }
    assert!(now.0 / 1_000_000_000 >= 3599);
}

#[test]
fn one_shot_fires_once() {
    let mut pit = Pit::new();
    program(&mut pit, 0x30, 1000, at(10));
    assert_eq!(pit.line(at(10)), Line::default());
    assert_eq!(pit.deadline(), Some(at(1011)));
    assert_eq!(pit.line(at(1010)), Line::default());
    assert_eq!(pit.line(at(1011)), Line { level: true, pulsed: true });
    assert_eq!(pit.line(at(90_000)), Line { level: true, pulsed: false });
    assert_eq!(pit.deadline(), None);
}

#[test]
fn reads_low_then_high_and_latches() {
    let mut pit = Pit::new();
    program(&mut pit, 0x34, 0x1234, at(0));
    pit.write(3, 0x00, at(1));
    assert_eq!(pit.read(0, at(500)), 0x34);
    pit.write(3, 0x00, at(600));
    assert_eq!(pit.read(0, at(700)), 0x12, "the latch holds until both bytes are read");
    let live = 0x1234 - (1000 - 1);
    assert_eq!(pit.read(0, at(1000)), live as u8);
    assert_eq!(pit.read(0, at(1000)), (live >> 8) as u8);
}

#[test]
fn read_back_latches_status_then_count_of_several_channels() {
    let mut pit = Pit::new();
    program(&mut pit, 0x36, 100, at(0));
    pit.write(3, 0xb8, at(0));
    pit.write(3, 0xca, at(5)); // count and status of channels 0 and 2
    assert_eq!(pit.read(0, at(9)), 0x80 | 0x36);
    assert_eq!(pit.read(0, at(9)), 100 - 2 * 4);
    assert_eq!(pit.read(0, at(9)), 0);
    assert_eq!(pit.read(2, at(9)), 0x80 | 0x40 | 0x38, "mode 4, count not written yet");
    program(&mut pit, 0x71, 0x9999, at(20));
    pit.write(3, 0xe4, at(21));
    assert_eq!(pit.read(1, at(30)), 0x31, "mode 0 in BCD, output low, loaded");
    assert_eq!(pit.read(1, at(21 + 8)), 0x91);
    assert_eq!(pit.read(1, at(21 + 8)), 0x99);
}

#[test]
fn single_byte_access() {
    let mut pit = Pit::new();
    pit.write(3, 0x14, at(0));
    pit.write(0, 200, at(0));
    assert_eq!(pit.read(0, at(1)), 200);
    assert_eq!(pit.read(0, at(2)), 199);
    pit.write(3, 0x24, at(2));
    pit.write(0, 2, at(2));
    assert_eq!(pit.read(0, at(3)), 2);
    assert_eq!(pit.read(0, at(4)), 1);
    assert_eq!(pit.read(3, at(4)), 0xff);
}

#[test]
fn calibration_loop_over_port_61() {
    let mut pit = Pit::new();
    // What operating systems do to time the processor: gate on, speaker off, mode 0, wait for OUT.
    let b = pit.read_control_b(at(0));
    pit.write_control_b(b & !2 | 1, at(0));
    program(&mut pit, 0xb0, 59_659, at(100));
    assert_eq!(pit.read_control_b(at(101)) & 0x21, 0x01);
    assert_eq!(pit.read_control_b(at(100 + 59_659)) & 0x20, 0);
    assert_eq!(pit.read_control_b(at(101 + 59_659)) & 0x20, 0x20);
    assert_ne!(pit.read_control_b(at(0)) & 0x10, pit.read_control_b(at(0).after(15_086)) & 0x10);
    pit.write_control_b(0xff, at(0));
    assert_eq!(pit.read_control_b(at(0)) & 0x0f, 0x0f);
}

#[test]
fn gate_starts_a_one_shot() {
    let mut pit = Pit::new();
    program(&mut pit, 0xb2, 50, at(0));
    assert_eq!(pit.read_control_b(at(10)) & 0x20, 0x20, "waits for the trigger");
    pit.write_control_b(1, at(20));
    assert_eq!(pit.read_control_b(at(21)) & 0x20, 0);
    assert_eq!(pit.read_control_b(at(21 + 49)) & 0x20, 0);
    assert_eq!(pit.read_control_b(at(21 + 50)) & 0x20, 0x20);
}

#[test]
fn fast_periods_do_not_flood() {
    let mut pit = Pit::new();
    program(&mut pit, 0x34, 2, at(0));
    assert!(pit.deadline().unwrap() >= at(MIN_WAKE_TICKS as u64));
}

#[test]
fn survives_arbitrary_accesses() {
    crate::device::fuzz::run(3000, 200, fuzz_one);
}
