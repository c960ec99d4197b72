//! External interrupts: offered, taken, ended; priorities; both kinds of controller.

use super::*;
use crate::arch::msr;
use crate::arch::state::rflags;
use crate::vcpu::testing::Machine;
use crate::virt::Virt;
use crate::virt::fake::Step;

/// STI, one instruction later.
fn open(f: &mut Fake) {
    let flags = f.rflags();
    f.set_rflags(flags | rflags::IF);
}

/// MOV CR8 executes without an exit.
fn mov_cr8(f: &mut Fake, value: u8) {
    f.set_task_priority(value);
}

/// An I/O exit that leaves nothing to do.
fn quiet(f: &mut Fake) -> Exit {
    input(f, 0x80, 1)
}

#[test]
fn an_interrupt_is_taken_once_and_ends_with_its_eoi() {
    let mut machine = Machine::new(&[
        |f| wrmsr(f, x2apic::SELF_IPI, 0x40),
        |f| {
            assert_eq!(f.interrupts, [0x40]);
            // The same vector again, while it is in service.
            wrmsr(f, x2apic::SELF_IPI, 0x40)
        },
        |f| {
            open(f);
            quiet(f)
        },
        |f| {
            assert_eq!(f.interrupts, [0x40], "in service");
            wrmsr(f, x2apic::EOI, 0)
        },
        |f| {
            assert_eq!(f.interrupts, [0x40, 0x40]);
            wrmsr(f, x2apic::EOI, 0)
        },
        |f| {
            open(f);
            quiet(f)
        },
        quiet,
    ]);
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x40, 0x40]);
    assert_eq!(machine.vcpu.interrupts.counts.interrupts, 2);
    assert_eq!(machine.vcpu.work, 0);
}

#[test]
fn a_higher_one_replaces_the_offer_and_both_are_taken_in_order() {
    let mut machine = Machine::new(&[
        |f| {
            f.set_rflags(rflags::FIXED);
            wrmsr(f, x2apic::SELF_IPI, 0x40)
        },
        |f| wrmsr(f, x2apic::SELF_IPI, 0x61),
        |f| wrmsr(f, x2apic::SELF_IPI, 0x52),
        |f| {
            open(f);
            quiet(f)
        },
        |f| {
            assert_eq!(f.interrupts, [0x61]);
            open(f);
            quiet(f)
        },
        |f| {
            assert_eq!(f.interrupts, [0x61], "0x52 is not above what is in service");
            wrmsr(f, x2apic::EOI, 0)
        },
        |f| {
            assert_eq!(f.interrupts, [0x61, 0x52]);
            wrmsr(f, x2apic::EOI, 0)
        },
        |f| {
            open(f);
            quiet(f)
        },
        quiet,
    ]);
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x61, 0x52, 0x40]);
}

#[test]
fn a_higher_one_interrupts_the_handler_of_a_lower_one() {
    let mut machine = Machine::new(&[
        |f| wrmsr(f, x2apic::SELF_IPI, 0x40),
        |f| {
            open(f);
            wrmsr(f, x2apic::SELF_IPI, 0x80)
        },
        |f| {
            assert_eq!(f.interrupts, [0x40, 0x80]);
            Exit::Shutdown
        },
    ]);
    machine.play();
}

#[test]
fn the_task_priority_holds_interrupts_back_and_cr8_lets_them_in_without_an_exit() {
    let mut machine = Machine::new(&[
        |f| {
            mov_cr8(f, 4);
            wrmsr(f, x2apic::SELF_IPI, 0x4f)
        },
        |f| rdmsr(f, x2apic::TPR),
        |f| {
            assert_eq!(answer(f), 0x40, "the TPR shows CR8");
            assert!(f.interrupts.is_empty());
            mov_cr8(f, 3);
            quiet(f)
        },
        |f| {
            assert_eq!(f.interrupts, [0x4f]);
            wrmsr(f, x2apic::EOI, 0)
        },
        |f| {
            open(f);
            // The low half of the TPR is the APIC's alone.
            wrmsr(f, x2apic::TPR, 0x57)
        },
        |f| {
            assert_eq!(f.task_priority(), 5, "CR8 shows the TPR");
            rdmsr(f, x2apic::TPR)
        },
        |f| {
            assert_eq!(answer(f), 0x57);
            wrmsr(f, x2apic::SELF_IPI, 0x50)
        },
        |f| wrmsr(f, x2apic::TPR, 0),
        |f| {
            assert_eq!(f.interrupts, [0x4f, 0x50]);
            Exit::Shutdown
        },
    ]);
    machine.play();
}

#[test]
fn a_masked_interrupt_does_not_end_a_halt() {
    let mut machine = Machine::new(&[
        |f| {
            mov_cr8(f, 15);
            wrmsr(f, x2apic::SELF_IPI, 0x40)
        },
        |f| wrmsr(f, x2apic::LVT_TIMER, 0x31),
        |f| {
            mov_cr8(f, 4);
            wrmsr(f, x2apic::INITIAL_COUNT, 1000)
        },
        |_| Exit::Hlt,
    ]);
    // Neither 0x40 nor the timer's 0x31 is above 4: nothing but the person at the console comes.
    machine.host.wanted_at = Some(crate::vcpu::testing::START + 5000);
    assert!(machine.run_or_yield().is_none());
    assert_eq!(machine.vcpu.virt.entries, 4);
    assert!(machine.host.waits >= 2);
}

