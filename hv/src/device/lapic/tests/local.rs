//! Local interrupt pins, the error interrupt, INIT and APIC_BASE.

use super::*;

const MASKED: u32 = 1 << 16;
const LEVEL: u32 = 1 << 15;
const LINT0: u32 = 0x350;
const LINT1: u32 = 0x360;
const ERROR: u32 = 0x370;

#[test]
fn virtual_wire_lets_the_8259a_and_nmis_through() {
    let mut lapic = Lapic::new(0, true);
    assert!(!lapic.accepts_extint());
    assert_eq!(lapic.set_lint(Lint::Lint1, true), Signal::None);
    lapic.set_virtual_wire();
    assert!(lapic.accepts_extint());
    assert_eq!((get(&mut lapic, LINT0), get(&mut lapic, LINT1)), (0x700, 0x400));
    assert_eq!(lapic.set_lint(Lint::Lint1, true), Signal::None, "no edge");
    assert_eq!(lapic.set_lint(Lint::Lint1, false), Signal::None);
    assert_eq!(lapic.set_lint(Lint::Lint1, true), Signal::Nmi);
    assert_eq!(lapic.set_lint(Lint::Lint0, true), Signal::ExtInt);
    set(&mut lapic, LINT0, 0x700 | MASKED);
    assert!(!lapic.accepts_extint());
    set(&mut lapic, LINT0, 0x031);
    assert!(!lapic.accepts_extint());
}

#[test]
fn a_disabled_apic_leaves_the_pins_to_the_processor() {
    let mut lapic = enabled();
    assert!(lapic.set_base(0xfee0_0000, 40).is_ok());
    assert!(lapic.accepts_extint());
    assert_eq!(lapic.set_lint(Lint::Lint0, true), Signal::ExtInt);
    assert_eq!(lapic.set_lint(Lint::Lint1, true), Signal::Nmi);
}

#[test]
fn a_pin_can_raise_a_fixed_vector_on_an_edge() {
    let mut lapic = enabled();
    set(&mut lapic, LINT0, 0x31);
    for _ in 0..2 {
        assert_eq!(lapic.set_lint(Lint::Lint0, true), Signal::Interrupt);
        assert_eq!(lapic.set_lint(Lint::Lint0, true), Signal::None);
        assert_eq!(lapic.acknowledge(), 0x31);
        assert_eq!(lapic.eoi(), LapicEffect::None);
        assert_eq!(lapic.pending(), None);
        assert_eq!(lapic.set_lint(Lint::Lint0, false), Signal::None);
    }
}

#[test]
fn a_level_at_lint0_comes_again_while_it_lasts() {
    let mut lapic = enabled();
    set(&mut lapic, LINT0, 0x31 | LEVEL | MASKED);
    assert_eq!(lapic.set_lint(Lint::Lint0, true), Signal::None);
    set(&mut lapic, LINT0, 0x31 | LEVEL);
    assert_eq!(get(&mut lapic, LINT0), 0x31 | LEVEL | 1 << 14);
    for _ in 0..3 {
        assert_eq!(lapic.acknowledge(), 0x31);
        assert_eq!(lapic.pending(), None);
        assert_eq!(lapic.eoi(), LapicEffect::EoiBroadcast(0x31));
        assert_eq!(lapic.pending(), Some(0x31));
    }
    lapic.acknowledge();
    assert_eq!(lapic.set_lint(Lint::Lint0, false), Signal::None);
    assert_eq!(lapic.set_lint(Lint::Lint0, true), Signal::None, "one is under way");
    assert_eq!(lapic.set_lint(Lint::Lint0, false), Signal::None);
    let _ = lapic.eoi();
    assert_eq!((lapic.pending(), get(&mut lapic, LINT0)), (None, 0x31 | LEVEL));
    // LINT1 is always sensitive to edges.
    set(&mut lapic, LINT1, 0x32 | LEVEL);
    assert_eq!(lapic.set_lint(Lint::Lint1, true), Signal::Interrupt);
    lapic.acknowledge();
    assert_eq!((lapic.eoi(), lapic.pending()), (LapicEffect::None, None));
}

#[test]
fn other_delivery_modes_are_signals() {
    let mut lapic = enabled();
    let modes = [
        (1, Signal::None),
        (2, Signal::Smi),
        (3, Signal::None),
        (4, Signal::Nmi),
        (5, Signal::Init),
        (6, Signal::None),
        (7, Signal::ExtInt),
    ];
    for (mode, expected) in modes {
        set(&mut lapic, LINT1, mode << 8);
        assert_eq!(lapic.set_lint(Lint::Lint1, false), Signal::None);
        assert_eq!(lapic.set_lint(Lint::Lint1, true), expected, "mode {mode}");
    }
}

#[test]
fn the_first_error_raises_the_error_interrupt_until_the_status_is_written() {
    let mut lapic = enabled();
    set(&mut lapic, ERROR, 0x81);
    assert_eq!(get(&mut lapic, 0x10), 0);
    assert_eq!(lapic.acknowledge(), 0x81);
    let _ = lapic.eoi();
    lapic.accept(3, false);
    assert_eq!(lapic.pending(), None, "not armed");
    assert_eq!(errors(&mut lapic), 0xc0);
    lapic.accept(3, false);
    assert_eq!(lapic.pending(), Some(0x81));
    // An error entry with an illegal vector is one more error, not a recursion.
    errors(&mut lapic);
    set(&mut lapic, ERROR, 0x05);
    set(&mut lapic, 0x3f0, 0);
    assert_eq!(errors(&mut lapic), 0xc0);
}

