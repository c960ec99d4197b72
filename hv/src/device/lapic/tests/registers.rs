use super::*;

#[test]
fn xapic_reset_values() {
    let mut lapic = Lapic::new(0x1_0203, true);
    let expected = [
        (0x020, 0x0300_0000),
        (0x030, 0x0105_0014),
        (0x080, 0),
        (0x090, 0),
        (0x0a0, 0),
        (0x0b0, 0),
        (0x0c0, 0),
        (0x0d0, 0),
        (0x0e0, 0xffff_ffff),
        (0x0f0, 0xff),
        (0x280, 0),
        (0x300, 0),
        (0x310, 0),
        (0x320, 0x1_0000),
        (0x330, 0x1_0000),
        (0x340, 0x1_0000),
        (0x350, 0x1_0000),
        (0x360, 0x1_0000),
        (0x370, 0x1_0000),
        (0x380, 0),
        (0x390, 0),
        (0x3e0, 0),
    ];
    for (offset, value) in expected {
        assert_eq!(get(&mut lapic, offset), value, "{offset:#x}");
    }
    for offset in (0x100..0x280).step_by(16) {
        assert_eq!(get(&mut lapic, offset), 0);
    }
    assert_eq!(errors(&mut lapic), 0);
}

#[test]
fn only_bits_that_exist_can_be_written() {
    let mut lapic = enabled();
    let writable = [
        (0x080, 0xff),
        (0x320, 0x7_00ff),
        (0x330, 0x1_07ff),
        (0x340, 0x1_07ff),
        (0x350, 0x1_a7ff),
        (0x360, 0x1_a7ff),
        (0x370, 0x1_00ff),
        (0x3e0, 0xb),
    ];
    for (offset, mask) in writable {
        set(&mut lapic, offset, 0xffff_ffff);
        assert_eq!(get(&mut lapic, offset), mask, "{offset:#x}");
        set(&mut lapic, offset, 0);
        assert_eq!(get(&mut lapic, offset), 0, "{offset:#x}");
    }
    set(&mut lapic, 0xf0, 0xffff_ffff);
    assert_eq!(get(&mut lapic, 0xf0), 0x13ff);
    let _ = lapic.write(0xd0, 0xffff_ffff, Tsc(0));
    let _ = lapic.write(0xe0, 0, Tsc(0));
    assert_eq!((get(&mut lapic, 0xd0), get(&mut lapic, 0xe0)), (0xff00_0000, 0x0fff_ffff));
    // Read-only: no change, no error.
    for offset in [0x020, 0x030, 0x090, 0x0a0, 0x0c0, 0x100, 0x270, 0x390] {
        let before = get(&mut lapic, offset);
        set(&mut lapic, offset, !before);
        assert_eq!(get(&mut lapic, offset), before, "{offset:#x}");
    }
    assert_eq!(errors(&mut lapic), 0);
}

#[test]
fn reserved_offsets_are_errors() {
    let reserved = [0x000, 0x010, 0x040, 0x070, 0x290, 0x2e0, 0x2f0, 0x3a0, 0x3d0, 0x3f0, 0x400, 0xff0];
    for offset in reserved {
        let mut lapic = enabled();
        assert_eq!(get(&mut lapic, offset), 0);
        assert_eq!(errors(&mut lapic), 0x80, "read of {offset:#x}");
        set(&mut lapic, offset, 1);
        assert_eq!(errors(&mut lapic), 0x80, "write of {offset:#x}");
    }
    let mut lapic = enabled();
    set(&mut lapic, 0x84, 0xff);
    assert_eq!((get(&mut lapic, 0x84), get(&mut lapic, 0x80), errors(&mut lapic)), (0, 0, 0));
}

#[derive(Clone, Copy)]
struct Msr {
    index: u32,
    readable: bool,
    /// Bits that can be set without #GP; `None` for read-only registers.
    accepted: Option<u64>,
}

