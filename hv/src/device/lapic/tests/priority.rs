use proptest::prelude::*;

use super::*;

/// The manual's rules over plain arrays.
#[derive(Clone, Copy)]
struct Model {
    irr: [bool; 256],
    isr: [bool; 256],
    level: [bool; 256],
    tpr: u8,
}

impl Model {
    fn highest(set: &[bool; 256]) -> u8 {
        (0..256).rev().find(|v| set[*v]).unwrap_or(0) as u8
    }

    fn ppr(&self) -> u8 {
        let serving = Self::highest(&self.isr);
        if self.tpr >> 4 >= serving >> 4 { self.tpr } else { serving & 0xf0 }
    }

    fn pending(&self) -> Option<u8> {
        let vector = Self::highest(&self.irr);
        (vector >> 4 > self.ppr() >> 4).then_some(vector)
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Accept(u8, bool),
    Acknowledge,
    Eoi,
    Tpr(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any::<u8>(), any::<bool>()).prop_map(|(vector, level)| Op::Accept(vector, level)),
        3 => Just(Op::Acknowledge),
        2 => Just(Op::Eoi),
        1 => (0u8..0xa0).prop_map(Op::Tpr),
    ]
}

proptest! {
    #[test]
    fn agrees_with_a_plain_model(ops in prop::collection::vec(op(), 0..200)) {
        let mut lapic = enabled();
        let mut model = Model { irr: [false; 256], isr: [false; 256], level: [false; 256], tpr: 0 };
        for op in ops {
            match op {
                Op::Accept(vector, level) => {
                    lapic.accept(vector, level);
                    if vector >= 16 {
                        model.irr[usize::from(vector)] = true;
                        model.level[usize::from(vector)] = level;
                    }
                }
                Op::Acknowledge => {
                    let expected = model.pending();
                    prop_assert_eq!(lapic.acknowledge(), expected.unwrap_or(0xff));
                    if let Some(vector) = expected {
                        model.irr[usize::from(vector)] = false;
                        model.isr[usize::from(vector)] = true;
                    }
                }
                Op::Eoi => {
                    let vector = Model::highest(&model.isr);
                    model.isr[usize::from(vector)] = false;
                    let level = model.level[usize::from(vector)];
                    let expected = if level { LapicEffect::EoiBroadcast(vector) } else { LapicEffect::None };
                    prop_assert_eq!(lapic.eoi(), expected);
                }
                Op::Tpr(tpr) => {
                    lapic.set_tpr(tpr);
                    model.tpr = tpr;
                }
            }
            prop_assert_eq!(lapic.pending(), model.pending());
            prop_assert_eq!(lapic.ppr(), model.ppr());
            for (index, (set, base)) in [(&model.isr, 0x100), (&model.level, 0x180), (&model.irr, 0x200)]
                .into_iter().enumerate()
            {
                for word in 0..8 {
                    let expected = (0..32).filter(|bit| set[32 * word + bit]).fold(0, |w, bit| w | 1 << bit);
                    prop_assert_eq!(get(&mut lapic, base + 16 * word as u32), expected, "set {}", index);
                }
            }
        }
    }
}

#[test]
fn a_higher_class_interrupts_and_the_same_class_waits() {
    let mut lapic = enabled();
    lapic.accept(0x41, false);
    assert_eq!(lapic.acknowledge(), 0x41);
    lapic.accept(0x4f, false);
    assert_eq!(lapic.pending(), None);
    lapic.accept(0x50, false);
    assert_eq!(lapic.acknowledge(), 0x50);
    assert_eq!((lapic.eoi(), lapic.pending()), (LapicEffect::None, None));
    assert_eq!((lapic.eoi(), lapic.pending()), (LapicEffect::None, Some(0x4f)));
    assert_eq!(lapic.eoi(), LapicEffect::None, "an EOI with nothing in service");
}

#[test]
fn one_vector_can_be_in_service_and_requested_again() {
    let mut lapic = enabled();
    lapic.accept(0x41, false);
    lapic.acknowledge();
    lapic.accept(0x41, false);
    lapic.accept(0x41, false);
    let _ = lapic.eoi();
    assert_eq!(lapic.acknowledge(), 0x41);
    let _ = lapic.eoi();
    assert_eq!(lapic.pending(), None);
}

#[test]
fn an_interrupt_that_is_gone_is_spurious() {
    let mut lapic = enabled();
    set(&mut lapic, 0xf0, 0x1e7);
    lapic.accept(0x41, false);
    lapic.set_tpr(0x40);
    assert_eq!(lapic.acknowledge(), 0xe7);
    assert_eq!(lapic.ppr(), 0x40);
    lapic.set_tpr(0x3f);
    assert_eq!(lapic.pending(), Some(0x41));
}

#[test]
fn an_offered_vector_can_be_taken_although_a_higher_one_came() {
    let mut lapic = enabled();
    lapic.accept(0x41, false);
    lapic.accept(0x91, false);
    lapic.take(0x41);
    lapic.take(0x77);
    assert_eq!((lapic.ppr(), lapic.pending()), (0x40, Some(0x91)));
}

#[test]
fn the_task_priority_shows_in_the_processor_priority() {
    let mut lapic = enabled();
    lapic.set_tpr(0x47);
    assert_eq!((lapic.ppr(), lapic.arbitration_priority()), (0x47, 0x47));
    lapic.accept(0x51, false);
    lapic.acknowledge();
    assert_eq!((lapic.ppr(), get(&mut lapic, 0xa0)), (0x50, 0x50));
    lapic.accept(0x61, false);
    assert_eq!(get(&mut lapic, 0x90), 0x60);
}

#[test]
fn eoi_broadcasts_can_be_suppressed() {
    let mut lapic = enabled();
    for (svr, expected) in [(0x1ff, LapicEffect::EoiBroadcast(0x41)), (0x11ff, LapicEffect::None)] {
        set(&mut lapic, 0xf0, svr);
        lapic.accept(0x41, true);
        lapic.acknowledge();
        assert_eq!(lapic.write(0xb0, 0, Tsc(0)), expected);
    }
}

#[test]
fn illegal_vectors_are_errors() {
    let mut lapic = enabled();
    for vector in 0..16 {
        lapic.accept(vector, true);
    }
    assert_eq!((lapic.pending(), get(&mut lapic, 0x200), get(&mut lapic, 0x180)), (None, 0, 0));
    assert_eq!(get(&mut lapic, 0x280), 0, "shown after a write");
    assert_eq!(errors(&mut lapic), 0x40);
    assert_eq!(errors(&mut lapic), 0);
}

#[test]
fn disabling_by_software_holds_what_is_requested_and_accepts_nothing() {
    let mut lapic = enabled();
    lapic.accept(0x41, false);
    let _ = lapic.write(0xf0, 0xff, Tsc(0));
    lapic.accept(0x51, false);
    assert_eq!(lapic.pending(), Some(0x41));
}
