//! Whether a translation that differs from the emulator's may do so, on a machine with several processors.
//!
//! A TLB may keep what another processor has changed in the tables until it is told to forget it. How long that takes is
//! not bounded: the host may stop the processor that made the change before it sends its interrupt. So a translation that
//! is neither the emulator's nor the tables' is explained by a *race*, and by nothing else, if
//!
//! 1. a walk of this processor found it, and no flush since then covers it; flushes are written down here a second time,
//!    apart from the structures that they empty;
//! 2. another processor has stored to an entry on the way of the present walk since that walk.
//!
//! What a processor changes itself explains nothing: it flushes before it relies on it. A store is known after it happened,
//! when the emulator calls back; so differences are [settled](Witness::settle) once all other processors have gone on.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use abi::lab::Side;

use super::{
    tlb::{Port, class_of},
    walk::Translation,
};

/// Differences that wait to be settled at most.
const OPEN: usize = 1 << 14;

/// Stores of all processors to page tables.
#[derive(Default)]
pub struct Stores {
    clock: AtomicU64,
    /// The last one of each processor to each four bytes.
    last: Mutex<HashMap<(u64, u32), u64>>,
    /// Accesses of each processor that are done, with what follows from them.
    progress: Mutex<Vec<Arc<AtomicU64>>>,
}

impl Stores {
    fn stored(&self, pcpu: u32, pa: u64, len: u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.fetch_add(1, Relaxed) + 1;
        for word in pa >> 2..=(pa + len.max(1) - 1) >> 2 {
            last.insert((word, pcpu), now);
        }
    }

    fn has_other(&self, pcpu: u32, entries: &[u64], since: u64) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let others = || (0..self.progress().len() as u32).filter(|other| *other != pcpu);
        let later = |key| last.get(&key).is_some_and(|at| *at > since);
        entries
            .iter()
            .any(|at| others().any(|other| later((at >> 2, other)) || later(((at >> 2) + 1, other))))
    }

    fn progress(&self) -> Vec<u64> {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.iter().map(|of| of.load(Relaxed)).collect()
    }
}

/// What a walk found, and when.
struct Fill {
    frame: u64,
    global: bool,
    guest_class: u32,
    time: u64,
    stores: u64,
}

/// A translation that is not the emulator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Difference {
    /// Whose it is.
    pub side: Side,
    /// For data or for code.
    pub port: Port,
    /// Its ASID.
    pub asid: u16,
    /// Its 4 KiB page.
    pub page: u64,
    /// The frame that the model has.
    pub frame: u64,
}

struct Open {
    times: u64,
    /// In what walk it was found, if that is known and no flush came after it: when, in stores.
    filled: Option<u64>,
    /// The entries of the present walk.
    entries: Vec<u64>,
    progress: Vec<u64>,
}

/// A difference about which all is known.
pub struct Settled {
    /// What differs.
    pub difference: Difference,
    /// How often it was met.
    pub times: u64,
    /// It is a race; otherwise the reason why it is none.
    pub verdict: Result<(), &'static str>,
    /// The entries of the walk.
    pub entries: Vec<u64>,
}

/// What one processor did.
pub struct Witness {
    pcpu: u32,
    stores: Arc<Stores>,
    progress: Arc<AtomicU64>,
    /// Grows with each flush.
    time: u64,
    fills: HashMap<(u16, Port, u32, u64), Fill>,
    all: u64,
    spaces: HashMap<(u16, bool), u64>,
    pages: HashMap<(u16, u32, u64), u64>,
    open: HashMap<Difference, Open>,
}

