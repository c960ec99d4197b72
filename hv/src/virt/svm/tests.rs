//! RESET and INIT, which need no processor.

mod nmi;

use super::vmcb::{cr, exit_code};
use super::*;
use crate::arch::msr as index;
use crate::arch::state::{cr0, cr4, efer};
use crate::arch::{SegReg, Segment};

#[test]
fn init_leaves_msrs_and_caches_alone_and_reset_does_not() {
    let maps = (Arc::new(IoMap::intercept_all()), Arc::new(MsrMap::intercept_all()));
    let mut svm = Svm::new(Features::default(), maps.0, maps.1);
    let msrs = [
        (index::LSTAR, 0x1111),
        (index::KERNEL_GS_BASE, 0x2222),
        (index::SYSENTER_EIP, 0x3333),
        (index::PAT, 0x0101_0101_0101_0101),
    ];
    for (msr, value) in msrs {
        assert!(svm.set_switched_msr(msr, value));
    }
    assert!(svm.set_switched_msr(index::GS_BASE, 0x4444));
    svm.set_cr0(cr0::PE | cr0::TS | cr0::CD);
    svm.inject(Event::Nmi);
    svm.init();
    let cr0 = cr0::ET | cr0::CD;
    assert_eq!(ArchState::load(&svm), ArchState { cr0, ..ArchState::reset() });
    assert!(!svm.event_pending());
    for (msr, value) in msrs {
        assert_eq!(svm.switched_msr(msr), Some(value), "{msr:#x}");
    }
    assert_eq!(svm.switched_msr(index::GS_BASE), Some(0), "a segment's base");
    svm.reset();
    assert_eq!(ArchState::load(&svm), ArchState::reset());
    for (msr, _) in msrs {
        let after = if msr == index::PAT { 0x0007_0406_0007_0406 } else { 0 };
        assert_eq!(svm.switched_msr(msr), Some(after), "{msr:#x}");
    }
}

#[test]
fn cr0_is_intercepted_no_more_than_needed() {
    let reads = cr::CR3_READ | cr::CR0_READ;
    for (takes_reads_for_cr0, shadow) in [(false, cr::CR3_READ), (true, reads)] {
        let features = Features { takes_reads_for_cr0, ..Features::default() };
        let mut svm = Svm::new(features, Arc::new(IoMap::intercept_all()), Arc::new(MsrMap::intercept_all()));
        let intercepted = |svm: &Svm| (svm.block.vmcb.intercept_cr, svm.block.vmcb.intercept_misc1 & 1 << 5);
        svm.set_cr0(cr0::PE | cr0::PG | cr0::WP | cr0::ET);
        svm.set_cr4(cr4::PAE);
        for _ in 0..2 {
            svm.use_roots(Roots::Nested(Hpa(0x1000)));
            // No access to CR0 exits.
            assert_eq!(intercepted(&svm), (cr::CR4_WRITE, 0));
            for exits in [true, true, false, true] {
                svm.set_cr3_exits(exits);
                let loads = if exits { cr::CR3_WRITE } else { 0 };
                assert_eq!(intercepted(&svm), (cr::CR4_WRITE | loads, 0));
            }
            svm.use_roots(Roots::Shadow(Hpa(0x2000)));
            // Writes of CR0 only if they change more than TS and MP.
            assert_eq!(intercepted(&svm), (shadow | cr::CR3_WRITE | cr::CR4_WRITE, 1 << 5));
        }
        // What the guest reads is no longer what the processor holds, nor what a write changes.
        svm.set_cr0(cr0::PE | cr0::PG | cr0::ET);
        assert_eq!(intercepted(&svm).0, reads | cr::CR0_WRITE | cr::CR3_WRITE | cr::CR4_WRITE);
    }
}

/// Where the processor executes task switches by itself: the TSS is guarded while there can be one, and is the current one.
#[test]
fn the_current_tss_is_guarded_where_task_switches_are_missed() {
    for misses_task_switches in [true, false] {
        let features = Features { misses_task_switches, ..Features::default() };
        let mut svm = Svm::new(features, Arc::new(IoMap::intercept_all()), Arc::new(MsrMap::intercept_all()));
        let page = |svm: &mut Svm| {
            let page = svm.guarded_page();
            assert_eq!(page.is_some(), svm.block.vmcb.intercept_misc1 & misc1::TR_WRITE != 0, "LTR exits");
            page.map(|gva| gva.0)
        };
        let guarded = |at| misses_task_switches.then_some(at);
        svm.set_cr0(cr0::PE);
        svm.set_segment(SegReg::Tr, Segment { base: 0x1_8000_5f98, ..svm.segment(SegReg::Tr) });
        assert_eq!(page(&mut svm), None, "nested tables");
        svm.use_roots(Roots::Shadow(Hpa(0x2000)));
        assert_eq!(page(&mut svm), guarded(0x8000_5000));
        svm.set_segment(SegReg::Tr, Segment { base: 0x7000, ..svm.segment(SegReg::Tr) });
        assert_eq!(page(&mut svm), guarded(0x7000));
        // Real mode and long mode have no task switches.
        svm.set_cr0(0);
        assert_eq!(page(&mut svm), None);
        svm.set_cr0(cr0::PE | cr0::PG);
        assert_eq!(page(&mut svm), guarded(0x7000));
        svm.set_efer(efer::LME | efer::LMA);
        assert_eq!(page(&mut svm), None);
        svm.set_efer(0);
        assert_eq!(page(&mut svm), guarded(0x7000));
        svm.use_roots(Roots::Nested(Hpa(0x1000)));
        assert_eq!(page(&mut svm), None);
    }
}

