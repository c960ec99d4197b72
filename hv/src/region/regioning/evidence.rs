//! Whether two regions are used together, or one page of one of them beside the other: a *hub*, as one with variables of all the program's.
//!
//! That the region which is entered was idle for less than `q` says that the page which is touched was used lately, and not that its
//! region was. While regions are small that makes no difference. From [`Params::large`](super::Params::large) frames on, regions merge when touches have met
//! [`BROAD`] pages of each since the other one came into use. A small region that is used beside pages of a large one is not known to
//! be part of it: it joins others like it in a region *beside* the large one, and they join that together once enough of its pages
//! were touched; what is used beside it after that begins another one. A page that a region is entered through [`HUB`] times, while no more of that region is used and much of another one is,
//! is a hub.
//!
//! Records are those of the large regions that were touched last. Where more are used by turns than there is room for, regions merge
//! as if they were small.

use super::hubs::Hubs;
use crate::arch::addr::Gfn;
#[cfg(any(test, feature = "testing"))]
use crate::region::partition::Partition;
use crate::region::{Rid, Space};

/// Pages of a region that are enough to say that it is used. A program has a few hubs at most that are used together.
const BROAD: usize = 8;
/// Touches of one visit that say the same: each opens twice as many pages of the region as the one before.
const BROAD_VISIT: u8 = 5;
/// Times that a region is entered through the same page, until that is a hub.
const HUB: u16 = 64;
/// Large regions that are in use at the same time, and touches after which one is in use no more.
const REGIONS: usize = 16;
const IN_USE: u32 = 64;

/// What a change of region is evidence for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Both are one region.
    Together,
    /// The small one is part of this one.
    Beside { small: Rid, of: Rid },
    /// They are used by turns, and it is not known yet whether they are one.
    Unclear,
    /// They are two.
    Apart,
    /// The page is a hub.
    Hub,
}

/// A page of a region.
#[derive(Clone, Copy, Debug)]
struct Page {
    gfn: Gfn,
    /// When it was touched last.
    at_ns: u32,
    /// How often the region was entered by it, one touch less than `q` after the other.
    times: u16,
}

/// Of a large region.
#[derive(Clone, Copy, Debug)]
struct Record {
    rid: Rid,
    space: Space,
    /// Since when it is in use. This time and others are in nanoseconds of its address space's phase.
    since_ns: u32,
    /// Its pages that were touched last.
    pages: [Option<Page>; BROAD],
    /// The very last one, also if it was touched before it was part of the region.
    last: Option<Gfn>,
    /// Touches in this visit since all was closed last, and when they were [`BROAD_VISIT`] the last time.
    touches: u8,
    broad_ns: Option<u32>,
    /// The region of small ones that were used beside its pages, and since when.
    beside: Option<(Rid, u32)>,
    /// Number of the touch.
    touched: u32,
}

impl Record {
    /// Whether much of it was used after this time.
    fn is_broad(&self, since_ns: u32) -> bool {
        let pages = self.pages.iter().flatten().filter(|page| page.at_ns > since_ns);
        self.broad_ns.is_some_and(|at_ns| at_ns > since_ns) || pages.count() >= BROAD
    }

    /// A page is touched. One that was the last before it was part of the region is no evidence for more than itself: its use goes on.
    fn touch(&mut self, met: &Met, q_ns: u32) {
        let Met { gfn, at_ns, .. } = *met;
        let times = met.is_entered.into();
        if let Some(page) = self.pages.iter_mut().flatten().find(|page| page.gfn == gfn) {
            let is_soon = at_ns.saturating_sub(page.at_ns) < q_ns;
            page.times = if is_soon { page.times.saturating_add(times) } else { times };
            page.at_ns = at_ns;
        } else if self.last != Some(gfn) {
            let oldest = self.pages.iter_mut().min_by_key(|page| page.map(|page| page.at_ns));
            oldest.into_iter().for_each(|slot| *slot = Some(Page { gfn, at_ns, times }));
        }
        self.last = Some(gfn);
        self.touches = self.touches.saturating_add(1);
        if self.touches >= BROAD_VISIT {
            self.broad_ns = Some(at_ns);
        }
    }

    fn times(&self, gfn: Gfn) -> u16 {
        self.pages.iter().flatten().find(|page| page.gfn == gfn).map_or(0, |page| page.times)
    }
}

/// A touch of a page of a regular or local region.
#[derive(Clone, Copy, Debug)]
pub struct Met {
    pub rid: Rid,
    pub gfn: Gfn,
    pub at_ns: u32,
    /// Whether the region has become the current one by it, and how long it was idle until then, if that is known.
    pub is_entered: bool,
    pub idle_ns: Option<u32>,
}

/// What else is known of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// It was idle for less than `q`.
    pub is_in_use: bool,
    pub is_large: bool,
}

/// The records of a VM.
#[derive(Clone, Debug, Default)]
pub struct Records {
    records: [Option<Record>; REGIONS],
    touches: u32,
    pub hubs: Hubs,
}

const _: () = assert!(size_of::<Records>() < 6 * 1024, "stated in docs/design/0035-hub-pages.md");

impl Records {
    fn find(&self, rid: Rid) -> Option<usize> {
        self.records.iter().position(|record| record.is_some_and(|record| record.rid == rid))
    }

    fn of(&self, rid: Rid) -> Option<&Record> {
        self.records.iter().flatten().find(|record| record.rid == rid)
    }

