//! RDTSC and RDTSCP that exit, because time is modelled: the clock as it was at the exit, as everything else sees it.

use crate::arch::state::Gpr;
use crate::emulate::System;
use crate::vcpu::outcome::Outcome;
use crate::vcpu::{Vcpu, dispatch, port};
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// Answers the instruction; `has_aux`: the exit is RDTSCP's. The processor has checked CR4.TSD.
pub fn read<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    has_aux: bool,
    tsc: u64,
) -> Outcome {
    let Some((next, has_aux)) = find(vcpu, vm, has_aux) else {
        dispatch::stale_code(vcpu);
        return Outcome::Resume;
    };
    let value = tsc.wrapping_add(vcpu.virt.tsc_offset());
    vcpu.virt.set_gpr(Gpr::Rax, value & 0xffff_ffff);
    vcpu.virt.set_gpr(Gpr::Rdx, value >> 32);
    if has_aux {
        vcpu.virt.set_gpr(Gpr::Rcx, vcpu.msrs.tsc_aux().into());
    }
    Outcome::Next(next)
}

/// RIP after the instruction, and whether it is RDTSCP. Where the processor does not say where the next one begins, neither does
/// its exit tell the two apart (QEMU's emulation): the code does.
fn find<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    has_aux: bool,
) -> Option<(u64, bool)> {
    if let Some(next) = vcpu.virt.next_rip() {
        return Some((next, has_aux));
    }
    let mut next = |what| vcpu.next_rips.get(&vcpu.virt, what, |virt, bytes| port::fetch(virt, vm, bytes));
    match next(System::Rdtsc) {
        Some(rip) => Some((rip, false)),
        None => next(System::Rdtscp).map(|rip| (rip, true)),
    }
}
