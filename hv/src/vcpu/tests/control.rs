//! Control registers and XCR0, and instructions that an emulated processor takes further than a real one.

use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use std::thread_local;

use super::instructions::{expect_gp, xcr0_operands};
use super::*;
use crate::arch::state::{SegReg, Segment, cr0, cr4, efer};
use crate::arch::{Exception, RegMove};
use crate::paging::random::Random;
use crate::vcpu::testing::{CODE, Machine};
use crate::virt::fake::Step;
use crate::virt::{Event, Virt};

/// Runs one step, which must fault at the instruction.
#[track_caller]
fn expect(exception: Exception, step: Step) {
    let mut machine = Machine::new(&[step]);
    machine.play();
    assert_eq!(machine.vcpu.virt.delivered, [Event::Exception(exception)]);
    assert_eq!(machine.vcpu.virt.regs.rip, CODE);
}

#[test]
fn operands_are_decoded_if_the_processor_does_not_tell() {
    const STEP: Step = |f| {
        f.set_gpr(Gpr::Rsi, cr4::PAE);
        Exit::ControlReg(RegMove { index: 4, write: true, gpr: None })
    };
    // It tells nothing, or where the next instruction is.
    for step in [
        |f: &mut Fake| (f.next_rip = None, STEP(f)).1,
        |f: &mut Fake| (f.next_rip = Some(CODE + 3), STEP(f)).1,
    ] {
        let mut machine = Machine::new(&[step]);
        machine.code(&[0x0f, 0x22, 0xe6]);
        machine.play();
        assert_eq!((machine.vcpu.virt.regs.cr4, machine.vcpu.virt.regs.rip), (cr4::PAE, CODE + 3));
    }
}

/// QEMU's emulation says CR0 whatever the register is.
#[test]
fn an_access_to_another_register_than_the_one_reported_is_executed_as_what_it_is() {
    fn machine(write: bool, code: &[u8]) -> Machine {
        let step: Step = if write {
            |_| Exit::ControlReg(RegMove { index: 0, write: true, gpr: None })
        } else {
            |_| Exit::ControlReg(RegMove { index: 0, write: false, gpr: None })
        };
        let mut machine = Machine::new(&[step]);
        machine.code(code);
        let regs = &mut machine.vcpu.virt.regs;
        (regs.cr2, regs.cr3, regs.cr4) = (0x2222, 0x3000, cr4::PAE);
        // 64-bit code: CR8 needs a REX prefix.
        (regs.efer, regs.segments[SegReg::Cs as usize]) = (efer::LME | efer::LMA, Segment::flat(8, 0xa9b));
        regs.set_gpr(Gpr::Rsi, 7);
        machine.vcpu.virt.set_task_priority(5);
        machine.play();
        machine
    }
    // MOV RSI, CR2, CR3, CR4, CR8
    for (code, value) in [(0xd6, 0x2222), (0xde, 0x3000), (0xe6, cr4::PAE)] {
        let machine = machine(false, &[0x0f, 0x20, code]);
        assert_eq!((machine.vcpu.virt.gpr(Gpr::Rsi), machine.vcpu.virt.regs.rip), (value, CODE + 3));
    }
    assert_eq!(machine(false, &[0x44, 0x0f, 0x20, 0xc6]).vcpu.virt.gpr(Gpr::Rsi), 5);
    // and back
    assert_eq!(machine(true, &[0x0f, 0x22, 0xd6]).vcpu.virt.regs.cr2, 7);
    assert_eq!(machine(true, &[0x0f, 0x22, 0xde]).vcpu.virt.regs.cr3, 7);
    assert_eq!(machine(true, &[0x44, 0x0f, 0x22, 0xc6]).vcpu.virt.task_priority(), 7);
}

#[test]
fn user_code_cannot_empty_the_caches() {
    expect(Exception::GP0, |f| {
        f.regs.cpl = 3;
        Exit::Wbinvd
    });
}

