//! How long a guest's turn lasts, what is dropped from the TLB, and that entries keep the rules which reports know.

use super::controls::exit as exit_control;
use super::*;

/// A turn of `ticks`, in units of the preemption timer, which ends for `reason` if the timer does not end it first.
fn turn(scene: &mut Scene, ticks: u64, reason: u32, fields: &[(u32, u64)]) -> Exit {
    let mut fields = fields.to_vec();
    fields.push(LENGTH);
    modelled::with(|it| {
        it.script.push_back(Box::new(move |it: &mut Processor, _| {
            let left = field_in(it, guest::PREEMPTION_TIMER);
            let saves = field_in(it, control::EXIT_CONTROLS) & u64::from(exit_control::SAVE_TIMER) != 0;
            if saves {
                *it.field(guest::PREEMPTION_TIMER) = left.saturating_sub(ticks);
            }
            it.fields().extend(fields);
            if left <= ticks { reason::PREEMPTION_TIMER } else { reason }
        }));
    });
    match scene.vmx.enter(&mut scene.cpu) {
        Ended::Cpuid => Exit::Cpuid,
        _ => scene.vmx.exit(),
    }
}

fn field_in(it: &mut Processor, number: u32) -> u64 {
    *it.field(number)
}

/// Entered with interrupts closed, it must not matter that the guest exits often: some processors look for interrupts of the host
/// only when the guest opens its own.
#[test]
fn exits_do_not_lengthen_a_guests_turn() {
    let mut scene = Scene::nested();
    scene.vmx.slice = 1 << 15;
    scene.vmx.put(&mut scene.cpu);
    let full = (1 << 15) >> 5;
    for _ in 0..3 {
        let mut turns = 0;
        while turn(&mut scene, 100, reason::CPUID, &[(guest::RFLAGS, rflags::FIXED)]) == Exit::Cpuid {
            turns += 1;
            assert!(scene.vmx.next_rip().is_some_and(|rip| !scene.vmx.end_instruction(rip)));
            assert!(turns < 100, "the timer never ends the guest's turn");
        }
        assert_eq!((scene.vmx.exit(), turns), (Exit::Interrupt, full / 100));
        assert_eq!(field(guest::PREEMPTION_TIMER), full, "wound up again");
    }
    // A turn of no length ends at once, with the timer wound up.
    modelled::with(|it| *it.field(guest::PREEMPTION_TIMER) = 0);
    assert_eq!(turn(&mut scene, 0, reason::CPUID, &[]), Exit::Interrupt);
    assert_eq!(turn(&mut scene, 1, reason::CPUID, &[]), Exit::Cpuid);
}

#[test]
fn a_timer_that_is_not_saved_is_not_written() {
    let features = Features { exit: FEATURES.exit & !exit_control::SAVE_TIMER, ..FEATURES };
    let mut scene = Scene::new(features, Roots::Nested(Hpa(0x5000)));
    let before = modelled::with(|it| it.writes);
    assert_eq!(turn(&mut scene, 1 << 20, reason::CPUID, &[]), Exit::Interrupt);
    assert_eq!(modelled::with(|it| it.writes), before);
}

/// What was executed to drop translations by the next entry.
fn dropped(scene: &mut Scene, scopes: &[FlushScope]) -> Vec<(u64, u64)> {
    modelled::with(|it| it.flushes.clear());
    scopes.iter().for_each(|&scope| scene.vmx.flush(scope));
    scene.run(reason::INTERRUPT, &[]);
    modelled::with(|it| core::mem::take(&mut it.flushes))
}

#[test]
fn no_more_is_dropped_than_must_be() {
    let page = FlushScope::Address(Gva(0x8000));
    let mut scene = Scene::shadow();
    assert_eq!(dropped(&mut scene, &[]), []);
    assert_eq!(dropped(&mut scene, &[FlushScope::NonGlobal]), [(3, 0)]);
    assert_eq!(dropped(&mut scene, &[page]), [(0, 0x8000)]);
    assert_eq!(dropped(&mut scene, &[FlushScope::All]), [(1, 0)]);
    // All of it covers the rest.
    assert_eq!(dropped(&mut scene, &[FlushScope::All, FlushScope::NonGlobal, page]), [(1, 0)]);
    assert_eq!(dropped(&mut scene, &[FlushScope::NonGlobal, FlushScope::All]), [(3, 0), (1, 0)]);
    // A descheduled VCPU may go on elsewhere before it comes back here.
    scene.vmx.put(&mut scene.cpu);
    assert_eq!(dropped(&mut scene, &[FlushScope::NonGlobal]), [(1, 0)]);
    scene.vmx.put(&mut scene.cpu);
    assert_eq!(dropped(&mut scene, &[page]), [(1, 0)]);
    scene.vmx.put(&mut scene.cpu);
    assert_eq!(dropped(&mut scene, &[]), [], "back on the same PCPU");
    scene.vmx.put(&mut scene.cpu);
    let _elsewhere = scene.go_to(1);
    assert_eq!(dropped(&mut scene, &[]), [(1, 0)], "on another one");
    let features = Features { invvpid_non_global: false, invvpid_context: false, ..FEATURES };
    let mut scene = Scene::new(features, Roots::Shadow(Hpa(0x5000)));
    assert_eq!(dropped(&mut scene, &[FlushScope::NonGlobal]), [(2, 0)]);
    let mut scene = Scene::nested();
    let ept = field(control::EPT_POINTER);
    assert_eq!(dropped(&mut scene, &[FlushScope::NonGlobal]), [(1, ept)]);
    assert_eq!(dropped(&mut scene, &[FlushScope::All]), [(1, ept)]);
    let features = Features { vpid: false, ..FEATURES };
    let mut scene = Scene::new(features, Roots::Shadow(Hpa(0x5000)));
    assert_eq!(dropped(&mut scene, &[FlushScope::NonGlobal, FlushScope::All, page]), []);
}