    fn of_mut(&mut self, rid: Rid) -> Option<&mut Record> {
        self.records.iter_mut().flatten().find(|record| record.rid == rid)
    }

    /// All pages were closed within a visit of this region, as at an interrupt. What is touched again says nothing new of it.
    pub fn closed(&mut self, rid: Rid) {
        if let Some(record) = self.of_mut(rid) {
            record.touches = 0;
        }
    }

    /// A phase of an address space begins, or it is gone.
    pub fn restart(&mut self, space: Space) {
        self.records.iter_mut().for_each(|record| *record = record.filter(|own| own.space != space));
    }

    /// A region has died.
    pub fn forget(&mut self, rid: Rid) {
        self.records.iter_mut().for_each(|record| *record = record.filter(|own| own.rid != rid));
        for record in self.records.iter_mut().flatten() {
            record.beside = record.beside.filter(|(beside, _)| *beside != rid);
        }
    }

    /// A touch of a region of `space`, which is large.
    pub fn touched(&mut self, space: Space, met: &Met, q_ns: u32) {
        self.touches = self.touches.wrapping_add(1);
        let touches = self.touches;
        let Some(at) = self.find(met.rid).or_else(|| self.room(space, met)) else { return };
        let Some(record) = &mut self.records[at] else { return };
        record.touched = touches;
        if met.is_entered {
            record.touches = 0;
            if met.idle_ns.is_none_or(|idle_ns| idle_ns >= q_ns) {
                record.since_ns = met.at_ns;
            }
        }
        record.touch(met, q_ns);
    }

    /// Puts a new record in the place of one that is in use no more.
    fn room(&mut self, space: Space, met: &Met) -> Option<usize> {
        let age = |record: &Option<Record>| {
            record.map_or(u32::MAX, |record| self.touches.wrapping_sub(record.touched))
        };
        let at = (0..REGIONS).max_by_key(|at| age(&self.records[*at]))?;
        if age(&self.records[at]) < IN_USE {
            return None;
        }
        self.records[at] = Some(Record {
            rid: met.rid,
            space,
            since_ns: met.at_ns,
            pages: [None; BROAD],
            last: None,
            touches: 0,
            broad_ns: None,
            beside: None,
            touched: self.touches,
        });
        Some(at)
    }

    /// What a change of region says, where the one that is entered was idle for less than `q`. `is_large`: by their sizes.
    pub fn judge(
        &mut self,
        [left, entered]: [Rid; 2],
        is_large: [bool; 2],
        met: &Met,
        about: impl Fn(Rid) -> About,
    ) -> Evidence {
        let (large, small) = match is_large {
            [false, false] => return Evidence::Together,
            [true, true] => return self.judge_large([left, entered], met.gfn),
            [true, false] => (left, entered),
            [false, true] => (entered, left),
        };
        let Some(record) = self.of_mut(large) else { return Evidence::Together };
        let before = record.beside.filter(|(beside, _)| *beside != large);
        let is_broad = before.is_some_and(|(_, since_ns)| record.is_broad(since_ns));
        match before {
            Some((beside, _)) if beside == small => {
                if is_broad {
                    Evidence::Together
                } else {
                    Evidence::Unclear
                }
            }
            Some((of, _)) if !is_broad && about(of).is_in_use => Evidence::Beside { small, of },
            // What was beside it is part of it. The new one may be beside pages of it only.
            _ => {
                record.beside = Some((small, met.at_ns));
                match before {
                    Some((part, _)) if about(part) == (About { is_in_use: true, is_large: false }) => {
                        Evidence::Beside { small: part, of: large }
                    }
                    _ => Evidence::Unclear,
                }
            }
        }
    }

    fn judge_large(&self, [left, entered]: [Rid; 2], gfn: Gfn) -> Evidence {
        let (Some(left), Some(entered)) = (self.of(left), self.of(entered)) else {
            return Evidence::Together;
        };
        match (left.is_broad(entered.since_ns), entered.is_broad(left.since_ns)) {
            (true, true) => Evidence::Together,
            (_, false) if entered.times(gfn) >= HUB && left.is_broad(left.since_ns.max(entered.since_ns)) => {
                Evidence::Hub
            }
            _ => Evidence::Unclear,
        }
    }

    /// Two regions have become one with the number `now`. What was beside either is beside that: of two the one that was used last.
    pub fn merged(&mut self, both: [Rid; 2], now: Rid) {
        let of = |record: &Record| {
            record.beside.filter(|(rid, _)| both.contains(&record.rid) && !both.contains(rid))
        };
        let beside = self.records.iter().flatten().filter_map(of).max_by_key(|(_, since_ns)| *since_ns);
        for record in self.records.iter_mut().flatten() {
            match &mut record.beside {
                _ if record.rid == now => record.beside = beside,
                Some((rid, _)) if both.contains(rid) => *rid = now,
                _ => {}
            }
        }
    }

    /// The page that was touched last is part of a region now.
    pub fn joined(&mut self, rid: Rid, last: Gfn) {
        if let Some(record) = self.of_mut(rid) {
            record.last = Some(last);
        }
    }

    /// Checks that all regions that it knows exist.
    #[cfg(any(test, feature = "testing"))]
    pub fn check(&self, partition: &Partition) -> Result<(), &'static str> {
        let exists = |rid| partition.info(rid).is_some();
        for record in self.records.iter().flatten() {
            if !exists(record.rid) || record.beside.is_some_and(|(rid, _)| !exists(rid)) {
                return Err("there is a record of a region that is gone");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
