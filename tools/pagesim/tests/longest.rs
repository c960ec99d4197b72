//! How long the longest search of a policy takes, for as many frames as it orders in fast memory (docs/design/0032-fast-eviction.md), all of
//! which are accessed all the time: `cargo test -p pagesim --test longest -- --ignored --nocapture`.

use std::time::Instant;

use pagesim::replace::{
    AccessBits, Object, Page, Policy, Slot, apr::Apr, clock::Clock, clock_pro::ClockPro, lru::Lru,
    s3_fifo::S3Fifo, seq::Seq, sieve::Sieve,
};

/// 1 GiB.
const FRAMES: u32 = 1 << 18;
/// Page faults when all frames are in use.
const FAULTS: u32 = 40;
/// Runs of each.
const RUNS: u32 = 5;
/// Entries after which the hypervisor's pass finds no bit set.
const ENOUGH: u32 = 1 << 14;

/// Bits that samples set again before each fault, as the hypervisor has them: the pass in which each slot was looked at last, and the history
/// of the page in it.
struct Bits {
    looked: Vec<(u32, u32)>,
    histories: Vec<u32>,
    pass: u32,
    steps: u32,
    enough: u32,
}

impl AccessBits for Bits {
    fn take(&mut self, slot: Slot) -> bool {
        self.steps += 1;
        if self.steps > self.enough {
            return false;
        }
        let (page, looked) = &mut self.looked[slot as usize];
        let samples = self.pass.wrapping_sub(std::mem::replace(looked, self.pass)).min(32);
        samples > 0 && self.histories[*page as usize] >> (32 - samples) != 0
    }

    fn search(&mut self, entries: u32) {
        self.steps += entries;
    }
}

/// The longest fault in ms, each in the best of some runs, since others have the processor at times; and the most entries that one goes over.
fn longest<P: Policy + Clone>(empty: &P, enough: u32) -> (f64, u32) {
    let frames = FRAMES as usize;
    let (mut best, mut entries) = ([f64::MAX; FAULTS as usize], 0);
    for _ in 0..RUNS {
        let mut policy = empty.clone();
        let histories = vec![u32::MAX; frames + FAULTS as usize];
        let mut bits = Bits { looked: vec![(0, 0); frames], histories, pass: 0, steps: 0, enough };
        for page in 0..FRAMES + FAULTS {
            bits.pass += u32::from(page % 256 == 0 || page >= FRAMES);
            bits.steps = 0;
            if P::TOUCHES && page >= FRAMES {
                (0..FRAMES).for_each(|slot| policy.touch(slot, 1));
            }
            let begin = Instant::now();
            let placed = policy.fault(Page(page.into()), Object(0), &mut bits);
            let took = begin.elapsed().as_secs_f64() * 1000.0;
            bits.looked[placed.slot as usize] = (page, bits.pass);
            if let Some(fault) = page.checked_sub(FRAMES) {
                let best = &mut best[fault as usize];
                (*best, entries) = (best.min(took), entries.max(bits.steps));
            }
        }
    }
    (best.into_iter().fold(0.0, f64::max), entries)
}

#[test]
#[ignore = "it measures, on a machine that is idle"]
fn the_longest_search() {
    for (name, enough) in [("without a bound", u32::MAX), ("bounded", ENOUGH)] {
        println!("{name}: ms and entries of the longest search with {FRAMES} frames");
        let all = [
            ("clock", longest(&Clock::new(FRAMES).unwrap(), enough)),
            ("clock-pro", longest(&ClockPro::new(FRAMES).unwrap(), enough)),
            ("seq", longest(&Seq::new(FRAMES).unwrap(), enough)),
            ("apr", longest(&Apr::new(FRAMES, Default::default()).unwrap(), enough)),
            ("lru", longest(&Lru::new(FRAMES).unwrap(), enough)),
            ("s3-fifo", longest(&S3Fifo::new(FRAMES).unwrap(), enough)),
            ("sieve", longest(&Sieve::new(FRAMES).unwrap(), enough)),
        ];
        for (policy, (ms, entries)) in all {
            println!("{policy:<10} {ms:>7.2} {entries:>9}");
        }
    }
}