impl Witness {
    /// Of the next processor of a machine, which has this number.
    pub fn new(pcpu: u32, stores: Arc<Stores>) -> Witness {
        let progress = Arc::<AtomicU64>::default();
        stores.progress.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&progress));
        Witness {
            pcpu,
            stores,
            progress,
            time: 0,
            fills: HashMap::new(),
            all: 0,
            spaces: HashMap::new(),
            pages: HashMap::new(),
            open: HashMap::new(),
        }
    }

    /// The time for [`filled`](Self::filled), taken before the walk.
    pub fn now(&self) -> u64 {
        self.stores.clock.load(Relaxed)
    }

    /// A walk that began at `now` found this.
    pub fn filled(&mut self, asid: u16, port: Port, va: u64, found: &Translation, now: u64) {
        let class = class_of(found.shift());
        let frame = (found.pa >> 12) & !((1 << (9 * class)) - 1);
        let (guest_class, global) = (class_of(found.guest_shift), found.global);
        let fill = Fill { frame, global, guest_class, time: self.time, stores: now };
        self.fills.insert((asid, port, class, va >> (12 + 9 * class)), fill);
    }

    /// A store to a page that has tables.
    pub fn stored(&self, pa: u64, len: u64) {
        self.stores.stored(self.pcpu, pa, len);
    }

    /// An access is done.
    #[inline]
    pub fn advance(&self) {
        self.progress.store(self.progress.load(Relaxed) + 1, Relaxed);
    }

    /// Everything is to be forgotten.
    pub fn flush_all(&mut self) {
        self.time += 1;
        self.all = self.time;
        self.fills.clear();
        self.spaces.clear();
        self.pages.clear();
    }

    /// An address space is to be forgotten, with its global pages or without.
    pub fn flush(&mut self, asid: u16, global: bool) {
        self.time += 1;
        self.spaces.insert((asid, false), self.time);
        if global {
            self.spaces.insert((asid, true), self.time);
        }
    }

    /// A page is to be forgotten, whatever its size.
    pub fn flush_page(&mut self, asid: u16, va: u64) {
        self.time += 1;
        for class in 0..3 {
            self.pages.insert((asid, class, va >> (12 + 9 * class)), self.time);
        }
    }

    /// A difference was met; the walk of this moment has these entries. Returns how many wait to be settled.
    pub fn met(&mut self, difference: Difference, entries: Vec<u64>) -> usize {
        let filled = self.fill_of(&difference);
        let progress = self.stores.progress();
        let open = self.open.entry(difference).or_insert(Open {
            times: 0,
            filled,
            entries: vec![],
            progress: vec![],
        });
        open.times += 1;
        // It may have been filled again, or flushed, since it was met before: the last word counts, and what is no race
        // remains none.
        open.filled = open.filled.and(filled);
        (open.entries, open.progress) = (entries, progress);
        self.open.len()
    }

    /// When the walk was that found it, if no flush came after.
    fn fill_of(&self, Difference { port: _, asid, page, frame, .. }: &Difference) -> Option<u64> {
        let keys =
            [Port::Data, Port::Code].into_iter().flat_map(|port| (0..3).map(move |class| (port, class)));
        let fills = keys.filter_map(|(port, class)| {
            let fill = self.fills.get(&(*asid, port, class, page >> (9 * class)))?;
            let within = page & ((1 << (9 * class)) - 1);
            let flushed = self.spaces.get(&(*asid, fill.global)).copied();
            let page_flushed =
                self.pages.get(&(*asid, fill.guest_class, page >> (9 * fill.guest_class))).copied();
            let last = [Some(self.all), flushed, page_flushed].into_iter().flatten().max();
            (fill.frame + within == *frame && last <= Some(fill.time)).then_some(fill.stores)
        });
        fills.min()
    }

    /// Decides about what was met: all of it `at_end`, otherwise where every other processor has gone on since.
    pub fn settle(&mut self, at_end: bool) -> Vec<Settled> {
        let now = self.stores.progress();
        let pcpu = self.pcpu as usize;
        let all = at_end || self.open.len() > OPEN;
        let gone_on = |open: &Open| {
            let others = now.iter().zip(&open.progress).enumerate().filter(|(other, _)| *other != pcpu);
            others.into_iter().all(|(_, (now, then))| now > then)
        };
        let ready: Vec<Difference> =
            self.open.iter().filter(|(_, open)| all || gone_on(open)).map(|(key, _)| *key).collect();
        let settled = ready.into_iter().filter_map(|difference| {
            let Open { times, filled, entries, .. } = self.open.remove(&difference)?;
            let verdict = match filled {
                None => Err("it was flushed, or never found by a walk"),
                Some(since) if self.stores.has_other(self.pcpu, &entries, since) => Ok(()),
                Some(_) => Err("no other processor has changed it"),
            };
            Some(Settled { difference, times, verdict, entries })
        });
        settled.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUND: Translation =
        Translation { pa: 0x7000, guest_shift: 12, nested_shift: 21, global: false, clean: false };
    const DIFFERENCE: Difference =
        Difference { side: Side::Nested, port: Port::Data, asid: 1, page: 5, frame: 7 };

    fn two() -> (Witness, Witness) {
        let stores = Arc::<Stores>::default();
        (Witness::new(0, Arc::clone(&stores)), Witness::new(1, stores))
    }

    fn fill(witness: &mut Witness) {
        let now = witness.now();
        witness.filled(1, Port::Data, 0x5000, &FOUND, now);
    }

    /// What it settles at the end about the one difference, met now.
    fn verdict(witness: &mut Witness) -> Result<(), &'static str> {
        witness.met(DIFFERENCE, vec![0x100, 0x208]);
        witness.settle(true).pop().unwrap().verdict
    }

    #[test]
    fn only_what_another_changed_since_the_walk_is_a_race() {
        let (mut one, other) = two();
        other.stored(0x208, 8);
        fill(&mut one);
        assert!(verdict(&mut one).is_err(), "stored before the walk");
        one.stored(0x208, 8);
        assert!(verdict(&mut one).is_err(), "stored by itself");
        other.stored(0x210, 8);
        assert!(verdict(&mut one).is_err(), "another entry");
        other.stored(0x20c, 4);
        assert!(verdict(&mut one).is_ok());
    }

    #[test]
    fn what_was_flushed_is_no_race() {
        let (mut one, other) = two();
        let mut after = |flush: &dyn Fn(&mut Witness)| {
            fill(&mut one);
            other.stored(0x100, 8);
            flush(&mut one);
            verdict(&mut one).is_ok()
        };
        assert!(after(&|_| {}));
        assert!(!after(&|one| one.flush_page(1, 0x5123)));
        assert!(!after(&|one| one.flush(1, false)));
        assert!(!after(&|one| one.flush_all()));
        assert!(after(&|one| one.flush_page(1, 0x6000)) && after(&|one| one.flush_page(2, 0x5000)));
        assert!(after(&|one| one.flush(2, true)));
    }

    #[test]
    fn it_waits_for_the_others_callbacks() {
        let (mut one, other) = two();
        fill(&mut one);
        one.met(DIFFERENCE, vec![0x100]);
        assert!(one.settle(false).is_empty());
        // The other had stored already, and says so only now.
        other.stored(0x100, 8);
        other.advance();
        one.met(DIFFERENCE, vec![0x100]);
        assert!(one.settle(false).is_empty());
        other.advance();
        let settled = one.settle(false).pop().unwrap();
        assert_eq!((settled.times, settled.verdict), (2, Ok(())));
        assert!(one.settle(true).is_empty());
    }

    #[test]
    fn pieces_of_large_pages() {
        let (mut one, other) = two();
        let large = Translation { pa: 0x20_3000, guest_shift: 21, nested_shift: 21, ..FOUND };
        one.filled(1, Port::Code, 0x40_3000, &large, 0);
        other.stored(0x100, 8);
        let difference = Difference { page: 0x405, frame: 0x205, ..DIFFERENCE };
        one.met(difference, vec![0x100]);
        assert!(one.settle(true)[0].verdict.is_ok());
        one.flush_page(1, 0x5f_f000);
        one.met(difference, vec![0x100]);
        assert!(one.settle(true)[0].verdict.is_err());
    }
}
