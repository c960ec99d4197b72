use super::*;
use crate::device::fuzz;

const NON_SPECIFIC_EOI: u8 = 0x20;

/// Initialized as a PC's firmware does: vectors 0x20 and 0x28, everything unmasked.
fn pc() -> Pic {
    let mut pic = Pic::new();
    init(&mut pic, 0x01);
    pic
}

fn init(pic: &mut Pic, icw4: u8) {
    for (port, base, icw3) in [(0x20, 0x20, 0x04), (0xa0, 0x28, 0x02)] {
        pic.write(port, 0x11);
        pic.write(port + 1, base);
        pic.write(port + 1, icw3);
        pic.write(port + 1, icw4);
        pic.write(port + 1, 0);
    }
}

/// The vector of what is requested.
fn take(pic: &mut Pic) -> Option<u8> {
    pic.output().then(|| pic.acknowledge())
}

fn isr(pic: &mut Pic, port: u16) -> u8 {
    pic.write(port, 0x0b);
    let value = pic.read(port);
    pic.write(port, 0x0a);
    value
}

#[test]
fn everything_is_masked_until_initialized() {
    let mut pic = Pic::new();
    (0..16).for_each(|irq| pic.set_line(irq, true));
    assert!(!pic.output());
    assert_eq!((pic.read(0x21), pic.read(0xa1)), (0xff, 0xff));
}

#[test]
fn inputs_have_consecutive_vectors() {
    for irq in (0..16).filter(|irq| *irq != 2) {
        let mut pic = pc();
        pic.set_line(irq, true);
        assert_eq!(take(&mut pic), Some(0x20 + irq));
        assert_eq!(isr(&mut pic, 0x20), if irq < 8 { 1 << irq } else { 0x04 });
        assert_eq!(isr(&mut pic, 0xa0), if irq < 8 { 0 } else { 1 << (irq - 8) });
    }
}

#[test]
fn priorities_are_fully_nested() {
    let mut pic = pc();
    pic.set_line(4, true);
    assert_eq!(take(&mut pic), Some(0x24));
    pic.set_line(5, true);
    assert_eq!(take(&mut pic), None, "lower than what is in service");
    pic.set_line(9, true);
    assert_eq!(take(&mut pic), Some(0x29), "the slave is at input 2");
    pic.set_line(0, true);
    assert_eq!(take(&mut pic), Some(0x20));
    // Four EOIs: 0, then the cascade (and the slave's own), then 4 uncovers 5.
    pic.write(0x20, NON_SPECIFIC_EOI);
    pic.write(0xa0, NON_SPECIFIC_EOI);
    pic.write(0x20, NON_SPECIFIC_EOI);
    assert_eq!(isr(&mut pic, 0x20), 0x10);
    assert_eq!(take(&mut pic), None);
    pic.write(0x20, NON_SPECIFIC_EOI);
    assert_eq!(take(&mut pic), Some(0x25));
}

#[test]
fn the_mask_register_holds_requests_back() {
    let mut pic = pc();
    pic.write(0x21, 0x08);
    pic.set_line(3, true);
    assert!(!pic.output());
    assert_eq!((pic.read(0x20), pic.read(0x21)), (0x08, 0x08));
    pic.write(0x21, 0x00);
    assert_eq!(take(&mut pic), Some(0x23));
    pic.write(0x21, 0x04);
    pic.set_line(8, true);
    assert!(!pic.output());
}

#[test]
fn an_edge_counts_once() {
    let mut pic = pc();
    pic.set_line(1, true);
    take(&mut pic);
    pic.write(0x20, NON_SPECIFIC_EOI);
    assert!(!pic.output(), "the input is still high");
    pic.set_line(1, false);
    pic.set_line(1, true);
    assert_eq!(take(&mut pic), Some(0x21));
}

