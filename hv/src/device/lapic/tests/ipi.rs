use super::*;
use crate::device::message::{BROADCAST, Shorthand};

const ICR: u32 = 0x300;
const ICR_HIGH: u32 = 0x310;
const ICR_MSR: u32 = 0x830;

fn fixed(vector: u8, dest: u32) -> InterruptMessage {
    let (mode, shorthand) = (DeliveryMode::Fixed, Shorthand::None);
    InterruptMessage { vector, mode, dest, logical: false, level: false, shorthand }
}

#[test]
fn xapic_sends_when_the_lower_half_is_written() {
    let mut lapic = enabled();
    set(&mut lapic, ICR_HIGH, 0x05ff_ffff);
    assert_eq!(lapic.write(ICR, 0x40fd, Tsc(0)), LapicEffect::Ipi(fixed(0xfd, 5)));
    assert_eq!((get(&mut lapic, ICR), get(&mut lapic, ICR_HIGH)), (0x40fd, 0x0500_0000));
    set(&mut lapic, ICR_HIGH, 0xff00_0000);
    let logical = InterruptMessage { logical: true, ..fixed(0xfd, BROADCAST) };
    assert_eq!(lapic.write(ICR, 0x48fd, Tsc(0)), LapicEffect::Ipi(logical));
    // Delivery status and reserved bits do not stick.
    let _ = lapic.write(ICR, !0x700, Tsc(0));
    assert_eq!(get(&mut lapic, ICR), 0x000c_c8ff);
}

#[test]
fn x2apic_sends_with_one_write_and_a_wide_destination() {
    let mut lapic = x2apic();
    let value = 0x0001_0203_0000_08e0;
    let message = InterruptMessage { logical: true, ..fixed(0xe0, 0x0001_0203) };
    assert_eq!(lapic.write_msr(ICR_MSR, value, Tsc(0)), Ok(LapicEffect::Ipi(message)));
    assert_eq!(lapic.read_msr(ICR_MSR, Tsc(0)), Ok(value));
    // 0xff is an ordinary destination here.
    assert_eq!(lapic.write_msr(ICR_MSR, 0xff_0000_00e0, Tsc(0)), Ok(LapicEffect::Ipi(fixed(0xe0, 0xff))));
    assert_eq!(lapic.write_msr(ICR_MSR, 0x10e0, Tsc(0)), Ok(LapicEffect::Ipi(fixed(0xe0, 0))));
    assert_eq!(lapic.read_msr(ICR_MSR, Tsc(0)), Ok(0xe0), "delivery status reads idle");
}

#[test]
fn start_up_sequence() {
    let mut lapic = enabled();
    set(&mut lapic, ICR_HIGH, 0x0100_0000);
    let init = InterruptMessage { mode: DeliveryMode::Init, ..fixed(0, 1) };
    assert_eq!(lapic.write(ICR, 0xc500, Tsc(0)), LapicEffect::Ipi(init));
    assert_eq!(lapic.write(ICR, 0x8500, Tsc(0)), LapicEffect::None, "INIT level de-assert");
    let startup = InterruptMessage { mode: DeliveryMode::Startup, ..fixed(0x9a, 1) };
    assert_eq!(lapic.write(ICR, 0x069a, Tsc(0)), LapicEffect::Ipi(startup));
    let mut receiver = Lapic::new(1, false);
    assert_eq!(receiver.deliver(&init), Signal::Init);
    assert_eq!(receiver.deliver(&startup), Signal::Startup(0x9a));
}

