//! Samples of a VM: at most one in each period of its time, of what all its VCPUs have counted.
//!
//! Each VCPU publishes its sums here when its period is over or it leaves its PCPU ([`Sampling::publish`]); the first one that
//! finds the VM's period over adds them up ([`Sampling::close`]). So no VCPU is interrupted for a sample, and the sums of VCPUs
//! that run elsewhere are old by one period at most. While no VCPU runs there are no samples, and the next one is of all that
//! time.
//!
//! Off, [`Sampling::due`] is never, and nothing else is ever looked at. Locks: `vcpus` and `closing` are leaf locks, held for as
//! long as a copy takes; a VCPU that finds `closing` taken leaves the sample to the one that holds it.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use records::sample::{Sample, Sums};
use spin::{Mutex, MutexGuard};

use crate::arch::counters::CounterEvent;

/// What a VCPU has counted since the VM's start or reset.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// Its counters.
    pub sums: Sums,
    /// Ticks that it has run.
    pub ran: u64,
}

impl Published {
    const NOTHING: Published = Published { sums: Sums::ZERO, ran: 0 };
}

/// The VM's samples.
#[derive(Debug)]
pub struct Sampling {
    /// Ticks of the host's TSC between two samples; 0: there are none.
    period: AtomicU64,
    /// The host's TSC at which the next one is due.
    due: AtomicU64,
    /// The VM's time when its guest was last started or reset.
    began_ns: AtomicU64,
    vcpus: Vec<Mutex<Published>>,
    resets: AtomicU8,
    closing: Mutex<Closing>,
}

/// A sample has been added up and is not written yet: while there is one, no other is added up.
#[must_use]
pub struct Writing<'a>(
    #[expect(dead_code, reason = "it is held, and not looked at")] MutexGuard<'a, Closing>,
);

/// What is kept between samples.
#[derive(Debug, Default)]
struct Closing {
    /// Of the last sample.
    shadow_faults: [u64; 2],
    shadow_memory: [u64; 2],
    /// Ticks that each VCPU had run by then.
    ran: Vec<u64>,
}

impl Sampling {
    /// For a VM with this number of VCPUs: off.
    pub fn new(vcpus: u32) -> Sampling {
        Sampling {
            period: AtomicU64::new(0),
            due: AtomicU64::new(u64::MAX),
            began_ns: AtomicU64::new(0),
            vcpus: (0..vcpus).map(|_| Mutex::new(Published::NOTHING)).collect(),
            resets: AtomicU8::new(0),
            closing: Mutex::new(Closing { ran: alloc::vec![0; vcpus as usize], ..Closing::default() }),
        }
    }

    /// Turns samples on, at most one in each `period` ticks (at least 1), the first one that long after `now`. They stay as they
    /// are if they are on.
    pub fn start(&self, period: u64, now: u64) {
        let period = period.max(1);
        if self.period.compare_exchange(0, period, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.due.store(now.saturating_add(period), Ordering::Relaxed);
        }
    }

    /// The VM is reset: its new VCPUs begin to count. No VCPU runs.
    pub fn reset(&self) {
        self.resets.fetch_add(1, Ordering::Relaxed);
        self.vcpus.iter().for_each(|vcpu| *vcpu.lock() = Published::NOTHING);
    }

