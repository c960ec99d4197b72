//! Page faults of a VCPU on the shadow tables of its phase of regioning.

use super::follow_unsync;
use crate::paging::guest_walk::PagingState;
use crate::paging::shadow::{AddressSpace, PageFault, ShadowOutcome};
use crate::vcpu::Vcpu;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::overcommit;
use crate::vcpu::regions::{self, TouchedPage};
use crate::virt::Virt;
use crate::vm::regions::PHASE;
use crate::vm::{HostMemory, Vm};

/// Handles a fault that the shadow tables leave to the phase: what is open is filled. A page that is not is told to regioning, and
/// filled as well if it is open then.
#[cold]
pub(super) fn fault<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    state: &PagingState,
    fault: PageFault,
) -> ShadowOutcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let mut begin = tsc;
    let mut outcome = fill(vcpu, vm, state, fault);
    if let ShadowOutcome::Touched { gpa, user } = outcome {
        let PageFault { gva, access } = fault;
        let page = TouchedPage { gpa, access, walk: false, address: Some((gva, user)) };
        let _the_guest_tries_again = regions::touched(ExitContext { vcpu, vm, host, tsc }, page);
        begin = host.tsc();
        outcome = match vcpu.phase.is_on() {
            true => fill(vcpu, vm, state, fault),
            false => ShadowOutcome::Retry,
        };
    }
    vcpu.phase.leave_out(host.tsc().wrapping_sub(begin));
    match outcome {
        // There was no memory to open it.
        ShadowOutcome::Touched { .. } | ShadowOutcome::InPhase => ShadowOutcome::Retry,
        outcome => outcome,
    }
}

/// Has the tables allow what is open.
fn fill<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    state: &PagingState,
    fault: PageFault,
) -> ShadowOutcome {
    let (outcome, flush) = {
        let memory = vm.read_memory(&mut vcpu.work);
        let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
        let Some(shadow) = &mut *shadow else { return ShadowOutcome::Retry };
        let ram = memory.ram();
        let tables = memory.nested.get(PHASE);
        let is_open = |gfn| tables.is_some_and(|tables| tables.is_open(gfn));
        let answered = shadow.fault_in_phase(AddressSpace::new(&memory.p2m, &ram, state), fault, &is_open);
        follow_unsync(vcpu, shadow);
        answered
    };
    vcpu.perform_flush(flush);
    overcommit::note(vcpu, vm);
    outcome
}
