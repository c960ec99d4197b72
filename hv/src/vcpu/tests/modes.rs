//! Changes between nested and shadow tables in the handling of exits.

use core::num::NonZeroU32;

use super::wrmsr;
use crate::arch::addr::{Gpa, Gva, Hpa};
use crate::arch::state::{Gpr, VcpuState, cr0, cr4, efer};
use crate::arch::{Exception, RegMove};
use crate::mem::table_memory::TableMemory;
use crate::paging::engine::Engine;
use crate::paging::policy::Mode;
use crate::paging::shadow::Shootdown;
use crate::paging::tree_key::TreeKey;
use crate::vcpu::mmu::{audit_shadow, page_fault, set_mode, switch};
use crate::vcpu::outcome::{Cause, Outcome, Stop};
use crate::vcpu::testing::{CODE, Machine, Scene};
use crate::virt::fake::Step;
use crate::virt::{Event, Exit, FlushScope, Roots, Virt};
use alloc::sync::Arc;

const EFER: u32 = 0xc000_0080;

#[test]
fn a_root_that_is_to_be_loaded_is_forgotten_with_the_shadow_tables() {
    let mut machine = Machine::with(
        "shadow_pages = 16\n",
        &[
            |f| {
                assert!(matches!(f.roots, Some(Roots::Shadow(_))));
                // The root depends on NXE; but the next entry uses nested tables again.
                wrmsr(f, EFER, efer::NXE)
            },
            |f| {
                assert!(matches!(f.roots, Some(Roots::Nested(_))));
                wrmsr(f, EFER, 0)
            },
            |f| {
                assert!(matches!(f.roots, Some(Roots::Shadow(_))));
                Exit::Shutdown
            },
        ],
    );
    set_mode(&mut machine.vcpu, &machine.vm, Mode::Switch(NonZeroU32::MIN), || 0).unwrap();
    machine.play();
}

/// A guest with two levels of tables, whose page at 8000 is mapped and has been filled.
fn audited(script: &[Step]) -> Machine {
    let mut machine = Machine::with("shadow_pages = 16\n", script);
    machine.write(0x5000, &0x6027u32.to_le_bytes());
    machine.write(0x6000 + 4 * 8, &0x0002_0067u32.to_le_bytes());
    machine.vcpu.virt.regs.cr3 = 0x5000;
    machine.vcpu.virt.regs.cr0 |= cr0::PG;
    set_mode(&mut machine.vcpu, &machine.vm, Mode::Shadow, || 0).unwrap();
    audit_shadow(&mut machine.vcpu, NonZeroU32::MIN);
    let outcome = page_fault(&mut machine.vcpu, &machine.vm, &mut machine.host, Gva(0x8000), 0, false, 0);
    assert!(matches!(outcome, Outcome::Resume));
    machine
}

/// Sets the dirty bit of the nested leaf at `gpa`, as the processor does when the guest writes there.
fn set_nested_dirty(machine: &Machine, gpa: u64) {
    let memory = machine.vm.memory.read();
    let tables = &memory.host.tables;
    let mut table = memory.nested.root(TreeKey::FIRST).frame();
    for level in (1..=4).rev() {
        let index = (gpa >> (12 + 9 * (level - 1)) & 511) as usize;
        let raw = tables.load(table, index);
        assert!(raw & 1 != 0, "there is an entry at level {level}");
        if level == 1 || raw & 0x80 != 0 {
            return tables.store(table, index, raw | 0x40);
        }
        table = Hpa(raw & 0x000f_ffff_ffff_f000).frame();
    }
}

