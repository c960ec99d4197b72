//! Debug exceptions, and interrupt shadows under the trap flag. The modelled processor refuses to enter where a pending single step
//! does not fit.

use super::*;

const DB: u64 = 0x8000_0301;
const BS: u64 = 1 << 14;
/// Blocking by STI, and by MOV SS.
const STI: u64 = 1;
const MOV_SS: u64 = 2;
const STEPPING: (u32, u64) = (guest::RFLAGS, rflags::FIXED | rflags::IF | rflags::TF);
const DEBUG: Exception = Exception { vector: vector::DB, error: None, cr2: None };

/// A debug exception for these causes; what is in DR6 and DR7 afterwards.
fn raised(scene: &mut Scene, causes: u64, dr6: u64, dr7: u64) -> (u64, u64) {
    scene.vmx.set_dr6(dr6);
    let fields = [(exit::INTERRUPTION, DB), (exit::QUALIFICATION, causes), (guest::DR7, dr7)];
    scene.run(reason::EXCEPTION, &fields);
    assert_eq!(scene.vmx.exit(), Exit::Exception(DEBUG));
    (scene.vmx.dr6(), scene.vmx.dr7())
}

#[test]
fn exceptions_that_can_come_without_end_exit() {
    for scene in [Scene::nested(), Scene::shadow()] {
        let wanted = 1 << vector::DB | 1 << vector::AC | 1 << vector::MC;
        assert_eq!(field(control::EXCEPTION_BITMAP) & wanted, wanted);
        drop(scene);
    }
}

#[test]
fn a_debug_exception_reaches_the_debug_registers() {
    let mut scene = Scene::nested();
    assert_eq!(raised(&mut scene, BS, 0xffff_0ff0, 0x400), (0xffff_4ff0, 0x400));
    // Breakpoint bits are replaced, the others stay until software clears them.
    assert_eq!(raised(&mut scene, 2, 0xffff_6ff5, 0x402), (0xffff_6ff2, 0x402));
    // The use of a debug register, once.
    assert_eq!(raised(&mut scene, 1 << 13, 0xffff_0ff0, 0x2400), (0xffff_2ff0, 0x400));
    // A transaction, a bus lock, and that it was none.
    assert_eq!(raised(&mut scene, 1 << 16 | 1, 0xffff_0ff0, 0x400), (0xfffe_0ff1, 0x400));
    assert_eq!(raised(&mut scene, 1 << 11, 0xfffe_0ff0, 0x400), (0xffff_07f0, 0x400));
    scene.vmx.inject(Event::Exception(DEBUG));
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!(scene.delivered().0, DB as u32);
}

#[test]
fn int1_ends_and_leaves_the_debug_registers_alone() {
    let mut scene = Scene::nested();
    scene.vmx.set_dr6(0xffff_0ff2);
    let fields = [(exit::INTERRUPTION, 0x8000_0501), (exit::INSTRUCTION_LENGTH, 1), (guest::RIP, 0x3000)];
    scene.run(reason::EXCEPTION, &fields);
    assert_eq!(scene.vmx.exit(), Exit::Exception(DEBUG));
    assert_eq!((scene.vmx.rip(), scene.vmx.dr6()), (0x3001, 0xffff_0ff2));
    scene.vmx.inject(Event::Exception(DEBUG));
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((scene.delivered().0, field(guest::RIP)), (DB as u32, 0x3001));
}

/// What the processor leaves as it exits in a shadow under TF; `waits`: the exit saves that a step waits.
fn shadow(kind: u64, waits: bool) -> Vec<(u32, u64)> {
    let pending = if waits { BS } else { 0 };
    vec![STEPPING, LENGTH, (guest::INTERRUPTIBILITY, kind), (guest::PENDING_DEBUG, pending)]
}

fn shadow_and_pending() -> (u64, u64) {
    (field(guest::INTERRUPTIBILITY), field(guest::PENDING_DEBUG))
}

#[test]
fn a_step_waits_for_the_end_of_the_shadow_of_mov_ss() {
    let mut scene = Scene::nested();
    // An exit that the hypervisor answers by itself: the guest goes on as it was.
    scene.run(reason::EPT_VIOLATION, &shadow(MOV_SS, true));
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!(shadow_and_pending(), (MOV_SS, BS));
    // Also on another PCPU.
    scene.vmx.put(&mut scene.cpu);
    scene.run(reason::CPUID, &shadow(MOV_SS, true));
    // An instruction that ends in software has its step from there.
    let next = scene.vmx.next_rip().unwrap();
    assert!(scene.vmx.answer_cpuid(&[0; 4], next));
    scene.vmx.inject(Event::Exception(DEBUG));
    scene.run(reason::EPT_VIOLATION, &shadow(MOV_SS, true));
    assert_eq!((scene.delivered().0, field(guest::PENDING_DEBUG)), (DB as u32, BS), "of the next turn");
    // So has one that is emulated.
    scene.vmx.set_rip(0x1010);
    scene.vmx.clear_interrupt_shadow();
    scene.vmx.inject(Event::Exception(DEBUG));
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((scene.delivered().0, shadow_and_pending().0), (DB as u32, 0));
    // One that faults has none.
    scene.run(reason::EPT_VIOLATION, &shadow(MOV_SS, true));
    scene.vmx.inject(Event::Exception(Exception::GP0));
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((scene.delivered().0, shadow_and_pending()), (0x8000_0b0d, (0, 0)));
}

#[test]
fn a_step_over_sti_is_delivered_out_of_its_shadow() {
    let mut scene = Scene::nested();
    let mut fields = shadow(STI, false);
    fields.extend([(exit::INTERRUPTION, DB), (exit::QUALIFICATION, BS)]);
    scene.run(reason::EXCEPTION, &fields);
    scene.vmx.inject(Event::Exception(DEBUG));
    // The delivery meets a page that is not there yet, and is repeated.
    let mut fields = shadow(STI, false);
    fields.extend([(exit::VECTORING, DB)]);
    scene.run(reason::EPT_VIOLATION, &fields);
    assert!(scene.vmx.was_delivering());
    scene.run(reason::INTERRUPT, &[]);
    assert_eq!((scene.delivered().0, shadow_and_pending()), (DB as u32, (0, 0)));
}