    /// The guest starts at host TSC `now`, `now_ns` of the VM's time: the first period begins here, and not while the guest was
    /// loaded. No VCPU runs.
    pub fn begin(&self, now: u64, now_ns: u64) {
        self.began_ns.store(now_ns, Ordering::Relaxed);
        if self.is_on() {
            self.due.store(now.saturating_add(self.period.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// Whether there are samples.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.period.load(Ordering::Relaxed) != 0
    }

    /// The host's TSC at which the next sample is due; `u64::MAX`: never.
    #[inline(always)]
    pub fn due(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    /// The period that is not over takes `ticks` of the host's TSC more.
    pub fn delay(&self, ticks: u64) {
        let later = |due: u64| Some(due.saturating_add(ticks));
        let _always = self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// VCPU `id` has counted this so far.
    pub fn publish(&self, id: u32, published: &Published) {
        if let Some(vcpu) = self.vcpus.get(id as usize) {
            *vcpu.lock() = *published;
        }
    }

    /// Adds up what the VCPUs have published; `ran` has what each had run at the last sample, and gets what it has run now.
    ///
    /// Page faults are counted if all VCPUs count theirs: those that ran since the last sample, as one that the guest has taken
    /// offline has no page any more, and no page faults.
    fn sum(&self, ran: &mut [u64]) -> Sums {
        const PAGE_FAULTS: u64 = 1 << CounterEvent::PageFaults as u32;
        let mut sums = Sums::ZERO;
        let (mut some_count, mut all_count) = (false, true);
        for (vcpu, ran) in self.vcpus.iter().zip(ran) {
            let published = *vcpu.lock();
            let counts = published.sums.counters[0].present & PAGE_FAULTS != 0;
            let has_run = core::mem::replace(ran, published.ran) != published.ran;
            some_count |= counts && has_run;
            all_count &= counts || !has_run;
            sums.add(&published.sums);
        }
        sums.counters[0].present &= !PAGE_FAULTS;
        sums.counters[0].present |= if some_count && all_count { PAGE_FAULTS } else { 0 };
        sums
    }

    /// Adds up what the VCPUs have published and ends the period, if it is over by `now` or that is demanded; `shadow` is asked
    /// for faults and memory of shadow paging, and says `None` where it would have to wait. The sample, with the ticks that
    /// each VCPU has run. `None`: another VCPU has just done it, or is about to write what it has added up: no later sample overtakes an
    /// earlier one before the caller drops the last part, [`Writing`].
    pub fn close(
        &self,
        now: u64,
        demanded: bool,
        shadow: impl FnOnce() -> Option<([u64; 2], [u64; 2])>,
    ) -> Option<(Sample, impl Iterator<Item = u64> + '_, Writing<'_>)> {
        let mut closing = self.closing.try_lock()?;
        if !self.is_on() || now < self.due() && !demanded {
            return None;
        }
        self.due.store(now.saturating_add(self.period.load(Ordering::Relaxed)), Ordering::Relaxed);
        let sums = self.sum(&mut closing.ran);
        if let Some((faults, memory)) = shadow() {
            (closing.shadow_faults, closing.shadow_memory) = (faults, memory);
        }
        let sample = Sample {
            vcpus: self.vcpus.len() as u8,
            resets: self.resets.load(Ordering::Relaxed),
            began_ns: self.began_ns.load(Ordering::Relaxed),
            tsc: now,
            shadow_faults: closing.shadow_faults,
            shadow_memory: closing.shadow_memory,
            sums,
            ..Sample::default()
        };
        Some((sample, self.vcpus.iter().map(|vcpu| vcpu.lock().ran), Writing(closing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(exits: u64, ran: u64) -> Published {
        let mut sums = Sums::ZERO;
        sums.exits[0] = exits;
        Published { sums, ran }
    }

    fn close(sampling: &Sampling, now: u64, demanded: bool) -> Option<(u64, [u64; 2], Vec<u64>)> {
        let (sample, ran, _closing) =
            sampling.close(now, demanded, || now.is_multiple_of(2).then_some(([now, 0], [0; 2])))?;
        Some((sample.sums.exits[0], sample.shadow_faults, ran.collect()))
    }

    #[test]
    fn nothing_is_due_while_it_is_off() {
        let sampling = Sampling::new(1);
        assert_eq!((sampling.due(), sampling.is_on()), (u64::MAX, false));
        assert_eq!(close(&sampling, 100, true), None);
    }

    #[test]
    fn one_sample_for_each_period_of_what_all_have_published() {
        let sampling = Sampling::new(2);
        sampling.start(1000, 500);
        sampling.start(3, 7);
        sampling.publish(0, &published(3, 40));
        assert_eq!(close(&sampling, 1499, false), None, "not due");
        sampling.publish(1, &published(5, 60));
        assert_eq!(close(&sampling, 1502, false), Some((8, [1502, 0], vec![40, 60])));
        assert_eq!(close(&sampling, 1503, false), None, "another VCPU comes for the same period");
        sampling.publish(1, &published(6, 70));
        assert_eq!(sampling.due(), 2502);
        let kept = [1502, 0];
        assert_eq!(close(&sampling, 9001, false), Some((9, kept, vec![40, 70])), "late, and shadow is taken");
        assert_eq!(close(&sampling, 9002, true), Some((9, [9002, 0], vec![40, 70])), "the end");
        sampling.publish(2, &published(1, 1));
    }

    #[test]
    fn the_first_period_begins_with_the_guest() {
        let sampling = Sampling::new(1);
        sampling.begin(300, 100);
        assert!(!sampling.is_on() && sampling.due() == u64::MAX);
        sampling.start(1000, 0);
        // It took long to load the guest.
        sampling.begin(7000, 3500);
        assert_eq!((sampling.due(), close(&sampling, 7999, false)), (8000, None));
        let (sample, ..) = sampling.close(8001, false, || None).unwrap();
        assert_eq!((sample.began_ns, sampling.due()), (3500, 9001));
    }

    #[test]
    fn page_faults_are_known_where_all_vcpus_that_run_count_them() {
        const AT: usize = CounterEvent::PageFaults as usize;
        let counting = |faults, counts, ran| {
            let mut published = published(0, ran);
            published.sums.counters[0].values[AT] = faults;
            published.sums.counters[0].present = u64::from(counts) << AT | 1;
            published
        };
        let sampling = Sampling::new(2);
        sampling.start(10, 0);
        let known = |now| {
            let (sample, ..) = sampling.close(now, false, || None).unwrap();
            (sample.sums.counters[0].get(AT), sample.sums.counters[0].values[AT])
        };
        sampling.publish(0, &counting(0, false, 100));
        assert_eq!(known(10), (None, 0), "the second has published nothing yet");
        sampling.publish(0, &counting(5, true, 200));
        assert_eq!(known(20), (Some(5), 5));
        sampling.publish(0, &counting(6, true, 300));
        sampling.publish(1, &counting(0, false, 50));
        assert_eq!(known(30), (None, 6));
        sampling.publish(0, &counting(7, true, 400));
        sampling.publish(1, &counting(4, true, 90));
        assert_eq!(known(40), (Some(11), 11));
        sampling.publish(0, &counting(8, true, 500));
        sampling.publish(1, &counting(4, false, 90));
        assert_eq!(known(50), (Some(12), 12), "the second is offline; its sum stays");
        assert_eq!(known(60), (None, 12), "none has run");
        sampling.publish(0, &counting(8, false, 600));
        assert_eq!(known(70), (None, 12), "the module is gone");
    }

    #[test]
    fn who_meets_another_leaves_it_the_sample() {
        let sampling = Sampling::new(1);
        sampling.start(10, 0);
        let _other = sampling.closing.lock();
        assert_eq!(close(&sampling, 50, false), None);
    }
}
