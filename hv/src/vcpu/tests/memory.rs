//! Nested faults: tables filled, instructions executed in software, deaths in holes; and what the test device does.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::arch::addr::{Gpa, Hpa};
use crate::arch::state::{SegReg, Segment, cr0, cr4, efer, rflags};
use crate::arch::{Access, Exception};
use crate::device::layout::{PM1A_CONTROL, RESET_CONTROL, TEST_EXIT, TEST_FLUSH, TEST_UNMAP};
use crate::device::message::Messages;
use crate::paging::GpaRange;
use crate::paging::shadow::Shootdown;
use crate::paging::table::Found;
use crate::paging::tree_key::TreeKey;
use crate::vcpu::outcome::{Cause, Death, Stop};
use crate::vcpu::run::run;
use crate::vcpu::testing::{CODE, Machine};
use crate::virt::fake::Step;
use crate::virt::{Event, FlushScope};

/// Where there is neither memory nor a device.
const HOLE: u64 = 0xc000_0000;

fn fault(gpa: u64, access: Access) -> Exit {
    Exit::NestedFault { gpa: Gpa(gpa), access, present: false, walk: false }
}

#[track_caller]
fn death(machine: &mut Machine) -> Box<Death> {
    match machine.run() {
        Stop::Died(death) => death,
        stop => panic!("{stop:?}"),
    }
}

/// Other VCPUs, which count how often they are told to forget what they remember.
#[derive(Default)]
struct Told(AtomicU32);

