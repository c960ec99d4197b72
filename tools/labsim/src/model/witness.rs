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
//!
//! With agile paging there is one more: a hypervisor's stand-in may keep, as a TLB may, what any processor has changed in
//! the guest's tables, until the guest flushes. It is [stale](Witness::met_stale) if an entry on the way was stored to since the
//! guest's last flush that covers it. What the hypervisor flushes for reasons of its own, as at an interrupt, empties the TLB but
//! no stand-in, so the guest's own flushes are [written down](Witness::guest_flushed) apart.
//! Stores to a table are known from the first walk on that reads it. So one that was read first since the flush may have been
//! stored to.

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
    /// When a walk first read an entry of a frame.
    found: Mutex<HashMap<u64, u64>>,
    /// Accesses of each processor that are done, with what follows from them.
    progress: Mutex<Vec<Arc<AtomicU64>>>,
}

impl Stores {
    fn stored(&self, pcpu: u32, pa: u64, len: u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.tick();
        for word in pa >> 2..=(pa + len.max(1) - 1) >> 2 {
            last.insert((word, pcpu), now);
        }
    }

    fn found(&self, frames: &[u64]) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.tick();
        found.extend(frames.iter().map(|frame| (*frame, now)));
    }

    /// Whether one of these entries may have been stored to unseen since then.
    fn were_unseen(&self, entries: &[u64], since: u64) -> bool {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().any(|at| found.get(&(at >> 12)).is_some_and(|first| *first > since))
    }

    /// The time of something that happens now.
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Relaxed) + 1
    }

    /// Whether another processor than this one, or any, has stored to one of these entries since then.
    fn has_any(&self, except: Option<u32>, entries: &[u64], since: u64) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let others = || (0..self.progress().len() as u32).filter(|other| Some(*other) != except);
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
}

/// What a guest flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestFlush {
    /// A page, whatever its size.
    Page(u64),
    /// All but global pages.
    NonGlobal,
    /// Everything.
    All,
}

/// When a guest flushed what.
#[derive(Default)]
struct GuestFlushes {
    /// All, with global pages or without.
    all: [u64; 2],
    pages: HashMap<(u32, u64), u64>,
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
    /// Since when a store explains it: since the walk that found it, if that is known and no flush came after it; or, of a
    /// stand-in, since the last flush.
    filled: Option<u64>,
    /// It is a stand-in's.
    is_stale: bool,
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
    /// It is one between a stand-in and the guest's tables.
    pub is_stale: bool,
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
    fills: HashMap<(u16, Port, u32, u64), Fill>,
    all: u64,
    spaces: HashMap<(u16, bool), u64>,
    pages: HashMap<(u16, u32, u64), u64>,
    /// Of each guest with agile paging, by its nested root: its ASID changes where the hypervisor flushes.
    guests: HashMap<u64, GuestFlushes>,
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
            fills: HashMap::new(),
            all: 0,
            spaces: HashMap::new(),
            pages: HashMap::new(),
            guests: HashMap::new(),
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
        let fill = Fill { frame, global, guest_class, time: now };
        self.fills.insert((asid, port, class, va >> (12 + 9 * class)), fill);
    }

    /// A store to a page that has tables.
    pub fn stored(&self, pa: u64, len: u64) {
        self.stores.stored(self.pcpu, pa, len);
    }

    /// A walk has read entries of these frames, and stores to them are told from now on.
    pub fn found(&self, frames: &[u64]) {
        if !frames.is_empty() {
            self.stores.found(frames);
        }
    }

    /// An access is done.
    #[inline]
    pub fn advance(&self) {
        self.progress.store(self.progress.load(Relaxed) + 1, Relaxed);
    }

    /// Everything is to be forgotten.
    pub fn flush_all(&mut self) {
        self.all = self.stores.tick();
        self.fills.clear();
        self.spaces.clear();
        self.pages.clear();
    }

    /// An address space is to be forgotten, with its global pages or without.
    pub fn flush(&mut self, asid: u16, global: bool) {
        let now = self.stores.tick();
        self.spaces.insert((asid, false), now);
        if global {
            self.spaces.insert((asid, true), now);
        }
    }

    /// An address space begins to run. If it has not since all was flushed, its ASID is a new one, which flushes, too.
    pub fn enter(&mut self, asid: u16) {
        if !self.spaces.contains_key(&(asid, false)) {
            self.flush(asid, true);
        }
    }

    /// A page is to be forgotten, whatever its size.
    pub fn flush_page(&mut self, asid: u16, va: u64) {
        let now = self.stores.tick();
        for class in 0..3 {
            self.pages.insert((asid, class, va >> (12 + 9 * class)), now);
        }
    }

    /// A difference was met; the walk of this moment has these entries. Returns how many wait to be settled.
    pub fn met(&mut self, difference: Difference, entries: Vec<u64>) -> usize {
        let filled = self.fill_of(&difference);
        self.open(difference, filled, entries, false)
    }

    /// The guest with this nested root has flushed.
    pub fn guest_flushed(&mut self, guest: u64, flush: GuestFlush) {
        let now = self.stores.tick();
        let flushes = self.guests.entry(guest).or_default();
        match flush {
            GuestFlush::Page(va) => {
                flushes.pages.extend((0..3).map(|class| ((class, va >> (12 + 9 * class)), now)));
            }
            GuestFlush::NonGlobal => flushes.all[0] = now,
            GuestFlush::All => flushes.all = [now; 2],
        }
    }

    /// A stand-in for this page of the guest with this nested root, a page of this size in the guest's tables, was met where
    /// these, with these entries, say something else. Returns how many wait to be settled.
    pub fn met_stale(
        &mut self,
        difference: Difference,
        guest: u64,
        (guest_shift, global): (u32, bool),
        entries: Vec<u64>,
    ) -> usize {
        let class = class_of(guest_shift);
        let since = self.guests.get(&guest).map_or(0, |flushes| {
            let page = flushes.pages.get(&(class, difference.page >> (9 * class))).copied();
            flushes.all[usize::from(global)].max(page.unwrap_or(0))
        });
        self.open(difference, Some(since), entries, true)
    }

    fn open(
        &mut self,
        difference: Difference,
        filled: Option<u64>,
        entries: Vec<u64>,
        is_stale: bool,
    ) -> usize {
        let progress = self.stores.progress();
        let open = self.open.entry(difference).or_insert(Open {
            times: 0,
            filled,
            is_stale,
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
            (fill.frame + within == *frame && last <= Some(fill.time)).then_some(fill.time)
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
            let Open { times, filled, is_stale, entries, .. } = self.open.remove(&difference)?;
            let except = (!is_stale).then_some(self.pcpu);
            let verdict = match filled {
                None => Err("it was flushed, or never found by a walk"),
                Some(since) if self.stores.has_any(except, &entries, since) => Ok(()),
                Some(since) if is_stale && self.stores.were_unseen(&entries, since) => Ok(()),
                Some(_) if is_stale => {
                    Err("the stand-in has another, and nothing was stored since the guest's last flush")
                }
                Some(_) => Err("no other processor has changed it"),
            };
            Some(Settled { difference, times, is_stale, verdict, entries })
        });
        settled.collect()
    }
}

#[cfg(test)]
#[path = "witness_tests.rs"]
mod tests;