#[test]
fn xcr0_follows_its_rules() {
    fn xsetbv(f: &mut Fake, index: u64, value: u64) -> Exit {
        xcr0_operands(f, index, value);
        Exit::Xsetbv
    }
    expect(Exception::UD, |f| {
        let exit = xsetbv(f, 0, 1);
        f.regs.cr4 = 0;
        exit
    });
    expect_gp("", |f| xsetbv(f, 0, 6));
    expect_gp("", |f| xsetbv(f, 1, 1));
    expect_gp("", |f| xsetbv(f, 0, 1 << 62 | 1));
    expect_gp("", |f| {
        f.regs.cpl = 3;
        xsetbv(f, 0, 1)
    });
    let mut machine = Machine::new(&[|f| xsetbv(f, 0, 7)]);
    machine.play();
    assert_eq!((machine.host.xcr0, machine.vcpu.xcr0), (7, 7));
}

/// What an access does where it was seen before is what it does the first time, in every mode that the fake runs in.
#[test]
fn the_short_way_has_the_effect_of_the_common_one() {
    const ACCESSES: [(RegMove, &[u8]); 6] = {
        const fn exit(index: u8, write: bool) -> RegMove {
            RegMove { index, write, gpr: None }
        }
        [
            (exit(0, true), &[0x0f, 0x22, 0xc6]),
            (exit(4, true), &[0x0f, 0x22, 0xe6]),
            (exit(0, false), &[0x0f, 0x20, 0xc6]),
            (exit(4, false), &[0x0f, 0x20, 0xe6]),
            (exit(0, true), &[0x0f, 0x06]),
            (exit(0, false), &[0x66, 0x0f, 0x01, 0xe6]),
        ]
    };
    // The script's steps are functions: what they are to do is static. The access, and CR0, CR4 and RSI before it, last first.
    type Before = [u64; 3];
    thread_local!(static NEXT: RefCell<Vec<(RegMove, Before, bool)>> = const { RefCell::new(Vec::new()) });
    const STEP: Step = |f| {
        let (access, [cr0, cr4, value], long) = NEXT.with_borrow_mut(|next| next.pop()).unwrap();
        let regs = &mut f.regs;
        (regs.rip, regs.cr0, regs.cr4) = (CODE, cr0, cr4);
        if long {
            (regs.efer, regs.segments[SegReg::Cs as usize]) =
                (efer::LME | efer::LMA, Segment::flat(8, 0xa9b));
        }
        f.set_gpr(Gpr::Rsi, value);
        Exit::ControlReg(access)
    };
    let play = |script: &[Step], code: &[u8]| {
        let mut machine = Machine::new(script);
        machine.code(code);
        machine.play();
        let virt = &machine.vcpu.virt;
        (virt.regs.clone(), virt.delivered.clone(), virt.flushes.clone())
    };
    let mut random = Random(12);
    for (n, (access, code)) in (0..60).zip(ACCESSES.into_iter().cycle()) {
        let long = n % 4 < 2;
        let paging = if long { cr0::PG } else { 0 };
        let cr0 = cr0::PE | cr0::ET | paging | random.draw() & (cr0::WP | cr0::TS | cr0::NE | cr0::AM);
        let cr4 = if long { cr4::PAE } else { 0 } | random.draw() & cr4::PGE;
        let same = if access.index == 0 { cr0 } else { cr4 };
        let value = match random.draw() % 4 {
            0 => random.draw(),
            1 => same ^ 1 << (random.draw() % 64),
            _ => same ^ random.draw() & (cr0::WP | cr0::TS | cr0::ET | cr4::PGE),
        };
        let last = (access, [cr0, cr4, value], long);
        NEXT.set(vec![last]);
        let common = play(&[STEP], code);
        // The first one changes nothing, and is remembered.
        NEXT.set(vec![last, (access, [cr0, cr4, same], long)]);
        let short = play(&[STEP, STEP], code);
        assert_eq!((&common.0, &common.1), (&short.0, &short.1), "{code:x?}: {cr0:x} {cr4:x} {value:x}");
        assert!(short.2.ends_with(&common.2), "{code:x?}: {cr0:x} {cr4:x} {value:x}: {:?}", short.2);
    }
}
