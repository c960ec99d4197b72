//! From interrupt controllers to the guest: which interrupt is offered, and what happens once it is taken.
//!
//! An offer is not an acknowledgement: the guest takes a local APIC's interrupt some time during an entry, and only
//! then does the vector move from IRR to ISR. A PIC's vector is known only by acknowledging it; that waits until
//! the guest can take it at once, and such an offer is never withdrawn.

use crate::device::lapic::Lapic;
use crate::device::message::{DeliveryMode, InterruptMessage, Messages};
use crate::vcpu::Vcpu;
use crate::virt::{Event, PendingIrq, Virt};
use crate::vm::mailbox::{self, Mailbox};
use crate::vm::work;

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

/// The offer that stands, and counters.
#[derive(Debug, Default)]
pub struct Interrupts {
    offered: PendingIrq,
    /// What has been delivered.
    pub counts: InjectionCounts,
}

impl Interrupts {
    /// Nothing is offered any more.
    pub fn withdraw(&mut self) {
        self.offered = PendingIrq::None;
    }
}

impl<V: Virt> Vcpu<V> {
    /// Notes that the guest has taken an offered interrupt; to be called after every exit, before anything looks at
    /// the local APIC.
    #[inline(always)]
    pub fn note_taken(&mut self) {
        if let Some(vector) = self.virt.interrupt_taken() {
            self.interrupts.counts.interrupts += 1;
            if let PendingIrq::Vector(_) = core::mem::take(&mut self.interrupts.offered) {
                self.lapic.take(vector);
            }
            self.request(work::INTERRUPTS);
        }
    }

    /// Offers the best interrupt that the controllers have: the local APIC's if the task priority lets it pass, then the
    /// PIC's, then the one that waits for a lower task priority (which the guest lowers without an exit).
    /// `pic_wants`: the PIC has an interrupt; `acknowledge` takes it.
    pub fn update_offer(&mut self, pic_wants: bool, acknowledge: impl FnOnce() -> u8) {
        if let PendingIrq::ExtInt(_) = self.interrupts.offered {
            return;
        }
        self.sync_task_priority();
        let best = match self.lapic.pending() {
            Some(vector) => PendingIrq::Vector(vector),
            None if pic_wants && self.lapic.accepts_extint() => {
                // Until the guest takes it, it may mask the line, or a better one may be raised.
                if self.virt.can_take_interrupt() {
                    PendingIrq::ExtInt(acknowledge())
                } else {
                    PendingIrq::Window
                }
            }
            None => self.lapic.requested().map_or(PendingIrq::None, PendingIrq::Vector),
        };
        self.interrupts.offered = best;
        self.virt.set_pending_irq(best);
    }

    /// Whether an interrupt stands ready that wakes a halted VCPU whose interrupt flag is set.
    pub fn has_offer(&self) -> bool {
        match self.interrupts.offered {
            PendingIrq::Vector(vector) => vector >> 4 > self.virt.task_priority(),
            PendingIrq::ExtInt(_) => true,
            PendingIrq::None | PendingIrq::Window => false,
        }
    }

    /// A read of the local APIC, which may find its timer expired a moment before the host's interrupts for it.
    pub fn read_lapic<R>(&mut self, read: impl FnOnce(&mut Lapic) -> R) -> R {
        let before = self.lapic.deadline();
        let value = read(&mut self.lapic);
        if self.lapic.deadline() != before {
            self.request(work::TIMERS | work::INTERRUPTS);
        }
        value
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

    /// Delivers the messages of devices and of this VCPU's own local APIC: to itself, or to the mailboxes of those that they
    /// address. `all`: the mailboxes of the VM.
    pub fn receive(&mut self, all: &[Mailbox], messages: &mut Messages) {
        for message in messages.drain() {
            match all {
                [] | [_] => self.receive_one(&message),
                _ => self.route(all, &message),
            }
        }
    }

    fn route(&mut self, all: &[Mailbox], message: &InterruptMessage) {
        let addressed = mailbox::addressed(all, message, Some(self.id));
        if addressed >> self.id & 1 != 0 {
            self.accept(message);
        }
        self.notify(all, addressed, |mailbox| mailbox.post(message));
    }

    /// Puts something into the mailboxes of `addressed` (but not this VCPU's own). They are kicked before the next entry.
    pub fn notify(&mut self, all: &[Mailbox], addressed: u64, put: impl Fn(&Mailbox)) {
        let others = addressed & !(1 << self.id);
        if others != 0 {
            all.iter().filter(|mailbox| others >> mailbox.id() & 1 != 0).for_each(put);
            self.kicks |= others;
            self.request(work::KICK);
        }
    }

    /// Takes out what the mailbox holds.
    pub fn collect(&mut self, mailbox: &Mailbox) {
        let lapic = &mut self.lapic;
        self.work |= mailbox.take(|vector, level| lapic.accept(vector, level));
    }

    /// Delivers one message if it addresses this VCPU.
    pub fn receive_one(&mut self, message: &InterruptMessage) {
        if self.lapic.address().matches(message, true) {
            self.accept(message);
        }
    }

    fn accept(&mut self, message: &InterruptMessage) {
        match message.mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => {
                self.lapic.accept(message.vector, message.level);
                self.request(work::INTERRUPTS);
            }
            DeliveryMode::Nmi => self.request(work::NMI),
            DeliveryMode::ExtInt => self.request(work::INTERRUPTS),
            DeliveryMode::Init => self.request(work::INIT),
            // A start-up IPI to itself has no effect, since the sender does not wait for start-up. This machine has no SMM.
            DeliveryMode::Startup | DeliveryMode::Smi => {}
        }
    }

