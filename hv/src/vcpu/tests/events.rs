//! Exceptions and NMIs on their way into the guest, and deliveries that were interrupted.

use super::*;
use crate::arch::addr::{Gpa, Gva};
use crate::arch::state::rflags;
use crate::arch::{Access, Exception, vector};
use crate::vcpu::outcome::{Cause, Stop};
use crate::vcpu::testing::Machine;
use crate::virt::fake::Step;
use crate::virt::{Event, Virt};

/// x2APIC ICR: an NMI to this APIC.
const NMI_TO_SELF: u64 = 4 << 8 | 1 << 14;

fn quiet(f: &mut Fake) -> Exit {
    input(f, 0x80, 1)
}

/// A nested fault in RAM whose translation is there already.
fn spurious() -> Exit {
    Exit::NestedFault { gpa: Gpa(0x3000), access: Access::WRITE, present: true, walk: false }
}

const fn exception(vector: u8) -> Exception {
    let error = if matches!(vector, 8 | 10..=14 | 17) { Some(0) } else { None };
    Exception { vector, error, cr2: if vector == vector::PF { Some(0x7000) } else { None } }
}

#[test]
fn nmis_wait_for_the_end_of_the_handler() {
    let mut machine = Machine::new(&[
        |f| wrmsr(f, x2apic::ICR, NMI_TO_SELF),
        |f| {
            assert_eq!(f.delivered, [Event::Nmi]);
            wrmsr(f, x2apic::ICR, NMI_TO_SELF)
        },
        |f| {
            assert_eq!(f.delivered, [Event::Nmi], "in the handler");
            f.nmi_blocked = false;
            Exit::NmiWindow
        },
        |f| {
            assert_eq!(f.delivered, [Event::Nmi, Event::Nmi]);
            f.nmi_blocked = false;
            quiet(f)
        },
        quiet,
    ]);
    machine.play();
    assert_eq!((machine.vcpu.interrupts.counts.nmis, machine.vcpu.work), (2, 0));
    assert_eq!(machine.vcpu.virt.delivered.len(), 2);
}

#[test]
fn nmis_do_not_need_open_interrupts() {
    let mut machine = Machine::new(&[
        |f| {
            f.set_rflags(rflags::FIXED);
            wrmsr(f, x2apic::ICR, NMI_TO_SELF)
        },
        quiet,
    ]);
    machine.play();
    assert_eq!(machine.vcpu.virt.delivered, [Event::Nmi]);
}

#[test]
fn an_interrupted_delivery_is_repeated_before_anything_else() {
    let mut machine = Machine::new(&[
        |f| {
            f.interrupted = Some(Event::Exception(exception(vector::PF)));
            spurious()
        },
        |f| {
            assert_eq!(f.delivered, [Event::Exception(exception(vector::PF))]);
            quiet(f)
        },
        quiet,
    ]);
    machine.play();
    assert_eq!(machine.vcpu.virt.delivered.len(), 1);
}

#[test]
fn a_waiting_nmi_does_not_overtake_an_interrupted_exception() {
    let mut machine = Machine::new(&[
        |f| {
            f.nmi_blocked = true;
            wrmsr(f, x2apic::ICR, NMI_TO_SELF)
        },
        |f| {
            // The handler has just returned, and the next instruction faults into a page that is not there yet.
            f.nmi_blocked = false;
            f.interrupted = Some(Event::Exception(exception(vector::GP)));
            spurious()
        },
        |f| {
            assert_eq!(f.delivered, [Event::Exception(exception(vector::GP))]);
            quiet(f)
        },
        |f| {
            assert_eq!(f.delivered, [Event::Exception(exception(vector::GP)), Event::Nmi]);
            Exit::Shutdown
        },
    ]);
    machine.play();
}

#[test]
fn an_nmi_behind_an_exception_does_not_wait_for_an_exit_of_the_guests() {
    // How often an interrupt is to end the entry, and what is delivered, if the second exit comes at the end of a delivery.
    let play = |first: Step| {
        let mut machine = Machine::new(&[first, |_| Exit::Interrupt, quiet]);
        machine.play();
        (machine.host.self_interrupts, machine.vcpu.virt.delivered)
    };
    let interrupted: Step = |f| {
        f.interrupted = Some(Event::Exception(exception(vector::AC)));
        wrmsr(f, x2apic::ICR, 0x40 | 1 << 14)
    };
    let with_nmi: Step = |f| {
        f.interrupted = Some(Event::Exception(exception(vector::AC)));
        wrmsr(f, x2apic::ICR, NMI_TO_SELF)
    };
    let (interrupts, delivered) = play(interrupted);
    assert_eq!((interrupts, &delivered[..]), (0, &[Event::Exception(exception(vector::AC))][..]));
    assert_eq!(play(with_nmi), (1, [delivered, vec![Event::Nmi]].concat()));
}

