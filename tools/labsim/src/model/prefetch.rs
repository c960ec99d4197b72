//! A stride prefetcher, as they sit beside a second-level cache: it sees the first level's misses, page by page.
//!
//! Two steps of the same length in one page are a stream; each further step brings the next lines in. A stream ends at
//! its page, as in processors, because the next physical page may belong to anything.

use super::search::position;

/// Lines in a page.
const LINES: u64 = 64;
/// The longest step, in lines.
const LONGEST: i64 = 32;

#[derive(Clone, Copy)]
struct Stream {
    last: u64,
    stride: i64,
    used: u64,
}

/// See the module.
#[derive(Clone)]
pub struct Prefetcher {
    /// The page of each stream, apart from the rest, because each miss looks at all of them.
    pages: Box<[u64]>,
    streams: Box<[Stream]>,
    /// The streams that were hit last: a copy has two, in turn.
    recent: [usize; 2],
    degree: u64,
    clock: u64,
}

impl Prefetcher {
    /// One that follows `streams` pages at a time, `degree` lines ahead.
    pub fn new(streams: usize, degree: u64) -> Prefetcher {
        let empty = Stream { last: 0, stride: 0, used: 0 };
        Prefetcher {
            pages: vec![u64::MAX; streams].into(),
            streams: vec![empty; streams].into(),
            recent: [0; 2],
            degree,
            clock: 0,
        }
    }

    /// A miss of the first level; `bring` gets the lines to fetch.
    #[inline]
    pub fn miss(&mut self, line: u64, mut bring: impl FnMut(u64)) {
        self.clock += 1;
        let page = line / LINES;
        let is_it = |stream: &usize| self.pages.get(*stream) == Some(&page);
        let recent = self.recent.iter().copied().find(is_it);
        let Some(known) = recent.or_else(|| position(self.pages.len(), |stream| self.pages[stream] == page))
        else {
            self.begin(page, line);
            return;
        };
        if self.recent[0] != known {
            self.recent = [known, self.recent[0]];
        }
        let stream = &mut self.streams[known];
        let step = line as i64 - stream.last as i64;
        let follows = step != 0 && step == stream.stride && step.abs() <= LONGEST;
        *stream = Stream { last: line, stride: step, used: self.clock };
        if follows {
            for ahead in 1..=self.degree as i64 {
                let next = line as i64 + step * ahead;
                if next >= 0 && next as u64 / LINES == page {
                    bring(next as u64);
                }
            }
        }
    }

    /// A new stream in the place of the one used longest ago.
    fn begin(&mut self, page: u64, line: u64) {
        let places = self.pages.iter_mut().zip(&mut self.streams);
        if let Some((place, stream)) = places.min_by_key(|(_, stream)| stream.used) {
            *place = page;
            *stream = Stream { last: line, stride: 0, used: self.clock };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brought(prefetcher: &mut Prefetcher, line: u64) -> Vec<u64> {
        let mut lines = vec![];
        prefetcher.miss(line, |line| lines.push(line));
        lines
    }

    #[test]
    fn follows_strides_up_to_the_end_of_the_page() {
        let mut prefetcher = Prefetcher::new(2, 2);
        assert_eq!(brought(&mut prefetcher, 640), [0_u64; 0]);
        assert_eq!(brought(&mut prefetcher, 643), [0_u64; 0]);
        assert_eq!(brought(&mut prefetcher, 646), [649, 652]);
        assert_eq!(brought(&mut prefetcher, 700), [0_u64; 0]);
        assert_eq!(brought(&mut prefetcher, 699), [0_u64; 0]);
        assert_eq!(brought(&mut prefetcher, 698), [697, 696]);
        for line in [701, 702, 703] {
            let lines = brought(&mut prefetcher, line);
            assert!(lines.iter().all(|line| line / LINES == 10), "{lines:?}");
        }
    }

    #[test]
    fn the_page_used_longest_ago_is_forgotten() {
        let mut prefetcher = Prefetcher::new(2, 1);
        for line in [0, 1, 64, 65, 128] {
            brought(&mut prefetcher, line);
        }
        assert_eq!(brought(&mut prefetcher, 66), [67]);
        assert_eq!(brought(&mut prefetcher, 2), [0_u64; 0], "page 0 had gone");
    }
}