/// The x2APIC registers of the manual's table; what is not listed does not exist.
fn x2apic_registers() -> Vec<Msr> {
    let msr = |index, readable, accepted| Msr { index, readable, accepted };
    let mut all = vec![
        msr(0x802, true, None),
        msr(0x803, true, None),
        msr(0x808, true, Some(0xff)),
        msr(0x80a, true, None),
        msr(0x80b, false, Some(0)),
        msr(0x80d, true, None),
        msr(0x80f, true, Some(0x13ff)),
        msr(0x828, true, Some(0)),
        msr(0x830, true, Some(0xffff_ffff_000c_dfff)),
        msr(0x832, true, Some(0x7_10ff)),
        msr(0x833, true, Some(0x1_17ff)),
        msr(0x834, true, Some(0x1_17ff)),
        msr(0x835, true, Some(0x1_f7ff)),
        msr(0x836, true, Some(0x1_f7ff)),
        msr(0x837, true, Some(0x1_10ff)),
        msr(0x838, true, Some(0xffff_ffff)),
        msr(0x839, true, None),
        msr(0x83e, true, Some(0xb)),
        msr(0x83f, false, Some(0xff)),
    ];
    all.extend((0x810..0x828).map(|index| msr(index, true, None)));
    all
}

#[test]
fn x2apic_accesses_fault_as_the_manual_says() {
    let registers = x2apic_registers();
    for index in 0x800..0x900 {
        let register = registers.iter().find(|r| r.index == index);
        let readable = register.is_some_and(|r| r.readable);
        let accepted = register.and_then(|r| r.accepted);
        assert_eq!(x2apic().read_msr(index, Tsc(0)).is_ok(), readable, "RDMSR {index:#x}");
        assert_eq!(x2apic().write_msr(index, 0, Tsc(0)).is_ok(), accepted.is_some(), "WRMSR {index:#x}");
        for bit in 0..64 {
            let legal = accepted.is_some_and(|mask| mask & 1 << bit != 0);
            let result = x2apic().write_msr(index, 1 << bit, Tsc(0));
            assert_eq!(result.is_ok(), legal, "WRMSR {index:#x} bit {bit}");
        }
    }
    // Both mode bits of the timer entry together are reserved; each alone is not.
    for (mode, legal) in [(0, true), (1, true), (2, true), (3, false)] {
        assert_eq!(x2apic().write_msr(0x832, mode << 17, Tsc(0)).is_ok(), legal);
    }
    for index in [0, 0x7ff, 0x900, u32::MAX] {
        assert_eq!(x2apic().read_msr(index, Tsc(0)), Err(Gp));
        assert_eq!(x2apic().write_msr(index, 0, Tsc(0)), Err(Gp));
    }
}

#[test]
fn x2apic_registers_do_not_exist_in_the_other_modes() {
    let mut disabled = enabled();
    assert!(disabled.set_base(0xfee0_0000, 40).is_ok());
    for mut lapic in [enabled(), disabled] {
        for index in 0x800..0x900 {
            assert_eq!(lapic.read_msr(index, Tsc(0)), Err(Gp));
            assert_eq!(lapic.write_msr(index, 0, Tsc(0)), Err(Gp));
        }
    }
}

#[test]
fn a_fault_changes_nothing() {
    let mut lapic = x2apic();
    for (index, value) in [(0x808, 0x120), (0x80f, 0x1_0000_0000), (0x835, 0x2_0031), (0x838, 1 << 32)] {
        let before = lapic.read_msr(index, Tsc(0));
        assert_eq!(lapic.write_msr(index, value, Tsc(0)), Err(Gp));
        assert_eq!(lapic.read_msr(index, Tsc(0)), before);
    }
}

#[test]
fn x2apic_keeps_what_xapic_set_up() {
    let mut lapic = enabled();
    set(&mut lapic, 0x080, 0x20);
    set(&mut lapic, 0x350, 0x31);
    set(&mut lapic, 0x310, 0x0500_0000);
    let _ = lapic.write(0x300, 0x40fd, Tsc(0));
    lapic.accept(0x90, false);
    assert!(lapic.set_base(lapic.base() | 0x400, 40).is_ok());
    let mut read = |index| lapic.read_msr(index, Tsc(0));
    assert_eq!((read(0x808), read(0x835), read(0x824)), (Ok(0x20), Ok(0x31), Ok(1 << 16)));
    assert_eq!((read(0x802), read(0x80d), read(0x830)), (Ok(3), Ok(8), Ok(0x40fd)));
    assert_eq!(lapic.acknowledge(), 0x90);
    assert_eq!(lapic.write_msr(0x80b, 0, Tsc(0)), Ok(LapicEffect::None));
    assert_eq!(lapic.ppr(), 0x20);
}