/// MSRs of a processor that accepts any control.
fn describe_vmx() {
    modelled::with(|it| {
        let accepts_all = 0xffff_ffff << 32;
        it.msrs.extend([0x481, 0x482, 0x483, 0x484, 0x48b].map(|msr| (msr, accepts_all)));
    });
}

/// An entry that is said to have failed breaks no rule of the guest's state or of the controls: with any tables, in any mode.
#[test]
fn the_backend_keeps_the_rules() {
    let old = Features {
        pin: controls::pin::NMI | controls::pin::VIRTUAL_NMI,
        // The tests' memory is anywhere.
        physical_bits: 52,
        secondary: 0,
        ept: false,
        unrestricted: false,
        vpid: false,
        switches_efer: false,
        switches_pat: false,
        preemption_timer: None,
        exit: controls::exit::HOST_64BIT,
        entry: controls::entry::LOAD_DEBUG,
        ..FEATURES
    };
    let new = Features {
        physical_bits: 52,
        pin: controls::pin::NMI | controls::pin::VIRTUAL_NMI | controls::pin::PREEMPTION_TIMER,
        processor: processor::SECONDARY
            | processor::TPR_SHADOW
            | processor::IO_BITMAPS
            | processor::MSR_BITMAPS,
        exit: FEATURES.exit | controls::exit::LOAD_EFER | controls::exit::LOAD_PAT,
        entry: controls::entry::LOAD_DEBUG | controls::entry::LOAD_EFER | controls::entry::LOAD_PAT,
        ..FEATURES
    };
    let shadow = Roots::Shadow(Hpa(0x5000));
    for (features, roots) in [(new, Roots::Nested(Hpa(0x5000))), (new, shadow), (old, shadow)] {
        let mut scene = Scene::new(features, roots);
        describe_vmx();
        if features.unrestricted && matches!(roots, Roots::Nested(_)) {
            scene.vmx.reset();
            keeps_the_rules(&mut scene);
        }
        in_long_mode(&mut scene.vmx);
        scene.vmx.set_paging(roots);
        keeps_the_rules(&mut scene);
        scene.vmx.inject(Event::Exception(Exception { vector: vector::GP, error: Some(0), cr2: None }));
        keeps_the_rules(&mut scene);
        scene.vmx.inject(Event::Nmi);
        keeps_the_rules(&mut scene);
        scene.vmx.reset();
    }
}

/// 64-bit code in all registers.
fn in_long_mode(vmx: &mut Vmx) {
    vmx.set_efer(efer::LME | efer::LMA | efer::NXE);
    vmx.set_cr0(cr0::PE | cr0::PG | cr0::WP | cr0::NE | cr0::ET);
    vmx.set_cr4(1 << 5);
    vmx.set_segment(SegReg::Cs, Segment::flat(8, 0xa9b));
    for seg in [SegReg::Ds, SegReg::Es, SegReg::Ss, SegReg::Fs, SegReg::Gs] {
        vmx.set_segment(seg, Segment::flat(0x10, 0xc93));
    }
    vmx.set_rflags(rflags::FIXED | rflags::IF);
    vmx.set_rip(0x1000);
}

fn keeps_the_rules(scene: &mut Scene) {
    for (reason, error) in [(reason::ENTRY_FAILED | 33, 0), (FAIL_VALID, 7)] {
        scene.run(reason, &[(exit::INSTRUCTION_ERROR, error)]);
        let report = scene.vmx.exit_report();
        assert!(report.ends_with("broken: no rule that is known here"), "{report}");
        scene.run(reason::INTERRUPT, &[]);
    }
}
