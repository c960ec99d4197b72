//! Timers, HLT, and what ends it.

use super::*;
use crate::arch::msr;
use crate::arch::state::rflags;
use crate::device::layout::PIT;
use crate::vcpu::outcome::{Cause, Stop};
use crate::vcpu::testing::{Machine, START, TSC_KHZ};
use crate::virt::fake::Step;
use crate::virt::{Event, Virt};

const DEADLINE_MODE: u64 = 2 << 17;
const PERIODIC: u64 = 1 << 17;
/// Divide by 1.
const BY_ONE: u64 = 0xb;

fn open(f: &mut Fake) {
    let flags = f.rflags();
    f.set_rflags(flags | rflags::IF);
}

fn quiet(f: &mut Fake) -> Exit {
    input(f, 0x80, 1)
}

/// The guest's TSC now.
fn now(f: &Fake) -> u64 {
    f.cpu.tsc.get().wrapping_add(f.tsc_offset())
}

fn deadline_mode(f: &mut Fake) -> Exit {
    wrmsr(f, x2apic::LVT_TIMER, DEADLINE_MODE | 0x30)
}

fn deadline_in_7000(f: &mut Fake) -> Exit {
    let at = now(f) + 7000;
    wrmsr(f, msr::TSC_DEADLINE, at)
}

#[test]
fn a_halted_guest_wakes_at_its_deadline() {
    let mut machine = Machine::new(&[
        deadline_mode,
        deadline_in_7000,
        |_| Exit::Hlt,
        |f| {
            assert_eq!(f.interrupts, [0x30]);
            assert_eq!(now(f), 7000);
            rdmsr(f, msr::TSC_DEADLINE)
        },
        |f| {
            assert_eq!(answer(f), 0);
            Exit::Shutdown
        },
    ]);
    machine.play();
    assert_eq!(machine.host.waits, 1);
}

#[test]
fn a_host_timer_that_is_early_is_armed_again() {
    let mut machine = Machine::new(&[
        deadline_mode,
        deadline_in_7000,
        |_| Exit::Hlt,
        |f| {
            f.cpu.tsc.set(START + 6998);
            Exit::Shutdown
        },
    ]);
    machine.host.early = 3;
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x30]);
    assert_eq!(machine.host.waits, 2);
}

#[test]
fn an_early_interrupt_while_the_guest_runs_is_no_different() {
    let mut machine = Machine::new(&[
        deadline_mode,
        deadline_in_7000,
        |f| {
            f.cpu.tsc.set(START + 6998);
            Exit::Interrupt
        },
        |_| Exit::Hlt,
        quiet,
    ]);
    machine.host.early = 3;
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x30]);
}

#[test]
fn interrupts_of_the_host_run_no_timer_before_it_is_due() {
    let mut machine = Machine::new(&[
        deadline_mode,
        deadline_in_7000,
        |f| {
            f.cpu.tsc.set(START + 3000);
            Exit::Interrupt
        },
        |f| {
            // The timer's, early.
            f.cpu.tsc.set(START + 6998);
            Exit::Interrupt
        },
        |_| Exit::Shutdown,
    ]);
    machine.host.early = 3;
    machine.play();
    assert!(machine.vcpu.timers_ran < START + 3000 && machine.host.windows == 2);
    assert_eq!((machine.host.armed, machine.vcpu.armed), (Some(START + 7000), START + 7000));
}

#[test]
fn a_timer_between_the_last_look_and_the_halt_is_seen() {
    let mut machine = Machine::new(&[
        |f| {
            f.set_rflags(rflags::FIXED);
            wrmsr(f, x2apic::LVT_TIMER, DEADLINE_MODE | 0x30)
        },
        |f| {
            let at = now(f) + 7000;
            wrmsr(f, msr::TSC_DEADLINE, at)
        },
        |f| {
            // Time passes after the deadline's exit; then STI; HLT.
            f.cpu.tsc.set(START + 7001);
            open(f);
            f.shadow = true;
            Exit::Hlt
        },
        quiet,
    ]);
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x30]);
}

/// Time passes the deadline of the tests below, and the host's interrupt for it is lost.
fn lose(f: &mut Fake) -> Exit {
    f.cpu.tsc.set(START + 7001);
    Exit::Interrupt
}

/// A machine whose guest has set a deadline of 7000 when it plays these steps; the host loses an interrupt.
fn loser(steps: &[Step]) -> Machine {
    let deadline: [Step; 2] = [deadline_mode, |f| wrmsr(f, msr::TSC_DEADLINE, 7000)];
    let mut machine = Machine::new(&[&deadline, steps].concat());
    machine.host.losses = 1;
    machine
}