impl Shootdown for Told {
    fn request(&self, reload: bool) {
        assert!(!reload);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn service(&self) {}
}

/// How often the VCPUs of a machine that has more than one are told while it plays its script.
fn told(machine: &mut Machine) -> u32 {
    let others = Arc::new(Told::default());
    machine.vm.shootdown.call_once(|| others.clone());
    machine.play();
    others.0.load(Ordering::Relaxed)
}

#[test]
fn others_forget_translations_that_a_fault_replaces() {
    let script: [Step; 2] = [|_| fault(0x5_0000, Access::WRITE), |_| fault(0x5_0000, Access::WRITE)];
    let mut machine = Machine::new(&script);
    {
        // Other memory is there by now, and the tables do not know it.
        let mut memory = machine.vm.memory.write();
        let page = GpaRange::new(Gpa(0x5_0000), 0x1000).unwrap();
        let hpa = memory.p2m.translate(Gpa(0x9000)).writable().unwrap();
        let _ = memory.p2m.unmap(page).unwrap();
        let _ = memory.p2m.map_ram(page, hpa, true).unwrap();
    }
    assert_eq!(told(&mut machine), 1, "the second fault is of no consequence to others");
    assert_eq!((machine.vcpu.faults.filled, machine.vcpu.faults.spurious), (1, 1));
}

#[test]
fn ram_that_the_tables_lack_is_filled_in() {
    let mut machine = Machine::new(&[|_| fault(0x5_0000, Access::WRITE), |_| fault(0x5_0000, Access::WRITE)]);
    {
        // The P2m knows more than the tables.
        let mut memory = machine.vm.memory.write();
        let memory = &mut *memory;
        let page = GpaRange::new(Gpa(0x5_0000), 0x1000).unwrap();
        let hpa = memory.p2m.translate(Gpa(0x5_0000)).writable().unwrap();
        let changed = memory.p2m.unmap(page).unwrap();
        let _ = memory.nested.apply(&memory.p2m, changed).unwrap();
        let _ = memory.p2m.map_ram(page, hpa, true).unwrap();
    }
    machine.play();
    let faults = machine.vcpu.faults;
    assert_eq!((faults.filled, faults.spurious, faults.emulated), (1, 1, 0));
    assert!(machine.vcpu.virt.flushes.contains(&FlushScope::All), "spurious faults flush");
    assert_eq!(machine.vcpu.virt.regs.rip, CODE);
}

/// Panics when it has to answer: the caller then waits for the memory, whose reader never ends.
struct Waits;

impl Shootdown for Waits {
    fn request(&self, _reload: bool) {}
    fn service(&self) {
        panic!("waits for the memory");
    }
}

#[test]
fn only_what_changes_the_memory_waits_for_those_who_read_it() {
    let mut machine = Machine::new(&[
        |_| fault(0xfed0_0000, Access::READ),
        |_| fault(0x5_0000, Access::WRITE),
        |f| out(f, TEST_UNMAP, 4, 0x3_0000),
    ]);
    machine.code(&[0xa1, 0, 0, 0xd0, 0xfe]);
    machine.vm.shootdown.call_once(|| Arc::new(Waits));
    let reading = machine.vm.memory.read();
    let run = || run(&mut machine.vcpu, &machine.vm, &mut (), &mut machine.host);
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("waits for ever");
    drop(reading);
    assert_eq!(waited.downcast_ref(), Some(&"waits for the memory"));
    let faults = machine.vcpu.faults;
    assert_eq!((faults.emulated, faults.spurious, machine.vcpu.virt.script.len()), (1, 1, 0));
}

#[test]
fn devices_are_reached_by_instructions_in_software() {
    let mut machine = Machine::new(&[
        |_| fault(0xfed0_0000, Access::READ),
        |f| {
            assert_eq!(f.gpr(Gpr::Rax) as u8, 1, "the HPET's revision");
            assert_ne!(f.gpr(Gpr::Rax), 0xffff_ffff);
            assert_eq!(f.rip(), CODE + 5);
            Exit::Shutdown
        },
    ]);
    // MOV EAX, [HPET capabilities]
    machine.code(&[0xa1, 0, 0, 0xd0, 0xfe]);
    machine.play();
    assert_eq!(machine.vcpu.faults.emulated, 1);
}

#[test]
fn an_sse_access_is_two_of_eight_bytes() {
    let mut machine = Machine::new(&[
        |f| {
            f.set_gpr(Gpr::Rbx, 0xfed0_0000);
            fault(0xfed0_0000, Access::READ)
        },
        |f| {
            f.set_gpr(Gpr::Rbx, 0xfed0_0100);
            fault(0xfed0_0100, Access::WRITE)
        },
    ]);
    // MOVDQA XMM1, [EBX]; MOVDQA [EBX], XMM1
    machine.code(b"\x66\x0f\x6f\x0b\x66\x0f\x7f\x0b");
    machine.play();
    let value = machine.host.xmm[&1];
    let mut chipset = machine.vm.chipset.lock();
    let mut read =
        |at: u64| chipset.mmio_read(Gpa(0xfed0_0000 + at), 8, crate::device::Nanos(0), &mut Messages::new());
    assert_eq!(value, u128::from(read(0)) | u128::from(read(8)) << 64);
    assert_eq!(machine.vcpu.virt.regs.rip, CODE + 8);
}

#[test]
fn single_steps_trap_behind_emulated_instructions_too() {
    let mut machine = Machine::new(&[|_| fault(0xfed0_0000, Access::READ)]);
    machine.vcpu.virt.regs.rflags |= rflags::TF | rflags::RF;
    machine.code(&[0xa1, 0, 0, 0xd0, 0xfe]);
    machine.play();
    let debug = Exception { vector: 1, error: None, cr2: None };
    assert_eq!(machine.vcpu.virt.delivered, [Event::Exception(debug)]);
    assert_ne!(machine.vcpu.virt.regs.dr6 & 1 << 14, 0);
    assert_eq!(machine.vcpu.virt.regs.rflags & rflags::RF, 0);
}

#[test]
fn writes_to_rom_are_lost() {
    let mut machine = Machine::new(&[
        |f| {
            f.set_gpr(Gpr::Rax, 0x1234);
            fault(HOLE, Access::WRITE)
        },
        |f| {
            assert_eq!(f.rip(), CODE + 5);
            Exit::Shutdown
        },
    ]);
    // MOV [0xc0000000], EAX
    machine.code(&[0xa3, 0, 0, 0, 0xc0]);
    let hpa = {
        let mut memory = machine.vm.memory.write();
        let memory = &mut *memory;
        let hpa: Hpa = memory.p2m.translate(Gpa(0x9000)).readable().unwrap();
        let page = GpaRange::new(Gpa(HOLE), 0x1000).unwrap();
        let changed = memory.p2m.map_rom(page, hpa).unwrap();
        let _ = memory.nested.apply(&memory.p2m, changed).unwrap();
        hpa
    };
    machine.write(0x9000, &[0xaa; 4]);
    machine.play();
    assert_eq!(machine.read::<4>(0x9000), [0xaa; 4], "{hpa}");
}

#[test]
fn holes_read_as_ones_and_swallow_writes() {
    let mut machine = Machine::new(&[
        |f| {
            f.set_gpr(Gpr::Rax, 0);
            fault(HOLE, Access::READ)
        },
        |f| {
            assert_eq!(f.gpr(Gpr::Rax), 0xffff_ffff);
            fault(HOLE, Access::WRITE)
        },
    ]);
    machine.code(&[0xa1, 0, 0, 0, 0xc0, 0xa3, 0, 0, 0, 0xc0]);
    machine.play();
    assert_eq!(machine.vcpu.virt.regs.rip, CODE + 10);
}

#[test]
fn a_jump_out_of_memory_is_the_end() {
    let mut machine = Machine::new(&[|f| {
        f.set_rip(HOLE + 0x123);
        fault(HOLE + 0x123, Access::FETCH)
    }]);
    let death = death(&mut machine);
    assert_eq!(death.cause, Cause::EmulationFailure);
    assert!(death.what.contains("0xc0000123"), "{}", death.what);
    assert_eq!(death.state.rip, HOLE + 0x123);

    // An instruction that begins in RAM and goes on outside of it.
    let mut machine = Machine::new(&[|f| {
        f.set_rip(0x13f_ffff);
        fault(0xfed0_0000, Access::READ)
    }]);
    machine.write(0x13f_ffff, &[0xa1]);
    let death = super::memory::death(&mut machine);
    assert!(death.what.contains("0x1400000"), "{}", death.what);
}

#[test]
fn instructions_that_cannot_be_executed_are_the_end() {
    let mut machine = Machine::new(&[|_| fault(0xfed0_0000, Access::READ)]);
    // FLD dword [0xfed00000]
    machine.code(&[0xd9, 0x05, 0, 0, 0xd0, 0xfe]);
    let death = death(&mut machine);
    assert_eq!(death.cause, Cause::EmulationFailure);
    assert!(death.what.contains("d9, 05") && death.what.contains("0x1000"), "{}", death.what);
}

#[test]
fn a_delivery_that_touches_a_hole_is_the_end() {
    let mut machine = Machine::new(&[|f| {
        f.interrupted = Some(Event::Exception(Exception::UD));
        fault(HOLE + 8, Access::WRITE)
    }]);
    let death = death(&mut machine);
    assert!(death.what.contains("delivery") && death.what.contains("0xc0000008"), "{}", death.what);
    assert!(machine.vcpu.virt.delivered.is_empty());
}

/// Long mode with its tables at `cr3`.
fn long_mode(machine: &mut Machine, cr3: u64) {
    let regs = &mut machine.vcpu.virt.regs;
    regs.cr0 |= cr0::PG;
    regs.cr4 |= cr4::PAE;
    regs.efer = efer::LME | efer::LMA | efer::NXE;
    regs.cr3 = cr3;
    regs.segments[SegReg::Cs as usize] = Segment::flat(8, 0xa9b);
}

#[test]
fn page_tables_in_a_hole_have_reserved_bits() {
    for (access, error) in [(Access::READ, 0x19), (Access::FETCH, 0x19)] {
        let mut machine = Machine::new(&[|f| {
            let access = if f.choices.pop_front() == Some(1) { Access::FETCH } else { Access::READ };
            Exit::NestedFault { gpa: Gpa(HOLE), access, present: false, walk: true }
        }]);
        machine.vcpu.virt.choices.push_back(access.execute.into());
        long_mode(&mut machine, HOLE);
        machine.play();
        let fault = Exception { vector: 14, error: Some(error), cr2: Some(CODE) };
        assert_eq!(machine.vcpu.virt.delivered, [Event::Exception(fault)]);
    }
}

#[test]
fn data_behind_page_tables_in_a_hole_faults_at_its_own_address() {
    let mut machine = Machine::new(&[|_| Exit::NestedFault {
        gpa: Gpa(HOLE),
        access: Access::WRITE,
        present: false,
        walk: true,
    }]);
    // 4-level tables at 0x2_0000: the first 2 MiB to themselves, the second gigabyte's directory in the hole.
    for (at, entry) in [(0x2_0000, 0x2_1003), (0x2_1000, 0x2_2003), (0x2_1008, HOLE | 3), (0x2_2000, 0x83)] {
        machine.write(at, &u64::to_le_bytes(entry));
    }
    long_mode(&mut machine, 0x2_0000);
    // MOV [0x40000018], EAX
    machine.code(&[0x89, 0x04, 0x25, 0x18, 0, 0, 0x40]);
    machine.play();
    let fault = Exception { vector: 14, error: Some(0xb), cr2: Some(0x4000_0018) };
    assert_eq!(machine.vcpu.virt.delivered, [Event::Exception(fault)]);
}

#[test]
fn devices_end_runs() {
    let stop = |step: Step| Machine::new(&[step]).run();
    assert!(matches!(stop(|f| out(f, PM1A_CONTROL, 2, 5 << 10 | 1 << 13)), Stop::PowerOff));
    assert!(matches!(stop(|f| out(f, RESET_CONTROL, 1, 6)), Stop::Reset));
    assert!(matches!(stop(|f| out(f, 0x64, 1, 0xfe)), Stop::Reset));
    assert!(matches!(stop(|f| out(f, TEST_EXIT, 1, 0x1_0203)), Stop::TestExit(3)));
    assert!(matches!(stop(|f| out(f, TEST_EXIT, 2, 0x1_0203)), Stop::TestExit(0x203)));
    assert!(matches!(stop(|f| out(f, TEST_EXIT, 4, 0x1_0203)), Stop::TestExit(0x1_0203)));
    let mut machine = Machine::with("", &[|f| out(f, TEST_EXIT, 1, 3)]);
    machine.play();
}

#[test]
fn string_output_ends_the_run_at_its_first_byte() {
    let mut machine = Machine::new(&[|f| {
        f.set_gpr(Gpr::Rdx, TEST_EXIT.into());
        f.set_gpr(Gpr::Rsi, 0x8000);
        f.set_gpr(Gpr::Rcx, 2);
        Exit::Io(IoExit { port: TEST_EXIT, size: 1, input: false, string: true, next_rip: Some(0x1002) })
    }]);
    machine.code(&[0xf3, 0x6e]);
    machine.write(0x8000, &[7, 8]);
    assert!(matches!(machine.run(), Stop::TestExit(7)));
}

#[test]
fn the_test_device_takes_pages_away() {
    let mut machine = Machine::new(&[
        |f| out(f, TEST_UNMAP, 4, 0x3_0008),
        |f| {
            assert_eq!(f.flushes, [FlushScope::All]);
            fault(0x3_0010, Access::READ)
        },
        |f| {
            assert_eq!(f.gpr(Gpr::Rax), 0xffff_ffff);
            Exit::Shutdown
        },
    ]);
    machine.vcpu.virt.next_rip = Some(CODE);
    machine.code(&[0xa1, 0x10, 0, 3, 0]);
    machine.write(0x3_0010, &[1; 4]);
    assert_eq!(told(&mut machine), 1, "other VCPUs forget where it was");
    assert!(machine.vm.memory.read().p2m.translate(Gpa(0x3_0000)).readable().is_none());
    assert!(machine.vm.memory.read().p2m.translate(Gpa(0x3_1000)).readable().is_some());
}

#[test]
fn the_test_device_drops_translations_and_keeps_memory() {
    let mut machine = Machine::new(&[
        |f| out(f, TEST_FLUSH, 4, 0x3_0008),
        |f| {
            assert_eq!(f.flushes, [FlushScope::All]);
            fault(0x3_0010, Access::READ)
        },
        |f| out(f, TEST_FLUSH, 4, 0xfec0_0000),
        |f| {
            assert_eq!(f.flushes, [FlushScope::All], "there is no memory of which to drop anything");
            Exit::Shutdown
        },
    ]);
    machine.write(0x3_0010, &[7; 4]);
    assert!(matches!(
        machine.vm.memory.read().nested.tree(TreeKey::FIRST).find(Gpa(0x3_0000)),
        Found::Leaf(_)
    ));
    assert_eq!(told(&mut machine), 1, "other VCPUs drop theirs too");
    let memory = machine.vm.memory.read();
    let (Found::Leaf(leaf), Some(hpa)) = (
        memory.nested.tree(TreeKey::FIRST).find(Gpa(0x3_0000)),
        memory.p2m.translate(Gpa(0x3_0000)).readable(),
    ) else {
        panic!("the fault has filled in the page");
    };
    assert_eq!(leaf.to, hpa);
}

#[test]
fn a_guest_that_drops_translations_in_a_loop_takes_no_memory() {
    // Drop, fault, and so on.
    let mut script: Vec<Step> = Vec::new();
    for _ in 0..20 {
        script.push(|f| out(f, TEST_FLUSH, 4, 0x3_0000));
        script.push(|f| {
            f.flushes.clear();
            fault(0x3_0010, Access::READ)
        });
    }
    let frames = [2, 40].map(|steps| {
        let mut machine = Machine::new(&script[..steps]);
        machine.play();
        machine.vm.memory.read().host.tables.in_use()
    });
    assert_eq!(frames[0], frames[1]);
}
