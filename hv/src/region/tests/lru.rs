//! A cache that replaces what was used least recently.

/// A fully associative cache of a bounded number of lines: a list in the order of use, linked through the frames.
pub struct Lru {
    /// Before and behind each frame; the last element has the list's end and beginning.
    links: Vec<(u32, u32)>,
    is_in: Vec<bool>,
    len: u32,
    capacity: u32,
}

impl Lru {
    /// An empty cache for frames below `frames`.
    pub fn new(capacity: u32, frames: u32) -> Lru {
        let mut links = vec![(0, 0); frames as usize + 1];
        links[frames as usize] = (frames, frames);
        Lru { links, is_in: vec![false; frames as usize], len: 0, capacity }
    }

    fn unlink(&mut self, frame: u32) {
        let (prev, next) = self.links[frame as usize];
        self.links[prev as usize].1 = next;
        self.links[next as usize].0 = prev;
    }

    /// Whether it was there; it is now.
    pub fn access(&mut self, frame: u32) -> bool {
        let end = self.is_in.len();
        let was_in = core::mem::replace(&mut self.is_in[frame as usize], true);
        if was_in {
            self.unlink(frame);
        } else if self.len == self.capacity {
            let oldest = self.links[end].1;
            self.unlink(oldest);
            self.is_in[oldest as usize] = false;
        } else {
            self.len += 1;
        }
        let last = self.links[end].0;
        self.links[frame as usize] = (last, end as u32);
        self.links[last as usize].1 = frame;
        self.links[end].0 = frame;
        was_in
    }
}

#[test]
fn the_least_recently_used_goes() {
    let mut cache = Lru::new(2, 4);
    let hits = [1, 2, 1, 3, 1, 2, 3, 3].map(|frame| cache.access(frame));
    assert_eq!(hits, [false, false, true, false, true, false, false, true]);
}
