//! Page faults of a guest on shadow tables: filled, reflected, or executed in software.

use alloc::format;

use super::choose::publish;
use super::{NestedStep, agile, follow_unsync, phase, shadowed_state, spaces, switch};
use crate::arch::addr::{Gpa, Gva};
use crate::arch::{Access, Exception};
use crate::paging::MapError;
use crate::paging::engine::{Engine, Engines};
use crate::paging::guest_walk::{PagingState, error_code};
use crate::paging::shadow::{AddressSpace, PageFault, ShadowOutcome};
use crate::vcpu::Vcpu;
use crate::vcpu::dispatch::died;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::memory_fault::{self, emulate, fetch_outside_ram};
use crate::vcpu::micro;
use crate::vcpu::outcome::{Cause, Outcome, Stop};
use crate::vcpu::overcommit;
use crate::vcpu::port::Written;
use crate::virt::Virt;
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// Handles #PF at `gva` with the processor's error code. `alone`: nothing else happened at this exit.
///
/// Not by way of [`ExitContext`], for the reason given at [`io`](crate::vcpu::io::io).
pub fn page_fault<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    gva: Gva,
    error: u32,
    alone: bool,
    tsc: u64,
) -> Outcome {
    if vcpu.mmu.engine != Engine::Shadow {
        return other_page_fault(ExitContext { vcpu, vm, host, tsc }, gva, error, alone);
    }
    if let Some(refill_window) = &mut vcpu.mmu.refill_window
        && let Some(refilled) = refill_window.fault(tsc)
    {
        vcpu.mmu.refill_window = None;
        let counts = &mut vcpu.mmu.switches;
        counts.refilled += 1;
        counts.refill_ticks += refilled.ticks;
        counts.refill_faults += refilled.faults;
        log::debug!(
            "{}: shadow tables refilled after {} ticks, {} faults",
            vm.name,
            refilled.ticks,
            refilled.faults
        );
    }
    let access = access_of(error);
    let state = shadowed_state(vcpu, vm);
    let fault = PageFault::new(gva, access);
    let together = if vm.is_smp() { fault_together(vcpu, vm, &state, fault) } else { None };
    let outcome = match together {
        Some(outcome) => outcome,
        None => {
            // Both locks end with the block: what follows may emulate an instruction, which takes them again.
            let (outcome, flush) = {
                let memory = vm.read_memory(&mut vcpu.work);
                let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
                let Some(shadow) = &mut *shadow else { return Outcome::Resume };
                let ram = memory.ram();
                let answered = shadow.fault(AddressSpace::new(&memory.p2m, &ram, &state), fault);
                follow_unsync(vcpu, shadow);
                answered
            };
            // Before the guest runs again, whatever the outcome: entries may have been replaced on the way to it.
            vcpu.perform_flush(flush);
            outcome
        }
    };
    overcommit::note(vcpu, vm);
    match outcome {
        ShadowOutcome::Filled { .. } | ShadowOutcome::Retry => Outcome::Resume,
        ShadowOutcome::GuestFault(error) if alone && vcpu.work & work::PAGER == 0 => {
            reflect(vcpu, gva, error)
        }
        ShadowOutcome::Closed(gpa, home) if vcpu.work & work::PAGER == 0 => {
            micro::closed(ExitContext { vcpu, vm, host, tsc }, gpa, home)
        }
        _ => answer(ExitContext { vcpu, vm, host, tsc }, outcome, &state, (gva, error), alone),
    }
}

/// The same at the time at which other VCPUs of the VM do so, if that is possible.
#[inline(never)]
fn fault_together<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    state: &PagingState,
    fault: PageFault,
) -> Option<ShadowOutcome> {
    let memory = vm.read_memory(&mut vcpu.work);
    let shadow = vm.share_shadow(&mut vcpu.work);
    let ram = memory.ram();
    shadow.as_ref()?.fault_together(vcpu.id, AddressSpace::new(&memory.p2m, &ram, state), fault)
}

/// Hands a page fault to the guest that is all of its exit. Without an event in delivery there is nothing to merge it with, so
/// that it need not go by way of `inject`.
#[inline(always)]
fn reflect<V: Virt>(vcpu: &mut Vcpu<V>, gva: Gva, error: u32) -> Outcome {
    vcpu.interrupts.counts.exceptions += 1;
    vcpu.virt.inject_page_fault(gva, error);
    Outcome::Resume
}

/// The access that an error code tells of.
#[inline(always)]
fn access_of(error: u32) -> Access {
    Access {
        write: error & error_code::WRITE != 0,
        execute: error & error_code::FETCH != 0,
        user: error & error_code::USER != 0,
    }
}

/// The same on tables of another engine.
#[cold]
#[inline(never)]
fn other_page_fault<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    gva: Gva,
    error: u32,
    alone: bool,
) -> Outcome {
    // With nested tables #PF is intercepted only while an IRET is stepped over, and is the guest's.
    if cx.vcpu.mmu.engine == Engine::Nested {
        return Outcome::Inject(Exception::page_fault(gva, error));
    }
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let state = shadowed_state(vcpu, vm);
    let outcome = agile::fault(vcpu, vm, &state, PageFault::new(gva, access_of(error)), tsc);
    overcommit::note(vcpu, vm);
    match outcome {
        Some(outcome) => answer(ExitContext { vcpu, vm, host, tsc }, outcome, &state, (gva, error), alone),
        None => Outcome::Resume,
    }
}

