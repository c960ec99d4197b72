//! Comparison with the emulator's own translation.

use std::cell::RefCell;

use super::Processor;
use crate::model::{
    memory::Memory,
    tlb::Port,
    walk::{Access, Environment, Regime, Translation, Walker},
    witness::Difference,
};

/// Where the emulator says that an access went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It does not say.
    Unknown,
    /// To a device's registers.
    Device,
    /// To this physical address.
    At(u64),
}

/// Asks the emulator where an address leads.
pub trait Check {
    /// Called at most once for each translation.
    fn truth(&self, va: u64) -> Truth;
}

impl<F: Fn(u64) -> Truth> Check for F {
    fn truth(&self, va: u64) -> Truth {
        self(va)
    }
}

/// Differences that are described at most.
const DESCRIBED: usize = 16;
/// Differences are settled when there are this many, those of one page in a row counted as one.
const SETTLED_AT_ONCE: usize = 64;

impl<M: Memory> Processor<M> {
    /// Compares a translation of the model's with the emulator's.
    #[inline]
    pub(super) fn compare(&mut self, port: Port, truth: Truth, va: u64, pa: u64) {
        let in_memory = self.memory.read_u64(pa & !7).is_some();
        let counters = self.counters();
        match truth {
            Truth::At(at) if at == pa => counters.checks_equal += 1,
            Truth::Device if !in_memory => counters.checks_equal += 1,
            Truth::Unknown => counters.checks_unanswered += 1,
            Truth::At(_) | Truth::Device => self.differs(port, truth, va, pa),
        }
    }

    #[cold]
    fn differs(&mut self, port: Port, truth: Truth, va: u64, pa: u64) {
        let (said, entries) = self.tables_say(va);
        let (page, frame) = (va >> 12, pa >> 12);
        let difference = Difference { side: self.side, port, asid: self.asid, page, frame };
        let Some(witness) = self.witness.as_mut().filter(|_| !self.is_alone) else {
            self.counters().checks_differ += 1;
            self.describe(&difference, &format!("QEMU has {truth:x?}, the tables say {said:x?}"), &entries);
            return;
        };
        if said == Some(frame) {
            // The emulator is late.
            self.counters().checks_raced += 1;
        } else if witness.met(difference, entries) >= SETTLED_AT_ONCE {
            self.settle(false);
        }
    }

    /// A hypervisor's stand-in leads elsewhere than the guest's tables do, or allows more.
    #[cold]
    pub(super) fn stand_in_differs(&mut self, port: Port, va: u64, stand_in: &Translation) {
        let (Some(regime), Some(agile)) = (&self.regime, &self.agile) else { return };
        let guest = agile.nested_root;
        let (found, entries) = self.follow(&agile.nested(regime), va);
        let (shift, frame) = found.map_or((12, u64::MAX), |found| (found.guest_shift, found.pa >> 12));
        let Some(witness) = &mut self.witness else { return };
        let difference = Difference { side: self.side, port, asid: self.asid, page: va >> 12, frame };
        if witness.met_stale(difference, guest, (shift, stand_in.global), entries) >= SETTLED_AT_ONCE {
            self.settle(false);
        }
    }

    /// Decides which differences are races; `at_end` about all.
    pub fn settle(&mut self, at_end: bool) {
        let settled = self.witness.as_mut().map_or_else(Vec::new, |witness| witness.settle(at_end));
        for of in settled {
            let counters = &mut self.record.sides[of.difference.side as usize];
            match of.verdict {
                Ok(()) if of.is_stale => self.record.agile.checks_stale += of.times,
                Ok(()) => counters.checks_raced += of.times,
                Err(why) => {
                    counters.checks_differ += of.times;
                    self.describe(&of.difference, &format!("met {} times: {why}", of.times), &of.entries);
                }
            }
        }
    }

    fn describe(&mut self, difference: &Difference, why: &str, entries: &[u64]) {
        if self.differences.len() < DESCRIBED {
            let Difference { side, port, asid, page, frame } = difference;
            let side = side.name();
            self.differences.push(format!(
                "{side}, ASID {asid}, {port:?}: the model has frame {frame:#x} for page {page:#x}; {why}; entries at {entries:x?}"
            ));
        }
    }

    /// The first differences that are no races, in words.
    pub fn differences(&self) -> &[String] {
        &self.differences
    }

    /// The frame that the tables have for an address at this moment, whatever is cached, and the entries on the way.
    fn tables_say(&self, va: u64) -> (Option<u64>, Vec<u64>) {
        let Some(regime) = &self.regime else { return (None, vec![]) };
        let (found, entries) = self.follow(regime, va);
        (found.map(|found| found.pa >> 12), entries)
    }

    /// Where these tables lead, and the entries on the way.
    fn follow(&self, regime: &Regime, va: u64) -> (Option<Translation>, Vec<u64>) {
        let mut env = Unseen { memory: &self.memory, entries: RefCell::default() };
        let access = Access { va, write: false };
        let (found, _) = Walker::default().walk(regime, access, self.walk_tags, &self.spaces, &mut env);
        (found.ok(), env.entries.into_inner())
    }
}

/// Memory as a walk sees it that costs nothing and leaves no trace.
struct Unseen<'a, M> {
    memory: &'a M,
    entries: RefCell<Vec<u64>>,
}

impl<M: Memory> Memory for Unseen<'_, M> {
    fn read_u64(&self, pa: u64) -> Option<u64> {
        self.entries.borrow_mut().push(pa);
        self.memory.read_u64(pa)
    }
}

impl<M: Memory> Environment for Unseen<'_, M> {
    fn reference(&mut self, _pa: u64) {}

    fn use_entry(&mut self, _pa: u64, _dirty: bool) -> bool {
        false
    }
}
