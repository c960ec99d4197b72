//! A VCPU that leaves its PCPU, is changed, and goes on; RESET and INIT.

use super::*;
use crate::arch::msr as index;
use crate::arch::state::cr4;

const POINTERS: [u64; 4] = [0x6001, 0x7001, 0, 0x9001];
const OTHERS: [u64; 4] = [0xa001, 0, 0xb001, 0xc001];

fn fields_of(pointers: [u64; 4]) -> Vec<(u32, u64)> {
    (guest::POINTER_0..).step_by(2).zip(pointers).collect()
}

fn pointers_in_fields() -> [u64; 4] {
    core::array::from_fn(|n| field(guest::POINTER_0 + 2 * n as u32))
}

/// With PAE paging on nested tables; the guest has loaded pointers without an exit.
fn pae() -> Scene {
    let mut scene = Scene::nested();
    scene.vmx.set_efer(efer::NXE);
    scene.vmx.set_cr4(cr4::PAE);
    scene.vmx.set_cr3(0x4000);
    scene.run(reason::INTERRUPT, &fields_of(POINTERS));
    scene
}

fn deschedule(scene: &mut Scene) {
    scene.vmx.put(&mut scene.cpu);
    assert!(!modelled::with(|it| it.current.is_some()));
}

#[test]
fn page_directory_pointers_stay_while_a_vcpu_is_descheduled() {
    let mut scene = pae();
    assert_eq!(scene.vmx.pointers(), Some(POINTERS));
    deschedule(&mut scene);
    assert_eq!(scene.vmx.pointers(), Some(POINTERS));
    let _last = scene.go_to(1);
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((pointers_in_fields(), scene.vmx.pointers()), (POINTERS, Some(POINTERS)));
    // What the guest loads afterwards is what counts.
    scene.run(reason::INTERRUPT, &fields_of(OTHERS));
    deschedule(&mut scene);
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((pointers_in_fields(), scene.vmx.pointers()), (OTHERS, Some(OTHERS)));
}

#[test]
fn page_directory_pointers_stay_over_changes_of_a_descheduled_vcpus_tables() {
    let mut scene = pae();
    deschedule(&mut scene);
    scene.vmx.set_paging(Roots::Shadow(Hpa(0x5000)));
    assert_eq!((scene.vmx.pointers(), scene.vmx.cr3()), (Some(POINTERS), 0x4000));
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((scene.vmx.pointers(), field(guest::CR3)), (Some(POINTERS), 0x5000));
    // A load of CR3, executed in software.
    scene.vmx.set_pointers(OTHERS);
    scene.vmx.set_cr3(0x8000);
    scene.run(reason::INTERRUPT, &[]);
    deschedule(&mut scene);
    assert_eq!(scene.vmx.pointers(), Some(OTHERS));
    scene.vmx.set_paging(Roots::Nested(Hpa(0x5000)));
    assert_eq!(scene.vmx.pointers(), Some(OTHERS));
    // To shadow tables and back before it runs again.
    scene.vmx.set_paging(Roots::Shadow(Hpa(0x5000)));
    scene.vmx.set_paging(Roots::Nested(Hpa(0x5000)));
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((pointers_in_fields(), field(guest::CR3)), (OTHERS, 0x8000));
}

#[test]
fn the_state_of_a_descheduled_vcpu_can_be_looked_at_and_changed() {
    let mut scene = Scene::nested();
    scene.run(reason::INTERRUPT, &[(guest::RSP, 0x7000), (guest::CR3, 0x4000)]);
    modelled::with(|it| (it.cr2, it.dr6) = (0x1234, 0xffff_0ff1));
    let state = ArchState::load(&scene.vmx);
    deschedule(&mut scene);
    modelled::with(|it| (it.cr2, it.dr6) = (0, 0));
    assert_eq!(ArchState::load(&scene.vmx), state);
    assert_eq!((state.cr2, state.dr6, state.cr3), (0x1234, 0xffff_0ff1, 0x4000));
    scene.vmx.set_gpr(Gpr::Rsp, 0x8000);
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((field(guest::RSP), field(guest::CR3), scene.vmx.cr2()), (0x8000, 0x4000, 0x1234));
}

#[test]
fn fields_are_counted_when_a_vcpu_moves() {
    let mut scene = Scene::nested();
    let writes = modelled::with(|it| it.writes);
    for turn in 1..4 {
        deschedule(&mut scene);
        let _last = scene.go_to(turn);
        scene.run(reason::CPUID, &[LENGTH]);
    }
    assert!(modelled::with(|it| it.writes) > writes + 30);
    let counted = scene.vmx.field_accesses().unwrap();
    assert_eq!((counted.reads, counted.writes), modelled::with(|it| (it.reads, it.writes)));
}

