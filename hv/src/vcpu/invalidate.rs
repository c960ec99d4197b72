//! INVLPG and INVPCID on shadow tables. AMD APM 3.

use crate::arch::Exception;
use crate::arch::addr::{Gva, is_canonical};
use crate::arch::state::{SegReg, cr4};
use crate::emulate::{Op, System, invlpg_address, invpcid_operands};
use crate::vcpu::control::{after, current, with_port};
use crate::vcpu::dispatch::next_rip;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::outcome::Outcome;
use crate::vcpu::{Vcpu, mmu};
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// Handles INVLPG on shadow tables; `address` is the operand if the processor reported it.
pub fn invlpg<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    address: Option<Gva>,
) -> Outcome {
    let Some(next) = next_rip(vcpu, vm, System::Invlpg) else { return Outcome::Resume };
    let gva = match address.or_else(|| simple_address(vcpu)) {
        Some(gva) => gva,
        None => match current(vcpu, vm).and_then(|insn| invlpg_address(&insn, &vcpu.virt)) {
            Some(gva) => gva,
            None => return Outcome::Resume,
        },
    };
    if is_canonical(gva) {
        mmu::invlpg(vcpu, vm, gva);
    }
    Outcome::Next(next)
}

/// The operand of an INVLPG that is nothing but a register, as it was found when the instruction was decoded.
fn simple_address<V: Virt>(vcpu: &Vcpu<V>) -> Option<Gva> {
    let value = vcpu.virt.gpr(vcpu.next_rips.operand(&vcpu.virt, System::Invlpg)?);
    Some(match vcpu.virt.is_64bit() {
        true => Gva(value),
        false => Gva(vcpu.virt.segment(SegReg::Ds).base.wrapping_add(value) & 0xffff_ffff),
    })
}

/// Handles a general-protection fault that exits: an INVPCID that the processor has refused because it does not know the
/// guest's PCIDs, or the guest's own.
pub fn refused<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    exception: Exception,
) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let may_be = vcpu.virt.cpl() == 0 && vcpu.virt.cr4() & cr4::PCIDE != 0 && !vcpu.virt.was_delivering();
    let is_invpcid = may_be && current(vcpu, vm).is_some_and(|insn| insn.op == Op::System(System::Invpcid));
    if is_invpcid && vcpu.mmu.is_shadow() {
        return invpcid(ExitContext { vcpu, vm, host, tsc });
    }
    Outcome::Inject(exception)
}

/// Handles INVPCID on shadow tables, which do not tell address spaces apart: all types flush everything.
pub fn invpcid<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let insn = current(vcpu, vm).filter(|insn| insn.op == Op::System(System::Invpcid));
    let Some(insn) = insn else { return Outcome::Resume };
    let operands =
        with_port(ExitContext { vcpu, vm, host, tsc }, |virt, port| invpcid_operands(&insn, virt, port));
    let (kind, descriptor) = match operands {
        Ok(operands) => operands,
        Err(outcome) => return outcome,
    };
    // AMD APM 3, INVPCID: reserved bits, an address that is not canonical, PCIDs that are not in use.
    let (pcid, address) = (descriptor as u64, (descriptor >> 64) as u64);
    let pcids = vcpu.virt.cr4() & cr4::PCIDE != 0;
    let bad = match kind {
        0 => pcid >> 12 != 0 || !is_canonical(Gva(address)) || !pcids && pcid != 0,
        1 => pcid >> 12 != 0 || !pcids && pcid != 0,
        2 | 3 => false,
        _ => true,
    };
    if bad {
        return Outcome::Inject(Exception::GP0);
    }
    mmu::flush_all(vcpu, vm);
    Outcome::Next(after(vcpu, &insn))
}
