//! The policy applied to recorded processors.

use super::*;
use crate::arch::state::efer;

type Record = [(u32, u32, Regs)];

/// An EPYC 7003 (Milan), shortened.
const MILAN: &Record = &[
    (0, 0, [0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65]),
    (1, 0, [0x00a0_0f11, 0x0580_0800, 0x7efa_320b, 0x178b_fbff]),
    (5, 0, [0x40, 0x40, 3, 0x11]),
    (7, 0, [0, 0x219c_97a9, 0x0040_069c, 0x10]),
    (0xb, 0, [1, 2, 0x100, 5]),
    (0xd, 0, [0x207, 0x988, 0x988, 0]),
    (0xd, 1, [0xf, 0x348, 0x1800, 0]),
    (0xd, 2, [0x100, 0x240, 0, 0]),
    (0xd, 9, [8, 0x980, 0, 0]),
    (0x8000_0000, 0, [0x8000_0023, 0x6874_7541, 0x444d_4163, 0x6974_6e65]),
    (0x8000_0001, 0, [0x00a0_0f11, 0x4000_0000, 0x75c2_37ff, 0x2fd3_fbff]),
    (0x8000_0002, 0, [0x2044_4d41, 0x4359_5045, 0x3133_3720, 0x3634_2033]),
    (0x8000_0007, 0, [0, 0x3b, 0, 0x6799]),
    (0x8000_0008, 0, [0x3030, 0x111e_f657, 0x707f, 0x1_0007]),
    (0x8000_000a, 0, [1, 0x8000, 0, 0x101b_bcff]),
    (0x8000_001d, 0, [0x4121, 0x01c0_003f, 0x3f, 0]),
    (0x8000_001e, 0, [5, 0x102, 0x300, 0]),
    (0x8000_0021, 0, [0x4d, 0, 0, 0]),
];

