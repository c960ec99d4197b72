//! Random operations against what must hold for every pin.

use super::*;
use crate::device::fuzz::Input;

/// Interprets `data` as register accesses, line changes and EOIs.
pub fn fuzz_one(data: &[u8]) {
    let mut input = Input::new(data);
    let mut ioapic = IoApic::new(0);
    let mut messages = Messages::new();
    while let Some(op) = input.byte() {
        let before = ioapic.clone();
        match op % 8 {
            0 => ioapic.write(IOREGSEL, 0x10 + u32::from(op / 8), &mut messages),
            1 | 2 => ioapic.write(IOWIN, input.u32(), &mut messages),
            3 => {
                let offset = input.byte().unwrap_or(0);
                ioapic.write(offset.into(), input.u32(), &mut messages);
            }
            4 => ioapic.eoi(input.byte().unwrap_or(0), &mut messages),
            5 => {
                let _ = ioapic.read(input.byte().unwrap_or(0).into());
            }
            _ => ioapic.set_line(op / 8, input.byte().unwrap_or(0) & 1 != 0, &mut messages),
        }
        let mut level_messages = 0;
        for message in messages.drain() {
            assert!(message.mode != DeliveryMode::Startup);
            level_messages += u32::from(message.level);
        }
        check(&before, &ioapic, level_messages, op);
    }
}

/// The sink was empty before the operation, so nothing was refused.
fn check(before: &IoApic, after: &IoApic, level_messages: u32, op: u8) {
    let mut started = 0;
    let mut kept = 0;
    for pin in 0..PINS {
        let (was, is) = (before.table[pin], after.table[pin]);
        let under_way = is.has(Redirection::REMOTE_IRR);
        assert!(!under_way || is.is_level(), "remote IRR on an edge-triggered pin");
        if is.is_level() && !is.has(Redirection::MASKED) && after.lines & 1 << pin != 0 {
            assert!(under_way, "an asserted level is not sent");
        }
        started += u32::from(under_way && !was.has(Redirection::REMOTE_IRR));
        kept += u32::from(under_way && was.has(Redirection::REMOTE_IRR));
    }
    // Every message sets remote IRR; only an EOI clears it and sets it again at once.
    assert!(level_messages >= started && level_messages <= started + kept);
    if op % 8 > 4 {
        assert_eq!(level_messages, started, "a second message without an EOI");
    }
}