#[test]
fn an_edge_waits_although_its_line_falls() {
    for irq in [0, 1, 12] {
        let mut pic = pc();
        let port = if irq < 8 { 0x20 } else { 0xa0 };
        pic.write(port + 1, 0xff);
        pic.set_line(irq, true);
        pic.set_line(irq, false);
        assert!(!pic.output(), "it is masked");
        assert_eq!(pic.read(port), 1 << (irq & 7), "and requested");
        pic.write(port + 1, 0);
        assert_eq!(take(&mut pic), Some(0x20 + irq));
        pic.write(0xa0, NON_SPECIFIC_EOI);
        pic.write(0x20, NON_SPECIFIC_EOI);
        assert_eq!(take(&mut pic), None, "two edges before the acknowledge are one, and it is served");
        // It counts again, although it fell while it was in service.
        pic.set_line(irq, true);
        assert_eq!(take(&mut pic), Some(0x20 + irq));
        pic.set_line(irq, false);
        pic.set_line(irq, true);
        pic.set_line(irq, false);
        assert_eq!(take(&mut pic), None, "in service");
        pic.write(0xa0, NON_SPECIFIC_EOI);
        pic.write(0x20, NON_SPECIFIC_EOI);
        assert_eq!(take(&mut pic), Some(0x20 + irq));
    }
}

#[test]
fn initialization_forgets_edges() {
    let mut pic = pc();
    pic.set_line(6, true);
    pic.set_line(6, false);
    init(&mut pic, 0x01);
    assert!(!pic.output());
}

#[test]
fn a_level_that_goes_away_is_spurious() {
    for irq in [5, 12] {
        let mut pic = pc();
        pic.write(0x4d0, 0x20);
        pic.write(0x4d1, 0x10);
        pic.set_line(irq, true);
        assert!(pic.output());
        pic.set_line(irq, false);
        assert!(!pic.output());
        assert_eq!(pic.acknowledge(), 0x27);
        assert_eq!((isr(&mut pic, 0x20), isr(&mut pic, 0xa0)), (0, 0));
    }
}

#[test]
fn a_pulse_waits_to_be_acknowledged() {
    for irq in [0, 8] {
        let mut pic = pc();
        pic.pulse(irq);
        assert_eq!(take(&mut pic), Some(0x20 + irq));
        pic.write(0xa0, NON_SPECIFIC_EOI);
        pic.write(0x20, NON_SPECIFIC_EOI);
        assert!(!pic.output());
    }
    let mut pic = pc();
    pic.write(0x4d0, 0x20);
    pic.pulse(5);
    pic.pulse(2);
    assert!(!pic.output());
}

#[test]
fn a_level_counts_while_it_lasts() {
    let mut pic = pc();
    pic.write(0x4d1, 0x08);
    pic.set_line(11, true);
    for _ in 0..3 {
        assert_eq!(take(&mut pic), Some(0x2b));
        assert!(!pic.output());
        pic.write(0xa0, NON_SPECIFIC_EOI);
        pic.write(0x20, NON_SPECIFIC_EOI);
    }
    pic.set_line(11, false);
    assert!(!pic.output());
}

#[test]
fn fixed_inputs_stay_edge_triggered() {
    let mut pic = pc();
    pic.write(0x4d0, 0xff);
    pic.write(0x4d1, 0xff);
    assert_eq!((pic.read(0x4d0), pic.read(0x4d1)), (0xf8, 0xde));
    // Initialization does not touch the edge/level registers.
    init(&mut pic, 0x01);
    assert_eq!((pic.read(0x4d0), pic.read(0x4d1)), (0xf8, 0xde));
}

#[test]
fn two_requests_at_the_slave_arrive_one_after_the_other() {
    let mut pic = pc();
    pic.set_line(12, true);
    pic.set_line(14, true);
    assert_eq!(take(&mut pic), Some(0x2c));
    pic.write(0xa0, NON_SPECIFIC_EOI);
    pic.write(0x20, NON_SPECIFIC_EOI);
    assert_eq!(take(&mut pic), Some(0x2e));
}

#[test]
fn special_fully_nested_mode_lets_the_slave_interrupt_itself() {
    for (icw4, expected) in [(0x01, None), (0x11, Some(0x28))] {
        let mut pic = Pic::new();
        init(&mut pic, icw4);
        pic.set_line(12, true);
        take(&mut pic);
        pic.set_line(8, true);
        assert_eq!(take(&mut pic), expected);
    }
}

