//! The life of a VCPU apart from running: INIT, start-up, and sleep from which nothing wakes.
//!
//! Intel SDM 3, 9.4 (multiple-processor initialization) and 10.1 (state after INIT); AMD APM 2, 14.1 and 16.5.

use core::sync::atomic::Ordering;

use crate::guest::vm::{HostMemory, Vm};
use crate::vcpu::dispatch::died;
use crate::vcpu::outcome::{Cause, Stop};
use crate::vcpu::{Vcpu, work};
use crate::virt::state::{Segment, rflags};
use crate::virt::{Offer, SegReg, Virt};

/// What [`serve`] serves.
pub(super) const WORK: u32 = work::INIT | work::STARTUP;

/// Carries out INIT, then a start-up IPI if one has come.
#[cold]
pub(super) fn serve<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> Option<Stop> {
    if vcpu.work & work::INIT != 0 {
        // The boot processor would go to the firmware, which this machine does not have.
        if vcpu.id == 0 {
            return Some(Stop::Reset);
        }
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

/// INIT: the registers as after RESET, but the FPU, XCR0, the TSC and model-specific registers stay as they are, and so does
/// the local APIC's mode. The VCPU then waits for start-up.
fn init<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    vcpu.virt.reset();
    vcpu.lapic.init();
    vm.mailboxes[vcpu.id as usize].readdress(&vcpu.lapic);
    vcpu.interrupts.withdraw();
    vcpu.virt.offer_interrupt(Offer::None);
    vcpu.work &= !(work::INIT | work::HALTED | work::NMI);
    vcpu.request(work::WAITS);
    vcpu.request_root();
}

/// A run begins: whatever the VCPU slept for.
pub(super) fn awake<V: Virt, M: HostMemory>(vcpu: &Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    vm.deaf.fetch_and(!(1 << vcpu.id), Ordering::SeqCst);
}

/// The end of a VM none of whose VCPUs will ever run again: each one waits for start-up, or has halted with its interrupts
/// closed. (`vcpu` is one that is about to sleep.)
pub(super) fn sleeps_forever<V: Virt, M: HostMemory>(
    vcpu: &Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> Option<Stop> {
    let own = 1 << vcpu.id;
    let deaf = vcpu.work & work::WAITS != 0 || vcpu.virt.rflags() & rflags::IF == 0;
    if !deaf {
        return None;
    }
    let all = u64::MAX >> (u64::BITS - vm.mailboxes.len() as u32);
    let deaf = vm.deaf.fetch_or(own, Ordering::SeqCst) | own;
    // Whoever has mail has not looked at it yet, and will come here again if it changes nothing.
    if deaf != all || vm.mailboxes.iter().any(|mailbox| mailbox.has_mail()) {
        return None;
    }
    let what = match vm.mailboxes.len() {
        1 => "HLT with interrupts disabled",
        _ => "the last processor executed HLT with interrupts disabled",
    };
    Some(died(vcpu, Cause::HaltedForever, what.into()))
}
