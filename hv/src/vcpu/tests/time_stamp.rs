//! RDTSC and RDTSCP that exit, as they do where time is modelled.

use super::*;
use crate::arch::msr;
use crate::vcpu::testing::{CODE, Machine};
use crate::virt::Virt;

const OFFSET: u64 = (7 << 32) + 5;

/// The clock and the guest's offset, and nothing else changed.
fn read(f: &Fake) -> bool {
    answer(f) == f.cpu.tsc.get().wrapping_add(OFFSET)
}

fn prepared(f: &mut Fake) {
    f.set_tsc_offset(OFFSET);
    for gpr in [Gpr::Rax, Gpr::Rcx, Gpr::Rdx] {
        f.set_gpr(gpr, u64::MAX);
    }
}

#[test]
fn a_read_that_exits_sees_the_clock_of_the_exit_and_the_guests_offset() {
    let mut machine = Machine::new(&[
        |f| wrmsr(f, msr::TSC_AUX, 0x42),
        |f| {
            prepared(f);
            Exit::Rdtsc
        },
        |f| {
            assert!(read(f), "{:#x}", answer(f));
            assert_eq!((f.gpr(Gpr::Rcx), f.rip()), (u64::MAX, CODE + 2));
            prepared(f);
            Exit::Rdtscp
        },
        |f| {
            assert!(read(f));
            assert_eq!(f.gpr(Gpr::Rcx), 0x42);
            Exit::Shutdown
        },
    ]);
    machine.play();
}

#[test]
fn the_code_tells_the_two_apart_where_the_processor_does_not() {
    let mut machine = Machine::new(&[
        |f| wrmsr(f, msr::TSC_AUX, 0x42),
        // QEMU's emulation: RDTSCP has RDTSC's exit.
        |f| {
            f.next_rip = None;
            f.regs.rip = CODE;
            prepared(f);
            Exit::Rdtsc
        },
        |f| {
            assert!(read(f));
            assert_eq!((f.gpr(Gpr::Rcx), f.rip()), (0x42, CODE + 3));
            prepared(f);
            Exit::Rdtsc
        },
        |f| {
            assert!(read(f));
            assert_eq!((f.gpr(Gpr::Rcx), f.rip()), (u64::MAX, CODE + 5));
            prepared(f);
            Exit::Rdtsc
        },
        // Neither any more: it is executed again.
        |f| {
            assert_eq!((f.gpr(Gpr::Rax), f.rip()), (u64::MAX, CODE + 5));
            Exit::Shutdown
        },
    ]);
    machine.code(b"\x0f\x01\xf9\x0f\x31\x90");
    machine.play();
}