#[test]
fn the_second_vcpu_on_its_way_to_nested_tables_clears_no_dirty_bits() {
    struct NoOthers;
    impl Shootdown for NoOthers {
        fn request(&self, _reload: bool) {}
        fn service(&self) {}
    }
    let mut machine = Machine::with("shadow_pages = 16\nvcpus = 2\n", &[]);
    machine.vm.shootdown.call_once(|| Arc::new(NoOthers));
    machine.write(0x5000, &0x6027u32.to_le_bytes());
    machine.write(0x6000 + 4 * 8, &0x0002_0067u32.to_le_bytes());
    let Scene { vcpus: [mut second], .. } = Scene::new();
    second.id = 1;
    for vcpu in [&mut machine.vcpu, &mut second] {
        vcpu.virt.sets_dirty_bits = true;
        vcpu.virt.regs.cr3 = 0x5000;
        vcpu.virt.regs.cr0 |= cr0::PG | cr0::PE;
        set_mode(vcpu, &machine.vm, Mode::Shadow, || 0).unwrap();
        assert!(matches!(vcpu.virt.roots, Some(Roots::Shadow(_))));
    }
    // Now there is a page that shadows the table at 6000.
    let outcome = page_fault(&mut machine.vcpu, &machine.vm, &mut machine.host, Gva(0x8000), 0, false, 0);
    assert!(matches!(outcome, Outcome::Resume));
    let is_written = |machine: &Machine| machine.vm.memory.read().nested.is_written(Gpa(0x6000).frame());
    set_nested_dirty(&machine, 0x6000);
    switch(&mut machine.vcpu, &machine.vm, Engine::Nested, || 0).unwrap();
    assert!(!is_written(&machine), "the first one clears what was");
    set_nested_dirty(&machine, 0x6000);
    // It has decided before it could see that the first one was on its way.
    switch(&mut second, &machine.vm, Engine::Nested, || 0).unwrap();
    assert!(matches!(second.virt.roots, Some(Roots::Nested(_))));
    assert!(is_written(&machine), "the guest has written since");
}

#[test]
fn audits_find_tables_that_were_changed_behind_the_engines_back() {
    let script: [Step; 40] = [|_| Exit::Cpuid; 40];
    audited(&script).play();
    let mut machine = audited(&script);
    machine.write(0x6000 + 4 * 8, &0x0003_0067u32.to_le_bytes());
    let Stop::Died(death) = machine.run() else { panic!("the guest goes on") };
    assert_eq!(death.cause, Cause::ShadowDisagreement);
    assert!(
        death.what.starts_with("the shadow tables are wrong: ") && death.what.contains("0x8000"),
        "{}",
        death.what
    );
}

/// Where INVLPG passes on shadow tables, the processor refuses an INVPCID that names an address space, because it runs without the
/// guest's PCIDs. Such an exit is executed; any other fault of this kind is the guest's.
#[test]
fn an_invpcid_that_the_processor_refuses_is_executed() {
    const INVPCID: &[u8] = b"\x66\x0f\x38\x82\x06";
    const WRMSR: &[u8] = b"\x0f\x30\x90\x90\x90";
    let gp = Event::Exception(Exception::GP0);
    let cases: [(&[u8], u64, u64, Option<Event>); 5] = [
        (INVPCID, cr4::PCIDE, 7, None),
        (INVPCID, cr4::PCIDE, 1 << 12, Some(gp)),
        (INVPCID, 0, 7, Some(gp)),
        (INVPCID, cr4::PCIDE, 0, None),
        (WRMSR, cr4::PCIDE, 0, Some(gp)),
    ];
    for (code, pcids, pcid, delivered) in cases {
        let script: &[Step] = &[|_| Exit::Exception(Exception::GP0), |_| Exit::Shutdown];
        let mut machine = Machine::with("shadow_pages = 16\n", script);
        machine.code(code);
        machine.write(0x2000, &pcid.to_le_bytes());
        machine.write(0x2008, &0x4000u64.to_le_bytes());
        let regs = &mut machine.vcpu.virt.regs;
        (regs.cr4, regs.rip) = (regs.cr4 | pcids, CODE);
        // INVPCID EAX, [ESI]: the type 1 flushes an address space.
        regs.gprs[0] = 1;
        regs.gprs[6] = 0x2000;
        set_mode(&mut machine.vcpu, &machine.vm, Mode::Shadow, || 0).unwrap();
        machine.vcpu.virt.flushes.clear();
        machine.play();
        let virt = &machine.vcpu.virt;
        assert_eq!(virt.delivered.first().copied(), delivered, "{code:x?} {pcids:x} {pcid:x}");
        let after = if delivered.is_some() { CODE } else { CODE + code.len() as u64 };
        assert_eq!(virt.regs.rip, after);
        assert_eq!(virt.flushes.contains(&FlushScope::All), delivered.is_none());
    }
}