#[test]
fn a_lost_interrupt_of_the_host_is_made_up_for_at_the_next_exit() {
    for exit in [quiet as Step, |_| Exit::Cpuid, |f| out(f, 0x80, 1, 0)] {
        let mut machine = loser(&[
            |f| {
                f.cpu.tsc.set(START + 7001);
                Exit::Pause
            },
            exit,
            |f| {
                assert_eq!(f.interrupts, [0x30]);
                Exit::Shutdown
            },
        ]);
        machine.play();
    }
    // It is lost while another one is taken.
    let mut machine = loser(&[lose, quiet, quiet]);
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x30]);
    assert!(machine.host.armed.is_some());
}

#[test]
fn a_lost_interrupt_of_the_host_does_not_keep_a_guest_halted() {
    let mut machine = loser(&[
        lose,
        |f| wrmsr(f, x2apic::EOI, 0),
        |f| wrmsr(f, msr::TSC_DEADLINE, 9000),
        |f| {
            open(f);
            Exit::Hlt
        },
        |f| {
            assert_eq!(now(f), 9000);
            quiet(f)
        },
    ]);
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x30, 0x30]);
    // One that comes early gets lost before its time.
    let mut machine = loser(&[
        |f| {
            f.cpu.tsc.set(START + 6998);
            Exit::Interrupt
        },
        |_| Exit::Hlt,
        |f| {
            assert_eq!(now(f), 7000);
            quiet(f)
        },
    ]);
    machine.host.early = 3;
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x30]);
}

#[test]
fn the_hosts_timer_is_always_armed() {
    let longest = TSC_KHZ * 250;
    let mut machine = Machine::new(&[
        quiet,
        |f| {
            f.cpu.tsc.set(START + 5 * TSC_KHZ * 1000);
            quiet(f)
        },
        quiet,
    ]);
    machine.play();
    assert_eq!(machine.host.armed, Some(START + 5 * TSC_KHZ * 1000 + longest));
    // Far deadlines are kept by several waits.
    let mut machine = Machine::new(&[
        deadline_mode,
        |f| wrmsr(f, msr::TSC_DEADLINE, 4 * TSC_KHZ * 1000 + 7),
        |_| Exit::Hlt,
        |f| {
            assert_eq!(now(f), 4 * TSC_KHZ * 1000 + 7);
            quiet(f)
        },
    ]);
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x30]);
    assert_eq!(machine.host.waits, 17);
}

#[test]
fn deadlines_are_kept_in_the_tsc_that_the_guest_has_written() {
    let mut machine = Machine::new(&[
        |f| wrmsr(f, msr::TSC, 1 << 50),
        deadline_mode,
        |f| wrmsr(f, msr::TSC_DEADLINE, (1 << 50) + 900),
        |_| Exit::Hlt,
        |f| {
            assert_eq!((now(f), f.interrupts.len()), ((1 << 50) + 900, 1));
            wrmsr(f, x2apic::EOI, 0)
        },
        // The TSC jumps while the timer is armed.
        |f| {
            open(f);
            let at = now(f) + 10_000;
            wrmsr(f, msr::TSC_DEADLINE, at)
        },
        |f| {
            let at = now(f) + 9_600;
            wrmsr(f, msr::TSC, at)
        },
        |f| rdmsr(f, msr::TSC_DEADLINE),
        |f| {
            assert_eq!(answer(f), (1 << 50) + 10_900);
            Exit::Hlt
        },
        |f| {
            assert_eq!((now(f), f.interrupts.len()), ((1 << 50) + 10_900, 2));
            assert_eq!(f.cpu.tsc.get(), START + 1300);
            Exit::Shutdown
        },
    ]);
    machine.play();
}

#[test]
fn reading_the_count_does_not_swallow_the_interrupt() {
    let mut machine = Machine::new(&[
        |f| wrmsr(f, x2apic::DIVIDE, BY_ONE),
        |f| wrmsr(f, x2apic::LVT_TIMER, 0x30),
        |f| wrmsr(f, x2apic::INITIAL_COUNT, 1000),
        |f| {
            // A moment before the host's timer interrupts.
            f.cpu.tsc.set(START + 1000);
            rdmsr(f, x2apic::CURRENT_COUNT)
        },
        |f| {
            assert_eq!(answer(f), 0);
            Exit::Interrupt
        },
        quiet,
    ]);
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x30]);
}

#[test]
fn the_same_through_the_apics_page() {
    let mut machine = Machine::new(&[
        |f| {
            f.cpu.tsc.set(START + 1000);
            let access = crate::arch::Access::READ;
            let gpa = crate::arch::addr::Gpa(0xfee0_0390);
            Exit::NestedFault { gpa, access, present: false, walk: false }
        },
        |f| {
            assert_eq!(f.gpr(Gpr::Rax), 0);
            quiet(f)
        },
        quiet,
    ]);
    // MOV EAX, [0xfee00390]
    machine.code(&[0xa1, 0x90, 0x03, 0xe0, 0xfe]);
    let mut lapic = crate::device::lapic::Lapic::new(0, true);
    lapic.set_virtual_wire();
    for (offset, value) in [(0x3e0, 0xb), (0x320, 0x30), (0x380, 1000)] {
        let _ = lapic.write(offset, value, crate::device::Tsc(0));
    }
    machine.vcpu.lapic = lapic;
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x30]);
}

