//! Instructions that exit: what they do, and how they end.

use super::*;
use crate::arch::state::{SegReg, cr0, cr4, efer, rflags};
use crate::arch::{Exception, RegMove, msr, vector};
use crate::vcpu::outcome::{Cause, Stop};
use crate::vcpu::testing::{CODE, Machine, START};
use crate::virt::fake::Step;
use crate::virt::{Event, FlushScope, Virt};
use abi::telemetry::ExitKind;

const NEXT: u64 = CODE + 2;
const DB: Event = Event::Exception(Exception { vector: vector::DB, error: None, cr2: None });
const GP: Event = Event::Exception(Exception::GP0);

/// Every kind of exit that an instruction has which is completed in software.
const HLT: usize = 1;
const COMPLETED: [Step; 10] = [
    |_| Exit::Cpuid,
    |_| Exit::Hlt,
    |f| input(f, 0x60, 1),
    |f| out(f, 0x80, 1, 0),
    |f| rdmsr(f, msr::TSC),
    |f| wrmsr(f, msr::PAT, 0x0007_0406_0007_0406),
    |f| {
        f.set_gpr(Gpr::Rbx, cr4::OSFXSR);
        Exit::ControlReg(RegMove { index: 4, write: true, gpr: Some(Gpr::Rbx) })
    },
    |f| {
        xcr0_operands(f, 0, 3);
        Exit::Xsetbv
    },
    |_| Exit::Hypercall,
    |_| Exit::Wbinvd,
];

#[test]
fn a_guest_that_spins_leaves_the_processor_to_others() {
    let pause = |f: &mut Fake| {
        f.regs.rip = CODE;
        Exit::Pause
    };
    let mut machine = Machine::new(&[pause, pause, pause]);
    machine.code(b"\xf3\x90");
    machine.host.others_wait = true;
    for entries in 1..=2 {
        assert!(machine.run_or_yield().is_none());
        assert_eq!((machine.vcpu.virt.entries, machine.vcpu.yields), (entries, entries as u64));
        assert_eq!(machine.vcpu.virt.regs.rip, CODE + 2);
    }
    machine.host.others_wait = false;
    machine.play();
    assert_eq!((machine.vcpu.yields, machine.vcpu.exits.of(ExitKind::Pause).count), (2, 3));
}

#[test]
fn rip_moves_on_and_shadow_and_resume_flag_end() {
    for (i, step) in COMPLETED.into_iter().enumerate() {
        for offer in [false, true] {
            if i == HLT && !offer {
                continue;
            }
            let mut machine = Machine::new(&[
                |f| {
                    (f.shadow, f.regs.rip) = (true, CODE);
                    let step = f.script.pop_front().unwrap();
                    step(f)
                },
                step,
                |f| {
                    assert_eq!(f.rip(), NEXT);
                    assert!(!f.entered_in_shadow, "the interrupt shadow went on");
                    assert_eq!(f.rflags() & rflags::RF, 0);
                    Exit::Shutdown
                },
            ]);
            machine.vcpu.virt.shadow = true;
            machine.vcpu.virt.regs.rflags |= rflags::RF;
            if offer {
                machine.vcpu.lapic.accept(0x40, false);
            }
            machine.play();
            assert!(machine.vcpu.virt.delivered.is_empty(), "{i}");
            assert_eq!(machine.vcpu.virt.interrupts, if offer { &[0x40][..] } else { &[] }, "{i}");
        }
    }
}

#[test]
fn single_steps_trap_behind_the_instruction() {
    for (i, step) in COMPLETED.into_iter().enumerate() {
        let mut machine = Machine::new(&[step]);
        machine.vcpu.virt.regs.rflags |= rflags::TF;
        machine.play();
        assert_eq!(machine.vcpu.virt.delivered, [DB], "{i}");
        assert_ne!(machine.vcpu.virt.regs.dr6 & 1 << 14, 0, "{i}");
        assert_eq!(machine.vcpu.virt.regs.rip, NEXT, "{i}");
        assert_eq!(machine.vcpu.virt.regs.rflags & rflags::RF, 0, "{i}");
    }
}

