//! Delivery of events by VM entries (Intel SDM 3, 26.6 and 26.7).
//!
//! Exceptions and NMIs are delivered by the next entry. An interrupt that was offered is delivered by the first entry at
//! which the guest can take it; until then the guest exits when its interrupts open (interrupt window) or its task priority
//! falls (TPR threshold), and is entered again at once.

use super::Vmx;
use super::cache::Field;
use super::controls::processor;
use super::decode::{event, reason};
use super::entry::{NMI_BLOCKING, SHADOW, work};
use super::field::{control, exit};
use super::instr;
use crate::arch::Exception;
use crate::arch::addr::Gva;
use crate::arch::state::{cr0, rflags};
use crate::virt::{Event, Finished, PendingIrq, Virt};

/// What waits for the guest.
#[derive(Debug, Default)]
pub(super) struct Injection {
    pub(super) event: Option<Event>,
    pub(super) interrupted: Option<Event>,
    offered: PendingIrq,
    /// The offered vector that this entry delivers.
    delivering: Option<u8>,
    pub(super) taken: Option<u8>,
    /// An NMI waits until the guest can take it.
    nmi_window: bool,
    /// The last exit was an IRET's fault, and NMIs are blocked again in case that it is executed again.
    pub(super) iret_faulted: bool,
    /// Processor-based controls: interrupt and NMI window.
    pub(super) windows: u32,
}

impl Vmx {
    pub(super) fn queue(&mut self, event: Event) {
        self.injection.event = Some(event);
        self.request(work::EVENT);
    }

    /// The short way of an exception that is alone.
    #[inline]
    pub(super) fn deliver_page_fault(&mut self, gva: Gva, error: u32) {
        // In the image that a fault pushes, so that its handler's IRET gets over an instruction breakpoint.
        self.set(Field::Rflags, self.cache.get(Field::Rflags) | rflags::RF);
        self.queue(Event::Exception(Exception::page_fault(gva, error)));
    }

    pub(super) fn offer(&mut self, offer: PendingIrq) {
        if offer != self.injection.offered {
            self.injection.offered = offer;
            self.request(work::OFFER);
        }
    }

    /// Whether an NMI can be delivered by the next entry.
    pub(super) fn accepts_nmi(&self) -> bool {
        let state = self.cache.get(Field::Interruptibility);
        let in_shadow = state & SHADOW != 0 && !self.ended.get();
        let blocked = self.work.get() & work::NMI_BLOCKED != 0 || state & NMI_BLOCKING != 0;
        !blocked && !in_shadow && !self.event_pending()
    }

    /// Has the guest exit as soon as it can take an NMI, also right after the delivery of another event.
    pub(super) fn watch_for_nmi(&mut self) {
        self.injection.nmi_window = true;
        self.request(work::EVENT);
    }

    /// Prepares the delivery of what waits for the guest, as far as it can take it.
    pub(super) fn prepare_injection(&mut self) {
        self.done(work::EVENT | work::OFFER | work::WINDOW);
        self.injection.windows = 0;
        if let Some(event) = self.injection.event.take().or_else(|| self.injection.interrupted.take()) {
            self.deliver(event);
            if event == Event::Nmi {
                self.injection.nmi_window = false;
                self.request(work::NMI_BLOCKED);
            }
        }
        // The end of the handler is of interest even if nothing waits for it yet.
        if self.injection.nmi_window || self.work.get() & work::NMI_BLOCKED != 0 {
            self.injection.windows |= processor::NMI_WINDOW;
            self.request(work::WINDOW);
        }
        self.prepare_offer();
    }

    fn prepare_offer(&mut self) {
        let mut threshold = 0;
        match self.injection.offered {
            PendingIrq::None => {}
            // The guest lowers CR8 without an exit (TPR shadow); the threshold makes it exit when the vector's class gets
            // free.
            PendingIrq::Vector(vector) if vector >> 4 <= self.task_priority() => {
                threshold = u64::from(vector >> 4);
                self.request(work::WINDOW);
            }
            PendingIrq::Vector(vector) | PendingIrq::ExtInt(vector)
                if self.work.get() & work::INJECTING == 0 && self.can_take_interrupt() =>
            {
                self.injection.delivering = Some(vector);
                self.inject_word(event::VALID | event::EXTERNAL | u32::from(vector));
            }
            _ => {
                // An entry that injects an interrupt while IF is 0 or in a shadow fails (SDM 3, 26.3.1.4 and 26.3.1.5);
                // and one entry delivers one event.
                self.injection.windows |= processor::INTERRUPT_WINDOW;
                self.request(work::WINDOW);
            }
        }
        self.set(Field::TprThreshold, threshold);
    }