/// On shadow tables a guest changes TS and MP of the processor's CR0, not of a copy.
#[test]
fn bits_of_cr0_that_change_without_an_exit_are_not_lost() {
    let mut svm =
        Svm::new(Features::default(), Arc::new(IoMap::intercept_all()), Arc::new(MsrMap::intercept_all()));
    let cr0 = cr0::PE | cr0::PG | cr0::ET | cr0::NE;
    svm.set_cr0(cr0 | cr0::TS);
    svm.use_roots(Roots::Shadow(Hpa(0x2000)));
    assert_eq!(svm.block.vmcb.cr0, cr0 | cr0::TS | cr0::WP);
    // CLTS, and MOV with MP.
    svm.block.vmcb.cr0 = cr0 | cr0::MP | cr0::WP;
    assert_eq!(svm.cr0(), cr0 | cr0::MP);
    for change in [|s: &mut Svm| s.set_cr4(cr4::PAE), |s: &mut Svm| s.set_efer(efer::LME)] {
        change(&mut svm);
        assert_eq!((svm.cr0(), svm.block.vmcb.cr0), (cr0 | cr0::MP, cr0 | cr0::MP | cr0::WP));
    }
    // What is set here counts.
    svm.set_cr0(cr0 | cr0::TS);
    assert_eq!((svm.cr0(), svm.block.vmcb.cr0), (cr0 | cr0::TS, cr0 | cr0::TS | cr0::WP));
    svm.block.vmcb.cr0 = cr0 | cr0::MP | cr0::WP;
    svm.use_roots(Roots::Nested(Hpa(0x1000)));
    assert_eq!((svm.cr0(), svm.block.vmcb.cr0), (cr0 | cr0::MP, cr0 | cr0::MP));
}

/// A guest on a processor that ignores interrupt shadows, which has just executed STI; an interrupt waits if `offer`.
fn after_sti(offer: bool) -> Svm {
    let features = Features { ignores_interrupt_shadow: true, ..Features::default() };
    let mut svm = Svm::new(features, Arc::new(IoMap::intercept_all()), Arc::new(MsrMap::intercept_all()));
    svm.block.vmcb.rip = 0x1000;
    svm.block.vmcb.rflags |= rflags::IF;
    if offer {
        svm.set_pending_irq(PendingIrq::Vector(0x61));
    }
    leave(&mut svm, exit_code::INTR, 0x1000, 1);
    svm
}

/// An exit as the processor reports it; whether the guest just goes on.
fn leave(svm: &mut Svm, code: u64, rip: u64, int_state: u64) -> bool {
    let vmcb = &mut svm.block.vmcb;
    (vmcb.exit_code, vmcb.rip, vmcb.int_state) = (code, rip, int_state);
    let goes_on = svm.finish_injection();
    if !goes_on {
        let _exit = svm.exit();
    }
    goes_on
}

/// V_IRQ, and whether the guest is stepped.
fn enter(svm: &mut Svm) -> (bool, bool) {
    svm.prepare_injection();
    let vmcb = &svm.block.vmcb;
    (vmcb.int_ctl & int_ctl::V_IRQ != 0, vmcb.rflags & rflags::TF != 0)
}

#[test]
fn a_shadow_outlives_exits_before_the_instruction_that_it_covers() {
    for offer in [false, true] {
        let mut svm = after_sti(offer);
        for code in [exit_code::INTR, exit_code::PAGE_FAULT, exit_code::INTR] {
            assert_ne!(svm.work.get() & work::OFFER, 0, "the next entry looks at the shadow");
            assert_eq!(enter(&mut svm), (false, true));
            // The processor has forgotten the shadow.
            assert!(!leave(&mut svm, code, 0x1000, 0));
            assert_eq!(svm.block.vmcb.rflags & rflags::TF, 0, "the guest's own flag");
            assert!(!svm.can_take_interrupt());
        }
        svm.set_pending_irq(PendingIrq::Vector(0x61));
        assert_eq!(enter(&mut svm), (false, true));
        svm.block.vmcb.dr6 = 0xffff_0ff0 | 1 << 14;
        assert!(
            leave(&mut svm, exit_code::EXCEPTION + 1, 0x1003, 0),
            "the #DB at the end of the step is not the guest's"
        );
        assert!(svm.can_take_interrupt());
        assert_eq!(enter(&mut svm), (true, false));
    }
}

#[test]
fn a_shadow_ends_with_its_instruction_however_that_ends() {
    // By an exit, after which the hypervisor has executed it.
    let mut svm = after_sti(true);
    assert_eq!(enter(&mut svm), (false, true));
    assert!(!leave(&mut svm, exit_code::HLT, 0x1000, 0));
    assert!(!svm.end_instruction(0x1001));
    assert_eq!(enter(&mut svm), (true, false));
    // By an exit at another instruction.
    let mut svm = after_sti(true);
    assert_eq!(enter(&mut svm), (false, true));
    assert!(!leave(&mut svm, exit_code::INTR, 0x1001, 0));
    assert_eq!(enter(&mut svm), (true, false));
}