/// The operands of XSETBV, where it may be executed.
pub(super) fn xcr0_operands(f: &mut Fake, index: u64, value: u64) {
    f.set_gpr(Gpr::Rcx, index);
    f.set_gpr(Gpr::Rax, value & 0xffff_ffff);
    f.set_gpr(Gpr::Rdx, value >> 32);
    f.regs.cr4 |= cr4::OSXSAVE;
}

/// Runs one step, which must fault with #GP(0) at the instruction.
#[track_caller]
pub(super) fn expect_gp(options: &str, step: Step) -> Machine {
    let mut machine = Machine::with(options, &[step]);
    machine.play();
    assert_eq!(machine.vcpu.virt.delivered, [GP]);
    assert_eq!(machine.vcpu.virt.regs.rip, CODE);
    assert_ne!(machine.vcpu.virt.regs.rflags & rflags::RF, 0, "a fault's image has RF");
    machine
}

#[test]
fn cpuid_is_answered_by_both_ways() {
    for with_offer in [false, true] {
        let mut machine = Machine::new(&[
            |f| {
                f.set_gpr(Gpr::Rax, 0xffff_ffff_4000_0000);
                f.set_gpr(Gpr::Rcx, 7);
                Exit::Cpuid
            },
            |f| {
                assert_eq!(f.gpr(Gpr::Rbx) as u32, u32::from_le_bytes(*b"Pali"));
                f.set_gpr(Gpr::Rax, 0xd);
                f.set_gpr(Gpr::Rcx, 0);
                Exit::Cpuid
            },
            |f| {
                assert_eq!(f.gpr(Gpr::Rbx), 0x340, "the size follows XCR0");
                Exit::Shutdown
            },
        ]);
        // XCR0 was set where XSETBV is not intercepted.
        machine.host.xcr0 = 7;
        if with_offer {
            machine.vcpu.virt.regs.rflags &= !rflags::IF;
            machine.vcpu.lapic.accept(0x40, false);
        }
        machine.play();
        assert_eq!(machine.vcpu.xcr0, 7);
    }
}

#[test]
fn input_sets_as_much_of_rax_as_it_has() {
    let mut machine = Machine::new(&[
        |f| out(f, 0xe0, 4, 0x4433_2211),
        |f| {
            f.set_gpr(Gpr::Rax, u64::MAX);
            input(f, 0xe0, 1)
        },
        |f| {
            assert_eq!(f.gpr(Gpr::Rax), 0xffff_ffff_ffff_ff11);
            input(f, 0xe0, 2)
        },
        |f| {
            assert_eq!(f.gpr(Gpr::Rax), 0xffff_ffff_ffff_2211);
            input(f, 0xe0, 4)
        },
        |f| {
            assert_eq!(f.gpr(Gpr::Rax), 0x4433_2211);
            Exit::Shutdown
        },
    ]);
    machine.play();
}

#[test]
fn unknown_msrs_fault_and_are_counted() {
    let machine = expect_gp("", |f| rdmsr(f, 0x1234));
    assert!(machine.vcpu.msrs.unknown().iter().eq([(0x1234, 1)]));
    let machine = expect_gp("", |f| wrmsr(f, 0xc001_2345, 1));
    assert!(machine.vcpu.msrs.unknown().iter().eq([(0xc001_2345, 1)]));

    let mut machine = Machine::with(
        "permissive_msr = true\n",
        &[
            |f| wrmsr(f, 0x1234, u64::MAX),
            |f| rdmsr(f, 0x1234),
            |f| {
                assert_eq!(answer(f), 0);
                assert_eq!(f.rip(), NEXT);
                Exit::Shutdown
            },
        ],
    );
    machine.play();
    assert!(machine.vcpu.msrs.unknown().iter().eq([(0x1234, 2)]));
    assert!(machine.vcpu.virt.delivered.is_empty());
}

