//! The backend on a [modelled](super::instr::modelled) processor: what it reads and writes, and what becomes of events.

mod counters;
mod debug;
mod descheduled;
mod nmi;
mod speculation;
mod turns;

use super::controls::{processor, secondary};
use super::decode::reason;
use super::field::{control, exit, guest};
use super::instr::modelled::{self, Processor};
use super::instr::{FAIL_INVALID, FAIL_VALID};
use super::*;
use crate::arch::addr::Hpa;
use crate::arch::state::{SegReg, Segment, cr0, cr4, efer};
use crate::arch::{Access, Exception, vector};
use crate::paging::engine::{Engine, Engines};
use crate::paging::guest_walk::error_code;

const FEATURES: Features = Features {
    revision: 1,
    ept: true,
    ept_2m: true,
    ept_1g: true,
    ept_accessed_dirty: true,
    invept_context: true,
    unrestricted: true,
    vpid: true,
    invvpid_address: true,
    invvpid_context: true,
    invvpid_non_global: true,
    preemption_timer: Some(5),
    switches_efer: true,
    switches_pat: true,
    switches_counters: false,
    physical_bits: 40,
    secondary: secondary::VPID,
    pin: 0,
    processor: processor::SECONDARY,
    exit: controls::exit::SAVE_TIMER | controls::exit::HOST_64BIT,
    entry: 0,
    cr0_ones: cr0::NE | cr0::PE | cr0::PG,
    cr4_ones: 1 << 13,
    cr4_allowed: u64::MAX,
};

/// A VCPU, and the processor that it runs on.
struct Scene {
    vmx: Vmx,
    cpu: VmxCpu,
}

impl Scene {
    /// In 64-bit mode with interrupts open, on these tables, after its first exit.
    fn new(features: Features, roots: Roots) -> Scene {
        modelled::with(|it| *it = Processor::default());
        Scene::another(features, roots)
    }

    /// The same on the processors that there are.
    fn another(features: Features, roots: Roots) -> Scene {
        let mut vmx =
            Vmx::new(features, Arc::new(IoBitmaps::exit_on_all()), Arc::new(MsrBitmap::opening(&[])), 1);
        vmx.set_cr0(cr0::PE | cr0::PG | cr0::WP | cr0::NE | cr0::ET);
        vmx.set_cr4(1 << 5);
        vmx.set_efer(efer::LME | efer::LMA | efer::NXE);
        vmx.set_rflags(rflags::FIXED | rflags::IF);
        vmx.set_rip(0x1000);
        vmx.set_paging(roots);
        let mut scene = Scene { vmx, cpu: VmxCpu::modelled() };
        assert_eq!(scene.run(reason::INTERRUPT, &[]), Ended::Other);
        scene
    }

    fn nested() -> Scene {
        Scene::new(FEATURES, Roots::Nested(Hpa(0x5000)))
    }

    fn shadow() -> Scene {
        Scene::new(FEATURES, Roots::Shadow(Hpa(0x5000)))
    }

    /// Another PCPU executes from now on. What belongs to the last one.
    #[must_use = "its place in memory must not be taken"]
    fn go_to(&mut self, pcpu: u64) -> VmxCpu {
        modelled::with(|it| it.go_to(pcpu));
        core::mem::replace(&mut self.cpu, VmxCpu::modelled())
    }

    /// Enters the guest, which leaves these fields and exits; nothing is left of what the last exit said.
    fn run(&mut self, reason: u32, fields: &[(u32, u64)]) -> Ended {
        let fields = fields.to_vec();
        modelled::with(|it| {
            it.script.push_back(Box::new(move |it: &mut Processor, _| {
                let word = *it.field(control::ENTRY_INTERRUPTION) as u32;
                it.delivered = match word & event::VALID {
                    0 => (0, 0),
                    _ => (word, *it.field(control::ENTRY_ERROR_CODE)),
                };
                for stale in [exit::VECTORING, exit::INTERRUPTION, exit::QUALIFICATION] {
                    it.fields().insert(stale, 0);
                }
                it.fields().extend(fields);
                reason
            }));
        });
        self.vmx.enter(&mut self.cpu)
    }

    /// Reads and writes of fields in `f` and in the exit and entry around it.
    fn accesses(&mut self, reason: u32, fields: &[(u32, u64)], f: impl FnOnce(&mut Vmx)) -> (u64, u64) {
        let count = || modelled::with(|it| (it.reads, it.writes));
        let before = count();
        let counted = self.vmx.field_accesses().unwrap();
        assert_eq!((counted.reads, counted.writes), before, "since the start");
        self.run(reason, fields);
        f(&mut self.vmx);
        // What changed is written by the next entry.
        self.run(reason::INTERRUPT, &[]);
        let after = count();
        let accesses = (after.0 - before.0 - 1, after.1 - before.1);
        let now = self.vmx.field_accesses().unwrap();
        assert_eq!((now.reads - counted.reads - 1, now.writes - counted.writes), accesses, "counted wrongly");
        accesses
    }

