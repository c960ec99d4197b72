//! Random guests: no interrupt of the local APIC is lost or taken twice, and no work is left for ever.

use proptest::prelude::*;

use super::*;
use crate::arch::addr::Gpa;
use crate::arch::state::rflags;
use crate::arch::{Access, msr};
use crate::vcpu::testing::Machine;
use crate::virt::Virt;
use crate::vm::work;

/// Vectors that the guest sends to itself, one of each at a time: two of the same would rightly become one.
const FIRST: u64 = 0x40;
const VECTORS: u64 = 0x60;

fn set_if(f: &mut Fake, on: bool) {
    let flags = f.rflags() & !rflags::IF;
    f.set_rflags(flags | if on { rflags::IF } else { 0 });
}

/// One random thing that a guest does. `sent` counts what it has sent to itself.
fn act(f: &mut Fake) -> Exit {
    let choice = f.choices.pop_front().unwrap_or(0);
    let operand = choice >> 8;
    f.cpu.tsc.set(f.cpu.tsc.get() + operand % 97);
    match choice & 15 {
        0 | 1 => {
            // A vector that is not on its way: more than the last one that was taken or sent.
            let vector = FIRST + operand % VECTORS;
            if f.on_the_way.insert(vector as u8) { wrmsr(f, x2apic::SELF_IPI, vector) } else { Exit::Cpuid }
        }
        2 | 3 => {
            set_if(f, true);
            Exit::Cpuid
        }
        4 => {
            set_if(f, false);
            input(f, 0x80, 1)
        }
        5 | 6 => wrmsr(f, x2apic::EOI, 0),
        7 => {
            f.set_task_priority((operand & 15) as u8);
            Exit::Cpuid
        }
        8 => wrmsr(f, x2apic::TPR, operand & 0xff),
        9 => {
            f.shadow = true;
            Exit::Cpuid
        }
        10 => rdmsr(f, x2apic::CURRENT_COUNT),
        11 => Exit::Interrupt,
        12 => Exit::NestedFault { gpa: Gpa(0x3000), access: Access::WRITE, present: true, walk: false },
        13 => wrmsr(f, x2apic::ICR, 4 << 8 | 1 << 14),
        14 => {
            f.nmi_blocked = false;
            Exit::NmiWindow
        }
        _ => rdmsr(f, msr::TSC),
    }
}

/// Everything is let in and ended.
fn settle(f: &mut Fake) -> Exit {
    f.nmi_blocked = false;
    f.set_task_priority(0);
    set_if(f, true);
    wrmsr(f, x2apic::EOI, 0)
}

/// Forgets what was taken since the last step.
fn look(f: &mut Fake) {
    for vector in f.interrupts.iter().skip(f.seen.len()) {
        assert!(f.on_the_way.remove(vector), "{vector:#x} was taken twice");
    }
    f.seen.clone_from(&f.interrupts);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn interrupts_are_taken_exactly_once(choices in prop::collection::vec(any::<u64>(), 1..300)) {
        let mut machine = Machine::new(&[]);
        let steps = choices.len();
        machine.vcpu.virt.choices = choices.into();
        machine.vcpu.virt.script.extend((0..steps).map(|_| (|f| { look(f); act(f) }) as crate::virt::fake::Step));
        // As many as there are vectors, each at most in its own turn.
        machine.vcpu.virt.script.extend((0..2 * VECTORS).map(|_| (|f| { look(f); settle(f) }) as crate::virt::fake::Step));
        machine.play();
        look(&mut machine.vcpu.virt);
        prop_assert!(machine.vcpu.virt.on_the_way.is_empty(), "lost: {:?}", machine.vcpu.virt.on_the_way);
        prop_assert_eq!(machine.vcpu.interrupts.counts.interrupts as usize, machine.vcpu.virt.interrupts.len());
        prop_assert_eq!(machine.vcpu.work & !work::HALTED, 0);
        prop_assert!(machine.vcpu.lapic.pending().is_none());
    }
}
