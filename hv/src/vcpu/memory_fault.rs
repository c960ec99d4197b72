//! Nested faults: fill the nested tables, or execute the instruction on devices.

use alloc::format;

use crate::arch::Access;
use crate::arch::addr::Gpa;
use crate::arch::state::rflags;
use crate::emulate;
use crate::paging::guest_walk::PagingState;
use crate::paging::{MapError, NestedOutcome};
use crate::vcpu::Vcpu;
use crate::vcpu::bus::Bus;
use crate::vcpu::dispatch::died;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::micro;
use crate::vcpu::outcome::{Cause, Outcome};
use crate::vcpu::overcommit;
use crate::vcpu::port::{Port, PortStop, Written};
use crate::vcpu::regions::{self, TouchedPage};
use crate::vcpu::run::single_step;
use crate::virt::{FlushScope, Virt};
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// Handles an access that the nested tables do not allow.
pub fn nested<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    gpa: Gpa,
    access: Access,
    walk: bool,
) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    // Most faults are accesses to devices: they change nothing in the tables, and need only the P2m.
    let known = {
        let memory = vm.read_memory(&mut vcpu.work);
        memory.nested.tree(vcpu.mmu.tree()).look(gpa, access, &memory.p2m)
    };
    let outcome = known.map_or_else(|| fill(vcpu, vm, gpa, access), Ok);
    if vm.pager.is_some() {
        if let Some(stop) = overcommit::failure(vcpu, vm) {
            return Outcome::Stop(stop);
        }
        overcommit::note(vcpu, vm);
    }
    match outcome {
        Ok(NestedOutcome::Filled(_)) => {
            vcpu.faults.filled += 1;
            Outcome::Resume
        }
        // The tables allow it already: another VCPU has filled the entry, or the TLB was older than the tables.
        Ok(NestedOutcome::Spurious) => {
            vcpu.faults.spurious += 1;
            vcpu.virt.flush(FlushScope::All);
            Outcome::Resume
        }
        Ok(NestedOutcome::Closed(home)) => micro::closed(ExitContext { vcpu, vm, host, tsc }, gpa, home),
        Ok(NestedOutcome::Touched) => {
            let page = TouchedPage { gpa, access, walk, address: None };
            regions::touched(ExitContext { vcpu, vm, host, tsc }, page)
        }
        // From here on the access goes to a device or to nothing. An event's delivery cannot be emulated.
        Ok(_) if vcpu.virt.was_delivering() => {
            let what = format!("the delivery of an interrupt or exception accesses {gpa}, which is not RAM");
            Outcome::Stop(died(vcpu, Cause::EmulationFailure, what))
        }
        // A fetch whose page walk ends in a hole is the guest's page fault.
        Ok(_) if access.execute && !walk => fetch_outside_ram(vcpu, gpa),
        Ok(_) => emulate(ExitContext { vcpu, vm, host, tsc }),
        Err(error) => {
            let what = format!("no memory for nested tables at {gpa}: {error:?}; give the host more memory");
            Outcome::Stop(died(vcpu, Cause::OutOfMemory, what))
        }
    }
}

/// Has the tables allow what the P2m allows; translations that this has replaced are forgotten by all on return.
#[cold]
fn fill<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    gpa: Gpa,
    access: Access,
) -> Result<NestedOutcome, MapError> {
    let tree = vcpu.mmu.tree();
    let (outcome, retired, host) = {
        let mut memory = vm.lock_memory(&mut vcpu.work);
        let memory = &mut *memory;
        let outcome = memory.nested.tree_mut(tree).fault(gpa, access, &memory.p2m)?;
        (outcome, memory.nested.take_retired(), memory.host.clone())
    };
    // An entry that was empty is in no TLB. One that was split or replaced may be, in that of each VCPU.
    if let NestedOutcome::Filled(flush) = outcome
        && !flush.is_none()
    {
        vcpu.virt.flush(FlushScope::All);
        vm.tell_others(&mut vcpu.work);
    }
    // Tables go back only after `tell_others` has returned: until then another processor may walk them.
    retired.free(&host);
    Ok(outcome)
}

/// Executes the instruction at CS:RIP in software.
pub fn emulate<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>) -> Outcome {
    emulate_write(cx, None)
}

/// The same, with what is known about its write.
pub fn emulate_write<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    written: Option<Written>,
) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    vcpu.faults.emulated += 1;
    // The processor may hold a newer TPR than the local APIC's page, which the instruction may access.
    vcpu.sync_task_priority();
    let paging = PagingState::of(&vcpu.virt, vm.paging_features);
    let bus = Bus::new(vm, &mut vcpu.lapic, host, tsc);
    let mut port = Port::new(bus, paging, written);
    let result = emulate::emulate(&mut vcpu.virt, &mut port, &mut vcpu.decode);
    let left = port.bus.finish();
    vcpu.sync_cr8();
    let outcome = match result {
        emulate::Outcome::Done { single_step: step } => {
            vcpu.virt.clear_interrupt_shadow();
            if step {
                single_step(vcpu);
            }
            Outcome::Resume
        }
        // A repeated string instruction has done a part, as the processor's may, and RIP still points to it.
        emulate::Outcome::Continue => {
            // After its first iteration a repeated instruction can be interrupted.
            if vcpu.virt.rflags() & rflags::RF != 0 {
                vcpu.virt.clear_interrupt_shadow();
            }
            vcpu.request(work::INTERRUPTS | work::TIMERS);
            Outcome::Resume
        }
        emulate::Outcome::Fault(exception) => Outcome::Inject(exception),
        emulate::Outcome::Stop(PortStop::Retry) => Outcome::Resume,
        emulate::Outcome::Stop(PortStop::FetchOutsideRam(gpa)) => fetch_outside_ram(vcpu, gpa),
        emulate::Outcome::Unsupported(bytes) => {
            let what = format!(
                "cannot emulate the instruction {:02x?} at {:#x}, which accesses a device or missing memory",
                bytes.as_slice(),
                vcpu.virt.rip()
            );
            Outcome::Stop(died(vcpu, Cause::EmulationFailure, what))
        }
    };
    // Where a page could not be had, the instruction has read or fetched what is not the guest's.
    let outcome = overcommit::failure(vcpu, vm).map_or(outcome, Outcome::Stop);
    vcpu.after_access(&vm.mailboxes, left, outcome)
}

#[cold]
pub(super) fn fetch_outside_ram<V: Virt>(vcpu: &Vcpu<V>, gpa: Gpa) -> Outcome {
    let what = format!("the guest jumped to guest-physical {gpa}, which is not RAM or ROM");
    Outcome::Stop(died(vcpu, Cause::EmulationFailure, what))
}
