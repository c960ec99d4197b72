//! CLOCK-Pro and APR: lists are vectors of pages, and hands are pages.

use std::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::{
    super::apr::score::{Decay, Score, Side},
    Model, Outcome, Reference,
};

/// A circle of pages; a hand is the page that it points at.
struct Circle<const HANDS: usize> {
    pages: Vec<u64>,
    hands: [Option<u64>; HANDS],
}

impl<const HANDS: usize> Default for Circle<HANDS> {
    fn default() -> Self {
        Circle { pages: Vec::new(), hands: [None; HANDS] }
    }
}

impl<const HANDS: usize> Circle<HANDS> {
    fn after(&self, page: u64) -> u64 {
        let at = self.pages.iter().position(|other| *other == page).unwrap();
        self.pages[(at + 1) % self.pages.len()]
    }

    fn pass(&mut self, hand: usize) -> u64 {
        let page = self.hands[hand].unwrap();
        self.hands[hand] = Some(self.after(page));
        page
    }

    /// Behind a hand: it comes there last.
    fn push(&mut self, page: u64, hand: usize) {
        let at = self.hands[hand].and_then(|at| self.pages.iter().position(|other| *other == at));
        self.pages.insert(at.unwrap_or(0), page);
        self.hands.iter_mut().for_each(|hand| *hand = hand.or(Some(page)));
    }

    fn remove(&mut self, page: u64) {
        let next = Some(self.after(page)).filter(|next| *next != page);
        self.hands.iter_mut().filter(|hand| **hand == Some(page)).for_each(|hand| *hand = next);
        self.pages.retain(|other| *other != page);
    }
}

const HOT: usize = 0;
const COLD: usize = 1;
const TEST: usize = 2;

/// CLOCK-Pro, by sets of pages.
pub struct ClockPro {
    frames: usize,
    cold_allowed: usize,
    circle: Circle<3>,
    hot: BTreeSet<u64>,
    cold: BTreeSet<u64>,
    tested: BTreeSet<u64>,
    accessed: BTreeSet<u64>,
}

impl ClockPro {
    pub fn new(frames: u32) -> Self {
        let (frames, none) = (frames as usize, BTreeSet::new);
        let circle = Circle::default();
        Self {
            frames,
            cold_allowed: frames,
            circle,
            hot: none(),
            cold: none(),
            tested: none(),
            accessed: none(),
        }
    }

    fn end_test(&mut self, page: u64) {
        self.cold_allowed = (self.cold_allowed - 1).max(1);
        self.tested.remove(&page);
        if !self.cold.contains(&page) {
            self.circle.remove(page);
        }
    }

    fn becomes_hot(&mut self, page: u64) {
        self.cold_allowed = (self.cold_allowed + 1).min(self.frames);
        self.circle.remove(page);
        self.circle.push(page, HOT);
        self.tested.remove(&page);
        self.cold.remove(&page);
        self.hot.insert(page);
        while self.hot.len() + self.cold_allowed > self.frames {
            self.cool_one();
        }
    }

    fn cool_one(&mut self) {
        loop {
            let page = self.circle.pass(HOT);
            if self.hot.contains(&page) && !self.accessed.remove(&page) {
                self.hot.remove(&page);
                self.cold.insert(page);
                return;
            }
            if self.tested.contains(&page) {
                self.end_test(page);
            }
        }
    }
}

impl Model for ClockPro {
    fn access(&mut self, (page, _, times): Reference) -> Outcome {
        if self.hot.contains(&page) || self.cold.contains(&page) {
            self.accessed.insert(page);
            return None;
        }
        let evicted = (self.hot.len() + self.cold.len() >= self.frames).then(|| self.evict());
        if self.circle.pages.contains(&page) {
            self.becomes_hot(page);
        } else {
            self.circle.push(page, HOT);
            self.cold.insert(page);
            self.tested.insert(page);
        }
        if times > 1 {
            self.accessed.insert(page);
        }
        Some(evicted)
    }

    fn evict(&mut self) -> u64 {
        loop {
            if self.cold.is_empty() {
                self.cool_one();
            }
            let page = self.circle.pass(COLD);
            if !self.cold.contains(&page) {
                continue;
            }
            if self.accessed.remove(&page) {
                if self.tested.contains(&page) {
                    self.becomes_hot(page);
                } else {
                    self.circle.remove(page);
                    self.circle.push(page, HOT);
                    self.tested.insert(page);
                }
                continue;
            }
            self.cold.remove(&page);
            if !self.tested.contains(&page) {
                self.circle.remove(page);
            }
            while self.circle.pages.len() - self.hot.len() - self.cold.len() > self.frames {
                let page = self.circle.pass(TEST);
                if self.tested.contains(&page) {
                    self.end_test(page);
                }
            }
            return page;
        }
    }

    fn remove(&mut self, page: u64) {
        self.circle.remove(page);
        for pages in [&mut self.hot, &mut self.cold, &mut self.tested, &mut self.accessed] {
            pages.remove(&page);
        }
    }

    fn limit(&mut self, frames: usize) {
        let for_hot = self.frames - self.cold_allowed;
        (self.frames, self.cold_allowed) = (frames, frames.saturating_sub(for_hot).max(1));
    }
}

/// A page of APR.
#[derive(Clone, Copy)]
struct Known {
    object: u32,
    resident: bool,
    /// The processor's bit, CLOCK's copy, LIFO+'s copy.
    bits: [bool; 3],
    named: Option<(Side, u32)>,
}