    /// The event that the last entry delivered.
    fn delivered(&self) -> (u32, u64) {
        modelled::with(|it| it.delivered)
    }
}

fn field(number: u32) -> u64 {
    modelled::with(|it| *it.field(number))
}

/// The two bytes of an instruction.
const LENGTH: (u32, u64) = (exit::INSTRUCTION_LENGTH, 2);
const PAGE_FAULT: u64 = 0x8000_0b0e;

#[test]
fn an_exit_reads_and_writes_few_fields() {
    let mut scene = Scene::nested();
    let cpuid = scene.accesses(reason::CPUID, &[LENGTH], |vmx| {
        let next = vmx.next_rip().unwrap();
        assert!(!vmx.answer_cpuid(&[1, 2, 3, 4], next));
    });
    assert_eq!((cpuid, field(guest::RIP)), ((4, 1), 0x1002));
    let out = scene.accesses(reason::IO, &[LENGTH, (exit::QUALIFICATION, 0x3f8 << 16)], |vmx| {
        // The access was decoded already.
        assert!(!vmx.end_instruction(0x1002));
    });
    assert_eq!(out, (5, 1));
    let wrmsr = scene.accesses(reason::WRMSR, &[LENGTH], |vmx| {
        assert_eq!(vmx.exit(), Exit::Wrmsr);
        let next = vmx.next_rip().unwrap();
        assert!(!vmx.end_instruction(next));
    });
    assert_eq!(wrmsr, (4, 1));
    assert_eq!(scene.accesses(reason::INTERRUPT, &[], |vmx| assert_eq!(vmx.exit(), Exit::Interrupt)), (1, 0));
    let violation = [(exit::QUALIFICATION, 0x182), (exit::GUEST_PHYSICAL, 0xfee0_0000)];
    let violation = scene.accesses(reason::EPT_VIOLATION, &violation, |vmx| {
        assert!(matches!(vmx.exit(), Exit::NestedFault { access: Access::WRITE, .. }));
    });
    assert_eq!(violation, (5, 0));
    let mut scene = Scene::shadow();
    let fields =
        [(exit::INTERRUPTION, PAGE_FAULT), (exit::INTERRUPTION_ERROR, 9), (exit::QUALIFICATION, 0x7000)];
    assert_eq!(scene.accesses(reason::EXCEPTION, &fields, |_| {}), (5, 0));
    assert_eq!(scene.run(reason::EXCEPTION, &fields), Ended::PageFault(Gva(0x7000), 9));
    let cr3 = scene.accesses(reason::CONTROL_REGISTER, &[LENGTH, (exit::QUALIFICATION, 3)], |vmx| {
        assert!(matches!(vmx.exit(), Exit::ControlReg(_)));
        vmx.set_cr3(0x9000);
        vmx.set_paging(Roots::Shadow(Hpa(0x6000)));
        let next = vmx.next_rip().unwrap();
        assert!(!vmx.end_instruction(next));
    });
    assert_eq!((cr3, field(guest::CR3)), ((6, 2), 0x6000));
}

#[test]
fn loads_of_cr3_exit_on_nested_tables_until_the_next_tables() {
    let exits = || field(control::PROCESSOR_BASED) & u64::from(processor::CR3_LOAD) != 0;
    let mut scene = Scene::nested();
    scene.run(reason::INTERRUPT, &[]);
    assert!(!exits());
    scene.vmx.set_cr3_exits(true);
    scene.run(reason::INTERRUPT, &[]);
    assert!(exits());
    scene.vmx.set_paging(Roots::Shadow(Hpa(0x5000)));
    scene.run(reason::INTERRUPT, &[]);
    assert!(exits(), "always");
    scene.vmx.set_paging(Roots::Nested(Hpa(0x5000)));
    scene.run(reason::INTERRUPT, &[]);
    assert!(!exits());
}

