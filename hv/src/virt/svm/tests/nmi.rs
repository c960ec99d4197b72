//! When NMIs come, and what blocks them.

use super::*;
use crate::arch::Exception;
use crate::arch::vector;

const DB: u64 = exit_code::EXCEPTION + 1;
const BS: u64 = 1 << 14;
const NMI: u64 = event::VALID | 2 << 8 | 2;
/// Where the handler's IRET is, and where it leads.
const IRET: u64 = 0x2000;
const AFTER: u64 = 0x1000;

fn svm(features: Features) -> Svm {
    let mut svm = Svm::new(features, Arc::new(IoMap::intercept_all()), Arc::new(MsrMap::intercept_all()));
    svm.block.vmcb.rip = AFTER;
    svm
}

/// Prepares an entry. The event that it delivers, which the processor then forgets.
fn enter(svm: &mut Svm) -> u64 {
    svm.prepare_injection();
    core::mem::take(&mut svm.block.vmcb.event_inj)
}

fn is_stepped(svm: &Svm) -> bool {
    svm.block.vmcb.rflags & rflags::TF != 0
}

fn awaits_iret(svm: &Svm) -> bool {
    svm.block.vmcb.intercept_misc1 & misc1::IRET != 0
}

/// A guest whose handler is about to execute its IRET, which was intercepted.
fn at_iret() -> Svm {
    let mut svm = svm(Features::default());
    svm.inject(Event::Nmi);
    assert_eq!(enter(&mut svm), NMI);
    assert!(awaits_iret(&svm) && !svm.can_take_nmi() && svm.open_nmi_window());
    assert!(leave(&mut svm, exit_code::IRET, IRET, 0), "the step follows");
    svm
}

/// The end of the step over the IRET, which has loaded these flags.
fn end_of_iret(svm: &mut Svm, flags: u64, dr6: u64) -> Exit {
    svm.block.vmcb.rflags = flags;
    svm.block.vmcb.dr6 |= dr6;
    assert!(!leave(svm, DB, AFTER, 0));
    svm.exit()
}

#[test]
fn the_next_one_comes_right_after_the_handlers_iret() {
    let mut svm = at_iret();
    svm.set_pending_irq(PendingIrq::Vector(0x61));
    assert_eq!(enter(&mut svm), 0);
    assert!(is_stepped(&svm) && svm.block.vmcb.int_ctl & int_ctl::V_IRQ == 0);
    assert_eq!(end_of_iret(&mut svm, rflags::FIXED, BS), Exit::NmiWindow);
    assert_eq!((svm.rflags(), svm.dr6()), (rflags::FIXED, 0xffff_0ff0));
    assert!(svm.can_take_nmi() && !awaits_iret(&svm));
    svm.inject(Event::Nmi);
    assert_eq!(enter(&mut svm), NMI);
    assert!(awaits_iret(&svm));
}

#[test]
fn what_comes_before_the_iret_does_not_end_the_handler() {
    let mut svm = at_iret();
    for code in [exit_code::INTR, exit_code::NESTED_FAULT, exit_code::PAGE_FAULT] {
        // The hypervisor intercepts page faults by itself on shadow tables.
        svm.block.vmcb.intercept_exceptions |= 1 << vector::PF;
        enter(&mut svm);
        assert!(is_stepped(&svm));
        assert!(!leave(&mut svm, code, IRET, 0));
        assert!(!is_stepped(&svm) && !svm.can_take_nmi(), "{code:#x}");
    }
    enter(&mut svm);
    assert_eq!(end_of_iret(&mut svm, rflags::FIXED, BS), Exit::NmiWindow);
}

