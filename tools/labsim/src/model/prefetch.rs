//! A stride prefetcher, as they sit beside a second-level cache: it sees the first level's misses, page by page.
//!
//! Two steps of the same length in one page are a stream; each further step brings the next lines in. A stream ends at
//! its page, as in processors, because the next physical page may belong to anything.

/// Lines in a page.
const LINES: u64 = 64;
/// The longest step, in lines.
const LONGEST: i64 = 32;

#[derive(Clone, Copy)]
struct Stream {
    page: u64,
    last: u64,
    stride: i64,
    used: u64,
}

/// See the module.
pub struct Prefetcher {
    streams: Vec<Stream>,
    degree: u64,
    clock: u64,
}

impl Prefetcher {
    /// One that follows `streams` pages at a time, `degree` lines ahead.
    pub fn new(streams: usize, degree: u64) -> Prefetcher {
        let empty = Stream { page: u64::MAX, last: 0, stride: 0, used: 0 };
        Prefetcher { streams: vec![empty; streams], degree, clock: 0 }
    }

    /// A miss of the first level; `bring` gets the lines to fetch.
    pub fn miss(&mut self, line: u64, mut bring: impl FnMut(u64)) {
        self.clock += 1;
        let page = line / LINES;
        let known = self.streams.iter_mut().find(|stream| stream.page == page);
        let Some(stream) = known else {
            if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
                *oldest = Stream { page, last: line, stride: 0, used: self.clock };
            }
            return;
        };
        let step = line as i64 - stream.last as i64;
        let follows = step != 0 && step == stream.stride && step.abs() <= LONGEST;
        *stream = Stream { page, last: line, stride: step, used: self.clock };
        if follows {
            for ahead in 1..=self.degree as i64 {
                let next = line as i64 + step * ahead;
                if next >= 0 && next as u64 / LINES == page {
                    bring(next as u64);
                }
            }
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
