//! Console bytes in both directions, and the person at the other end.

use super::*;
use crate::arch::msr;
use crate::arch::state::rflags;
use crate::device::layout::UART;
use crate::vcpu::testing::{Machine, START, TSC_KHZ};
use crate::virt::fake::Step;

/// Reads LSR until there is data, then RBR, until as many bytes were read as `choices` says; keeps them in `seen`.
fn read_all(f: &mut Fake) -> Exit {
    f.cpu.tsc.set(f.cpu.tsc.get() + 1000);
    assert!(f.entries < 10_000, "{:?}", f.seen);
    f.script.push_front(|f| {
        if f.gpr(Gpr::Rax) & 1 == 0 {
            return read_all(f);
        }
        f.script.push_front(|f| {
            f.seen.push(f.gpr(Gpr::Rax) as u8);
            if f.seen.len() == 300 {
                return Exit::Shutdown;
            }
            read_all(f)
        });
        input(f, UART, 1)
    });
    input(f, UART + 5, 1)
}

#[test]
fn input_beyond_the_guests_fifo_waits_in_order() {
    let mut machine = Machine::new(&[
        // FIFOs on.
        |f| out(f, UART + 2, 1, 1),
        read_all,
    ]);
    machine.host.input.extend((0..300).map(|i| (START + 1, i as u8)));
    machine.play();
    let expected: Vec<u8> = (0..300).map(|i| i as u8).collect();
    assert_eq!(machine.vcpu.virt.seen, expected);
    assert!(machine.host.input.is_empty());
}

#[test]
fn the_same_by_string_input() {
    let mut machine = Machine::new(&[
        |f| out(f, UART + 2, 1, 1),
        |f| {
            f.cpu.tsc.set(START + 1);
            input(f, 0x80, 1)
        },
        |f| {
            f.set_gpr(Gpr::Rdx, UART.into());
            f.set_gpr(Gpr::Rdi, 0x8000);
            f.set_rip(0x1000);
            f.set_gpr(Gpr::Rcx, 8);
            Exit::Io(IoExit { port: UART, size: 1, input: true, string: true, next_rip: Some(0x1002) })
        },
    ]);
    // REP INSB
    machine.code(&[0xf3, 0x6c]);
    machine.host.input.extend((0..8).map(|i| (START + 1, b'a' + i)));
    machine.play();
    assert_eq!(&machine.read::<9>(0x8000), b"abcdefgh\0");
}

#[test]
fn input_wakes_a_halted_guest() {
    let mut machine = Machine::new(&[
        |f| out(f, 0x20, 1, 0x11),
        |f| out(f, 0x21, 1, 0x20),
        |f| out(f, 0x21, 1, 4),
        |f| out(f, 0x21, 1, 1),
        |f| out(f, 0x21, 1, 0xef),
        // OUT2 lets the port's interrupt out.
        |f| out(f, UART + 4, 1, 8),
        |f| out(f, UART + 1, 1, 1),
        |_| Exit::Hlt,
        |f| {
            assert_eq!(f.interrupts, [0x24]);
            input(f, UART, 1)
        },
        |f| {
            assert_eq!(f.gpr(Gpr::Rax) as u8, b'x');
            Exit::Shutdown
        },
    ]);
    machine.host.input.push_back((START + 1_000_000, b'x'));
    machine.play();
    assert_eq!(machine.host.cpu.tsc.get(), START + 1_000_000);
}

#[test]
fn output_comes_out_byte_by_byte_and_by_string() {
    let mut machine = Machine::new(&[
        |f| out(f, UART, 1, u32::from(b'h')),
        |f| {
            f.set_gpr(Gpr::Rdx, UART.into());
            f.set_gpr(Gpr::Rsi, 0x8000);
            f.set_gpr(Gpr::Rcx, 1000);
            f.set_rip(0x1000);
            Exit::Io(IoExit { port: UART, size: 1, input: false, string: true, next_rip: Some(0x1002) })
        },
        again,
        again,
        again,
        |f| {
            assert_eq!((f.gpr(Gpr::Rcx), f.rip()), (0, 0x1002));
            Exit::Shutdown
        },
    ]);
    machine.code(&[0xf3, 0x6e]);
    let text: Vec<u8> = (0..1000).map(|i| b'a' + (i % 26) as u8).collect();
    machine.write(0x8000, &text);
    machine.play();
    assert_eq!(machine.host.output[0], b'h');
    assert_eq!(machine.host.output[1..], text);
}

/// One more byte of output: the next of the alphabet.
fn letter(f: &mut Fake) -> Exit {
    f.seen.push(0);
    let letter = b'a' - 1 + f.seen.len() as u8;
    out(f, UART, 1, letter.into())
}

/// A machine whose console takes three bytes, and more only after 10 ms; the guest sends 20 before `steps`.
fn stuck(steps: &[Step]) -> Machine {
    let fifo: Step = |f| out(f, UART + 2, 1, 1);
    let mut machine = Machine::new(&[&[fifo], &[letter as Step; 20][..], steps].concat());
    machine.host.output_stuck = Some((3, START + 10 * TSC_KHZ));
    machine
}

#[test]
fn output_waits_for_a_stuck_console() {
    let mut machine = stuck(&[
        |f| input(f, UART + 5, 1),
        |f| {
            assert_eq!(answer(f) & 0x60, 0, "the transmitter is busy");
            f.cpu.tsc.set(START + 9 * TSC_KHZ);
            input(f, UART + 5, 1)
        },
        |f| {
            assert_eq!(answer(f) & 0x60, 0);
            f.cpu.tsc.set(START + 11 * TSC_KHZ);
            input(f, 0x80, 1)
        },
        |f| input(f, UART + 5, 1),
        |f| {
            assert_eq!(answer(f) & 0x60, 0x60);
            letter(f)
        },
    ]);
    machine.play();
    assert_eq!(machine.host.output, (b'a'..=b'u').collect::<Vec<_>>());
}

