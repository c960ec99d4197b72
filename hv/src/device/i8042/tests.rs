use super::*;

fn ask(controller: &mut I8042, command: u8) -> (u8, u8) {
    assert_eq!(controller.write_command(command), Effect::None);
    let status = controller.read_status();
    (status, controller.read_data())
}

#[test]
fn self_tests() {
    let mut controller = I8042::new();
    assert_eq!(controller.read_status(), NOT_LOCKED | SYSTEM);
    assert_eq!(ask(&mut controller, 0xaa), (0x1d, 0x55));
    assert_eq!(ask(&mut controller, 0xab).1, 0);
    assert_eq!(controller.read_status() & OUTPUT_FULL, 0);
}

#[test]
fn configuration_byte() {
    let mut controller = I8042::new();
    assert_eq!(controller.write_command(0x60), Effect::None);
    assert_eq!(controller.write_data(0x47), Effect::None);
    assert_eq!(ask(&mut controller, 0x20).1, 0x47);
    assert_eq!(controller.write_command(0xad), Effect::None);
    assert_eq!(controller.write_command(0xa7), Effect::None);
    assert_eq!(ask(&mut controller, 0x20).1, 0x77);
}

#[test]
fn nothing_is_attached_and_that_is_known_at_once() {
    let mut controller = I8042::new();
    controller.memory[0] |= KEYBOARD_INTERRUPT | AUX_INTERRUPT;
    assert_eq!(controller.write_data(0xf2), Effect::None);
    assert!(controller.keyboard_line() && !controller.mouse_line());
    assert_eq!(controller.read_status() & (OUTPUT_FULL | TIMEOUT | FROM_AUX), OUTPUT_FULL | TIMEOUT);
    assert_eq!(controller.read_data(), RESEND);
    assert!(!controller.keyboard_line());
    assert_eq!(controller.write_command(0xd4), Effect::None);
    assert_eq!(controller.write_data(0xf2), Effect::None);
    assert!(controller.mouse_line() && !controller.keyboard_line());
    assert_ne!(controller.read_status() & TIMEOUT, 0);
    controller.read_data();
    assert_ne!(ask(&mut controller, 0xa9).1, 0, "the mouse port fails its test");
}

#[test]
fn keyboard_loop() {
    let mut controller = I8042::new();
    assert_eq!(controller.write_command(0xd2), Effect::None);
    assert_eq!(controller.write_data(0x5a), Effect::None);
    assert_eq!(controller.read_data(), 0x5a);
}

#[test]
fn three_ways_to_reset() {
    assert_eq!(I8042::new().write_command(0xfe), Effect::Reset);
    assert_eq!(I8042::new().write_command(0xff), Effect::None);
    let mut controller = I8042::new();
    assert_eq!(controller.write_command(0xd1), Effect::None);
    assert_eq!(controller.write_data(0xfe), Effect::Reset);
    assert_eq!(controller.write_control_a(3), Effect::Reset);
    assert_eq!(controller.write_control_a(3), Effect::None, "only the edge resets");
}

#[test]
fn a20_gates() {
    let mut controller = I8042::new();
    assert!(controller.is_a20_open());
    assert_eq!(controller.write_control_a(0), Effect::None);
    assert_eq!(controller.write_command(0xd1), Effect::None);
    assert_eq!(controller.write_data(0xdd), Effect::None);
    assert!(!controller.is_a20_open());
    assert_eq!(ask(&mut controller, 0xd0).1, 0xdd);
    assert_eq!(controller.write_control_a(2), Effect::None);
    assert_eq!(controller.read_control_a(), 2);
    assert!(controller.is_a20_open());
}

#[test]
fn survives_arbitrary_accesses() {
    crate::device::fuzz::run(2000, 200, fuzz_one);
}
