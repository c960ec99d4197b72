//! Processors of the last fifteen years, and what is done on each.

use super::*;
use crate::arch::msr;

const ALL: Offers = Offers {
    spec_ctrl: true,
    ibpb: true,
    md_clear: true,
    flush_l1d: true,
    arch_capabilities: true,
    rtm: false,
    virtual_spec_ctrl: false,
    emulated: false,
};
/// Without the microcode of 2018 and later.
const OLD: Offers = Offers { spec_ctrl: false, ibpb: false, md_clear: false, flush_l1d: false, ..ALL };

const fn intel(model: u32) -> Model {
    Model { vendor: Vendor::Intel, family: 6, model }
}

const fn amd(family: u32) -> Model {
    Model { vendor: Vendor::Amd, family, model: 1 }
}

/// Barrier, L1D, buffers, small leaves.
type Done = [bool; 4];

fn done(measures: &Measures) -> Done {
    [measures.barrier, measures.flush_l1d, measures.clear_buffers, measures.small_leaves]
}

#[test]
fn each_processor_gets_what_it_needs() {
    const N: bool = false;
    const Y: bool = true;
    let ice_lake =
        arch::RDCL_NO | arch::IBRS_ALL | arch::SKIP_L1DFL_VMENTRY | arch::MDS_NO | arch::PSCHANGE_MC_NO;
    let cascade_lake = arch::RDCL_NO | arch::IBRS_ALL | arch::SKIP_L1DFL_VMENTRY | arch::MDS_NO;
    for (name, model, offers, caps, wanted) in [
        ("Sandy Bridge", intel(0x2a), ALL, 0, [Y, Y, Y, Y]),
        ("Sandy Bridge with its first microcode", intel(0x2a), OLD, 0, [N, N, N, Y]),
        ("Skylake", intel(0x5e), ALL, 0, [Y, Y, Y, Y]),
        ("Skylake under a hypervisor that flushes", intel(0x5e), ALL, arch::SKIP_L1DFL_VMENTRY, [Y, N, Y, Y]),
        ("Cascade Lake", intel(0x55), ALL, cascade_lake, [Y, N, N, Y]),
        (
            "Cascade Lake with transactions",
            intel(0x55),
            Offers { rtm: true, ..ALL },
            cascade_lake,
            [Y, N, Y, Y],
        ),
        (
            "one that has mended them",
            intel(0x55),
            Offers { rtm: true, ..ALL },
            cascade_lake | arch::TAA_NO,
            [Y, N, N, Y],
        ),
        ("Ice Lake", intel(0x6a), ALL, ice_lake, [Y, N, N, N]),
        ("Silvermont", intel(0x37), ALL, 0, [Y, N, Y, N]),
        ("Goldmont", intel(0x5c), ALL, 0, [Y, N, N, N]),
        ("Bonnell", intel(0x1c), OLD, 0, [N, N, N, N]),
        ("Knights Landing", intel(0x57), ALL, 0, [Y, N, Y, N]),
        ("Zen", amd(0x17), ALL, 0, [Y, N, N, N]),
        ("Zen 3", amd(0x19), ALL, 0, [Y, N, N, N]),
        ("K10", amd(0x10), OLD, 0, [N, N, N, N]),
        ("QEMU's emulation", amd(0x17), Offers { emulated: true, ..ALL }, 0, [N, N, N, N]),
    ] {
        assert_eq!(done(&needs(offers, caps, model, Mitigations::Auto).measures), wanted, "{name}");
        assert_eq!(done(&needs(offers, caps, model, Mitigations::Off).measures), [N; 4], "{name}, off");
    }
}

#[test]
fn reasons_are_given() {
    let say = |offers, caps, model, wanted| needs(offers, caps, model, wanted).list.map(|it| it.to_string());
    assert_eq!(
        say(OLD, arch::MDS_NO, intel(0x5e), Mitigations::Auto),
        [
            "branch target injection (Spectre v2): needed, but there is no IBPB; update the firmware or the microcode",
            "L1 terminal fault: needed, but there is no FLUSH_CMD; update the firmware or the microcode",
            "data sampling (MDS, TAA): nothing needed (ARCH_CAPABILITIES says so)",
            "iTLB multihit: on: nested leaves of 4 KiB",
        ]
    );
    let off = say(ALL, 0, amd(0x17), Mitigations::Off);
    assert_eq!(off[0], "branch target injection (Spectre v2): needed, but off (mitigations=off)");
    assert_eq!(off[1], "L1 terminal fault: nothing needed (not this processor)");
    let emulated = say(Offers { emulated: true, ..ALL }, 0, intel(0x5e), Mitigations::Auto);
    assert!(emulated.iter().all(|line| line.contains("an emulation that does not speculate")));
}