#[test]
fn exceptions_without_end_pass_the_host() {
    for vector in [vector::DB, vector::AC] {
        let again: Step = |f| Exit::Exception(exception(f.choices[0] as u8));
        let mut machine = Machine::new(&[again; 20]);
        machine.vcpu.virt.choices.push_back(vector.into());
        machine.play();
        assert_eq!(machine.host.windows, 20, "for interrupts, at each of them");
        assert_eq!(machine.vcpu.virt.delivered, [Event::Exception(exception(vector)); 20]);
        // It leaves when others want the PCPU.
        machine.vcpu.virt.script.extend([again; 20]);
        machine.host.wanted_at = Some(0);
        assert!(machine.run_or_yield().is_none());
        assert_eq!(machine.vcpu.virt.script.len(), 20);
    }
}

/// What becomes of `second` while `first` was being delivered.
fn merged(first: Event, second: u8) -> Result<Vec<Event>, Stop> {
    let mut machine = Machine::new(&[
        |f| Exit::Exception(exception(f.choices.pop_front().unwrap() as u8)),
        |f| {
            f.nmi_blocked = false;
            quiet(f)
        },
        quiet,
    ]);
    machine.vcpu.virt.choices.push_back(second.into());
    let step: Step = |f| {
        f.interrupted = f.delivered.pop();
        f.nmi_blocked = false;
        let step = f.script.pop_front().unwrap();
        step(f)
    };
    machine.vcpu.virt.script.push_front(step);
    machine.vcpu.virt.inject(first);
    match machine.run() {
        Stop::Died(death) if death.cause == Cause::TripleFault && machine.vcpu.virt.entries > 2 => {
            Ok(core::mem::take(&mut machine.vcpu.virt.delivered))
        }
        stop => Err(stop),
    }
}

#[test]
fn two_exceptions_in_a_row_make_a_double_fault_by_the_manuals_table() {
    const CONTRIBUTORY: [u8; 5] = [vector::DE, vector::TS, vector::NP, vector::SS, vector::GP];
    const BENIGN: [u8; 9] = [1, 3, 4, 5, 6, 7, 16, 17, 19];
    let all = || BENIGN.into_iter().chain(CONTRIBUTORY).chain([vector::PF]);
    for first in all() {
        for second in all() {
            let contributory = CONTRIBUTORY.contains(&second);
            let double = match first {
                vector::PF => contributory || second == vector::PF,
                first => CONTRIBUTORY.contains(&first) && contributory,
            };
            let expected = if double { exception(vector::DF) } else { exception(second) };
            let delivered = merged(Event::Exception(exception(first)), second).unwrap();
            assert_eq!(delivered, [Event::Exception(expected)], "{first} then {second}");
        }
    }
}

#[test]
fn a_fault_in_a_double_faults_delivery_is_the_end() {
    for second in [vector::GP, vector::PF, vector::NP] {
        match merged(Event::Exception(exception(vector::DF)), second) {
            Err(Stop::Died(death)) => assert_eq!(death.cause, Cause::TripleFault),
            other => panic!("{other:?}"),
        }
    }
    let debug = merged(Event::Exception(exception(vector::DF)), vector::DB).unwrap();
    assert_eq!(debug, [Event::Exception(exception(vector::DB))], "benign");
}

#[test]
fn an_nmi_whose_delivery_faults_is_not_lost() {
    let delivered = merged(Event::Nmi, vector::MC).unwrap();
    assert_eq!(delivered, [Event::Exception(exception(vector::MC)), Event::Nmi]);
}

#[test]
fn page_faults_carry_their_address() {
    let mut machine = Machine::new(&[|_| Exit::Exception(Exception::page_fault(Gva(0x1234), 6))]);
    machine.play();
    let fault = Exception { vector: vector::PF, error: Some(6), cr2: Some(0x1234) };
    assert_eq!(machine.vcpu.virt.delivered, [Event::Exception(fault)]);
}
