//! A VCPU's timers: those of its local APIC and, of the first one, the chipset's; and the host's timer, armed for the next of them.
//!
//! Called by the run loop when [`work::TIMERS`] is set.

use crate::device::Tsc;
use crate::device::message::Messages;
use crate::vcpu::host::Host;
use crate::vcpu::run::FIRST;
use crate::vcpu::{Vcpu, console, overcommit, regions, sampling};
use crate::virt::Virt;
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// The host's timer is never armed for later than this while a guest runs: a bound for interrupts that an emulator loses, see
/// [`run`].
const LONGEST_MS: u64 = 250;

/// How often a console that takes no more output is asked again, and how long devices with work left wait at most.
const RETRY_MS: u64 = 1;

/// An interrupt of the host was taken, by the host's own state: the timer's, or another PCPU's kick. If no timer is due, nothing is looked at
/// but the clock; who has changed one has asked for [`work::TIMERS`].
pub(super) fn interrupted<V: Virt, H: Host>(vcpu: &mut Vcpu<V>, host: &mut H) {
    let tsc = host.tsc();
    if tsc >= vcpu.due || vcpu.due == u64::MAX {
        vcpu.request(work::TIMERS);
    } else if host.timer_fired() || tsc >= vcpu.armed {
        vcpu.mmu.agile.timer_was_early = true;
        vcpu.armed = host.arm_timer(vcpu.due);
    }
}

/// Runs the timers that are due and arms the host's for the next one, or for [`LONGEST_MS`] from now.
///
/// Interrupts of the host get lost: QEMU's emulation forgets to look at its local APIC if an interrupt is requested there
/// during a VMRUN with V_IRQ. What is due by the clock counts as interrupted, and arming the timer again makes the emulation
/// look. So no interrupt is late by more than [`LONGEST_MS`] while the guest runs; [`Host::idle`] looks itself.
pub(super) fn run<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    cpu: &mut V::Cpu,
    host: &mut H,
) {
    let tsc = host.tsc();
    let now = vm.ticks(tsc);
    vcpu.timers_ran = tsc;
    // For accesses of which nothing else has noted that they brought pages in.
    overcommit::note(vcpu, vm);
    let mut is_due = vcpu.lapic.deadline().is_some_and(|at| at <= now);
    if is_due {
        vcpu.lapic.tick(now);
        vcpu.request(work::INTERRUPTS);
    }
    let (chipset_next, longest) = if vcpu.id == 0 {
        let (was_due, next, longest) = run_chipset(vcpu, vm, host, now);
        is_due |= was_due;
        (next, longest)
    } else {
        let chipset = vm.chipset.lock();
        let first_is_wanted = chipset.wants_service() || !chipset.console_is_ready();
        drop(chipset);
        if first_is_wanted {
            vcpu.notify(&vm.mailboxes, FIRST, |first| first.request(work::TIMERS | work::INTERRUPTS));
        }
        (None, LONGEST_MS)
    };
    let next = [vcpu.lapic.deadline(), chipset_next].into_iter().flatten().min();
    let next = next.map_or(u64::MAX, |at| at.0.saturating_add(vm.start.tsc()));
    let next = if vm.sampling.is_on() {
        if tsc >= vcpu.publish_at {
            is_due = true;
            vcpu.publish_at = sampling::publish(vcpu, vm, host, tsc);
        }
        next.min(vcpu.publish_at)
    } else {
        next
    };
    let next = if vm.regions.is_wanted() {
        let regions_next = regions::tick(vcpu, vm, host, tsc);
        is_due |= regions_next <= tsc;
        next.min(regions_next)
    } else {
        next
    };
    let longest = if vm.virtio.wants_service() { RETRY_MS } else { longest };
    let next = next.min(tsc.saturating_add(vm.clock.tsc_khz() * longest));
    let has_interrupted = host.timer_fired() || tsc >= vcpu.armed;
    if has_interrupted {
        vcpu.armed = u64::MAX;
    }
    vcpu.mmu.agile.timer_was_early = has_interrupted && !is_due;
    // An earlier interrupt than needed only leads back here.
    if next < vcpu.armed {
        vcpu.virt.load_host_state(cpu);
        vcpu.armed = host.arm_timer(next);
    }
    vcpu.due = next;
}

/// Runs the chipset's timers that are due. Whether some were, when it wants to be served next, and after how many milliseconds at
/// the latest.
fn run_chipset<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    now: Tsc,
) -> (bool, Option<Tsc>, u64) {
    let mut chipset = vm.chipset.lock();
    let nanos = vm.clock.nanos(now);
    let is_due = chipset.deadline().is_some_and(|at| at <= nanos);
    if is_due {
        let mut messages = Messages::new();
        chipset.tick(nanos, &mut messages);
        vcpu.receive(&vm.mailboxes, &mut messages);
        vcpu.request(work::INTERRUPTS);
    }
    if !chipset.console_is_ready() {
        console::resume_output(vcpu, vm, &mut chipset, nanos, host);
        if chipset.console_is_ready() {
            vm.virtio.resume_output();
        }
    }
    let next = chipset.deadline().map(|at| vm.clock.tsc_at(at));
    (is_due, next, if chipset.console_is_ready() { LONGEST_MS } else { RETRY_MS })
}