#[test]
fn output_comes_out_while_the_guest_waits() {
    let mut machine = stuck(&[
        |f| wrmsr(f, x2apic::LVT_TIMER, 2 << 17 | 0x30),
        |f| wrmsr(f, msr::TSC_DEADLINE, 15 * TSC_KHZ),
        |_| Exit::Hlt,
        |f| input(f, 0x80, 1),
    ]);
    machine.play();
    assert_eq!(machine.host.output, (b'a'..=b't').collect::<Vec<_>>());
    assert!((10..=12).contains(&machine.host.waits), "{}", machine.host.waits);
}

#[test]
fn a_string_does_not_overrun_a_stuck_console() {
    let mut machine = Machine::new(&[
        |f| out(f, UART + 2, 1, 1),
        |f| {
            f.set_gpr(Gpr::Rdx, UART.into());
            f.set_gpr(Gpr::Rsi, 0x8000);
            f.set_gpr(Gpr::Rcx, 10);
            f.set_rip(0x1000);
            Exit::Io(IoExit { port: UART, size: 1, input: false, string: true, next_rip: Some(0x1002) })
        },
        |f| {
            f.cpu.tsc.set(START + 11 * TSC_KHZ);
            input(f, 0x80, 1)
        },
    ]);
    machine.host.output_stuck = Some((3, START + 10 * TSC_KHZ));
    machine.code(&[0xf3, 0x6e]);
    machine.write(0x8000, b"0123456789");
    machine.play();
    assert_eq!(machine.host.output, b"0123456789");
}

/// The string instruction goes on.
fn again(f: &mut Fake) -> Exit {
    assert_eq!(f.rip(), 0x1000);
    assert_ne!(f.gpr(Gpr::Rcx), 0);
    Exit::Io(IoExit { port: UART, size: 1, input: false, string: true, next_rip: Some(0x1002) })
}

#[test]
fn a_repeated_instruction_lets_interrupts_in() {
    let mut machine = Machine::new(&[
        |f| {
            f.set_gpr(Gpr::Rdx, 0x80);
            f.set_gpr(Gpr::Rsi, 0x8000);
            f.set_gpr(Gpr::Rcx, 1000);
            // STI was the instruction before.
            f.shadow = true;
            f.set_rflags(rflags::FIXED | rflags::IF);
            Exit::Io(IoExit { port: 0x80, size: 1, input: false, string: true, next_rip: Some(0x1002) })
        },
        |f| {
            assert_ne!(f.gpr(Gpr::Rcx), 0);
            assert_eq!(f.interrupts, [0x40], "after the first iterations at the latest");
            assert_ne!(f.rflags() & rflags::RF, 0);
            Exit::Shutdown
        },
    ]);
    machine.code(&[0xf3, 0x6e]);
    machine.vcpu.virt.shadow = true;
    machine.vcpu.virt.regs.rflags = rflags::FIXED;
    machine.vcpu.lapic.accept(0x40, false);
    machine.play();
}

#[test]
fn a_repeated_instruction_that_takes_long_pauses() {
    let mut machine = Machine::new(&[
        |f| {
            f.set_gpr(Gpr::Rdx, 0x80);
            f.set_gpr(Gpr::Rsi, 0x8000);
            f.set_gpr(Gpr::Rcx, 100);
            Exit::Io(IoExit { port: 0x80, size: 1, input: false, string: true, next_rip: Some(0x1002) })
        },
        |f| {
            let left = f.gpr(Gpr::Rcx);
            assert!((90..100).contains(&left), "{left}");
            again(f)
        },
        |f| {
            assert!((80..99).contains(&f.gpr(Gpr::Rcx)));
            Exit::Shutdown
        },
    ]);
    machine.code(&[0xf3, 0x6e]);
    machine.host.slow = 20_000;
    machine.play();
}

/// Uses the ports as long as it has choices, until the host is interrupted.
fn busy(f: &mut Fake) -> Exit {
    f.cpu.tsc.set(f.cpu.tsc.get() + 100);
    assert!(f.choices.pop_front().is_some(), "not reached");
    f.script.push_front(busy);
    if f.cpu.tsc.get() >= START + 1000 { Exit::Interrupt } else { input(f, 0x80, 1) }
}

#[test]
fn the_monitor_is_reached_however_busy_the_guest_is() {
    let mut machine = Machine::new(&[busy]);
    machine.vcpu.virt.choices.extend(0..100);
    machine.host.wanted_at = Some(START + 1000);
    assert!(machine.run_or_yield().is_none());
    assert_eq!(machine.host.cpu.tsc.get(), START + 1000);
}

/// Only the first VCPU looks whether the console takes output again.
#[test]
fn another_vcpu_that_finds_the_console_full_tells_the_first() {
    for (full, kicks) in [(false, &[][..]), (true, &[0])] {
        let mut machine = Machine::with("vcpus = 2\n", &[letter, |f| input(f, 0x80, 1)]);
        machine.vcpu.id = 1;
        // The first VCPU has seen to the chipset.
        let _deadline = machine.vm.chipset.lock().deadline();
        machine.host.output_stuck = full.then_some((0, START + 10 * TSC_KHZ));
        machine.play();
        assert_eq!(machine.host.kicks, kicks, "full: {full}");
    }
}