#[test]
fn bad_values_of_known_registers_fault_even_if_permissive() {
    const PERMISSIVE: &str = "permissive_msr = true\n";
    expect_gp(PERMISSIVE, |f| wrmsr(f, msr::EFER, efer::SVME));
    expect_gp(PERMISSIVE, |f| wrmsr(f, msr::EFER, 1 << 63));
    expect_gp(PERMISSIVE, |f| wrmsr(f, msr::PAT, 2));
    expect_gp(PERMISSIVE, |f| wrmsr(f, msr::APIC_BASE, 0xfee0_0000 | 0x901));
    expect_gp(PERMISSIVE, |f| wrmsr(f, 0x8ff, 0));
}

#[test]
fn rdpmc_reads_zero_from_the_legacy_counters() {
    fn rdpmc(f: &mut Fake, counter: u64) -> Exit {
        f.set_gpr(Gpr::Rcx, counter);
        f.set_gpr(Gpr::Rax, 7);
        f.set_gpr(Gpr::Rdx, 7);
        Exit::Rdpmc
    }
    let mut machine = Machine::new(&[
        |f| rdpmc(f, 0xffff_ffff_0000_0003),
        |f| {
            assert_eq!((answer(f), f.rip()), (0, NEXT));
            Exit::Shutdown
        },
    ]);
    machine.play();
    expect_gp("permissive_msr = true\n", |f| rdpmc(f, 4));
    expect_gp("", |f| {
        // User mode, without CR4.PCE.
        f.regs.cpl = 3;
        f.set_cr0(cr0::PE);
        rdpmc(f, 0)
    });
}

#[test]
fn efer_changes_what_may_change() {
    let mut machine = Machine::new(&[
        |f| wrmsr(f, msr::EFER, efer::NXE | efer::SCE | efer::LMA),
        |f| {
            assert_eq!(f.efer() & (efer::NXE | efer::SCE | efer::LMA), efer::NXE | efer::SCE);
            assert_eq!(f.flushes, [FlushScope::All]);
            Exit::Shutdown
        },
    ]);
    machine.play();
}

/// MOV CR4, RBX
fn mov_cr4(f: &mut Fake, value: u64) -> Exit {
    f.set_gpr(Gpr::Rbx, value);
    Exit::ControlReg(RegMove { index: 4, write: true, gpr: Some(Gpr::Rbx) })
}

#[test]
fn cr4_takes_what_cpuid_offers() {
    expect_gp("", |f| mov_cr4(f, 1 << 31));
    expect_gp("", |f| mov_cr4(f, cr4::LA57 | cr4::PAE));
    expect_gp("", |f| mov_cr4(f, cr4::PCIDE));
    expect_gp("", |f| {
        f.set_efer(efer::LMA | efer::LME);
        mov_cr4(f, 0)
    });
    let mut machine = Machine::new(&[
        |f| mov_cr4(f, 0xffff_ffff_0000_0000 | cr4::PAE | cr4::OSXSAVE),
        |f| {
            assert_eq!(f.cr4(), cr4::PAE | cr4::OSXSAVE, "32-bit operands");
            assert_eq!(f.flushes, [FlushScope::All]);
            f.set_gpr(Gpr::Rax, 1);
            Exit::Cpuid
        },
        |f| {
            assert_ne!(f.gpr(Gpr::Rcx) & 1 << 27, 0, "CPUID shows OSXSAVE");
            Exit::Shutdown
        },
    ]);
    machine.play();
}

