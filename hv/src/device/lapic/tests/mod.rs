mod ipi;
mod local;
mod priority;
mod registers;
mod timer;

use super::*;
use crate::device::Gp;

/// xAPIC mode, enabled by software, spurious vector 0xff.
fn enabled() -> Lapic {
    let mut lapic = Lapic::new(3, true);
    assert_eq!(lapic.write(0xf0, 0x1ff, Tsc(0)), LapicEffect::Readdressed);
    lapic
}

/// The same in x2APIC mode.
fn x2apic() -> Lapic {
    let mut lapic = enabled();
    assert_eq!(lapic.set_base(lapic.base() | 0xc00, 40), Ok(LapicEffect::Readdressed));
    lapic
}

/// A write that asks for nothing.
fn set(lapic: &mut Lapic, offset: u32, value: u32) {
    assert_eq!(lapic.write(offset, value, Tsc(0)), LapicEffect::None);
}

fn get(lapic: &mut Lapic, offset: u32) -> u32 {
    lapic.read(offset, Tsc(0))
}

/// What the error status register shows after a write.
fn errors(lapic: &mut Lapic) -> u32 {
    set(lapic, 0x280, 0);
    get(lapic, 0x280)
}

#[test]
fn survives_random_operations() {
    crate::device::fuzz::run(1000, 500, fuzz_one);
}
