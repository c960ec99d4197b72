//! Code is written with what it is where host interrupts find a VCPU at the same instruction.

use crate::vcpu::old_code::renew;
use crate::vcpu::testing::{CODE, Machine};

#[test]
fn code_is_written_where_two_interrupts_in_a_row_find_the_guest() {
    let mut machine = Machine::new(&[]);
    machine.code(&[0xcc, 0x90, 0x90]);
    let mut found_at = |rip: u64| {
        machine.vcpu.virt.regs.rip = rip;
        renew(&mut machine.vcpu, &machine.vm)
    };
    assert!(!found_at(CODE));
    assert!(found_at(CODE));
    assert!(found_at(CODE), "and each time again");
    assert!(!found_at(CODE + 1), "the guest goes on");
    assert!(!found_at(CODE));
    // Nothing is there.
    assert!(!found_at(0x7000_0000));
    assert!(!found_at(0x7000_0000));
    assert_eq!(machine.read(CODE), [0xcc, 0x90, 0x90]);
}
