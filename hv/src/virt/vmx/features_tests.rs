//! Processors that lack something.

use super::*;

fn cpu(vmx: bool) -> impl Fn(u32, u32) -> [u32; 4] {
    move |leaf, _| if leaf == 1 { [0, 0, u32::from(vmx) << 5, 0] } else { [0; 4] }
}

/// Everything may be 1, nothing must.
fn all(control: u64) -> impl Fn(u32) -> u64 {
    move |index| match index {
        msr::IA32_FEATURE_CONTROL => control,
        index::BASIC => 1 << 55 | 0x12,
        index::EPT_VPID => u64::MAX,
        index::MISC => 5,
        _ => 0xffff_ffff_0000_0000,
    }
}

#[test]
fn says_which_obstacle_there_is() {
    let detect = |vmx, control| Features::detect(cpu(vmx), all(control)).map(|found| found.1);
    assert_eq!(detect(false, LOCK | VMX), Err(Unsuitable::NoVmx));
    assert_eq!(detect(true, LOCK), Err(Unsuitable::LockedOff));
    assert_eq!(detect(true, LOCK | VMX_IN_SMX), Err(Unsuitable::SmxOnly));
    assert_eq!(detect(true, LOCK | VMX), Ok(None));
    assert_eq!(detect(true, 0), Ok(Some(LOCK | VMX)));
    assert_eq!(detect(true, VMX_IN_SMX | 0xff00), Ok(Some(LOCK | VMX_IN_SMX | VMX | 0xff00)));
    for obstacle in [Unsuitable::NoVmx, Unsuitable::LockedOff, Unsuitable::SmxOnly, Unsuitable::VmxonFailed] {
        assert!(!alloc::format!("{obstacle}").contains('\n'));
    }
}

#[test]
fn reads_what_there_is() {
    let (f, _) = Features::detect(cpu(true), all(LOCK | VMX)).unwrap();
    assert!(f.list().iter().all(|feature| feature.present));
    assert_eq!((f.revision, f.preemption_timer), (0x12, Some(5)));
    assert_eq!(f.entry & entry::IA32E_GUEST, 0);
}

#[test]
fn works_without_secondary_controls() {
    let without = |index: u32| match index {
        0x48e => 0x7fff_ffff_0000_0000,
        0x48d => u64::from(!pin::PREEMPTION_TIMER) << 32,
        0x48f | 0x490 => 0x0000_ffff_0000_0000,
        index::SECONDARY | index::EPT_VPID => panic!("the MSR does not exist"),
        other => all(LOCK | VMX)(other),
    };
    let (f, _) = Features::detect(cpu(true), without).unwrap();
    assert!(f.list().iter().all(|feature| !feature.present));
}

#[test]
fn switches_a_register_whole_or_not_at_all() {
    const EFER: (u32, u32) = (exit::SAVE_EFER | exit::LOAD_EFER, entry::LOAD_EFER);
    const PAT: (u32, u32) = (exit::SAVE_PAT | exit::LOAD_PAT, entry::LOAD_PAT);
    let detect = |no_exit: u32, no_entry: u32| {
        let without = move |index: u32| match index {
            0x48f => u64::from(!no_exit) << 32,
            0x490 => u64::from(!no_entry) << 32,
            other => all(LOCK | VMX)(other),
        };
        Features::detect(cpu(true), without).unwrap().0
    };
    let switched = |f: &Features, (exit, entry): (u32, u32)| (f.exit & exit, f.entry & entry);
    let both = detect(0, 0);
    assert!(both.switches_efer && both.switches_pat && both.ept);
    assert_eq!((switched(&both, EFER), switched(&both, PAT)), (EFER, PAT));
    for (no_exit, no_entry) in [(exit::SAVE_EFER, 0), (exit::LOAD_EFER, 0), (0, entry::LOAD_EFER)] {
        let f = detect(no_exit, no_entry);
        assert_eq!((f.switches_efer, f.ept, switched(&f, EFER)), (false, false, (0, 0)));
        assert_eq!((f.switches_pat, switched(&f, PAT)), (true, PAT));
    }
    for (no_exit, no_entry) in [(exit::SAVE_PAT, 0), (exit::LOAD_PAT, 0), (0, entry::LOAD_PAT)] {
        let f = detect(no_exit, no_entry);
        assert_eq!((f.switches_pat, switched(&f, PAT)), (false, (0, 0)));
        assert_eq!((f.switches_efer, switched(&f, EFER)), (true, EFER));
    }
}

#[test]
fn hides_instructions_whose_control_is_missing() {
    let with = |bits| Features { secondary: bits, ..Features::default() };
    let answer = |f: Features, leaf| f.executable(leaf, 0, [u32::MAX; 4]);
    let both = with(secondary::RDTSCP | secondary::INVPCID);
    assert_eq!((answer(both, 7), answer(both, 0x8000_0001)), ([u32::MAX; 4], [u32::MAX; 4]));
    let (invpcid, rdtscp) = (with(secondary::INVPCID), with(secondary::RDTSCP));
    assert_eq!(answer(invpcid, 7), [u32::MAX, u32::MAX, !(1 << 22), u32::MAX]);
    assert_eq!(answer(invpcid, 0x8000_0001), [u32::MAX, u32::MAX, u32::MAX, !(1 << 27)]);
    assert_eq!(answer(rdtscp, 7), [u32::MAX, !(1 << 10), u32::MAX, u32::MAX]);
    assert_eq!(answer(rdtscp, 0x8000_0001), [u32::MAX; 4]);
    assert_eq!(with(0).executable(7, 1, [u32::MAX; 4])[1], u32::MAX, "another leaf");
}

#[test]
fn refuses_a_processor_without_virtual_nmis() {
    let without = |index: u32| match index {
        0x48d => 0x1f << 32,
        other => all(LOCK | VMX)(other),
    };
    let missing = Missing { word: Word::Pin, bits: pin::VIRTUAL_NMI };
    assert_eq!(Features::detect(cpu(true), without), Err(Unsuitable::Lacks(missing)));
}
