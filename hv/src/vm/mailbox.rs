//! What other processors leave for a VCPU while it may be running: interrupts, INIT and start-up, work.
//!
//! A VM has one mailbox for each VCPU. Anyone may put something in ([`Mailbox::post`], [`Mailbox::request`]) and must then
//! have the VCPU look, with `Host::kick` of `vcpu::host`. Only the PCPU that runs the VCPU takes things out, at the
//! start of a run and whenever a kick has come. No lock, and an entry to the guest costs nothing for it.
//!
//! What must hold: whatever is put in before a kick is seen by the look that follows it. The word of work is written last and
//! taken first, so that it never misses what came with it.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use spin::Mutex;

use super::work;
use crate::arch::counters::BothSides;
use crate::device::lapic::Lapic;
use crate::device::message::{ApicAddress, DeliveryMode, InterruptMessage};

/// What the scheduler calls no VCPU.
const NONE: u32 = u16::MAX as u32;

/// The mailbox of one VCPU.
#[derive(Debug)]
pub struct Mailbox {
    /// Which VCPU of its VM.
    id: u32,
    /// What the scheduler calls it.
    handle: AtomicU32,
    /// See [`ApicAddress::to_bits`].
    address: AtomicU64,
    /// Vectors requested, by 64.
    vectors: [AtomicU64; 4],
    /// Of these: level-triggered.
    level: [AtomicU64; 4],
    /// The page of the last start-up IPI.
    startup: AtomicU8,
    /// Bits of [`work`].
    work: AtomicU32,
    /// What PCPUs have counted of stays that they had handed on by then.
    late_counts: Mutex<Option<BothSides>>,
}

/// Work that a message brings, besides its vector.
fn work_of(mode: DeliveryMode) -> u32 {
    match mode {
        DeliveryMode::Fixed | DeliveryMode::LowestPriority | DeliveryMode::ExtInt => work::INTERRUPTS,
        DeliveryMode::Nmi => work::NMI,
        DeliveryMode::Init => work::INIT,
        DeliveryMode::Startup => work::STARTUP,
        // There is no system management mode in this machine.
        DeliveryMode::Smi => 0,
    }
}

impl Mailbox {
    /// The empty mailbox of VCPU `id` as it begins.
    pub fn new(id: u32) -> Mailbox {
        Mailbox {
            id,
            handle: AtomicU32::new(NONE),
            address: AtomicU64::new(Lapic::after_firmware(id).address().to_bits()),
            vectors: Default::default(),
            level: Default::default(),
            startup: AtomicU8::new(0),
            work: AtomicU32::new(0),
            late_counts: Mutex::new(None),
        }
    }

    /// Adds what a PCPU has counted of the VCPU's stay there, which has ended. It is no mail: the VCPU looks when it sums up.
    pub fn add_late_counts(&self, part: &BothSides) {
        let mut counts = self.late_counts.lock();
        *counts = Some(counts.map_or(*part, |counts| counts.plus(part)));
    }

    /// What was added since the last call.
    pub fn take_late_counts(&self) -> Option<BothSides> {
        self.late_counts.lock().take()
    }

    /// Which VCPU of its VM.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What the scheduler calls the VCPU.
    pub fn handle(&self) -> u32 {
        self.handle.load(Ordering::Relaxed)
    }

    /// Notes what the scheduler calls the VCPU.
    pub fn set_handle(&self, handle: u32) {
        self.handle.store(handle, Ordering::Relaxed);
    }

    /// How the VCPU's local APIC is addressed.
    pub fn address(&self) -> ApicAddress {
        ApicAddress::from_bits(self.address.load(Ordering::Acquire))
    }

    /// The VCPU's local APIC is addressed otherwise from now on.
    pub fn readdress(&self, lapic: &Lapic) {
        self.address.store(lapic.address().to_bits(), Ordering::Release);
    }

    /// Puts in a message that addresses the VCPU.
    pub fn post(&self, message: &InterruptMessage) {
        if message.mode.has_vector() {
            let (word, bit) = (usize::from(message.vector >> 6), 1 << (message.vector & 63));
            if message.level {
                self.level[word].fetch_or(bit, Ordering::Relaxed);
            } else {
                self.level[word].fetch_and(!bit, Ordering::Relaxed);
            }
            self.vectors[word].fetch_or(bit, Ordering::Relaxed);
        }
        match message.mode {
            DeliveryMode::Startup => self.startup.store(message.vector, Ordering::Relaxed),
            // A start-up IPI before INIT is ignored: no processor waits for start-up then (Intel SDM 3, 8.4.4).
            DeliveryMode::Init => {
                self.work.fetch_and(!work::STARTUP, Ordering::SeqCst);
            }
            _ => {}
        }
        self.request(work_of(message.mode));
    }

    /// Asks the VCPU to look at `bits` of [`work`] before its next entry.
    pub fn request(&self, bits: u32) {
        self.work.fetch_or(bits, Ordering::SeqCst);
    }

    /// Whether there is something inside.
    pub fn has_mail(&self) -> bool {
        self.work.load(Ordering::SeqCst) != 0
    }

    /// Takes everything out: vectors go to `accept` (with whether they are level-triggered), the rest is bits of [`work`].
    pub fn take(&self, mut accept: impl FnMut(u8, bool)) -> u32 {
        let work = self.work.swap(0, Ordering::SeqCst);
        if work & work::INTERRUPTS != 0 {
            for (word, vectors) in self.vectors.iter().enumerate() {
                let mut left = vectors.swap(0, Ordering::Relaxed);
                let level = self.level[word].load(Ordering::Relaxed);
                while left != 0 {
                    let bit = left.trailing_zeros();
                    left &= left - 1;
                    accept((word as u32 * 64 + bit) as u8, level >> bit & 1 != 0);
                }
            }
        }
        work
    }

