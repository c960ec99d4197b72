//! When NMIs come, and what blocks them (SDM 3, 6.7.1, 26.3 and 27.2.3).

use super::super::entry::{NMI_BLOCKING, SHADOW};
use super::*;

const NMI: u32 = 0x8000_0202;

/// Whether the guest exits when it can take an NMI.
fn window() -> bool {
    field(control::PROCESSOR_BASED) & u64::from(processor::NMI_WINDOW) != 0
}

/// In its NMI handler.
fn in_handler(mut scene: Scene) -> Scene {
    scene.vmx.inject(Event::Nmi);
    scene.run(reason::INTERRUPT, &[(guest::INTERRUPTIBILITY, NMI_BLOCKING)]);
    assert_eq!((scene.delivered().0, scene.vmx.can_take_nmi()), (NMI, false));
    scene
}

#[test]
fn they_are_blocked_until_the_end_of_the_handler() {
    let mut scene = in_handler(Scene::nested());
    scene.run(reason::INTERRUPT, &[]);
    assert!(window());
    assert_eq!(scene.run(reason::NMI_WINDOW, &[(guest::INTERRUPTIBILITY, 0)]), Ended::Other);
    assert_eq!((scene.vmx.exit(), scene.vmx.can_take_nmi()), (Exit::NmiWindow, true));
    scene.run(reason::INTERRUPT, &[]);
    assert!(!window());
}

#[test]
fn one_that_waits_for_an_interrupt_shadow_comes_right_after_it() {
    let mut scene = Scene::nested();
    scene.run(reason::EPT_VIOLATION, &[(guest::INTERRUPTIBILITY, SHADOW & 1)]);
    assert!(!scene.vmx.can_take_nmi() && scene.vmx.open_nmi_window());
    // The processor may have this exit in the shadow of STI: then the NMI may come there.
    assert_eq!(scene.run(reason::NMI_WINDOW, &[]), Ended::Other);
    assert!(window() && scene.vmx.can_take_nmi());
    scene.vmx.inject(Event::Nmi);
    scene.run(reason::INTERRUPT, &[(guest::INTERRUPTIBILITY, NMI_BLOCKING)]);
    assert_eq!(scene.delivered().0, NMI);
}

#[test]
fn one_behind_an_exception_comes_at_its_handlers_first_instruction() {
    let mut scene = Scene::nested();
    scene.vmx.inject(Event::Exception(Exception::GP0));
    assert!(!scene.vmx.can_take_nmi() && scene.vmx.open_nmi_window());
    assert_eq!(scene.run(reason::NMI_WINDOW, &[]), Ended::Other);
    assert_eq!(scene.delivered().0, 0x8000_0b0d);
    assert!(window() && scene.vmx.can_take_nmi());
}

#[test]
fn an_iret_that_faults_unblocks_them_if_the_guest_gets_the_fault() {
    let fault = [
        (exit::INTERRUPTION, PAGE_FAULT | u64::from(event::NMI_UNBLOCKED)),
        (exit::QUALIFICATION, 0x7000),
        (guest::INTERRUPTIBILITY, 0),
    ];
    // Only the shadow tables lacked something: the IRET is executed again, and NMIs wait for it.
    let mut scene = in_handler(Scene::shadow());
    scene.run(reason::EXCEPTION, &fault);
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((field(guest::INTERRUPTIBILITY), scene.vmx.can_take_nmi()), (NMI_BLOCKING, false));
    // The guest's own fault.
    let mut scene = in_handler(Scene::shadow());
    scene.run(reason::EXCEPTION, &fault);
    scene.vmx.inject_page_fault(Gva(0x7000), 0);
    scene.run(reason::NMI_WINDOW, &[]);
    assert_eq!((scene.delivered().0, field(guest::INTERRUPTIBILITY)), (PAGE_FAULT as u32, 0));
    assert!(scene.vmx.can_take_nmi());
}