#[test]
fn invlpg_exits_on_shadow_tables_until_it_may_pass() {
    let exits = || {
        let refusals = field(control::EXCEPTION_BITMAP) >> vector::GP & 1 != 0;
        (field(control::PROCESSOR_BASED) & u64::from(processor::INVLPG) != 0, refusals)
    };
    let mut scene = Scene::shadow();
    let mut run = |change: fn(&mut Vmx)| {
        change(&mut scene.vmx);
        scene.run(reason::INTERRUPT, &[]);
        exits()
    };
    assert_eq!(run(|_| {}), (true, false));
    assert_eq!(run(|vmx| vmx.set_invlpg_exits(false)), (false, false));
    let pcids = |vmx: &mut Vmx| vmx.set_cr4(vmx.cr4() | cr4::PCIDE);
    assert_eq!(run(pcids), (false, true), "an INVPCID that names an address space is refused");
    assert_eq!(run(|vmx| vmx.set_invlpg_exits(true)), (true, false));
    run(|vmx| vmx.set_invlpg_exits(false));
    assert_eq!(run(|vmx| vmx.set_paging(Roots::Nested(Hpa(0x5000)))), (false, false));
    assert_eq!(run(|vmx| vmx.set_paging(Roots::Shadow(Hpa(0x5000)))), (true, false), "from the beginning");
}

#[test]
fn page_faults_exit_by_tables_and_mode() {
    let choice =
        || (field(control::EXCEPTION_BITMAP) >> vector::PF & 1, field(control::PAGE_FAULT_MASK) as u32);
    let mut scene = Scene::nested();
    assert_eq!(choice(), (0, 0), "with nested tables none");
    scene.vmx.set_paging(Roots::Shadow(Hpa(0x5000)));
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!(choice(), (0, error_code::PRESENT));
    scene.vmx.set_efer(efer::LME | efer::LMA);
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!(choice(), (0, error_code::PRESENT | error_code::FETCH));
    scene.vmx.set_efer(efer::LME);
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!(choice(), (1, 0), "outside of long mode all");
    assert_eq!(field(control::PAGE_FAULT_MATCH), 0);
}

#[test]
fn an_nmi_of_the_host_goes_to_its_handler() {
    let mut scene = Scene::nested();
    assert_eq!(scene.run(reason::EXCEPTION, &[(exit::INTERRUPTION, 0x8000_0202)]), Ended::Other);
    assert_eq!((scene.vmx.exit(), modelled::with(|it| it.nmis)), (Exit::Nmi, 1));
    // It has nothing to do with those of the guest.
    assert!(scene.vmx.can_take_nmi() && !scene.vmx.event_pending());
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((scene.delivered().0, modelled::with(|it| it.nmis)), (0, 1));
}

#[test]
fn an_exception_is_delivered_once_and_again_if_that_is_interrupted() {
    let mut scene = Scene::nested();
    scene.vmx.inject(Event::Exception(Exception { vector: vector::GP, error: Some(0x28), cr2: None }));
    let violation = [(exit::VECTORING, 0x8000_0b0d), (exit::VECTORING_ERROR, 0x28)];
    assert_eq!(scene.run(reason::EPT_VIOLATION, &violation), Ended::Other);
    assert_eq!(scene.delivered(), (0x8000_0b0d, 0x28));
    assert!(scene.vmx.was_delivering() && scene.vmx.event_pending());
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!(scene.delivered(), (0x8000_0b0d, 0x28));
    assert!(!scene.vmx.event_pending());
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!(scene.delivered().0, 0);
}

#[test]
fn real_mode_has_exceptions_without_error_codes() {
    let mut scene = Scene::nested();
    scene.vmx.set_efer(0);
    scene.vmx.set_cr0(cr0::NE | cr0::ET);
    assert_eq!(scene.vmx.engines(), Engines::only(Engine::Nested));
    scene.vmx.inject(Event::Exception(Exception::GP0));
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!(scene.delivered().0, 0x8000_030d);
    assert_eq!(field(guest::CR0) & (cr0::PE | cr0::PG), 0, "an unrestricted guest");
    // On the way to protected mode the code segment is one of data until the first far jump.
    let cs = scene.vmx.segment(SegReg::Cs);
    scene.vmx.set_cr0(cr0::PE | cr0::NE | cr0::ET);
    scene.vmx.set_segment(SegReg::Cs, Segment { attributes: 0x93, ..cs });
    assert_eq!(scene.vmx.engines(), Engines::only(Engine::Nested));
    scene.vmx.set_segment(SegReg::Cs, Segment { attributes: 0x9b, ..cs });
    assert!(scene.vmx.engines().contains(Engine::Shadow));
}

