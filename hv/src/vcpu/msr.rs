//! RDMSR and WRMSR: the hot ones first (x2APIC and TSC deadline), then the policy of `guest::msr`.

use crate::arch::Exception;
use crate::arch::addr::Gpa;
use crate::arch::msr as index;
use crate::arch::state::{Gpr, efer};
use crate::device::Tsc;
use crate::emulate::System;
use crate::guest::msr::{DeviceMsr, MsrContext, MsrEffect, MsrRead, MsrWrite};
use crate::vcpu::bus::Bus;
use crate::vcpu::devices::Dma;
use crate::vcpu::dispatch::next_rip;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::outcome::Outcome;
use crate::vcpu::{Vcpu, apic_base, mmu};
use crate::virt::{FlushScope, Virt};
use crate::vm::pvclock::{self, PvClock};
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// Handles WRMSR.
#[inline]
pub fn write<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let Some(next) = next_rip(vcpu, vm, System::Wrmsr) else { return Outcome::Resume };
    let low = |reg| vcpu.virt.gpr(reg) & 0xffff_ffff;
    let (msr, value) = (low(Gpr::Rcx) as u32, low(Gpr::Rdx) << 32 | low(Gpr::Rax));
    match msr {
        index::TSC_DEADLINE if vcpu.lapic.has_tsc_deadline() => write_deadline(vcpu, vm, value, tsc, next),
        index::X2APIC_FIRST..=index::X2APIC_LAST => {
            write_x2apic(ExitContext { vcpu, vm, host, tsc }, msr, value, next)
        }
        _ => write_rare(ExitContext { vcpu, vm, host, tsc }, msr, value, next),
    }
}

/// Guest TSC minus machine ticks, modulo 2^64: negative after a reset, which the machine's time does not notice, and
/// anything once the guest wrote its TSC.
fn adjustment<V: Virt, M: HostMemory>(vcpu: &Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> u64 {
    vcpu.virt.tsc_offset().wrapping_add(vm.start.tsc())
}

#[inline]
fn write_deadline<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    value: u64,
    tsc: u64,
    next: u64,
) -> Outcome {
    arm_deadline(vcpu, vm, value, tsc);
    Outcome::Next(next)
}

/// Sets the TSC deadline, in the guest's TSC.
#[inline]
fn arm_deadline<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    value: u64,
    tsc: u64,
) {
    // A deadline that has passed becomes now; 0 disarms.
    let left = value.saturating_sub(tsc.wrapping_add(vcpu.virt.tsc_offset()));
    let now = vm.ticks(tsc);
    let ticks = if value == 0 { 0 } else { now.0.saturating_add(left).max(1) };
    vcpu.lapic.set_tsc_deadline(ticks, now);
    vcpu.request(work::TIMERS | work::INTERRUPTS);
}

#[inline]
fn write_x2apic<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    msr: u32,
    value: u64,
    next: u64,
) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    vcpu.sync_task_priority();
    let Ok(effect) = vcpu.lapic.write_msr(msr, value, vm.ticks(tsc)) else {
        return Outcome::Inject(Exception::GP0);
    };
    vcpu.sync_cr8();
    let mut bus = Bus::new(vm, &mut vcpu.lapic, host, tsc);
    bus.lapic_effect(effect);
    let left = bus.finish();
    vcpu.after_access(&vm.mailboxes, left, Outcome::Next(next))
}

/// Handles RDMSR.
pub fn read<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, tsc: u64) -> Outcome {
    let Some(next) = next_rip(vcpu, vm, System::Rdmsr) else { return Outcome::Resume };
    let msr = vcpu.virt.gpr(Gpr::Rcx) as u32;
    let limits = *vcpu.cpuid.limits();
    let answer = match vcpu.msrs.read(msr, &context(&vcpu.virt, vm, &limits)) {
        MsrRead::Value(value) => Some(value),
        MsrRead::Name(part) => Some(vcpu.cpuid.brand(part)),
        MsrRead::Device(device) => read_device(vcpu, vm, device, msr, tsc),
        MsrRead::Fault => None,
    };
    let Some(value) = answer else { return Outcome::Inject(Exception::GP0) };
    vcpu.virt.set_gpr(Gpr::Rax, value & 0xffff_ffff);
    vcpu.virt.set_gpr(Gpr::Rdx, value >> 32);
    Outcome::Next(next)
}

fn read_device<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    device: DeviceMsr,
    msr: u32,
    tsc: u64,
) -> Option<u64> {
    Some(match device {
        DeviceMsr::ApicBase => vcpu.lapic.base(),
        DeviceMsr::X2apic(_) => {
            vcpu.sync_task_priority();
            vcpu.read_lapic(|lapic| lapic.read_msr(msr, vm.ticks(tsc))).ok()?
        }
        DeviceMsr::TscDeadline => deadline(vcpu, vm, tsc),
        DeviceMsr::Tsc => tsc.wrapping_add(vcpu.virt.tsc_offset()),
    })
}

/// The TSC deadline in the guest's TSC; 0 if it has passed or is disarmed.
fn deadline<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, tsc: u64) -> u64 {
    vcpu.read_lapic(|lapic| lapic.tick(vm.ticks(tsc)));
    match vcpu.lapic.tsc_deadline() {
        0 => 0,
        ticks => ticks.wrapping_add(adjustment(vcpu, vm)),
    }
}

fn context<'a, V: Virt, M: HostMemory>(
    virt: &V,
    vm: &Vm<V::NestedFormat, M>,
    limits: &'a crate::guest::cpuid::CpuLimits,
) -> MsrContext<'a> {
    MsrContext {
        limits,
        cr0: virt.cr0(),
        efer: virt.efer(),
        permissive: vm.permissive_msr,
        pv_clock: vm.pv_clock,
    }
}