/// APR, by lists of pages.
pub struct Apr {
    frames: usize,
    objects: u32,
    decay: Decay,
    known: BTreeMap<u64, Known>,
    global: Circle<1>,
    /// The top is first; the hand is the page that LIFO+ looks at next.
    stacks: BTreeMap<u32, Circle<1>>,
    /// The latest is last.
    ghosts: Vec<u64>,
    scores: BTreeMap<u32, (u32, Score)>,
}

impl Apr {
    pub fn new(frames: u32, objects: u32) -> Self {
        Self {
            frames: frames as usize,
            objects,
            decay: Decay::new(700),
            known: BTreeMap::new(),
            global: Circle::default(),
            stacks: BTreeMap::new(),
            ghosts: Vec::new(),
            scores: BTreeMap::new(),
        }
    }

    /// Judges who named a page.
    fn judge(&mut self, page: u64, praise: bool) {
        let known = self.known[&page];
        if let Some((side, at)) = known.named {
            let (now, score) = self.scores.entry(known.object).or_default();
            if praise {
                score.praise(side, *now - at, &self.decay);
            } else {
                score.punish(side, *now - at, &self.decay);
            }
        }
    }

    fn active(&self, object: u32) -> Side {
        self.scores.get(&object).map_or(Side::Clock, |(_, score)| score.better())
    }

    fn look(&mut self, page: u64) {
        if self.known[&page].bits[0] {
            self.judge(page, false);
            let known = self.known.get_mut(&page).unwrap();
            (known.bits, known.named) = ([false, true, true], None);
        }
    }

    fn circle(&mut self, side: Side, object: u32) -> &mut Circle<1> {
        match side {
            Side::Clock => &mut self.global,
            Side::Lifo => self.stacks.entry(object).or_default(),
        }
    }

    fn names(&mut self, side: Side, object: u32, active: Option<Side>) -> Option<u64> {
        let pages = self.circle(side, object).pages.len();
        for _ in 0..2 * pages {
            let page = self.circle(side, object).pass(0);
            self.look(page);
            let known = self.known[&page];
            let copy = if side == Side::Clock { 1 } else { 2 };
            if known.bits[copy] {
                self.known.get_mut(&page).unwrap().bits[copy] = false;
                continue;
            }
            let active = active.unwrap_or(self.active(known.object)) == side;
            let some_left = self.known.values().any(|other| other.object == known.object && other.resident);
            if !known.resident && (active || !some_left) {
                self.judge(page, true);
                self.vanish(page);
            } else if active || known.named.map(|(by, _)| by) != Some(side) {
                return Some(page);
            }
        }
        None
    }

    fn vanish(&mut self, page: u64) {
        let object = self.known.remove(&page).unwrap().object;
        for side in [Side::Clock, Side::Lifo] {
            let circle = self.circle(side, object);
            if circle.pages.contains(&page) {
                circle.remove(page);
            }
        }
        self.ghosts.retain(|ghost| *ghost != page);
    }

    fn next_resident(&mut self, side: Side, object: u32) -> u64 {
        loop {
            let page = self.circle(side, object).pass(0);
            let known = self.known.get_mut(&page).unwrap();
            if known.resident {
                known.named = None;
                return page;
            }
        }
    }

    fn replacement(&mut self) -> u64 {
        let first = self.names(Side::Clock, 0, None).unwrap_or_else(|| self.next_resident(Side::Clock, 0));
        let object = self.known[&first].object;
        let active = self.active(object);
        let second = match self.names(Side::Lifo, object, Some(active)) {
            None if active == Side::Lifo => Some(self.next_resident(Side::Lifo, object)),
            named => named,
        };
        let (now, score) = self.scores.entry(object).or_default();
        *now += 1;
        let now = *now;
        score.decay(&self.decay);
        let evicted = if active == Side::Clock { first } else { second.unwrap() };
        for (by, page) in [(Side::Clock, Some(first)), (Side::Lifo, second)] {
            let Some(page) = page.filter(|page| self.known.contains_key(page)) else { continue };
            let known = self.known[&page];
            let by_both = second == Some(first) || known.named.is_some_and(|(other, _)| other != by);
            if by_both {
                self.judge(page, true);
                if page == evicted || !known.resident {
                    self.vanish(page);
                } else {
                    self.known.get_mut(&page).unwrap().named = None;
                }
                continue;
            }
            let marked = self.known.get_mut(&page).unwrap();
            marked.named = known.named.or(Some((by, now)));
            if by == active {
                marked.resident = false;
                self.circle(by, object).remove(page);
                self.ghosts.push(page);
            }
        }
        for _ in 0..2 {
            if self.ghosts.len() > self.frames {
                self.vanish(self.ghosts[0]);
            }
        }
        evicted
    }
}

impl Model for Apr {
    fn access(&mut self, (page, object, times): Reference) -> Outcome {
        let object = if object < self.objects { object } else { 0 };
        if let Some(known) = self.known.get_mut(&page) {
            if known.resident {
                known.bits[0] = true;
                return None;
            }
            self.judge(page, false);
            self.vanish(page);
        }
        let full = self.known.values().filter(|known| known.resident).count() >= self.frames;
        let evicted = full.then(|| self.replacement());
        let bits = [times > 1, false, false];
        self.known.insert(page, Known { object, resident: true, bits, named: None });
        self.global.push(page, 0);
        let stack = self.stacks.entry(object).or_default();
        let former = stack.pages.first().copied();
        stack.pages.insert(0, page);
        stack.hands[0] = former.or(Some(page));
        if let Some(former) = former {
            self.look(former);
            self.known.get_mut(&former).unwrap().bits[2] = false;
        }
        Some(evicted)
    }

    fn evict(&mut self) -> u64 {
        self.replacement()
    }

    fn remove(&mut self, page: u64) {
        self.vanish(page);
    }

    fn limit(&mut self, frames: usize) {
        self.frames = frames;
    }
}
