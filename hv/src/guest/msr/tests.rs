//! Rules of the manuals, and what an operating system does at boot.

use proptest::prelude::*;

use super::*;

const LIMITS: CpuLimits = CpuLimits {
    sysenter: true,
    cr4: 0,
    efer: 0xd01,
    xcr0: 7,
    phys_bits: 48,
    tsc_aux: true,
    amd: true,
    apic: true,
    x2apic: true,
    tsc_deadline: true,
    mtrr: true,
    pat: true,
    mca: true,
    spec_ctrl: 0x87,
    barrier: true,
    flush_l1d: false,
    virt_ssbd: true,
    arch_capabilities: None,
};

#[test]
fn speculation_is_the_guests_to_control() {
    let mut s = MsrState::default();
    let amd = ctx(&LIMITS);
    assert_eq!(s.write(index::SPEC_CTRL, 3, &amd), MsrWrite::Effect(MsrEffect::SpecCtrl(3)));
    assert_eq!(s.write(index::SPEC_CTRL, 8, &amd), MsrWrite::Fault);
    assert_eq!(s.write(index::VIRT_SPEC_CTRL, u64::MAX, &amd), MsrWrite::Effect(MsrEffect::SpecCtrl(7)));
    assert_eq!(s.read(index::SPEC_CTRL, &amd), MsrRead::Value(3), "the other MSR's bit is not shown");
    assert_eq!(s.read(index::VIRT_SPEC_CTRL, &amd), MsrRead::Value(4));
    assert_eq!(s.write(index::PRED_CMD, 1, &amd), MsrWrite::Effect(MsrEffect::Command(index::PRED_CMD)));
    assert_eq!(s.write(index::PRED_CMD, 0, &amd), MsrWrite::Done);
    assert_eq!(s.write(index::PRED_CMD, 2, &amd), MsrWrite::Fault);
    assert_eq!(s.read(index::PRED_CMD, &amd), MsrRead::Fault);
    assert!(s.unknown().iter().next().is_none());
    let intel =
        CpuLimits { amd: false, virt_ssbd: false, flush_l1d: true, arch_capabilities: Some(0x29), ..LIMITS };
    let intel = ctx(&intel);
    assert_eq!(s.read(index::ARCH_CAPABILITIES, &intel), MsrRead::Value(0x29));
    assert_eq!(s.write(index::ARCH_CAPABILITIES, 0x29, &intel), MsrWrite::Fault);
    assert_eq!(s.write(index::FLUSH_CMD, 1, &intel), MsrWrite::Effect(MsrEffect::Command(index::FLUSH_CMD)));
    assert_eq!(s.read(index::VIRT_SPEC_CTRL, &intel), MsrRead::Fault);
}

fn ctx(limits: &CpuLimits) -> MsrContext<'_> {
    MsrContext { limits, cr0: 0, efer: 0, permissive: false, pv_clock: true }
}

#[test]
fn devices_answer_for_their_own() {
    let mut s = MsrState::default();
    let ctx = ctx(&LIMITS);
    for (msr, device) in [
        (0x10, DeviceMsr::Tsc),
        (0x1b, DeviceMsr::ApicBase),
        (0x6e0, DeviceMsr::TscDeadline),
        (0x800, DeviceMsr::X2apic(0)),
        (0x80b, DeviceMsr::X2apic(0x0b)),
        (0x8ff, DeviceMsr::X2apic(0xff)),
    ] {
        assert_eq!(s.read(msr, &ctx), MsrRead::Device(device));
        assert_eq!(s.write(msr, 1, &ctx), MsrWrite::Device(device));
    }
}

