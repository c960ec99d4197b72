//! Random operations against what must hold at any moment.

use super::*;
use crate::device::fuzz::Input;

/// Interprets `data` as register accesses, messages, interrupts taken and steps of time.
pub fn fuzz_one(data: &[u8]) {
    let mut input = Input::new(data);
    let mut lapic = Lapic::new(input.u32(), true);
    let mut now = Tsc(0);
    while let Some(op) = input.byte() {
        let register = u32::from(input.byte().unwrap_or(0));
        match op % 16 {
            0 | 1 => {
                let _ = lapic.write(0xf0, input.u32() | SVR_ENABLED, now);
            }
            2..5 => {
                let _ = lapic.write(register << 4 & 0xfff, input.u32(), now);
            }
            5 => {
                let _ = lapic.read(register << 4 | u32::from(op >> 4), now);
            }
            6 | 7 => {
                let value = input.u64() & size_limit(op);
                let effect = lapic.write_msr(0x800 + register, value, now);
                assert!(effect.is_err() || lapic.is_x2apic());
            }
            8 => {
                let _ = lapic.read_msr(0x800 + register, now);
            }
            9 => {
                let mode = u64::from(op >> 4 & 3) << 10;
                let _ = lapic.set_base(0xfee0_0000 | mode | u64::from(register & 1) << 40, 41);
            }
            10 => lapic.accept(register as u8, op & 0x10 != 0),
            11 => {
                let pending = lapic.pending();
                let spurious = lapic.svr as u8;
                assert_eq!(lapic.acknowledge(), pending.unwrap_or(spurious));
                assert!(pending.is_none_or(|vector| lapic.ppr >= vector & 0xf0));
            }
            12 => {
                let _ = lapic.eoi();
            }
            13 => now = Tsc(now.0.saturating_add(u64::from(register & 7) << (register >> 3))),
            14 if op & 0x10 != 0 => lapic.set_tsc_deadline(input.u64(), now),
            14 => {
                let pin = if op & 0x20 != 0 { Lint::Lint0 } else { Lint::Lint1 };
                let _ = lapic.set_lint(pin, register & 1 != 0);
            }
            _ if op == 0xff => lapic.init(),
            _ => lapic.take(register as u8),
        }
        if register & 1 != 0 {
            lapic.tick(now);
            assert!(lapic.deadline().is_none_or(|deadline| deadline > now || now.0 == u64::MAX));
        }
        check(&lapic);
    }
}

/// Without this, hardly any value would be free of reserved bits.
fn size_limit(op: u8) -> u64 {
    u64::MAX.checked_shr(u32::from(op >> 4) * 4).unwrap_or(0)
}

fn check(lapic: &Lapic) {
    for set in [&lapic.irr, &lapic.isr, &lapic.tmr] {
        assert_eq!(set.max(), (0..=255).rev().find(|v| set.contains(*v)).unwrap_or(0));
        assert!(set.max() == 0 || (16..=255).any(|v| set.contains(v)));
        assert_eq!(set.word(0) & 0xffff, 0, "a vector below 16");
    }
    let serving = lapic.isr.max() & 0xf0;
    assert_eq!(lapic.ppr, if lapic.tpr & 0xf0 >= serving { lapic.tpr } else { serving });
    if !lapic.software_enabled() {
        assert!(lapic.lvt.iter().all(|entry| entry & lvt::MASKED != 0));
        assert_eq!(lapic.deadline(), None);
    }
    assert!(lapic.hardware_enabled() || !lapic.software_enabled());
    assert_eq!(lapic.mmio_page().is_some(), lapic.hardware_enabled() && !lapic.is_x2apic());
}
