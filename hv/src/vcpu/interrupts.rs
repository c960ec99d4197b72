//! From interrupt controllers to the guest: which interrupt is offered, and what happens once it is taken.
//!
//! An offer is not an acknowledgement: the guest takes a local APIC's interrupt some time during an entry, and only
//! then does the vector move from IRR to ISR. A PIC's vector is known only by acknowledging it, so such an offer is
//! never withdrawn.

use crate::device::message::{DeliveryMode, InterruptMessage, Messages};
use crate::vcpu::{Vcpu, work};
use crate::virt::{Event, Virt};

/// Counters of what went into the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectionCounts {
    /// External interrupts taken.
    pub interrupts: u64,
    /// Exceptions delivered by the hypervisor.
    pub exceptions: u64,
    /// NMIs delivered.
    pub nmis: u64,
}

/// Where an offered vector came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Lapic,
    Pic,
}

/// The offer that stands, and counters.
#[derive(Debug, Default)]
pub struct Interrupts {
    offered: Option<(u8, Source)>,
    /// What has been delivered.
    pub counts: InjectionCounts,
}

impl<V: Virt> Vcpu<V> {
    /// Notes that the guest has taken an offered interrupt; to be called after every exit, before anything looks at
    /// the local APIC.
    #[inline(always)]
    pub fn note_taken(&mut self) {
        if let Some(vector) = self.virt.interrupt_taken() {
            self.interrupts.counts.interrupts += 1;
            if let Some((_, Source::Lapic)) = self.interrupts.offered.take() {
                self.lapic.take(vector);
            }
            self.request(work::INTERRUPTS);
        }
    }

    /// Offers the best interrupt that the controllers have. `pic` acknowledges the PIC's if it has one.
    pub fn update_offer(&mut self, pic: impl FnOnce() -> Option<u8>) {
        if let Some((_, Source::Pic)) = self.interrupts.offered {
            return;
        }
        self.sync_task_priority();
        let best = match self.lapic.pending() {
            Some(vector) => Some((vector, Source::Lapic)),
            None if self.lapic.accepts_extint() => pic().map(|vector| (vector, Source::Pic)),
            None => None,
        };
        self.interrupts.offered = best;
        self.virt.offer_interrupt(best.map(|(vector, _)| vector));
    }

    /// Whether an interrupt stands ready that wakes a halted VCPU.
    pub fn has_offer(&self) -> bool {
        self.interrupts.offered.is_some()
    }

    /// Makes the local APIC's TPR follow CR8, which the guest changes without an exit. Bits 3:0 of the TPR exist
    /// in the APIC only and survive while CR8 stays.
    pub fn sync_task_priority(&mut self) {
        let cr8 = self.virt.task_priority();
        if self.lapic.tpr() >> 4 != cr8 {
            self.lapic.set_tpr(cr8 << 4);
        }
    }

    /// Makes CR8 follow the local APIC's TPR, after the guest wrote that.
    pub fn sync_cr8(&mut self) {
        let cr8 = self.lapic.tpr() >> 4;
        if self.virt.task_priority() != cr8 {
            self.virt.set_task_priority(cr8);
        }
    }

    /// Delivers the messages of devices and of this VCPU's own local APIC.
    pub fn receive(&mut self, messages: &mut Messages) {
        for message in messages.drain() {
            self.receive_one(&message);
        }
    }

    /// Delivers one message if it addresses this VCPU.
    pub fn receive_one(&mut self, message: &InterruptMessage) {
        if !self.lapic.address().matches(message, true) {
            return;
        }
        match message.mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => {
                self.lapic.accept(message.vector, message.level);
                self.request(work::INTERRUPTS);
            }
            DeliveryMode::Nmi => self.request(work::NMI),
            DeliveryMode::ExtInt => self.request(work::INTERRUPTS),
            // No system management mode in this machine; INIT and start-up find no other VCPU to address.
            _ => {}
        }
    }

    /// Puts a waiting NMI into the guest if it can take one.
    pub fn deliver_nmi(&mut self) {
        if self.work & work::NMI != 0 && !self.virt.nmi_blocked() && !self.virt.event_pending() {
            self.work &= !work::NMI;
            self.virt.inject(Event::Nmi);
            self.interrupts.counts.nmis += 1;
        }
    }
}