/// x2APIC timer: periodic, every 1000 ticks.
const EVERY_1000: [Step; 3] = [
    |f| wrmsr(f, x2apic::DIVIDE, BY_ONE),
    |f| wrmsr(f, x2apic::LVT_TIMER, PERIODIC | 0x30),
    |f| wrmsr(f, x2apic::INITIAL_COUNT, 1000),
];

/// Ends the interrupt and waits for the next.
const WAIT_AGAIN: [Step; 2] = [
    |f| wrmsr(f, x2apic::EOI, 0),
    |f| {
        open(f);
        Exit::Hlt
    },
];

#[test]
fn periodic_timers_keep_their_rhythm_and_do_not_burst_after_a_pause() {
    let mut script = EVERY_1000.to_vec();
    script.push(|_| Exit::Hlt);
    script.extend(WAIT_AGAIN);
    script.extend(WAIT_AGAIN);
    let mut machine = Machine::new(&script);
    machine.host.wanted_at = Some(START + 1500);
    assert!(machine.run_or_yield().is_none());
    assert_eq!(machine.vcpu.virt.interrupts.len(), 1);
    // A person looks around for a long time.
    machine.host.cpu.tsc.set(START + 1_000_500);
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts.len(), 3, "one for all that were missed");
    assert_eq!(machine.host.cpu.tsc.get(), START + 1_001_000);
}

#[test]
fn devices_wake_the_guest_through_the_hosts_timer() {
    // PIT, channel 0, rate generator, 11932 counts: 10 ms; through the PICs, base 0x20, all but input 0 masked.
    let mut machine = Machine::new(&[
        |f| out(f, PIT + 3, 1, 0x34),
        |f| out(f, PIT, 1, 0x9c),
        |f| out(f, PIT, 1, 0x2e),
        |f| out(f, 0x20, 1, 0x11),
        |f| out(f, 0x21, 1, 0x20),
        |f| out(f, 0x21, 1, 4),
        |f| out(f, 0x21, 1, 1),
        |f| out(f, 0x21, 1, 0xfe),
        |_| Exit::Hlt,
        |f| {
            let ms = (f.cpu.tsc.get() - START) / 1000;
            assert!((10_000..10_010).contains(&ms), "{ms} us");
            out(f, 0x20, 1, 0x20)
        },
        |f| {
            open(f);
            Exit::Hlt
        },
        |f| {
            let ms = (f.cpu.tsc.get() - START) / 1000;
            assert!((20_000..20_010).contains(&ms), "{ms} us");
            Exit::Shutdown
        },
    ]);
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x20, 0x20]);
}

#[test]
fn a_deadline_that_moves_closer_is_armed() {
    let mut machine = Machine::new(&[
        deadline_mode,
        |f| wrmsr(f, msr::TSC_DEADLINE, 50_000),
        |f| wrmsr(f, msr::TSC_DEADLINE, 20_000),
        quiet,
    ]);
    machine.play();
    assert_eq!(machine.host.armed, Some(START + 20_000));
}

#[test]
fn a_halt_with_closed_interrupts_is_the_end() {
    let mut machine = Machine::new(&[|f| {
        f.set_rflags(rflags::FIXED);
        f.set_gpr(Gpr::Rbp, 0x77);
        Exit::Hlt
    }]);
    machine.vcpu.lapic.accept(0x40, false);
    let Stop::Died(death) = machine.run() else { panic!("alive") };
    assert_eq!(death.cause, Cause::HaltedForever);
    assert_eq!(death.state.gpr(Gpr::Rbp), 0x77);
}

#[test]
fn an_nmi_ends_a_halt_but_not_inside_its_own_handler() {
    let nmi: Step = |f| wrmsr(f, x2apic::ICR, 4 << 8 | 1 << 14);
    let halt: Step = |f| {
        f.set_rflags(rflags::FIXED);
        Exit::Hlt
    };
    let mut machine = Machine::new(&[halt, quiet]);
    machine.vcpu.request(crate::vm::work::NMI);
    machine.vcpu.virt.nmi_blocked = true;
    machine.vcpu.virt.script[0] = |f| {
        f.nmi_blocked = false;
        f.set_rflags(rflags::FIXED);
        Exit::Hlt
    };
    machine.play();
    assert_eq!(machine.vcpu.virt.delivered, [Event::Nmi]);

    let mut machine = Machine::new(&[nmi, nmi, halt]);
    let Stop::Died(death) = machine.run() else { panic!("alive") };
    assert_eq!(death.cause, Cause::HaltedForever, "nothing can end this");
}