/// Initializes the PICs with bases 0x20 and 0x28, all inputs open.
const PIC: [Step; 10] = [
    |f| out(f, 0x20, 1, 0x11),
    |f| out(f, 0x21, 1, 0x20),
    |f| out(f, 0x21, 1, 4),
    |f| out(f, 0x21, 1, 1),
    |f| out(f, 0xa0, 1, 0x11),
    |f| out(f, 0xa1, 1, 0x28),
    |f| out(f, 0xa1, 1, 2),
    |f| out(f, 0xa1, 1, 1),
    |f| out(f, 0x21, 1, 0),
    |f| out(f, 0xa1, 1, 0),
];

#[test]
fn the_pics_come_through_lint0() {
    let mut script = PIC.to_vec();
    script.extend::<[Step; 6]>([
        |f| out(f, 0x2005, 1, 1),
        |f| {
            assert_eq!(f.interrupts, [0x25]);
            out(f, 0x200c, 1, 1)
        },
        |f| out(f, 0x20, 1, 0x20),
        |f| {
            open(f);
            quiet(f)
        },
        |f| {
            assert_eq!(f.interrupts, [0x25, 0x2c]);
            // The EOI of the local APIC is none of the PICs' business.
            wrmsr(f, x2apic::EOI, 0)
        },
        quiet,
    ]);
    let mut machine = Machine::new(&script);
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x25, 0x2c]);
}

#[test]
fn the_task_priority_does_not_concern_the_pics() {
    let mut script = PIC.to_vec();
    // As a PC's firmware leaves it: vectors 8 to 15, of priority 0.
    script[1] = |f| out(f, 0x21, 1, 8);
    script.extend::<[Step; 4]>([
        |f| {
            mov_cr8(f, 15);
            out(f, 0x2005, 1, 1)
        },
        |f| {
            assert_eq!(f.interrupts, [0x0d]);
            out(f, 0x20, 1, 0x20)
        },
        |f| {
            open(f);
            mov_cr8(f, 0);
            out(f, 0x2006, 1, 1)
        },
        |f| {
            assert_eq!(f.interrupts, [0x0d, 0x0e]);
            Exit::Shutdown
        },
    ]);
    Machine::new(&script).play();
}

#[test]
fn a_masked_lint0_keeps_the_pics_out() {
    let mut script = PIC.to_vec();
    script.extend::<[Step; 4]>([
        |f| wrmsr(f, 0x835, 0x10700),
        |f| out(f, 0x2005, 1, 1),
        |f| {
            assert!(f.interrupts.is_empty());
            wrmsr(f, 0x835, 0x700)
        },
        |f| {
            assert_eq!(f.interrupts, [0x25]);
            Exit::Shutdown
        },
    ]);
    Machine::new(&script).play();
}

#[test]
fn level_interrupts_come_again_until_their_line_falls() {
    // IOAPIC pin 5: level-triggered, vector 0x45, to the APIC with ID 0; through its MMIO window.
    const IOAPIC: u64 = 0xfec0_0000;
    let mut machine = Machine::new(&[
        |f| out(f, 0x2005, 1, 1),
        |f| {
            assert_eq!(f.interrupts, [0x45]);
            wrmsr(f, x2apic::EOI, 0)
        },
        |f| {
            open(f);
            quiet(f)
        },
        |f| {
            assert_eq!(f.interrupts, [0x45, 0x45]);
            out(f, 0x2005, 1, 0)
        },
        |f| wrmsr(f, x2apic::EOI, 0),
        |f| {
            open(f);
            quiet(f)
        },
        quiet,
    ]);
    let mut messages = crate::device::message::Messages::new();
    for (offset, value) in [(0, 0x10 + 2 * 5), (0x10, 1 << 15 | 0x45)] {
        let now = crate::device::Nanos(0);
        let at = crate::arch::addr::Gpa(IOAPIC + offset);
        let _ = machine.vm.chipset.lock().mmio_write(at, 4, value, now, &mut messages);
    }
    machine.play();
    assert_eq!(machine.vcpu.virt.interrupts, [0x45, 0x45]);
}

#[test]
fn disabling_the_apic_withdraws_its_offer() {
    let mut machine = Machine::new(&[
        |f| {
            f.set_rflags(rflags::FIXED);
            wrmsr(f, x2apic::SELF_IPI, 0x40)
        },
        |f| wrmsr(f, msr::APIC_BASE, 0xfee0_0100),
        |f| {
            open(f);
            quiet(f)
        },
        quiet,
    ]);
    machine.play();
    assert!(machine.vcpu.virt.interrupts.is_empty());
}
