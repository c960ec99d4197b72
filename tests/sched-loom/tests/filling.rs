//! VCPUs that fill shadow entries at once: an entry is filled by one of them, and a list of leaves holds all that were put on it.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sched_loom::claims::{Bits, Head};

/// No entry.
const NONE: u32 = u32::MAX;
/// Before the first one.
const HEAD: u32 = 1 << 31;
/// Entries that are filled, of two words of bits.
const ENTRIES: [usize; 3] = [3, 5, 70];

/// One list, and the records of entries: what comes after each, and before it. The cells find accesses that are not ordered.
struct Tables {
    present: Bits,
    list: Head,
    records: [UnsafeCell<(u32, u32)>; ENTRIES.len()],
}

impl Tables {
    fn new() -> Tables {
        let records = core::array::from_fn(|_| UnsafeCell::new((0, 0)));
        Tables { present: Bits::new(), list: Head::new(NONE), records }
    }

    /// As `Pool::map_shared` does it.
    fn fill(&self, n: usize) -> bool {
        if !self.present.claim(ENTRIES[n]) {
            return false;
        }
        let first = self.list.hold();
        self.records[n].with_mut(|record| {
            // SAFETY: the entry is this thread's, or loom finds out.
            unsafe { *record = (first, HEAD) }
        });
        if first != NONE {
            self.records[first as usize].with_mut(|record| {
                // SAFETY: the list is this thread's, or loom finds out.
                unsafe { (*record).1 = n as u32 }
            });
        }
        self.list.release(n as u32);
        true
    }

    /// The entries on the list, in order. No other thread is there.
    fn listed(&self) -> Vec<usize> {
        let (mut listed, mut slot, mut before) = (Vec::new(), self.list.get(), HEAD);
        while slot != NONE {
            let (after, found) = self.records[slot as usize].with(|record| {
                // SAFETY: all threads have ended.
                unsafe { *record }
            });
            assert_eq!(found, before);
            listed.push(slot as usize);
            (before, slot) = (slot, after);
        }
        listed
    }
}

/// Two VCPUs fill entries; returns how often each was filled, and what is on the list.
fn race(entries: [&'static [usize]; 2]) -> ([u32; ENTRIES.len()], Vec<usize>) {
    let tables = Arc::new(Tables::new());
    let fill = |tables: &Tables, entries: &[usize]| -> [u32; ENTRIES.len()] {
        let mut filled = [0; ENTRIES.len()];
        entries.iter().for_each(|&n| filled[n] += u32::from(tables.fill(n)));
        filled
    };
    let other = {
        let tables = tables.clone();
        thread::spawn(move || fill(&tables, entries[1]))
    };
    let own = fill(&tables, entries[0]);
    let other = other.join().unwrap();
    (core::array::from_fn(|n| own[n] + other[n]), tables.listed())
}

/// All orders with at most three switches away from a thread that could go on: one that waits for a list could do so for ever.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn an_entry_is_filled_by_one_vcpu() {
    explore(|| {
        let (filled, listed) = race([&[0], &[0]]);
        assert_eq!((filled, listed), ([1, 0, 0], vec![0]));
    });
}

#[test]
fn a_list_holds_all_that_vcpus_put_on_it() {
    explore(|| {
        let (filled, mut listed) = race([&[0, 1], &[2, 1]]);
        listed.sort_unstable();
        assert_eq!((filled, listed), ([1, 1, 1], vec![0, 1, 2]));
    });
}
