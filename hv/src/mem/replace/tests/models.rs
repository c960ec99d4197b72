//! The simple policies: queues of pages, the oldest in front.

use std::{collections::VecDeque, vec::Vec};

use super::{Model, Outcome, Reference};

/// A circle is a queue out of which spared pages go to the end.
pub struct Clock {
    frames: usize,
    queue: VecDeque<(u64, bool)>,
}

impl Clock {
    pub fn new(frames: u32) -> Self {
        Self { frames: frames as usize, queue: VecDeque::new() }
    }
}

impl Model for Clock {
    fn access(&mut self, (page, _, times): Reference) -> Outcome {
        if let Some(entry) = self.queue.iter_mut().find(|entry| entry.0 == page) {
            entry.1 = true;
            return None;
        }
        let evicted = (self.queue.len() >= self.frames).then(|| self.evict());
        self.queue.push_back((page, times > 1));
        Some(evicted)
    }

    fn evict(&mut self) -> u64 {
        loop {
            let (oldest, accessed) = self.queue.pop_front().unwrap();
            if !accessed {
                return oldest;
            }
            self.queue.push_back((oldest, false));
        }
    }

    fn remove(&mut self, page: u64) {
        self.queue.retain(|entry| entry.0 != page);
    }

    fn limit(&mut self, frames: usize) {
        self.frames = frames;
    }
}

pub struct Lru {
    frames: usize,
    queue: Vec<u64>,
}

impl Lru {
    pub fn new(frames: u32) -> Self {
        Self { frames: frames as usize, queue: Vec::new() }
    }
}

impl Model for Lru {
    fn access(&mut self, (page, ..): Reference) -> Outcome {
        let at = self.queue.iter().position(|other| *other == page);
        let evicted = match at {
            Some(at) => Some(self.queue.remove(at)),
            None => (self.queue.len() >= self.frames).then(|| self.evict()),
        };
        self.queue.push(page);
        if at.is_some() { None } else { Some(evicted) }
    }

    fn evict(&mut self) -> u64 {
        self.queue.remove(0)
    }

    fn remove(&mut self, page: u64) {
        self.queue.retain(|other| *other != page);
    }

    fn limit(&mut self, frames: usize) {
        self.frames = frames;
    }
}

pub struct Sieve {
    frames: usize,
    queue: Vec<(u64, bool)>,
    hand: usize,
}

impl Sieve {
    pub fn new(frames: u32) -> Self {
        Self { frames: frames as usize, queue: Vec::new(), hand: 0 }
    }
}

impl Model for Sieve {
    fn access(&mut self, (page, _, times): Reference) -> Outcome {
        if let Some(entry) = self.queue.iter_mut().find(|entry| entry.0 == page) {
            entry.1 = true;
            return None;
        }
        let evicted = (self.queue.len() >= self.frames).then(|| self.evict());
        self.queue.push((page, times > 1));
        Some(evicted)
    }

    fn evict(&mut self) -> u64 {
        while self.queue[self.hand].1 {
            self.queue[self.hand].1 = false;
            self.hand = (self.hand + 1) % self.queue.len();
        }
        let page = self.queue[self.hand].0;
        self.remove(page);
        page
    }

    fn remove(&mut self, page: u64) {
        let at = self.queue.iter().position(|entry| entry.0 == page).unwrap();
        self.queue.remove(at);
        // What is newer moved down; behind the newest the oldest is next, and what comes now is not.
        self.hand -= usize::from(at < self.hand);
        if self.hand == self.queue.len() {
            self.hand = 0;
        }
    }

    fn limit(&mut self, frames: usize) {
        self.frames = frames;
    }
}

pub struct S3Fifo {
    frames: usize,
    small: VecDeque<(u64, u32)>,
    main: VecDeque<(u64, u32)>,
    ghosts: VecDeque<u64>,
}

impl S3Fifo {
    pub fn new(frames: u32) -> Self {
        let empty = VecDeque::new;
        Self { frames: frames as usize, small: empty(), main: empty(), ghosts: VecDeque::new() }
    }
}

impl Model for S3Fifo {
    fn access(&mut self, (page, _, times): Reference) -> Outcome {
        if let Some(entry) = self.small.iter_mut().chain(&mut self.main).find(|entry| entry.0 == page) {
            entry.1 += times;
            return None;
        }
        let was_ghost = self.ghosts.contains(&page);
        self.ghosts.retain(|ghost| *ghost != page);
        let is_full = self.small.len() + self.main.len() >= self.frames;
        let evicted = is_full.then(|| self.evict());
        let no_room = !is_full && self.small.len() >= (self.frames / 10).max(1);
        let queue = if was_ghost || no_room { &mut self.main } else { &mut self.small };
        queue.push_back((page, times - 1));
        Some(evicted)
    }

    fn evict(&mut self) -> u64 {
        let small_frames = (self.frames / 10).max(1);
        loop {
            if self.main.len() > self.frames - small_frames || self.small.is_empty() {
                let (page, count) = self.main.pop_front().unwrap();
                if count == 0 {
                    return page;
                }
                self.main.push_back((page, count.min(3) - 1));
                // The main queue goes on until it has evicted one, whatever its length is by now.
                continue;
            }
            while let Some((page, count)) = self.small.pop_front() {
                if count >= 2 {
                    self.main.push_back((page, 0));
                    continue;
                }
                let most = self.frames * 9 / 10;
                for _ in 0..2 {
                    if self.ghosts.len() >= most {
                        self.ghosts.pop_front();
                    }
                }
                if most > 0 {
                    self.ghosts.push_back(page);
                }
                return page;
            }
        }
    }

    fn remove(&mut self, page: u64) {
        [&mut self.small, &mut self.main].into_iter().for_each(|queue| queue.retain(|entry| entry.0 != page));
    }

    fn limit(&mut self, frames: usize) {
        self.frames = frames;
    }
}
