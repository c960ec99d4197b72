//! From an exit to an outcome.
//!
//! One match over [`Exit`]; each arm is a handler of a few lines, or a module of its own where the subject is larger. The run
//! loop ([`run`](crate::vcpu::run)) calls it for exits that none of its fast paths has completed, and carries out the
//! [`Outcome`]. Handlers are the same for both vendors: what differs is behind [`Virt`]. They run with interrupts disabled and
//! take the VM's locks themselves, so nothing here may be called with one held.
//!
//! The arms are in two functions by how often they come, so that frequent exits share a small one.

use alloc::boxed::Box;
use alloc::string::String;

use crate::arch::addr::Gva;
use crate::arch::state::{ArchState, Gpr, cr0, cr4};
use crate::arch::{Exception, vector};
use crate::emulate::System;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::outcome::{Cause, Death, Outcome, Stop};
use crate::vcpu::port;
use crate::vcpu::run::single_step;
use crate::vcpu::{
    Vcpu, control, hypercall, invalidate, io, memory_fault, mmu, msr, old_code, task, time_stamp, xcr,
};
use crate::virt::{Exit, FlushScope, Virt};
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// Decides what happens after `exit`, which came at host TSC `tsc`.
#[inline(always)]
pub fn dispatch<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>, exit: &Exit) -> Outcome {
    match *exit {
        Exit::Cpuid => cpuid(cx.vcpu, cx.vm, cx.host),
        Exit::Io(io) => io::io(cx.vcpu, cx.vm, cx.host, io, cx.tsc).unwrap_or(Outcome::Resume),
        Exit::Wrmsr => msr::write(cx),
        Exit::Rdmsr => msr::read(cx.vcpu, cx.vm, cx.tsc),
        Exit::Hlt => with_next(cx.vcpu, cx.vm, System::Hlt, |_, rip| Outcome::Halt(rip)),
        Exit::NestedFault { gpa, access, walk, .. } => memory_fault::nested(cx, gpa, access, walk),
        Exit::ControlReg(access) => control::control(cx, access),
        Exit::Invlpg(gva) => invalidate::invlpg(cx.vcpu, cx.vm, gva),
        Exit::Interrupt => {
            if cx.vcpu.virt.keeps_old_code() {
                old_code::renew(cx.vcpu, cx.vm);
            }
            Outcome::HostInterrupt
        }
        _ => rare(cx, exit),
    }
}

#[cold]
#[inline(never)]
fn rare<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>, exit: &Exit) -> Outcome {
    match *exit {
        Exit::Invpcid => invalidate::invpcid(cx),
        // Few guests use them. From the first access on they need not exit any more.
        Exit::DebugReg(_) => {
            cx.vcpu.virt.open_debug_registers();
            Outcome::Resume
        }
        Exit::Xsetbv => xcr::xsetbv(cx.vcpu, cx.vm, cx.host),
        Exit::Hypercall => hypercall::hypercall(cx),
        // Processors look at this before the intercept; QEMU's emulation does not.
        Exit::Wbinvd if cx.vcpu.virt.cpl() != 0 => Outcome::Inject(Exception::GP0),
        Exit::Wbinvd => with_next(cx.vcpu, cx.vm, System::Wbinvd, |_, rip| Outcome::Next(rip)),
        Exit::Pause => with_next(cx.vcpu, cx.vm, System::Pause, |vcpu, rip| {
            vcpu.request(work::SPIN);
            Outcome::Next(rip)
        }),
        Exit::Rdpmc => rdpmc(cx.vcpu, cx.vm),
        Exit::Rdtsc | Exit::Rdtscp => time_stamp::read(cx.vcpu, cx.vm, *exit == Exit::Rdtscp, cx.tsc),
        // CPUID hides both.
        Exit::Mwait | Exit::VirtInstruction => Outcome::Inject(Exception::UD),
        Exit::InterruptWindow => {
            cx.vcpu.request(work::INTERRUPTS);
            Outcome::Resume
        }
        Exit::NmiWindow | Exit::Init => Outcome::Resume,
        Exit::Nmi => Outcome::HostInterrupt,
        Exit::Exception(Exception { vector: vector::PF, error: Some(error), cr2: Some(gva) }) => {
            mmu::page_fault(cx.vcpu, cx.vm, cx.host, Gva(gva), error, false, cx.tsc)
        }
        Exit::Exception(exception) if exception.vector == vector::GP => invalidate::refused(cx, exception),
        Exit::Exception(exception) => {
            // Its delivery may raise the next one at once, which the processor puts before interrupts: the host looks for them.
            cx.vcpu.request(work::HOST);
            Outcome::Inject(exception)
        }
        Exit::Shutdown => Outcome::Stop(died(
            cx.vcpu,
            Cause::TripleFault,
            "an exception could not be delivered, nor a double fault".into(),
        )),
        Exit::InvalidState => {
            let what =
                alloc::format!("the processor refused the guest's state; {}", cx.vcpu.virt.exit_report());
            Outcome::Stop(died(cx.vcpu, Cause::InvalidState, what))
        }
        Exit::TaskSwitch(request) => task::switch(cx, &request),
        Exit::LoadTask => mmu::execute_on_nested(cx.vcpu, cx.vm, cx.host),
        Exit::Unknown { .. } => {
            let what = alloc::format!("unknown exit {exit:x?}; {}", cx.vcpu.virt.exit_report());
            Outcome::Stop(died(cx.vcpu, Cause::UnknownExit, what))
        }
        Exit::Cpuid
        | Exit::Io(_)
        | Exit::Wrmsr
        | Exit::Rdmsr
        | Exit::Hlt
        | Exit::NestedFault { .. }
        | Exit::ControlReg(_)
        | Exit::Invlpg(_)
        | Exit::Interrupt => dispatch(cx, exit),
    }
}