#[test]
fn an_iret_that_faults_does_not_unblock_them_and_its_fault_is_not_stepped() {
    for (number, error) in [(vector::GP, 0x100c), (vector::SS, 0), (vector::NP, 0x28), (vector::PF, 2)] {
        let mut svm = at_iret();
        let before = svm.block.vmcb.intercept_exceptions;
        enter(&mut svm);
        (svm.block.vmcb.exit_info1, svm.block.vmcb.exit_info2) = (error, 0x7000);
        assert!(leave(&mut svm, exit_code::EXCEPTION + u64::from(number), IRET, 0));
        assert_eq!(svm.block.vmcb.intercept_exceptions, before);
        assert!(!is_stepped(&svm), "the frame of the fault has the guest's flags");
        let word =
            event::VALID | event::TYPE_EXCEPTION | event::ERROR_VALID | error << 32 | u64::from(number);
        assert_eq!(enter(&mut svm), word);
        assert!(number != vector::PF || svm.cr2() == 0x7000);
        assert!(!is_stepped(&svm) && awaits_iret(&svm) && !svm.can_take_nmi());
        // The IRET of its handler leads back to the first one, where the next NMI comes.
        assert!(leave(&mut svm, exit_code::IRET, 0x3000, 0));
        enter(&mut svm);
        svm.block.vmcb.dr6 |= BS;
        assert!(!leave(&mut svm, DB, IRET, 0));
        assert_eq!((svm.exit(), svm.can_take_nmi()), (Exit::NmiWindow, true));
    }
}

#[test]
fn the_guests_own_traps_stay_its_own() {
    let db = Exit::Exception(Exception { vector: vector::DB, error: None, cr2: None });
    // It steps through what the NMI has interrupted: its trap comes after the next instruction.
    let mut svm = at_iret();
    enter(&mut svm);
    assert_eq!(end_of_iret(&mut svm, rflags::FIXED | rflags::TF, BS), Exit::NmiWindow);
    assert_eq!((svm.rflags() & rflags::TF, svm.dr6() & BS), (rflags::TF, 0));
    // It steps through its NMI handler.
    let mut svm = at_iret();
    svm.block.vmcb.rflags |= rflags::TF;
    enter(&mut svm);
    assert_eq!(end_of_iret(&mut svm, rflags::FIXED, BS), db);
    assert_eq!((svm.dr6() & BS, svm.can_take_nmi()), (BS, true));
    // A breakpoint on the stack, and an old single step in DR6.
    let mut svm = at_iret();
    svm.set_dr6(0xffff_0ff0 | BS);
    enter(&mut svm);
    assert_eq!(end_of_iret(&mut svm, rflags::FIXED, BS | 2), db);
    assert_eq!((svm.dr6() & (BS | 0xf), svm.can_take_nmi()), (BS | 2, true));
    // A breakpoint at the IRET itself.
    let mut svm = at_iret();
    enter(&mut svm);
    svm.block.vmcb.dr6 |= 1;
    assert!(!leave(&mut svm, DB, IRET, 0));
    assert_eq!((svm.exit(), svm.dr6() & (BS | 0xf), svm.can_take_nmi()), (db, 1, false));
}

#[test]
fn one_in_an_interrupt_shadow_waits_for_one_instruction() {
    let mut svm = svm(Features::default());
    assert!(!leave(&mut svm, exit_code::INTR, AFTER, 1));
    assert!(!svm.can_take_nmi() && svm.open_nmi_window());
    assert_eq!(enter(&mut svm), 0);
    assert!(is_stepped(&svm));
    svm.block.vmcb.dr6 |= BS;
    assert!(!leave(&mut svm, DB, AFTER + 1, 0));
    assert_eq!((svm.exit(), svm.can_take_nmi()), (Exit::NmiWindow, true));
    // Nothing waits: the processor sees to shadows itself.
    assert!(!leave(&mut svm, exit_code::INTR, AFTER, 1));
    svm.inject(Event::Exception(Exception::UD));
    enter(&mut svm);
    assert!(!is_stepped(&svm));
}

#[test]
fn one_behind_an_exception_needs_an_exit() {
    let mut svm = svm(Features::default());
    svm.inject(Event::Exception(Exception::UD));
    assert!(!svm.can_take_nmi() && !svm.open_nmi_window());
    svm.block.vmcb.event_inj = 0;
    enter(&mut svm);
    assert!(svm.can_take_nmi());
}

