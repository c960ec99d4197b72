//! The run loop of a VCPU: enter, dispatch, perform, serve.
//!
//! The only place that reads the clock, performs outcomes, and lets the host take interrupts. A hot exit goes through
//! [`run`] alone; [`serve`] is entered only when the pending-work word is not zero.

mod rare;

use self::rare::{interrupt_entry, kick, serve_rare, wakes};
use abi::telemetry::ExitKind;
use records::trace::What;

use crate::arch::state::rflags;
use crate::arch::{Exception, RegMove, vector};
use crate::trace::exits::kind;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::outcome::{Cause, Outcome, Return, Stop};
use crate::vcpu::{
    Vcpu, console, control, devices, dispatch, io, micro, mmu, quick_control, startup, timers,
};
use crate::virt::{Ended, Event, Virt, exit};
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// The VCPU that serves the chipset: its timers, the PICs' interrupts, the console.
pub(super) const FIRST: u64 = 1;

/// DR6.BS: the exception is a single-step trap.
const DR6_BS: u64 = 1 << 14;

/// Runs the VCPU until it waits, its VM stops, or the PCPU is wanted for something else; the processor is the host's again on
/// return.
#[inline(never)]
pub fn run<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    cpu: &mut V::Cpu,
    host: &mut H,
) -> Return {
    vcpu.virt.set_ple(host.others_wait());
    if vm.regions.is_divided() && micro::begin(vcpu, vm, host) {
        micro::arrive(vcpu, vm, host);
    } else {
        startup::begin(vcpu, vm);
    }
    // Two loops: one that does not trace does not look whether it should.
    if host.is_traced() {
        turn::<_, _, _, true>(vcpu, vm, cpu, host)
    } else {
        turn::<_, _, _, false>(vcpu, vm, cpu, host)
    }
}

#[inline(always)]
fn turn<V: Virt, M: HostMemory, H: Host, const TRACED: bool>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    cpu: &mut V::Cpu,
    host: &mut H,
) -> Return {
    loop {
        // The one test before each entry. Whatever must happen there has a bit in this word.
        if vcpu.work != 0
            && let Some(end) = serve(vcpu, vm, cpu, host)
        {
            vcpu.virt.load_host_state(cpu);
            return end;
        }
        let (begin, rip, (kind, outcome)) = match vcpu.virt.enter(cpu) {
            Ended::Cpuid => {
                let begin = host.tsc_low();
                let rip = if TRACED { vcpu.virt.rip() } else { 0 };
                if dispatch::quick_cpuid(vcpu) {
                    count_short::<_, _, TRACED>(vcpu, host, ExitKind::Cpuid, begin, rip);
                    continue;
                }
                let begin = begin_exit(vcpu, vm, host);
                (begin, rip, other(ExitContext { vcpu, vm, host, tsc: begin }))
            }
            Ended::PageFault(gva, error) => {
                let begin = begin_exit(vcpu, vm, host);
                let rip = if TRACED { vcpu.virt.rip() } else { 0 };
                match mmu::page_fault(vcpu, vm, host, gva, error, true, begin) {
                    Outcome::Resume => {
                        count_short::<_, _, TRACED>(vcpu, host, ExitKind::PageFault, begin as u32, rip);
                        continue;
                    }
                    outcome => (begin, rip, (ExitKind::PageFault, outcome)),
                }
            }
            Ended::ControlReg { access, gpr } => {
                let begin = host.tsc_low();
                let rip = if TRACED { vcpu.virt.rip() } else { 0 };
                if let Some(next) = quick_control::execute(vcpu, vm, access, gpr) {
                    complete(vcpu, next);
                    count_short::<_, _, TRACED>(vcpu, host, ExitKind::ControlReg, begin, rip);
                    continue;
                }
                let begin = begin_exit(vcpu, vm, host);
                let access = exit::control::access(access, gpr);
                (begin, rip, control_register(ExitContext { vcpu, vm, host, tsc: begin }, access))
            }
            Ended::Io(access) => {
                let begin = begin_exit(vcpu, vm, host);
                let rip = if TRACED { vcpu.virt.rip() } else { 0 };
                match io::io(vcpu, vm, host, access, begin) {
                    None => {
                        count_short::<_, _, TRACED>(vcpu, host, ExitKind::Io, begin as u32, rip);
                        continue;
                    }
                    Some(outcome) => (begin, rip, (ExitKind::Io, outcome)),
                }
            }
            Ended::Other => {
                let begin = begin_exit(vcpu, vm, host);
                let rip = if TRACED { vcpu.virt.rip() } else { 0 };
                (begin, rip, other(ExitContext { vcpu, vm, host, tsc: begin }))
            }
        };
        let end = perform(vcpu, outcome);
        if TRACED {
            trace_exit(vcpu, host, kind, begin as u32, rip);
        }
        let now = host.tsc();
        vcpu.exits.add(kind, now.wrapping_sub(begin));
        if let Some(end) = end {
            vcpu.last_exit_ended = now;
            vcpu.virt.load_host_state(cpu);
            return end;
        }
    }
}