#[test]
fn without_unrestricted_guests_nothing_runs_in_real_mode() {
    let features = Features { unrestricted: false, ..FEATURES };
    let mut scene = Scene::new(features, Roots::Nested(Hpa(0x5000)));
    assert_eq!(scene.vmx.engines(), Engines::ALL);
    scene.vmx.set_efer(0);
    scene.vmx.set_cr0(cr0::PE | cr0::NE | cr0::ET);
    assert_eq!(scene.vmx.engines(), Engines::ALL.without(Engine::Nested));
    scene.vmx.set_cr0(cr0::NE | cr0::ET);
    assert_eq!(scene.vmx.engines(), Engines::NONE);
}

#[test]
fn an_interrupt_waits_for_its_window() {
    let mut scene = Scene::nested();
    scene.run(reason::INTERRUPT, &[(guest::RFLAGS, rflags::FIXED)]);
    scene.vmx.set_pending_irq(PendingIrq::ExtInt(0x31));
    scene.run(reason::INTERRUPT, &[]);
    let window = || field(control::PROCESSOR_BASED) & u64::from(processor::INTERRUPT_WINDOW) != 0;
    assert_eq!((scene.delivered().0, window(), scene.vmx.interrupt_taken()), (0, true, None));
    // The window: the guest is entered again at once, with the interrupt.
    let open = [(guest::RFLAGS, rflags::FIXED | rflags::IF)];
    modelled::with(|it| {
        it.script.push_back(Box::new(move |it: &mut Processor, _| {
            it.fields().extend(open);
            reason::INTERRUPT_WINDOW
        }));
    });
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!(
        (scene.delivered().0, window(), scene.vmx.interrupt_taken()),
        (0x8000_0031, false, Some(0x31))
    );
}

#[test]
fn entries_that_fail_are_explained() {
    let mut scene = Scene::nested();
    // CS with L and D.
    let cs_rights = guest::ES_RIGHTS + 2 * SegReg::Cs as u32;
    assert_eq!(scene.run(reason::ENTRY_FAILED | 33, &[(cs_rights, 0xe09b)]), Ended::Other);
    assert_eq!(scene.vmx.exit(), Exit::InvalidState);
    let report = scene.vmx.exit_report();
    assert!(report.contains("exit 0x80000021") && report.contains("; broken: "), "{report}");
    assert!(report.contains("CS"), "{report}");
    for (failed, error, words) in [
        // The model's processor accepts no controls at all, and its host has no registers.
        (
            FAIL_VALID,
            7,
            "VM-instruction error 7: invalid control fields; broken: the processor does not accept",
        ),
        (FAIL_VALID, 8, "invalid host-state fields; broken: the host's CR0"),
        (FAIL_VALID, 26, "events blocked by MOV SS"),
        (FAIL_INVALID, 0, "no VMCS is current"),
    ] {
        assert_eq!(scene.run(failed, &[(exit::INSTRUCTION_ERROR, error)]), Ended::Other);
        assert_eq!(scene.vmx.exit(), Exit::InvalidState);
        let report = scene.vmx.exit_report();
        assert!(report.contains(words), "{report}");
    }
}

#[test]
fn what_exits_do_not_save_is_the_guests_in_the_processor() {
    let mut scene = Scene::nested();
    assert!(scene.vmx.set_switched_msr(crate::arch::msr::LSTAR, 0x1234));
    assert_eq!(modelled::with(|it| it.msrs[&crate::arch::msr::LSTAR]), 0x1234);
    modelled::with(|it| it.cr2 = 0x7000);
    assert_eq!(scene.vmx.cr2(), 0x7000);
    scene.vmx.flush(FlushScope::Address(Gva(0x8000)));
    assert_eq!(modelled::with(|it| it.flushes.pop()), Some((0, 0x8000)));
}

#[test]
fn without_the_switch_of_the_pat_the_guest_has_one_in_software() {
    let features = Features { switches_pat: false, ..FEATURES };
    let mut scene = Scene::new(features, Roots::Shadow(Hpa(0x5000)));
    modelled::with(|it| it.msrs.insert(0x277, 0x0001_0406_0007_0406));
    assert_eq!(scene.vmx.host_pat(), Some(0x0001_0406_0007_0406));
    assert_eq!(scene.vmx.switched_msr(crate::arch::msr::PAT), Some(0x0007_0406_0007_0406));
    assert!(scene.vmx.set_switched_msr(crate::arch::msr::PAT, 0x0407_0506_0007_0106));
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!(scene.vmx.switched_msr(crate::arch::msr::PAT), Some(0x0407_0506_0007_0106));
    assert_eq!(modelled::with(|it| it.msrs[&0x277]), 0x0001_0406_0007_0406);
    let fields = modelled::with(|it| it.fields().contains_key(&guest::PAT));
    assert!(!fields, "a field that the processor does not have");
    assert_eq!(Scene::shadow().vmx.host_pat(), None);
}
