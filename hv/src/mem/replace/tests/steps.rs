//! How long one fault may take: entries that a policy goes over, counted.

use std::vec::Vec;

use super::*;

/// Bits that are found once between two faults, and count.
struct Counted {
    bits: Bits,
    steps: u64,
}

impl AccessBits for Counted {
    fn take(&mut self, slot: Slot) -> bool {
        self.steps += 1;
        self.bits.take(slot)
    }

    fn search(&mut self, entries: u32) {
        self.steps += u64::from(entries);
    }
}

/// The most steps of one fault, on loops, sequences and pages that come back; before each fault all bits are set, or one in `sparse`.
fn longest(mut policy: impl Policy, frames: u32, sparse: usize) -> u64 {
    let none = vec![false; frames as usize];
    let mut counted = Counted { bits: Bits(none), steps: 0 };
    let mut slots: Vec<Option<u64>> = vec![None; frames as usize];
    let mut longest = 0;
    for n in 0..u64::from(frames) * 50 {
        // The limit falls to a tenth and rises again.
        let limit = if n / u64::from(frames) % 20 < 15 { frames } else { frames / 10 };
        policy.limit(limit);
        let page = match n / (u64::from(frames) * 6) % 4 {
            0 => n % (u64::from(frames) * 3 / 2),
            1 => n,
            2 => (n * 7919) % (u64::from(frames) * 2),
            _ => u64::MAX - n % (u64::from(frames) + 9),
        };
        for (slot, bit) in counted.bits.0.iter_mut().enumerate() {
            *bit = slot % sparse == 0;
        }
        // Policies that count hear of it now and then, as after a sample.
        if n % 16 == 0 {
            (0..frames).filter(|slot| slots[*slot as usize].is_some()).for_each(|slot| policy.touch(slot, 3));
        }
        if slots.contains(&Some(page)) {
            continue;
        }
        counted.steps = 0;
        let placed = policy.fault(Page(page), Object(0), &mut counted);
        longest = longest.max(counted.steps);
        slots[placed.slot as usize] = Some(page);
    }
    longest
}

#[test]
fn a_fault_goes_over_a_few_rounds() {
    const FRAMES: u32 = 150;
    // SEQ goes over all of its sequences for each one that it tries, and over the pages that 0027 says.
    const SEQ: u64 = 4096 + 202 * 201;
    for sparse in [1, 3, 50] {
        let all = [
            ("clock", 0, longest(Clock::new(FRAMES).unwrap(), FRAMES, sparse)),
            ("clock-pro", 0, longest(ClockPro::new(FRAMES).unwrap(), FRAMES, sparse)),
            ("seq", SEQ, longest(Seq::new(FRAMES).unwrap(), FRAMES, sparse)),
            ("apr", 0, longest(Apr::new(FRAMES, Parameters::default()).unwrap(), FRAMES, sparse)),
            ("lru", 0, longest(Lru::new(FRAMES).unwrap(), FRAMES, sparse)),
            ("s3-fifo", 0, longest(S3Fifo::new(FRAMES).unwrap(), FRAMES, sparse)),
            ("sieve", 0, longest(Sieve::new(FRAMES).unwrap(), FRAMES, sparse)),
        ];
        for (name, fixed, steps) in all {
            println!("{name}, a bit of {sparse}: {steps} entries at most");
            assert!(steps <= fixed + u64::from(super::super::ROUNDS * FRAMES), "{name}: {steps}");
        }
    }
}