#[test]
fn shorthands() {
    let mut lapic = enabled();
    set(&mut lapic, ICR, 0x4_4041);
    assert_eq!(lapic.acknowledge(), 0x41, "to itself without a detour");
    let all = InterruptMessage { shorthand: Shorthand::All, ..fixed(0x41, 0) };
    assert_eq!(lapic.write(ICR, 0x8_4041, Tsc(0)), LapicEffect::Ipi(all));
    let others = InterruptMessage { shorthand: Shorthand::Others, mode: DeliveryMode::Nmi, ..fixed(0, 0) };
    assert_eq!(lapic.write(ICR, 0xc_4400, Tsc(0)), LapicEffect::Ipi(others));
    // Only fixed interrupts may include the sender.
    for mode in [1, 2, 4, 5, 6] {
        set(&mut lapic, ICR, 0x4_4041 | mode << 8);
        set(&mut lapic, ICR, 0x8_4041 | mode << 8);
    }
}

#[test]
fn reserved_modes_and_illegal_vectors_send_nothing() {
    let mut lapic = enabled();
    for command in [0x4300, 0x4700, 0x4_4700] {
        set(&mut lapic, ICR, command | 0x41);
    }
    assert_eq!(errors(&mut lapic), 0);
    for command in [0x0f, 0x10f, 0x4_000f, 0x8_0000] {
        set(&mut lapic, ICR, command);
        assert_eq!(errors(&mut lapic), 0x20, "{command:#x}");
    }
    assert_eq!(lapic.pending(), None);
}

#[test]
fn self_ipi_register() {
    let mut lapic = x2apic();
    assert_eq!(lapic.write_msr(0x83f, 0x77, Tsc(0)), Ok(LapicEffect::None));
    assert_eq!(lapic.acknowledge(), 0x77);
    assert_eq!(lapic.write_msr(0x83f, 0x100, Tsc(0)), Err(Gp));
    assert_eq!(lapic.write_msr(0x83f, 5, Tsc(0)), Ok(LapicEffect::None));
    assert_eq!(lapic.write_msr(0x828, 0, Tsc(0)), Ok(LapicEffect::None));
    assert_eq!(lapic.read_msr(0x828, Tsc(0)), Ok(0x20));
}

#[test]
fn deliveries_become_requests_or_signals() {
    let mut lapic = enabled();
    let level = InterruptMessage { level: true, mode: DeliveryMode::LowestPriority, ..fixed(0x61, 3) };
    assert_eq!(lapic.deliver(&level), Signal::Interrupt);
    assert_eq!(lapic.acknowledge(), 0x61);
    assert_eq!(lapic.eoi(), LapicEffect::EoiBroadcast(0x61));
    for (mode, signal) in [
        (DeliveryMode::Nmi, Signal::Nmi),
        (DeliveryMode::Smi, Signal::Smi),
        (DeliveryMode::ExtInt, Signal::ExtInt),
    ] {
        let message = InterruptMessage { mode, ..fixed(2, 3) };
        assert_eq!(lapic.deliver(&message), signal);
        assert_eq!(Lapic::new(3, false).deliver(&message), signal, "software-disabled");
    }
    assert!(lapic.set_base(0xfee0_0000, 40).is_ok());
    let nmi = InterruptMessage { mode: DeliveryMode::Nmi, ..fixed(2, 3) };
    assert_eq!(lapic.deliver(&nmi), Signal::None);
}

#[test]
fn addresses_follow_the_mode() {
    let mut lapic = Lapic::new(0x1_0123, false);
    assert_eq!(lapic.write(0xf0, 0x1ff, Tsc(0)), LapicEffect::Readdressed);
    assert_eq!(lapic.write(0xd0, 0x0400_0000, Tsc(0)), LapicEffect::Readdressed);
    let flat = lapic.address();
    assert_eq!((flat.id, flat.logical_id, flat.model), (0x23, 4, LogicalModel::Flat));
    assert_eq!(lapic.write(0xe0, 0x0fff_ffff, Tsc(0)), LapicEffect::Readdressed);
    assert_eq!(lapic.address().model, LogicalModel::Cluster);
    assert!(lapic.set_base(0xfee0_0c00, 40).is_ok());
    let wide = lapic.address();
    assert_eq!((wide.id, wide.logical_id, wide.model), (0x1_0123, 0x1012_0008, LogicalModel::X2Apic));
}