    /// Puts a waiting NMI into the guest, or waits until it can take one. False: the host must interrupt the next entry, after
    /// which the guest can.
    #[must_use]
    pub fn deliver_nmi(&mut self) -> bool {
        if !self.virt.can_take_nmi() {
            return self.virt.open_nmi_window();
        }
        self.work &= !work::NMI;
        self.virt.inject(Event::Nmi);
        self.interrupts.counts.nmis += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::state::rflags;
    use crate::vcpu::testing::Scene;
    use crate::virt::Exit;

    /// A VCPU whose local APIC is on, with interrupts enabled; each entry ends with an exit of no consequence.
    fn scene() -> Scene {
        let mut scene = Scene::new();
        let vcpu = scene.vcpu();
        vcpu.lapic.set_virtual_wire();
        vcpu.virt.regs.rflags |= rflags::IF;
        vcpu.virt.script.extend([(|_| Exit::Pause) as fn(&mut crate::virt::fake::Fake) -> Exit; 8]);
        scene
    }

    fn enter(scene: &mut Scene) -> Exit {
        let vcpu = scene.vcpu();
        let _ended = vcpu.virt.enter(&mut ());
        vcpu.note_taken();
        vcpu.virt.exit()
    }

    #[test]
    fn a_vector_that_cr8_holds_back_stays_offered() {
        let mut scene = scene();
        let vcpu = scene.vcpu();
        vcpu.virt.set_task_priority(6);
        vcpu.lapic.accept(0x61, false);
        vcpu.update_offer(false, || panic!("no PIC"));
        assert!(!vcpu.has_offer(), "it does not wake the guest");
        enter(&mut scene);
        assert!(scene.vcpu().virt.interrupts.is_empty());
        // The guest lowers CR8 without an exit.
        scene.vcpu().virt.set_task_priority(5);
        assert!(scene.vcpu().has_offer());
        enter(&mut scene);
        assert_eq!(scene.vcpu().virt.interrupts, [0x61]);
        assert_eq!(scene.vcpu().lapic.requested(), None, "it is in service");
    }

    #[test]
    fn the_pic_is_acknowledged_only_when_the_guest_takes_its_interrupt() {
        let mut scene = scene();
        let vcpu = scene.vcpu();
        vcpu.virt.set_task_priority(15);
        vcpu.virt.regs.rflags &= !rflags::IF;
        vcpu.update_offer(true, || panic!("acknowledged too early"));
        assert!(!vcpu.has_offer());
        assert_eq!(enter(&mut scene), Exit::Pause);
        scene.vcpu().virt.regs.rflags |= rflags::IF;
        assert_eq!(enter(&mut scene), Exit::InterruptWindow);
        let vcpu = scene.vcpu();
        vcpu.update_offer(true, || 0x33);
        assert!(vcpu.has_offer());
        // It stands, and CR8 does not hold it back.
        vcpu.update_offer(false, || panic!("acknowledged twice"));
        enter(&mut scene);
        assert_eq!(scene.vcpu().virt.interrupts, [0x33]);
    }

    #[test]
    fn a_withdrawn_request_of_the_pic_closes_the_window() {
        let mut scene = scene();
        scene.vcpu().virt.regs.rflags &= !rflags::IF;
        scene.vcpu().update_offer(true, || panic!("acknowledged too early"));
        scene.vcpu().update_offer(false, || panic!("there is none"));
        scene.vcpu().virt.regs.rflags |= rflags::IF;
        assert_eq!(enter(&mut scene), Exit::Pause);
        assert!(scene.vcpu().virt.interrupts.is_empty());
    }
}