/// The paravirtual clock's structures may lie on page tables: the shadow tables follow what is written there.
#[test]
fn audits_find_nothing_behind_the_clock() {
    const WALL_CLOCK: u32 = 0x4b56_4d00;
    const SYSTEM_TIME: u32 = 0x4b56_4d01;
    const TSC: u32 = 0x10;
    let again: Step = |_| Exit::Cpuid;
    let scripts: [&[Step]; 2] = [
        &[|f| wrmsr(f, WALL_CLOCK, 0x6000 + 4 * 8), again],
        // Each write of the TSC updates the structure.
        &[|f| wrmsr(f, SYSTEM_TIME, 0x6021), again, |f| wrmsr(f, TSC, 5), again],
    ];
    for script in scripts {
        let mut machine = audited(script);
        machine.code(&[0x0f, 0xa2, 0x0f, 0xa2, 0x0f, 0xa2, 0x0f, 0xa2]);
        machine.play();
        assert_ne!(machine.read::<4>(0x6000 + 4 * 8), 0x0002_0067u32.to_le_bytes());
    }
}

#[test]
fn a_nested_step_executes_its_instruction_whatever_the_mode() {
    let nested: Step = |f| {
        assert!(matches!(f.roots, Some(Roots::Nested(_))));
        f.regs.rip += 7;
        Exit::Cpuid
    };
    // The first one finds tables that are not there yet.
    let fault: Step = |f| {
        assert!(matches!(f.roots, Some(Roots::Shadow(_))));
        f.regs.rip = CODE;
        Exit::Exception(Exception::page_fault(Gva(0x9000), 3))
    };
    let two = NonZeroU32::new(2).unwrap();
    let scripts: [(Mode, &[Step]); 2] =
        [(Mode::Shadow, &[fault, fault, nested]), (Mode::Switch(two), &[nested, fault, fault, nested])];
    for (mode, script) in scripts {
        let mut machine = audited(script);
        set_mode(&mut machine.vcpu, &machine.vm, Mode::Nested, || 0).unwrap();
        // FXSAVE to the page directory is a write that only the processor can do.
        machine.code(&[0x0f, 0xae, 0x05, 0x00, 0x90, 0x00, 0x00]);
        machine.write(0x6000 + 4, &0x0000_1067u32.to_le_bytes());
        machine.write(0x6000 + 4 * 9, &0x0000_5067u32.to_le_bytes());
        set_mode(&mut machine.vcpu, &machine.vm, mode, || 0).unwrap();
        machine.play();
        assert_eq!(machine.vcpu.mmu.switches.nested_steps, 1, "{mode}");
    }
}

/// Where either kind of tables has its demands, as on VT-x: in real mode only nested tables, without paging only shadow tables.
#[test]
fn tables_that_cannot_run_the_guest_make_way_for_the_others() {
    let shadow: Step = |f| {
        assert!(matches!(f.roots, Some(Roots::Shadow(_))), "{:?}", f.roots);
        Exit::Cpuid
    };
    let nested: Step = |f| {
        assert!(matches!(f.roots, Some(Roots::Nested(_))), "{:?}", f.roots);
        Exit::Cpuid
    };
    let to_protected: Step = |f| {
        assert!(matches!(f.roots, Some(Roots::Nested(_))), "{:?}", f.roots);
        f.regs.cr0 |= cr0::PE;
        Exit::Cpuid
    };
    let two = NonZeroU32::new(2).unwrap();
    type Case<'a> = (Mode, u64, (u64, u64), &'a [Step]);
    let cases: [Case<'_>; 5] = [
        (Mode::Shadow, 0, (0, cr0::PE), &[nested, to_protected, shadow, shadow]),
        (Mode::Nested, cr0::PE, (cr0::PG, cr0::PE), &[shadow, shadow]),
        (Mode::Nested, cr0::PE | cr0::PG, (cr0::PG, cr0::PE), &[nested, nested]),
        (Mode::Switch(two), 0, (0, cr0::PE), &[nested, nested, nested, nested, to_protected, shadow, shadow]),
        (Mode::Switch(two), cr0::PE, (0, cr0::PE), &[nested, shadow, shadow, nested]),
    ];
    for (mode, start, needs, script) in cases {
        let mut machine = Machine::with("shadow_pages = 16\n", script);
        machine.vcpu.virt.regs.cr0 = cr0::ET | start;
        machine.vcpu.virt.needs = needs;
        let root = machine.vm.memory.read().nested.root(TreeKey::FIRST);
        machine.vcpu.virt.set_paging(Roots::Nested(root));
        set_mode(&mut machine.vcpu, &machine.vm, mode, || 0).unwrap();
        machine.code(&[0x0f, 0xa2, 0x0f, 0xa2, 0x0f, 0xa2, 0x0f, 0xa2, 0x0f, 0xa2, 0x0f, 0xa2, 0x0f, 0xa2]);
        machine.play();
        assert_eq!(machine.vm.translation.mode(), mode);
    }
}