#[test]
fn a_trusted_guest_is_entered_at_once() {
    let plan = needs(ALL, arch::IBRS_ALL, intel(0x5e), Mitigations::Auto).measures;
    assert_eq!((done(&plan), plan.required), ([true; 4], spec_ctrl::IBRS));
    let trusted = plan.for_guest(Mitigations::Off);
    assert_eq!((done(&trusted), trusted.has_spec_ctrl), ([false; 4], true));
    assert_eq!(plan.for_guest(Mitigations::Auto), plan);
}

#[test]
fn guests_are_told_what_the_host_does() {
    let plan = needs(ALL, 0, intel(0x5e), Mitigations::Auto).measures;
    assert_eq!(
        plan.arch_capabilities(1 << 7 | arch::SSB_NO),
        arch::SSB_NO | arch::SKIP_L1DFL_VMENTRY | arch::PSCHANGE_MC_NO
    );
    assert_eq!(Measures::default().arch_capabilities(u64::MAX), arch::FOR_GUESTS);
}

#[test]
fn a_pcpu_writes_what_changes() {
    let plan = Measures { barrier: true, has_spec_ctrl: true, ..Measures::default() };
    let mut turn = Turn::default();
    let mut load = |plan: &Measures, vm, spec_ctrl| turn.load(plan, Load { vm, spec_ctrl }).to_vec();
    assert_eq!(load(&plan, 1, 0), [], "the first VM");
    assert_eq!(load(&plan, 1, spec_ctrl::STIBP), [(msr::SPEC_CTRL, 2)], "another VCPU of it");
    assert_eq!(load(&plan, 2, 0), [(msr::PRED_CMD, 1), (msr::SPEC_CTRL, 0)]);
    assert_eq!(load(&plan, 2, 0), []);
    // A trusted VM needs no barrier before it; the next one does.
    assert_eq!(load(&plan.for_guest(Mitigations::Off), 3, 0), []);
    assert_eq!(load(&plan, 2, 0), [(msr::PRED_CMD, 1)]);
    // What the host wants is always there.
    let required = Measures { required: spec_ctrl::IBRS, ..plan };
    assert_eq!(load(&required, 2, 0), [(msr::SPEC_CTRL, 1)]);
    assert_eq!(load(&required, 2, spec_ctrl::IBRS), []);
    assert_eq!(load(&required, 2, spec_ctrl::SSBD), [(msr::SPEC_CTRL, 5)]);
    assert_eq!(load(&Measures::default(), 4, 7), [], "without the MSR");
}

#[test]
fn cpuid_is_read_where_it_says_something() {
    let skylake = |leaf: u32, _| match leaf {
        0 => [0x16, 0x756e_6547, 0x6c65_746e, 0x4965_6e69],
        1 => [0x0005_06e3, 0, 0, 0],
        7 => [0, 1 << 11, 0, 1 << 10 | 1 << 26 | 1 << 28 | 1 << 29],
        0x8000_0000 => [0x8000_0008, 0, 0, 0],
        _ => [0; 4],
    };
    assert_eq!(Model::read(skylake), intel(0x5e));
    assert_eq!(Offers::read(skylake), Offers { rtm: true, ..ALL });
    let milan = |leaf: u32, _| match leaf {
        0 => [0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
        1 => [0x00a0_0f11, 0, 0, 0],
        7 => [0; 4],
        0x8000_0000 => [0x8000_0023, 0, 0, 0],
        0x8000_0001 => [0, 0, 4, 0],
        0x8000_0008 => [0, 1 << 12 | 1 << 14 | 1 << 24, 0, 0],
        0x8000_000a => [1, 8, 0, 1 << 20],
        _ => [0; 4],
    };
    assert_eq!(Model::read(milan), Model { vendor: Vendor::Amd, family: 0x19, model: 1 });
    let offers = Offers { spec_ctrl: true, ibpb: true, virtual_spec_ctrl: true, ..Offers::default() };
    assert_eq!(Offers::read(milan), offers);
    // Leaves beyond the last have no meaning.
    assert_eq!(
        Offers::read(|leaf, _| if leaf & 0x7fff_ffff == 0 { [0; 4] } else { [u32::MAX; 4] }),
        Offers::default()
    );
}