#[cold]
fn write_rare<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    msr: u32,
    value: u64,
    next: u64,
) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let limits = *vcpu.cpuid.limits();
    let answer = vcpu.msrs.write(msr, value, &context(&vcpu.virt, vm, &limits));
    let accepted = match answer {
        MsrWrite::Done => true,
        MsrWrite::Fault => false,
        MsrWrite::Effect(effect) => {
            perform(ExitContext { vcpu, vm, host, tsc }, effect);
            true
        }
        MsrWrite::Device(DeviceMsr::Tsc) => {
            let deadline = deadline(vcpu, vm, tsc);
            vcpu.virt.set_tsc_offset(value.wrapping_sub(tsc));
            if deadline != 0 {
                arm_deadline(vcpu, vm, deadline, tsc);
            }
            update_clock(ExitContext { vcpu, vm, host, tsc });
            true
        }
        MsrWrite::Device(DeviceMsr::ApicBase) => apic_base::write(vcpu, vm, value),
        MsrWrite::Device(DeviceMsr::TscDeadline) => return write_deadline(vcpu, vm, value, tsc, next),
        MsrWrite::Device(DeviceMsr::X2apic(_)) => {
            return write_x2apic(ExitContext { vcpu, vm, host, tsc }, msr, value, next);
        }
    };
    if accepted { Outcome::Next(next) } else { Outcome::Inject(Exception::GP0) }
}

fn perform<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>, effect: MsrEffect) {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    match effect {
        MsrEffect::Efer(value) => {
            let old = vcpu.virt.efer();
            // LMA is the processor's; it is not written.
            vcpu.virt.set_efer(value & !efer::LMA | old & efer::LMA);
            if (old ^ value) & efer::NXE != 0 {
                vcpu.virt.flush(FlushScope::All);
                vcpu.request_root();
            }
        }
        MsrEffect::Pat(value) => {
            let _is_switched = vcpu.virt.set_switched_msr(index::PAT, value);
            mmu::follow_pat(vcpu, vm);
        }
        MsrEffect::TscAux(value) => host.set_tsc_aux(value),
        MsrEffect::SpecCtrl(wanted) => host.set_spec_ctrl(wanted),
        MsrEffect::Command(msr) => host.forget_speculation(msr),
        MsrEffect::KvmSystemTime(value) => {
            vcpu.pv_clock.set_address(value);
            update_clock(ExitContext { vcpu, vm, host, tsc });
        }
        MsrEffect::KvmWallClock(at) => {
            let (seconds, nanos) = vm.wall_at_zero;
            write_memory(ExitContext { vcpu, vm, host, tsc }, |_, memory| {
                pvclock::write_wall_clock(memory, Gpa(at), seconds, nanos);
            });
        }
    }
}

/// Tells the guest's paravirtual clock the time.
fn update_clock<V: Virt, M: HostMemory, H: Host>(cx: ExitContext<'_, V, M, H>) {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let guest_tsc = Tsc(tsc.wrapping_add(vcpu.virt.tsc_offset()));
    write_memory(ExitContext { vcpu, vm, host, tsc }, |clock, memory| {
        clock.update(memory, guest_tsc, vm.nanos(tsc))
    });
}

/// Has the clock's structures written, wherever the guest wants them: even to its page tables.
fn write_memory<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    write: impl FnOnce(&mut PvClock, &Dma<'_, V::NestedFormat, M>),
) {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let mut bus = Bus::new(vm, &mut vcpu.lapic, host, tsc);
    bus.with_memory(|memory, _| write(&mut vcpu.pv_clock, memory));
    let left = bus.finish();
    let _nothing_ends = vcpu.after_access(&vm.mailboxes, left, Outcome::Resume);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vcpu::testing::{START, Scene};

    /// x2APIC MSR of the LVT timer entry.
    const LVT_TIMER: u32 = 0x832;
    const TSC_DEADLINE_MODE: u64 = 2 << 17;

    #[test]
    fn deadlines_follow_the_guests_tsc_wherever_it_stands() {
        let mut scene = Scene::new();
        let Scene { vm, vcpus: [vcpu] } = &mut scene;
        let now = START + 10_000;
        let x2apic = vcpu.lapic.set_base(vcpu.lapic.base() | 3 << 10, 48);
        let on = vcpu.lapic.write_msr(0x80f, 0x1ff, vm.ticks(now));
        let mode = vcpu.lapic.write_msr(LVT_TIMER, TSC_DEADLINE_MODE | 0x30, vm.ticks(now));
        assert!(x2apic.is_ok() && on.is_ok() && mode.is_ok());
        // The guest's TSC at the machine's start, after a reset of the guest, and as the guest wrote it.
        for offset in [START.wrapping_neg(), (START + 9_000).wrapping_neg(), 0, 1 << 40, now.wrapping_neg()] {
            vcpu.virt.set_tsc_offset(offset);
            let guest_now = now.wrapping_add(offset);
            for left in [1, 500, u64::MAX / 2] {
                assert!(matches!(write_deadline(vcpu, vm, guest_now + left, now, 7), Outcome::Next(7)));
                assert_eq!(vcpu.lapic.deadline(), Some(Tsc(10_000 + left)), "{offset:#x}");
                let read = read_device(vcpu, vm, DeviceMsr::TscDeadline, index::TSC_DEADLINE, now);
                assert_eq!(read, Some(guest_now + left));
            }
            let _ = write_deadline(vcpu, vm, guest_now.max(2) - 1, now, 7);
            assert!(vcpu.lapic.deadline().is_some_and(|at| at <= Tsc(10_001)), "passed");
            let _ = write_deadline(vcpu, vm, 0, now, 7);
            assert_eq!(vcpu.lapic.deadline(), None);
        }
    }
}