    /// The page that the last start-up IPI named.
    pub fn startup_page(&self) -> u8 {
        self.startup.load(Ordering::Relaxed)
    }

    /// Forgets everything: a reset of the machine, while none of its VCPUs runs.
    pub fn reset(&self) {
        self.work.store(0, Ordering::SeqCst);
        self.vectors.iter().for_each(|vectors| vectors.store(0, Ordering::Relaxed));
        self.readdress(&Lapic::after_firmware(self.id));
    }
}

/// The VCPUs among `all` that a message addresses, as a mask; `sender` is the VCPU whose local APIC sent it. Of the candidates for
/// a lowest-priority message one takes it, which depends on the vector alone: the priorities of processors that run are not to be
/// had, and so each source keeps its processor.
pub fn addressed(all: &[Mailbox], message: &InterruptMessage, sender: Option<u32>) -> u64 {
    let matching =
        |id: u32| all.get(id as usize).is_some_and(|to| to.address().matches(message, sender == Some(id)));
    let count = (all.len() as u32).min(u64::BITS);
    if message.mode == DeliveryMode::LowestPriority {
        let start = u32::from(message.vector) % count.max(1);
        let first = (start..count).chain(0..start).find(|&id| matching(id));
        return first.map_or(0, |id| 1 << id);
    }
    (0..count).filter(|&id| matching(id)).fold(0, |mask, id| mask | 1 << id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::message::{BROADCAST, Shorthand};

    fn fixed(vector: u8, dest: u32) -> InterruptMessage {
        let (mode, shorthand) = (DeliveryMode::Fixed, Shorthand::None);
        InterruptMessage { vector, mode, dest, logical: false, level: false, shorthand }
    }

    fn mailboxes(count: u32) -> Vec<Mailbox> {
        let mailbox = |id| {
            let mailbox = Mailbox::new(id);
            mailbox.readdress(&lapic(id));
            mailbox
        };
        (0..count).map(mailbox).collect()
    }

    /// One that software has enabled.
    fn lapic(id: u32) -> Lapic {
        let mut lapic = Lapic::new(id, false);
        lapic.set_virtual_wire();
        lapic
    }

    fn taken(mailbox: &Mailbox) -> (u32, Vec<(u8, bool)>) {
        let mut vectors = Vec::new();
        let work = mailbox.take(|vector, level| vectors.push((vector, level)));
        (work, vectors)
    }

    #[test]
    fn what_is_put_in_comes_out_once() {
        let all = mailboxes(1);
        for vector in [0x31, 0xff, 0x40, 0x31] {
            all[0].post(&fixed(vector, 0));
        }
        all[0].post(&InterruptMessage { level: true, ..fixed(0x80, 0) });
        all[0].request(work::TIMERS);
        let expected = vec![(0x31, false), (0x40, false), (0x80, true), (0xff, false)];
        assert!(all[0].has_mail());
        assert_eq!(taken(&all[0]), (work::INTERRUPTS | work::TIMERS, expected));
        assert_eq!(taken(&all[0]), (0, vec![]));
        // A vector that was level-triggered once is not for ever.
        all[0].post(&fixed(0x80, 0));
        assert_eq!(taken(&all[0]).1, [(0x80, false)]);
    }

    #[test]
    fn modes_become_work() {
        let all = mailboxes(1);
        for (mode, bits) in [
            (DeliveryMode::Nmi, work::NMI),
            (DeliveryMode::Init, work::INIT),
            (DeliveryMode::Startup, work::STARTUP),
            (DeliveryMode::ExtInt, work::INTERRUPTS),
            (DeliveryMode::Smi, 0),
        ] {
            all[0].post(&InterruptMessage { mode, ..fixed(0x9a, 0) });
            assert_eq!(taken(&all[0]), (bits, vec![]), "{mode:?}");
        }
        assert_eq!(all[0].startup_page(), 0x9a);
        // Start-up after INIT starts the VCPU, start-up before it does not.
        for (modes, bits) in [
            ([DeliveryMode::Init, DeliveryMode::Startup], work::INIT | work::STARTUP),
            ([DeliveryMode::Startup, DeliveryMode::Init], work::INIT),
        ] {
            modes.into_iter().for_each(|mode| all[0].post(&InterruptMessage { mode, ..fixed(0x9a, 0) }));
            assert_eq!(taken(&all[0]), (bits, vec![]), "{modes:?}");
        }
    }

    #[test]
    fn destinations() {
        let all = mailboxes(4);
        assert_eq!(addressed(&all, &fixed(0x30, 2), Some(0)), 0b100);
        assert_eq!(addressed(&all, &fixed(0x30, BROADCAST), Some(0)), 0b1111);
        assert_eq!(addressed(&all, &fixed(0x30, 9), Some(0)), 0);
        let others = InterruptMessage { shorthand: Shorthand::Others, ..fixed(0x30, 0) };
        assert_eq!(addressed(&all, &others, Some(2)), 0b1011);
        assert_eq!(addressed(&all, &others, None), 0b1111);
    }

    #[test]
    fn one_takes_a_lowest_priority_message() {
        let all = mailboxes(4);
        let to = |vector, dest| {
            let mode = DeliveryMode::LowestPriority;
            addressed(&all, &InterruptMessage { mode, ..fixed(vector, dest) }, None)
        };
        assert_eq!([0x30, 0x31, 0x33, 0x34].map(|vector| to(vector, BROADCAST)), [1, 2, 8, 1]);
        assert_eq!(to(0x31, 2), 4);
        all[1].readdress(&Lapic::new(1, false));
        assert_eq!(to(0x31, BROADCAST), 4, "an APIC that is off takes none");
    }
}
