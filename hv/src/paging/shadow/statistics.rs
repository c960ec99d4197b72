//! What the engine counts.

use super::ShadowOutcome;
use abi::telemetry::key;

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Statistics {
    pub faults: u64,
    pub filled: u64,
    pub prefetched: u64,
    pub guest_faults: u64,
    /// Of the faults, those that VCPUs could handle at the same time.
    pub concurrent: u64,
    pub emulated_writes: u64,
    pub roots_found: u64,
    pub roots_made: u64,
    pub pages_made: u64,
    pub evictions: u64,
    /// Tables that the guest was allowed to write until its next flush.
    pub unsynced: u64,
    /// Entries dropped because they had changed by a flush.
    pub resynced_entries: u64,
    /// Pages left to be compared when they are linked next, after the guest came back from nested tables.
    pub deferred: u64,
    /// Shadow pages dropped because their table was only written.
    pub floods: u64,
    /// Shadow pages dropped because nothing pointed to them any more.
    pub dead: u64,
    /// Times at which other VCPUs had to forget what they had cached.
    pub shootdowns: u64,
    /// Pages in use now.
    pub pages: u64,
    /// Bytes of host memory that the tables and all that belongs to them take now, and at the most so far.
    pub bytes: u64,
    pub most_bytes: u64,
}

impl Statistics {
    /// Counts a fault by its outcome.
    #[inline(always)]
    pub(super) fn count_fault(&mut self, outcome: ShadowOutcome) {
        match outcome {
            ShadowOutcome::Filled { prefetched } => {
                self.filled += 1;
                self.prefetched += u64::from(prefetched);
            }
            ShadowOutcome::GuestFault(_) => self.guest_faults += 1,
            ShadowOutcome::EmulateWrite(_) => self.emulated_writes += 1,
            // It is handled, and counted, as one of a phase.
            ShadowOutcome::InPhase => return,
            _ => {}
        }
        self.faults += 1;
    }

    /// All counters with their names in statistics and telemetry.
    pub fn named(&self) -> [(&'static str, u64); 18] {
        [
            (key::PAGES, self.pages),
            (key::BYTES, self.bytes),
            (key::MOST_BYTES, self.most_bytes),
            (key::FAULTS, self.faults),
            (key::FILLED, self.filled),
            (key::PREFETCHED, self.prefetched),
            (key::GUEST_FAULTS, self.guest_faults),
            (key::CONCURRENT, self.concurrent),
            (key::EMULATED_WRITES, self.emulated_writes),
            (key::ROOTS_FOUND, self.roots_found),
            (key::ROOTS_MADE, self.roots_made),
            (key::PAGES_MADE, self.pages_made),
            (key::EVICTIONS, self.evictions),
            (key::UNSYNCED, self.unsynced),
            (key::RESYNCED_ENTRIES, self.resynced_entries),
            (key::DEFERRED, self.deferred),
            (key::FLOODS, self.floods),
            (key::SHOOTDOWNS, self.shootdowns),
        ]
    }
}
