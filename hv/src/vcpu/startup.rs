//! The life of a VCPU apart from running: INIT, start-up, and sleep from which nothing wakes.
//!
//! Intel SDM 3, 9.4 (multiple-processor initialization) and 10.1 (state after INIT); AMD APM 2, 14.1.3 and 16.5.

use crate::arch::state::{SegReg, Segment, rflags};
use crate::vcpu::Vcpu;
use crate::vcpu::dispatch::died;
use crate::vcpu::host::Host;
use crate::vcpu::outcome::{Cause, Stop};
use crate::virt::{PendingIrq, Virt};
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// What [`serve`] serves.
pub(super) const WORK: u32 = work::INIT | work::STARTUP;

/// Carries out INIT, then a start-up IPI if one has come.
#[cold]
pub(super) fn serve<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    cpu: &mut V::Cpu,
    host: &mut H,
) -> Option<Stop> {
    if vcpu.work & work::INIT != 0 {
        // The boot processor would go to the firmware, which this machine does not have. Which one that is says APIC_BASE
        // (SDM 3, 9.4.1), in which Intel's guests can change it.
        if vcpu.lapic.is_bsp() {
            return Some(Stop::Reset);
        }
        vcpu.virt.load_host_state(cpu);
        host.clear_breakpoints();
        init(vcpu, vm);
    }
    if vcpu.work & work::STARTUP != 0 {
        vcpu.work &= !work::STARTUP;
        if vcpu.work & work::WAITS != 0 {
            let page = vm.mailboxes[vcpu.id as usize].startup_page();
            let cs = Segment {
                selector: u16::from(page) << 8,
                base: u64::from(page) << 12,
                ..Segment::flat(0, 0x9b)
            };
            vcpu.virt.set_segment(SegReg::Cs, Segment { limit: 0xffff, ..cs });
            vcpu.virt.set_rip(0);
            vcpu.work &= !work::WAITS;
            log::debug!("{}: VCPU {} starts at {:#x}", vm.name, vcpu.id, u64::from(page) << 12);
        }
    }
    None
}

/// INIT: the registers as after RESET, but the FPU, XCR0, the TSC and model-specific registers (MTRRs and PAT among them; not EFER) stay
/// as they are, and so do CD and NW of CR0 and the local APIC's mode. The VCPU then waits for start-up.
fn init<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    vcpu.virt.init();
    vcpu.sign();
    // CR4.OSXSAVE is clear now.
    vcpu.cpuid.refresh(vcpu.virt.cr4(), vcpu.xcr0);
    vcpu.lapic.init();
    vm.mailboxes[vcpu.id as usize].readdress(&vcpu.lapic);
    vcpu.interrupts.withdraw();
    vcpu.virt.set_pending_irq(PendingIrq::None);
    vcpu.work &= !(work::INIT | work::HALTED | work::NMI);
    vcpu.request(work::WAITS);
    vcpu.request_root();
}

/// A turn begins, some time after the last one.
#[inline(always)]
pub(super) fn begin<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    vm.hlt.awake(vcpu.id);
    vcpu.moves.forget_arrival();
    // Another VCPU may have used this PCPU's timer meanwhile: `timers::run` arms it again.
    vcpu.armed = u64::MAX;
    // Only VCPU 0 polls the console; the others would merely kick it at every run.
    let console = if vcpu.id == 0 { work::CONSOLE } else { 0 };
    vcpu.request(work::TIMERS | work::INTERRUPTS | work::MAIL | console);
}