/// The time at which an exit begins.
#[inline(always)]
fn begin_exit<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) -> u64 {
    if H::TELLS_EXITS && vm.regions.is_divided() {
        host.exited();
    }
    let begin = host.tsc();
    // The timer's interrupt has come or is about to, or it was lost: see `timers::run`. (It is never lost at an entry that ends
    // as CPUID or an access to a control register on the fast path: then no interrupt was offered to the guest.)
    if begin >= vcpu.armed {
        vcpu.request(work::TIMERS);
    }
    begin
}

/// Counts an exit that a fast path has completed, and that began when the low half of the TSC was `begin`.
#[inline(always)]
fn count_short<V: Virt, H: Host, const TRACED: bool>(
    vcpu: &mut Vcpu<V>,
    host: &mut H,
    kind: ExitKind,
    begin: u32,
    rip: u64,
) {
    if TRACED {
        trace_exit(vcpu, host, kind, begin, rip);
    }
    vcpu.exits.add_short(kind, begin, host.tsc_low());
}

/// Notes an exit that began when the low half of the TSC was `begin`, less than 2^32 ticks ago.
#[cold]
#[inline(never)]
fn trace_exit<V: Virt, H: Host>(vcpu: &Vcpu<V>, host: &mut H, kind: ExitKind, begin: u32, rip: u64) {
    let now = host.tsc();
    let ticks = u64::from((now as u32).wrapping_sub(begin));
    host.trace(What::Exit(kind as u8), vcpu.id, now.wrapping_sub(ticks), ticks, rip);
}

/// Any exit that has no fast path. Apart, so that [`run`] keeps its registers.
#[inline(never)]
fn other<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>) -> (ExitKind, Outcome) {
    cx.vcpu.note_taken();
    let exit = cx.vcpu.virt.exit();
    (kind(&exit), dispatch::dispatch(cx, &exit))
}

/// An access to a control register that the fast path leaves to the common one.
#[inline(never)]
fn control_register<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    access: RegMove,
) -> (ExitKind, Outcome) {
    cx.vcpu.note_taken();
    (ExitKind::ControlReg, control::control(cx, access))
}

/// Carries out what dispatch decided.
#[inline(always)]
fn perform<V: Virt>(vcpu: &mut Vcpu<V>, outcome: Outcome) -> Option<Return> {
    match outcome {
        Outcome::Resume => {}
        Outcome::Next(rip) => complete(vcpu, rip),
        Outcome::Inject(exception) => return inject(vcpu, exception).map(Return::Stop),
        Outcome::Halt(rip) => {
            complete(vcpu, rip);
            vcpu.request(work::HALTED | work::INTERRUPTS);
        }
        Outcome::HostInterrupt => vcpu.request(work::HOST),
        Outcome::Move(pcpu) => return Some(Return::Move(pcpu)),
        Outcome::Stop(stop) => return Some(Return::Stop(stop)),
    }
    None
}

/// Ends an instruction that was executed in software: RIP moves on, the interrupt shadow and RF end, and a
/// single-step trap follows if the guest asked for one.
#[inline(always)]
pub(super) fn complete<V: Virt>(vcpu: &mut Vcpu<V>, rip: u64) {
    if vcpu.virt.end_instruction(rip) {
        single_step(vcpu);
    }
}

/// Delivers the trap after an instruction that began with TF set.
#[cold]
pub fn single_step<V: Virt>(vcpu: &mut Vcpu<V>) {
    let dr6 = vcpu.virt.dr6();
    vcpu.virt.set_dr6(dr6 | DR6_BS);
    queue(vcpu, Exception { vector: vector::DB, error: None, cr2: None });
}

/// Queues an exception, merged with the event whose delivery it interrupts (AMD APM 2, 8.2.9: double faults). The end
/// if that was a double fault.
#[cold]
pub fn inject<V: Virt>(vcpu: &mut Vcpu<V>, exception: Exception) -> Option<Stop> {
    let merged = match vcpu.virt.take_interrupted_event() {
        Some(Event::Exception(first)) => match merge(first, exception) {
            Some(merged) => merged,
            None => {
                let what = alloc::format!("{exception:x?} during the delivery of a double fault");
                return Some(dispatch::died(vcpu, Cause::TripleFault, what));
            }
        },
        // An NMI is not lost by a fault in its delivery: it stays pending behind the exception.
        Some(Event::Nmi) => {
            vcpu.request(work::NMI);
            exception
        }
        None => exception,
    };
    queue(vcpu, merged);
    None
}

/// Queues an exception.
fn queue<V: Virt>(vcpu: &mut Vcpu<V>, merged: Exception) {
    // RF is set in the image that a fault pushes, so that its handler's IRET gets over an instruction breakpoint.
    if merged.vector != vector::DB {
        let flags = vcpu.virt.rflags();
        vcpu.virt.set_rflags(flags | rflags::RF);
    }
    vcpu.interrupts.counts.exceptions += 1;
    vcpu.virt.inject(Event::Exception(merged));
}

