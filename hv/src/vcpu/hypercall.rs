//! Hypercalls, in KVM's convention: the crate `abi` has the numbers and says what they mean.
//!
//! Called by `dispatch`. The answer is in RAX, and an error is a number in it; no hypercall faults or ends a guest.

use abi::hypercall::{COUNTER_PAGE, KVM_EPERM, NOT_IMPLEMENTED};

use crate::arch::addr::Gpa;
use crate::arch::state::Gpr;
use crate::emulate::System;
use crate::mem::table_memory::TableMemory;
use crate::paging::p2m::{P2m, P2mEntry};
use crate::vcpu::Vcpu;
use crate::vcpu::dispatch::with_next;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::outcome::Outcome;
use crate::virt::Virt;
use crate::vm::counter_page::{Refusal, Request};
use crate::vm::{HostMemory, Vm};

/// VMMCALL or VMCALL.
pub(super) fn hypercall<V: Virt, M: HostMemory, H>(cx: ExitContext<'_, V, M, H>) -> Outcome {
    let ExitContext { vcpu, vm, tsc, .. } = cx;
    with_next(vcpu, vm, System::Hypercall, |vcpu, rip| {
        let answer = perform(vcpu, vm, tsc);
        vcpu.virt.set_gpr(Gpr::Rax, answer);
        Outcome::Next(rip)
    })
}

/// What RAX gets.
fn perform<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, tsc: u64) -> u64 {
    // As KVM has it, 32-bit code has halves of registers.
    let mask = if vcpu.virt.is_64bit() { u64::MAX } else { u32::MAX.into() };
    let [number, first, second] = [Gpr::Rax, Gpr::Rbx, Gpr::Rcx].map(|gpr| vcpu.virt.gpr(gpr) & mask);
    if vcpu.virt.cpl() != 0 {
        // Programs of the guest share pages through its kernel only.
        return KVM_EPERM.wrapping_neg();
    }
    match number {
        COUNTER_PAGE => counter_page(vcpu, vm, first, second, tsc)
            .map_or_else(|refusal| refusal.number().wrapping_neg(), |()| 0),
        _ => NOT_IMPLEMENTED,
    }
}

/// [`COUNTER_PAGE`].
fn counter_page<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    value: u64,
    version: u64,
    tsc: u64,
) -> Result<(), Refusal> {
    let request = Request::parse(value, version)?;
    let ran = vcpu.ran_until(tsc);
    let memory = vm.read_memory(&mut vcpu.work);
    match request {
        Request::Register(gpa) if is_ram(&memory.p2m, gpa) => {
            vcpu.counter_page.register(&memory.ram(), gpa, ran)
        }
        // A counter that can only be read cannot count.
        Request::Register(_) => Err(Refusal::NotRam),
        Request::Unregister => {
            vcpu.counter_page.unregister(&memory.ram(), ran);
            Ok(())
        }
    }
}

/// Whether the page is RAM, and not ROM or a device's.
fn is_ram<M: TableMemory>(p2m: &P2m<M>, gpa: Gpa) -> bool {
    matches!(p2m.translate(gpa), P2mEntry::Ram { .. })
}