/// The end of a VM none of whose VCPUs will ever run again: each one waits for start-up, or has halted with its interrupts
/// closed. (`vcpu` is one that is about to sleep.)
pub(super) fn sleeps_forever<V: Virt, M: HostMemory>(
    vcpu: &Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> Option<Stop> {
    let takes_no_interrupt = vcpu.work & work::WAITS != 0 || vcpu.virt.rflags() & rflags::IF == 0;
    if !takes_no_interrupt {
        return None;
    }
    // A VCPU with mail has not read it yet; if the mail does not wake the VM, that VCPU makes this check again.
    let has_mail = || vm.mailboxes.iter().any(|mailbox| mailbox.has_mail());
    if !vm.hlt.falls_asleep(vcpu.id, vm.mailboxes.len(), has_mail) {
        return None;
    }
    let what = match vm.mailboxes.len() {
        1 => "HLT with interrupts disabled",
        _ => "the last processor executed HLT with interrupts disabled",
    };
    Some(died(vcpu, Cause::HaltedForever, what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::msr as index;
    use crate::arch::state::{ArchState, Gpr, VcpuState, cr0, cr4};
    use crate::guest::msr::{MsrContext, MsrRead, MsrWrite};
    use crate::vcpu::testing::Machine;

    /// CPUID 1 ECX.
    const OSXSAVE: u32 = 1 << 27;

    #[test]
    fn init_leaves_what_the_manuals_say() {
        let mut machine = Machine::new(&[]);
        let Machine { vm, vcpu, host } = &mut machine;
        let kept = [(index::PAT, 0x0101_0101_0101_0101), (index::MTRR_DEF_TYPE, 0x800), (index::TSC_AUX, 7)];
        let limits = *vcpu.cpuid.limits();
        let context = MsrContext { limits: &limits, cr0: 0, efer: 0, permissive: false, pv_clock: false };
        for (msr, value) in kept {
            assert_ne!(vcpu.msrs.write(msr, value, &context), MsrWrite::Fault);
        }
        vcpu.virt.msrs.insert(index::LSTAR, 0x1234);
        vcpu.virt.regs.cr0 |= cr0::CD | cr0::NW | cr0::TS;
        vcpu.virt.regs.cr4 |= cr4::OSXSAVE;
        vcpu.xcr0 = 7;
        vcpu.cpuid.refresh(vcpu.virt.regs.cr4, vcpu.xcr0);
        assert_ne!(vcpu.cpuid.get(1, 0)[2] & OSXSAVE, 0);
        vcpu.virt.set_tsc_offset(99);
        host.xcr0 = 7;
        init(vcpu, vm);
        let cr0 = cr0::CD | cr0::NW | cr0::ET;
        let mut after = ArchState { cr0, ..ArchState::reset() };
        after.set_gpr(Gpr::Rdx, vcpu.cpuid.get(1, 0)[0].into());
        assert_ne!(after.gpr(Gpr::Rdx), 0);
        assert_eq!(vcpu.virt.regs, after);
        for (msr, value) in kept {
            assert_eq!(vcpu.msrs.read(msr, &context), MsrRead::Value(value), "{msr:#x}");
        }
        assert_eq!((vcpu.virt.msrs[&index::LSTAR], vcpu.virt.tsc_offset()), (0x1234, 99));
        assert_eq!((vcpu.xcr0, host.xcr0), (7, 7));
        assert_eq!(vcpu.cpuid.get(1, 0)[2] & OSXSAVE, 0, "CR4.OSXSAVE is clear");
        assert_ne!(vcpu.work & work::WAITS, 0);
    }

    #[test]
    fn start_up_begins_at_its_page_and_init_of_the_boot_processor_resets() {
        let mut machine = Machine::new(&[]);
        let Machine { vm, vcpu, host } = &mut machine;
        init(vcpu, vm);
        vcpu.request(work::STARTUP);
        assert!(serve(vcpu, vm, &mut (), host).is_none());
        assert_eq!((vcpu.virt.rip(), vcpu.work & (work::WAITS | work::STARTUP)), (0, 0));
        assert_eq!(vcpu.virt.segment(SegReg::Cs).limit, 0xffff);
        // INIT of the boot processor resets the machine.
        vcpu.work |= work::INIT;
        assert!(matches!(serve(vcpu, vm, &mut (), host), Some(Stop::Reset)));
        assert_eq!(host.breakpoints_cleared, 0);
    }
}