/// Carries out what the shadow tables say about a page fault with this address and error code. Apart, so that what most faults
/// come to does not pass through memory.
#[inline(never)]
fn answer<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    outcome: ShadowOutcome,
    state: &PagingState,
    (gva, error): (Gva, u32),
    alone: bool,
) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let access = access_of(error);
    match outcome {
        ShadowOutcome::Filled { .. } | ShadowOutcome::Retry => Outcome::Resume,
        // No page that is missing is the guest's mistake.
        _ if vcpu.work & work::PAGER != 0
            && let Some(stop) = overcommit::failure(vcpu, vm) =>
        {
            Outcome::Stop(stop)
        }
        ShadowOutcome::GuestFault(error) if alone => reflect(vcpu, gva, error),
        ShadowOutcome::InPhase | ShadowOutcome::Touched { .. } => {
            let fault = PageFault::new(gva, access);
            let outcome = phase::fault(ExitContext { vcpu, vm, host, tsc }, state, fault);
            answer(ExitContext { vcpu, vm, host, tsc }, outcome, state, (gva, error), alone)
        }
        ShadowOutcome::Closed(gpa, home) => micro::closed(ExitContext { vcpu, vm, host, tsc }, gpa, home),
        ShadowOutcome::GuestFault(error) => Outcome::Inject(Exception::page_fault(gva, error)),
        ShadowOutcome::EmulateWrite(gpa)
            if vcpu.mmu.engine == Engine::Shadow
                && vm.translation.keeps_upper()
                && spaces::leave_unsync(vcpu, vm, gpa, tsc) =>
        {
            Outcome::Resume
        }
        ShadowOutcome::EmulateWrite(gpa) => {
            emulate_write(ExitContext { vcpu, vm, host, tsc }, Written { gva, gpa, user: access.user })
        }
        // Where there is no memory tables read as ones: present, with every reserved bit set.
        ShadowOutcome::TableNotRam(_) => {
            let fetch = if state.no_execute() || state.smep() { error_code::FETCH } else { 0 };
            let known = error_code::WRITE | error_code::USER | fetch;
            let error = error & known | error_code::PRESENT | error_code::RESERVED;
            Outcome::Inject(Exception::page_fault(gva, error))
        }
        ShadowOutcome::Mmio(gpa)
        | ShadowOutcome::NotMapped(gpa)
        | ShadowOutcome::RomWrite(gpa)
        | ShadowOutcome::WriteProtected(gpa) => device(ExitContext { vcpu, vm, host, tsc }, gpa, access),
    }
}

/// An access to what is not memory, or not memory that can be written.
fn device<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    gpa: Gpa,
    access: Access,
) -> Outcome {
    // The processor was pushing a frame or reading the IDT: there is no instruction that could be emulated.
    if cx.vcpu.virt.was_delivering() {
        let what = format!("the delivery of an interrupt or exception accesses {gpa}, which is not RAM");
        return Outcome::Stop(died(cx.vcpu, Cause::EmulationFailure, what));
    }
    if access.execute {
        return fetch_outside_ram(cx.vcpu, gpa);
    }
    emulate(cx)
}

/// A write to a table that is write-protected, or to a guarded page: executed in software, or, where that is not possible, by the
/// processor: on nested tables, or, where there are none, with the table left to the guest until its next flush.
fn emulate_write<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>, written: Written) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    // On AMD-V nested tables take a guest in any state. VT-x without unrestricted guest needs one that pages.
    let can_leave = V::UNRESTRICTED || vcpu.virt.engines().contains(Engine::Nested);
    // First in software, which is cheapest and keeps the page protected. The delivery of an event is not an instruction.
    let death = if vcpu.virt.was_delivering() {
        None
    } else {
        match memory_fault::emulate_write(ExitContext { vcpu, vm, host, tsc }, Some(written)) {
            Outcome::Stop(Stop::Died(death)) if death.cause == Cause::EmulationFailure => Some(death),
            outcome => return outcome,
        }
    };
    if can_leave {
        return execute_on_nested(vcpu, vm, host);
    }
    if make_unsync(vcpu, vm, written.gpa) {
        return Outcome::Resume;
    }
    let what = "the delivery of an interrupt or exception writes to a protected page, and there are no nested tables to execute it on";
    Outcome::Stop(death.map_or_else(|| died(vcpu, Cause::EmulationFailure, what.into()), Stop::Died))
}

/// Whether the guest may now write to a table that was write-protected.
#[cold]
fn make_unsync<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, gpa: Gpa) -> bool {
    let memory = vm.read_memory(&mut vcpu.work);
    let flush = {
        let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
        let flush = shadow.as_mut().and_then(|shadow| shadow.make_unsync(&memory.p2m, &memory.ram(), gpa));
        shadow.iter().for_each(|shadow| follow_unsync(vcpu, shadow));
        flush
    };
    flush.is_some_and(|flush| {
        vcpu.perform_flush(flush);
        true
    })
}

/// Lets the processor execute the instruction with nested tables, until its next exit.
#[cold]
pub fn execute_on_nested<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &H,
) -> Outcome {
    vcpu.mmu.switches.nested_steps += 1;
    vcpu.mmu.nested_step = NestedStep::Armed;
    publish(vcpu, vm, Engines::only(Engine::Nested));
    vcpu.request(work::MMU);
    match switch(vcpu, vm, Engine::Nested, || host.tsc()) {
        Ok(()) => Outcome::Resume,
        Err(error) => Outcome::Stop(no_memory(vcpu, error)),
    }
}

/// The end of a guest for which there are no shadow tables.
#[cold]
pub(super) fn no_memory<V: Virt>(vcpu: &Vcpu<V>, error: MapError) -> Stop {
    let what = format!("no memory for shadow tables: {error:?}; lower `shadow_pages` or give the host more");
    died(vcpu, Cause::OutOfMemory, what)
}