#[test]
fn vcpus_that_take_turns_keep_apart() {
    let roots = Roots::Shadow(Hpa(0x5000));
    let mut vcpus = [Scene::new, Scene::another].map(|scene| {
        let mut scene = scene(FEATURES, roots);
        deschedule(&mut scene);
        scene
    });
    let mut cpus = [VmxCpu::modelled(), VmxCpu::modelled()];
    let mut homes = [None; 2];
    // Both on the one PCPU, both on the other, and across.
    let turns = [(0, 0), (1, 0), (0, 0), (1, 1), (0, 1), (1, 1), (0, 0), (1, 0), (1, 1), (0, 0)];
    for ((vcpu, pcpu), turn) in turns.into_iter().zip(1..) {
        modelled::with(|it| it.go_to(pcpu as u64));
        let scene = &mut vcpus[vcpu];
        core::mem::swap(&mut scene.cpu, &mut cpus[pcpu]);
        let before = (scene.vmx.rip(), scene.vmx.dr6(), scene.vmx.switched_msr(index::LSTAR).unwrap());
        modelled::with(|it| it.flushes.clear());
        let value = turn * 0x1000 + vcpu as u64;
        scene.run(reason::CPUID, &[LENGTH, (guest::RIP, value)]);
        let flushed = modelled::with(|it| it.flushes.len());
        assert_eq!(
            flushed,
            usize::from(homes[vcpu].replace(pcpu) != Some(pcpu)),
            "when it comes from elsewhere"
        );
        assert_eq!(before.1, scene.vmx.dr6(), "turn {turn}");
        assert_eq!(before.2, modelled::with(|it| it.msrs[&index::LSTAR]), "turn {turn}");
        assert!(turn < 3 || before.0 & 0xfff == vcpu as u64 + 2, "turn {turn}: {before:x?}");
        let next = scene.vmx.next_rip().unwrap();
        assert!(!scene.vmx.end_instruction(next));
        scene.vmx.set_dr6(value);
        assert!(scene.vmx.set_switched_msr(index::LSTAR, value));
        deschedule(scene);
        core::mem::swap(&mut scene.cpu, &mut cpus[pcpu]);
    }
}

#[test]
#[should_panic = "the VMCS is another VCPU's"]
fn the_model_finds_a_vcpu_that_does_not_load_its_vmcs() {
    let mut first = Scene::nested();
    let _second = Scene::another(FEATURES, Roots::Nested(Hpa(0x5000)));
    first.run(reason::INTERRUPT, &[]);
}

#[test]
#[should_panic = "an entry without a VMCS"]
fn the_model_finds_a_vcpu_that_does_not_leave() {
    let mut scene = Scene::nested();
    let _last = scene.go_to(1);
    scene.run(reason::INTERRUPT, &[]);
}

#[test]
fn a_report_outlives_the_stay_in_the_processor() {
    let mut scene = Scene::nested();
    scene.run(reason::ENTRY_FAILED | 33, &[(guest::RFLAGS, 0x200)]);
    let report = scene.vmx.exit_report();
    assert!(report.contains("RFLAGS has wrong"), "{report}");
    deschedule(&mut scene);
    modelled::with(|it| it.fields().clear());
    assert_eq!(scene.vmx.exit_report(), report);
    let mut scene = Scene::nested();
    scene.run(reason::EPT_MISCONFIGURATION, &[]);
    deschedule(&mut scene);
    assert!(scene.vmx.exit_report().contains("exit 0x31"), "{}", scene.vmx.exit_report());
    let new = Vmx::new(FEATURES, Arc::new(IoBitmaps::exit_on_all()), Arc::new(MsrBitmap::opening(&[])), 1);
    assert_eq!(new.exit_report(), "not entered yet");
}

#[test]
fn init_leaves_msrs_and_caches_alone_and_reset_does_not() {
    let msrs = [
        (index::LSTAR, 0x1111),
        (index::KERNEL_GS_BASE, 0x2222),
        (index::SYSENTER_EIP, 0x3333),
        (index::PAT, 0x0101_0101_0101_0101),
    ];
    for scene in [Scene::nested, Scene::shadow] {
        let mut scene = scene();
        for (msr, value) in msrs {
            assert!(scene.vmx.set_switched_msr(msr, value));
        }
        assert!(scene.vmx.set_switched_msr(index::GS_BASE, 0x4444));
        scene.vmx.set_cr0(scene.vmx.cr0() | cr0::CD);
        scene.vmx.inject(Event::Nmi);
        scene.vmx.init();
        let cr0 = cr0::ET | cr0::CD;
        assert_eq!(ArchState::load(&scene.vmx), ArchState { cr0, ..ArchState::reset() });
        assert!(!scene.vmx.event_pending());
        for (msr, value) in msrs {
            assert_eq!(scene.vmx.switched_msr(msr), Some(value), "{msr:#x}");
        }
        assert_eq!(scene.vmx.switched_msr(index::GS_BASE), Some(0), "a segment's base");
        scene.vmx.reset();
        assert_eq!(ArchState::load(&scene.vmx), ArchState::reset());
        for (msr, _) in msrs {
            let after = if msr == index::PAT { 0x0007_0406_0007_0406 } else { 0 };
            assert_eq!(scene.vmx.switched_msr(msr), Some(after), "{msr:#x}");
        }
    }
}