#[test]
fn efer_follows_the_rules() {
    let mut s = MsrState::default();
    let mut write = |value, cr0, efer| s.write(index::EFER, value, &MsrContext { cr0, efer, ..ctx(&LIMITS) });
    let becomes = |v| MsrWrite::Effect(MsrEffect::Efer(v));
    assert_eq!(write(efer::LME | efer::SCE, 0, 0), becomes(efer::LME | efer::SCE));
    assert_eq!(write(efer::SVME, 0, 0), MsrWrite::Fault);
    assert_eq!(write(1 << 1, 0, 0), MsrWrite::Fault);
    let long = efer::LME | efer::LMA;
    assert_eq!(write(efer::LME | efer::NXE, cr0::PG, long), becomes(long | efer::NXE), "LMA stays");
    assert_eq!(write(efer::NXE, cr0::PG, long), MsrWrite::Fault, "LME changes under paging");
    assert_eq!(write(efer::LMA, 0, 0), becomes(0), "LMA is not written");
}

#[test]
fn unknown_ones_fault_or_are_ignored_and_are_counted() {
    let mut s = MsrState::default();
    let strict = ctx(&LIMITS);
    let permissive = MsrContext { permissive: true, ..strict };
    assert_eq!(s.read(0x1234, &strict), MsrRead::Fault);
    assert_eq!(s.write(0x1234, 1, &strict), MsrWrite::Fault);
    assert_eq!(s.read(0x1234, &permissive), MsrRead::Value(0));
    assert_eq!(s.write(0x1234, 1, &permissive), MsrWrite::Done);
    (0..100).for_each(|i| assert_eq!(s.read(0x7000_0000 + i, &strict), MsrRead::Fault));
    let counts: Vec<_> = s.unknown().iter().collect();
    assert_eq!((counts.len(), counts[0], counts[1]), (64, (0x1234, 4), (0x7000_0000, 1)));
    assert_eq!(s.unknown().others(), 37);
    // A known MSR with a bad value faults even then, and is not unknown.
    assert_eq!(s.write(index::PAT, 2, &permissive), MsrWrite::Fault);
    assert!(s.unknown().iter().all(|(msr, _)| msr != index::PAT));
}

#[test]
fn vendors_have_their_own() {
    let mut s = MsrState::default();
    let amd = ctx(&LIMITS);
    let intel_limits = CpuLimits { amd: false, ..LIMITS };
    let intel = ctx(&intel_limits);
    for msr in [index::HWCR, 0xc001_0010, 0xc001_1029] {
        assert!(matches!(s.read(msr, &amd), MsrRead::Value(_)));
        assert_eq!(s.read(msr, &intel), MsrRead::Fault);
    }
    for msr in [index::MISC_ENABLE, 0x17, 0x3a] {
        assert!(matches!(s.read(msr, &intel), MsrRead::Value(_)));
        assert_eq!(s.read(msr, &amd), MsrRead::Fault);
    }
    assert_eq!(s.write(index::TSC_AUX, 1 << 32, &intel), MsrWrite::Fault);
    assert_eq!(s.write(index::TSC_AUX, 1 << 32 | 5, &amd), MsrWrite::Effect(MsrEffect::TscAux(5)));
    assert_eq!(s.read(index::TSC_AUX, &amd), MsrRead::Value(5));
    assert_eq!(s.write(0xc001_0114, 0, &amd), MsrWrite::Fault, "VM_CR is locked");
}

#[test]
fn what_the_manuals_promise_is_not_unknown() {
    let mut s = MsrState::default();
    let amd = ctx(&LIMITS);
    let legacy = (0xc001_0000..=0xc001_0007).chain(0xc001_0200..=0xc001_020b);
    for msr in legacy {
        assert_eq!(s.write(msr, u64::MAX, &amd), MsrWrite::Done, "{msr:#x}");
        assert_eq!(s.read(msr, &amd), MsrRead::Value(0), "{msr:#x}");
    }
    assert_eq!(s.read(0xc001_0008, &amd), MsrRead::Fault);
    assert_eq!(s.read(0xc001_020c, &amd), MsrRead::Fault);
    assert_eq!(s.read(0xc001_0032, &amd), MsrRead::Name(2));
    // A microcode update: written, never read.
    assert_eq!((s.write(0xc001_0020, 5, &amd), s.read(0xc001_0020, &amd)), (MsrWrite::Done, MsrRead::Fault));
    assert!(s.unknown().iter().eq([(0xc001_0008, 1), (0xc001_020c, 1)]));
}

