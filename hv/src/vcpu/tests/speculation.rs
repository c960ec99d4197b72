//! What guests write to control speculation reaches the PCPU.

use super::instructions::expect_gp;
use super::wrmsr;
use crate::arch::msr;
use crate::vcpu::testing::Machine;
use crate::virt::Exit;
use crate::virt::speculation::spec_ctrl::{IBRS, SSBD};

#[test]
fn a_guests_controls_are_the_processors() {
    let mut machine = Machine::new(&[
        |f| wrmsr(f, msr::SPEC_CTRL, IBRS),
        |f| wrmsr(f, msr::PRED_CMD, 1),
        |f| wrmsr(f, msr::VIRT_SPEC_CTRL, SSBD),
        |f| wrmsr(f, msr::SPEC_CTRL, 0),
        |_| Exit::Shutdown,
    ]);
    machine.play();
    let written = [IBRS, 1, IBRS | SSBD, SSBD];
    let msrs = [msr::SPEC_CTRL, msr::PRED_CMD, msr::SPEC_CTRL, msr::SPEC_CTRL];
    assert!(machine.host.speculation.iter().copied().eq(msrs.into_iter().zip(written)));
    assert!(machine.vcpu.virt.delivered.is_empty());
    assert_eq!(machine.vcpu.msrs.spec_ctrl(), SSBD, "what the next PCPU is told");
}

#[test]
fn what_is_not_offered_faults() {
    expect_gp("", |f| wrmsr(f, msr::FLUSH_CMD, 1));
    expect_gp("", |f| wrmsr(f, msr::SPEC_CTRL, 1 << 7));
    expect_gp("cpu = { without = [\"amd_ibpb\"] }\n", |f| wrmsr(f, msr::PRED_CMD, 1));
}
