//! Hypercalls, in KVM's convention: the crate `abi` has the numbers and says what they mean.
//!
//! Called by `dispatch`. The answer is in RAX, and an error is a number in it; no hypercall faults or ends a guest.

use alloc::vec::Vec;

use abi::hypercall::{
    ADD_GUEST_REGION, ADD_PAGE, COUNTER_PAGE, DEL_GUEST_REGION, DEL_PAGE, KVM_EPERM, NOT_IMPLEMENTED,
    TIER_TARGET,
};

use crate::arch::addr::Gpa;
use crate::arch::state::Gpr;
use crate::emulate::System;
use crate::mem::table_memory::TableMemory;
use crate::mem::tier::target;
use crate::paging::p2m::{P2m, P2mEntry};
use crate::region::guest::{GuestError, MAX_FRAMES};
use crate::region::{Effect, Target};
use crate::vcpu::Vcpu;
use crate::vcpu::dispatch::with_next;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::mmu::follow_changes;
use crate::vcpu::outcome::Outcome;
use crate::virt::Virt;
use crate::vm::counter_page::{Refusal, Request};
use crate::vm::regions::Records;
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
    let registers = [Gpr::Rax, Gpr::Rbx, Gpr::Rcx, Gpr::Rdx];
    let [number, first, second, third] = registers.map(|gpr| vcpu.virt.gpr(gpr) & mask);
    if vcpu.virt.cpl() != 0 {
        // Programs of the guest share pages through its kernel only.
        return KVM_EPERM.wrapping_neg();
    }
    match number {
        COUNTER_PAGE => counter_page(vcpu, vm, first, second, tsc)
            .map_or_else(|refusal| refusal.number().wrapping_neg(), |()| 0),
        ADD_GUEST_REGION | DEL_GUEST_REGION | ADD_PAGE | DEL_PAGE => {
            region(vcpu, vm, number, [first, second, third])
                .unwrap_or_else(|error| error.number().wrapping_neg())
        }
        TIER_TARGET => target::want(vm.tiers.as_deref(), first)
            .map_or_else(|error| error.number().wrapping_neg(), |()| 0),
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

/// The calls that divide the guest's memory into regions.
fn region<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    number: u64,
    arguments: [u64; 3],
) -> Result<u64, GuestError> {
    let mut slot = vm.regions.lock(|| vm.answer(&mut vcpu.work));
    let records = vm.regions.records(&mut slot, vm.layout)?;
    // Frames that are open elsewhere now: only regions that are mapped to a cache close any.
    let mut frames = Vec::new();
    let is_divided = vm.regions.is_divided();
    if is_divided {
        frames.try_reserve_exact(MAX_FRAMES as usize).map_err(|_| GuestError::NoMemory)?;
    }
    let Records { guest, micro, rounds, .. } = &mut *records;
    let follow = &mut |effect| match effect {
        Effect::Close(Target::Frame(frame), _) | Effect::Open(Target::Frame(frame), _) if is_divided => {
            frames.push(frame);
        }
        Effect::Died(rid) => {
            micro.end(rid);
            rounds.iter_mut().for_each(|rounds| rounds.forget(rid));
        }
        effect => debug_assert!(matches!(effect, Effect::Born(_)), "{effect:?}"),
    };
    let [first, second, third] = arguments;
    let done = match number {
        ADD_GUEST_REGION => guest.add(follow).map(u64::from),
        DEL_GUEST_REGION => guest.remove(first, follow).map(|()| 0),
        ADD_PAGE => guest.add_pages(first, second, third, follow).map(|()| 0),
        _ => guest.remove_pages(first, second, third, follow).map(|()| 0),
    };
    // Also after an error: a part of a large region may be gone.
    if !frames.is_empty() {
        let rid = records.guest.rid(if number == DEL_GUEST_REGION { first } else { third });
        let changes = vm.follow_request(vcpu.id, &mut vcpu.work, records, &frames, rid);
        follow_changes(vcpu, changes);
    }
    done
}

/// Whether the page is RAM, and not ROM or a device's.
fn is_ram<M: TableMemory>(p2m: &P2m<M>, gpa: Gpa) -> bool {
    matches!(p2m.translate(gpa), P2mEntry::Ram { .. } | P2mEntry::Local { .. })
}