#[test]
fn the_tsc_is_the_hosts_plus_an_offset_that_the_guest_may_set() {
    let mut machine = Machine::new(&[
        |f| rdmsr(f, msr::TSC),
        |f| {
            assert_eq!(answer(f), 0);
            f.cpu.tsc.set(START + 500);
            wrmsr(f, msr::TSC, 0x1234_5678_9abc)
        },
        |f| {
            f.cpu.tsc.set(START + 600);
            rdmsr(f, msr::TSC)
        },
        |f| {
            assert_eq!(answer(f), 0x1234_5678_9abc + 100);
            assert_eq!(f.tsc_offset(), 0x1234_5678_9abc_u64.wrapping_sub(START + 500));
            Exit::Shutdown
        },
    ]);
    machine.play();
}

#[test]
fn instructions_that_do_not_exist_here_are_undefined() {
    for step in [(|_| Exit::Mwait) as Step, |_| Exit::VirtInstruction] {
        let mut machine = Machine::new(&[step]);
        machine.play();
        assert_eq!(machine.vcpu.virt.delivered, [Event::Exception(Exception::UD)]);
    }
}

#[test]
fn the_first_use_of_a_debug_register_opens_them_all() {
    let mut machine = Machine::new(&[|_| Exit::DebugReg(RegMove { index: 7, write: true, gpr: None })]);
    machine.play();
    assert!(machine.vcpu.virt.debug_open);
    assert_eq!(machine.vcpu.virt.regs.rip, CODE, "the instruction is executed again");
}

#[test]
fn lengths_are_found_in_the_code() {
    let mut machine = Machine::new(&[
        |f| {
            f.next_rip = None;
            Exit::Cpuid
        },
        |f| {
            assert_eq!(f.rip(), CODE + 3);
            Exit::Hypercall
        },
        |f| {
            assert_eq!(f.rip(), CODE + 6);
            assert_eq!(f.gpr(Gpr::Rax) as i64, -1000);
            Exit::Wbinvd
        },
        |f| {
            assert_eq!(f.rip(), CODE + 8);
            Exit::Wbinvd
        },
        |f| {
            assert_eq!(f.rip(), CODE + 10);
            Exit::Pause
        },
        |f| {
            assert_eq!(f.rip(), CODE + 12);
            // Another VCPU has replaced the code between the exit and the fetch.
            Exit::Cpuid
        },
    ]);
    machine.code(b"\x66\x0f\xa2\x0f\x01\xd9\x0f\x08\x0f\x09\xf3\x90\xf4");
    machine.play();
    assert_eq!(machine.vcpu.virt.regs.rip, CODE + 12);
    assert!(!machine.vcpu.virt.flushes.is_empty(), "or the processor used an old translation");
}

/// The end of a guest, as a report shows it.
#[track_caller]
fn expect_death(step: Step, cause: Cause, words: &[&str]) {
    let mut machine = Machine::new(&[|f| input(f, 0x80, 1), step]);
    machine.vcpu.virt.regs.gprs[Gpr::R11 as usize] = 0x1122_3344_5566_7788;
    let Stop::Died(death) = machine.run() else { panic!("alive") };
    assert_eq!(death.cause, cause);
    for word in words {
        assert!(death.what.contains(word), "{}", death.what);
    }
    assert_eq!(death.state.rip, NEXT);
    assert_eq!(death.state.gpr(Gpr::R11), 0x1122_3344_5566_7788);
    assert_eq!(death.state.segment(SegReg::Cs).selector, 8);
}

#[test]
fn deaths_are_reported_with_registers() {
    expect_death(|_| Exit::Shutdown, Cause::TripleFault, &["double fault"]);
    expect_death(|_| Exit::InvalidState, Cause::InvalidState, &["refused", "fake: entry 2"]);
    let unknown: Step = |_| Exit::Unknown { code: 0x99, info1: 0xabc, info2: 0xdef };
    expect_death(unknown, Cause::UnknownExit, &["99", "abc", "def", "fake: entry 2"]);
    let cr5: Step = |_| Exit::ControlReg(RegMove { index: 5, write: true, gpr: Some(Gpr::Rax) });
    expect_death(cr5, Cause::UnknownExit, &["control register"]);
}