/// RDPMC: AMD's four legacy counters, which every processor has; they stand at zero, as their MSRs do (`guest::msr`). Other
/// counters need CPUID bits that guests do not get. APM 3, RDPMC.
fn rdpmc<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> Outcome {
    const LEGACY_COUNTERS: u64 = 4;
    let allowed = vcpu.virt.cpl() == 0 || vcpu.virt.cr4() & cr4::PCE != 0 || vcpu.virt.cr0() & cr0::PE == 0;
    let counter = vcpu.virt.gpr(Gpr::Rcx) & 0xffff_ffff;
    if !allowed || !vcpu.cpuid.limits().amd || counter >= LEGACY_COUNTERS {
        return Outcome::Inject(Exception::GP0);
    }
    with_next(vcpu, vm, System::Rdpmc, |vcpu, rip| {
        vcpu.virt.set_gpr(Gpr::Rax, 0);
        vcpu.virt.set_gpr(Gpr::Rdx, 0);
        Outcome::Next(rip)
    })
}

/// The fast path of CPUID: answered if this returns true, otherwise the exit goes the common way.
#[inline(always)]
pub fn quick_cpuid<V: Virt>(vcpu: &mut Vcpu<V>) -> bool {
    if vcpu.virt.gpr(Gpr::Rax) as u32 == XSAVE_LEAF {
        return false;
    }
    let next = match vcpu.virt.next_rip() {
        Some(next) => next,
        None => match vcpu.next_rips.known(&vcpu.virt, System::Cpuid) {
            Some(next) => next,
            None => return false,
        },
    };
    answer_cpuid(vcpu, next);
    true
}

/// Answers CPUID; the guest goes on at `next`.
#[inline(always)]
fn answer_cpuid<V: Virt>(vcpu: &mut Vcpu<V>, next: u64) {
    // The table is computed when the VCPU starts, and where CR4 or XCR0 change; here it is only looked up.
    let leaf = vcpu.virt.gpr(Gpr::Rax) as u32;
    let values = vcpu.cpuid.get(leaf, vcpu.virt.gpr(Gpr::Rcx) as u32);
    if vcpu.virt.answer_cpuid(values, next) {
        single_step(vcpu);
    }
}

/// CPUID with something else to look at.
fn cpuid<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &H,
) -> Outcome {
    sync_xcr0(vcpu, host);
    // Otherwise something else is at RIP by now, and the guest tries again.
    if let Some(next) = next_rip(vcpu, vm, System::Cpuid) {
        answer_cpuid(vcpu, next);
    }
    Outcome::Resume
}

/// Sizes of XSAVE areas, which depend on XCR0.
const XSAVE_LEAF: u32 = 0xd;

/// Follows XCR0, which guests can change unseen where XSETBV cannot be intercepted (in QEMU's emulation).
#[cold]
fn sync_xcr0<V: Virt, H: Host>(vcpu: &mut Vcpu<V>, host: &H) {
    let xcr0 = host.xcr0();
    if xcr0 != vcpu.xcr0 {
        vcpu.xcr0 = xcr0;
        vcpu.cpuid.refresh(vcpu.virt.cr4(), xcr0);
    }
}

/// Runs `handler` with the RIP of the instruction after the one that exited, which is of kind `what`. If the bytes at
/// RIP are no such instruction (another VCPU has just overwritten it), the guest is simply entered again.
#[inline(always)]
pub(super) fn with_next<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    what: System,
    handler: impl FnOnce(&mut Vcpu<V>, u64) -> Outcome,
) -> Outcome {
    match next_rip(vcpu, vm, what) {
        Some(rip) => handler(vcpu, rip),
        None => Outcome::Resume,
    }
}

/// RIP of the instruction after the one that exited, which is of kind `what`.
#[inline(always)]
pub(super) fn next_rip<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    what: System,
) -> Option<u64> {
    match vcpu.virt.next_rip() {
        Some(rip) => Some(rip),
        None => {
            let next = vcpu.next_rips.get(&vcpu.virt, what, |virt, bytes| port::fetch(virt, vm, bytes));
            if next.is_none() {
                stale_code(vcpu);
            }
            next
        }
    }
}

/// Something else is at RIP than what exited. Maybe the processor used a translation that the guest's tables no longer
/// have: without it, entering again makes progress.
#[cold]
pub(super) fn stale_code<V: Virt>(vcpu: &mut Vcpu<V>) {
    vcpu.virt.flush(FlushScope::All);
}

/// The end of a guest, with its registers for the report.
#[cold]
pub(super) fn died<V: Virt>(vcpu: &Vcpu<V>, cause: Cause, what: String) -> Stop {
    Stop::Died(Box::new(Death { cause, what, state: ArchState::load(&vcpu.virt) }))
}
