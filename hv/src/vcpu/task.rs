//! Hardware task switches at an exit: the two halves of [`crate::emulate::task`], and what the VCPU has to do between and
//! after them: the page tables, the event that was being delivered, NMIs, the debug trap.
//!
//! Called by exit dispatch. Intel SDM 3, 7.3 and 25.4.2; AMD APM 2, 12.3 and 15.14.1.

use crate::arch::state::cr0;
use crate::arch::task::{TaskSource, TaskSwitch};
use crate::arch::{Exception, vector};
use crate::emulate::{Fault, MAX_LEN, instruction_length, task};
use crate::paging::guest_walk::PagingState;
use crate::vcpu::Vcpu;
use crate::vcpu::bus::Bus;
use crate::vcpu::control::load_cr3;
use crate::vcpu::dispatch::died;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::outcome::{Cause, Outcome};
use crate::vcpu::port::{self, Port, PortStop};
use crate::virt::Virt;
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// DR6.BT: the debug trap of a TSS.
const DR6_BT: u64 = 1 << 15;

/// How often the new task's registers are loaded, while other VCPUs change its page tables. A bound, because the guest decides how
/// long that goes on; after it the VM ends.
const ATTEMPTS: usize = 1000;

/// What a half came to, if it did not come to its end.
type Half<T> = Result<T, Outcome>;

/// Executes a task switch.
#[cold]
pub fn switch<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    request: &TaskSwitch,
) -> Outcome {
    try_switch(cx, request).unwrap_or_else(|outcome| outcome)
}

fn try_switch<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    request: &TaskSwitch,
) -> Half<Outcome> {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    // None: another VCPU has just overwritten the instruction. The guest tries again.
    let next = if request.is_by_instruction() { next_rip(vcpu, vm) } else { Some(vcpu.virt.rip()) };
    let next = next.ok_or(Outcome::Resume)?;
    let request = &match request.source {
        TaskSource::Iret => {
            TaskSwitch { selector: back_link(ExitContext { vcpu, vm, host, tsc })?, ..*request }
        }
        _ => *request,
    };
    let left =
        half(ExitContext { vcpu, vm, host, tsc }, |state, port| task::leave(state, port, request, next))?;
    let new = left.map_err(again)?;
    // From here on the new task runs.
    vcpu.virt.clear_interrupt_shadow();
    vcpu.virt.finish_delivery();
    vcpu.note_taken();
    if request.source == TaskSource::Iret {
        vcpu.virt.unblock_nmis();
    }
    vcpu.request(work::INTERRUPTS);
    let tables = new.cr3().filter(|_| vcpu.virt.cr0() & cr0::PG != 0);
    let loaded = tables.is_none_or(|cr3| load_cr3(vcpu, vm, cr3.into()));
    for _ in 0..ATTEMPTS {
        match half(ExitContext { vcpu, vm, host, tsc }, |state, port| task::arrive(state, port, &new))? {
            // Invalid page-directory pointers.
            Ok(_) | Err(Fault::Exception(_)) if !loaded => return Ok(Outcome::Inject(Exception::GP0)),
            Ok(true) => return Ok(trap(vcpu)),
            Ok(false) => return Ok(Outcome::Resume),
            Err(Fault::Exception(exception)) => return Ok(Outcome::Inject(exception)),
            Err(Fault::Stop(_)) => {}
        }
    }
    let what = "the page tables of a new task kept changing during a hardware task switch".into();
    Err(Outcome::Stop(died(vcpu, Cause::EmulationFailure, what)))
}

/// Runs one half of a switch on the guest's memory as its registers translate it now.
fn half<V: Virt, M: HostMemory, H: Host, T>(
    cx: ExitContext<'_, V, M, H>,
    run: impl FnOnce(&mut V, &mut Port<'_, V::NestedFormat, M, H>) -> Result<T, Fault<PortStop>>,
) -> Half<Result<T, Fault<PortStop>>> {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let paging = PagingState::of(&vcpu.virt, vm.paging_features);
    let bus = Bus::new(vm, &mut vcpu.lapic, host, tsc);
    let mut port = Port::new(bus, paging, None);
    let result = run(&mut vcpu.virt, &mut port);
    let left = port.bus.finish();
    match vcpu.after_access(&vm.mailboxes, left, Outcome::Resume) {
        Outcome::Resume => Ok(result),
        outcome => Err(outcome),
    }
}

/// What a fault of the old task comes to.
fn again(fault: Fault<PortStop>) -> Outcome {
    match fault {
        Fault::Exception(exception) => Outcome::Inject(exception),
        // No effect so far that another attempt does not repeat.
        Fault::Stop(_) => Outcome::Resume,
    }
}

/// The selector of the task to which the current one returns. Not every exit of an IRET tells it.
fn back_link<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>) -> Half<u16> {
    half(cx, |state, port| task::back_link(state, port))?.map_err(again)
}

/// The debug trap before the new task's first instruction.
fn trap<V: Virt>(vcpu: &mut Vcpu<V>) -> Outcome {
    vcpu.virt.set_dr6(vcpu.virt.dr6() | DR6_BT);
    Outcome::Inject(Exception { vector: vector::DB, error: None, cr2: None })
}

/// RIP after the instruction that asks for the switch. Not every processor with NRIP save has it at this exit.
fn next_rip<V: Virt, M: HostMemory>(vcpu: &Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> Option<u64> {
    let rip = vcpu.virt.rip();
    let told = vcpu.virt.next_rip().filter(|next| (1..=MAX_LEN as u64).contains(&next.wrapping_sub(rip)));
    told.or_else(|| {
        let mut bytes = [0; MAX_LEN];
        let len = port::fetch(&vcpu.virt, vm, &mut bytes);
        let len = instruction_length(bytes.get(..len)?, vcpu.virt.code_bitness())?;
        Some(rip.wrapping_add(len.into()) & 0xffff_ffff)
    })
}