#[test]
fn disabling_by_software_masks_the_table() {
    let mut lapic = enabled();
    let entries = [0x330, 0x340, LINT0, LINT1, ERROR];
    entries.iter().for_each(|entry| set(&mut lapic, *entry, 0x50));
    assert_eq!(lapic.write(0xf0, 0xff, Tsc(0)), LapicEffect::Readdressed);
    for entry in entries {
        assert_eq!(get(&mut lapic, entry), 0x50 | MASKED);
        set(&mut lapic, entry, 0x51);
        assert_eq!(get(&mut lapic, entry), 0x51 | MASKED);
    }
}

#[test]
fn init_resets_all_but_identity_and_mode() {
    for x2 in [false, true] {
        let mut lapic = if x2 { x2apic() } else { enabled() };
        let base = lapic.base();
        lapic.set_tpr(0x20);
        lapic.accept(0x90, true);
        lapic.acknowledge();
        lapic.accept(0x80, true);
        lapic.init();
        assert_eq!((lapic.base(), lapic.tpr(), lapic.ppr(), lapic.pending()), (base, 0, 0, None));
        assert_eq!(lapic.is_x2apic(), x2);
        let address = lapic.address();
        assert_eq!((address.id, address.hardware_enabled, address.software_enabled), (3, true, false));
        assert_eq!(lapic.eoi(), LapicEffect::None);
    }
}

/// The three modes and the undefined one, as bits 11:10.
const DISABLED: u64 = 0;
const UNDEFINED: u64 = 0x400;
const XAPIC: u64 = 0x800;
const X2APIC: u64 = 0xc00;

#[test]
fn modes_change_along_the_manuals_diagram() {
    let path = |to: u64| match to {
        DISABLED => vec![DISABLED],
        XAPIC => vec![],
        _ => vec![X2APIC],
    };
    let legal = [(DISABLED, DISABLED), (DISABLED, XAPIC), (XAPIC, DISABLED), (XAPIC, XAPIC), (XAPIC, X2APIC)];
    let legal = [&legal[..], &[(X2APIC, DISABLED), (X2APIC, X2APIC)]].concat();
    for from in [DISABLED, XAPIC, X2APIC] {
        for to in [DISABLED, UNDEFINED, XAPIC, X2APIC] {
            let mut lapic = enabled();
            for step in path(from) {
                assert!(lapic.set_base(0xfee0_0000 | step, 40).is_ok());
            }
            let before = lapic.base();
            let result = lapic.set_base(0xfee0_0000 | to, 40);
            assert_eq!(result.is_ok(), legal.contains(&(from, to)), "{from:#x} to {to:#x}");
            assert_eq!(lapic.base(), if result.is_ok() { 0xfee0_0100 | to } else { before });
            if result.is_ok() {
                let effect = if from == to { LapicEffect::None } else { LapicEffect::Readdressed };
                assert_eq!(result, Ok(effect));
            }
        }
    }
}

#[test]
fn the_page_moves_and_vanishes() {
    let mut lapic = enabled();
    assert_eq!(lapic.base(), 0xfee0_0900);
    assert_eq!(lapic.mmio_page().map(|gpa| gpa.0), Some(0xfee0_0000));
    assert_eq!(lapic.set_base(0xab_cdef_0800, 40), Ok(LapicEffect::Readdressed));
    assert_eq!((lapic.base(), lapic.mmio_page().map(|gpa| gpa.0)), (0xab_cdef_0900, Some(0xab_cdef_0000)));
    assert!(lapic.set_base(0xab_cdef_0c00, 40).is_ok());
    assert_eq!(lapic.mmio_page(), None);
    assert_eq!(get(&mut lapic, 0x30), 0);
    assert_eq!(lapic.write(0xf0, 0, Tsc(0)), LapicEffect::None);
    assert!(lapic.address().software_enabled);
}

#[test]
fn reserved_bits_of_the_base_fault() {
    let mut lapic = enabled();
    for bit in [0, 7, 9, 40, 51, 52, 63] {
        assert_eq!(lapic.set_base(0xfee0_0800 | 1 << bit, 40), Err(Gp), "bit {bit}");
    }
    assert!(lapic.set_base(0xfee0_0800 | 1 << 51, 52).is_ok());
    assert!(lapic.set_base(0xfee0_0800, 64).is_ok());
    assert!(lapic.set_base(0xfee0_0800, 255).is_ok());
}

#[test]
fn disabling_by_the_base_resets() {
    let mut lapic = x2apic();
    lapic.accept(0x80, false);
    lapic.set_tpr(0x33);
    assert!(lapic.set_base(0xfee0_0000, 40).is_ok());
    assert_eq!((lapic.pending(), lapic.tpr(), lapic.address().hardware_enabled), (None, 0, false));
    lapic.accept(0x80, false);
    assert_eq!(lapic.pending(), None);
    assert!(lapic.set_base(0xfee0_0800, 40).is_ok());
    assert_eq!((get(&mut lapic, 0xf0), get(&mut lapic, 0xd0), get(&mut lapic, 0xe0)), (0xff, 0, u32::MAX));
}