    fn deliver(&mut self, what: Event) {
        if let Event::Exception(Exception { cr2, .. }) = what {
            cr2.into_iter().for_each(instr::set_cr2);
            self.end_shadow();
            if core::mem::take(&mut self.injection.iret_faulted) {
                // An IRET unblocks NMIs even if it faults (SDM 3, 26.3).
                self.set(Field::Interruptibility, self.cache.get(Field::Interruptibility) & !NMI_BLOCKING);
            }
        }
        let (mut word, error) = event::encode(what);
        // Real mode knows no error codes.
        if self.cache.get(Field::Cr0) & cr0::PE == 0 {
            word &= !event::ERROR_VALID;
        } else if let Some(error) = error {
            // SAFETY: this VCPU's VMCS is current while an entry is prepared.
            unsafe { self.cache.write(control::ENTRY_ERROR_CODE, error.into()) };
        }
        self.inject_word(word);
    }

    fn inject_word(&mut self, word: u32) {
        // SAFETY: as above. An exit makes the field invalid again.
        unsafe { self.cache.write(control::ENTRY_INTERRUPTION, word.into()) };
        self.request(work::INJECTING);
    }

    /// What an exit was that is of interest only because of what the guest has taken.
    fn delivered_or_nothing(&self) -> Finished {
        if self.injection.taken.is_some() { Finished::Other } else { Finished::Nothing }
    }

    /// Notes what became of the events of the last entry.
    pub(super) fn finish_injection(&mut self, reason: u32) -> Finished {
        self.done(work::INJECTING);
        let delivering = self.injection.delivering.take();
        if self.vectoring & event::VALID != 0 {
            self.note_interrupted();
            if self.vectoring & event::TYPE == event::EXTERNAL {
                // It stays offered.
                self.request(work::OFFER);
            } else {
                self.note_delivered(delivering);
            }
        } else {
            self.note_delivered(delivering);
        }
        match reason {
            reason::TPR_BELOW_THRESHOLD => {
                self.request(work::OFFER);
                self.delivered_or_nothing()
            }
            reason::INTERRUPT_WINDOW => {
                self.request(work::OFFER);
                if self.injection.offered == PendingIrq::Window {
                    // The next offer follows.
                    self.injection.offered = PendingIrq::None;
                    return Finished::Other;
                }
                self.delivered_or_nothing()
            }
            reason::NMI_WINDOW => {
                self.done(work::NMI_BLOCKED);
                // For the controls to follow.
                self.request(work::EVENT);
                // STI need not keep the processor from this exit, nor an NMI from coming (SDM 3, 26.2).
                let shadow = self.cache.get(Field::Interruptibility);
                if core::mem::take(&mut self.injection.nmi_window) && shadow & SHADOW != 0 {
                    self.set(Field::Interruptibility, shadow & !SHADOW);
                }
                Finished::Other
            }
            _ => Finished::Other,
        }
    }

    /// The event whose delivery was interrupted has been delivered in software.
    pub(super) fn end_delivery(&mut self) {
        if self.vectoring & event::VALID == 0 {
            return;
        }
        if self.injection.interrupted.take() == Some(Event::Nmi) {
            self.request(work::NMI_BLOCKED);
            self.set(Field::Interruptibility, self.cache.get(Field::Interruptibility) | NMI_BLOCKING);
        } else if self.vectoring & event::TYPE == event::EXTERNAL {
            self.note_delivered(Some((self.vectoring & event::VECTOR) as u8));
        }
    }

    /// NMIs are no longer blocked.
    pub(super) fn end_nmi_handler(&mut self) {
        self.done(work::NMI_BLOCKED);
        self.request(work::EVENT);
        self.set(Field::Interruptibility, self.cache.get(Field::Interruptibility) & !NMI_BLOCKING);
    }

    fn note_delivered(&mut self, delivering: Option<u8>) {
        if delivering.is_some() {
            self.injection.taken = delivering;
            self.injection.offered = PendingIrq::None;
        }
    }

    /// The event whose delivery the exit interrupted is delivered again.
    fn note_interrupted(&mut self) {
        // SAFETY: after an exit of this VCPU.
        let error = || unsafe { self.cache.read(exit::VECTORING_ERROR) } as u32;
        self.injection.interrupted = event::decode(self.vectoring, error, instr::cr2());
        if self.injection.interrupted.is_some() {
            self.request(work::EVENT);
        }
        if self.injection.interrupted == Some(Event::Nmi) {
            // The delivery was interrupted: the NMI has not been taken, and the entry that repeats it must find NMIs
            // unblocked.
            self.done(work::NMI_BLOCKED);
            self.set(Field::Interruptibility, self.cache.get(Field::Interruptibility) & !NMI_BLOCKING);
        }
    }
}