#[test]
fn mtrrs_say_write_back_and_keep_what_is_valid() {
    let mut s = MsrState::default();
    let ctx = ctx(&LIMITS);
    assert_eq!(s.read(0xfe, &ctx), MsrRead::Value(0x508));
    assert_eq!(s.read(0x2ff, &ctx), MsrRead::Value(0xc06));
    assert_eq!(s.read(0x26f, &ctx), MsrRead::Value(0x0606_0606_0606_0606));
    assert_eq!(s.write(0xfe, 0x508, &ctx), MsrWrite::Fault);
    for (msr, good, bad) in [
        (0x2ffu32, 0xc00u64, 0xc02u64),
        (0x2ff, 0x406, 0x1406),
        (0x200, 0xffff_f000_0006, 0xffff_f000_0106),
        (0x20f, 0xffff_f000_0800, 0x1_0000_0000_0800),
        (0x250, 0x0106_0405_0600_0000, 0x0206_0606_0606_0606),
    ] {
        assert_eq!(s.write(msr, good, &ctx), MsrWrite::Done, "{msr:#x}");
        assert_eq!(s.write(msr, bad, &ctx), MsrWrite::Fault, "{msr:#x}");
        assert_eq!(s.read(msr, &ctx), MsrRead::Value(good));
    }
    assert_eq!(s.read(0x210, &ctx), MsrRead::Fault);
}

#[test]
fn the_clock_exists_only_if_offered() {
    let mut s = MsrState::default();
    let with = ctx(&LIMITS);
    let without = MsrContext { pv_clock: false, ..with };
    assert_eq!(
        s.write(index::KVM_SYSTEM_TIME, 0x1001, &with),
        MsrWrite::Effect(MsrEffect::KvmSystemTime(0x1001))
    );
    assert_eq!(s.read(index::KVM_SYSTEM_TIME, &with), MsrRead::Value(0x1001));
    assert_eq!(
        s.write(index::KVM_WALL_CLOCK, 0x2000, &with),
        MsrWrite::Effect(MsrEffect::KvmWallClock(0x2000))
    );
    assert_eq!(s.write(index::KVM_WALL_CLOCK, 0x2000, &without), MsrWrite::Fault);
}

proptest! {
    #[test]
    fn survives_anything(
        ops in proptest::collection::vec((any::<u8>(), prop_oneof![
            any::<u32>(), 0u32..0x900, 0xc000_0080u32..0xc000_0110, 0xc001_0000u32..0xc001_1040,
        ], any::<u64>()), 0..60),
    ) {
        let bytes = |(a, msr, v): &(u8, u32, u64)| [&[*a][..], &msr.to_le_bytes(), &v.to_le_bytes()].concat();
        fuzz_one(&ops.iter().flat_map(bytes).collect::<Vec<_>>());
    }
}

#[test]
fn registers_of_hidden_features_are_not_passed_through() {
    let all = CpuLimits { sysenter: true, efer: efer::SCE | efer::LME | efer::LMA, ..CpuLimits::default() };
    assert!(pass_through(&all).eq(PASS_THROUGH));
    let open = |limits: CpuLimits| pass_through(&limits).collect::<Vec<_>>();
    let [.., fs, gs, kernel_gs] = PASS_THROUGH;
    assert_eq!(open(CpuLimits { sysenter: false, ..all })[..], PASS_THROUGH[3..]);
    assert_eq!(open(CpuLimits { sysenter: false, efer: efer::LME, ..all }), [fs, gs, kernel_gs]);
    assert_eq!(open(CpuLimits { efer: efer::SCE, ..all })[..], PASS_THROUGH[..7]);
}