#[test]
fn processors_with_virtual_nmis_do_it_themselves() {
    let mut svm = svm(Features { virtual_nmi: true, ..Features::default() });
    let bits = |svm: &Svm| svm.block.vmcb.int_ctl & (0b11 << 11 | 1 << 26);
    assert_eq!(bits(&svm), 1 << 26);
    svm.block.vmcb.clean = clean::ALL;
    svm.inject(Event::Nmi);
    assert_eq!(enter(&mut svm), 0);
    assert_eq!((bits(&svm), svm.block.vmcb.clean & clean::INTERRUPT), (1 << 26 | 1 << 11, 0));
    assert!(svm.event_pending(), "it ends a halt");
    // The processor is in the handler; another one waits there.
    svm.block.vmcb.int_ctl = svm.block.vmcb.int_ctl & !(1 << 11) | 1 << 12;
    assert!(!leave(&mut svm, exit_code::CPUID, AFTER, 0));
    assert!(svm.can_take_nmi() && !awaits_iret(&svm));
    svm.inject(Event::Nmi);
    enter(&mut svm);
    assert_eq!(bits(&svm), 1 << 26 | 0b11 << 11);
    assert!(!svm.event_pending(), "in the handler it does not end a halt");
    // A fault during its delivery: the mask is clear, and the NMI is asked for again.
    svm.block.vmcb.int_ctl &= !(0b11 << 11);
    svm.block.vmcb.exit_int_info = NMI;
    svm.request(work::EVENT);
    assert!(!leave(&mut svm, exit_code::NESTED_FAULT, AFTER, 0));
    assert!(svm.was_delivering() && svm.event_pending());
    assert_eq!(enter(&mut svm), 0);
    assert_eq!(bits(&svm), 1 << 26 | 1 << 11);
    svm.reset();
    assert_eq!(bits(&svm), 1 << 26);
}

#[test]
fn task_switches_in_software_block_and_unblock_virtual_ones() {
    let mut svm = svm(Features { virtual_nmi: true, ..Features::default() });
    let masked = |svm: &Svm| svm.block.vmcb.int_ctl & int_ctl::V_NMI_MASK != 0;
    // Delivered through a task gate.
    svm.block.vmcb.exit_int_info = NMI;
    svm.request(work::EVENT);
    assert!(!leave(&mut svm, exit_code::TASK_SWITCH, AFTER, 0));
    svm.finish_delivery();
    assert_eq!((enter(&mut svm), masked(&svm), awaits_iret(&svm)), (0, true, false));
    assert!(!svm.event_pending());
    // The task's IRET.
    svm.unblock_nmis();
    assert!(!masked(&svm));
}

/// Its flags would be saved with the step's trap flag.
#[test]
fn an_iret_that_returns_from_a_task_is_executed_in_software() {
    use crate::arch::task::{TaskSource, TaskSwitch};
    let task_return = Exit::TaskSwitch(TaskSwitch { selector: 0, source: TaskSource::Iret });
    let mut svm = svm(Features::default());
    svm.set_cr0(cr0::PE);
    svm.inject(Event::Nmi);
    assert_eq!(enter(&mut svm), NMI);
    for _ in 0..2 {
        svm.block.vmcb.rflags |= rflags::NT;
        assert!(!leave(&mut svm, exit_code::IRET, IRET, 0));
        assert_eq!((svm.exit(), is_stepped(&svm), svm.can_take_nmi()), (task_return, false, false));
        // It may fault, and comes again.
        assert!(awaits_iret(&svm));
        enter(&mut svm);
        assert!(!is_stepped(&svm));
    }
    svm.unblock_nmis();
    assert!(svm.can_take_nmi() && !awaits_iret(&svm));
    // In virtual-8086 mode and in long mode the flag means nothing.
    for (flags, ext) in [(rflags::NT | rflags::VM, 0), (rflags::NT, efer::LME | efer::LMA)] {
        let mut svm = self::svm(Features::default());
        svm.set_cr0(cr0::PE | cr0::PG);
        svm.set_efer(ext);
        svm.inject(Event::Nmi);
        assert_eq!(enter(&mut svm), NMI);
        svm.block.vmcb.rflags |= flags;
        assert!(leave(&mut svm, exit_code::IRET, IRET, 0));
    }
}