#[test]
fn a_guest_that_no_tables_can_run_ends() {
    let mut machine = Machine::with("shadow_pages = 16\n", &[|_| Exit::Cpuid]);
    machine.vcpu.virt.regs.cr0 = cr0::ET;
    machine.vcpu.virt.needs = (cr0::PE | cr0::PG, cr0::PE);
    set_mode(&mut machine.vcpu, &machine.vm, Mode::Nested, || 0).unwrap();
    let Stop::Died(death) = machine.run() else { panic!("the guest goes on") };
    assert_eq!(death.cause, Cause::InvalidState);
    assert!(death.what.contains("real mode"), "{}", death.what);
    assert_eq!(machine.vcpu.virt.entries, 0);
}

/// PAE's page-directory pointers are loaded, and checked, with what implies that (Intel SDM 3, 4.4.1).
#[test]
fn page_directory_pointers_are_loaded_with_the_registers() {
    let load: Step = |f| {
        f.regs.cr0 |= cr0::PG;
        f.regs.cr4 |= cr4::PAE;
        f.set_gpr(Gpr::Rbx, 0x5000);
        Exit::ControlReg(RegMove { index: 3, write: true, gpr: Some(Gpr::Rbx) })
    };
    let cases: [(u64, u64, bool); 4] = [
        (0x6001, 0, true),
        (0x6003, 0, false),
        (0x6001, 1 << 52 | 1, false),
        // Not present, whatever else it holds.
        (0x6001, 1 << 52, true),
    ];
    for (first, last, valid) in cases {
        let mut machine = Machine::new(&[load]);
        machine.write(0x5000, &first.to_le_bytes());
        machine.write(0x5018, &last.to_le_bytes());
        machine.play();
        let fake = &machine.vcpu.virt;
        assert_eq!(fake.pointers, valid.then_some([first, 0, 0, last]));
        assert_eq!(fake.regs.cr3 == 0x5000, valid);
    }
}

mod waiting {
    //! A VCPU that waits for the shadow tables of its VM.

    use super::*;
    use crate::paging::format::npt::Npt;
    use crate::paging::shadow::{Shadow, Shootdown};
    use crate::vcpu::run::run;
    use crate::vcpu::testing::Memory;
    use crate::vm::Vm;
    use crate::vm::work;
    use alloc::sync::Arc;
    use core::cell::{Cell, RefCell};

    type Tables = spin::RwLockWriteGuard<'static, Option<Shadow<Memory, Npt>>>;

    thread_local! {
        static VM: Cell<Option<&'static Vm<Npt, Memory>>> = const { Cell::new(None) };
        /// The tables' lock, held as if by another VCPU.
        static TAKEN: RefCell<Option<Tables>> = const { RefCell::new(None) };
    }

    /// Another PCPU, which has the tables, asks all VCPUs to forget, and is done as soon as it has its answer.
    struct Other;

    impl Shootdown for Other {
        fn request(&self, _reload: bool) {}
        fn service(&self) {
            if let Some(tables) = TAKEN.take() {
                VM.get().unwrap().mailboxes[0].request(work::FLUSH);
                drop(tables);
            }
        }
    }

    #[test]
    fn what_it_answers_while_it_waits_is_done_before_the_entry() {
        let machine = audited(&[
            |f| {
                f.flushes.clear();
                TAKEN.set(VM.get().map(|vm| vm.shadow.write()));
                Exit::Cpuid
            },
            |f| {
                assert!(TAKEN.with_borrow(Option::is_none));
                assert_eq!(f.flushes, [FlushScope::All]);
                Exit::Cpuid
            },
        ]);
        let machine = Box::leak(Box::new(machine));
        machine.vm.shootdown.call_once(|| Arc::new(Other));
        machine.vm.translation.enforce(Engine::Shadow);
        let vm = &machine.vm;
        VM.set(Some(vm));
        let _it_dies = run(&mut machine.vcpu, vm, &mut (), &mut machine.host);
        assert_eq!(machine.vcpu.virt.entries, 3);
    }
}