/// The exception that two in a row make; `None` is a triple fault.
fn merge(first: Exception, second: Exception) -> Option<Exception> {
    // AMD APM 2, table 8-4. After a page fault both classes make a double fault; after a contributory one a page fault does not.
    let contributory = |v: u8| matches!(v, vector::DE | vector::TS | vector::NP | vector::SS | vector::GP);
    let fault = contributory(second.vector) || second.vector == vector::PF;
    match first.vector {
        vector::DF if fault => return None,
        vector::PF if fault => {}
        first if contributory(first) && contributory(second.vector) => {}
        _ => return Some(second),
    }
    Some(Exception { vector: vector::DF, error: Some(0), cr2: None })
}

/// Serves pending work until the guest can be entered.
#[cold]
#[inline(never)]
fn serve<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    cpu: &mut V::Cpu,
    host: &mut H,
) -> Option<Return> {
    loop {
        if let Some(end) = serve_pending(vcpu, vm, cpu, host) {
            return Some(end);
        }
        // Last, because it counts entries.
        if vcpu.work & (work::MAIL | work::MMU) == work::MMU {
            let (engine, begin) = (vcpu.mmu.engine(), host.tsc());
            if let Err(stop) = mmu::serve(vcpu, vm, || host.tsc()) {
                return Some(Return::Stop(stop));
            }
            if host.is_traced() {
                if vcpu.mmu.engine() != engine {
                    let ticks = host.tsc().wrapping_sub(begin);
                    host.trace(What::Switch(vcpu.mmu.engine() as u8), vcpu.id, begin, ticks, 0);
                }
                mmu::decisions::trace(vcpu, host);
            }
        }
        // A VCPU that waited for a lock has answered shootdowns meanwhile: their flushes are in its mailbox, and come first.
        if vcpu.work & work::MAIL == 0 {
            host.entering();
            return None;
        }
    }
}

/// Serves what can be served before it is known that the guest will be entered.
#[inline(always)]
fn serve_pending<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    cpu: &mut V::Cpu,
    host: &mut H,
) -> Option<Return> {
    if vcpu.work & work::HOST != 0 {
        vcpu.work &= !work::HOST;
        // Interrupts are taken with the host's own GS, TR and descriptor tables.
        vcpu.virt.load_host_state(cpu);
        host.serve_interrupts();
        // It may have been another PCPU's kick.
        vcpu.request(work::MAIL);
        timers::interrupted(vcpu, host);
    }
    if vcpu.work & work::MAIL != 0 {
        vcpu.work &= !work::MAIL;
        vcpu.collect(&vm.mailboxes[vcpu.id as usize]);
    }
    // After the mail, which may ask for it; before anything below reads guest memory through a root that is going.
    if vcpu.work & (work::FLUSH | work::RELOAD) != 0 {
        mmu::forget(vcpu);
    }
    if vcpu.work & startup::WORK != 0
        && let Some(stop) = startup::serve(vcpu, vm, cpu, host)
    {
        return Some(Return::Stop(stop));
    }
    if host.console_ready() || vcpu.work & work::CONSOLE != 0 {
        vcpu.work &= !work::CONSOLE;
        if vcpu.id != 0 {
            vcpu.notify(&vm.mailboxes, FIRST, |first| first.request(work::CONSOLE));
        } else {
            console::feed(vcpu, vm, host);
        }
    }
    if vm.virtio.wants_service() {
        devices::serve(vcpu, vm, host);
    }
    if vcpu.work & work::TIMERS != 0 {
        vcpu.work &= !work::TIMERS;
        timers::run(vcpu, vm, cpu, host);
    }
    // After devices and timers, which raise them.
    if vcpu.work & work::INTERRUPTS != 0 {
        vcpu.work &= !work::INTERRUPTS;
        // The PICs' output leads to the first VCPU alone, as on a PC.
        if vcpu.id == 0 {
            let mut chipset = vm.chipset.lock();
            vcpu.update_offer(chipset.intr_output(), || chipset.pic_acknowledge());
        } else {
            vcpu.update_offer(false, || 0);
        }
    }
    if vcpu.work & work::NMI != 0 && !vcpu.deliver_nmi() {
        interrupt_entry(vcpu, cpu, host);
    }
    if vcpu.work & work::KICK != 0 {
        kick(vcpu, vm, cpu, host);
    }
    if host.is_wanted() {
        return Some(Return::Yield);
    }
    if vcpu.work & (work::SPIN | work::TREE | work::PHASE | work::PAGER) != 0
        && let Some(end) = serve_rare(vcpu, vm, host)
    {
        return Some(end);
    }
    if vcpu.work & work::HALTED != 0 && wakes(vcpu) {
        vcpu.work &= !work::HALTED;
    }
    if vcpu.work & (work::HALTED | work::WAITS) != 0 {
        // Its balloon's pages are gone, and the device may have an interrupt for it; or another VCPU keeps it from taking them.
        if vcpu.work & work::MAIL != 0 {
            return None;
        }
        if vm.virtio.has_named() {
            return Some(Return::Yield);
        }
        mmu::spaces::halt(vcpu, vm);
        return Some(startup::sleeps_forever(vcpu, vm).map_or(Return::Idle, Return::Stop));
    }
    None
}