#[test]
fn automatic_eoi_leaves_nothing_in_service() {
    let mut pic = Pic::new();
    init(&mut pic, 0x03);
    pic.set_line(3, true);
    assert_eq!(take(&mut pic), Some(0x23));
    assert_eq!(isr(&mut pic, 0x20), 0);
    // Rotation in automatic EOI mode: what was served becomes the lowest.
    pic.write(0x20, 0x80);
    pic.set_line(4, true);
    assert_eq!(take(&mut pic), Some(0x24));
    pic.pulse(4);
    pic.pulse(3);
    pic.pulse(5);
    assert_eq!(take(&mut pic), Some(0x25));
    pic.write(0x20, 0x00);
    assert_eq!(take(&mut pic), Some(0x23));
    pic.pulse(5);
    assert_eq!(take(&mut pic), Some(0x24), "5 is still the lowest, and rotation is off");
}

#[test]
fn eoi_commands_rotate_and_select() {
    let mut pic = pc();
    pic.write(0x20, 0xc3);
    pic.set_line(3, true);
    pic.set_line(4, true);
    assert_eq!(take(&mut pic), Some(0x24), "set priority: 3 is the lowest");
    pic.write(0x20, 0x65);
    assert_eq!(isr(&mut pic, 0x20), 0x10, "a specific EOI for another input");
    pic.write(0x20, 0xe4);
    assert_eq!(isr(&mut pic, 0x20), 0, "rotate on specific EOI: 4 is the lowest");
    pic.pulse(4);
    assert_eq!(take(&mut pic), Some(0x23));
    pic.write(0x20, 0xa0);
    pic.pulse(3);
    assert_eq!(take(&mut pic), Some(0x24), "rotate on non-specific EOI: 3 is the lowest");
    pic.write(0x20, 0x40);
    assert_eq!(isr(&mut pic, 0x20), 0x10, "no operation");
}

#[test]
fn special_mask_mode_unblocks_lower_priorities() {
    let mut pic = pc();
    pic.set_line(1, true);
    take(&mut pic);
    pic.set_line(6, true);
    pic.write(0x21, 0x02);
    assert!(!pic.output());
    pic.write(0x20, 0x68);
    assert_eq!(take(&mut pic), Some(0x26));
    // A non-specific EOI does not see masked inputs.
    pic.write(0x20, NON_SPECIFIC_EOI);
    pic.write(0x20, NON_SPECIFIC_EOI);
    assert_eq!(isr(&mut pic, 0x20), 0x02);
    pic.write(0x20, 0x48);
    pic.write(0x20, NON_SPECIFIC_EOI);
    assert_eq!(isr(&mut pic, 0x20), 0);
}

#[test]
fn a_poll_acknowledges() {
    let mut pic = pc();
    pic.set_line(10, true);
    pic.write(0x20, 0x0c);
    assert_eq!(pic.read(0x20), 0x82);
    pic.write(0xa0, 0x0c);
    assert_eq!(pic.read(0xa0), 0x82);
    assert_eq!((isr(&mut pic, 0x20), isr(&mut pic, 0xa0)), (0x04, 0x04));
    pic.write(0x20, 0x0c);
    assert_eq!(pic.read(0x20), 0);
    assert_eq!(pic.read(0x20), 0, "only one read polls");
}

#[test]
fn initialization_resets() {
    let mut pic = pc();
    pic.write(0x20, 0xc3);
    pic.write(0x20, 0x0b);
    pic.set_line(5, true);
    take(&mut pic);
    pic.set_line(6, true);
    pic.write(0x21, 0xf0);
    // Without ICW4 and single: two words.
    pic.write(0x20, 0x12);
    pic.write(0x21, 0x47);
    assert_eq!(
        (pic.read(0x20), pic.read(0x21)),
        (0, 0),
        "reads IRR, which needs new edges; nothing is masked"
    );
    assert_eq!(isr(&mut pic, 0x20), 0);
    assert!(!pic.output());
    pic.set_line(6, false);
    pic.set_line(6, true);
    pic.set_line(3, true);
    assert_eq!(take(&mut pic), Some(0x43), "7 is the lowest again, and the base has 5 bits");
    pic.write(0x21, 0xff);
    assert_eq!(pic.read(0x21), 0xff, "an OCW1, not an ICW");
}

#[test]
fn other_ports_and_inputs_are_ignored() {
    let mut pic = pc();
    pic.write(0x22, 0xff);
    pic.set_line(16, true);
    pic.set_line(255, true);
    pic.set_line(2, true);
    assert_eq!(pic.read(0x22), 0xff);
    assert!(!pic.output());
}

#[test]
fn survives_random_operations() {
    fuzz::run(3000, 400, fuzz_one);
}