/// A Xeon Gold (Skylake), shortened.
const SKYLAKE: &Record = &[
    (0, 0, [0x16, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
    (1, 0, [0x0005_0654, 0x0020_0800, 0x7ffe_fbff, 0xbfeb_fbff]),
    (4, 0, [0x7c00_4121, 0x01c0_003f, 0x3f, 0]),
    (4, 1, [0x7c00_4122, 0x01c0_003f, 0x3f, 0]),
    (4, 2, [0x7c00_4143, 0x03c0_003f, 0x3ff, 0]),
    (4, 3, [0x7c07_c163, 0x0280_003f, 0x7fff, 4]),
    (7, 0, [0, 0xd39f_fffb, 8, 0xbc00_0400]),
    (0xa, 0, [0x0730_0404, 0, 0, 0x603]),
    (0xd, 0, [0x2ff, 0xa80, 0xa88, 0]),
    (0xd, 1, [0xf, 0xa08, 0x100, 0]),
    (0xd, 2, [0x100, 0x240, 0, 0]),
    (0xd, 3, [0x40, 0x3c0, 0, 0]),
    (0xd, 4, [0x40, 0x400, 0, 0]),
    (0xd, 5, [0x40, 0x440, 0, 0]),
    (0xd, 6, [0x200, 0x480, 0, 0]),
    (0xd, 7, [0x400, 0x680, 0, 0]),
    (0xd, 9, [8, 0xa80, 0, 0]),
    (0x8000_0000, 0, [0x8000_0008, 0, 0, 0]),
    (0x8000_0001, 0, [0, 0, 0x121, 0x2c10_0800]),
    (0x8000_0007, 0, [0, 0, 0, 0x100]),
    (0x8000_0008, 0, [0x302e, 0, 0, 0]),
];

const POLICY: CpuidPolicy = CpuidPolicy {
    apic_id: 2,
    vcpus: 3,
    tsc_khz: 2_500_000,
    invariant_tsc: true,
    xcr0: 0b1110_0111,
    pv_clock: true,
    arch_capabilities: 5,
    hidden: FeatureSet::NONE,
};

/// The table of a guest without these features and those that depend on them.
fn hiding(record: &'static Record, names: &[&'static str]) -> CpuidTable {
    let hidden = FeatureSet::parse(names.iter().copied()).expect("names of features");
    CpuidTable::new(&CpuidPolicy { hidden, ..POLICY }, host(record))
}

#[test]
fn every_feature_can_be_hidden() {
    let all = CpuidTable::new(&POLICY, |leaf, sub| match (leaf, sub) {
        (0, _) => [0xd, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
        (0x8000_0000, _) => [0x8000_0021, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
        (7, 0) => [1, u32::MAX, u32::MAX, u32::MAX],
        _ => [u32::MAX; 4],
    });
    // What can be seen of features has a name: nothing is left when all names are hidden.
    let leaves: &[(u32, u32, [u32; 4])] = &[
        (1, 0, [0, 0, !mask::leaf1_ecx::OSXSAVE, u32::MAX]),
        (6, 0, [u32::MAX; 4]),
        (7, 0, [0, u32::MAX, u32::MAX, u32::MAX]),
        (7, 1, [u32::MAX; 4]),
        (0xd, 1, [u32::MAX, 0, 0, 0]),
        (0x8000_0001, 0, [0, 0, u32::MAX, u32::MAX]),
        (0x8000_0007, 0, [u32::MAX; 4]),
        (0x8000_0008, 0, [0, u32::MAX, 0, 0]),
        (0x8000_0021, 0, [u32::MAX; 4]),
    ];
    let every = FeatureSet::parse(FeatureSet::every_name()).expect("names of features");
    for &(leaf, sub, bits) in leaves {
        let (shown, named) = (all.get(leaf, sub), every.bits(leaf, sub));
        for register in 0..4 {
            let shown = shown[register] & bits[register];
            assert_eq!(shown & !named[register], 0, "leaf {leaf:#x}.{sub}, register {register}");
            assert_eq!(
                shown, named[register],
                "leaf {leaf:#x}.{sub}, register {register}: more names than bits"
            );
        }
    }
    // One at a time, on processors that have all of it.
    for name in FeatureSet::every_name() {
        let hidden = FeatureSet::parse([name]).expect("the name of a feature");
        let table = CpuidTable::new(&CpuidPolicy { hidden, ..POLICY }, |leaf, sub| match (leaf, sub) {
            (0, _) => [0xd, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
            (0x8000_0000, _) => [0x8000_0021, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
            (7, 0) => [1, u32::MAX, u32::MAX, u32::MAX],
            _ => [u32::MAX; 4],
        });
        for &(leaf, sub, bits) in leaves {
            let (with, now, gone) = (all.get(leaf, sub), table.get(leaf, sub), hidden.bits(leaf, sub));
            for register in 0..4 {
                let expected = with[register] & !gone[register] & bits[register];
                assert_eq!(
                    now[register] & bits[register],
                    expected,
                    "{name}: leaf {leaf:#x}.{sub}, {register}"
                );
            }
        }
    }
}

#[test]
fn what_is_hidden_cannot_be_used() {
    let t = hiding(MILAN, &["xsave"]);
    assert_eq!((t.get(0xd, 0), t.limits().xcr0, t.limits().cr4 & cr4::OSXSAVE), (&[0; 4], 0, 0));
    let t = hiding(SKYLAKE, &["avx512f"]);
    assert_eq!((t.limits().xcr0, t.get(7, 0)[1] & 1 << 5), (7, 1 << 5));
    assert_eq!(hiding(SKYLAKE, &["avx"]).limits().xcr0, 3);
    assert_eq!(hiding(MILAN, &["smep", "smap"]).limits().cr4 & (cr4::SMEP | cr4::SMAP), 0);
    assert_eq!(hiding(MILAN, &["nx"]).limits().efer & efer::NXE, 0);
    assert!(hiding(MILAN, &["rdtscp"]).limits().tsc_aux, "RDPID is left");
    assert!(!hiding(MILAN, &["rdtscp", "rdpid"]).limits().tsc_aux);
    let limits = *hiding(MILAN, &["x2apic", "mtrr"]).limits();
    assert!(!limits.x2apic && !limits.mtrr && limits.apic && limits.tsc_deadline && limits.pat && limits.mca);
    let mut t = hiding(MILAN, &["apic"]);
    let limits = *t.limits();
    assert!(!limits.apic && !limits.x2apic && !limits.tsc_deadline);
    assert_eq!((t.get(1, 0)[3] >> 9 & 1, t.get(0x8000_0001, 0)[3] >> 9 & 1), (0, 0));
    t.refresh(0, 1);
    assert_eq!(hiding(MILAN, &["hypervisor"]).get(1, 0)[2] >> 31, 0);
    assert_eq!(hiding(MILAN, &["nonstop_tsc"]).get(0x8000_0007, 0)[3], 0);
}

/// Answers like the processor: Intel repeats the last leaf for those beyond it.
fn host(record: &'static Record) -> impl Fn(u32, u32) -> Regs {
    move |leaf, sub| {
        let intel = record[0].2[1] == 0x756e_6547;
        let leaf = if intel && (leaf < 0x4000_0000 && leaf > record[0].2[0]) { record[0].2[0] } else { leaf };
        record.iter().find(|(l, s, _)| (*l, *s) == (leaf, sub)).map_or([0; 4], |r| r.2)
    }
}

fn table(record: &'static Record) -> CpuidTable {
    CpuidTable::new(&POLICY, host(record))
}

#[test]
fn hides_what_is_not_virtualized() {
    for record in [MILAN, SKYLAKE] {
        let t = table(record);
        let [_, ebx, ecx, edx] = *t.get(1, 0);
        // MONITOR, DS-CPL, VMX, SMX, EST, PDCM
        assert_eq!(ecx & (1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 15), 0);
        // x2APIC, TSC deadline, hypervisor
        let always = 1 << 21 | 1 << 24 | 1 << 31;
        assert_eq!(ecx & always, always);
        assert_eq!(edx & (1 << 21 | 1 << 22 | 1 << 29), 0, "DS, ACPI, TM");
        assert_eq!(ebx >> 16, 2 << 8 | 4, "APIC id and count of ids");
        assert_ne!(edx & 1 << 28, 0, "HTT");
        let [_, ebx, ecx, edx] = *t.get(7, 0);
        assert_eq!(
            ebx & (1 << 1 | 1 << 2 | 1 << 4 | 1 << 11 | 1 << 14 | 1 << 25),
            0,
            "TSC_ADJUST, SGX, TSX, MPX, PT"
        );
        assert_eq!(ecx & (1 << 3 | 1 << 4 | 1 << 7 | 1 << 16), 0, "PKU, CET, LA57");
        assert_eq!(edx & (1 << 30), 0, "CORE_CAPABILITIES");
        assert_eq!(t.get(0xa, 0), &[0; 4], "performance counters");
        assert_eq!(t.get(0x8000_000a, 0), &[0; 4], "SVM");
        assert_eq!(t.get(0x8000_0001, 0)[2] & (1 << 2 | 1 << 22 | 1 << 29), 0, "SVM, TOPOEXT, MWAITX");
    }
}

#[test]
fn passes_what_is() {
    let t = table(MILAN);
    assert_eq!(t.get(0, 0), &[0xd, 0x6874_7541, 0x444d_4163, 0x6974_6e65]);
    assert_eq!(t.get(1, 0)[2], 0xf7fa_3203, "all but MONITOR; TSC deadline, hypervisor");
    assert_eq!(t.get(7, 0)[1], 0x219c_97a9 & !(1 << 12 | 1 << 15), "all but the cache monitors");
    assert_eq!(t.get(0x8000_0002, 0), &[0x2044_4d41, 0x4359_5045, 0x3133_3720, 0x3634_2033]);
    assert_eq!(t.get(0x8000_0008, 0), &[0x3030, 0x1302_d205, 0x2002, 0]);
    assert_eq!(t.get(0x8000_0007, 0), &[0, 0, 0, 0x100]);
    let limits = t.limits();
    assert_eq!(limits.efer, efer::SCE | efer::LME | efer::LMA | efer::NXE | efer::FFXSR);
    assert_eq!(limits.cr4, 0x37_0fff | cr4::PVI, "all but LA57, VMXE, SMXE, PKE, CET");
    assert!(limits.amd && limits.tsc_aux && limits.phys_bits == 48 && limits.xcr0 == 7);
    assert!(!table(SKYLAKE).limits().amd);
}

#[test]
fn guests_can_protect_themselves() {
    let limits = *table(SKYLAKE).limits();
    assert_eq!((limits.spec_ctrl, limits.arch_capabilities), (7, Some(5)));
    assert!(limits.barrier && limits.flush_l1d && !limits.virt_ssbd);
    let limits = *table(MILAN).limits();
    assert_eq!((limits.spec_ctrl, limits.arch_capabilities), (0x87, None));
    assert!(limits.barrier && !limits.flush_l1d && limits.virt_ssbd);
    let limits = *hiding(MILAN, &["amd_ssbd", "amd_ibpb"]).limits();
    assert!(limits.spec_ctrl == 0x83 && !limits.barrier && !limits.virt_ssbd);
    assert_eq!(hiding(SKYLAKE, &["arch_capabilities"]).limits().arch_capabilities, None);
}

#[test]
fn xsave_is_all_or_nothing() {
    let t = table(SKYLAKE);
    assert_eq!(t.get(0xd, 0), &[0xe7, 576, 0xa80, 0]);
    assert_eq!(t.get(0xd, 7), &[0x400, 0x680, 0, 0]);
    assert_eq!([t.get(0xd, 3), t.get(0xd, 9), t.get(0xd, 99)], [&[0; 4]; 3]);
    assert_ne!(t.get(7, 0)[1] & 1 << 16, 0, "AVX-512");

    let none = CpuidTable::new(&CpuidPolicy { xcr0: 0, ..POLICY }, host(SKYLAKE));
    assert_eq!(none.get(0xd, 0), &[0; 4]);
    assert_eq!(
        none.get(1, 0)[2] & (1 << 12 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 29),
        0,
        "FMA, XSAVE, AVX, F16C"
    );
    assert_eq!(none.get(7, 0)[1] & (1 << 5 | 1 << 16 | 1 << 31), 0, "AVX2, AVX-512");
    assert_eq!((none.limits().xcr0, none.limits().cr4 & cr4::OSXSAVE), (0, 0));

    let avx = CpuidTable::new(&CpuidPolicy { xcr0: 7, ..POLICY }, host(SKYLAKE));
    assert_eq!(avx.get(7, 0)[1] & (1 << 5 | 1 << 16), 1 << 5);
}

#[test]
fn follows_control_registers() {
    let mut t = table(SKYLAKE);
    assert_eq!((t.get(1, 0)[2] >> 27 & 1, t.get(0xd, 0)[1]), (0, 576));
    t.refresh(cr4::OSXSAVE, 7);
    assert_eq!((t.get(1, 0)[2] >> 27 & 1, t.get(0xd, 0)[1], t.get(0xd, 1)[1]), (1, 0x340, 0x340));
    t.refresh(cr4::OSXSAVE, 0xe7);
    assert_eq!((t.get(0xd, 0)[1], t.get(0xd, 1)[1]), (0xa80, 0x340 + 0x640));
    t.refresh(0, 0xe7);
    assert_eq!(t.get(1, 0)[2] >> 27 & 1, 0);
    // A table without leaf 0xd must keep its zero row.
    let mut none = CpuidTable::new(&CpuidPolicy { xcr0: 0, ..POLICY }, host(SKYLAKE));
    none.refresh(u64::MAX, u64::MAX);
    assert_eq!(none.get(0xd, 0), &[0; 4]);
}

#[test]
fn a_disabled_apic_is_not_reported() {
    for cpu in [SKYLAKE, MILAN] {
        let mut t = table(cpu);
        let bits = |t: &CpuidTable| (t.get(1, 0)[3] >> 9 & 1, t.get(0x8000_0001, 0)[3] >> 9 & 1);
        let repeated = u32::from(t.limits().amd);
        assert_eq!(bits(&t), (1, repeated));
        t.set_apic(false);
        assert_eq!(bits(&t), (0, 0));
        t.set_apic(true);
        assert_eq!(bits(&t), (1, repeated));
    }
}

#[test]
fn describes_a_flat_package() {
    let t = table(MILAN);
    assert_eq!(t.get(0xb, 0), &[0, 1, 0x100, 2]);
    assert_eq!(t.get(0xb, 1), &[2, 3, 0x201, 2]);
    assert_eq!(t.get(0xb, 2), &[0, 0, 2, 2]);
    let t = table(SKYLAKE);
    assert_eq!(t.get(4, 0)[0], 0x0c00_0121, "first level: one id, four in the package");
    assert_eq!(t.get(4, 3)[0], 0x0c00_c163, "last level: shared by four ids");
    assert_eq!(t.get(4, 4), &[0; 4]);
    assert_eq!(t.get(0x15, 0), &[1, 1, 2_500_000_000, 0]);
}

#[test]
fn names_itself_and_the_clock() {
    let t = table(MILAN);
    let text = |r: &Regs| [r[1], r[2], r[3]].map(u32::to_le_bytes).concat();
    assert_eq!((t.get(HV_BASE, 0)[0], text(t.get(HV_BASE, 0))), (0x4000_0010, SIGNATURE.to_vec()));
    assert_eq!(t.get(HV_BASE + 0x10, 0), &[2_500_000, 2_500_000, 0, 0]);
    assert_eq!(text(t.get(KVM_BASE, 0)), KVM_SIGNATURE);
    assert_eq!(t.get(KVM_BASE + 1, 7), &[1 << 1 | 1 << 3 | 1 << 24, 0, 0, 0]);
    let hidden = CpuidTable::new(&CpuidPolicy { pv_clock: false, ..POLICY }, host(MILAN));
    assert_eq!(hidden.get(KVM_BASE, 0), &[0; 4]);
}

#[test]
fn any_leaf_has_an_answer() {
    for record in [MILAN, SKYLAKE] {
        let t = table(record);
        let edges = [0, 0x1f, 0x3f, 0x40, 0x41, 0x100, 0x101, 0x102, 0x3fff_ffff];
        for leaf in [0u32, 0x4000_0000, 0x8000_0000, 0xc000_0000].iter().flat_map(|b| edges.map(|e| b + e)) {
            for sub in [0, 1, 2, 62, u32::MAX] {
                let known =
                    matches!(leaf, 0..0x20 | HV_BASE | KVM_BASE..=0x4000_0101 | 0x8000_0000..0x8000_0022);
                assert!(known || t.get(leaf, sub) == &[0; 4], "{leaf:#x}");
            }
        }
    }
    let bare = CpuidTable::new(&POLICY, |_, _| [0; 4]);
    assert_eq!(bare.get(0x8000_0001, 0), &[0; 4]);
    let full = CpuidTable::new(&CpuidPolicy { vcpus: u32::MAX >> 1, ..POLICY }, |_, _| [u32::MAX; 4]);
    assert_ne!(full.get(1, 0)[2] & 1 << 31, 0);
}
